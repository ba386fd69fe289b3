"""Long-lived work of the service: passes that repeat, and when each one was last completed.

A failure ends one item or one pass, never the work itself: it is logged, `/ready` names it, and the
next pass runs. A pass over many items gives the event loop a turn after a bounded number of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

import msgspec

from penstock.model.clock import Clock
from penstock.model.errors import DataDirectoryError, PenstockError

ITEMS_PER_TURN = 64  # partitions, connections or rows that one event-loop turn handles
_LATE_PASSES = 3  # a pass is late after this many intervals
_ERROR_MAX = 300  # characters of an error in a warning

_log = logging.getLogger("penstock.service")

# Returns None, or what failed in a pass that was otherwise completed.
Work = Callable[[], Awaitable[str | None]]


class PassReport(msgspec.Struct, frozen=True):
    """When a kind of work last completed a pass."""

    name: str
    seconds_ago: float | None  # None: no pass has been completed yet
    warning: str | None


class PeriodicTask:
    """Runs `work` at once (after a pause with `waits_first`) and then every `interval_s` seconds at
    the latest: after `pause_s()` seconds where that is given, sooner after `wake`. A pass that
    raises is logged and recorded, and the next pass runs after the same pause."""

    def __init__(
        self,
        name: str,
        work: Work,
        clock: Clock,
        *,
        interval_s: float,
        pause_s: Callable[[], float] | None = None,
        waits_first: bool = False,
    ) -> None:
        self.name = name
        self._work = work
        self._clock = clock
        self._interval_s = interval_s
        self._pause_s = pause_s or (lambda: interval_s)
        self._waits_first = waits_first
        self._wake = asyncio.Event()
        self._wake_timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_closing = False
        self._started_ms = clock.monotonic_ms()
        self._completed_ms: int | None = None  # the last pass that ran to its end
        self._error: str | None = None  # of the last pass, also of some items of a complete one

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name=self.name)
        self._task.add_done_callback(self._on_end)

    def wake(self, after_s: float = 0.0) -> None:
        """Run the next pass now, or `after_s` seconds after the first such call."""
        if not after_s:
            self._wake.set()
        elif self._wake_timer is None:
            loop = asyncio.get_running_loop()
            self._wake_timer = loop.call_later(after_s, self._wake.set)

    async def close(self) -> None:
        """End the task; a pass that is under way is canceled."""
        self._is_closing = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def finish(self) -> None:
        """End the task after a last pass. No pass is canceled: a write that is under way would be
        stored and then be counted again."""
        self._is_closing = True
        self._wake.set()
        if self._task is not None:
            await asyncio.wait([self._task])
        await self.run_once()

    async def run_once(self) -> None:
        """Run one pass and record how it ended. Raises CancelledError only when the running task
        itself is canceled, not when something that the pass waits for is."""
        before = self._error
        try:
            self._error = _shorten(await self._work())
            self._completed_ms = self._clock.monotonic_ms()
        except PenstockError as error:  # such as a full disk: logged once
            # `/ready` needs no token and names no path; the log does.
            is_file = isinstance(error, DataDirectoryError)
            text = "a file of the data directory cannot be used" if is_file else str(error)
            self._error = _shorten(text)
            if self._error != before:
                _log.warning("pass_failed task=%s error=%s", self.name, error)
        except (Exception, asyncio.CancelledError) as error:
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise
            _log.exception("pass_failed task=%s error=%r", self.name, error)
            self._error = _shorten(repr(error))

    def report(self) -> PassReport:
        now_ms, completed_ms = self._clock.monotonic_ms(), self._completed_ms
        seconds_ago = None if completed_ms is None else (now_ms - completed_ms) / 1000
        since_ms = self._started_ms if completed_ms is None else completed_ms
        is_late = now_ms - since_ms > _LATE_PASSES * self._interval_s * 1000
        if self._error is None and not is_late:
            return PassReport(self.name, seconds_ago, None)
        last = "never" if seconds_ago is None else f"{seconds_ago:,.0f} s ago"
        text = (
            f"{self.name}: the last complete pass was {last}; one is expected every "
            f"{self._interval_s:,.0f} s."
        )
        if self._error is not None:
            text += f" The last error was: {self._error}"
        return PassReport(self.name, seconds_ago, text)

    async def _run(self) -> None:
        if self._waits_first:
            await self._wait()
        while not self._is_closing:
            self._wake.clear()
            if self._wake_timer is not None:
                self._wake_timer.cancel()
                self._wake_timer = None
            await self.run_once()
            await self._wait()

    async def _wait(self) -> None:
        # Not wait_for: in Python 3.11 it loses a cancellation that comes with the event.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._pause_s()):
                await self._wake.wait()

    def _on_end(self, task: asyncio.Task[None]) -> None:
        """Whatever ended the task but `close`: say so, and start again."""
        if self._is_closing or task.cancelled():
            return
        error = task.exception()
        _log.error("task_ended task=%s error=%r restarted=true", self.name, error)
        self._error = _shorten(f"the task ended: {error!r}")
        self.start()


class TurnBudget:
    """Gives the event loop a turn after every `items_max` items of a pass."""

    def __init__(self, items_max: int = ITEMS_PER_TURN) -> None:
        self._items_max = items_max
        self._items = 0

    async def spend(self, items: int = 1) -> None:
        """`items` were handled."""
        self._items += items
        if self._items >= self._items_max:
            self._items = 0
            await asyncio.sleep(0)


def _shorten(text: str | None) -> str | None:
    if text is None:
        return None
    line = " ".join(text.split())
    return line if len(line) <= _ERROR_MAX else f"{line[:_ERROR_MAX]}..."
