"""Where a reader starts, as the selector of the service (protocol.md 5.3); times as milliseconds
since 1970."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec

from penstock.formats.positions import StartKind, StartPosition
from penstock.model.errors import ArgumentError

_OFFSET = "x-opt-offset"
_SEQUENCE_NUMBER = "x-opt-sequence-number"
_ENQUEUED_TIME = "x-opt-enqueued-time"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_OFFSET_CHARACTERS_MAX = 128


def to_milliseconds(time: datetime) -> int:
    """Milliseconds since 1970. A naive time is UTC."""
    aware = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    return (aware - _EPOCH) // timedelta(milliseconds=1)


def to_datetime(milliseconds: int) -> datetime:
    """A time in UTC. Raises OverflowError outside the calendar."""
    return _EPOCH + timedelta(milliseconds=milliseconds)


class EventPosition(msgspec.Struct, frozen=True):
    """Created by its class methods.

    >>> EventPosition.from_sequence_number(7, inclusive=True).selector
    "amqp.annotation.x-opt-sequence-number >= '7'"
    """

    annotation: str
    value: str
    inclusive: bool = False

    @classmethod
    def earliest(cls) -> EventPosition:
        """Before the first retained event."""
        return cls(_OFFSET, "-1")

    @classmethod
    def latest(cls) -> EventPosition:
        """After the last event at the time when the reader is opened."""
        return cls(_OFFSET, "@latest")

    @classmethod
    def from_offset(cls, offset: str | int, inclusive: bool = False) -> EventPosition:
        """After the event at this offset, or at it. `-1` and `@latest` are valid too."""
        text = str(offset)
        if not 0 < len(text) <= _OFFSET_CHARACTERS_MAX or "'" in text or not text.isprintable():
            raise ArgumentError(
                f"An offset is 1 to {_OFFSET_CHARACTERS_MAX} characters without a quote."
            )
        return cls(_OFFSET, text, inclusive)

    @classmethod
    def from_sequence_number(cls, number: int, inclusive: bool = False) -> EventPosition:
        """After the event of this sequence number, or at it."""
        return cls(_SEQUENCE_NUMBER, str(int(number)), inclusive)

    @classmethod
    def from_enqueued_time(cls, time: datetime) -> EventPosition:
        """After the events stored at this time, to the millisecond. A naive time is UTC."""
        return cls.from_enqueued_ms(to_milliseconds(time))

    @classmethod
    def from_enqueued_ms(cls, milliseconds: int) -> EventPosition:
        """After the events stored at this time, in milliseconds since 1970."""
        return cls(_ENQUEUED_TIME, str(int(milliseconds)))

    @classmethod
    def from_start(cls, start: StartPosition) -> EventPosition:
        """At a parsed position. LAST is not allowed: it needs the end of a partition."""
        if start.kind is StartKind.EARLIEST:
            return cls.earliest()
        if start.kind is StartKind.SEQUENCE_NUMBER:
            return cls.from_sequence_number(start.number, inclusive=True)
        if start.kind is StartKind.OFFSET:
            return cls.from_offset(start.offset, inclusive=True)
        if start.kind is StartKind.TIME:
            # The selector has only `>`: one millisecond less includes events of this millisecond.
            return cls.from_enqueued_ms(max(0, start.number - 1))
        assert start.kind is StartKind.LATEST
        return cls.latest()

    @property
    def selector(self) -> str:
        """The text of the filter."""
        sign = ">=" if self.inclusive else ">"
        return f"amqp.annotation.{self.annotation} {sign} '{self.value}'"
