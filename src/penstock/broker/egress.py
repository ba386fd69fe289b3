"""What goes out of a namespace: 2 MB/s for each unit. Beyond it readers are slowed, never refused
(protocol.md 10.4): they wait in a queue and are served in turn as tokens come back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from penstock.broker.usage_meter import UsageMeter
from penstock.model import limits
from penstock.model.clock import Clock

Later = Callable[[int, Callable[[], None]], object]
"""(milliseconds, work): do it then, on the owner's thread."""

_BURST_MS = 250  # as for ingress
_TURN_MS = 10  # one reader's turn, in the namespace's rate: small enough that all seem to flow
_SCALE = 1000  # tokens are thousandths of a byte: rate x milliseconds stays an integer


class EgressWaiter(Protocol):
    def resume(self) -> None:
        """Its turn has come: it may ask again now."""


class EgressLimiter:
    """The egress of one namespace, metered and, where units are enforced, paced.

    `later` None: nobody can wake a reader that waits, so none is made to.
    """

    __slots__ = (
        "_capacity",
        "_clock",
        "_filled_ms",
        "_granted",
        "_later",
        "_meter",
        "_on_short",
        "_overdrawn",
        "_rate",
        "_served",
        "_timer",
        "_tokens",
        "_turn",
        "_units",
        "_waiting",
        "is_paced",
    )

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
        self._waiting: dict[EgressWaiter, None] = {}
        self._overdrawn: dict[
            EgressWaiter, int
        ] = {}  # bytes by which a turn's last event went beyond
        self._served: EgressWaiter | None = None  # whose turn it is
        self._granted = 0  # bytes, to whoever asked last
        self._timer: object | None = None  # what the timer that counts was set with
        self._filled_ms = clock.monotonic_ms()
        self._set_rate(units)
        self._tokens = self._capacity

    @property
    def units(self) -> int | None:
        return self._units

    @units.setter
    def units(self, units: int | None) -> None:
        """Holds at once, for those who wait as well."""
        if units == self._units:
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
        """How many bytes the reader may send now. 0: it waits, and `resume()` tells when to ask
        again. The last event may go beyond: it is paid for later."""
        if not self.is_paced:
            return bytes_max
        self._fill()
        if self._tokens > 0 and (not self._waiting or reader is self._served):
            self._served = None  # one turn; then the others have theirs
            self._granted = min(bytes_max, max(1, min(self._tokens // _SCALE, self._turn)))
            return self._granted
        if self._tokens <= 0 and self._on_short is not None:
            self._on_short()
        self._waiting[reader] = None
        self._arm()
        return 0

    def spent(self, reader: EgressWaiter, size: int) -> None:
        """The reader, which asked just now, sent so many bytes of events."""
        if self._rate > 0:
            self._tokens -= size * _SCALE
            if size > self._granted:
                beyond = size - self._granted
                self._overdrawn[reader] = self._overdrawn.get(reader, 0) + beyond
        self._meter.egress(size, self._clock.now_ms())

    def leave(self, reader: EgressWaiter) -> None:
        """The reader is gone."""
        self._waiting.pop(reader, None)
        self._overdrawn.pop(reader, None)

    def _set_rate(self, units: int | None) -> None:
        self._units = units
        paced = 0 if units is None or self._later is None else units
        self.is_paced = paced > 0
        self._rate = paced * limits.UNIT_EGRESS_BYTES_PER_S
        self._capacity = self._rate * _BURST_MS
        self._turn = max(1, self._rate * _TURN_MS // _SCALE)

    def _fill(self) -> None:
        now_ms = self._clock.monotonic_ms()
        elapsed_ms = now_ms - self._filled_ms
        if elapsed_ms > 0:
            self._filled_ms = now_ms
            self._tokens = min(self._tokens + elapsed_ms * self._rate, self._capacity)

    def _arm(self) -> None:
        """One timer for all, at the next reader's turn."""
        if self._timer is not None:
            return
        assert self._later is not None
        missing = self._turn * _SCALE - self._tokens
        timer = self._timer = object()
        self._later(max(1, -(-missing // self._rate)), lambda: self._due(timer))

    def _due(self, timer: object) -> None:
        if timer is self._timer:
            self._timer = None
            self._serve()

    def _serve(self) -> None:
        """In the order in which they came, a whole turn each. Who went beyond its last one waits
        until that is made good."""
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
