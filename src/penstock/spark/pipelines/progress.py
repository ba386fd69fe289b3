"""Progress of a streaming query as numbers: lag, state, rates.

Pure: Spark's progress (the dictionary of `query.lastProgress`) comes in, records go out.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from penstock.spark.eventhubs.planner import BYTES, sequence_numbers

RATE_MS = 10_000  # the period over which a rate is measured
_SAMPLES_MAX = 64  # more than one per tick of the runner


class BatchProgress(msgspec.Struct, frozen=True, kw_only=True):
    """One trigger of a query."""

    batch_id: int
    timestamp: str  # when it began, as Spark writes it
    rows: int
    bytes: int | None  # of hubs, as they are stored; None: unknown
    seconds: float
    lag_events: int | None  # None: unknown
    state_rows: int | None
    state_bytes: int | None
    late_rows: int  # dropped, since the watermark had passed them
    watermark: str | None


def read_progress(progress: Mapping[str, Any]) -> BatchProgress:
    """A value that is missing or has another type counts as absent: a display never ends a
    pipeline."""
    operators = _objects(progress, "stateOperators")
    sources = _objects(progress, "sources")
    watermark = _object(progress, "eventTime").get("watermark")
    # Over Spark Connect there is `batchDuration`, and only the sources have numbers of rows.
    duration_ms = _object(progress, "durationMs").get("triggerExecution")
    rows = progress.get("numInputRows")
    return BatchProgress(
        batch_id=_whole(progress.get("batchId")),
        timestamp=str(progress.get("timestamp", "")),
        rows=_total(sources, "numInputRows") if rows is None else _whole(rows),
        bytes=_sum_known(_bytes_read(source) for source in sources),
        seconds=_whole(progress.get("batchDuration") if duration_ms is None else duration_ms)
        / 1000,
        lag_events=_sum_known(_lag(source) for source in sources),
        state_rows=_total(operators, "numRowsTotal") if operators else None,
        state_bytes=_total(operators, "memoryUsedBytes") if operators else None,
        late_rows=_total(operators, "numRowsDroppedByWatermark"),
        watermark=None if not watermark or str(watermark).startswith("1970-01-01") else watermark,
    )


class ProgressTotals:
    """Adds up the batches of one query, each once."""

    def __init__(self) -> None:
        self.rows = 0
        self.late_rows = 0
        self.batches = 0
        self.last: BatchProgress | None = None
        self._samples: deque[tuple[int, int]] = deque(maxlen=_SAMPLES_MAX)  # time in ms, rows

    def add(self, batches: Iterable[BatchProgress]) -> list[BatchProgress]:
        """Return the batches that are new, in their order."""
        new = []
        for batch in batches:
            if self.last is not None and _order(batch) <= _order(self.last):
                continue
            new.append(batch)
            self.rows += batch.rows
            self.late_rows += batch.late_rows
            self.batches += self.last is None or batch.batch_id > self.last.batch_id
            self.last = batch
        return new

    def has_missed(self, newest: BatchProgress) -> bool:
        """Whether there may be other batches between the last one and `newest`. A trigger without
        rows is reported under the number of the batch that follows it."""
        if self.last is None:
            return newest.batch_id > 0
        return newest.batch_id > self.last.batch_id + (1 if self.last.rows else 0)

    def rate(self, now_ms: int) -> float:
        """Rows per second over the last RATE_MS. To be called about once a second, with a clock
        that never goes back."""
        self._samples.append((now_ms, self.rows))
        while len(self._samples) > 2 and now_ms - self._samples[1][0] >= RATE_MS:
            self._samples.popleft()
        since_ms, before = self._samples[0]
        assert now_ms >= since_ms
        return (self.rows - before) * 1000 / (now_ms - since_ms) if now_ms > since_ms else 0.0


def _order(batch: BatchProgress) -> tuple[int, str]:
    return (batch.batch_id, batch.timestamp)


def _lag(source: Mapping[str, Any]) -> int | None:
    """Events between the end of the batch and the end of the hub when it was last asked."""
    latest, end = _offset(source, "latestOffset"), _offset(source, "endOffset")
    if not latest or end is None:
        return None
    ends = sequence_numbers(latest)
    return sum(max(0, number - end.get(partition, number)) for partition, number in ends.items())


def _bytes_read(source: Mapping[str, Any]) -> int | None:
    """The bytes that an `eventhubs` source has read, by its offsets (planner.py)."""
    start, end = _offset(source, "startOffset") or {}, _offset(source, "endOffset") or {}
    return max(0, end[BYTES] - start.get(BYTES, 0)) if BYTES in end else None


def _offset(source: Mapping[str, Any], name: str) -> dict[str, int] | None:
    """`{"0": 17, "1": 4}`, as text (Spark) or as an object. Offsets of other sources are nested."""
    offset = source.get(name)
    if isinstance(offset, str):
        try:
            offset = json.loads(offset)
        except ValueError:
            return None
    if not isinstance(offset, dict):
        return None
    return {
        str(partition): number
        for partition, number in offset.items()
        if isinstance(number, int) and not isinstance(number, bool)
    }


def _object(progress: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = progress.get(name)
    return value if isinstance(value, dict) else {}


def _objects(progress: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    values = progress.get(name)
    return [v for v in values if isinstance(v, dict)] if isinstance(values, list) else []


def _total(objects: Iterable[Mapping[str, Any]], name: str) -> int:
    return sum(_whole(item.get(name)) for item in objects)


def _sum_known(values: Iterable[int | None]) -> int | None:
    numbers = [value for value in values if value is not None]
    return sum(numbers) if numbers else None


def _whole(value: object) -> int:
    return int(value) if isinstance(value, int | float) and math.isfinite(value) else 0
