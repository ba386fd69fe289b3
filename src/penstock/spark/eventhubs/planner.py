"""Sequence numbers that a query reads: bounds of partitions, positions as numbers, tasks, and the
micro-batches of a stream. Nothing of PySpark.

An offset of a query holds the next sequence number of each partition: a range is [first, end), and
a partition whose offset is its end has nothing to read. An offset also states how many bytes the
query has read, and when the hub was created, which distinguishes it from a later hub of the same
name: {"0": 40, "1": 38, "bytes": 81920, "createdAt": 1794877000000}.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import NamedTuple

from penstock.client.event_position import to_milliseconds
from penstock.client.ranges import HubReader, RangeSettings
from penstock.formats.positions import StartKind
from penstock.model.errors import ArgumentError
from penstock.model.names import PRODUCT
from penstock.spark.errors import events_gone_error, hub_recreated_error, position_beyond_end_error
from penstock.spark.eventhubs.options import ReadOptions
from penstock.spark.eventhubs.positions import LATEST, Position

# Both are numbers, so that offsets can be subtracted: the difference is 0, and the bytes read.
CREATED_AT, BYTES = "createdAt", "bytes"
_EVENT_BYTES_DEFAULT = 1024  # if the service's offsets are not numbers
_FRESH_S = 5.0  # bounds of this age are recent enough to find losses early
_log = logging.getLogger("penstock.spark")


class PartitionBounds(NamedTuple):
    """The oldest event of a partition, and the number that its next event will have."""

    begin: int
    end: int
    end_offset: str = ""  # the service's own offset of the last event


class SequenceRange(NamedTuple):
    """Events `first` to `end - 1` of one partition: what one task reads."""

    partition_id: str
    first: int
    end: int

    @property
    def length(self) -> int:
        return self.end - self.first


def sort_offset(offset: Mapping[str, int]) -> dict[str, int]:
    """Spark compares offsets as text: the same numbers in another order would be a new offset."""
    return {key: offset[key] for key in sorted(offset, key=_partition_order)}


def sequence_numbers(offset: Mapping[str, int]) -> dict[str, int]:
    """The sequence numbers by partition, without bytes and creation time."""
    return {key: number for key, number in offset.items() if key not in (CREATED_AT, BYTES)}


def _partition_order(partition_id: str) -> tuple[int, str]:
    return (int(partition_id), "") if partition_id.isdigit() else (2**62, partition_id)


def split_ranges(
    ranges: Iterable[SequenceRange], max_events_per_task: int | None, min_partitions: int | None
) -> list[SequenceRange]:
    """Split ranges so that none is longer than `max_events_per_task` and that there are at least
    `min_partitions`, as far as there are events. The parts of a range are equally long."""
    whole = [span for span in ranges if span.length > 0]
    total = sum(span.length for span in whole)
    parts: list[SequenceRange] = []
    for span in whole:
        count = 1
        if min_partitions is not None and min_partitions > len(whole):
            count = max(count, -(-span.length * min_partitions // total))
        if max_events_per_task is not None:
            count = max(count, -(-span.length // max_events_per_task))
        count = min(count, span.length)
        edges = [span.first + span.length * index // count for index in range(count + 1)]
        parts += [SequenceRange(span.partition_id, *edge) for edge in itertools.pairwise(edges)]
    return parts


def admit_events(
    start: Mapping[str, int], end: Mapping[str, int], events_max: int
) -> dict[str, int]:
    """How far each partition is read if at most `events_max` are read in all: each partition gets
    a share in proportion to its backlog, and the remainder goes to the longest backlogs."""
    backlogs = {key: max(0, end[key] - start.get(key, 0)) for key in end}
    total = sum(backlogs.values())
    if total <= events_max:
        return dict(end)
    shares = {key: backlog * events_max // total for key, backlog in backlogs.items()}
    left = events_max - sum(shares.values())
    by_missing = sorted(backlogs, key=lambda k: (shares[k] - backlogs[k], _partition_order(k)))
    for key in by_missing[:left]:
        shares[key] += 1
    return {key: start.get(key, 0) + shares[key] for key in end}


class EventSizeEstimate:
    """The size of events, by the service's offsets, which count bytes where they are numbers."""

    def __init__(self) -> None:
        # Per partition the newest ends: (next sequence number, offset of the last event).
        self._ends: dict[str, list[tuple[int, int]]] = {}

    def add(self, partition_id: str, bounds: PartitionBounds) -> None:
        if bounds.end_offset.isascii() and bounds.end_offset.isdigit():
            ends = self._ends.setdefault(partition_id, [])
            if ends and bounds.end < ends[-1][0]:
                ends.clear()  # the hub was created again
            if not ends or bounds.end > ends[-1][0]:
                ends.append((bounds.end, int(bounds.end_offset)))
                del ends[:-8]

    def event_bytes(self, partition_id: str, start: int) -> int:
        """The average size of events after `start`; a partition's first offset is 0."""
        ends = self._ends.get(partition_id)
        if not ends:
            return _EVENT_BYTES_DEFAULT
        last_number, last_offset = ends[-1]
        number, offset = max((end for end in ends[:-1] if end[0] <= start), default=(0, 0))
        if last_number <= number or last_offset <= offset:
            return _EVENT_BYTES_DEFAULT
        return max(1, (last_offset - offset) // (last_number - number))

    def between(self, start: Mapping[str, int], end: Mapping[str, int]) -> int | None:
        """The bytes of the events of all partitions; None if the service's offsets are not numbers.
        Exact between two ends that were seen, else by the average."""
        total = 0
        for key in end:
            first, last = start.get(key, 0), end[key]
            if last <= first:
                continue
            offsets = dict(self._ends.get(key, ()))
            if not offsets:
                return None
            offsets.setdefault(0, 0)
            if first in offsets and last in offsets:
                total += offsets[last] - offsets[first]
            else:
                total += (last - first) * self.event_bytes(key, first)
        return total

    def events_for(
        self, start: Mapping[str, int], end: Mapping[str, int], bytes_max: int
    ) -> int | None:
        """How many events of these backlogs have `bytes_max` together; None if all have less."""
        backlogs = {key: max(0, end[key] - start.get(key, 0)) for key in end}
        size = sum(
            count * self.event_bytes(key, start.get(key, 0)) for key, count in backlogs.items()
        )
        return None if size <= bytes_max else max(1, sum(backlogs.values()) * bytes_max // size)


def range_settings(options: ReadOptions) -> RangeSettings:
    target = options.target
    return RangeSettings(
        connection_string=target.connection_string.reveal(),
        eventhub_name=target.eventhub_name,
        consumer_group=options.consumer_group,
        ca_file=target.ca_file,
        insecure=target.insecure,
        transport=target.transport,
        timeout_s=options.receiver_timeout_s,
        prefetch=options.prefetch,
        owner_level=0 if options.is_exclusive else None,
    )


class ReadPlanner(HubReader):
    """Asks the hub for its bounds and converts positions to sequence numbers. Blocking; keeps a
    connection until it is closed. Methods raise ClientError."""

    def __init__(self, options: ReadOptions) -> None:
        super().__init__(range_settings(options))
        self._options = options
        self._hub = options.target.eventhub_name

    def bounds(self) -> dict[str, PartitionBounds]:
        """The bounds of every partition, ordered by partition id."""
        partitions = self.partitions()
        bounds: dict[str, PartitionBounds] = {}
        for partition_id in sorted(partitions, key=_partition_order):
            properties = partitions[partition_id]
            end = properties["last_enqueued_sequence_number"] + 1
            begin = end if properties["is_empty"] else properties["beginning_sequence_number"]
            bounds[partition_id] = PartitionBounds(begin, end, properties["last_enqueued_offset"])
        return bounds

    def is_penstock(self) -> bool:
        return self.service_product() == PRODUCT

    def created_at(self) -> datetime:
        return self.properties()["created_at"]

    def starts(self, bounds: Mapping[str, PartitionBounds], default: Position) -> dict[str, int]:
        """The first event to read of each partition. Raises DataLoss, ArgumentError."""
        options = self._options
        self._check_partitions("startingPositions", options.starts, bounds)
        starts: dict[str, int] = {}
        for partition_id, bound in bounds.items():
            position = options.starts.get(partition_id) or options.start or default
            number = self._sequence_number(partition_id, position, bound, is_start=True)
            is_time = position.kind is StartKind.TIME
            if options.start_must_exist and is_time and number >= bound.end:
                raise ArgumentError(
                    f"Partition {partition_id} of hub {self._hub!r} has no event at or after "
                    "startingTimestamp: set startingTimestampStrategy=latest to begin at its end."
                )
            starts[partition_id] = self._clamp_start(partition_id, number, bound)
        return starts

    def ends(self, bounds: Mapping[str, PartitionBounds]) -> dict[str, int]:
        """The number after the last event to read of each partition. Raises DataLoss,
        ArgumentError."""
        options = self._options
        self._check_partitions("endingPositions", options.ends, bounds)
        ends: dict[str, int] = {}
        for partition_id, bound in bounds.items():
            position = options.ends.get(partition_id) or options.end
            number = self._sequence_number(partition_id, position, bound, is_start=False)
            if number > bound.end and options.fail_on_data_loss:
                raise position_beyond_end_error(self._hub, partition_id, number - 1, bound.end)
            ends[partition_id] = min(number, bound.end)
        return ends

    def _clamp_start(self, partition_id: str, number: int, bound: PartitionBounds) -> int:
        if self._options.fail_on_data_loss:
            if number < bound.begin:
                begin = bound.begin if bound.end > bound.begin else None
                raise events_gone_error(self._hub, partition_id, number, bound.begin, begin)
            if number > bound.end:
                raise position_beyond_end_error(self._hub, partition_id, number, bound.end)
        return min(max(number, bound.begin), bound.end)

    def _sequence_number(
        self, partition_id: str, position: Position, bound: PartitionBounds, *, is_start: bool
    ) -> int:
        """A start includes its event unless the position says otherwise; an end excludes it."""
        kind = position.kind
        if kind is StartKind.EARLIEST:
            return bound.begin
        if kind is StartKind.LATEST:
            return bound.end
        inclusive = position.inclusive or not is_start
        if kind is StartKind.SEQUENCE_NUMBER:
            return position.number + (0 if inclusive else 1)
        if kind is StartKind.TIME:
            return self.sequence_at(partition_id, position.number)
        return self.sequence_at_offset(partition_id, position.offset, inclusive=inclusive)

    def _check_partitions(
        self, option: str, positions: Mapping[str, Position], bounds: Mapping[str, PartitionBounds]
    ) -> None:
        for partition_id in positions:
            if partition_id not in bounds:
                raise ArgumentError(
                    f"{option} names partition {partition_id}: the hub {self._hub!r} has "
                    f"{', '.join(bounds)}."
                )


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
