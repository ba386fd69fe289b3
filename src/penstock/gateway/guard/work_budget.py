"""Work budgets: how much processor time a connection may take, measured.

An authenticated connection with budget left is served at once. Useful work (events published or
delivered) pays for itself, so a busy client never exceeds its budget. Everything else waits in the
work queue: input of unauthenticated connections, and of clients that exceeded their budget. The
queue gets at most a fifth of the event loop, in slices of a few milliseconds. Addresses take
turns; within an address the connection that has used the least time comes first, so an honest new
client overtakes those that cause work. A connection that continues to do so is dropped.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from typing import Any, Protocol

from penstock.model import limits

_QUEUE_US_PER_MS = limits.WORK_QUEUE_PERCENT * 10
_REFILL_US_PER_MS = limits.WORK_REFILL_PERCENT * 10
_EVENT_US = 50  # what an event and a kilobyte of it may cost: several times what they cost
_KB_US = 20
_USEFUL_US = 500  # the same for the frames around them
_REQUEST_US = 500  # charged for an HTTP request until its cost is known

Resume = Callable[[], None]


class WorkClock(Protocol):
    """`processor_us` measures what a connection costs; `elapsed_us` how long others wait meanwhile,
    even if the machine gives this process little time."""

    def monotonic_ms(self) -> int: ...
    def processor_us(self) -> int: ...
    def elapsed_us(self) -> int: ...


class WorkQueue:
    """Runs waiting work within a share of the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: WorkClock) -> None:
        self.monotonic_ms = clock.monotonic_ms
        self.processor_us = clock.processor_us
        self.elapsed_us = clock.elapsed_us
        self.waiting = 0
        self._loop = loop
        self._lines: dict[str, list[_Entry]] = {}  # a heap per address; the next address first
        self._numbers = itertools.count()
        self._level_us = limits.WORK_QUEUE_BURST_US
        self._since_ms = clock.monotonic_ms()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_free(self) -> bool:
        """Whether work may run at once: nothing waits, and the share is not used up."""
        if self._lines:
            return False
        self._refill()
        return self._level_us > 0

    def spend(self, cost_us: int) -> None:
        """The debt is bounded: a process that the machine stopped for seconds in the middle of a
        piece of work did not work that long, and new clients must not wait for it."""
        self._level_us = max(self._level_us - cost_us, -limits.WORK_QUEUE_DEBT_US_MAX)

    def add(self, budget: WorkBudget, resume: Resume) -> None:
        """Call `resume` when it is the connection's turn, with `budget.has_turn`."""
        entry = _Entry(budget, resume, next(self._numbers))
        budget.entries.append(entry)
        heapq.heappush(self._lines.setdefault(budget.address, []), entry)
        self.waiting += 1
        if self.waiting > limits.WORK_WAITING_MAX:
            entries = itertools.chain.from_iterable(self._lines.values())
            worst = max((entry for entry in entries if not entry.is_canceled), key=_spent)
            worst.budget.drop()
        self._arm()

    def remove(self, entry: _Entry) -> None:
        """The connection is closed; its entry is skipped later."""
        if not entry.is_canceled:
            entry.is_canceled = True
            self.waiting -= 1

    def _refill(self) -> None:
        now_ms = self.monotonic_ms()
        gained_us = (now_ms - self._since_ms) * _QUEUE_US_PER_MS
        self._level_us = min(self._level_us + gained_us, limits.WORK_QUEUE_BURST_US)
        self._since_ms = now_ms

    def _arm(self) -> None:
        if self._timer is None and self._lines:
            missing_us = limits.WORK_QUEUE_SLICE_US - self._level_us
            delay_ms = max(1, missing_us // _QUEUE_US_PER_MS)
            self._timer = self._loop.call_later(delay_ms / 1000, self._run)

    def _run(self) -> None:
        self._timer = None
        self._refill()
        while self._lines and self._level_us > 0:
            self._run_next()
        self._arm()

    def _run_next(self) -> None:
        address = next(iter(self._lines))
        line = self._lines.pop(address)
        entry = heapq.heappop(line)
        if line:
            self._lines[address] = line  # after the other addresses
        if entry.is_canceled:
            return
        self.remove(entry)
        budget = entry.budget
        budget.entries.remove(entry)
        budget.has_turn = True
        try:
            entry.resume()
        finally:
            budget.has_turn = False


class _Entry:
    __slots__ = ("budget", "is_canceled", "number", "resume", "spent_us")

    def __init__(self, budget: WorkBudget, resume: Resume, number: int) -> None:
        self.budget = budget
        self.resume = resume
        self.number = number
        self.spent_us = budget.spent_us
        self.is_canceled = False

    def __lt__(self, other: _Entry) -> bool:
        return (self.spent_us, self.number) < (other.spent_us, other.number)


def _spent(entry: _Entry) -> int:
    return entry.spent_us


class WorkBudget:
    """The budget of one connection. A protocol does a piece of work between `start` and `stop`.
    Before each piece it calls `may_work`, and `wait` if that is False.

    `on_drop` ends the connection; a protocol that can report the reason replaces it."""

    def __init__(self, queue: WorkQueue, address: str, *, on_drop: Callable[[], object]) -> None:
        self.address = address
        self.on_drop = on_drop
        self.spent_us = 0
        self.has_turn = False
        self.entries: list[_Entry] = []  # of this connection, in the queue
        self._queue = queue
        self._is_authenticated = False
        self._is_closed = False
        self._level_us = 0
        self._turn: asyncio.Future[int] | None = None  # of a waiting request
        self._debt_us_max = limits.WORK_UNAUTHENTICATED_US_MAX
        self._since_ms = queue.monotonic_ms()

    @property
    def is_within(self) -> bool:
        """Authenticated and within its budget: served at once, in whole reads."""
        return self._is_authenticated and self._level_us >= 0

    @property
    def is_nearly_spent(self) -> bool:
        """Unauthenticated, and half of what it may cost in total is spent. A protocol that can
        close the connection in an orderly way does so now."""
        return not self._is_authenticated and 2 * self.spent_us > self._debt_us_max

    def authenticate(self) -> None:
        """Give the connection the budget of a client, whatever it has spent before."""
        if not self._is_authenticated:
            self._is_authenticated = True
            self.spent_us = 0
            self._level_us = limits.WORK_BURST_US
            self._debt_us_max = limits.WORK_DEBT_US_MAX
            self._since_ms = self._queue.monotonic_ms()

    def may_work(self) -> bool:
        return not self._is_closed and (self.is_within or self.has_turn or self._queue.is_free)

    def wait(self, resume: Resume) -> None:
        """Call `resume` in the next turn of the connection, which allows one piece of work."""
        if not self._is_closed:
            self._queue.add(self, resume)

    def cancel(self, resume: Resume) -> None:
        """Undo `wait`."""
        for entry in [entry for entry in self.entries if entry.resume == resume]:
            self.entries.remove(entry)
            self._queue.remove(entry)

    async def turn(self, estimate_us: int = _REQUEST_US) -> None:
        """Wait until a request may be processed, or its connection is closed. One at a time. Until
        the caller charges the cost of the request, `estimate_us` is charged to the queue."""
        if not self.may_work() and not self._is_closed:
            self._turn = asyncio.get_running_loop().create_future()
            self.wait(partial(self._start_request, estimate_us))
            self._queue.spend(-await self._turn)

    def _start_request(self, estimate_us: int) -> None:
        self._queue.spend(estimate_us)
        if self._turn is not None and not self._turn.done():
            self._turn.set_result(estimate_us)
        self._turn = None

    def measured(self, work: Awaitable[None]) -> Awaitable[None]:
        """An awaitable that runs `work` and charges each of its steps."""
        return _Measured(work, self)

    def start(self) -> tuple[int, int]:
        """A piece of work starts; pass the result to `stop`."""
        return self._queue.processor_us(), self._queue.elapsed_us()

    def stop(self, started: tuple[int, int]) -> None:
        """The piece of work is done."""
        queue = self._queue
        self.charge(queue.processor_us() - started[0], queue.elapsed_us() - started[1])

    def charge(self, cost_us: int, elapsed_us: int) -> None:
        self.has_turn = False
        self.spent_us += cost_us
        if not self.is_within:
            self._queue.spend(elapsed_us)
        if self._is_authenticated:
            now_ms = self._queue.monotonic_ms()
            gained_us = (now_ms - self._since_ms) * _REFILL_US_PER_MS
            self._since_ms = now_ms
            self._level_us = min(self._level_us + gained_us, limits.WORK_BURST_US)
        self._level_us -= cost_us
        if -self._level_us > self._debt_us_max:
            self.drop()

    def pay(self, events: int, size: int) -> None:
        """Useful work: `events` of `size` bytes were published or delivered."""
        self.spent_us = 0
        earned_us = _USEFUL_US + events * _EVENT_US + size * _KB_US // limits.KB
        self._level_us = min(self._level_us + earned_us, limits.WORK_BURST_US)

    def drop(self) -> None:
        """End the connection; idempotent."""
        if not self._is_closed:
            end = self.on_drop
            self.close()
            end()

    def close(self) -> None:
        """The connection is over: remove it from the queue."""
        self._is_closed = True
        self.on_drop = _nothing
        while self.entries:
            self._queue.remove(self.entries.pop())
        if self._turn is not None:
            self._start_request(0)


class _Measured:
    """An awaitable that charges each step of another one."""

    def __init__(self, work: Awaitable[None], budget: WorkBudget) -> None:
        self._work = work
        self._budget = budget

    def __await__(self) -> Generator[Any, Any, None]:
        steps = self._work.__await__()
        budget = self._budget
        step, value = steps.send, None
        while True:
            started = budget.start()
            try:
                awaited = step(value)
            except StopIteration:
                return
            finally:
                budget.stop(started)
            try:
                step, value = steps.send, (yield awaited)
            except BaseException as error:  # noqa: BLE001 - passed on to the work
                step, value = steps.throw, error


def _nothing() -> None:
    """The connection is over."""
