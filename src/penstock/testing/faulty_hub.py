"""Hubs and readers that let armed faults have their way; otherwise they are those of the broker."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from penstock.broker import HubRuntime, ProducerLink, Reader, SenderLink
from penstock.gateway.guard import AddressLimits, ConnectionSlot
from penstock.log.api import AppendDone
from penstock.model.errors import PenstockError
from penstock.model.events import EventBatch, Receipt
from penstock.testing.fault_board import FaultBoard


class WatchedAddressLimits(AddressLimits):
    """Sends away who comes while connections are to be refused, and knows who is still there."""

    def __init__(self, monotonic_ms: Callable[[], int], board: FaultBoard) -> None:
        super().__init__(monotonic_ms)
        self._board = board
        self._slots: set[ConnectionSlot] = set()
        self._empty = asyncio.Event()

    def admit(self, host: str) -> ConnectionSlot | None:
        slot = None if self._board.refuses_connection() else super().admit(host)
        if slot is not None:
            self._slots.add(slot)
        return slot

    def forget(self, slot: ConnectionSlot, *rest: Any, **named: Any) -> None:
        super().forget(slot, *rest, **named)
        self._slots.discard(slot)
        if not self._slots:
            self._empty.set()

    async def clear_out(self, deadline_s: float) -> None:
        """The doors are closed: end whatever socket is left, and wait until it is gone."""
        for slot in list(self._slots):
            slot.evict()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(deadline_s):
                while self._slots:
                    self._empty.clear()
                    await self._empty.wait()


class FaultyHub(HubRuntime):
    """Every publication comes by `_append`, whichever door it came by."""

    def __init__(
        self, *args: Any, board: FaultBoard, loop: asyncio.AbstractEventLoop, **rest: Any
    ) -> None:
        super().__init__(*args, **rest)
        self._board = board
        self._loop = loop
        self._late = _OrderedDelay(board, loop)

    @property
    def name(self) -> str:
        return self.entity.name

    def _append(
        self, partition: Any, batch: EventBatch, size_bytes: int, done: AppendDone, sender: object
    ) -> None:
        if self._board.is_armed or self._late.is_waiting:
            done = self._delay_if_armed(batch, done, sender)
        super()._append(partition, batch, size_bytes, done, sender)

    def _delay_if_armed(self, batch: EventBatch, done: AppendDone, sender: object) -> AppendDone:
        board = self._board
        busy = board.busy(self.name)
        if busy is not None:
            self.counters.throttled_requests += 1
            raise busy
        # A request over HTTPS has no link that could be detached.
        if isinstance(sender, SenderLink | ProducerLink) and board.counting_faults(
            self.name, "send"
        ):
            done = partial(self._count, batch.count, done, sender)
        delay_s = board.delay_s(self.name, "send")
        if delay_s or self._late.is_waiting:
            return partial(self._late.put, delay_s, done)
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
                fault.hit(sender)
        done(outcome)
        for fault in due:
            if fault.acknowledges:  # after the turn that `done` has asked for
                self._loop.call_soon(fault.hit, sender)

    def open_reader(self, **given: Any) -> Reader:
        inner = super().open_reader(**given)
        return cast(Reader, FaultyReader(inner, self, self._board, self._loop))


class _OrderedDelay:
    """Acknowledgements that wait. Their order stays, whatever each has to wait."""

    def __init__(self, board: FaultBoard, loop: asyncio.AbstractEventLoop) -> None:
        self._board = board
        self._loop = loop
        self._waiting: deque[tuple[float, Callable[[], None]]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_waiting(self) -> bool:
        return bool(self._waiting)

    def put(self, delay_s: float, done: AppendDone, outcome: Receipt | PenstockError) -> None:
        self._waiting.append((self._loop.time() + delay_s, partial(done, outcome)))
        self._board.sleeps(self)
        self._arm()

    def wake(self) -> None:
        """All of them, now."""
        self._board.woke(self)
        self._cancel()
        while self._waiting:
            self._waiting.popleft()[1]()

    def _arm(self) -> None:
        if self._timer is None and self._waiting:
            self._timer = self._loop.call_at(self._waiting[0][0], self._due)

    def _due(self) -> None:
        self._timer = None
        now = self._loop.time()
        while self._waiting and self._waiting[0][0] <= now:
            self._waiting.popleft()[1]()
        self._arm()

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class FaultyReader:
    """A reader as the door sees it: `allowance` and `advance` are where events go by."""

    def __init__(
        self, inner: Reader, hub: FaultyHub, board: FaultBoard, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.hub = hub
        self._inner = inner
        self._board = board
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._has_waited = False
        self._is_halted = False  # its link is about to be hit

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def allowance(self, bytes_max: int) -> int:
        board, name = self._board, self.hub.name
        if self._is_halted:
            return 0
        if not board.is_armed:
            return self._inner.allowance(bytes_max)
        if self._timer is not None:
            return 0
        delay_s = 0.0 if self._has_waited else board.delay_s(name, "receive")
        if delay_s:
            self._timer = self._loop.call_later(delay_s, self.wake)
            board.sleeps(self)
            return 0
        allowed = self._inner.allowance(bytes_max)
        # One event at a time, so that as many pass as the test has said.
        return min(allowed, 1) if board.counting_faults(name, "receive") else allowed

    def advance(self, events: int, position: int) -> None:
        self._inner.advance(events, position)
        if self._board.is_armed:
            for fault in self._board.count_events(self.hub.name, "receive", events):
                self._is_halted = True
                self._loop.call_soon(fault.hit, self)  # after the turn that sends them

    def wake(self) -> None:
        """It has waited: what there is goes out in one turn, the next one waits again."""
        self._forget_timer()
        self._has_waited = True
        try:
            self._inner.resume()
        finally:
            self._has_waited = False

    def close(self) -> None:
        self._forget_timer()
        self._inner.close()

    def end(self, error: PenstockError) -> None:
        self._inner.end(error)

    def _forget_timer(self) -> None:
        self._board.woke(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
