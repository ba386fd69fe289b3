"""Which events are asked for: where they begin, and where they end.

A span comes from an address or a form: `from` and `at`, and `until`. It speaks of every partition
that is shown; a page of several continues in each where it ended there (`before`, `after`).
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import msgspec

from penstock.client import EventPosition, PartitionProperties
from penstock.model.errors import ArgumentError

COUNT_MAX = 1000
_PLACES_MAX = 16 * 1024  # characters: more partitions than anybody looks at
_MILLISECOND = timedelta(milliseconds=1)
_FIRST = datetime(1970, 1, 1, tzinfo=UTC) + _MILLISECOND
_SO_LONG_AGO = re.compile(r"-(\d{1,6})\s*(s|min|m|h|d)")
_UNITS = {"s": "seconds", "m": "minutes", "min": "minutes", "h": "hours", "d": "days"}


class EventQuery(msgspec.Struct, frozen=True):
    """`kind` and `value` say where it begins: earliest, latest (behind the last), last (so many
    before the end), sequence, offset, time, or at places of several partitions: before, after.
    It ends with the last event there is, or the last one that was stored at `until` or before, or
    the one numbered `last`."""

    kind: str
    value: str = ""
    until: datetime | None = None
    last: int | None = None
    places: dict[str, int] = {}

    @property
    def is_backwards(self) -> bool:
        """Its last events are wanted, not its first."""
        return self.kind in ("last", "before")

    def last_of(self, partition: str) -> int | None:
        """The number that this partition ends with, where that is said."""
        ends = [self.last] if self.last is not None else []
        if self.kind == "before" and partition in self.places:
            ends.append(self.places[partition] - 1)
        return min(ends, default=None)

    def may_begin_before(self, known: PartitionProperties) -> bool:
        """False where it begins behind all that the partition has: nobody waits for that."""
        last_offset = known["last_enqueued_offset"]
        match self.kind:
            case "sequence":
                return int(self.value) <= known["last_enqueued_sequence_number"]
            case "time":
                return _moment(self.value) <= known["last_enqueued_time_utc"]
            case "offset" if self.value.isdigit() and last_offset.isdigit():
                return int(self.value) <= int(last_offset)
            case _:
                return True

    def position(self, partition: str, *, last: int, count: int) -> EventPosition | None:
        """Where to begin in a partition of which `last` is the last number that is wanted; None
        when nothing is left."""
        match self.kind:
            case "latest":
                return EventPosition.latest()
            case "last" | "before":
                most = int(self.value) if self.value else count
                return EventPosition.from_sequence_number(max(0, last + 1 - most), inclusive=True)
            case "after":
                number = self.places.get(partition, -1)
                return EventPosition.from_sequence_number(number) if number < last else None
            case "sequence":
                number = int(self.value)
                if number > last:
                    return None
                return EventPosition.from_sequence_number(number, inclusive=True)
            case "offset":
                return EventPosition.from_offset(self.value, inclusive=True)
            case "time":
                # The filter is "after": a moment earlier makes it "at or after".
                return EventPosition.from_enqueued_time(_moment(self.value) - _MILLISECOND)
            case _:
                return EventPosition.earliest()


def parse_span(kind: str, at: str, until: str = "", *, count: int, now_ms: int = 0) -> EventQuery:
    """As addresses and forms say it: `earliest`, `latest` (the last ones), `sequence`, `offset`,
    `time`, `before` and `after` with a value, or the value alone: 42, -100, 2026-01-31T12:00,
    -15min. It ends at a time or a sequence number. ArgumentError."""
    begins = _parse_start(kind.strip() or "latest", at.strip(), count=count, now_ms=now_ms)
    until = until.strip()
    if not until:
        return begins
    if until.isascii() and until.isdigit() and len(until) < 19:
        return msgspec.structs.replace(begins, last=int(until))
    return msgspec.structs.replace(begins, until=_moment(_time_text(until, now_ms)))


def format_offsets(places: dict[str, int]) -> str:
    """
    >>> format_offsets({"0": 42, "1": 7})
    '0:42,1:7'
    """
    return ",".join(f"{partition}:{number}" for partition, number in places.items())


def _parse_start(kind: str, at: str, *, count: int, now_ms: int) -> EventQuery:
    if kind in ("earliest", "start"):
        return EventQuery("earliest")
    if kind in ("latest", "end"):
        return EventQuery("last", str(count))
    if kind in ("before", "after"):
        return EventQuery(kind, places=_places(at))
    if kind not in ("sequence", "offset", "time"):
        kind, at = _guess_kind(kind), kind
    if kind == "last":
        return EventQuery("last", str(min(COUNT_MAX, int(at.removeprefix("-")))))
    if kind == "sequence" and not (at.isascii() and at.isdigit() and len(at) < 19):
        raise ArgumentError(f"'{at[:40]}' is no sequence number: a whole number from 0 on is.")
    if kind == "offset" and (not at or len(at) > 64):
        raise ArgumentError("An offset is given as the events show it.")
    return EventQuery(kind, _time_text(at, now_ms) if kind == "time" else at)


def _guess_kind(text: str) -> str:
    number = text.removeprefix("-")
    if number.isascii() and number.isdigit() and len(number) < 19:
        return "last" if text.startswith("-") else "sequence"
    return "time"


def _places(text: str) -> dict[str, int]:
    places: dict[str, int] = {}
    for each in text[:_PLACES_MAX].split(","):
        partition, _, number = each.partition(":")
        fine = partition.isascii() and partition.isdigit() and re.fullmatch(r"-1|\d{1,18}", number)
        if not fine:
            raise ArgumentError(
                f"'{each[:40]}' is no place: PARTITION:SEQUENCE is, and several with commas."
            )
        places[partition] = int(number)
    return places


def _time_text(text: str, now_ms: int) -> str:
    """A time that can be read, or one so long ago as `-15min` says."""
    ago = _SO_LONG_AGO.fullmatch(text)
    try:
        if ago is not None:
            now = datetime.fromtimestamp(now_ms / 1000, UTC)
            return (now - timedelta(**{_UNITS[ago[2]]: int(ago[1])})).isoformat()
        _moment(text)
    except (ValueError, OverflowError):
        raise ArgumentError(
            f"'{text[:40]}' is no time: write it as 2026-01-31T12:00:00 (UTC), or -15min."
        ) from None
    return text


def _moment(text: str) -> datetime:
    """Without a zone it is UTC. Nothing was stored before 1970, and no filter says it."""
    when = datetime.fromisoformat(text)
    when = when.replace(tzinfo=UTC) if when.tzinfo is None else when.astimezone(UTC)
    return max(when, _FIRST)
