"""A reader of one partition: columns for speed, EventData for comfort; reopens when it is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Self

from penstock.amqp.errors import AmqpDecodeError
from penstock.amqp.events import TransfersReceived
from penstock.amqp.message import decode_message
from penstock.client.connection import Connection, Receiver
from penstock.client.errors import ClientClosed, ClientError, ClientStolen, ClientTimedOut
from penstock.client.event_data import EventData, to_events
from penstock.client.event_position import EventPosition
from penstock.client.inbox import MessageChunk, ReceiveQueue, join_columns
from penstock.client.properties import LastEnqueued
from penstock.client.retry import RetryAttempts, RetryPolicy
from penstock.kernels import Columns, KernelError, decode_events
from penstock.model.errors import ArgumentError

PREFETCH = 3000
BUFFER_BYTES = 8 * 1024 * 1024
"""What a reader holds at most, about: credit is given by the size that events have shown."""
_FIRST_CREDIT = 300  # before the size of events is known
_MOMENT_S = 0.002
_LIVED_S = 30.0  # a link that lived so long was no failure
_RUNTIME_METRIC = "com.microsoft:enable-receiver-runtime-metric"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EVENTS_MAX = 2**62

Connect = Callable[[], Awaitable[Connection]]


class PartitionReceiver:
    """Made by `EventHubConsumerClient.open_partition`; opens when its context is entered.

    One task at a time may receive. A reader whose place was taken raises ClientStolen.
    """

    def __init__(
        self,
        connect: Connect,
        address: str,
        partition_id: str,
        position: EventPosition,
        *,
        owner_level: int | None,
        prefetch: int | None,
        track_last_enqueued: bool,
        retry: RetryPolicy,
        timeout_s: float,
        last_sequence_number: int | None = None,
        enough_bytes: int = 0,
    ) -> None:
        """With `last_sequence_number` no credit is given for what lies behind it. Without
        `prefetch` only the size of events bounds what is held. Who waits is woken when there are
        `enough_bytes`, or a moment after the first."""
        if prefetch is not None and prefetch < 1:
            raise ArgumentError(f"prefetch is {prefetch}: it must be at least 1.")
        self.partition_id = partition_id
        self.position = position  # where a lost link goes on: behind what was received last
        self.owner_level = owner_level
        self._connect = connect
        self._address = address
        self._prefetch = _EVENTS_MAX if prefetch is None else prefetch
        self._track = track_last_enqueued
        self._timeout_s = timeout_s
        self._tries = RetryAttempts(retry)
        self._until = last_sequence_number
        self._enough_bytes = enough_bytes
        self._moment: asyncio.TimerHandle | None = None
        self._received: int | None = None  # the last sequence number
        self._inbox = ReceiveQueue()
        self._event_bytes: int | None = None  # of one, on average, lately
        self._newest = b""  # the last message, for what it says of the partition's end
        self._connection: Connection | None = None
        self._receiver: Receiver | None = None
        self._arrival: asyncio.Future[None] | None = None
        self._error: ClientError | None = None
        self._keeping: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<PartitionReceiver {self._address} {self.position.selector}>"

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def open(self) -> None:
        """Attach, trying again as the policy says. Raises ClientError."""
        assert self._keeping is None
        while True:
            try:
                receiver = await self._attach()
                break
            except ClientError as error:
                await self._tries.wait_or_raise(error)
        self._keeping = asyncio.get_running_loop().create_task(self._keep(receiver))
        self._keeping.add_done_callback(self._on_kept)

    async def receive_batch(
        self, max_batch_size: int = 300, max_wait_time_s: float | None = None
    ) -> list[EventData]:
        """As soon as there is one event, those that are there, at most `max_batch_size`. Empty
        when none came within `max_wait_time_s` (the client's `timeout_s` when None)."""
        if max_batch_size < 1:
            raise ArgumentError(f"max_batch_size is {max_batch_size}: it must be at least 1.")
        return to_events(await self._take(max_batch_size, max_wait_time_s))

    async def receive_columns(self, max_wait_time_s: float | None = None) -> Columns:
        """The same as columns, all that are there; no row when none came in time."""
        return await self._take(_EVENTS_MAX, max_wait_time_s)

    async def receive_chunks(self, max_wait_time_s: float | None = None) -> list[MessageChunk]:
        """The messages that are there, as they came, unopened; none when none came in time."""
        await self._wait_for_events(max_wait_time_s)
        chunks = self._inbox.take_chunks()
        self._grant()
        return chunks

    async def __aiter__(self) -> AsyncIterator[EventData]:
        """Events without end."""
        while True:
            for event in await self.receive_batch():
                yield event

    @property
    def last_enqueued(self) -> LastEnqueued | None:
        """The partition's end as the newest event told it; needs `track_last_enqueued`."""
        if not self._newest:
            return None
        try:
            told: dict[Any, Any] = decode_message(self._newest).delivery_annotations or {}
            return {
                "sequence_number": int(told["last_enqueued_sequence_number"]),
                "offset": str(told["last_enqueued_offset"]),
                "enqueued_time": _enqueued_time(told["last_enqueued_time_utc"]),
                "retrieval_time": _enqueued_time(told["runtime_info_retrieval_time_utc"]),
            }
        except (AmqpDecodeError, KeyError, TypeError, ValueError, OverflowError):
            return None

    async def close(self) -> None:
        """Harmless when done before."""
        self._end(ClientClosed("The reader is closed."))
        keeping, self._keeping = self._keeping, None
        if keeping is not None:
            keeping.cancel()
            await asyncio.wait([keeping])
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    # --- taking ---------------------------------------------------------------------------------

    async def _take(self, events_max: int, max_wait_s: float | None) -> Columns:
        await self._wait_for_events(max_wait_s)
        columns: list[Columns] = []
        try:
            for data, bounds in self._inbox.take(events_max):
                columns.append(decode_events(data, bounds))
        except KernelError as error:
            self._inbox.clear()
            self._end(_no_event(error))
            if not columns:  # else those before it come first
                raise _no_event(error) from None
        self._grant()
        return join_columns(columns)

    async def _wait_for_events(self, max_wait_s: float | None) -> None:
        """Something is there, or the time is over. Raises when the reader is."""
        if isinstance(self._error, ClientStolen | ClientClosed):
            self._inbox.clear()  # another one reads these now
        if not self._inbox and self._error is None:
            await self._wait(self._timeout_s if max_wait_s is None else max_wait_s)
        if not self._inbox and self._error is not None:
            raise self._error

    async def _wait(self, seconds: float) -> None:
        """Until something arrived, the reader is over, or the time is."""
        if self._keeping is None:
            raise ClientClosed("The reader is not open: enter it with `async with`.")
        if self._arrival is not None:
            raise RuntimeError("Another task receives from this reader: one at a time may.")
        self._arrival = asyncio.get_running_loop().create_future()
        try:
            await asyncio.wait([self._arrival], timeout=max(0.0, seconds))
        finally:
            self._arrival = None
            if self._moment is not None:  # the next one who waits is not woken for this
                self._moment.cancel()
                self._moment = None

    def _wake_in_a_moment(self) -> None:
        """More comes at once, most of the time: who reads a range is woken once for all of it."""
        if self._inbox.bytes >= self._enough_bytes or self._received == self._until:
            self._wake()
        elif self._moment is None and self._arrival is not None:
            self._moment = self._arrival.get_loop().call_later(_MOMENT_S, self._wake)

    def _wake(self) -> None:
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    def _end(self, error: ClientError) -> None:
        if self._error is None:
            self._error = error
        self._wake()

    # --- receiving ------------------------------------------------------------------------------

    async def _keep(self, receiver: Receiver) -> None:
        """Reopen the link whenever it is lost, until that is useless."""
        loop = asyncio.get_running_loop()
        while self._error is None:
            attached_s = loop.time()
            await asyncio.wait([receiver.ended])
            if loop.time() - attached_s >= _LIVED_S:
                self._tries.reset()
            assert receiver.error is not None
            reopened = await self._reopen(receiver.error)
            if reopened is None:
                return
            receiver = reopened

    def _on_kept(self, keeping: asyncio.Task[None]) -> None:
        """A fault of our own must not leave a reader that waits for ever."""
        if not keeping.cancelled() and (fault := keeping.exception()) is not None:
            self._end(ClientError(f"The reader failed: {fault!r}"))

    async def _reopen(self, lost: ClientError) -> Receiver | None:
        """The link again, where it ended; None when it is over."""
        while True:
            try:
                await self._tries.wait_or_raise(lost)
                return await self._attach()
            except ClientError as error:
                if error is lost:
                    self._end(error)
                    return None
                lost = error

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
            connection.abort()  # the next try begins with another socket
            raise
        self._receiver = receiver
        self._grant()
        return receiver

    def _on_transfers(self, event: TransfersReceived) -> None:
        data, bounds = event.data, event.bounds
        try:
            # Only where the run begins and ends: its events are opened when they are taken.
            ends = decode_events(data, [*bounds[:2], *bounds[-2:]])
        except KernelError as error:
            self._end(_no_event(error))
            return
        chunk = MessageChunk(data, bounds, ends.sequence_numbers[0], ends.sequence_numbers[-1])
        self._event_bytes = chunk.size // event.count + 1
        self._received = chunk.last
        self.position = EventPosition.from_offset(ends.offsets[-1])
        if self._track:
            self._newest = data[bounds[-2] : bounds[-1]]
        self._tries.reset()
        self._inbox.add(chunk)
        if self._inbox.bytes > 2 * BUFFER_BYTES and self._connection is not None:
            self._connection.pause_reading()  # events grew all at once
        self._grant()
        self._wake_in_a_moment()

    def _grant(self) -> None:
        """Credit for what has room, when that is half of all: flows are few."""
        if self._receiver is None or self._connection is None:
            return
        inbox, link = self._inbox, self._receiver.link
        if inbox.bytes <= BUFFER_BYTES:
            self._connection.resume_reading()
        whole = min(self._prefetch, _FIRST_CREDIT)
        if self._event_bytes is not None:
            whole = max(1, min(self._prefetch, BUFFER_BYTES // self._event_bytes))
        room = whole - inbox.events
        if self._event_bytes is not None:
            room = min(room, (BUFFER_BYTES - inbox.bytes) // self._event_bytes)
        if self._until is not None and self._received is not None:
            room = min(room, self._until - self._received)
            whole = min(whole, room)
        if room > link.credit and (room - link.credit) * 2 >= whole:
            link.grant(room)
            self._connection.schedule_flush()


def _no_event(error: KernelError) -> ClientError:
    return ClientError(f"The service delivered what is no event: {error}")


def _enqueued_time(milliseconds: object) -> datetime:
    assert isinstance(milliseconds, int)
    return _EPOCH + timedelta(milliseconds=milliseconds)
