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
    PartitionProperties,
    RetryPolicy,
)
from penstock.model.errors import ArgumentError, PenstockError
from penstock.portal.field_mask import FieldMask
from penstock.portal.finding import Wanted
from penstock.portal.service_client import PortalServiceClient
from penstock.portal.spans import COUNT_MAX, EventQuery

STREAMS_MAX = 24  # at once, of all visitors
MATCHES_MAX = 500
_READERS_MAX = 5  # of a partition in one group, without an epoch: the service's own limit
_TIMEOUT_S = 15.0
_WAIT_S = 5.0
_PREFETCH = 300
_QUEUE_MAX = 64
_RETRY = RetryPolicy(retry_total=1, backoff_s=0.2)


class EventRow(msgspec.Struct, frozen=True):
    partition: str
    event: EventData


class SearchResult(msgspec.Struct, frozen=True):
    """A step of a search or a tail."""

    rows: list[EventRow]
    scanned: int
    is_over: bool = False


class EventPage(msgspec.Struct, frozen=True):
    """Events, and where the ones before and after them are: for each partition the sequence
    number to stay below, and the one to come after. Empty where there are none."""

    rows: list[EventRow]
    older: dict[str, int]
    newer: dict[str, int]


class EventBrowser:
    """Clients for events, made when they are needed, by the namespace's own root policy."""

    def __init__(self, backend: PortalServiceClient, ca_file: str | None) -> None:
        self._backend = backend
        self._ca_file = ca_file
        self._strings: dict[str, str] = {}
        self._streams = asyncio.Semaphore(STREAMS_MAX)

    async def page(
        self,
        namespace: str,
        hub: str,
        partitions: Sequence[str],
        span: EventQuery,
        count: int,
        *,
        mask: FieldMask | None,
    ) -> EventPage:
        """At most `count` events, those of several partitions by time. Never waits for events
        that are not there yet."""
        async with self._consumer(namespace, hub) as consumer:
            found = await asyncio.gather(
                *(_read_some(consumer, partition, span, count) for partition in partitions)
            )
        if mask is not None:
            mask.apply(event for each in found for event in each.events)
        rows = [EventRow(each.partition, event) for each in found for event in each.events]
        rows.sort(key=_by_time)
        shown = rows[-count:] if span.is_backwards else rows[:count]
        return _build_page(shown, found, backwards=span.is_backwards)

    async def event(
        self, namespace: str, hub: str, partition: str, number: int, *, mask: FieldMask | None
    ) -> EventRow | None:
        span = EventQuery("sequence", str(number))
        for row in (await self.page(namespace, hub, [partition], span, 1, mask=mask)).rows:
            if row.event.sequence_number == number:
                return row
        return None

    async def search(
        self,
        namespace: str,
        hub: str,
        partitions: Sequence[str],
        span: EventQuery,
        wanted: Wanted | None,
        *,
        mask: FieldMask | None,
    ) -> list[EventRow]:
        """All that a search would show."""
        rows: list[EventRow] = []
        found = self.stream(namespace, hub, partitions, span, wanted, follow=False, mask=mask)
        async with contextlib.aclosing(found) as steps:
            async for step in steps:
                rows += step.rows
        rows.sort(key=_by_time)
        return rows[:MATCHES_MAX]

    async def stream(
        self,
        namespace: str,
        hub: str,
        partitions: Sequence[str],
        span: EventQuery,
        wanted: Wanted | None,
        *,
        follow: bool,
        mask: FieldMask | None,
    ) -> AsyncGenerator[SearchResult, None]:
        """Matches as they are found, and now and then only how many were looked at. Without
        `follow` it is over at what was the end when it began, or after `MATCHES_MAX`."""
        if self._streams.locked():
            raise ArgumentError(f"{STREAMS_MAX} searches and tails run already: stop one first.")
        async with self._streams, self._consumer(namespace, hub) as consumer:
            queue: asyncio.Queue[tuple[str, list[EventData]] | None] = asyncio.Queue(_QUEUE_MAX)
            async with _LiveReaders(consumer, partitions, span, queue, follow=follow) as readers:
                scanned = matches = 0
                while readers.running or not queue.empty():
                    try:
                        async with asyncio.timeout(1.0):
                            got = await queue.get()
                    except TimeoutError:
                        yield SearchResult([], scanned)
                        continue
                    if got is None:
                        readers.finish_reader()
                        continue
                    partition, events = got
                    scanned += len(events)
                    if mask is not None:
                        mask.apply(events)
                    rows = [
                        EventRow(partition, event)
                        for event in events
                        if wanted is None or wanted(partition, event)
                    ]
                    matches += len(rows)
                    yield SearchResult(rows[:MATCHES_MAX], scanned)
                    if not follow and matches >= MATCHES_MAX:
                        break
                yield SearchResult([], scanned, is_over=True)

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


class _PartitionPage(msgspec.Struct, frozen=True):
    """What one partition gave, of its events `first` to `last` that were in question; `begins` and
    `ends` are what it has."""

    partition: str
    events: list[EventData]
    first: int
    last: int
    begins: int
    ends: int


async def _read_some(
    consumer: EventHubConsumerClient, partition: str, span: EventQuery, count: int
) -> _PartitionPage:
    known = await consumer.get_partition_properties(partition)
    begins, ends = known["beginning_sequence_number"], known["last_enqueued_sequence_number"]
    if known["is_empty"]:
        return _PartitionPage(partition, [], 0, -1, 0, -1)
    last = await _last_within(consumer, partition, span, known)
    position = None if last < begins else span.position(partition, last=last, count=count)
    if position is None or not span.may_begin_before(known):
        return _PartitionPage(partition, [], last + 1, last, begins, ends)
    events: list[EventData] = []
    async with consumer.open_partition(
        partition, position, prefetch=min(count, _PREFETCH)
    ) as reader:
        while len(events) < count:
            wait_s = _WAIT_S if not events else 1.0
            got = await reader.receive_batch(min(count - len(events), _PREFETCH), wait_s)
            events += [event for event in got if (event.sequence_number or 0) <= last]
            if not got or (got[-1].sequence_number or 0) >= last:
                break
    first = (events[0].sequence_number or 0) if events else last + 1
    return _PartitionPage(partition, events, first, last, begins, ends)


async def _last_within(
    consumer: EventHubConsumerClient, partition: str, span: EventQuery, known: PartitionProperties
) -> int:
    """The last sequence number that the span takes in: where it ends by time, the one before the
    first event that was stored later, which the log knows how to find."""
    ends, until = known["last_enqueued_sequence_number"], span.until
    said = span.last_of(partition)
    if said is not None:
        ends = min(ends, said)
    if until is None or until >= known["last_enqueued_time_utc"]:
        return ends
    later = EventPosition.from_enqueued_time(until)
    async with consumer.open_partition(partition, later, prefetch=1) as reader:
        got = await reader.receive_batch(1, _WAIT_S)
    return min(ends, (got[0].sequence_number or 0) - 1) if got else ends


def _by_time(row: EventRow) -> tuple[datetime, str]:
    return row.event.enqueued_time or _NEVER, row.partition


def _build_page(
    rows: list[EventRow], found: Sequence[_PartitionPage], *, backwards: bool
) -> EventPage:
    """The page, with the way to what is before and after it. Of a partition none of whose events
    is shown, all that were in question come after the page, or before it."""
    shown: dict[str, list[int]] = {}
    for row in rows:
        shown.setdefault(row.partition, []).append(row.event.sequence_number or 0)
    older, newer = {}, {}
    for each in found:
        numbers = shown.get(each.partition)
        low = numbers[0] if numbers else each.last + 1 if backwards else each.first
        high = each.last if backwards else numbers[-1] if numbers else each.first - 1
        older[each.partition], newer[each.partition] = low, high
    begins = {each.partition: each.begins for each in found}
    ends = {each.partition: each.ends for each in found}
    return EventPage(
        rows,
        older if any(older[name] > begins[name] for name in older) else {},
        newer if any(newer[name] < ends[name] for name in newer) else {},
    )


class _LiveReaders:
    """A task for each partition, which puts what it reads into the queue and None at its end."""

    def __init__(
        self,
        consumer: EventHubConsumerClient,
        partitions: Sequence[str],
        span: EventQuery,
        queue: asyncio.Queue[tuple[str, list[EventData]] | None],
        *,
        follow: bool,
    ) -> None:
        self._consumer = consumer
        self._partitions = partitions
        self._span = span
        self._queue = queue
        self._follow = follow
        self._tasks: list[asyncio.Task[None]] = []
        self._error: PenstockError | None = None
        self.running = len(partitions)

    async def __aenter__(self) -> _LiveReaders:
        self._tasks = [asyncio.create_task(self._read(each)) for each in self._partitions]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def finish_reader(self) -> None:
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
        """Without `follow` until what was the last event, or the last of the span."""
        known = await self._consumer.get_partition_properties(partition)
        last = known["last_enqueued_sequence_number"]
        if not self._follow:
            if known["is_empty"] or not self._span.may_begin_before(known):
                return
            last = await _last_within(self._consumer, partition, self._span, known)
            if last < known["beginning_sequence_number"]:
                return
        begins = self._span.position(partition, last=last, count=COUNT_MAX)
        if begins is None:
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
