"""Reads events for the portal: a page of events, a search, a live tail.

The portal reads over AMQP, in a consumer group that has no exclusive reader. Every wait has a
limit, and so have the events that a stream holds in memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from penstock.client import (
    ClientDenied,
    EventHubConsumerClient,
    EventHubProducerClient,
    EventPosition,
    RetryPolicy,
)
from penstock.formats.event_view import EventView
from penstock.formats.positions import StartKind, StartPosition
from penstock.formats.quantities import EPOCH, MILLISECOND
from penstock.management.client import ManagementClient
from penstock.model.errors import ArgumentError
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


Client = TypeVar("Client", EventHubConsumerClient, EventHubProducerClient)
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
        self._strings: dict[str, str] = {}  # connection strings by namespace
        self._streams = asyncio.Semaphore(STREAMS_MAX)

    async def page(self, source: EventSource, query: EventQuery, count: int) -> EventPage:
        """At most `count` events, ordered by time. It does not wait for new events."""
        async with self._consumer(source) as consumer:
            pages = await asyncio.gather(
                *(
                    _read_page(consumer, partition, query, count, source.mask)
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
        async with contextlib.aclosing(self.stream(source, query, is_match)) as steps:
            async for step in steps:
                events += step.events
        return sorted(events, key=_by_time)[:MATCHES_MAX]

    async def stream(
        self, source: EventSource, query: EventQuery | None, is_match: EventTest | None
    ) -> AsyncGenerator[SearchStep, None]:
        """Matches as they are found, at least one step per second.

        A search ends at the end that the partitions have now, or after `MATCHES_MAX`. Without a
        query it is a tail of new events, which has no end.
        """
        if self._streams.locked():
            raise ArgumentError(f"{STREAMS_MAX} searches and tails are running: stop one first.")
        async with (
            self._streams,
            self._consumer(source) as consumer,
            _read_all(consumer, source, query) as queue,
        ):
            running, scanned, matches = len(source.partitions), 0, 0
            while running:
                try:
                    async with asyncio.timeout(1.0):
                        received = await queue.get()
                except TimeoutError:
                    yield SearchStep([], scanned)
                    continue
                if isinstance(received, Exception):
                    raise received
                if not received:
                    running -= 1
                scanned += len(received)
                events = [event for event in received if is_match is None or is_match(event)]
                matches += len(events)
                yield SearchStep(events[:MATCHES_MAX], scanned)
                if query is not None and matches >= MATCHES_MAX:
                    break
            yield SearchStep([], scanned, is_over=True)

    def producer(
        self, namespace: str, hub: str
    ) -> contextlib.AbstractAsyncContextManager[EventHubProducerClient]:
        return self._client(EventHubProducerClient, namespace, hub)

    @contextlib.asynccontextmanager
    async def _consumer(self, source: EventSource) -> AsyncIterator[EventHubConsumerClient]:
        place = (source.namespace, source.hub)
        group = await self._choose_group(*place)
        async with self._client(EventHubConsumerClient, *place, group) as consumer:
            yield consumer

    @contextlib.asynccontextmanager
    async def _client(
        self, client_class: type[Client], namespace: str, hub: str, *arguments: str
    ) -> AsyncIterator[Client]:
        if namespace not in self._strings:
            self._strings[namespace] = await self._backend.root_connection_string(namespace)
        try:
            async with client_class(
                self._strings[namespace],
                *arguments,
                eventhub_name=hub,
                ca_file=self._ca_file,
                timeout_s=_TIMEOUT_S,
                retry=_RETRY,
            ) as client:
                yield client
        except ClientDenied:
            self._strings.pop(namespace, None)  # the key was replaced
            raise

    async def _choose_group(self, namespace: str, hub: str) -> str:
        """A group without an exclusive reader that accepts one more reader.

        `portal` comes first, then `$Default`, then any other. Raises ArgumentError.
        """
        rows = await self._backend.read(ManagementClient.lag, namespace, hub)
        full = [row for row in rows if row["epoch"] is not None or row["readers"] >= _READERS_MAX]
        busy = {row["group"] for row in full}
        usable = [row["group"] for row in rows if row["group"] not in busy]
        for group in ("portal", "$Default", *usable):
            if group in usable:
                return str(group)
        raise ArgumentError(
            "Every consumer group of this event hub has an exclusive reader or five readers. "
            "Create a consumer group 'portal' to see events."
        )


class _PartitionRange(NamedTuple):
    """The range of a query in a partition: it starts at `position` (None if it is empty) and ends
    with the sequence number `last`. `begins` to `ends` is what is stored."""

    position: EventPosition | None
    last: int
    begins: int
    ends: int


_NEW_EVENTS = _PartitionRange(EventPosition.latest(), sys.maxsize, 0, 0)


class _PartitionPage(NamedTuple):
    partition: str
    events: list[EventView]
    range: _PartitionRange


async def _find_range(
    consumer: EventHubConsumerClient, partition: str, query: EventQuery
) -> _PartitionRange:
    state = await consumer.get_partition_properties(partition)
    if state["is_empty"]:
        return _PartitionRange(None, -1, 0, -1)
    begins, ends = state["beginning_sequence_number"], state["last_enqueued_sequence_number"]
    last, until_ms = min(ends, query.last_of(partition)), query.until_ms
    if until_ms is not None and until_ms < (state["last_enqueued_time_utc"] - EPOCH) // MILLISECOND:
        # The service finds the first event that was stored later.
        later = EventPosition.from_enqueued_ms(until_ms)
        async with consumer.open_partition(partition, later, prefetch=1) as reader:
            numbers = (await reader.receive_columns(_WAIT_S)).sequence_numbers
        last = min(last, numbers[0] - 1) if numbers else last
    is_empty = last < begins or not query.has_events(state)
    position = None if is_empty else query.position(partition, last=last)
    return _PartitionRange(position, last, begins, ends)


async def _read_range(
    consumer: EventHubConsumerClient,
    partition: str,
    events_range: _PartitionRange,
    mask: FieldMask | None,
    prefetch: int = _PREFETCH,
) -> AsyncGenerator[list[EventView], None]:
    """The events of the range as they arrive, masked before any other code sees them."""
    position, last = events_range.position, events_range.last
    if position is None:
        return
    async with consumer.open_partition(partition, position, prefetch=prefetch) as reader:
        while True:
            columns = await reader.receive_columns(_WAIT_S)
            if mask is not None:
                mask.apply(columns)
            received = [EventView(columns, partition, row) for row in range(len(columns.bodies))]
            events = [event for event in received if event.sequence_number <= last]
            if events:
                yield events
            is_over = not received or received[-1].sequence_number >= last
            if is_over and events_range is not _NEW_EVENTS:
                return


async def _read_page(
    consumer: EventHubConsumerClient,
    partition: str,
    query: EventQuery,
    count: int,
    mask: FieldMask | None,
) -> _PartitionPage:
    """The first `count` events of the query in the partition."""
    events_range = await _find_range(consumer, partition, query)
    events: list[EventView] = []
    reading = _read_range(consumer, partition, events_range, mask, min(count, _PREFETCH))
    async with contextlib.aclosing(reading) as batches:
        async for batch in batches:
            events += batch
            if len(events) >= count:
                break
    return _PartitionPage(partition, events[:count], events_range)


@contextlib.asynccontextmanager
async def _read_all(
    consumer: EventHubConsumerClient, source: EventSource, query: EventQuery | None
) -> AsyncIterator[asyncio.Queue[list[EventView] | Exception]]:
    """A queue of the events of all partitions. One task reads each partition; it ends with an empty
    list, or with its error."""
    queue: asyncio.Queue[list[EventView] | Exception] = asyncio.Queue(_QUEUE_MAX)

    async def read(partition: str) -> None:
        try:
            events_range = _NEW_EVENTS
            if query is not None:
                events_range = await _find_range(consumer, partition, query)
            reading = _read_range(consumer, partition, events_range, source.mask)
            async with contextlib.aclosing(reading) as batches:
                async for events in batches:
                    await queue.put(events)
            await queue.put([])
        except Exception as error:  # noqa: BLE001  # raised by the reader of the queue
            await queue.put(error)

    tasks = [asyncio.create_task(read(partition)) for partition in source.partitions]
    try:
        yield queue
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


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
    has_older = has_newer = False
    for partition, read, (_, last, begins, ends) in pages:
        numbers = shown.get(partition)
        first = read[0].sequence_number if read else last + 1
        low = numbers[0] if numbers else last + 1 if backwards else first
        high = last if backwards else numbers[-1] if numbers else first - 1
        older[partition], newer[partition] = low, high
        has_older = has_older or low > begins
        has_newer = has_newer or high < ends
    return EventPage(events, older if has_older else {}, newer if has_newer else {})
