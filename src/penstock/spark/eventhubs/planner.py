"""What a query reads next: pure decisions over sequence numbers.

Offsets are next sequence numbers: a span is [first, end), and a partition whose offset is its end
has nothing to read. Beside them stand how much the query has read, and which hub it is, by its
birthday: {"0": 40, "1": 38, "bytes": 81920, "createdAt": 1794877000000}.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import NamedTuple

# Numbers, so that one offset can be taken from another: 0, and the bytes between them.
CREATED_AT, BYTES = "createdAt", "bytes"
_EVENT_BYTES_DEFAULT = 1024  # where the service's offsets tell nothing


class PartitionBounds(NamedTuple):
    """A partition as it is: its oldest event, and the number that the next one will have."""

    begin: int
    end: int
    end_offset: str = ""  # the service's own offset of the last event


class SequenceRange(NamedTuple):
    """Events first to end - 1 of one partition: one task."""

    partition_id: str
    first: int
    end: int

    @property
    def length(self) -> int:
        return self.end - self.first


def sorted_offsets(offsets: Mapping[str, int]) -> dict[str, int]:
    """Spark compares offsets as texts: the same offsets in another order would be new ones."""
    return {key: offsets[key] for key in sorted(offsets, key=_order)}


def positions_of(offset: Mapping[str, int]) -> dict[str, int]:
    """By partition, without what else an offset says."""
    return {key: number for key, number in offset.items() if key not in (CREATED_AT, BYTES)}


def _order(partition_id: str) -> tuple[int, str]:
    return (int(partition_id), "") if partition_id.isdigit() else (2**62, partition_id)


def split_ranges(
    spans: Iterable[SequenceRange], *, max_events_per_task: int | None, min_partitions: int | None
) -> list[SequenceRange]:
    """Spans cut so that none is above `max_events_per_task` and that there are at least
    `min_partitions` of them, as far as there are events; each of a partition's share is equal."""
    whole = [span for span in spans if span.length > 0]
    total = sum(span.length for span in whole)
    cut: list[SequenceRange] = []
    for span in whole:
        pieces = 1
        if min_partitions is not None and min_partitions > len(whole):
            pieces = max(pieces, -(-span.length * min_partitions // total))
        if max_events_per_task is not None:
            pieces = max(pieces, -(-span.length // max_events_per_task))
        cut += _pieces(span, min(pieces, span.length))
    return cut


def _pieces(span: SequenceRange, count: int) -> list[SequenceRange]:
    edges = [span.first + span.length * index // count for index in range(count + 1)]
    return [
        SequenceRange(span.partition_id, first, end) for first, end in itertools.pairwise(edges)
    ]


def admit_events(
    start: Mapping[str, int], end: Mapping[str, int], events_max: int
) -> dict[str, int]:
    """How far each partition goes when at most `events_max` are read in all: shares are as the
    backlogs are, none above the limit, and what rounding leaves goes to the longest backlogs."""
    backlogs = {key: max(0, end[key] - start.get(key, 0)) for key in end}
    total = sum(backlogs.values())
    if total <= events_max:
        return dict(end)
    shares = {key: backlog * events_max // total for key, backlog in backlogs.items()}
    left = events_max - sum(shares.values())
    for key in sorted(backlogs, key=lambda key: (shares[key] - backlogs[key], _order(key))):
        if left == 0:
            break
        if shares[key] < backlogs[key]:
            shares[key] += 1
            left -= 1
    return {key: start.get(key, 0) + shares[key] for key in end}


class EventSizeEstimate:
    """What an event weighs, by the service's offsets, which count bytes where they are numbers."""

    def __init__(self) -> None:
        self._seen: dict[str, list[tuple[int, int]]] = {}

    def note(self, partition_id: str, bounds: PartitionBounds) -> None:
        if bounds.end_offset.isascii() and bounds.end_offset.isdigit():
            points = self._seen.setdefault(partition_id, [])
            point = (bounds.end, int(bounds.end_offset))
            if points and point[0] < points[-1][0]:
                points.clear()  # made anew
            if not points or point[0] > points[-1][0]:
                points.append(point)
                del points[:-8]

    def event_bytes(self, partition_id: str, start: int) -> int:
        """On average behind `start`; a partition's first offset is 0."""
        points = self._seen.get(partition_id)
        if not points:
            return _EVENT_BYTES_DEFAULT
        last_number, last_offset = points[-1]
        number, offset = max((p for p in points[:-1] if p[0] <= start), default=(0, 0))
        if last_number <= number or last_offset <= offset:
            return _EVENT_BYTES_DEFAULT
        return max(1, (last_offset - offset) // (last_number - number))

    def between(self, start: Mapping[str, int], end: Mapping[str, int]) -> int | None:
        """What the events of all partitions weigh; None where the service's offsets tell nothing.
        To the byte between two ends that were seen, else by the average."""
        total = 0
        for key in end:
            first, last = start.get(key, 0), end[key]
            if last <= first:
                continue
            offsets = dict(self._seen.get(key, ()))
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
        """How many events of these backlogs weigh `bytes_max` together; None when all do not."""
        events = sum(max(0, end[key] - start.get(key, 0)) for key in end)
        weight = sum(
            max(0, end[key] - start.get(key, 0)) * self.event_bytes(key, start.get(key, 0))
            for key in end
        )
        if weight <= bytes_max:
            return None
        return max(1, events * bytes_max // weight)
