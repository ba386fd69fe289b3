"""A query's progress as numbers: what Spark says, what it leaves out, what is counted once."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.spark.pipelines.progress import RATE_MS, ProgressTotals, read_progress


def progress(batch_id: int = 3, rows: int = 10, **more: Any) -> dict[str, Any]:
    return {
        "batchId": batch_id,
        "timestamp": f"2026-11-16T09:00:{batch_id:02d}.000Z",
        "numInputRows": rows,
        "durationMs": {"triggerExecution": 640, "addBatch": 500},
        **more,
    }


def source(end: object, latest: object, start: object = None) -> dict[str, Any]:
    return {"description": "x", "startOffset": start, "endOffset": end, "latestOffset": latest}


def test_a_batch_has_its_lag_state_and_time() -> None:
    batch = read_progress(
        progress(
            sources=[
                source(json.dumps({"0": 5, "1": 9}), json.dumps({"0": 8, "1": 9})),
                source({"0": 1}, {"0": 2, "1": 100}),
            ],
            stateOperators=[
                {"numRowsTotal": 4, "memoryUsedBytes": 1000, "numRowsDroppedByWatermark": 2},
                {"numRowsTotal": 6, "memoryUsedBytes": 500},
            ],
            eventTime={"watermark": "2026-11-16T08:59:50.000Z"},
            sink={"numOutputRows": 7},
        )
    )
    # A partition that the batch did not know yet has no lag: it is read from the next batch on.
    assert batch.lag_events == 3 + 1
    assert (batch.state_rows, batch.state_bytes, batch.late_rows) == (10, 1500, 2)
    assert (batch.seconds, batch.rows) == (0.64, 10)
    assert batch.watermark == "2026-11-16T08:59:50.000Z"


@pytest.mark.parametrize(
    "odd",
    [
        {},
        {"sources": "none", "stateOperators": 5, "eventTime": [], "sink": None, "durationMs": 1},
        {"sources": [None, {"endOffset": "{", "latestOffset": "["}], "stateOperators": [1]},
        {"sources": [source({"0": "x"}, {"0": True})], "numInputRows": float("nan")},
        {"sources": [source(None, None)], "sink": {"numOutputRows": -1}},
    ],
)
def test_whatever_is_odd_counts_as_nothing(odd: dict[str, Any]) -> None:
    batch = read_progress(odd)
    assert (batch.rows, batch.lag_events, batch.state_rows) == (0, None, None)
    assert (batch.late_rows, batch.watermark) == (0, None)


def test_bytes_are_what_the_sources_have_read_since_the_batch_before() -> None:
    first = source(
        {"0": 5, "bytes": 900, "createdAt": 7}, {"0": 9, "bytes": 1700, "createdAt": 7}, {"0": 0}
    )
    second = source('{"0": 5, "bytes": 1000}', None, '{"0": 4, "bytes": 700}')
    batch = read_progress(progress(sources=[first, second, source({"topic": 1}, None)]))
    assert (batch.bytes, batch.lag_events) == (900 + 300, 4)
    assert read_progress(progress(sources=[source({"0": 1}, {"0": 1})])).bytes is None


def test_rows_are_those_of_the_sources_where_the_whole_does_not_say() -> None:
    said = progress(sources=[{"numInputRows": 3}, {"numInputRows": 4}, {}])
    assert read_progress(said | {"numInputRows": None}).rows == 7


def test_the_first_watermark_of_all_is_none() -> None:
    batch = read_progress(progress(eventTime={"watermark": "1970-01-01T00:00:00.000Z"}))
    assert batch.watermark is None


def test_a_tally_counts_each_batch_once() -> None:
    tally = ProgressTotals()
    first = [read_progress(progress(number, rows=5)) for number in range(3)]
    assert [each.batch_id for each in tally.add(first)] == [0, 1, 2]
    assert tally.add(first) == []
    idle = read_progress(progress(2, rows=0, timestamp="2026-11-16T09:00:30.000Z"))
    assert tally.add([first[2], idle]) == [idle]
    assert (tally.rows, tally.batches) == (15, 3)


def test_a_tally_knows_when_batches_passed_between_two_looks() -> None:
    tally = ProgressTotals()
    assert tally.has_missed(read_progress(progress(1)))
    tally.add([read_progress(progress(0, rows=5))])
    assert not tally.has_missed(read_progress(progress(1, rows=5)))
    assert tally.has_missed(read_progress(progress(2, rows=5)))
    # Idle, under the number of the batch to come; then that batch, and one without rows behind it.
    tally.add([read_progress(progress(1, rows=0))])
    assert not tally.has_missed(read_progress(progress(1, rows=20)))
    assert tally.has_missed(read_progress(progress(2, rows=0)))


def test_a_rate_is_that_of_the_last_seconds() -> None:
    tally = ProgressTotals()
    assert tally.rate(0) == 0.0
    tally.add([read_progress(progress(0, rows=1000))])
    assert tally.rate(1000) == 1000.0
    for second in range(2, 30):
        rate = tally.rate(second * 1000)
    assert rate == 0.0, "nothing came for longer than a rate looks back"
    tally.add([read_progress(progress(1, rows=500))])
    assert tally.rate(30_000) == pytest.approx(500 * 1000 / RATE_MS, rel=0.2)
