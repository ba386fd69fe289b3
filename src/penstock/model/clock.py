"""Time as a dependency: packages below `service` take a Clock and never read the system clock."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Wall-clock time may jump in both directions; monotonic time never goes back."""

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch (UTC), for enqueued times and token expiry."""
        ...

    def monotonic_ms(self) -> int:
        """Milliseconds since an arbitrary start, for deadlines and rates."""
        ...


class SystemClock:
    """The clocks of the operating system."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def processor_us(self) -> int:
        """Microseconds of processor time that this thread has used, to measure work."""
        return time.thread_time_ns() // 1000

    def elapsed_us(self) -> int:
        """Microseconds since an arbitrary start, to measure work including waits."""
        return time.perf_counter_ns() // 1000


class ManualClock:
    """A clock that a test moves."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._monotonic_ms = 0
        self._work_us = 0
        self.step_us = 0  # added by each call of processor_us

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_ms(self) -> int:
        return self._monotonic_ms

    def processor_us(self) -> int:
        self._work_us += self.step_us
        return self._work_us

    def elapsed_us(self) -> int:
        return self._work_us

    def advance(self, milliseconds: int) -> None:
        """Move both clocks forward."""
        assert milliseconds >= 0
        self._now_ms += milliseconds
        self._monotonic_ms += milliseconds

    def jump(self, milliseconds: int) -> None:
        """Set the wall clock only, forward or back."""
        self._now_ms += milliseconds
