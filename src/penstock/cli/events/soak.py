"""`penstock soak --minutes N`: publish and read for a long time and check every event."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from penstock.cli.events.event_range import (
    LATEST,
    Partitions,
    position_before_sequence,
    resolve_ranges,
    select_partitions,
)
from penstock.cli.events.event_sender import (
    EventSender,
    PublishRate,
    QuietOption,
    RateOption,
    patience_option,
)
from penstock.cli.events.tail import GroupOption
from penstock.cli.events_options import EventsEndpoint, run, run_together, with_events
from penstock.cli.output import Format, OutputFormat, print_message, print_rows
from penstock.cli.progress_bar import ProgressBar
from penstock.client.event_data import EventData
from penstock.client.retry import RetryPolicy
from penstock.model.errors import PenstockError

if TYPE_CHECKING:
    from penstock.client import EventDataBatch, EventHubConsumerClient, EventHubProducerClient

_READ_RETRY = RetryPolicy(retry_total=1000, backoff_s=0.5, backoff_max_s=4.0)
_WAIT_S = 3600.0  # the end of the run stops a reader, not a lack of events
_BATCH_EVENTS = 1000
_MISSING_MAX = 1_000_000  # missing numbers that are remembered; others count as doubled
_FAULTS = ("lost", "doubled", "disordered", "gaps", "damaged")


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
    minutes: Annotated[float, typer.Option("--minutes", min=0.01, help="Length of the run")] = 10.0,
    hours: Annotated[
        float | None,
        typer.Option("--hours", min=0.01, help="Length of the run, instead of --minutes"),
    ] = None,
    rate: RateOption = 1000.0,
    size: Annotated[int, typer.Option(min=0, max=250_000, help="Minimum bytes per body")] = 200,
    partition: Partitions = None,
    group: GroupOption = "$Default",
    idempotent: Annotated[
        bool,
        typer.Option(
            "--idempotent/--no-idempotent",
            help="With an idempotent producer, events that are sent again must be stored once",
        ),
    ] = True,
    patience: Annotated[float, patience_option("5m")] = 300.0,
    quiet: QuietOption = False,
    output: Format = OutputFormat.TABLE,
) -> None:
    """Publish and read for a long time, and check every event.

    All partitions are used at once. Each event must be received exactly once, in order and
    unchanged, and sequence numbers must have no gaps. The service may restart during the run. The
    exit code is 1 if a check fails. Ctrl-C ends the run early with the findings so far.

    Examples:
        penstock soak --hub orders --minutes 30 --rate 500/s
    """
    job = _SoakOptions(
        hub=hub,
        group=group,
        seconds=hours * 3600 if hours is not None else minutes * 60,
        rate=rate,
        size=size,
        partitions=partition,
        idempotent=idempotent,
        patience_s=patience,
    )
    counter = ProgressBar("Published", quiet=quiet)
    with counter:
        findings = run(_soak(wire, job, counter))
    counter.tell()
    print_rows(
        [msgspec.structs.asdict(finding) for finding in findings], output, title="Partitions"
    )
    failed = [finding.partition for finding in findings if not finding.is_clean]
    if failed:
        raise SoakFailed(f"Events were lost or changed in partition {', '.join(failed)}.")
    received = sum(finding.received for finding in findings)
    print_message(f"{received:,} events were received exactly once and in order.")


async def _soak(
    wire: EventsEndpoint, job: _SoakOptions, counter: ProgressBar
) -> list[SoakFindings]:
    import signal

    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    with suppress(NotImplementedError):  # Windows
        loop.add_signal_handler(signal.SIGINT, stopping.set)
    async with (
        wire.consumer(job.hub, job.group, retry=_READ_RETRY) as consumer,
        wire.producer(job.hub, idempotent=job.idempotent) as producer,
        AsyncExitStack() as stack,
    ):
        async with wire.consumer(job.hub, job.group) as starter:
            ids = await select_partitions(starter, job.partitions)
            ranges = await resolve_ranges(starter, ids, LATEST)
        run_id = secrets.token_hex(8)
        runs = [
            _PartitionRun(PartitionChecker(span.partition, run_id, job.size)) for span in ranges
        ]
        reading = [
            asyncio.create_task(partition_run.read(consumer, span.first, stack))
            for partition_run, span in zip(runs, ranges, strict=True)
        ]
        try:
            rate = None if job.rate is None else job.rate / len(ids)
            publishing = (
                partition_run.publish(producer, counter, job, PublishRate(rate), stopping)
                for partition_run in runs
            )
            timer = asyncio.create_task(_stop_after(job.seconds, stopping))
            await _run_until_failure(run_together(*publishing), reading)
            timer.cancel()
            await _wait_until_complete(runs, reading, job.patience_s)
        finally:
            for task in reading:
                task.cancel()
            await asyncio.gather(*reading, return_exceptions=True)
    return [partition_run.checker.finish() for partition_run in runs]


class _PartitionRun:
    """Publishes to one partition and reads it."""

    def __init__(self, checker: PartitionChecker) -> None:
        self.checker = checker
        self.complete = asyncio.Event()

    async def publish(
        self,
        producer: EventHubProducerClient,
        counter: ProgressBar,
        job: _SoakOptions,
        pace: PublishRate,
        stopping: asyncio.Event,
    ) -> None:
        checker, sent = self.checker, 0

        def on_retry(batch: EventDataBatch) -> None:
            if not job.idempotent:
                checker.count_resent(sent, len(batch))

        publisher = EventSender(producer, counter, patience_s=job.patience_s, on_retry=on_retry)
        events = pace.batch_events(_BATCH_EVENTS)
        while not stopping.is_set():
            await pace.wait(events)
            batch = await publisher.create_batch(partition_id=checker.findings.partition)
            bodies = checker.bodies(events)
            for body in bodies:
                batch.add(EventData(body))
            await publisher.send(batch, sum(map(len, bodies)))
            checker.findings.sent += len(bodies)
            sent += len(bodies)

    async def read(
        self, consumer: EventHubConsumerClient, first: int, stack: AsyncExitStack
    ) -> None:
        reader = consumer.open_partition(
            self.checker.findings.partition, position_before_sequence(first)
        )
        await stack.enter_async_context(reader)
        while True:
            columns = await reader.receive_columns(_WAIT_S)
            self.checker.check_received(columns.sequence_numbers, columns.bodies)
            self.update_complete()

    def update_complete(self) -> None:
        (self.complete.set if self.checker.is_complete else self.complete.clear)()


async def _stop_after(seconds: float, stopping: asyncio.Event) -> None:
    await asyncio.sleep(seconds)
    stopping.set()


async def _run_until_failure(
    work: Coroutine[Any, Any, None], reading: list[asyncio.Task[None]]
) -> None:
    """Run `work` to its end. Raises the error of a reader that fails before."""
    working = asyncio.create_task(work)
    await asyncio.wait((working, *reading), return_when=asyncio.FIRST_COMPLETED)
    for reader in reading:
        if reader.done():
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
            await reader
    await working


async def _wait_until_complete(
    runs: list[_PartitionRun], reading: list[asyncio.Task[None]], patience_s: float
) -> None:
    """Wait until all stored events are received. Events that take longer count as lost."""

    async def wait() -> None:
        for partition_run in runs:
            partition_run.update_complete()
            await partition_run.complete.wait()

    with suppress(TimeoutError):
        async with asyncio.timeout(patience_s):
            await _run_until_failure(wait(), reading)


# --- checks ---------------------------------------------------------------------------------------


class SoakFindings(msgspec.Struct):
    """What was found in one partition."""

    partition: str
    sent: int = 0
    received: int = 0
    lost: int = 0  # stored, but not received
    doubled: int = 0  # received twice
    resent: int = 0  # received twice because they were sent twice
    disordered: int = 0  # received after a later one
    gaps: int = 0  # sequence numbers that are missing or repeated
    damaged: int = 0  # of this run, but with another body
    foreign: int = 0  # from other producers

    @property
    def is_clean(self) -> bool:
        return not any(getattr(self, name) for name in _FAULTS)


class PartitionChecker:
    """Builds the bodies for one partition and checks them when they are received.

    A body has the run, the event's number in the partition and a filling:
    `soak 5f2c81d09a7b4e36 17 ...`.
    """

    def __init__(self, partition: str, run: str, size: int) -> None:
        self.findings = SoakFindings(partition)
        self._head = f"soak {run} ".encode()
        self._size = size
        self._next_sent = 0
        self._expected = 0
        self._missing: set[int] = set()
        self._resent: set[int] = set()
        self._sequence_number: int | None = None

    @property
    def is_complete(self) -> bool:
        """Whether every acknowledged event has been received."""
        return self._expected >= self.findings.sent and not self._missing

    def bodies(self, count: int) -> list[bytes]:
        first = self._next_sent
        self._next_sent += count
        return [self.body(number) for number in range(first, first + count)]

    def body(self, number: int) -> bytes:
        text = self._head + b"%d " % number
        return text + (b"%08x" % (number * 2654435761 % 2**32)) * (
            max(0, self._size - len(text)) // 8
        )

    def count_resent(self, first: int, count: int) -> None:
        """Without an idempotent producer, events that were sent again may be stored twice."""
        self._resent.update(range(first, first + count))

    def check_received(self, sequence_numbers: Sequence[int], bodies: Sequence[bytes]) -> None:
        previous = self._sequence_number
        for number, body in zip(sequence_numbers, bodies, strict=True):
            if previous is not None and number != previous + 1:
                self.findings.gaps += 1
            previous = number
            self._check(body)
        self._sequence_number = previous

    def finish(self) -> SoakFindings:
        """The findings at the end of the run."""
        self.findings.lost = len(self._missing) + max(0, self.findings.sent - self._expected)
        return self.findings

    def _check(self, body: bytes) -> None:
        findings = self.findings
        if not body.startswith(self._head):
            findings.foreign += 1
            return
        digits = body[len(self._head) :].partition(b" ")[0]
        number = int(digits) if digits.isdigit() and len(digits) < 19 else -1
        if number < 0 or body != self.body(number):
            findings.damaged += 1
            return
        findings.received += 1
        if number == self._expected:
            self._expected += 1
        elif number > self._expected:
            most = _MISSING_MAX - len(self._missing)
            self._missing.update(range(self._expected, min(number, self._expected + most)))
            self._expected = number + 1
        elif number in self._missing:
            self._missing.discard(number)
            findings.disordered += 1
        elif number in self._resent:
            findings.resent += 1
        else:
            findings.doubled += 1
