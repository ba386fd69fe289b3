"""Where in a partition: what people write after --from and --to, and the sequence numbers it means.

earliest, latest   -100 (the last hundred)   1234 (a sequence number)   @5678 (an offset)
2026-11-16T08:00:00Z, 2026-11-16, 08:00 (today)   -15m, -2h30m (so long ago); times are UTC
"""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from penstock.cli.units import parse_seconds
from penstock.model.errors import NotFound

if TYPE_CHECKING:
    from penstock.client import EventHubConsumerClient, EventPosition

_HELP = "earliest, latest, -100 (the last hundred of each), -15m, a time, SEQ, or @OFFSET"
FromOption = Annotated[str, typer.Option("--from", metavar="WHERE", help=_HELP)]
ToOption = Annotated[
    str, typer.Option("--to", metavar="WHERE", help="Without this one; as --from says it")
]
Partitions = Annotated[
    list[str] | None,
    typer.Option("--partition", "-p", metavar="N", help="These alone [default: all]"),
]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
_CLOCK = re.compile(r"[0-9]{1,2}:[0-9]{2}(:[0-9]{2}(\.[0-9]+)?)?Z?")


class PositionKind(Enum):
    EARLIEST = 1
    LATEST = 2
    LAST = 3  # so many events before the end
    SEQUENCE_NUMBER = 4
    OFFSET = 5
    TIME = 6  # milliseconds since 1970


class Position(NamedTuple):
    kind: PositionKind
    number: int = 0
    offset: str = ""

    @property
    def position(self) -> EventPosition:
        """For a reader that begins at it. Not for LAST, which is nowhere before one looks."""
        from penstock.client import EventPosition

        if self.kind is PositionKind.EARLIEST:
            return EventPosition.earliest()
        if self.kind is PositionKind.SEQUENCE_NUMBER:
            return EventPosition.from_sequence_number(self.number, inclusive=True)
        if self.kind is PositionKind.OFFSET:
            return EventPosition.from_offset(self.offset, inclusive=True)
        if self.kind is PositionKind.TIME:
            # The selector says `>`: what was stored at this very millisecond is wanted too.
            return EventPosition.from_enqueued_time(_EPOCH + (self.number - 1) * _MS)
        assert self.kind is PositionKind.LATEST
        return EventPosition.latest()


def parse_position(text: str, *, option: str = "--from", now: datetime | None = None) -> Position:
    """Raises typer.BadParameter."""
    wanted = text.strip()
    if wanted.lower() in ("earliest", "latest"):
        return Position(PositionKind[wanted.upper()])
    if wanted.startswith("@") and 1 < len(wanted) <= 128 and "'" not in wanted:
        return Position(PositionKind.OFFSET, offset=wanted[1:])
    if re.fullmatch(r"-[0-9]{1,18}", wanted):
        return Position(PositionKind.LAST, int(wanted[1:]))
    if re.fullmatch(r"[0-9]{1,18}", wanted):
        return Position(PositionKind.SEQUENCE_NUMBER, int(wanted))
    now = datetime.now(UTC) if now is None else now
    if wanted.startswith("-"):
        return _at(now - timedelta(seconds=parse_seconds(wanted[1:], option=option)))
    moment = f"{now:%Y-%m-%d}T{wanted.zfill(5)}" if _CLOCK.fullmatch(wanted) else wanted
    try:
        found = datetime.fromisoformat(moment)
    except ValueError:
        raise typer.BadParameter(
            f"'{text}' is no place in a partition: earliest, latest, -100, -15m, "
            "2026-11-16T08:00:00Z, a sequence number or @OFFSET are.",
            param_hint=option,
        ) from None
    return _at(found if found.tzinfo is not None else found.replace(tzinfo=UTC))


def position_before_sequence(number: int) -> EventPosition:
    """For a reader whose first event has this sequence number, which need not be there yet: the
    service refuses `>=` a number that it did not give."""
    from penstock.client import EventPosition

    return EventPosition.from_sequence_number(number - 1) if number else EventPosition.earliest()


def _at(moment: datetime) -> Position:
    return Position(PositionKind.TIME, (moment - _EPOCH) // _MS)


# --- sequence numbers -----------------------------------------------------------------------------


class EventRange(NamedTuple):
    """Events of one partition, as they were counted when somebody looked."""

    partition: str
    first: int
    stop: int  # the first that is not wanted

    @property
    def events(self) -> int:
        return max(0, self.stop - self.first)


async def select_partitions(
    consumer: EventHubConsumerClient, wanted: list[str] | None
) -> list[str]:
    """Those that are there; NotFound names one that is not."""
    known = await consumer.get_partition_ids()
    for each in wanted or ():
        if each not in known:
            raise NotFound(
                f"'{consumer.eventhub_name}' has no partition '{each}': it has {known[0]} to "
                f"{known[-1]}."
            )
    return list(dict.fromkeys(wanted)) if wanted else known


async def resolve_ranges(
    consumer: EventHubConsumerClient, partitions: list[str], start: Position, stop: Position
) -> list[EventRange]:
    """From `start` on and before `stop`, of each partition; never beyond its end as it is now."""
    return list(await asyncio.gather(*(_span(consumer, each, start, stop) for each in partitions)))


async def _span(
    consumer: EventHubConsumerClient, partition: str, start: Position, stop: Position
) -> EventRange:
    known = await consumer.get_partition_properties(partition)
    first, end = known["beginning_sequence_number"], known["last_enqueued_sequence_number"] + 1
    if known["is_empty"]:
        return EventRange(partition, end, end)
    last_ms = (known["last_enqueued_time_utc"] - _EPOCH) // _MS
    found = []
    for place in (start, stop):
        number = await _sequence_number(consumer, partition, place, first, end, last_ms)
        found.append(min(max(number, first), end))
    return EventRange(partition, found[0], max(found))


async def _sequence_number(
    consumer: EventHubConsumerClient,
    partition: str,
    place: Position,
    first: int,
    end: int,
    last_ms: int,
) -> int:
    """Of the first event at the place or behind it."""
    if place.kind is PositionKind.EARLIEST:
        return first
    if place.kind is PositionKind.SEQUENCE_NUMBER:
        return place.number
    if place.kind is PositionKind.LAST:
        return end - place.number
    if place.kind is PositionKind.LATEST or (
        place.kind is PositionKind.TIME and place.number > last_ms
    ):
        return end
    # Only the service knows: the first event that it delivers from there.
    async with consumer.open_partition(partition, place.position, prefetch=1) as reader:
        columns = await reader.receive_columns(
            _FIRST_S if place.kind is PositionKind.OFFSET else None
        )
    return columns.sequence_numbers[0] if columns.sequence_numbers else end


_FIRST_S = 5.0  # an offset behind the last event is answered with silence
