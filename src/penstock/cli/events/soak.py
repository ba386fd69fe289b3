"""`penstock soak --minutes N`: publish and read for a long time and check every event."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

import msgspec

from penstock.cli.events.event_range import (
    LATEST,
    GroupOption,
    Partitions,
    position_before_sequence,
    resolve_ranges,
    select_partitions,
)
from penstock.cli.events.event_sender import (
    EventSender,
    PublishRate,
    QuietOption,
    patience_option,
    rate_option,
)
from penstock.cli.events_options import EventsEndpoint, run, run_beside, run_together, with_events
from penstock.cli.options import option
from penstock.cli.output import TABLE, Format, print_message
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


@dataclass(frozen=True, kw_only=True)
class _SoakOptions:
    hub: Annotated[str, option("TEXT", "Event hub to publish to")] = "events"
    minutes: Annotated[float, option("N", "Length of the run", min=0.01)] = 10.0
    hours: Annotated[
        float | None, option("N", "Length of the run, instead of --minutes", min=0.01)
    ] = None
    rate: Annotated[float | None, rate_option("1000/s")] = 1000.0
    size: Annotated[int, option("N", "Minimum bytes per body", min=0, max=250_000)] = 200
    partition: Partitions = None
    group: GroupOption = "$Default"
    idempotent: Annotated[
        bool,
        option(
            "--idempotent/--no-idempotent",
            "With an idempotent producer, events that are sent again must be stored once",
        ),
    ] = True
    patience: Annotated[float, patience_option("5m")] = 300.0
    quiet: QuietOption = False
    output: Format = TABLE


@with_events
def soak(wire: EventsEndpoint, job: _SoakOptions) -> None:
    """Publish and read for a long time, and check every event.

    All partitions are used at once. Each event must be received exactly once, in order and
    unchanged, and sequence numbers must have no gaps. The service may restart during the run. The
    exit code is 1 if a check fails. Ctrl-C ends the run early with the findings so far.

    Examples:
        penstock soak --hub orders --minutes 30 --rate 500/s
    """
    with ProgressBar("Published", quiet=job.quiet) as counter:
        findings = run(_soak(wire, job, counter))
    rows = [msgspec.structs.asdict(finding) for finding in findings]
    job.output.print_rows(rows, title="Partitions")
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
    received = asyncio.Event()  # since it was cleared
    loop = asyncio.get_running_loop()
    with suppress(NotImplementedError):  # Windows
        loop.add_signal_handler(signal.SIGINT, stopping.set)
    async with (
        wire.consumer(job.hub, job.group, retry=_READ_RETRY) as consumer,
        wire.producer(job.hub, idempotent=job.idempotent) as producer,
    ):
        async with wire.consumer(job.hub, job.group) as starter:
            ids = await select_partitions(starter, job.partition)
            ranges = await resolve_ranges(starter, ids, LATEST)
        run_id = secrets.token_hex(8)
        checkers = [PartitionChecker(span.partition, run_id, job.size) for span in ranges]
        rate = None if job.rate is None else job.rate / len(ids)

        async def publish() -> None:
            timer = loop.call_later(
                job.hours * 3600 if job.hours is not None else job.minutes * 60, stopping.set
            )
            publisher = partial(_publish, producer, counter, job, stopping)
            await run_together(*(publisher(checker, PublishRate(rate)) for checker in checkers))
            timer.cancel()
            # Events that are not received in this time count as lost.
            with suppress(TimeoutError):
                async with asyncio.timeout(job.patience):
                    while not all(checker.is_complete for checker in checkers):
                        received.clear()
                        await received.wait()

        readers = (
            _read(consumer, checker, span.first, received)
            for checker, span in zip(checkers, ranges, strict=True)
        )
        await run_beside(publish(), *readers)
    return [checker.finish() for checker in checkers]


async def _publish(
    producer: EventHubProducerClient,
    counter: ProgressBar,
    job: _SoakOptions,
    stopping: asyncio.Event,
    checker: PartitionChecker,
    pace: PublishRate,
) -> None:
    sent = 0

    def on_retry(batch: EventDataBatch) -> None:
        if not job.idempotent:
            checker.count_resent(sent, len(batch))

    publisher = EventSender(producer, counter, patience_s=job.patience, on_retry=on_retry)
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


async def _read(
    consumer: EventHubConsumerClient, checker: PartitionChecker, first: int, received: asyncio.Event
) -> None:
    start = position_before_sequence(first)
    async with consumer.open_partition(checker.findings.partition, start) as reader:
        while True:
            columns = await reader.receive_columns(_WAIT_S)
            checker.check_received(columns.sequence_numbers, columns.bodies)
            received.set()


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
