"""The buffered producer: events are accepted at once and published in the background, in order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias, Unpack

from penstock.client.errors import ClientClosed, ClientTimedOut
from penstock.client.event_data import EventData, EventDataBatch, check_route
from penstock.client.hub_client import ClientOptions
from penstock.client.producer import EventHubProducerClient
from penstock.model.errors import ArgumentError, PenstockError

OnSuccess: TypeAlias = Callable[[list[EventData], str], Awaitable[None] | None]
OnError: TypeAlias = Callable[[list[EventData], str, Exception], Awaitable[None] | None]
_Waiting: TypeAlias = tuple[EventData, str | None]  # with its partition key
_log = logging.getLogger(__name__)
_BUFFER_BYTES_MAX = 16 * 1024 * 1024  # of one partition, whatever the number of events
_SECTIONS_BYTES = 64  # around an event without properties: an estimate of when a batch is full


class EventHubBufferedProducerClient(EventHubProducerClient):
    """Events of one partition, and so of one partition key, are published in order.

    `on_success(events, partition_id)` or `on_error(events, partition_id, error)` is called for each
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
        idempotent: bool = False,
        **options: Unpack[ClientOptions],
    ) -> None:
        """An event waits for others at most `max_wait_time_s`; a partition buffers at most
        `max_buffer_length` events."""
        if max_buffer_length < 1 or max_wait_time_s < 0:
            raise ArgumentError("max_buffer_length is at least 1, max_wait_time_s at least 0.")
        super().__init__(connection_string, idempotent=idempotent, **options)
        self.on_success = on_success
        self.on_error = on_error
        self.max_wait_time_s = max_wait_time_s
        self.max_buffer_length = max_buffer_length
        self._buffers: dict[str, _PartitionBuffer] = {}  # by partition id
        self._is_closing = False  # no more events are accepted; the buffered ones are still sent

    async def __aexit__(self, *exc: object) -> None:
        await self.close(flush=exc[1] is None)

    async def enqueue_event(
        self,
        event: EventData,
        *,
        partition_id: str | None = None,
        partition_key: str | None = None,
    ) -> int:
        """As `enqueue_events` with one event."""
        return await self.enqueue_events(
            [event], partition_id=partition_id, partition_key=partition_key
        )

    async def enqueue_events(
        self,
        events: Sequence[EventData],
        *,
        partition_id: str | None = None,
        partition_key: str | None = None,
    ) -> int:
        """Add events to the buffer of one partition, in order; returns how many events all buffers
        have then. Waits while the buffer is full, at most `timeout_s`."""
        buffer = await self._find_buffer(partition_id, partition_key)
        for event in events:
            while buffer.is_full:
                await self._wait_for_room(buffer)
            buffer.add(event, partition_key)
        return self.total_buffered_event_count

    @property
    def total_buffered_event_count(self) -> int:
        return sum(buffer.count for buffer in self._buffers.values())

    async def flush(self) -> None:
        """Publish the events that are buffered now, and wait until each is published or failed."""
        await asyncio.gather(*(buffer.flush() for buffer in self._buffers.values()))

    async def close(self, flush: bool = True) -> None:
        """Without `flush` the buffered events are discarded and passed to `on_error`."""
        self._is_closing = True
        try:
            if flush:
                await self.flush()
        finally:
            await asyncio.gather(*(buffer.close() for buffer in self._buffers.values()))
            await super().close()

    async def _find_buffer(
        self, partition_id: str | None, partition_key: str | None
    ) -> _PartitionBuffer:
        check_route(partition_id, partition_key)
        self._check_accepts_events()
        if partition_id is None:
            partition_id = await self._choose_partition(partition_key)
        elif partition_id not in (ids := await self._read_partition_ids()):
            raise ArgumentError(
                f"The hub has no partition {partition_id!r}: it has {', '.join(ids)}."
            )
        self._check_accepts_events()
        if partition_id not in self._buffers:
            self._buffers[partition_id] = _PartitionBuffer(self, partition_id)
        return self._buffers[partition_id]

    def _check_accepts_events(self) -> None:
        if self._is_closing:
            raise ClientClosed("The client is closed.")

    async def _wait_for_room(self, buffer: _PartitionBuffer) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                await buffer.wait_for_room()
        except TimeoutError:
            raise ClientTimedOut(
                f"The buffer of partition {buffer.partition_id} was full for {self._timeout_s} s."
            ) from None
        self._check_accepts_events()


class _PartitionBuffer:
    """The events of one partition in order, and the task that publishes them in batches."""

    def __init__(self, producer: EventHubBufferedProducerClient, partition_id: str) -> None:
        self.partition_id = partition_id
        self._producer = producer
        self._events: deque[_Waiting] = deque()
        self._bytes = 0
        self._batch_bytes = 2**62  # until the first batch is created
        self._sending = 0  # events of the batch that is being published
        self._is_urgent = False  # a flush waits: publish at once
        self._added = asyncio.Event()
        self._urgent = asyncio.Event()
        self._finished = 0  # events published or failed since the start
        self._progress = asyncio.Event()  # set, and replaced, whenever events are finished
        self._running = asyncio.get_running_loop().create_task(self._run())

    @property
    def count(self) -> int:
        return len(self._events) + self._sending

    @property
    def is_full(self) -> bool:
        return self.count >= self._producer.max_buffer_length or self._bytes >= _BUFFER_BYTES_MAX

    def add(self, event: EventData, key: str | None) -> None:
        self._events.append((event, key))
        self._bytes += len(event.body) + _SECTIONS_BYTES
        self._added.set()
        if self._bytes >= self._batch_bytes or self.is_full:
            self._urgent.set()

    async def wait_for_room(self) -> None:
        """The buffer may be full again on return."""
        await self._progress.wait()

    async def flush(self) -> None:
        """Returns when the sends are done; they have their own deadlines."""
        target = self._finished + self.count
        while self.count and self._finished < target:
            self._is_urgent = True
            self._urgent.set()
            await self._progress.wait()

    async def close(self) -> None:
        self._running.cancel()
        await asyncio.wait([self._running])
        if self._events:
            discarded = [event for event, _ in self._events]
            self._events.clear()
            error = ClientClosed("The client was closed without a flush.")
            await _run_callback(self._producer.on_error, discarded, self.partition_id, error)
        self._finish(0)

    async def _run(self) -> None:
        while True:
            await self._added.wait()
            if not self._is_urgent:
                # More events may follow: a larger batch is cheaper.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._producer.max_wait_time_s):
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
        """Publish one batch."""
        taken: list[EventData] = []
        try:
            batch = await self._producer.create_batch(partition_id=self.partition_id)
            self._batch_bytes = batch.max_size_in_bytes
            self._fill(batch, taken)
            if taken:
                await self._producer.send_batch(batch)
        except Exception as error:  # noqa: BLE001  # on_error gets it; the next events follow
            if not taken:
                taken = self._take_all()
            await _run_callback(self._producer.on_error, taken, self.partition_id, error)
        except asyncio.CancelledError:
            self._events.extendleft((event, None) for event in reversed(taken))
            self._sending = 0
            raise
        else:
            if taken:
                await _run_callback(self._producer.on_success, taken, self.partition_id)
        self._finish(len(taken))

    def _fill(self, batch: EventDataBatch, taken: list[EventData]) -> None:
        """Move events into the batch. Raises for the first event if it can never be sent."""
        while self._events:
            event, key = self._events[0]
            try:
                if not batch.try_add(event, partition_key=key):
                    if not taken:
                        batch.add(event)  # raises the reason
                    return
            except (PenstockError, ValueError):
                if taken:
                    return  # publish these first; the next batch raises
                self._move(event, taken)
                raise
            self._move(event, taken)

    def _move(self, event: EventData, taken: list[EventData]) -> None:
        self._events.popleft()
        self._bytes -= len(event.body) + _SECTIONS_BYTES
        self._sending += 1
        taken.append(event)

    def _take_all(self) -> list[EventData]:
        """All events fail together: no batch can be created."""
        taken: list[EventData] = []
        while self._events:
            self._move(self._events[0][0], taken)
        return taken

    def _finish(self, count: int) -> None:
        """That many events are published or failed: wake the callers that wait."""
        self._sending = max(0, self._sending - count)
        self._finished += count
        self._progress.set()
        self._progress = asyncio.Event()


async def _run_callback(
    callback: Callable[..., Awaitable[None] | None] | None, *arguments: object
) -> None:
    """Log the exception of a callback: the events are published all the same."""
    if callback is None:
        return
    try:
        result = callback(*arguments)
        if result is not None:
            await result
    except Exception:  # noqa: BLE001  # the user's code
        _log.exception("callback of the buffered producer failed")
