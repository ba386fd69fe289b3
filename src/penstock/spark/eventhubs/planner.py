"""Sequence numbers that a query reads: bounds of partitions, positions as numbers, tasks.

An offset of a query holds the next sequence number of each partition: a range is [first, end), and
a partition whose offset is its end has nothing to read. An offset also states how many bytes the
query has read, and when the hub was created, which distinguishes it from a later hub of the same
name: {"0": 40, "1": 38, "bytes": 81920, "createdAt": 1794877000000}.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import NamedTuple

from penstock.client.ranges import HubReader, RangeSettings
from penstock.formats.positions import StartKind
from penstock.model.errors import ArgumentError
from penstock.model.names import PRODUCT
from penstock.spark.errors import events_gone_error, position_beyond_end_error
from penstock.spark.eventhubs.options import ReadOptions
from penstock.spark.eventhubs.positions import Position

# Both are numbers, so that offsets can be subtracted: the difference is 0, and the bytes read.
CREATED_AT, BYTES = "createdAt", "bytes"
_EVENT_BYTES_DEFAULT = 1024  # if the service's offsets are not numbers


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
