"""One partition of a processor: its reader, the user's handlers, and its lease.

The task of the pump is never canceled. It starts a second task that reads, and only that one is
canceled. So the reader is closed and the close handler is called, whatever happens to the reading.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Iterator
from enum import Enum

import msgspec

from penstock.client.consumer import EventHubConsumerClient
from penstock.client.errors import ClientClosed, ClientStolen
from penstock.client.event_data import EventData
from penstock.client.event_position import EventPosition
from penstock.client.hub_client import LastEnqueued
from penstock.client.leases import Lease, LeaseLost, Leases, ProcessorCheckpoint
from penstock.client.receiver import PartitionReceiver
from penstock.model.backoff import Backoff
from penstock.model.errors import ArgumentError

_BACKOFF = Backoff(0.5, 30.0, jitter=0.2)
_CLOSE_S = 30.0  # for the user's close handler
_log = logging.getLogger(__name__)


class CloseReason(Enum):
    """Why the processing of a partition ended; names and values are the official SDK's."""

    SHUTDOWN = 0
    OWNERSHIP_LOST = 1


class PartitionContext:
    """The partition that a handler is called for. There is one for each time of ownership."""

    def __init__(self, pump: PartitionPump, leases: Leases) -> None:
        self.partition_id = pump.lease.partition_id
        self.fully_qualified_namespace = leases.group.fully_qualified_namespace
        self.eventhub_name = leases.group.eventhub_name
        self.consumer_group = leases.group.consumer_group
        self.owner_id = leases.owner_id
        self._pump = pump
        self._leases = leases

    def __repr__(self) -> str:
        return f"<PartitionContext {self.eventhub_name}/{self.partition_id}>"

    @property
    def last_enqueued(self) -> LastEnqueued | None:
        """The end of the partition; needs `track_last_enqueued` of the processor."""
        reader = self._pump.reader
        return None if reader is None else reader.last_enqueued

    async def update_checkpoint(self, event: EventData | None = None) -> None:
        """Store this event, by default the last one that the handler was called with, as the
        checkpoint: the next owner begins after it. Raises LeaseLost when this processor no longer
        owns the partition, and the errors of the store."""
        pump = self._pump
        event = event or pump.last_event
        if event is None:
            return
        if pump.error is not None:
            raise LeaseLost(f"Another reader displaced that of partition {self.partition_id}.")
        if event.offset is None or event.sequence_number is None:
            raise ArgumentError("A checkpoint needs an event that was received.")
        checkpoint = ProcessorCheckpoint(event.offset, event.sequence_number)
        await self._leases.save(pump.lease, checkpoint)
        pump.checkpoint = checkpoint


OnEvents = Callable[[PartitionContext, list[EventData]], Awaitable[None]]
OnError = Callable[[PartitionContext | None, Exception], Awaitable[None]]
OnInitialize = Callable[[PartitionContext], Awaitable[None]]
OnClose = Callable[[PartitionContext, CloseReason], Awaitable[None]]


class PumpSettings(msgspec.Struct, frozen=True):
    """What all pumps of a processor share."""

    consumer: EventHubConsumerClient
    on_events: OnEvents
    on_error: OnError  # never raises
    on_partition_initialize: OnInitialize | None
    on_partition_close: OnClose | None
    owner_level: int
    prefetch: int
    max_batch_size: int
    max_wait_time_s: float | None
    track_last_enqueued: bool


class PartitionPump:
    """Reads from the checkpoint, or else from `start`, for as long as the lease is valid."""

    def __init__(
        self,
        work: PumpSettings,
        lease: Lease,
        leases: Leases,
        *,
        start: EventPosition,
        checkpoint: ProcessorCheckpoint | None,
        delay_s: float = 0.0,
    ) -> None:
        self.lease = lease
        self.reason = CloseReason.SHUTDOWN
        self.error: Exception | None = None
        """ClientStolen or ClientClosed, where that ended the pump."""
        self.is_proven = False
        """A handler has succeeded."""
        self.checkpoint = checkpoint
        self.last_event: EventData | None = None
        self.reader: PartitionReceiver | None = None
        self._work = work
        self._start = start
        self._context = PartitionContext(self, leases)
        self._position = None if checkpoint is None else checkpoint.position
        self._delay_s = delay_s
        self._failures = 0
        self._is_initialized = False
        self._is_handling = False
        self._ending = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def run(self) -> None:
        """Until `finish`, `abort` or `lose` is called, or another reader displaces this one."""
        self._watch_lease()
        await self._pause(self._delay_s)
        while not self._ending.is_set():
            self._reading = asyncio.create_task(self._read())
            await asyncio.wait([self._reading])
            await self._after_reading(self._reading)
            await self._close_reader()
            if not self._ending.is_set():
                self._failures += 1
                await self._pause(restart_delay_s(self._failures))
        await self._close()
        if self._timer is not None:
            self._timer.cancel()

    def finish(self) -> None:
        """Read no more events; a running handler may end its work."""
        self._ending.set()
        if not self._is_handling:
            self.abort()

    def abort(self) -> None:
        """End at once; a running handler is canceled."""
        self._ending.set()
        if self._reading is not None:
            self._reading.cancel()

    def lose(self) -> None:
        """End at once: another processor owns the partition, or may own it soon."""
        self.reason = CloseReason.OWNERSHIP_LOST
        self.lease.lose()
        self.abort()

    # --- reading --------------------------------------------------------------------------------

    async def _read(self) -> None:
        """Until an error, or until the pump ends."""
        work, context = self._work, self._context
        if not self._is_initialized:
            await self._initialize()
        if self._position is None:
            self._position = await self._first_position()
        reader = self.reader = work.consumer.open_partition(
            context.partition_id,
            self._position,
            owner_level=work.owner_level,
            prefetch=work.prefetch,
            track_last_enqueued=work.track_last_enqueued,
        )
        await reader.open()
        while not self._ending.is_set():
            # Waits for the handler, so a slow one stops the reading.
            events = await reader.receive_batch(work.max_batch_size, work.max_wait_time_s)
            if events or work.max_wait_time_s is not None:
                await self._handle(events)

    async def _initialize(self) -> None:
        self._is_initialized = True
        if self._work.on_partition_initialize is not None:
            with self._handler_running():
                await self._work.on_partition_initialize(self._context)

    async def _first_position(self) -> EventPosition:
        """Replace "latest" by the present end of the partition, so that a reopened reader begins
        there too and skips no event."""
        if self._start != EventPosition.latest():
            return self._start
        partition_id = self._context.partition_id
        partition = await self._work.consumer.get_partition_properties(partition_id)
        last = partition["last_enqueued_sequence_number"]
        self._start = EventPosition.earliest()
        if last >= 0:
            self._start = EventPosition.from_sequence_number(last)
        return self._start

    async def _handle(self, events: list[EventData]) -> None:
        context = self._context
        if self.lease.is_over:  # the process was suspended, and the timer has not run yet
            self.lose()
            raise LeaseLost(f"The lease of partition {context.partition_id} is over.")
        if events:
            self.last_event = events[-1]
        try:
            with self._handler_running():
                await self._work.on_events(context, events)
        except Exception:
            # A handler that failed gets the events after the checkpoint again.
            self._position = self.checkpoint.position if self.checkpoint else self._start
            raise
        self.is_proven = True
        self._failures = 0
        if events and events[-1].offset is not None:  # every received event has one
            self._position = EventPosition.from_offset(events[-1].offset)

    @contextlib.contextmanager
    def _handler_running(self) -> Iterator[None]:
        """`finish` does not cancel the reading meanwhile."""
        self._is_handling = True
        try:
            yield
        finally:
            self._is_handling = False

    # --- ending ---------------------------------------------------------------------------------

    async def _after_reading(self, reading: asyncio.Task[None]) -> None:
        error = None if reading.cancelled() else reading.exception()
        if error is None or isinstance(error, LeaseLost):
            return
        if not isinstance(error, Exception):
            raise error
        if isinstance(error, ClientStolen | ClientClosed):
            # The next round reads the owner from the store; until then no reader is opened.
            self.error = error
            self.reason = CloseReason.OWNERSHIP_LOST
            self._ending.set()
        await self._work.on_error(self._context, error)

    async def _close_reader(self) -> None:
        reader, self.reader = self.reader, None
        if reader is not None:
            try:
                await reader.close()
            except Exception:  # noqa: BLE001 - the connection is lost in any case
                _log.warning("reader not closed in order", exc_info=True)

    async def _close(self) -> None:
        if not self._is_initialized or self._work.on_partition_close is None:
            return
        within_s = _CLOSE_S
        if self.reason is CloseReason.SHUTDOWN:
            within_s = min(_CLOSE_S, self.lease.remaining_s)
        try:
            async with asyncio.timeout(within_s):
                await self._work.on_partition_close(self._context, self.reason)
        except Exception as error:  # noqa: BLE001 - the user's code
            await self._work.on_error(self._context, error)

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, seconds)):
                await self._ending.wait()

    def _watch_lease(self) -> None:
        """A timer for the end of the lease, set again if the lease was renewed meanwhile."""
        remaining_s = self.lease.remaining_s
        if remaining_s <= 0:
            self.lose()
        else:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(remaining_s, self._watch_lease)


def restart_delay_s(failures: int) -> float:
    """The pause after that many failures in a row."""
    return _BACKOFF.pause_s(failures, random.random())  # noqa: S311 - no secret
