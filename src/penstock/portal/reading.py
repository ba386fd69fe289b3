"""Events, read in a visitor's place: a page of them, a search, a live tail.

Reads go by AMQP like everybody's, as the consumer group that disturbs nobody: one without an
exclusive reader. Nothing here waits for ever, and what is kept of a stream is bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from datetime import UTC, datetime

import msgspec

from penstock.client import (
    ClientDenied,
    EventData,
    EventHubConsumerClient,
    EventHubProducerClient,
    EventPosition,
    RetryPolicy,
)
from penstock.model.errors import ArgumentError, PenstockError
from penstock.portal.backend import Backend
from penstock.portal.finding import Wanted

COUNT_MAX = 1000
STREAMS_MAX = 24  # at once, of all visitors
MATCHES_MAX = 500
_READERS_MAX = 5  # of a partition in one group, without an epoch: the service's own limit
_TIMEOUT_S = 15.0
_WAIT_S = 5.0
_PREFETCH = 300
_QUEUE_MAX = 64
_RETRY = RetryPolicy(retry_total=1, backoff_s=0.2)


class Row(msgspec.Struct, frozen=True):
    partition: str
    event: EventData


class Found(msgspec.Struct, frozen=True):
    """A step of a search or a tail."""

    rows: list[Row]
    scanned: int
    is_over: bool = False


class Start(msgspec.Struct, frozen=True):
    """Where to begin: earliest, latest, last (so many before the end), sequence, offset, time."""

    kind: str
    value: str = ""

    def position(self, *, last_sequence: int) -> EventPosition:
        """Of a partition whose newest event has that number."""
        match self.kind:
            case "latest":
                return EventPosition.latest()
            case "last":
                first = max(0, last_sequence + 1 - int(self.value))
                return EventPosition.from_sequence_number(first, inclusive=True)
            case "sequence":
                return EventPosition.from_sequence_number(int(self.value), inclusive=True)
            case "offset":
                return EventPosition.from_offset(self.value, inclusive=True)
            case "time":
                when = datetime.fromisoformat(self.value)
                when = when if when.tzinfo else when.replace(tzinfo=UTC)
                # The filter is "after": a moment earlier makes it "at or after".
                stamp = when.timestamp() - 0.001
                return EventPosition.from_enqueued_time(datetime.fromtimestamp(stamp, UTC))
            case _:
                return EventPosition.earliest()


def parse_start(kind: str, at: str, *, count: int) -> Start:
    """As addresses and forms say it: `earliest`, `latest` (the last ones), `sequence`, `offset`,
    `time` with a value, or the value alone: 42, -100, 2026-01-31T12:00. ArgumentError."""
    kind, at = kind.strip() or "latest", at.strip()
    if kind in ("earliest", "start"):
        return Start("earliest")
    if kind in ("latest", "end"):
        return Start("last", str(count))
    if kind not in ("sequence", "offset", "time"):
        kind, at = _guessed(kind), kind
    if kind == "last":
        return Start("last", str(min(COUNT_MAX, int(at.removeprefix("-")))))
    if kind == "sequence" and not (at.isascii() and at.isdigit() and len(at) < 20):
        raise ArgumentError(f"'{at[:40]}' is no sequence number: a whole number from 0 on is.")
    if kind == "offset" and (not at or len(at) > 64):
        raise ArgumentError("An offset is given as the events show it.")
    if kind == "time":
        try:
            datetime.fromisoformat(at)
        except ValueError:
            raise ArgumentError(
                f"'{at[:40]}' is no time: write it as 2026-01-31T12:00:00 (UTC)."
            ) from None
    return Start(kind, at)


def _guessed(text: str) -> str:
    number = text.removeprefix("-")
    if number.isascii() and number.isdigit() and len(number) < 19:
        return "last" if text.startswith("-") else "sequence"
    return "time"


class Events:
    """Clients for events, made when they are needed, by the namespace's own root policy."""

    def __init__(self, backend: Backend, ca_file: str | None) -> None:
        self._backend = backend
        self._ca_file = ca_file
        self._strings: dict[str, str] = {}
        self._streams = asyncio.Semaphore(STREAMS_MAX)

    async def page(
        self, namespace: str, hub: str, partitions: Sequence[str], start: Start, count: int
    ) -> list[Row]:
        """At most `count` events, those of several partitions by time. Never waits for events
        that are not there yet."""
        rows: list[Row] = []
        async with self._consumer(namespace, hub) as consumer:
            found = await asyncio.gather(
                *(_some(consumer, partition, start, count) for partition in partitions)
            )
        for partition, events in zip(partitions, found, strict=True):
            rows += [Row(partition, event) for event in events]
        rows.sort(key=lambda row: (row.event.enqueued_time or _NEVER, row.partition))
        return rows[-count:] if start.kind == "last" else rows[:count]

    async def event(self, namespace: str, hub: str, partition: str, number: int) -> Row | None:
        start = Start("sequence", str(number))
        for row in await self.page(namespace, hub, [partition], start, 1):
            if row.event.sequence_number == number:
                return row
        return None

    async def stream(
        self,
        namespace: str,
        hub: str,
        partitions: Sequence[str],
        start: Start,
        wanted: Wanted | None,
        *,
        follow: bool,
    ) -> AsyncGenerator[Found, None]:
        """Matches as they are found, and now and then only how many were looked at. Without
        `follow` it is over at what was the end when it began, or after `MATCHES_MAX`."""
        if self._streams.locked():
            raise ArgumentError(f"{STREAMS_MAX} searches and tails run already: stop one first.")
        async with self._streams, self._consumer(namespace, hub) as consumer:
            queue: asyncio.Queue[tuple[str, list[EventData]] | None] = asyncio.Queue(_QUEUE_MAX)
            async with _Readers(consumer, partitions, start, queue, follow=follow) as readers:
                scanned = matches = 0
                while readers.running or not queue.empty():
                    try:
                        got = await asyncio.wait_for(queue.get(), 1.0)
                    except TimeoutError:
                        yield Found([], scanned)
                        continue
                    if got is None:
                        readers.ended()
                        continue
                    partition, events = got
                    scanned += len(events)
                    rows = [
                        Row(partition, event)
                        for event in events
                        if wanted is None or wanted(partition, event)
                    ]
                    matches += len(rows)
                    yield Found(rows[:MATCHES_MAX], scanned)
                    if not follow and matches >= MATCHES_MAX:
                        break
                yield Found([], scanned, is_over=True)

    @contextlib.asynccontextmanager
    async def producer(self, namespace: str, hub: str) -> AsyncIterator[EventHubProducerClient]:
        async with EventHubProducerClient(
            await self._string(namespace),
            eventhub_name=hub,
            ca_file=self._ca_file,
            timeout_s=_TIMEOUT_S,
            retry=_RETRY,
        ) as producer:
            try:
                yield producer
            except ClientDenied:
                self._strings.pop(namespace, None)  # the key was replaced
                raise

    @contextlib.asynccontextmanager
    async def _consumer(self, namespace: str, hub: str) -> AsyncIterator[EventHubConsumerClient]:
        async with EventHubConsumerClient(
            await self._string(namespace),
            await self._quiet_group(namespace, hub),
            eventhub_name=hub,
            ca_file=self._ca_file,
            timeout_s=_TIMEOUT_S,
            retry=_RETRY,
        ) as consumer:
            try:
                yield consumer
            except ClientDenied:
                self._strings.pop(namespace, None)
                raise

    async def connection_string(self, namespace: str) -> str:
        return await self._string(namespace)

    async def group(self, namespace: str, hub: str) -> str:
        return await self._quiet_group(namespace, hub)

    async def _string(self, namespace: str) -> str:
        if namespace not in self._strings:
            self._strings[namespace] = await self._backend.root_connection_string(namespace)
        return self._strings[namespace]

    async def _quiet_group(self, namespace: str, hub: str) -> str:
        """One that has no exclusive reader, and room: `portal` if there is one, else `$Default`,
        else any. Where all are taken an operator is asked to make one."""
        rows = await self._backend.lag(namespace, hub)
        groups: dict[str, bool] = {}
        for row in rows:
            free = row["epoch"] is None and row["readers"] < _READERS_MAX
            groups[row["group"]] = groups.get(row["group"], True) and free
        quiet = [group for group, free in groups.items() if free]
        for favourite in ("portal", "$Default"):
            if favourite in quiet:
                return favourite
        if not quiet:
            raise ArgumentError(
                "Every consumer group of this event hub has an exclusive reader, beside which "
                "nobody may read. Create a consumer group 'portal', and events are shown by it."
            )
        return quiet[0]


_NEVER = datetime(1, 1, 1, tzinfo=UTC)


async def _some(
    consumer: EventHubConsumerClient, partition: str, start: Start, count: int
) -> list[EventData]:
    known = await consumer.get_partition_properties(partition)
    last = known["last_enqueued_sequence_number"]
    if known["is_empty"] or (start.kind == "sequence" and int(start.value) > last):
        return []
    events: list[EventData] = []
    position = start.position(last_sequence=last)
    async with consumer.open_partition(
        partition, position, prefetch=min(count, _PREFETCH)
    ) as reader:
        while len(events) < count:
            wait_s = _WAIT_S if not events else 1.0
            got = await reader.receive_batch(min(count - len(events), _PREFETCH), wait_s)
            events += got
            if not got or (got[-1].sequence_number or 0) >= last:
                break
    return events


class _Readers:
    """A task for each partition, which puts what it reads into the queue and None at its end."""

    def __init__(
        self,
        consumer: EventHubConsumerClient,
        partitions: Sequence[str],
        start: Start,
        queue: asyncio.Queue[tuple[str, list[EventData]] | None],
        *,
        follow: bool,
    ) -> None:
        self._consumer = consumer
        self._partitions = partitions
        self._start = start
        self._queue = queue
        self._follow = follow
        self._tasks: list[asyncio.Task[None]] = []
        self._error: PenstockError | None = None
        self.running = len(partitions)

    async def __aenter__(self) -> _Readers:
        self._tasks = [asyncio.create_task(self._read(each)) for each in self._partitions]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def ended(self) -> None:
        """One reader is done. Raises what ended it, if that was no end of the log."""
        self.running -= 1
        if self._error is not None:
            raise self._error

    async def _read(self, partition: str) -> None:
        try:
            await self._forward(partition)
        except PenstockError as error:
            self._error = error
        finally:
            if not asyncio.current_task().cancelling():  # type: ignore[union-attr]
                await self._queue.put(None)

    async def _forward(self, partition: str) -> None:
        known = await self._consumer.get_partition_properties(partition)
        last = known["last_enqueued_sequence_number"]
        begins = self._start.position(last_sequence=last)
        if not self._follow and known["is_empty"]:
            return
        if not self._follow and self._start.kind == "sequence" and int(self._start.value) > last:
            return
        async with self._consumer.open_partition(partition, begins, prefetch=_PREFETCH) as reader:
            while True:
                events = await reader.receive_batch(_PREFETCH, _WAIT_S)
                if not self._follow:
                    events = [e for e in events if (e.sequence_number or 0) <= last]
                    if not events:
                        return
                if events:
                    await self._queue.put((partition, events))
                if not self._follow and (events[-1].sequence_number or 0) >= last:
                    return
