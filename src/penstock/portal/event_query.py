"""Which events a page shows: where they start and where they end.

An address or a form has `from` and `at`, and `until`. A query holds for every partition that is
shown; the pages before and after it have a sequence number for each partition.
"""

from __future__ import annotations

import re
import sys

import msgspec

from penstock.client import EventPosition, PartitionProperties
from penstock.formats.positions import StartKind, StartPosition, parse_position, parse_start_time
from penstock.formats.quantities import EPOCH, MILLISECOND
from penstock.model.errors import ArgumentError

COUNT_MAX = 1000
_PLACES_MAX = 16 * 1024  # characters


class EventQuery(msgspec.Struct, frozen=True):
    """Events from `start` on; or, by partition, before or after a sequence number.

    They end with the last event that was stored at `until_ms` or before, or with the sequence
    number `last`, or at the end of the partition.
    """

    start: StartPosition
    until_ms: int | None = None
    last: int | None = None
    before: dict[str, int] = {}
    after: dict[str, int] = {}

    @property
    def is_backwards(self) -> bool:
        """Whether the last events of the range are shown, not the first."""
        return self.start.kind is StartKind.LAST

    def last_of(self, partition: str) -> int:
        """The sequence number with which this partition ends at the latest."""
        last = sys.maxsize if self.last is None else self.last
        return min(last, self.before.get(partition, sys.maxsize) - 1)

    def has_events(self, state: PartitionProperties) -> bool:
        """False if the query starts after the end of the partition: a reader would wait."""
        start, last_offset = self.start, state["last_enqueued_offset"]
        if start.kind is StartKind.SEQUENCE_NUMBER:
            return start.number <= state["last_enqueued_sequence_number"]
        if start.kind is StartKind.TIME:
            return start.number <= (state["last_enqueued_time_utc"] - EPOCH) // MILLISECOND
        if start.kind is StartKind.OFFSET and start.offset.isdigit() and last_offset.isdigit():
            return int(start.offset) <= int(last_offset)
        return True

    def position(self, partition: str, *, last: int) -> EventPosition | None:
        """Where to start reading a partition that is read up to `last`; None if nothing is left."""
        start = self.start
        if self.after:
            number = self.after.get(partition, -1)
            return EventPosition.from_sequence_number(number) if number < last else None
        if start.kind is StartKind.LAST:
            first = max(0, last + 1 - start.number)
            return EventPosition.from_sequence_number(first, inclusive=True)
        if start.kind is StartKind.SEQUENCE_NUMBER and start.number > last:
            return None
        return EventPosition.from_start(start)


def parse_query(kind: str, at: str, until: str = "", *, count: int, now_ms: int) -> EventQuery:
    """Read `from`, `at` and `until` of an address.

    `from` is `earliest`, `latest` (the last `count` events), or `sequence`, `offset`, `time`,
    `before` or `after` with the value in `at`; or a position (`penstock.formats.positions`).
    Raises ArgumentError.
    """
    kind, at, until = kind.strip(), at.strip(), until.strip()
    if kind == "before":
        query = EventQuery(StartPosition(StartKind.LAST, count), before=_parse_numbers(at))
    elif kind == "after":
        query = EventQuery(StartPosition(StartKind.EARLIEST), after=_parse_numbers(at))
    else:
        query = EventQuery(_parse_start(kind, at, count, now_ms))
    if not until:
        return query
    if re.fullmatch(r"[0-9]{1,18}", until):
        return msgspec.structs.replace(query, last=int(until))
    return msgspec.structs.replace(query, until_ms=parse_start_time(until, now_ms=now_ms))


def _parse_start(kind: str, at: str, count: int, now_ms: int) -> StartPosition:
    if kind in ("", "latest", "end"):
        return StartPosition(StartKind.LAST, count)
    if kind == "time":
        return StartPosition(StartKind.TIME, parse_start_time(at, now_ms=now_ms))
    if kind == "sequence" and not re.fullmatch(r"[0-9]{1,18}", at):
        raise ArgumentError(f"'{at[:40]}' is not a sequence number: use an integer from 0 on.")
    text = f"@{at}" if kind == "offset" else at if kind == "sequence" else kind
    start = parse_position(text, now_ms=now_ms)
    if start.kind is StartKind.LAST:
        return start._replace(number=min(COUNT_MAX, start.number))
    return start


def format_numbers(numbers: dict[str, int]) -> str:
    """
    >>> format_numbers({"0": 42, "1": 7})
    '0:42,1:7'
    """
    return ",".join(f"{partition}:{number}" for partition, number in numbers.items())


def _parse_numbers(text: str) -> dict[str, int]:
    """Sequence numbers by partition, as `format_numbers` writes them."""
    numbers: dict[str, int] = {}
    for pair in text[:_PLACES_MAX].split(","):
        match = re.fullmatch(r"([0-9]{1,9}):(-1|[0-9]{1,18})", pair)
        if match is None:
            raise ArgumentError(f"'{pair[:40]}' is not PARTITION:SEQUENCE, separated by commas.")
        numbers[match[1]] = int(match[2])
    return numbers
