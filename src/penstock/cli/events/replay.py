"""`penstock replay HUB --from A --to B --into HUB2`: a range of events, published again."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.confirm import DryRun
from penstock.cli.events.event_sender import (
    EventSender,
    PartitionRouter,
    PatienceOption,
    QuietOption,
)
from penstock.cli.events_options import EventsEndpoint, run, run_together, with_events
from penstock.cli.output import Format, OutputFormat, print_message, print_rows
from penstock.cli.places import (
    EventRange,
    FromOption,
    Partitions,
    ToOption,
    parse_position,
    resolve_ranges,
    select_partitions,
)
from penstock.cli.progress_bar import ProgressBar
from penstock.cli.sections import EventCopy, copy_events
from penstock.cli.service_options import HubName
from penstock.cli.units import parse_seconds

if TYPE_CHECKING:
    from penstock.client import EventHubConsumerClient
    from penstock.kernels import Columns

_STEP_MS = 20  # events that lie closer together are published together
_SPEED = re.compile(r"([0-9]+(?:\.[0-9]+)?)x?")


@with_events
def replay(
    wire: EventsEndpoint,
    hub: HubName,
    into: Annotated[str, typer.Option("--into", metavar="HUB", help="Event hub that gets them")],
    from_: FromOption = "earliest",
    to: ToOption = "latest",
    partition: Partitions = None,
    speed: Annotated[
        str | None,
        typer.Option(
            "--speed", metavar="2x", help="1x keeps the pauses, 2x halves them [default: none]"
        ),
    ] = None,
    group: Annotated[str, typer.Option("--group", "-g", help="Consumer group")] = "$Default",
    into_connection_string: Annotated[
        str | None,
        typer.Option(
            "--into-connection-string", metavar="STRING", help="Of another service's event hub"
        ),
    ] = None,
    into_ca_file: Annotated[
        Path | None, typer.Option("--into-ca-file", metavar="FILE", help="Trust these there")
    ] = None,
    patience: PatienceOption = "60s",
    quiet: QuietOption = False,
    dry_run: DryRun = False,
    output: Format = OutputFormat.TABLE,
) -> None:
    """Publish a range of events again, into another event hub.

    Bodies, keys, properties, content types and annotations stay; sequence numbers, offsets and
    times are new. Events with a key go where it leads, others to the partition of the same number.
    The range ends before --to, and at the end as it is now.

    Examples:
        penstock replay orders --into orders-test --from -1h
        penstock replay orders --into orders-test --speed 2x --dry-run
    """
    start, stop = parse_position(from_), parse_position(to, option="--to")
    factor = _factor(speed)
    target = wire
    if into_connection_string is not None:
        target = EventsEndpoint(connection_string=into_connection_string, ca_file=into_ca_file)
    patience_s = parse_seconds(patience, option="--patience")

    async def plan() -> list[EventRange]:
        async with wire.consumer(hub, group) as consumer:
            return await resolve_ranges(
                consumer, await select_partitions(consumer, partition), start, stop
            )

    planned = run(plan())
    total = sum(each.events for each in planned)
    if dry_run:
        print_rows([_range_row(each) for each in planned], output, title="Partitions")
        print_message(f"{total:,} events would go into '{into}'. Dry run: nothing was done.")
        return
    counter = ProgressBar("Replayed", total=total, quiet=quiet)
    with counter:
        run(_replay((wire, hub, group), (target, into), planned, factor, counter, patience_s))
    counter.tell()


async def _replay(
    source: tuple[EventsEndpoint, str, str],
    target: tuple[EventsEndpoint, str],
    planned: list[EventRange],
    factor: float | None,
    counter: ProgressBar,
    patience_s: float,
) -> None:
    wire, hub, group = source
    planned = [each for each in planned if each.events]
    clock = _ReplayClock(len(planned), factor)
    async with wire.consumer(hub, group) as consumer, target[0].producer(target[1]) as producer:
        ids = await producer.get_partition_ids()

        async def one(span: EventRange) -> None:
            publisher = EventSender(producer, counter, patience_s=patience_s)
            await _replay_partition(consumer, span, PartitionRouter(publisher, ids), clock)

        await run_together(*(one(each) for each in planned))


async def _replay_partition(
    consumer: EventHubConsumerClient, span: EventRange, router: PartitionRouter, clock: _ReplayClock
) -> None:
    found = consumer.read_range(span.partition, span.first, span.stop - 1)
    is_first = True
    async with aclosing(found):
        async for columns in found:
            events = copy_events(columns, span.partition)
            if not clock.is_kept:
                await router.send(events)
                continue
            if is_first:
                await clock.begin(columns.enqueued_ms[0])
                is_first = False
            for enqueued_ms, part in _steps(columns, events):
                await clock.until(enqueued_ms)
                await router.send(part)


class _ReplayClock:
    """When an event is due: as long after the first of all partitions as it was then."""

    def __init__(self, partitions: int, factor: float | None) -> None:
        self._factor = factor
        self._waiting = partitions
        self._begun = asyncio.Event()
        self._first_ms: int | None = None
        self._started_s = 0.0

    @property
    def is_kept(self) -> bool:
        return self._factor is not None

    async def begin(self, enqueued_ms: int) -> None:
        """Until each partition has said when its first event was."""
        known = self._first_ms
        self._first_ms = enqueued_ms if known is None else min(known, enqueued_ms)
        self._waiting -= 1
        if self._waiting == 0:
            self._started_s = asyncio.get_running_loop().time()
            self._begun.set()
        await self._begun.wait()

    async def until(self, enqueued_ms: int) -> None:
        assert self._factor is not None and self._first_ms is not None
        due_s = self._started_s + (enqueued_ms - self._first_ms) / 1000 / self._factor
        pause_s = due_s - asyncio.get_running_loop().time()
        if pause_s > 0:
            await asyncio.sleep(pause_s)


def _steps(
    columns: Columns, events: Sequence[EventCopy]
) -> Iterator[tuple[int, Sequence[EventCopy]]]:
    """Runs of events that were stored at about the same time."""
    times, start = columns.enqueued_ms, 0
    for row in range(1, len(events) + 1):
        if row == len(events) or times[row] - times[start] > _STEP_MS:
            yield times[start], events[start:row]
            start = row


def _factor(speed: str | None) -> float | None:
    if speed is None:
        return None
    found = _SPEED.fullmatch(speed.strip().lower())
    if found is None or float(found[1]) <= 0:
        raise typer.BadParameter(
            f"'{speed}' is no speed: 1x, 2x or 0.5x are.", param_hint="--speed"
        )
    return float(found[1])


def _range_row(span: EventRange) -> dict[str, object]:
    return {
        "partition": span.partition,
        "first_sequence_number": span.first if span.events else None,
        "last_sequence_number": span.stop - 1 if span.events else None,
        "events": span.events,
    }
