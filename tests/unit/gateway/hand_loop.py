"""An event loop and a socket that a test moves by hand."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar, cast

import msgspec

from penstock.model.clock import ManualClock

E = TypeVar("E")


class Timer(msgspec.Struct):
    """What call_later gives."""

    due_ms: float
    work: Callable[[], None] | None

    def cancel(self) -> None:
        self.work = None


class HandLoop:
    """An event loop that does nothing by itself; time is the ManualClock's."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.reads_held = False  # disk reads wait until a test lets them go
        self.complaints: list[dict[str, Any]] = []  # what asyncio would have logged
        self._soon: deque[Callable[[], None]] = deque()
        self._timers: list[Timer] = []
        self.reads: deque[Callable[[], None]] = deque()

    # what the gateway calls

    def call_soon(self, work: Callable[..., None], *args: object, context: object = None) -> None:
        self._soon.append(lambda: work(*args))

    def call_later(self, delay_s: float, work: Callable[..., None], *args: object) -> Timer:
        timer = Timer(self.clock.monotonic_ms() + 1000 * delay_s, lambda: work(*args))
        self._timers.append(timer)
        return timer

    def run_in_executor(self, executor: object, work: Callable[[], E]) -> asyncio.Future[E]:
        future: asyncio.Future[E] = asyncio.Future(loop=cast(asyncio.AbstractEventLoop, self))

        def run() -> None:
            try:
                result = work()
            except Exception as error:  # noqa: BLE001 - it is the future's to carry
                future.set_exception(error)
            else:
                future.set_result(result)

        self.reads.append(run)
        return future

    # what asyncio's Future calls

    def get_debug(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.complaints.append(context)

    # what tests call

    def step(self) -> bool:
        """One turn of a real loop: what was scheduled before it, not what that schedules."""
        turn = len(self._soon)
        for _ in range(turn):
            self._soon.popleft()()
        return turn > 0

    def settle(self) -> None:
        """Until nobody wants to do anything more at this moment."""
        for _ in range(100_000):
            if self.reads and not self.reads_held:
                self.reads.popleft()()
            elif not self.step():
                return
        raise AssertionError("the loop never comes to rest")

    def advance(self, milliseconds: int) -> None:
        """Let time pass, timer by timer."""
        end_ms = self.clock.monotonic_ms() + milliseconds
        for _ in range(100_000):
            self._timers = [timer for timer in self._timers if timer.work is not None]
            timer = min(self._timers, key=lambda each: each.due_ms, default=None)
            if timer is None or timer.due_ms > end_ms:
                break
            self.clock.advance(max(0, int(timer.due_ms) - self.clock.monotonic_ms()))
            work, timer.work = timer.work, None
            assert work is not None
            work()
            self.settle()
        else:
            raise AssertionError("a timer is set again and again for the same moment")
        self.clock.advance(end_ms - self.clock.monotonic_ms())


class Socket:
    """A Transport; what was written waits in `sent`."""

    def __init__(self) -> None:
        self.peer = "192.0.2.1:50000"
        self.sent = bytearray()
        self.writes = 0
        self.is_closed = False
        self.is_aborted = False
        self.is_reading = True

    def is_closing(self) -> bool:
        return self.is_closed

    def write(self, data: bytes) -> None:
        assert not self.is_closed
        assert data
        self.writes += 1
        self.sent += data

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = self.is_aborted = True

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True
