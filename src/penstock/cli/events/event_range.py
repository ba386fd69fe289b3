"""The options `--from`, `--to`, `--partition` and `--group`, and the events that they name."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, NamedTuple

from penstock.cli.options import option, parse_position
from penstock.cli.service_options import complete_groups
from penstock.client.event_position import EventPosition
from penstock.formats.positions import StartKind, StartPosition
from penstock.formats.quantities import EPOCH, MILLISECOND
from penstock.model.errors import NotFound

if TYPE_CHECKING:
    from penstock.client import EventHubConsumerClient

_GRAMMAR = "earliest, latest, -100 (the last 100 of each partition), -15m, a time, SEQ or @OFFSET"
_FIRST_EVENT_S = 5.0  # the service sends nothing for an offset after the last event
EARLIEST, LATEST = StartPosition(StartKind.EARLIEST), StartPosition(StartKind.LATEST)

_position_option = partial(option, parser=parse_position, show_default=False)
OptionalFromOption = Annotated[
    StartPosition | None,
    _position_option(
        "--from WHERE", f"Start at: {_GRAMMAR} [default: latest; earliest with --no-follow]"
    ),
]
Partitions = Annotated[
    list[str] | None, option("--partition -p N", "Only this partition; may be repeated")
]
GroupOption = Annotated[
    str, option("--group -g TEXT", "Consumer group", autocompletion=complete_groups)
]


@dataclass(frozen=True, kw_only=True)
class RangeOptions:
    """The stored events of a hub that a command reads."""

    from_: Annotated[
        StartPosition, _position_option("--from WHERE", f"Start at: {_GRAMMAR} [default: earliest]")
    ] = EARLIEST
    to: Annotated[
        StartPosition,
        _position_option(
            "WHERE", "End before this position, written like --from [default: latest]"
        ),
    ] = LATEST
    partition: Partitions = None

    async def resolve(self, consumer: EventHubConsumerClient) -> list[EventRange]:
        """Raises NotFound for a partition that does not exist."""
        ids = await select_partitions(consumer, self.partition)
        return await resolve_ranges(consumer, ids, self.from_, self.to)


class EventRange(NamedTuple):
    """Events of one partition: sequence number `first` up to and without `stop`."""

    partition: str
    first: int
    stop: int

    @property
    def events(self) -> int:
        return max(0, self.stop - self.first)


def position_before_sequence(number: int) -> EventPosition:
    """The position of a reader whose first event has this sequence number.

    The event need not exist yet: the service refuses `>=` with a number that it has not assigned.
    """
    return EventPosition.from_sequence_number(number - 1) if number else EventPosition.earliest()


async def select_partitions(
    consumer: EventHubConsumerClient, requested: list[str] | None
) -> list[str]:
    """The requested partitions, or all. Raises NotFound for one that does not exist."""
    existing = await consumer.get_partition_ids()
    for partition in requested or ():
        if partition not in existing:
            raise NotFound(
                f"'{consumer.eventhub_name}' has no partition '{partition}': it has {existing[0]} "
                f"to {existing[-1]}."
            )
    return list(dict.fromkeys(requested)) if requested else existing


async def resolve_ranges(
    consumer: EventHubConsumerClient,
    partitions: list[str],
    start: StartPosition,
    stop: StartPosition = LATEST,
) -> list[EventRange]:
    """The ranges from `start` up to and without `stop`, at most up to the present end."""
    return list(
        await asyncio.gather(
            *(_resolve_range(consumer, partition, start, stop) for partition in partitions)
        )
    )


async def _resolve_range(
    consumer: EventHubConsumerClient, partition: str, start: StartPosition, stop: StartPosition
) -> EventRange:
    state = await consumer.get_partition_properties(partition)
    first, end = state["beginning_sequence_number"], state["last_enqueued_sequence_number"] + 1
    if state["is_empty"]:
        return EventRange(partition, end, end)
    last_ms = (state["last_enqueued_time_utc"] - EPOCH) // MILLISECOND

    async def resolve(position: StartPosition) -> int:
        number = await _find_sequence_number(consumer, partition, position, (first, end), last_ms)
        return min(max(number, first), end)

    begin = await resolve(start)
    return EventRange(partition, begin, max(begin, await resolve(stop)))


async def _find_sequence_number(
    consumer: EventHubConsumerClient,
    partition: str,
    position: StartPosition,
    bounds: tuple[int, int],
    last_ms: int,
) -> int:
    """The sequence number of the first event at the position or after it."""
    first, end = bounds
    if position.kind is StartKind.EARLIEST:
        return first
    if position.kind is StartKind.SEQUENCE_NUMBER:
        return position.number
    if position.kind is StartKind.LAST:
        return end - position.number
    is_after_end = position.kind is StartKind.TIME and position.number > last_ms
    if position.kind is StartKind.LATEST or is_after_end:
        return end
    # Only the service can find it: the first event that it delivers from this position.
    opened = consumer.open_partition(partition, EventPosition.from_start(position), prefetch=1)
    async with opened as reader:
        wait_s = _FIRST_EVENT_S if position.kind is StartKind.OFFSET else None
        columns = await reader.receive_columns(wait_s)
    return columns.sequence_numbers[0] if columns.sequence_numbers else end
