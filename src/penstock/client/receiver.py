"""A reader of one partition, which reopens its link when it is lost, and its queue of received
messages. It returns events as EventData, as columns, which are faster, or as encoded messages."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import chain
from typing import Any, Self

import msgspec

from penstock.amqp.errors import AmqpDecodeError
from penstock.amqp.events import TransfersReceived
from penstock.amqp.message import decode_message
from penstock.client.connection import Connection
from penstock.client.errors import ClientClosed, ClientError, ClientStolen, ClientTimedOut
from penstock.client.event_data import EventData, to_events
from penstock.client.event_position import EventPosition, to_datetime
from penstock.client.hub_client import LastEnqueued
from penstock.client.links import Receiver
from penstock.client.retry import RetryAttempts, RetryPolicy
from penstock.kernels import Columns, KernelError, decode_events
from penstock.model.errors import ArgumentError

PREFETCH = 3000
BUFFER_BYTES = 8 * 1024 * 1024
"""About what a reader holds at most: the credit follows from the size of the recent events."""
_FIRST_CREDIT = 300  # before the size of events is known
_GATHER_S = 0.002  # more messages mostly follow the first one within this time
_LIVED_S = 30.0  # the loss of a link that lived this long does not count as a failed attempt
_RUNTIME_METRIC = "com.microsoft:enable-receiver-runtime-metric"
_EVENTS_MAX = 2**62
_COLUMN_NAMES = Columns.__struct_fields__
assert _COLUMN_NAMES[-1] == "body_kinds"  # the only column that is not a list

Connect = Callable[[], Awaitable[Connection]]


class MessageChunk(msgspec.Struct, frozen=True):
    """Delivered messages, encoded: message i is data[bounds[2 * i]:bounds[2 * i + 1]]. `first` and
    `last` are the sequence numbers of the first and the last message."""

    data: bytes
    bounds: list[int]
    first: int
    last: int

    @property
    def count(self) -> int:
        return len(self.bounds) >> 1

    @property
    def size(self) -> int:
        """Bytes from the first message to the end of the last one."""
        return self.bounds[-1] - self.bounds[0]

    def __repr__(self) -> str:
        return f"<MessageChunk {self.count} events, {self.first} to {self.last}>"


class ReceiveQueue:
    """Received messages that no caller has taken yet, in order. They are decoded when taken."""

    def __init__(self) -> None:
        self._chunks: deque[MessageChunk] = deque()
        self._taken = 0  # messages of the first chunk that were taken
        self.events = 0
        self.bytes = 0

    def __bool__(self) -> bool:
        return self.events > 0

    def add(self, chunk: MessageChunk) -> None:
        self._chunks.append(chunk)
        self.events += chunk.count
        self.bytes += chunk.size

    def clear(self) -> None:
        self._chunks.clear()
        self._taken = self.events = self.bytes = 0

    def take_chunks(self) -> list[MessageChunk]:
        """All chunks. Not for a caller that also uses `take`, which splits chunks."""
        assert self._taken == 0
        chunks = list(self._chunks)
        self.clear()
        return chunks

    def take(self, events_max: int) -> list[tuple[bytes, list[int]]]:
        """Data and bounds of the next messages, at most `events_max`."""
        parts: list[tuple[bytes, list[int]]] = []
        room = events_max
        while self._chunks and room > 0:
            chunk, start = self._chunks[0], self._taken
            count = min(chunk.count - start, room)
            is_whole = count == chunk.count
            bounds = chunk.bounds if is_whole else chunk.bounds[2 * start : 2 * (start + count)]
            parts.append((chunk.data, bounds))
            room -= count
            self.events -= count
            self._taken += count
            if self._taken == chunk.count:
                self._chunks.popleft()
                self._taken = 0
                self.bytes -= chunk.size
        return parts


class PartitionReceiver:
    """Created by `EventHubConsumerClient.open_partition`; opened when its context is entered.

    One task at a time may receive. A displaced reader raises ClientStolen.
    """

    def __init__(
        self,
        connect: Connect,
        address: str,
        partition_id: str,
        position: EventPosition,
        *,
        retry: RetryPolicy,
        timeout_s: float,
        prefetch: int | None,
        owner_level: int | None = None,
        track_last_enqueued: bool = False,
        last_sequence_number: int | None = None,
        enough_bytes: int = 0,
    ) -> None:
        """With `last_sequence_number` no credit is granted for later events. Without `prefetch`
        only the size of events bounds the queue. A waiting caller is woken when `enough_bytes` have
        arrived, or 2 ms after the first message."""
        if prefetch is not None and prefetch < 1:
            raise ArgumentError(f"prefetch is {prefetch}: it must be at least 1.")
        self.partition_id = partition_id
        self.position = position  # where a reopened link begins: after the last received event
        self.owner_level = owner_level
        self._connect = connect
        self._address = address
        self._prefetch = _EVENTS_MAX if prefetch is None else prefetch
        self._track = track_last_enqueued
        self._timeout_s = timeout_s
        self._attempts = RetryAttempts(retry)
        self._last_wanted = last_sequence_number
        self._enough_bytes = enough_bytes
        self._gather_timer: asyncio.TimerHandle | None = None
        self._last_received: int | None = None  # sequence number
        self._queue = ReceiveQueue()
        self._event_bytes: int | None = None  # average of the last run
        self._newest = b""  # the last message, which describes the partition's end
        self._connection: Connection | None = None
        self._receiver: Receiver | None = None
        self._arrival: asyncio.Future[None] | None = None
        self._error: ClientError | None = None
        self._reopening: asyncio.Task[None] | None = None  # runs while the reader is open

    def __repr__(self) -> str:
        return f"<PartitionReceiver {self._address} {self.position.selector}>"

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Attach, with retries. Raises ClientError."""
        assert self._reopening is None
        receiver = await self._attempts.run(self._attach)
        self._reopening = asyncio.create_task(self._reopen_when_lost(receiver))
        self._reopening.add_done_callback(self._on_reopening_ended)

    async def receive_batch(
        self, max_batch_size: int = 300, max_wait_time_s: float | None = None
    ) -> list[EventData]:
        """The available events, at most `max_batch_size`; waits for the first one. Empty where none
        came within `max_wait_time_s`, or without it within the client's `timeout_s`."""
        if max_batch_size < 1:
            raise ArgumentError(f"max_batch_size is {max_batch_size}: it must be at least 1.")
        return to_events(await self._take(max_batch_size, max_wait_time_s))

    async def receive_columns(self, max_wait_time_s: float | None = None) -> Columns:
        """All available events as columns; no row where none came in time."""
        return await self._take(_EVENTS_MAX, max_wait_time_s)

    async def receive_chunks(self, max_wait_time_s: float | None = None) -> list[MessageChunk]:
        """All available messages, encoded; none where none came in time."""
        await self._wait_for_events(max_wait_time_s)
        chunks = self._queue.take_chunks()
        self._grant()
        return chunks

    async def __aiter__(self) -> AsyncIterator[EventData]:
        """All events from the position on, without end."""
        while True:
            for event in await self.receive_batch():
                yield event

    @property
    def last_enqueued(self) -> LastEnqueued | None:
        """The partition's end by the newest event; needs `track_last_enqueued`."""
        if not self._newest:
            return None
        try:
            annotations: dict[Any, Any] = decode_message(self._newest).delivery_annotations or {}
            return {
                "sequence_number": int(annotations["last_enqueued_sequence_number"]),
                "offset": str(annotations["last_enqueued_offset"]),
                "enqueued_time": to_datetime(int(annotations["last_enqueued_time_utc"])),
                "retrieval_time": to_datetime(int(annotations["runtime_info_retrieval_time_utc"])),
            }
        except (AmqpDecodeError, KeyError, TypeError, ValueError, OverflowError):
            return None

    async def close(self) -> None:
        """Close the connection. A second call does nothing."""
        self._end(ClientClosed("The reader is closed."))
        reopening, self._reopening = self._reopening, None
        if reopening is not None:
            reopening.cancel()
            await asyncio.wait([reopening])
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    # --- taking ---------------------------------------------------------------------------------

    async def _take(self, events_max: int, max_wait_s: float | None) -> Columns:
        await self._wait_for_events(max_wait_s)
        columns: list[Columns] = []
        try:
            for data, bounds in self._queue.take(events_max):
                columns.append(decode_chunk(data, bounds))
        except ClientError as error:
            self._queue.clear()
            self._end(error)
            if not columns:  # otherwise the valid events before it are returned first
                raise
        self._grant()
        return join_columns(columns)

    async def _wait_for_events(self, max_wait_s: float | None) -> None:
        """Wait for an event up to the deadline. Raises the error of a reader that has ended."""
        if isinstance(self._error, ClientStolen | ClientClosed):
            self._queue.clear()  # another reader receives these events again
        if not self._queue and self._error is None:
            await self._wait(self._timeout_s if max_wait_s is None else max_wait_s)
        if not self._queue and self._error is not None:
            raise self._error

    async def _wait(self, seconds: float) -> None:
        """Until messages arrive, the reader ends, or the time is over."""
        if self._reopening is None:
            raise ClientClosed("The reader is not open: enter it with `async with`.")
        if self._arrival is not None:
            raise RuntimeError("Another task receives from this reader: one at a time may.")
        self._arrival = asyncio.get_running_loop().create_future()
        try:
            await asyncio.wait([self._arrival], timeout=max(0.0, seconds))
        finally:
            self._arrival = None
            if self._gather_timer is not None:  # it must not wake the next caller
                self._gather_timer.cancel()
                self._gather_timer = None

    def _wake_when_enough(self) -> None:
        """Wake the caller once for many messages: more mostly follow at once."""
        if self._queue.bytes >= self._enough_bytes or self._last_received == self._last_wanted:
            self._wake()
        elif self._gather_timer is None and self._arrival is not None:
            self._gather_timer = self._arrival.get_loop().call_later(_GATHER_S, self._wake)

    def _wake(self) -> None:
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    def _end(self, error: ClientError) -> None:
        if self._error is None:
            self._error = error
        self._wake()

    # --- receiving ------------------------------------------------------------------------------

    async def _reopen_when_lost(self, receiver: Receiver) -> None:
        """Attach again after the last received event whenever the link is lost, until an attempt
        fails for good."""
        loop = asyncio.get_running_loop()
        try:
            while self._error is None:
                attached_s = loop.time()
                await asyncio.wait([receiver.ended])
                if loop.time() - attached_s >= _LIVED_S:
                    self._attempts.reset()
                assert receiver.error is not None
                await self._attempts.wait_or_raise(receiver.error)
                receiver = await self._attempts.run(self._attach)
        except ClientError as error:
            self._end(error)

    def _on_reopening_ended(self, task: asyncio.Task[None]) -> None:
        """A bug in the task must not leave a caller waiting for ever."""
        if not task.cancelled() and (fault := task.exception()) is not None:
            self._end(ClientError(f"The reader failed: {fault!r}"))

    async def _attach(self) -> Receiver:
        connection = self._connection
        if connection is None or not connection.is_usable:
            self._connection = None
            if connection is not None:
                connection.abort()
            connection = self._connection = await self._connect()
        try:
            receiver = await connection.receiver(
                self._address,
                credit=None,
                on_transfers=self._on_transfers,
                selector=self.position.selector,
                epoch=self.owner_level,
                desired_capabilities=[_RUNTIME_METRIC] if self._track else None,
            )
        except ClientTimedOut:
            connection.abort()  # the retry opens another socket
            raise
        self._receiver = receiver
        self._grant()
        return receiver

    def _on_transfers(self, event: TransfersReceived) -> None:
        data, bounds = event.data, event.bounds
        try:
            # Only the first and the last event: the others are decoded when they are taken.
            ends = decode_chunk(data, [*bounds[:2], *bounds[-2:]])
        except ClientError as error:
            self._end(error)
            return
        chunk = MessageChunk(data, bounds, ends.sequence_numbers[0], ends.sequence_numbers[-1])
        self._event_bytes = chunk.size // event.count + 1
        self._last_received = chunk.last
        self.position = EventPosition.from_offset(ends.offsets[-1])
        if self._track:
            self._newest = data[bounds[-2] : bounds[-1]]
        self._attempts.reset()
        self._queue.add(chunk)
        if self._queue.bytes > 2 * BUFFER_BYTES and self._connection is not None:
            self._connection.pause_reading()  # the events are much larger than the earlier ones
        self._grant()
        self._wake_when_enough()

    def _grant(self) -> None:
        """Grant credit for the free room once it is half of all, so that flows are few."""
        if self._receiver is None or self._connection is None:
            return
        queue, link = self._queue, self._receiver.link
        if queue.bytes <= BUFFER_BYTES:
            self._connection.resume_reading()
        whole = min(self._prefetch, _FIRST_CREDIT)
        if self._event_bytes is not None:
            whole = max(1, min(self._prefetch, BUFFER_BYTES // self._event_bytes))
        room = whole - queue.events
        if self._event_bytes is not None:
            room = min(room, (BUFFER_BYTES - queue.bytes) // self._event_bytes)
        if self._last_wanted is not None and self._last_received is not None:
            room = min(room, self._last_wanted - self._last_received)
            whole = min(whole, room)
        if room > link.credit and (room - link.credit) * 2 >= whole:
            link.grant(room)
            self._connection.schedule_flush()


def slice_columns(columns: Columns, start: int, stop: int) -> Columns:
    """The rows from `start` to `stop`."""
    return Columns(*(getattr(columns, name)[start:stop] for name in _COLUMN_NAMES))


def join_columns(parts: list[Columns]) -> Columns:
    """The rows of all parts."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return Columns([], [], [], [], [], [], [], [], b"")
    kinds = b"".join([part.body_kinds for part in parts])
    lists: list[Any] = [
        list(chain.from_iterable([getattr(part, name) for part in parts]))
        for name in _COLUMN_NAMES[:-1]
    ]
    return Columns(*lists, kinds)  # type: ignore[call-arg]  # as many lists as it has


def decode_chunk(data: bytes, bounds: list[int]) -> Columns:
    """Raises ClientError."""
    try:
        return decode_events(data, bounds)
    except KernelError as error:
        raise ClientError(f"The service delivered what is no event: {error}") from None
