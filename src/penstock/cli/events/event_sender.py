"""How commands publish: batch by batch in order, patient with a busy service, at a pace.

One batch is on its way while the next is filled: the order of the input is the order in each
partition, whatever is refused and sent again.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from penstock.cli.progress_bar import ProgressBar
from penstock.client.errors import ClientError, ClientThrottled, ClientTooLarge
from penstock.client.retry import RetryPolicy
from penstock.model.partitioner import partition_for_key

if TYPE_CHECKING:
    from penstock.cli.sections import EventCopy
    from penstock.client import EventData, EventDataBatch, EventHubProducerClient

T = TypeVar("T")

BATCH_EVENTS = 5000
_BATCHES_A_SECOND = 20  # at a --rate, so that it looks like one
_PAUSES = RetryPolicy(backoff_s=0.5, backoff_max_s=4.0)
_RATE = re.compile(r"([0-9]+(?:\.[0-9]+)?)(?:/(s|sec|second|m|min|minute|h|hour))?")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}

RateOption = Annotated[
    str | None, typer.Option("--rate", metavar="N/s", help="1000/s, 60/min [default: most]")
]
BatchOption = Annotated[
    int, typer.Option("--batch", min=1, max=60_000, help="At most so many events in a publication")
]
PatienceOption = Annotated[
    str,
    typer.Option(
        "--patience",
        metavar="TIME",
        help="Try again for so long when the service is busy or away, then give up",
    ),
]
QuietOption = Annotated[
    bool, typer.Option("--quiet", "-q", help="No bar, and no summary at the end")
]


def parse_rate(text: str | None) -> float | None:
    """Events a second. Raises typer.BadParameter."""
    if text is None:
        return None
    found = _RATE.fullmatch(text.strip())
    if found is None or float(found[1]) <= 0:
        raise typer.BadParameter(f"'{text}' is no rate: 1000/s or 60/min are.", param_hint="--rate")
    return float(found[1]) / _SECONDS[(found[2] or "s")[0]]


class PublishRate:
    """Lets so many events through in a second; None lets all."""

    def __init__(self, rate: float | None) -> None:
        self._rate = rate
        self._due_s: float | None = None

    def batch_events(self, most: int) -> int:
        if self._rate is None:
            return most
        return max(1, min(most, int(self._rate / _BATCHES_A_SECOND)))

    async def wait(self, events: int) -> None:
        if self._rate is None:
            return
        now = asyncio.get_running_loop().time()
        due = now if self._due_s is None else max(self._due_s, now - 1.0)  # late: catch up a little
        self._due_s = due + events / self._rate
        if due > now:
            await asyncio.sleep(due - now)


class EventSender:
    """Sends batches one after the other; counts what is stored."""

    def __init__(
        self,
        producer: EventHubProducerClient,
        counter: ProgressBar,
        *,
        patience_s: float,
        pace: PublishRate | None = None,
        on_retry: Callable[[EventDataBatch], None] | None = None,
    ) -> None:
        self._producer = producer
        self._counter = counter
        self._patience_s = patience_s
        self._pace = pace or PublishRate(None)
        self._on_retry = on_retry
        self._sending: asyncio.Task[None] | None = None

    async def create_batch(
        self, *, partition_id: str | None = None, partition_key: str | None = None
    ) -> EventDataBatch:
        async def create() -> EventDataBatch:
            return await self._producer.create_batch(
                partition_id=partition_id, partition_key=partition_key
            )

        return await self._patiently(create)

    async def begin(self, batch: EventDataBatch, size: int) -> None:
        """Send it when the one before is stored. `size` is that of its bodies."""
        await self.finish()
        await self._pace.wait(len(batch))
        self._sending = asyncio.create_task(self.send(batch, size))

    async def finish(self) -> None:
        """Until what was begun is stored. Raises what became of it."""
        sending, self._sending = self._sending, None
        if sending is not None:
            try:
                await sending
            except asyncio.CancelledError:
                sending.cancel()
                raise

    async def send(self, batch: EventDataBatch, size: int) -> None:
        async def once() -> None:
            await self._producer.send_batch(batch)

        await self._patiently(once, batch)
        self._counter.add(len(batch), size)

    async def _patiently(
        self, act: Callable[[], Awaitable[T]], batch: EventDataBatch | None = None
    ) -> T:
        """Again and again until patience ends, or what failed would fail for ever."""
        loop = asyncio.get_running_loop()
        first_s: float | None = None
        tries = 0
        while True:
            try:
                done = await act()
            except ClientError as error:
                tries += 1
                now = loop.time()
                first_s = now if first_s is None else first_s
                pause_s = _PAUSES.pause_s(tries, error, random.random())  # noqa: S311  # jitter
                if error.is_final or now + pause_s - first_s > self._patience_s:
                    raise
                if batch is not None and self._on_retry is not None:
                    self._on_retry(batch)
                self._counter.note(_why(error, pause_s))
                await asyncio.sleep(pause_s)
            else:
                if tries:
                    self._counter.note("")
                return done


def _why(error: ClientError, pause_s: float) -> str:
    if isinstance(error, ClientThrottled):
        return f"the service is busy, again in {pause_s:.0f} s"
    return f"{error} Again in {pause_s:.1f} s."


def event_too_large(what: str, size: int, batch: EventDataBatch) -> ClientTooLarge:
    """Of an event that no batch can hold."""
    return ClientTooLarge(
        f"{what} is larger than the service takes at once: it has {size:,} bytes or more, and with "
        f"what belongs to it {batch.max_size_in_bytes:,} are allowed."
    )


class PartitionRouter:
    """Sends copies of events: keys decide the partition, as the service's own hash does; without
    one it is the partition where the event was, or the one that is named."""

    def __init__(
        self,
        publisher: EventSender,
        partition_ids: list[str],
        *,
        only: str | None = None,
        batch_events: int = BATCH_EVENTS,
    ) -> None:
        self._publisher = publisher
        self._ids = partition_ids
        self._known = frozenset(partition_ids)
        self._only = only
        self._batch_events = batch_events

    async def send(self, events: Iterable[EventCopy]) -> None:
        """All of them; those of one partition in their order."""
        lanes: dict[str | None, list[EventCopy]] = {}
        for event in events:
            lanes.setdefault(self.target(event), []).append(event)
        for target, lane in lanes.items():
            await self._send_lane(target, lane)
        await self._publisher.finish()

    def target(self, event: EventCopy) -> str | None:
        if self._only is not None:
            return self._only
        if event.partition_key is not None:
            return self._ids[partition_for_key(event.partition_key, len(self._ids))]
        if event.partition in self._known or event.partition is None:
            return event.partition
        if event.partition.isdigit():
            return self._ids[int(event.partition) % len(self._ids)]
        return None

    async def _send_lane(self, target: str | None, events: list[EventCopy]) -> None:
        batch = await self._publisher.create_batch(partition_id=target)
        size = 0
        for event in events:
            if len(batch) >= self._batch_events or not batch.try_add(event):
                if len(batch) == 0:
                    raise event_too_large("An event", len(event.body), batch)
                await self._publisher.begin(batch, size)
                batch, size = await self._publisher.create_batch(partition_id=target), 0
                _add(batch, event)
            size += len(event.body)
        await self._publisher.begin(batch, size)


def _add(batch: EventDataBatch, event: EventData) -> None:
    if not batch.try_add(event):
        raise event_too_large("An event", len(event.body), batch)
