"""Streaming reads: exact over restarts, in bounded micro-batches, with the position told."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from tests.spark.conftest import MakeHub, TestHub

DEADLINE_S = 180.0


class Collected:
    """What a query's micro-batches held."""

    def __init__(self) -> None:
        self.batches: dict[int, list[Any]] = {}
        self._more = threading.Condition()

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        rows = frame.collect()
        with self._more:
            self.batches[batch_id] = rows  # a batch that is run again replaces itself
            self._more.notify_all()

    @property
    def rows(self) -> list[Any]:
        return [row for _, rows in sorted(self.batches.items()) for row in rows]

    @property
    def bodies(self) -> list[bytes]:
        return [bytes(row.body) for row in self.rows]

    def wait_for(self, count: int) -> None:
        with self._more:
            assert self._more.wait_for(lambda: len(self.rows) >= count, DEADLINE_S), len(self.rows)


def start(
    spark: SparkSession,
    hub: TestHub,
    into: Collected,
    checkpoint: Path,
    *,
    available_now: bool = False,
    **options: str,
) -> StreamingQuery:
    frame = spark.readStream.format("eventhubs").options(**hub.options, **options).load()
    writer = frame.writeStream.foreachBatch(into).option("checkpointLocation", str(checkpoint))
    if available_now:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime="100 milliseconds").start()


def wait_for_progress(query: StreamingQuery) -> None:
    """It has looked at the hub once."""
    deadline_s = time.monotonic() + DEADLINE_S
    while query.lastProgress is None:
        assert time.monotonic() < deadline_s
        assert query.exception() is None
        time.sleep(0.02)


def run(
    spark: SparkSession, hub: TestHub, into: Collected, checkpoint: Path, **options: str
) -> StreamingQuery:
    query = start(spark, hub, into, checkpoint, available_now=True, **options)
    assert query.awaitTermination(int(DEADLINE_S))
    return query


@pytest.mark.parametrize(("partitions", "share"), [(4, 60), (32, 8)])
def test_a_stream_equals_what_was_sent_over_restarts(
    spark: SparkSession, make_hub: MakeHub, tmp_path: Path, partitions: int, share: int
) -> None:
    hub, seen = make_hub(partitions), Collected()
    sent = hub.spread(partitions * share, prefix="a")
    run(spark, hub, seen, tmp_path / "c", startingPosition="earliest")
    assert sorted(seen.bodies) == sorted(sent)
    sent += hub.spread(partitions * share, prefix="b")
    run(spark, hub, seen, tmp_path / "c", startingPosition="earliest", maxEventsPerTrigger="150")
    assert sorted(seen.bodies) == sorted(sent)
    for partition, bodies in hub.read().items():
        assert [bytes(r.body) for r in seen.rows if r.partition == partition] == bodies
    run(spark, hub, seen, tmp_path / "c")
    assert len(seen.bodies) == len(sent), "a restart without news reads nothing"


def test_a_running_query_gets_what_comes_and_tells_its_lag(
    spark: SparkSession, make_hub: MakeHub, tmp_path: Path
) -> None:
    hub, seen = make_hub(4), Collected()
    hub.spread(40, prefix="before")
    query = start(spark, hub, seen, tmp_path / "c")
    try:
        wait_for_progress(query)
        for number in range(3):
            hub.spread(40, prefix=f"{number}-")
            seen.wait_for(40 * (number + 1))
        query.processAllAvailable()
        progress: Any = query.lastProgress
    finally:
        query.stop()
    assert len(seen.bodies) == 120, "the default start of a stream is the end"
    assert not any(body.startswith(b"before") for body in seen.bodies)
    source = progress["sources"][0]
    end, latest = (_parsed(source[name]) for name in ("endOffset", "latestOffset"))
    assert end == latest
    assert list(end) == ["0", "1", "2", "3", "bytes", "createdAt"]
    assert [end[key] for key in "0123"] == [40, 40, 40, 40]
    assert end["bytes"] > sum(map(len, seen.bodies)), "as they are stored, with their headers"
    assert progress["sink"] is not None


def _parsed(value: Any) -> dict[str, int]:
    found: dict[str, int] = json.loads(value) if isinstance(value, str) else dict(value)
    return found


def test_admission_bounds_every_micro_batch(
    spark: SparkSession, make_hub: MakeHub, tmp_path: Path
) -> None:
    hub, seen = make_hub(4), Collected()
    hub.send([f"{number}" for number in range(300)], partition_id="0")
    hub.send([f"x{number}" for number in range(30)], partition_id="2")
    run(spark, hub, seen, tmp_path / "c", startingPosition="earliest", maxEventsPerTrigger="100")
    sizes = [len(rows) for _, rows in sorted(seen.batches.items())]
    assert sizes == [100, 100, 100, 30]
    first = seen.batches[0]
    assert {row.partition for row in first} == {"0", "2"}, "a share to each backlog"


def test_bytes_bound_a_micro_batch_too(
    spark: SparkSession, make_hub: MakeHub, tmp_path: Path
) -> None:
    hub, seen = make_hub(2), Collected()
    hub.spread(400, size=1000)
    run(spark, hub, seen, tmp_path / "c", startingPosition="earliest", maxBytesPerTrigger="150000")
    sizes = [len(rows) for _, rows in sorted(seen.batches.items())]
    assert sum(sizes) == 400
    assert all(100 <= size <= 150 for size in sizes[:-1]), sizes


def test_a_query_waits_for_enough_events(
    spark: SparkSession, make_hub: MakeHub, tmp_path: Path
) -> None:
    hub, seen = make_hub(2), Collected()
    query = start(
        spark,
        hub,
        seen,
        tmp_path / "c",
        startingPosition="earliest",
        minEventsPerTrigger="50",
        maxTriggerDelay="1h",
    )
    try:
        hub.spread(20)
        wait_for_progress(query)
        assert seen.rows == []
        hub.spread(40)
        seen.wait_for(60)
    finally:
        query.stop()
    assert [len(rows) for rows in seen.batches.values() if rows] == [60]


def test_the_position_is_told_to_the_service(
    spark: SparkSession, make_hub: MakeHub, tmp_path: Path
) -> None:
    from penstock.management.client import ManagementClient

    hub, seen = make_hub(4), Collected()
    hub.spread(100)
    server = hub.server
    told = {"https.url": server["https"], "tls.caFile": server["ca_file"]}
    run(
        spark,
        hub,
        seen,
        tmp_path / "c",
        startingPosition="earliest",
        maxEventsPerTrigger="33",
        **told,
    )
    assert len(seen.bodies) == 100
    hub.send(["late"], partition_id="1")
    with ManagementClient(server["admin"], server["admin_token"]) as management:
        lags = management.lag(server["namespace"], hub.name, "$Default")
    assert {str(lag["partition"]): lag["lag_events"] for lag in lags} == {
        "0": 0,
        "1": 1,
        "2": 0,
        "3": 0,
    }


def test_a_hub_partition_is_read_by_several_tasks_on_request(
    spark: SparkSession, make_hub: MakeHub, tmp_path: Path
) -> None:
    hub, seen = make_hub(2), Collected()
    sent = hub.spread(200)
    frame = spark.read.format("eventhubs").options(**hub.options, maxEventsPerTask="30").load()
    assert frame.rdd.getNumPartitions() == 8
    frame = spark.read.format("eventhubs").options(**hub.options, minPartitions="6").load()
    assert frame.rdd.getNumPartitions() == 6
    run(spark, hub, seen, tmp_path / "c", startingPosition="earliest", minPartitions="6")
    assert sorted(seen.bodies) == sorted(sent)
