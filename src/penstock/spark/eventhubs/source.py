"""What a streaming query reads next: the hub's ends, admission, and what was lost meanwhile.

Kept apart from PySpark's classes, so that it is driven by tests without Spark.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Protocol

from penstock.spark.errors import events_gone, hub_recreated, position_beyond_end
from penstock.spark.eventhubs.options import ReadOptions
from penstock.spark.eventhubs.planner import (
    BYTES,
    CREATED_AT,
    EventSizeEstimate,
    PartitionBounds,
    SequenceRange,
    admit_events,
    positions_of,
    sorted_offsets,
    split_ranges,
)
from penstock.spark.eventhubs.positions import LATEST, Position

_log = logging.getLogger("penstock.spark")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FRESH_S = 5.0  # what the hub said so recently is good enough to find losses early


class PlannerProtocol(Protocol):
    """What is asked of a hub: `penstock.spark.eventhubs.hub_bounds.Planner`."""

    def bounds(self) -> dict[str, PartitionBounds]: ...
    def created_at(self) -> datetime: ...
    def offset_of(self, partition_id: str, number: int) -> str | None: ...
    def starts(
        self, bounds: Mapping[str, PartitionBounds], default: Position
    ) -> dict[str, int]: ...


class StreamOffsets:
    """One query's view of one hub."""

    def __init__(
        self,
        options: ReadOptions,
        hub: PlannerProtocol,
        *,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options = options
        self._name = options.target.eventhub_name
        self._hub = hub
        self._monotonic_s = monotonic_s
        self._sizes = EventSizeEstimate()
        self._bounds: dict[str, PartitionBounds] = {}
        self._bounds_at_s = float("-inf")  # never
        self._created_ms = 0  # when the hub was made, which tells it from another of its name
        self._first_created_ms: int | None = None
        self._target: dict[str, int] | None = None  # AvailableNow ends there
        self._moved_at_s = monotonic_s()  # when a trigger last had something to read
        self._returned: dict[str, int] | None = None  # for a Spark that does not tell the start

    def initial(self) -> dict[str, int]:
        """Where a query without a checkpoint begins."""
        starts = self._hub.starts(self._poll(), LATEST)
        self._returned = self._offset(starts, 0)
        return self._returned

    def stop_at_present(self) -> None:
        """AvailableNow: what comes from now on is for another time."""
        self._target = {key: bounds.end for key, bounds in self._poll().items()}

    def known_ends(self) -> dict[str, int] | None:
        """As of the last time that the hub was asked."""
        ends = {key: bounds.end for key, bounds in self._bounds.items()}
        if not ends:
            return None
        reached = self._returned or ends
        size = self._sizes.between(positions_of(reached), ends)
        return self._offset(ends, _sum(reached.get(BYTES), size))

    def next(self, start: Mapping[str, int] | None, *, limited: bool = True) -> dict[str, int]:
        """How far the next micro-batch goes; `start` itself when there is nothing to do."""
        given = dict(start if start is not None else self._returned or {})
        bounds = self._poll()
        begin = positions_of(given)
        if self._is_of_another_hub(given):
            self._check_anew()
            begin = {}
        end = self._ends(begin, bounds)
        first = {key: self._first(key, begin, end) for key in end}
        if self._target is not None:
            end = {k: max(first[k], min(v, self._target.get(k, v))) for k, v in end.items()}
        backlog = sum(end[key] - first[key] for key in end)
        if backlog and self._waits(backlog):
            end = begin
        elif limited and backlog:
            end = self._admit(first, end)
        if end == begin:
            self._returned = given
        else:
            self._moved_at_s = self._monotonic_s()
            size = self._sizes.between(first, end)
            self._returned = self._offset(end, _sum(given.get(BYTES, 0), size))
        return self._returned

    def offset_of(self, partition_id: str, number: int) -> str | None:
        """The service's offset of an event; usually the last one that the hub told of."""
        known = self._bounds.get(partition_id)
        if known is not None and known.end == number + 1:
            return known.end_offset
        return self._hub.offset_of(partition_id, number)

    @property
    def is_at_its_end(self) -> bool:
        """AvailableNow has nothing more to read."""
        return self._target is not None and all(
            (self._returned or {}).get(key, 0) >= end for key, end in self._target.items()
        )

    def spans(self, start: Mapping[str, int], end: Mapping[str, int]) -> list[SequenceRange]:
        """The tasks of one micro-batch, also of one that is run again after a crash."""
        found: list[SequenceRange] = []
        bounds = self._recent()
        if self._is_of_another_hub(end):
            self._check_anew()
            return []  # what was planned went with the old hub
        begin = {} if self._is_of_another_hub(start) else start
        ends = positions_of(end)
        for key in ends:
            known = bounds.get(key)
            first = self._first(key, begin, ends)
            if known is not None and known.begin > first:
                first = self._report_lost(key, first, min(known.begin, ends[key]), known)
            found.append(SequenceRange(key, first, ends[key]))
        return split_ranges(
            found,
            max_events_per_task=self._options.max_events_per_task,
            min_partitions=self._options.min_partitions,
        )

    # --- inside ---------------------------------------------------------------------------------

    def _offset(self, positions: Mapping[str, int], size: int | None) -> dict[str, int]:
        told = {} if size is None else {BYTES: size}
        return sorted_offsets({**positions, **told, CREATED_AT: self._created_ms})

    def _is_of_another_hub(self, offset: Mapping[str, int]) -> bool:
        """One of an earlier release does not say: then it is of the hub that was there first."""
        return offset.get(CREATED_AT, self._first_created_ms) != self._created_ms

    def _check_anew(self) -> None:
        """Raises DataLoss unless that is allowed."""
        if self._options.fail_on_data_loss:
            raise hub_recreated(self._name)
        _log.warning("eventhubs: the hub %r was made anew.", self._name)

    def _poll(self) -> dict[str, PartitionBounds]:
        """Ask the hub."""
        self._created_ms = (self._hub.created_at() - _EPOCH) // timedelta(milliseconds=1)
        if self._first_created_ms is None:
            self._first_created_ms = self._created_ms
        bounds = self._hub.bounds()
        if not self._options.discover_partitions and self._bounds:
            bounds = {key: each for key, each in bounds.items() if key in self._bounds}
        for key, each in bounds.items():
            self._sizes.note(key, each)
        self._bounds, self._bounds_at_s = bounds, self._monotonic_s()
        return bounds

    def _recent(self) -> dict[str, PartitionBounds]:
        if self._monotonic_s() - self._bounds_at_s <= _FRESH_S:
            return self._bounds
        return self._poll()

    def _ends(
        self, begin: Mapping[str, int], bounds: Mapping[str, PartitionBounds]
    ) -> dict[str, int]:
        """The hub's ends; a partition that is gone keeps its place."""
        ends = {key: begin[key] for key in begin}
        for key, known in bounds.items():
            if key not in begin and begin and not self._options.discover_partitions:
                continue
            if known.end < begin.get(key, 0):
                if self._options.fail_on_data_loss:
                    raise position_beyond_end(self._name, key, begin[key] - 1, known.end)
                _log.warning(
                    "eventhubs: partition %s of hub %r ends at %d, before %d: it is read from its "
                    "beginning.",
                    key,
                    self._name,
                    known.end,
                    begin[key],
                )
            ends[key] = known.end
        return ends

    def _first(self, key: str, start: Mapping[str, int], end: Mapping[str, int]) -> int:
        """A partition that came later, or that was made anew, is read from its beginning."""
        known = self._bounds.get(key)
        begin = known.begin if known is not None else 0
        if key not in start or end[key] < start[key]:
            return min(begin, end[key])
        return start[key]

    def _waits(self, backlog: int) -> bool:
        least = self._options.min_events_per_trigger
        if least is None or backlog >= least or self._target is not None:
            return False
        return self._monotonic_s() - self._moved_at_s < self._options.max_trigger_delay_s

    def _admit(self, begin: Mapping[str, int], end: Mapping[str, int]) -> dict[str, int]:
        by_bytes = self._sizes.events_for(begin, end, self._options.max_bytes_per_trigger)
        limits = [
            limit for limit in (self._options.max_events_per_trigger, by_bytes) if limit is not None
        ]
        return admit_events(begin, end, min(limits)) if limits else dict(end)

    def _report_lost(self, key: str, first: int, end: int, known: PartitionBounds) -> int:
        if self._options.fail_on_data_loss:
            raise events_gone(self._name, key, first, end, known.begin)
        _log.warning(
            "eventhubs: events %d to %d of partition %s of hub %r are gone.",
            first,
            end - 1,
            key,
            self._name,
        )
        return end


def _sum(before: int | None, more: int | None) -> int | None:
    """Nothing, where one of them is not known."""
    return None if before is None or more is None else before + more
