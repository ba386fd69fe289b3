"""`penstock soak --minutes N`: publish and read for a long time, and check every event."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Coroutine
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from penstock.cli.events.event_sender import (
    EventSender,
    PatienceOption,
    PublishRate,
    QuietOption,
    RateOption,
    parse_rate,
)
from penstock.cli.events.soak_check import PartitionChecker, SoakFindings
from penstock.cli.events_options import EventsEndpoint, run, run_together, with_events
from penstock.cli.output import Format, OutputFormat, print_message, print_rows
from penstock.cli.places import (
    Partitions,
    Position,
    PositionKind,
    position_before_sequence,
    resolve_ranges,
    select_partitions,
)
from penstock.cli.progress_bar import ProgressBar
from penstock.cli.units import parse_seconds
from penstock.client.event_data import EventData
from penstock.client.retry import RetryPolicy
from penstock.model.errors import PenstockError

if TYPE_CHECKING:
    from penstock.client import EventDataBatch, EventHubConsumerClient, EventHubProducerClient

_PATIENT = RetryPolicy(retry_total=1000, backoff_s=0.5, backoff_max_s=4.0)
_SILENCE_S = 3600.0  # a reader waits; others decide for how long
_BATCH_EVENTS = 1000


class SoakFailed(PenstockError):
    """An event was lost, doubled, out of order or damaged."""


class _SoakOptions(msgspec.Struct, frozen=True):
    hub: str
    group: str
    seconds: float
    rate: float | None
    size: int
    partitions: list[str] | None
    idempotent: bool
    patience_s: float


@with_events
def soak(
    wire: EventsEndpoint,
    hub: Annotated[str, typer.Option("--hub", help="Event hub to publish to")] = "events",
    minutes: Annotated[float, typer.Option("--minutes", min=0.01, help="How long")] = 10.0,
    hours: Annotated[
        float | None, typer.Option("--hours", min=0.01, help="How long, instead of --minutes")
    ] = None,
    rate: RateOption = "1000/s",
    size: Annotated[int, typer.Option(min=0, max=250_000, help="Bytes per body, at least")] = 200,
    partition: Partitions = None,
    group: Annotated[str, typer.Option("--group", "-g", help="Consumer group")] = "$Default",
    idempotent: Annotated[
        bool,
        typer.Option(
            "--idempotent/--no-idempotent",
            help="An idempotent producer: what is sent again must not be there twice",
        ),
    ] = True,
    patience: PatienceOption = "5m",
    quiet: QuietOption = False,
    output: Format = OutputFormat.TABLE,
) -> None:
    """Publish and read for a long time, and check every event.

    All partitions at once: each event must come exactly once, in order, as it was sent, and
    sequence numbers may leave none out. The service may be restarted meanwhile. Exit code 1 when
    anything is wrong. Ctrl-C ends it early, with the findings so far.

    Examples:
        penstock soak --hub orders --minutes 30 --rate 500/s
    """
    job = _SoakOptions(
        hub=hub,
        group=group,
        seconds=hours * 3600 if hours is not None else minutes * 60,
        rate=parse_rate(rate),
        size=size,
        partitions=partition,
        idempotent=idempotent,
        patience_s=parse_seconds(patience, option="--patience"),
    )
    counter = ProgressBar("Published", quiet=quiet)
    with counter:
        findings = run(_soak(wire, job, counter))
    counter.tell()
    print_rows([msgspec.structs.asdict(each) for each in findings], output, title="Partitions")
    bad = [each.partition for each in findings if not each.is_clean]
    if bad:
        raise SoakFailed(f"The service did not keep its promises in partition {', '.join(bad)}.")
    received = sum(each.received for each in findings)
    print_message(f"{received:,} events came exactly once and in order.")


async def _soak(
    wire: EventsEndpoint, job: _SoakOptions, counter: ProgressBar
) -> list[SoakFindings]:
    import signal

    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    with suppress(NotImplementedError):  # Windows
        loop.add_signal_handler(signal.SIGINT, stopping.set)
    async with (
        wire.consumer(job.hub, job.group, retry=_PATIENT) as consumer,
        wire.producer(job.hub, idempotent=job.idempotent) as producer,
        AsyncExitStack() as stack,
    ):
        async with wire.consumer(job.hub, job.group) as asked:
            ids = await select_partitions(asked, job.partitions)
            found = await resolve_ranges(
                asked, ids, Position(PositionKind.LATEST), Position(PositionKind.LATEST)
            )
        run_id = secrets.token_hex(8)
        soaking = [_SoakRun(PartitionChecker(each.partition, run_id, job.size)) for each in found]
        reading = [
            asyncio.create_task(each.read(consumer, span.first, stack))
            for each, span in zip(soaking, found, strict=True)
        ]
        try:
            rate = None if job.rate is None else job.rate / len(ids)
            publishing = (
                each.publish(producer, counter, job, PublishRate(rate), stopping)
                for each in soaking
            )
            ended = asyncio.create_task(_after(job.seconds, stopping))
            await _until_failure(run_together(*publishing), reading)
            ended.cancel()
            await _until_complete(soaking, reading, job.patience_s)
        finally:
            for task in reading:
                task.cancel()
            await asyncio.gather(*reading, return_exceptions=True)
    return [each.lane.finish() for each in soaking]


class _SoakRun:
    """One partition: who publishes to it, and who reads it."""

    def __init__(self, lane: PartitionChecker) -> None:
        self.lane = lane
        self.complete = asyncio.Event()

    async def publish(
        self,
        producer: EventHubProducerClient,
        counter: ProgressBar,
        job: _SoakOptions,
        pace: PublishRate,
        stopping: asyncio.Event,
    ) -> None:
        lane, sent = self.lane, 0

        def again(batch: EventDataBatch) -> None:
            if not job.idempotent:
                lane.count_resent(sent, len(batch))

        publisher = EventSender(producer, counter, patience_s=job.patience_s, on_retry=again)
        events = pace.batch_events(_BATCH_EVENTS)
        while not stopping.is_set():
            await pace.wait(events)
            batch = await publisher.create_batch(partition_id=lane.findings.partition)
            bodies = lane.bodies(events)
            for body in bodies:
                batch.add(EventData(body))
            await publisher.send(batch, sum(map(len, bodies)))
            lane.count_sent(len(bodies))
            sent += len(bodies)

    async def read(
        self, consumer: EventHubConsumerClient, first: int, stack: AsyncExitStack
    ) -> None:
        reader = consumer.open_partition(
            self.lane.findings.partition, position_before_sequence(first)
        )
        await stack.enter_async_context(reader)
        while True:
            columns = await reader.receive_columns(_SILENCE_S)
            self.lane.check_received(columns.sequence_numbers, columns.bodies)
            self.look()

    def look(self) -> None:
        (self.complete.set if self.lane.is_complete else self.complete.clear)()


async def _after(seconds_: float, stopping: asyncio.Event) -> None:
    await asyncio.sleep(seconds_)
    stopping.set()


async def _until_failure(
    work: Coroutine[Any, Any, None], reading: list[asyncio.Task[None]]
) -> None:
    """Until the work is done; a reader that fails ends it."""
    publishing = asyncio.create_task(work)
    await asyncio.wait((publishing, *reading), return_when=asyncio.FIRST_COMPLETED)
    for each in reading:
        if each.done():
            publishing.cancel()
            await asyncio.gather(publishing, return_exceptions=True)
            await each
    await publishing


async def _until_complete(
    soaking: list[_SoakRun], reading: list[asyncio.Task[None]], patience_s: float
) -> None:
    """What is stored comes; what does not within the time is lost."""
    for each in soaking:
        each.look()

    async def complete() -> None:
        for each in soaking:
            await each.complete.wait()

    with suppress(TimeoutError):
        async with asyncio.timeout(patience_s):
            await _until_failure(complete(), reading)
