"""Start positions as people write them: one grammar for `--from`, `--to`, `seek` and the portal.

| Text | Position |
|---|---|
| `earliest`, `latest` | the first retained event; the end of the partition |
| `-100` | the last 100 events of each partition |
| `1234`, `@5678` | a sequence number; an offset |
| `2026-11-16T08:00:00Z`, `2026-11-16`, `08:00` | a time, UTC unless it names a zone |
| `-15m`, `-2h30m` | a time before now |
"""

from __future__ import annotations

import re
from enum import Enum
from typing import NamedTuple

from penstock.formats.quantities import format_time, parse_seconds, parse_time_ms
from penstock.model.errors import ArgumentError
from penstock.model.positions import EARLIEST, LATEST, Position, PositionKind

_CLOCK = re.compile(r"[0-9]{1,2}:[0-9]{2}(:[0-9]{2}(\.[0-9]+)?)?Z?")
_WORDS = {"earliest": "EARLIEST", "start": "EARLIEST", "latest": "LATEST", "end": "LATEST"}
_SEQUENCE_MAX = 2**63 - 1
_TEXT_MAX = 64


class StartKind(Enum):
    EARLIEST = 1
    LATEST = 2
    LAST = 3  # `number` events before the end
    SEQUENCE_NUMBER = 4
    OFFSET = 5
    TIME = 6  # milliseconds since 1970


class StartPosition(NamedTuple):
    """A position before a partition is known. It includes the event that it names."""

    kind: StartKind
    number: int = 0
    offset: str = ""


def parse_position(text: str, *, now_ms: int | None) -> StartPosition:
    """Read a position.

    Without `now_ms` only `earliest`, `latest`, sequence numbers and times are allowed. Raises
    ArgumentError.
    """
    value = text.strip()
    if value.lower() in _WORDS:
        return StartPosition(StartKind[_WORDS[value.lower()]])
    if re.fullmatch(r"[0-9]{1,19}", value) and int(value) <= _SEQUENCE_MAX:
        return StartPosition(StartKind.SEQUENCE_NUMBER, int(value))
    if now_ms is not None:
        if value.startswith("@") and 1 < len(value) <= 128 and "'" not in value:
            return StartPosition(StartKind.OFFSET, offset=value[1:])
        if re.fullmatch(r"-[0-9]{1,18}", value):
            return StartPosition(StartKind.LAST, int(value[1:]))
    return StartPosition(StartKind.TIME, parse_start_time(value, now_ms=now_ms))


def parse_start_time(text: str, *, now_ms: int | None) -> int:
    """Read a time, a time of today or, with `now_ms`, a duration before now: `-15m`.

    Returns milliseconds since 1970, at least 0. Raises ArgumentError.
    """
    try:
        if now_ms is not None and text.startswith("-") and not text[1:].isdigit():
            time_ms = now_ms - int(parse_seconds(text[1:]) * 1000)
            if time_ms < 0:
                raise OverflowError
            return time_ms
        if now_ms is not None and _CLOCK.fullmatch(text):
            text = f"{format_time(now_ms)[:10]}T{text.zfill(5)}"
        return max(0, parse_time_ms(text))
    except (ValueError, OverflowError, ArgumentError):
        more = "" if now_ms is None else ", -100 (the last 100 events), -15m, @OFFSET"
        raise ArgumentError(
            f"'{text[:_TEXT_MAX]}' is not a position. Use earliest, latest, a sequence number, a "
            f"time such as 2026-11-16T08:00:00Z (UTC){more}."
        ) from None


def parse_log_position(text: str) -> Position:
    """Read an absolute position as the log understands it.

    >>> parse_log_position("1970-01-01T00:00:01Z").value
    1000

    Raises ArgumentError.
    """
    start = parse_position(text, now_ms=None)
    if start.kind is StartKind.EARLIEST:
        return EARLIEST
    if start.kind is StartKind.LATEST:
        return LATEST
    is_time = start.kind is StartKind.TIME
    kind = PositionKind.ENQUEUED_TIME if is_time else PositionKind.SEQUENCE
    return Position(kind, start.number, inclusive=True)
