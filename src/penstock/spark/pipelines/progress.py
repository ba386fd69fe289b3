"""What a streaming query tells of its last batch, as numbers that people want: lag, state, rates.

Pure: Spark's progress (the dictionary behind `query.lastProgress`) comes in, records go out.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from penstock.spark.eventhubs.planner import BYTES, positions_of

RATE_MS = 10_000  # a rate is that of so many last milliseconds
_LOOKS_MAX = 64  # kept for it: more than one tick a second for the ten


class BatchProgress(msgspec.Struct, frozen=True, kw_only=True):
    """One trigger of a query."""

    batch_id: int
    timestamp: str  # when it began, as Spark writes it
    rows: int
    rows_written: int | None
    bytes: int | None  # of hubs, as they are stored; None: no source says it
    seconds: float
    lag_events: int | None  # None: no source of the query says where its end is
    state_rows: int | None
    state_bytes: int | None
    late_rows: int  # dropped, since the watermark had passed them
    watermark: str | None


def read_progress(progress: Mapping[str, Any]) -> BatchProgress:
    """Whatever is missing or odd counts as nothing: a display never ends a pipeline."""
    operators = [each for each in _items(progress.get("stateOperators")) if isinstance(each, dict)]
    event_time = progress.get("eventTime")
    watermark = event_time.get("watermark") if isinstance(event_time, dict) else None
    durations = progress.get("durationMs")
    took_ms = durations.get("triggerExecution") if isinstance(durations, dict) else None
    sink = progress.get("sink")
    written = sink.get("numOutputRows") if isinstance(sink, dict) else None
    return BatchProgress(
        batch_id=_whole(progress.get("batchId")),
        timestamp=str(progress.get("timestamp", "")),
        rows=_rows(progress),
        rows_written=written if isinstance(written, int) and written >= 0 else None,
        bytes=_lag_bytes(progress.get("sources")),
        seconds=_whole(took_ms if took_ms is not None else progress.get("batchDuration")) / 1000,
        lag_events=_lag(progress.get("sources")),
        state_rows=sum(_whole(each.get("numRowsTotal")) for each in operators)
        if operators
        else None,
        state_bytes=sum(_whole(each.get("memoryUsedBytes")) for each in operators)
        if operators
        else None,
        late_rows=sum(_whole(each.get("numRowsDroppedByWatermark")) for each in operators),
        watermark=None if not watermark or str(watermark).startswith("1970-01-01") else watermark,
    )


class ProgressTotals:
    """Adds up one query's batches, each counted once; `now_ms` is any clock that only goes on."""

    def __init__(self) -> None:
        self.rows = 0
        self.late_rows = 0
        self.batches = 0
        self.last: BatchProgress | None = None
        self._looks: deque[tuple[int, int]] = deque(maxlen=_LOOKS_MAX)

    def add(self, batches: Iterable[BatchProgress]) -> list[BatchProgress]:
        """Those that are new, in their order. A batch without rows says only that it is idle."""
        fresh = []
        for batch in batches:
            if self.last is not None and _order(batch) <= _order(self.last):
                continue
            fresh.append(batch)
            self.rows += batch.rows
            self.late_rows += batch.late_rows
            self.batches += self.last is None or batch.batch_id > self.last.batch_id
            self.last = batch
        return fresh

    def has_missed(self, newest: BatchProgress) -> bool:
        """Whether other batches may lie between the last one and this. A trigger that found
        nothing reports itself under the number of the batch to come: the next report of that
        number, or the one behind it, is not all that happened since."""
        if self.last is None:
            return newest.batch_id > 0
        known = self.last.batch_id + (1 if self.last.rows else 0)
        return newest.batch_id > known

    def rate(self, now_ms: int) -> float:
        """Rows a second of late; to be asked about once a second."""
        self._looks.append((now_ms, self.rows))
        while len(self._looks) > 2 and now_ms - self._looks[1][0] >= RATE_MS:
            self._looks.popleft()
        (since_ms, before), passed_ms = self._looks[0], now_ms - self._looks[0][0]
        assert now_ms >= since_ms
        return (self.rows - before) * 1000 / passed_ms if passed_ms > 0 else 0.0


def _order(batch: BatchProgress) -> tuple[int, str]:
    return (batch.batch_id, batch.timestamp)


def _rows(progress: Mapping[str, Any]) -> int:
    """Over Spark Connect only the sources say it."""
    if progress.get("numInputRows") is not None:
        return _whole(progress["numInputRows"])
    sources = [each for each in _items(progress.get("sources")) if isinstance(each, dict)]
    return sum(_whole(each.get("numInputRows")) for each in sources)


def _lag(sources: object) -> int | None:
    """Events between where the batch ended and where the hub ended when it was asked."""
    known = [lag for each in _items(sources) if (lag := _lag_of_source(each)) is not None]
    return sum(known) if known else None


def _lag_of_source(source: object) -> int | None:
    if not isinstance(source, dict):
        return None
    latest, end = (_offsets(source.get(name)) for name in ("latestOffset", "endOffset"))
    if not latest or end is None:
        return None
    latest = positions_of(latest)
    return sum(max(0, number - end.get(partition, number)) for partition, number in latest.items())


def _lag_bytes(sources: object) -> int | None:
    """What an `eventhubs` source has read says its offset (planning.py)."""
    found = []
    for each in _items(sources):
        if isinstance(each, dict):
            start, end = (_offsets(each.get(name)) or {} for name in ("startOffset", "endOffset"))
            if BYTES in end:
                found.append(max(0, end[BYTES] - start.get(BYTES, 0)))
    return sum(found) if found else None


def _offsets(given: object) -> dict[str, int] | None:
    """`{"0": 17, "1": 4}`, as text (Spark's way) or as it is; whatever is nested is another's."""
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError:
            return None
    if not isinstance(given, dict):
        return None
    return {
        str(partition): number
        for partition, number in given.items()
        if isinstance(number, int) and not isinstance(number, bool)
    }


def _items(given: object) -> list[Any]:
    return given if isinstance(given, list) else []


def _whole(given: object) -> int:
    if isinstance(given, int | float) and math.isfinite(given):
        return int(given)
    return 0
