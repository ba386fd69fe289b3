"""Micro-batches of a streaming query: the next offset, admission, data loss. Nothing of PySpark."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

from penstock.client.event_position import to_milliseconds
from penstock.spark.errors import events_gone_error, hub_recreated_error, position_beyond_end_error
from penstock.spark.eventhubs.options import ReadOptions
from penstock.spark.eventhubs.planner import (
    BYTES,
    CREATED_AT,
    EventSizeEstimate,
    PartitionBounds,
    ReadPlanner,
    SequenceRange,
    admit_events,
    sequence_numbers,
    sort_offset,
    split_ranges,
)
from penstock.spark.eventhubs.positions import LATEST

_log = logging.getLogger("penstock.spark")
_FRESH_S = 5.0  # bounds of this age are recent enough to find losses early


class StreamOffsets:
    """The offsets of one query on one hub. For one thread at a time."""

    def __init__(
        self,
        options: ReadOptions,
        planner: ReadPlanner,
        *,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options = options
        self._hub = options.target.eventhub_name
        self._planner = planner
        self._monotonic_s = monotonic_s
        self._sizes = EventSizeEstimate()
        self._bounds: dict[str, PartitionBounds] = {}
        self._bounds_at_s = float("-inf")
        self._created_ms = 0  # distinguishes the hub from a later one of the same name
        self._first_created_ms: int | None = None
        self._last_ends: dict[str, int] | None = None  # where AvailableNow ends
        self._progress_at_s = monotonic_s()  # when a trigger last had events to read
        self._last_offset: dict[str, int] = {}  # what initial() or next() returned last

    def initial(self) -> dict[str, int]:
        """Where a query without a checkpoint begins."""
        starts = self._planner.starts(self._poll(), LATEST)
        self._last_offset = self._offset(starts, 0)
        return self._last_offset

    def stop_at_current_end(self) -> None:
        """AvailableNow: the query ends at the end that the hub has now."""
        self._last_ends = {key: bound.end for key, bound in self._poll().items()}

    def latest(self) -> dict[str, int] | None:
        """The end of the hub when it was last asked; None before that."""
        ends = {key: bound.end for key, bound in self._bounds.items()}
        if not ends:
            return None
        reached = self._last_offset or ends
        size = self._sizes.between(sequence_numbers(reached), ends)
        return self._offset(ends, _add(reached.get(BYTES), size))

    def next(self, start: Mapping[str, int], *, limited: bool = True) -> dict[str, int]:
        """The end of the next micro-batch; `start` itself if there is nothing to read."""
        bounds = self._poll()
        begin = sequence_numbers(start)
        if self._is_of_another_hub(start):
            self._report_recreated()
            begin = {}
        end = self._ends(begin, bounds)
        first = {key: self._first(key, begin, end) for key in end}
        if self._last_ends is not None:
            end = {k: max(first[k], min(v, self._last_ends.get(k, v))) for k, v in end.items()}
        backlog = sum(end[key] - first[key] for key in end)
        if backlog and self._is_waiting(backlog):
            end = begin
        elif limited and backlog:
            end = self._admit(first, end)
        if end == begin:
            self._last_offset = dict(start)
        else:
            self._progress_at_s = self._monotonic_s()
            size = self._sizes.between(first, end)
            self._last_offset = self._offset(end, _add(start.get(BYTES, 0), size))
        return self._last_offset

    def service_offset(self, partition_id: str, number: int) -> str | None:
        """The service's offset of an event; None if the event is gone."""
        bound = self._bounds.get(partition_id)
        if bound is not None and bound.end == number + 1:
            return bound.end_offset
        return self._planner.offset_of(partition_id, number)

    @property
    def is_at_its_end(self) -> bool:
        """Whether AvailableNow has read everything."""
        return self._last_ends is not None and all(
            self._last_offset.get(key, 0) >= end for key, end in self._last_ends.items()
        )

    def ranges(self, start: Mapping[str, int], end: Mapping[str, int]) -> list[SequenceRange]:
        """The tasks of one micro-batch, also of one that is run again after a crash."""
        ranges: list[SequenceRange] = []
        is_fresh = self._monotonic_s() - self._bounds_at_s <= _FRESH_S
        bounds = self._bounds if is_fresh else self._poll()
        if self._is_of_another_hub(end):
            self._report_recreated()
            return []  # the planned events were deleted with the old hub
        begin = {} if self._is_of_another_hub(start) else start
        ends = sequence_numbers(end)
        for key in ends:
            bound = bounds.get(key)
            first = self._first(key, begin, ends)
            if bound is not None and bound.begin > first:
                first = self._report_lost(key, first, min(bound.begin, ends[key]), bound)
            ranges.append(SequenceRange(key, first, ends[key]))
        options = self._options
        return split_ranges(ranges, options.max_events_per_task, options.min_partitions)

    def _offset(self, numbers: Mapping[str, int], size: int | None) -> dict[str, int]:
        size_field = {} if size is None else {BYTES: size}
        return sort_offset({**numbers, **size_field, CREATED_AT: self._created_ms})

    def _is_of_another_hub(self, offset: Mapping[str, int]) -> bool:
        """An offset of an early release has no creation time: it is of the hub seen first."""
        return offset.get(CREATED_AT, self._first_created_ms) != self._created_ms

    def _report_recreated(self) -> None:
        if self._options.fail_on_data_loss:
            raise hub_recreated_error(self._hub)
        _log.warning("eventhubs: the hub %r was created again.", self._hub)

    def _poll(self) -> dict[str, PartitionBounds]:
        self._created_ms = to_milliseconds(self._planner.created_at())
        if self._first_created_ms is None:
            self._first_created_ms = self._created_ms
        bounds = self._planner.bounds()
        if not self._options.discover_partitions and self._bounds:
            bounds = {key: bound for key, bound in bounds.items() if key in self._bounds}
        for key, bound in bounds.items():
            self._sizes.add(key, bound)
        self._bounds, self._bounds_at_s = bounds, self._monotonic_s()
        return bounds

    def _ends(
        self, begin: Mapping[str, int], bounds: Mapping[str, PartitionBounds]
    ) -> dict[str, int]:
        """The hub's ends; a partition that the hub no longer has stays where it is."""
        ends = dict(begin)
        for key, bound in bounds.items():
            if key not in begin and begin and not self._options.discover_partitions:
                continue
            if bound.end < begin.get(key, 0):
                if self._options.fail_on_data_loss:
                    raise position_beyond_end_error(self._hub, key, begin[key] - 1, bound.end)
                _log.warning(
                    "eventhubs: partition %s of hub %r ends at %d, before %d: it is read from its "
                    "beginning.",
                    *(key, self._hub, bound.end, begin[key]),
                )
            ends[key] = bound.end
        return ends

    def _first(self, key: str, start: Mapping[str, int], end: Mapping[str, int]) -> int:
        """A new partition, or one of a hub that was created again, is read from its beginning."""
        bound = self._bounds.get(key)
        if key not in start or end[key] < start[key]:
            return min(0 if bound is None else bound.begin, end[key])
        return start[key]

    def _is_waiting(self, backlog: int) -> bool:
        """Whether minEventsPerTrigger and maxTriggerDelay say to wait for more events."""
        least = self._options.min_events_per_trigger
        if least is None or backlog >= least or self._last_ends is not None:
            return False
        return self._monotonic_s() - self._progress_at_s < self._options.max_trigger_delay_s

    def _admit(self, begin: Mapping[str, int], end: Mapping[str, int]) -> dict[str, int]:
        by_bytes = self._sizes.events_for(begin, end, self._options.max_bytes_per_trigger)
        limits = [
            limit for limit in (self._options.max_events_per_trigger, by_bytes) if limit is not None
        ]
        return admit_events(begin, end, min(limits)) if limits else dict(end)

    def _report_lost(self, key: str, first: int, end: int, bound: PartitionBounds) -> int:
        if self._options.fail_on_data_loss:
            raise events_gone_error(self._hub, key, first, end, bound.begin)
        _log.warning(
            "eventhubs: events %d to %d of partition %s of hub %r are gone.",
            *(first, end - 1, key, self._hub),
        )
        return end


def _add(before: int | None, more: int | None) -> int | None:
    """None if one of them is unknown."""
    return None if before is None or more is None else before + more
