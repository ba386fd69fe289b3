"""Egress limit of a namespace: 2 MB/s per throughput unit. Readers above it are slowed, never
refused (protocol.md 10.4): they wait in a queue and send in turn as tokens come back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from penstock.broker.usage_meter import UsageMeter
from penstock.model import limits
from penstock.model.clock import Clock

Later = Callable[[int, Callable[[], None]], object]
"""(milliseconds, work): run the work after that time, on the owner's thread."""

_TURN_MS = 10  # a turn is the egress of 10 ms: short, so that no waiting reader seems to stall
_SCALE = 1000  # tokens are thousandths of a byte: rate x milliseconds stays an integer


class EgressWaiter(Protocol):
    def resume(self) -> None:
        """The turn of the reader: it may call `allowance` now. The turn ends when this returns."""


class EgressLimiter:
    """Meters the egress of one namespace and, where units are enforced, paces it.

    A bucket of tokens (thousandths of a byte) fills at the rate of the units up to 250 ms of it. A
    reader may send while the bucket is positive. Its last event may exceed the allowance and leave
    the bucket negative, so over time the rate holds for events of any size. With `later` None no
    timer can wake a waiting reader, so readers are never made to wait.
    """

    def __init__(
        self,
        units: int | None,
        meter: UsageMeter,
        *,
        clock: Clock,
        later: Later | None,
        on_short: Callable[[], None] | None = None,
    ) -> None:
        self._meter = meter
        self._clock = clock
        self._later = later
        self._on_short = on_short
        # An ordered set, the first one is next. While it is not empty, only `_served` may send:
        # otherwise a reader that asks often would overtake the waiting ones.
        self._waiting: dict[EgressWaiter, None] = {}
        # Bytes that a reader sent beyond its allowances. It skips one turn per turn's worth, so
        # that readers of large events get the same share as readers of small ones.
        self._overdrawn: dict[EgressWaiter, int] = {}
        self._served: EgressWaiter | None = None  # the reader whose turn it is, during resume()
        self._granted = 0  # last allowance in bytes; `spent` follows it without another in between
        self._timer: object | None = None  # identity of the current timer; others are ignored
        self._filled_ms = clock.monotonic_ms()
        self._set_rate(units)
        self._tokens = self._capacity

    def set_units(self, units: int | None) -> None:
        """Takes effect at once, also for waiting readers."""
        if units == self.units:
            return
        was_paced = self._rate > 0
        if was_paced:
            self._fill()
        self._set_rate(units)
        self._tokens = min(self._tokens, self._capacity) if was_paced else self._capacity
        self._filled_ms = self._clock.monotonic_ms()
        self._timer = None
        if self._waiting:
            self._serve()

    def allowance(self, reader: EgressWaiter, bytes_max: int) -> int:
        """Bytes that the reader may send now. 0: the reader waits until its `resume()` is called.
        The last event may exceed the allowance; the excess is deducted from later turns."""
        if not self.is_paced:
            return bytes_max
        self._fill()
        if self._tokens > 0 and (not self._waiting or reader is self._served):
            self._served = None  # one allowance per turn
            self._granted = min(bytes_max, max(1, min(self._tokens // _SCALE, self._turn)))
            return self._granted
        if self._tokens <= 0 and self._on_short is not None:
            self._on_short()
        self._waiting[reader] = None
        self._arm()
        return 0

    def spent(self, reader: EgressWaiter, size: int) -> None:
        """Deduct the bytes that the reader sent on its last allowance."""
        if self._rate > 0:
            self._tokens -= size * _SCALE
            if size > self._granted:
                excess = size - self._granted
                self._overdrawn[reader] = self._overdrawn.get(reader, 0) + excess
        self._meter.egress(size, self._clock.now_ms())

    def leave(self, reader: EgressWaiter) -> None:
        """The reader is closed."""
        self._waiting.pop(reader, None)
        self._overdrawn.pop(reader, None)

    def _set_rate(self, units: int | None) -> None:
        self.units = units
        paced_units = 0 if units is None or self._later is None else units
        self.is_paced = paced_units > 0
        self._rate = paced_units * limits.UNIT_EGRESS_BYTES_PER_S
        self._capacity = self._rate * limits.UNIT_BURST_MS
        self._turn = max(1, self._rate * _TURN_MS // _SCALE)

    def _fill(self) -> None:
        now_ms = self._clock.monotonic_ms()
        elapsed_ms = now_ms - self._filled_ms
        if elapsed_ms > 0:
            self._filled_ms = now_ms
            self._tokens = min(self._tokens + elapsed_ms * self._rate, self._capacity)

    def _arm(self) -> None:
        """Start the timer, one for all readers, for the moment when a whole turn is available."""
        if self._timer is not None:
            return
        assert self._later is not None
        missing = self._turn * _SCALE - self._tokens
        timer = self._timer = object()
        delay_ms = max(1, -(-missing // self._rate))  # rounded up
        self._later(delay_ms, lambda: self._on_timer(timer))

    def _on_timer(self, timer: object) -> None:
        if timer is self._timer:
            self._timer = None
            self._serve()

    def _serve(self) -> None:
        """Resume waiting readers in order, a whole turn each. A reader that overdrew by a turn or
        more goes to the end of the queue instead, unless it is the only one."""
        if self._rate == 0:
            waiting, self._waiting = self._waiting, {}
            for reader in waiting:
                reader.resume()
            return
        self._fill()
        while self._waiting and self._tokens >= self._turn * _SCALE:
            reader = next(iter(self._waiting))
            del self._waiting[reader]
            overdrawn = self._overdrawn.get(reader, 0)
            if overdrawn >= self._turn and self._waiting:
                self._overdrawn[reader] = overdrawn - self._turn
                self._waiting[reader] = None
                continue
            self._served = reader
            reader.resume()
            self._served = None
        if self._waiting:
            self._arm()
