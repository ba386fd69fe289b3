"""Hub, reader and connection limits of the broker that apply the armed faults."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from penstock.broker import error_messages
from penstock.broker.hub import HubRuntime, SenderLink
from penstock.broker.idempotent_producers import ProducerLink
from penstock.broker.reader import Reader
from penstock.gateway.guard import AddressLimits, ConnectionSlot
from penstock.log.api import AppendDone
from penstock.model.errors import PenstockError
from penstock.model.events import EventBatch, Receipt
from penstock.testing.faults import FaultBoard, FaultKind


class FaultyAddressLimits(AddressLimits):
    """Refuses connections while a fault says so, and knows the open ones."""

    def __init__(self, monotonic_ms: Callable[[], int], board: FaultBoard) -> None:
        super().__init__(monotonic_ms)
        self._board = board
        self._slots: set[ConnectionSlot] = set()
        self._empty = asyncio.Event()

    def admit(self, host: str) -> ConnectionSlot | None:
        slot = None if self._board.strikes(FaultKind.CONNECTIONS) else super().admit(host)
        if slot is not None:
            self._slots.add(slot)
        return slot

    def forget(self, slot: ConnectionSlot, *args: Any, **kwargs: Any) -> None:
        super().forget(slot, *args, **kwargs)
        self._slots.discard(slot)
        if not self._slots:
            self._empty.set()

    async def close_all(self, deadline_s: float) -> None:
        """Close the sockets that are left after the listeners, and wait until they are closed."""
        for slot in list(self._slots):
            slot.evict()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(deadline_s):
                while self._slots:
                    self._empty.clear()
                    await self._empty.wait()


class FaultyHub(HubRuntime):
    """Every publication goes through `_append`, whichever gateway received it."""

    def __init__(
        self, *args: Any, board: FaultBoard, loop: asyncio.AbstractEventLoop, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self._board = board
        self._loop = loop
        # Delayed acknowledgements, in order whatever the delay of each, and when they are due.
        self._delayed: deque[tuple[float, Callable[[], None]]] = deque()

    @property
    def name(self) -> str:
        return self.entity.name

    def _append(
        self, partition: Any, batch: EventBatch, size_bytes: int, done: AppendDone, sender: object
    ) -> None:
        if self._board.armed or self._delayed:
            done = self._apply_faults(batch, done, sender)
        super()._append(partition, batch, size_bytes, done, sender)

    def _apply_faults(self, batch: EventBatch, done: AppendDone, sender: object) -> AppendDone:
        board = self._board
        if board.strikes(FaultKind.BUSY, self.name):
            self.counters.throttled_requests += 1
            raise error_messages.server_busy_error()
        # A request over HTTPS has no link that could be detached.
        if isinstance(sender, SenderLink | ProducerLink) and board.counting_faults(
            self.name, "send"
        ):
            done = partial(self._count, batch.count, done, sender)
        delay_s = board.delay_s(self.name, "send")
        if delay_s or self._delayed:
            return partial(self._delay, delay_s, done)
        return done

    def _count(
        self, events: int, done: AppendDone, sender: object, outcome: Receipt | PenstockError
    ) -> None:
        if not isinstance(outcome, Receipt):
            done(outcome)
            return
        due = self._board.count_events(self.name, "send", events)
        for fault in due:
            if not fault.acknowledges:
                self._board.hit(fault, sender)
        done(outcome)
        for fault in due:
            if fault.acknowledges:  # after the turn that `done` has scheduled
                self._loop.call_soon(self._board.hit, fault, sender)

    def _delay(self, delay_s: float, done: AppendDone, outcome: Receipt | PenstockError) -> None:
        due_s = self._loop.time() + delay_s
        self._delayed.append((due_s, partial(done, outcome)))
        self._loop.call_later(delay_s, self._release, due_s)
        self._board.wake_ups[self._release] = None

    def _release(self, until_s: float = math.inf) -> None:
        while self._delayed and self._delayed[0][0] <= until_s:
            self._delayed.popleft()[1]()

    def open_reader(self, **options: Any) -> Reader:
        inner = super().open_reader(**options)
        return cast(Reader, FaultyReader(inner, self, self._board, self._loop))


class FaultyReader:
    """A reader as a gateway sees it: events pass `allowance` and `advance`."""

    def __init__(
        self, inner: Reader, hub: FaultyHub, board: FaultBoard, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._hub = hub
        self._inner = inner
        self._board = board
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._has_waited = False
        self._is_halted = False  # a fault is about to hit its link

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def allowance(self, bytes_max: int) -> int:
        board, name = self._board, self._hub.name
        if self._is_halted:
            return 0
        if not board.armed:
            return self._inner.allowance(bytes_max)
        if self._timer is not None:
            return 0
        delay_s = 0.0 if self._has_waited else board.delay_s(name, "receive")
        if delay_s:
            self._timer = self._loop.call_later(delay_s, self._wake_up)
            board.wake_ups[self._wake_up] = None
            return 0
        allowed = self._inner.allowance(bytes_max)
        # One event at a time, so that exactly as many pass as the test has asked for.
        return min(allowed, 1) if board.counting_faults(name, "receive") else allowed

    def advance(self, events: int, position: int) -> None:
        self._inner.advance(events, position)
        if self._board.armed:
            for fault in self._board.count_events(self._hub.name, "receive", events):
                self._is_halted = True
                self._loop.call_soon(self._board.hit, fault, self)  # after the turn that sends them

    def _wake_up(self) -> None:
        """The delay is over: this turn delivers what there is, the next one waits again."""
        self._cancel_timer()
        self._has_waited = True
        try:
            self._inner.resume()
        finally:
            self._has_waited = False

    def close(self) -> None:
        self._cancel_timer()
        self._inner.close()

    def _cancel_timer(self) -> None:
        self._board.wake_ups.pop(self._wake_up, None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
