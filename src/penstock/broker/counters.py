"""What a hub has done since it was opened: plain numbers, counted per batch, for the metrics and,
of what came in, for the ledger."""

from __future__ import annotations

from bisect import bisect_left

import msgspec

LATENCY_BOUNDS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)
FAST_MS = 64


class Latencies:
    """A histogram of milliseconds. `fast` has those below FAST_MS, one by one: adding to it there
    is all that the usual publication costs."""

    __slots__ = ("_slow", "_slow_ms", "fast")

    def __init__(self) -> None:
        self.fast = [0] * FAST_MS
        self._slow = [0] * (len(LATENCY_BOUNDS_MS) + 1)
        self._slow_ms = 0

    def observe(self, milliseconds: int) -> None:
        milliseconds = max(0, milliseconds)  # a wall clock may be set back meanwhile
        if milliseconds < FAST_MS:
            self.fast[milliseconds] += 1
        else:
            self._slow[bisect_left(LATENCY_BOUNDS_MS, milliseconds)] += 1
            self._slow_ms += milliseconds

    @property
    def counts(self) -> list[int]:
        """By LATENCY_BOUNDS_MS; the last one is everything beyond."""
        counts = self._slow.copy()
        for milliseconds, count in enumerate(self.fast):
            counts[bisect_left(LATENCY_BOUNDS_MS, milliseconds)] += count
        return counts

    @property
    def count(self) -> int:
        return sum(self.fast) + sum(self._slow)

    @property
    def total_ms(self) -> int:
        fast_ms = sum(milliseconds * count for milliseconds, count in enumerate(self.fast))
        return fast_ms + self._slow_ms


class HubCounters(msgspec.Struct, eq=False):
    """A request is one publication. Messages and bytes are those acknowledged, or delivered."""

    incoming_messages: int = 0
    incoming_bytes: int = 0
    incoming_steps: int = 0  # of 64 KB, of events that are larger, beyond each one's first
    outgoing_messages: int = 0
    outgoing_bytes: int = 0
    throttled_requests: int = 0
    user_errors: int = 0
    server_errors: int = 0
    publish_latency: Latencies = msgspec.field(default_factory=Latencies)

    @property
    def successful_requests(self) -> int:
        return self.publish_latency.count
