"""The buffered producer: events are taken at once and published in the background, in order."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Self, TypeAlias

from penstock.client.batch import EventDataBatch, check_route
from penstock.client.connection import Transport
from penstock.client.errors import ClientClosed, ClientTimedOut
from penstock.client.event_data import EventData
from penstock.client.producer import EventHubProducerClient
from penstock.client.properties import EventHubProperties, PartitionProperties
from penstock.client.retry import RetryPolicy
from penstock.model.errors import ArgumentError, PenstockError
from penstock.model.partitioner import partition_for_key

OnSuccess: TypeAlias = Callable[[list[EventData], str], Awaitable[None] | None]
OnError: TypeAlias = Callable[[list[EventData], str, Exception], Awaitable[None] | None]
_Waiting: TypeAlias = tuple[EventData, str | None]  # with its partition key
_log = logging.getLogger(__name__)
_BUFFER_BYTES_MAX = 16 * 1024 * 1024  # of one partition, whatever events weigh
_SECTIONS_BYTES = 64  # around an event without properties: enough to know when a batch is full


class EventHubBufferedProducerClient:
    """Events of one partition, and so of one key, are published in the order in which they came.

    `on_success(events, partition_id)` and `on_error(events, partition_id, error)` hear of each
    publication; they may be coroutine functions.
    """

    def __init__(
        self,
        connection_string: str,
        *,
        on_success: OnSuccess | None = None,
        on_error: OnError | None = None,
        max_wait_time_s: float = 1,
        max_buffer_length: int = 1500,
        eventhub_name: str | None = None,
        idempotent: bool = False,
        ssl_context: ssl.SSLContext | None = None,
        ca_file: str | None = None,
        retry: RetryPolicy = RetryPolicy(),  # noqa: B008  # frozen
        timeout_s: float = 60,
        transport: Transport = "amqp",
    ) -> None:
        """An event waits for others at most `max_wait_time_s`; a partition holds at most
        `max_buffer_length` events that are not published yet."""
        if max_buffer_length < 1 or max_wait_time_s < 0:
            raise ArgumentError("max_buffer_length is at least 1, max_wait_time_s at least 0.")
        self._producer = EventHubProducerClient(
            connection_string,
            eventhub_name=eventhub_name,
            idempotent=idempotent,
            ssl_context=ssl_context,
            ca_file=ca_file,
            retry=retry,
            timeout_s=timeout_s,
            transport=transport,
        )
        self.eventhub_name = self._producer.eventhub_name
        self.fully_qualified_namespace = self._producer.fully_qualified_namespace
        self._on_success = on_success
        self._on_error = on_error
        self._max_wait_time_s = max_wait_time_s
        self._max_buffer_length = max_buffer_length
        self._timeout_s = timeout_s
        self._lanes: list[_PartitionBuffer] = []
        self._by_id: dict[str, _PartitionBuffer] = {}
        self._opening = asyncio.Lock()
        self._turn = itertools.count()
        self._is_closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close(flush=error is None)

    async def enqueue_event(
        self,
        event: EventData,
        *,
        partition_id: str | None = None,
        partition_key: str | None = None,
    ) -> int:
        """How many events are in the buffers then. Waits while the partition's buffer is full, at
        most `timeout_s`."""
        lane = await self._lane(partition_id, partition_key)
        while lane.is_full:
            await self._room(lane)
        lane.add(event, partition_key)
        return self.total_buffered_event_count

    async def enqueue_events(
        self,
        events: Sequence[EventData],
        *,
        partition_id: str | None = None,
        partition_key: str | None = None,
    ) -> int:
        """The same for several, in their order and to one partition."""
        lane = await self._lane(partition_id, partition_key)
        for event in events:
            while lane.is_full:
                await self._room(lane)
            lane.add(event, partition_key)
        return self.total_buffered_event_count

    @property
    def total_buffered_event_count(self) -> int:
        return sum(lane.count for lane in self._lanes)

    async def flush(self) -> None:
        """Publish what is buffered now, and wait until each was published or has failed."""
        await asyncio.gather(*(lane.flush() for lane in self._lanes))

    async def get_eventhub_properties(self) -> EventHubProperties:
        return await self._producer.get_eventhub_properties()

    async def get_partition_ids(self) -> list[str]:
        return await self._producer.get_partition_ids()

    async def get_partition_properties(self, partition_id: str) -> PartitionProperties:
        return await self._producer.get_partition_properties(partition_id)

    async def close(self, flush: bool = True) -> None:
        """Without `flush` what is buffered is thrown away, and `on_error` hears of it."""
        self._is_closed = True
        try:
            if flush:
                await self.flush()
        finally:
            await asyncio.gather(*(lane.close() for lane in self._lanes))
            await self._producer.close()

    # --- inside ---------------------------------------------------------------------------------

    async def _lane(self, partition_id: str | None, partition_key: str | None) -> _PartitionBuffer:
        check_route(partition_id, partition_key)
        self._check_open()
        if not self._lanes:
            await self._open()
        if partition_id is not None:
            lane = self._by_id.get(partition_id)
            if lane is None:
                raise ArgumentError(
                    f"The hub has no partition {partition_id!r}: it has {', '.join(self._by_id)}."
                )
            return lane
        lanes = self._lanes
        if partition_key is not None:
            return lanes[partition_for_key(partition_key, len(lanes))]
        return lanes[next(self._turn) % len(lanes)]

    async def _open(self) -> None:
        async with self._opening:
            if self._lanes:
                return
            ids = await self._producer.get_partition_ids()
            self._check_open()
            self._lanes = [
                _PartitionBuffer(
                    self._producer,
                    each,
                    max_wait_time_s=self._max_wait_time_s,
                    max_buffer_length=self._max_buffer_length,
                    on_success=self._on_success,
                    on_error=self._on_error,
                )
                for each in ids
            ]
            self._by_id = {lane.partition_id: lane for lane in self._lanes}

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClientClosed("The client is closed.")

    async def _room(self, lane: _PartitionBuffer) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                await lane.room()
        except TimeoutError:
            raise ClientTimedOut(
                f"The buffer of partition {lane.partition_id} was full for {self._timeout_s} s."
            ) from None
        self._check_open()


class _PartitionBuffer:
    """One partition: its events in order, and the task that publishes them, a batch at a time."""

    def __init__(
        self,
        producer: EventHubProducerClient,
        partition_id: str,
        *,
        max_wait_time_s: float,
        max_buffer_length: int,
        on_success: OnSuccess | None,
        on_error: OnError | None,
    ) -> None:
        self.partition_id = partition_id
        self._producer = producer
        self._max_wait_time_s = max_wait_time_s
        self._max_buffer_length = max_buffer_length
        self._on_success = on_success
        self._on_error = on_error
        self._events: deque[_Waiting] = deque()
        self._bytes = 0
        self._batch_bytes = 2**62  # until a batch told
        self._sending = 0  # events that are no more in the deque and not yet published
        self._is_urgent = False  # flush, or full: what is there goes now
        self._added = asyncio.Event()
        self._urgent = asyncio.Event()
        self._finished = 0  # events published or failed, ever
        self._flushes: list[tuple[int, asyncio.Future[None]]] = []  # until so many are finished
        self._rooms: deque[asyncio.Future[None]] = deque()
        self._running = asyncio.get_running_loop().create_task(self._run())

    @property
    def count(self) -> int:
        return len(self._events) + self._sending

    @property
    def is_full(self) -> bool:
        return self.count >= self._max_buffer_length or self._bytes >= _BUFFER_BYTES_MAX

    def add(self, event: EventData, key: str | None) -> None:
        self._events.append((event, key))
        self._bytes += len(event.body) + _SECTIONS_BYTES
        self._added.set()
        if self._bytes >= self._batch_bytes or self.is_full:
            self._urgent.set()

    async def room(self) -> None:
        """Until a place is free, perhaps: look again."""
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._rooms.append(waiting)
        await waiting

    async def flush(self) -> None:
        """The deadlines of the sends hold: this returns when they are done."""
        if self.count:
            self._is_urgent = True
            self._urgent.set()
            flushed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._flushes.append((self._finished + self.count, flushed))
            await flushed

    async def close(self) -> None:
        self._running.cancel()
        await asyncio.wait([self._running])
        if self._events:
            rest = [event for event, _ in self._events]
            self._events.clear()
            await self._report_error(rest, ClientClosed("The client was closed without a flush."))
        self._complete_flushes(0)

    async def _run(self) -> None:
        while True:
            await self._added.wait()
            if not self._is_urgent:
                # Others may follow: a larger batch is cheaper for everybody.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._max_wait_time_s):
                        await self._urgent.wait()
            self._urgent.clear()
            while self._events:
                await self._publish()
                if not self._is_urgent and self._bytes < self._batch_bytes and not self.is_full:
                    break
            if not self._events:
                self._added.clear()
                self._is_urgent = False

    async def _publish(self) -> None:
        """One batch, or one refusal."""
        taken: list[EventData] = []
        try:
            batch = await self._producer.create_batch(partition_id=self.partition_id)
            self._batch_bytes = batch.max_size_in_bytes
            self._fill(batch, taken)
            if taken:
                await self._producer.send_batch(batch)
        except Exception as error:  # noqa: BLE001  # told; the partition's next events go on
            if not taken:
                taken = self._take_all()
            await self._report_error(taken, error)
        except asyncio.CancelledError:
            self._events.extendleft((event, None) for event in reversed(taken))
            self._sending = 0
            raise
        else:
            on_success = self._on_success
            if taken and on_success is not None:
                await _run_callback(lambda: on_success(taken, self.partition_id))
        self._complete_flushes(len(taken))

    def _fill(self, batch: EventDataBatch, taken: list[EventData]) -> None:
        """Move events into the batch. Raises for the first one when it can never be sent."""
        while self._events:
            event, key = self._events[0]
            try:
                if not batch.try_add(event, partition_key=key):
                    if not taken:
                        batch.add(event)  # which says why
                    return
            except (PenstockError, ValueError):
                if taken:
                    return  # they go first; it is looked at again
                self._move(event, taken)
                raise
            self._move(event, taken)

    def _move(self, event: EventData, taken: list[EventData]) -> None:
        self._events.popleft()
        self._bytes -= len(event.body) + _SECTIONS_BYTES
        self._sending += 1
        taken.append(event)

    def _take_all(self) -> list[EventData]:
        """No batch can be made at all: nobody of these will be sent."""
        taken: list[EventData] = []
        while self._events:
            self._move(self._events[0][0], taken)
        return taken

    async def _report_error(self, events: list[EventData], error: Exception) -> None:
        on_error = self._on_error
        if on_error is not None:
            await _run_callback(lambda: on_error(events, self.partition_id, error))

    def _complete_flushes(self, count: int) -> None:
        self._sending = max(0, self._sending - count)
        self._finished += count
        finished = self._finished if self.count else 2**62
        while self._rooms:
            waiting = self._rooms.popleft()
            if not waiting.done():
                waiting.set_result(None)
        waiting_on = self._flushes
        self._flushes = [(target, flushed) for target, flushed in waiting_on if target > finished]
        for target, flushed in waiting_on:
            if target <= finished and not flushed.done():
                flushed.set_result(None)


async def _run_callback(tell: Callable[[], Awaitable[None] | None]) -> None:
    """A callback that raises is its writer's matter: what was published stays so."""
    try:
        answer = tell()
        if answer is not None:
            await answer
    except Exception:  # noqa: BLE001  # see above
        _log.exception("A callback of the buffered producer raised.")
