"""Reads events for the portal: a page of events, a search, a live tail.

The portal reads over AMQP, in a consumer group that has no exclusive reader. Every wait has a
limit, and so have the events that a stream holds in memory.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from penstock.client import (
    ClientDenied,
    EventHubConsumerClient,
    EventHubProducerClient,
    EventPosition,
    PartitionProperties,
    PartitionReceiver,
    RetryPolicy,
)
from penstock.formats.event_view import EventView
from penstock.formats.positions import StartKind, StartPosition
from penstock.formats.quantities import EPOCH, MILLISECOND
from penstock.model.errors import ArgumentError, PenstockError
from penstock.portal.event_query import EventQuery
from penstock.portal.field_mask import FieldMask
from penstock.portal.service_client import PortalServiceClient

STREAMS_MAX = 24  # searches and tails of all visitors
MATCHES_MAX = 500
_READERS_MAX = 5  # readers of a partition in one group, without an epoch
_TIMEOUT_S = 15.0
_WAIT_S = 5.0
_PREFETCH = 300
_QUEUE_MAX = 64
_RETRY = RetryPolicy(retry_total=1, backoff_s=0.2)


EventTest = Callable[[EventView], bool]


class EventSource(NamedTuple):
    """Which partitions of a hub are read, and what their reader must not see."""

    namespace: str
    hub: str
    partitions: Sequence[str]
    mask: FieldMask | None


class SearchStep(msgspec.Struct, frozen=True):
    """Matches of a search or a tail, and the number of events that were read so far."""

    events: list[EventView]
    scanned: int
    is_over: bool = False


class EventPage(msgspec.Struct, frozen=True):
    """Events, and where the pages before and after them are.

    `older` has for each partition the sequence number to stay below, `newer` the one to come
    after; empty if there is no such page.
    """

    events: list[EventView]
    older: dict[str, int]
    newer: dict[str, int]


class EventBrowser:
    """Opens clients with the namespace's root policy for each page, search and tail."""

    def __init__(self, backend: PortalServiceClient, ca_file: str | None) -> None:
        self._backend = backend
        self._ca_file = ca_file
        self._strings: dict[str, str] = {}
        self._streams = asyncio.Semaphore(STREAMS_MAX)

    async def page(self, source: EventSource, query: EventQuery, count: int) -> EventPage:
        """At most `count` events, ordered by time. It does not wait for new events."""
        async with self._consumer(source) as consumer:
            pages = await asyncio.gather(
                *(
                    _read_partition(consumer, partition, query, count, source.mask)
                    for partition in source.partitions
                )
            )
        events = sorted((event for page in pages for event in page.events), key=_by_time)
        shown = events[-count:] if query.is_backwards else events[:count]
        return _build_page(shown, pages, backwards=query.is_backwards)

    async def event(self, source: EventSource, number: int) -> EventView | None:
        """The event with this sequence number in the only partition of `source`."""
        query = EventQuery(StartPosition(StartKind.SEQUENCE_NUMBER, number))
        page = await self.page(source, query, 1)
        return next((event for event in page.events if event.sequence_number == number), None)

    async def search(
        self, source: EventSource, query: EventQuery, is_match: EventTest
    ) -> list[EventView]:
        """All matches that a search shows."""
        events: list[EventView] = []
        search = self.stream(source, query, is_match, follow=False)
        async with contextlib.aclosing(search) as steps:
            async for step in steps:
                events += step.events
        return sorted(events, key=_by_time)[:MATCHES_MAX]

    async def stream(
        self, source: EventSource, query: EventQuery, is_match: EventTest | None, *, follow: bool
    ) -> AsyncGenerator[SearchStep, None]:
        """Matches as they are found, at least one step per second.

        Without `follow` it ends at the end that the partitions have now, or after `MATCHES_MAX`.
        """
        if self._streams.locked():
            raise ArgumentError(f"{STREAMS_MAX} searches and tails are running: stop one first.")
        async with (
            self._streams,
            self._consumer(source) as consumer,
            _PartitionReaders(consumer, source, query, follow=follow) as readers,
        ):
            scanned = matches = 0
            while readers.is_running:
                try:
                    async with asyncio.timeout(1.0):
                        received = await readers.next_events()
                except TimeoutError:
                    yield SearchStep([], scanned)
                    continue
                scanned += len(received)
                events = [event for event in received if is_match is None or is_match(event)]
                matches += len(events)
                yield SearchStep(events[:MATCHES_MAX], scanned)
                if not follow and matches >= MATCHES_MAX:
                    break
            yield SearchStep([], scanned, is_over=True)

    @contextlib.asynccontextmanager
    async def producer(self, namespace: str, hub: str) -> AsyncIterator[EventHubProducerClient]:
        text, options = await self._connection(namespace, hub)
        with self._forget_denied(namespace):
            async with EventHubProducerClient(text, **options) as producer:
                yield producer

    @contextlib.asynccontextmanager
    async def _consumer(self, source: EventSource) -> AsyncIterator[EventHubConsumerClient]:
        text, options = await self._connection(source.namespace, source.hub)
        group = await self._choose_group(source.namespace, source.hub)
        with self._forget_denied(source.namespace):
            async with EventHubConsumerClient(text, group, **options) as consumer:
                yield consumer

    @contextlib.contextmanager
    def _forget_denied(self, namespace: str) -> Iterator[None]:
        try:
            yield
        except ClientDenied:
            self._strings.pop(namespace, None)  # the key was replaced
            raise

    async def _connection(self, namespace: str, hub: str) -> tuple[str, dict[str, Any]]:
        """The connection string and the options of a client."""
        if namespace not in self._strings:
            self._strings[namespace] = await self._backend.root_connection_string(namespace)
        options = {"ca_file": self._ca_file, "timeout_s": _TIMEOUT_S, "retry": _RETRY}
        return self._strings[namespace], options | {"eventhub_name": hub}

    async def _choose_group(self, namespace: str, hub: str) -> str:
        """A group without an exclusive reader that accepts one more reader.

        `portal` comes first, then `$Default`, then any other. Raises ArgumentError.
        """
        rows = await self._backend.lag(namespace, hub)
        groups: dict[str, bool] = {}
        for row in rows:
            free = row["epoch"] is None and row["readers"] < _READERS_MAX
            groups[row["group"]] = groups.get(row["group"], True) and free
        usable = [group for group, free in groups.items() if free]
        for preferred in ("portal", "$Default"):
            if preferred in usable:
                return preferred
        if not usable:
            raise ArgumentError(
                "Every consumer group of this event hub has an exclusive reader or five readers. "
                "Create a consumer group 'portal' to see events."
            )
        return usable[0]


class _PartitionPage(msgspec.Struct, frozen=True):
    """Events of one partition. `first` to `last` is the range of the query in it, `begins` to
    `ends` what is stored."""

    partition: str
    events: list[EventView]
    first: int
    last: int
    begins: int
    ends: int


async def _read_partition(
    consumer: EventHubConsumerClient,
    partition: str,
    query: EventQuery,
    count: int,
    mask: FieldMask | None,
) -> _PartitionPage:
    state = await consumer.get_partition_properties(partition)
    begins, ends = state["beginning_sequence_number"], state["last_enqueued_sequence_number"]
    if state["is_empty"]:
        return _PartitionPage(partition, [], 0, -1, 0, -1)
    last = await _find_last(consumer, partition, query, state)
    position = None if last < begins else query.position(partition, last=last)
    if position is None or not query.has_events(state):
        return _PartitionPage(partition, [], last + 1, last, begins, ends)
    events: list[EventView] = []
    async with consumer.open_partition(
        partition, position, prefetch=min(count, _PREFETCH)
    ) as reader:
        while len(events) < count:
            received = await _receive(reader, partition, mask, _WAIT_S if not events else 1.0)
            events += [event for event in received if event.sequence_number <= last]
            if not received or received[-1].sequence_number >= last:
                break
    del events[count:]
    first = events[0].sequence_number if events else last + 1
    return _PartitionPage(partition, events, first, last, begins, ends)


async def _receive(
    reader: PartitionReceiver, partition: str, mask: FieldMask | None, wait_s: float
) -> list[EventView]:
    """The events that arrive, masked before any other code sees them."""
    columns = await reader.receive_columns(wait_s)
    if mask is not None:
        mask.apply(columns)
    return [EventView(columns, partition, row) for row in range(len(columns.bodies))]


async def _find_last(
    consumer: EventHubConsumerClient, partition: str, query: EventQuery, state: PartitionProperties
) -> int:
    """The last sequence number of the query in the partition.

    If the query ends at a time, the service finds the first event that was stored later.
    """
    ends, until_ms = state["last_enqueued_sequence_number"], query.until_ms
    last = query.last_of(partition)
    if last is not None:
        ends = min(ends, last)
    if until_ms is None or until_ms >= (state["last_enqueued_time_utc"] - EPOCH) // MILLISECOND:
        return ends
    later = EventPosition.from_enqueued_ms(until_ms)
    async with consumer.open_partition(partition, later, prefetch=1) as reader:
        columns = await reader.receive_columns(_WAIT_S)
    numbers = columns.sequence_numbers
    return min(ends, numbers[0] - 1) if numbers else ends


def _by_time(event: EventView) -> tuple[int, str]:
    return event.enqueued_ms, event.partition


def _build_page(
    events: list[EventView], pages: Sequence[_PartitionPage], *, backwards: bool
) -> EventPage:
    """The page with the way to older and newer events.

    If a partition has no event on the page, its range is after the page, or before it.
    """
    shown: dict[str, list[int]] = {}
    for event in events:
        shown.setdefault(event.partition, []).append(event.sequence_number)
    older, newer = {}, {}
    for page in pages:
        numbers = shown.get(page.partition)
        low = numbers[0] if numbers else page.last + 1 if backwards else page.first
        high = page.last if backwards else numbers[-1] if numbers else page.first - 1
        older[page.partition], newer[page.partition] = low, high
    has_older = any(older[page.partition] > page.begins for page in pages)
    has_newer = any(newer[page.partition] < page.ends for page in pages)
    return EventPage(events, older if has_older else {}, newer if has_newer else {})


class _PartitionReaders:
    """One task per partition reads events into a queue, and None at its end."""

    def __init__(
        self,
        consumer: EventHubConsumerClient,
        source: EventSource,
        query: EventQuery,
        *,
        follow: bool,
    ) -> None:
        self._consumer = consumer
        self._source = source
        self._query = query
        self._follow = follow
        self._queue: asyncio.Queue[list[EventView] | None] = asyncio.Queue(_QUEUE_MAX)
        self._tasks: list[asyncio.Task[None]] = []
        self._error: PenstockError | None = None
        self._running = len(source.partitions)

    async def __aenter__(self) -> _PartitionReaders:
        self._tasks = [asyncio.create_task(self._read(name)) for name in self._source.partitions]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def is_running(self) -> bool:
        return self._running > 0 or not self._queue.empty()

    async def next_events(self) -> list[EventView]:
        """The next events; none when a reader has ended. Raises the error that ended it."""
        events = await self._queue.get()
        if events is not None:
            return events
        self._running -= 1
        if self._error is not None:
            raise self._error
        return []

    async def _read(self, partition: str) -> None:
        try:
            await self._forward(partition)
        except PenstockError as error:
            self._error = error
        finally:
            if not asyncio.current_task().cancelling():  # type: ignore[union-attr]
                await self._queue.put(None)

    async def _forward(self, partition: str) -> None:
        """Without `follow`: up to the present end, or the end of the query."""
        state = await self._consumer.get_partition_properties(partition)
        last = state["last_enqueued_sequence_number"]
        if not self._follow:
            if state["is_empty"] or not self._query.has_events(state):
                return
            last = await _find_last(self._consumer, partition, self._query, state)
            if last < state["beginning_sequence_number"]:
                return
        position = self._query.position(partition, last=last)
        if position is None:
            return
        async with self._consumer.open_partition(partition, position, prefetch=_PREFETCH) as reader:
            while True:
                events = await _receive(reader, partition, self._source.mask, _WAIT_S)
                if not self._follow:
                    events = [event for event in events if event.sequence_number <= last]
                    if not events:
                        return
                if events:
                    await self._queue.put(events)
                if not self._follow and events[-1].sequence_number >= last:
                    return
