"""`penstock replay HUB --from A --to B --into HUB2`: publish a range of events again."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.confirm import DryRun
from penstock.cli.events.event_range import EventRange, GroupOption, RangeOptions
from penstock.cli.events.event_sender import (
    EventCopy,
    EventSender,
    PartitionRouter,
    PatienceOption,
    QuietOption,
    copy_events,
)
from penstock.cli.events_options import EventsEndpoint, run, run_together, with_events
from penstock.cli.options import option
from penstock.cli.output import TABLE, Format, print_message
from penstock.cli.progress_bar import ProgressBar
from penstock.cli.service_options import HubName

if TYPE_CHECKING:
    from penstock.client import EventHubConsumerClient
    from penstock.kernels import Columns

_STEP_MS = 20  # events whose times differ by less are published together
_SPEED = re.compile(r"([0-9]+(?:\.[0-9]+)?)x?")


def parse_speed(text: str) -> float:
    """`2x`, `0.5x`. Raises typer.BadParameter."""
    match = _SPEED.fullmatch(text.strip().lower())
    if match is None or float(match[1]) <= 0:
        raise typer.BadParameter(f"'{text}' is not a speed. Examples: 1x, 2x, 0.5x.")
    return float(match[1])


@with_events
def replay(
    wire: EventsEndpoint,
    hub: HubName,
    into: Annotated[str, option("HUB", "Target event hub")],
    selection: RangeOptions,
    speed: Annotated[
        float | None,
        option(
            "2x",
            "1x keeps the pauses between events, 2x halves them [default: no pauses]",
            parser=parse_speed,
        ),
    ] = None,
    group: GroupOption = "$Default",
    into_connection_string: Annotated[
        str | None, option("STRING", "Connection string of the target, if it is another service")
    ] = None,
    into_ca_file: Annotated[Path | None, option("FILE", "CA file that verifies the target")] = None,
    patience: PatienceOption = 60.0,
    quiet: QuietOption = False,
    dry_run: DryRun = False,
    output: Format = TABLE,
) -> None:
    """Publish a range of events again, into another event hub.

    Bodies, keys, properties, content types and annotations are kept; sequence numbers, offsets and
    times are new. Events with a key go to the partition of the key, others to the partition of the
    same number. The range ends before --to, at the latest at the present end.

    Examples:
        penstock replay orders --into orders-test --from -1h
        penstock replay orders --into orders-test --speed 2x --dry-run
    """
    target = wire
    if into_connection_string is not None:
        target = EventsEndpoint(connection_string_flag=into_connection_string, ca_file=into_ca_file)

    async def plan() -> list[EventRange]:
        async with wire.consumer(hub, group) as consumer:
            return await selection.resolve(consumer)

    ranges = run(plan())
    total = sum(span.events for span in ranges)
    if dry_run:
        output.print_rows([_range_row(span) for span in ranges], title="Partitions")
        print_message(f"{total:,} events would go into '{into}'. Dry run: nothing was published.")
        return
    spans = [span for span in ranges if span.events]
    clock = None if speed is None else _ReplayClock(len(spans), speed)

    async def publish() -> None:
        async with wire.consumer(hub, group) as consumer, target.producer(into) as producer:
            ids = await producer.get_partition_ids()
            senders = (EventSender(producer, counter, patience_s=patience) for _ in spans)
            replays = (
                _replay_partition(consumer, span, PartitionRouter(sender, ids), clock)
                for span, sender in zip(spans, senders, strict=True)
            )
            await run_together(*replays)

    with ProgressBar("Replayed", total=total, quiet=quiet) as counter:
        run(publish())


async def _replay_partition(
    consumer: EventHubConsumerClient,
    span: EventRange,
    router: PartitionRouter,
    clock: _ReplayClock | None,
) -> None:
    chunks = consumer.read_range(span.partition, span.first, span.stop - 1)
    is_first = True
    async with aclosing(chunks):
        async for columns in chunks:
            events = copy_events(columns, span.partition)
            if clock is None:
                await router.send(events)
                continue
            if is_first:
                await clock.start(columns.enqueued_ms[0])
                is_first = False
            for enqueued_ms, part in _split_steps(columns, events):
                await clock.wait_until_due(enqueued_ms)
                await router.send(part)


class _ReplayClock:
    """Tells when an event is due. All partitions share it, so that their pauses match.

    Time starts with the first event of all partitions.
    """

    def __init__(self, partitions: int, speed: float) -> None:
        self._speed = speed
        self._missing_partitions = partitions
        self._started = asyncio.Event()
        self._first_ms: int | None = None
        self._started_s = 0.0

    async def start(self, enqueued_ms: int) -> None:
        """Report the time of a partition's first event; wait until all partitions have done so."""
        first_ms = self._first_ms
        self._first_ms = enqueued_ms if first_ms is None else min(first_ms, enqueued_ms)
        self._missing_partitions -= 1
        if self._missing_partitions == 0:
            self._started_s = asyncio.get_running_loop().time()
            self._started.set()
        await self._started.wait()

    async def wait_until_due(self, enqueued_ms: int) -> None:
        assert self._first_ms is not None
        due_s = self._started_s + (enqueued_ms - self._first_ms) / 1000 / self._speed
        pause_s = due_s - asyncio.get_running_loop().time()
        if pause_s > 0:
            await asyncio.sleep(pause_s)


def _split_steps(
    columns: Columns, events: Sequence[EventCopy]
) -> Iterator[tuple[int, Sequence[EventCopy]]]:
    """Groups of events that were stored at about the same time, with that time."""
    times, start = columns.enqueued_ms, 0
    for row in range(1, len(events) + 1):
        if row == len(events) or times[row] - times[start] > _STEP_MS:
            yield times[start], events[start:row]
            start = row


def _range_row(span: EventRange) -> dict[str, object]:
    return {
        "partition": span.partition,
        "first_sequence_number": span.first if span.events else None,
        "last_sequence_number": span.stop - 1 if span.events else None,
        "events": span.events,
    }
