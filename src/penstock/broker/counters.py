"""What a hub has done since it was opened: plain numbers, counted per batch, for the metrics and,
of what came in, for the ledger."""

from __future__ import annotations

from bisect import bisect_left

LATENCY_BOUNDS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)
FAST_MS = 64


class LatencyHistogram:
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


class HubCounters:
    """A request is one publication. Messages and bytes are those acknowledged, or delivered.

    A plain class: each publication adds to it, and CPython is quickest with its own slots.
    """

    __slots__ = (
        "incoming_bytes",
        "incoming_messages",
        "incoming_steps",
        "outgoing_bytes",
        "outgoing_messages",
        "publish_latency",
        "server_errors",
        "throttled_requests",
        "user_errors",
    )

    def __init__(self) -> None:
        self.incoming_messages = 0
        self.incoming_bytes = 0
        self.incoming_steps = 0  # of 64 KB, of events that are larger, beyond each one's first
        self.outgoing_messages = 0
        self.outgoing_bytes = 0
        self.throttled_requests = 0
        self.user_errors = 0
        self.server_errors = 0
        self.publish_latency = LatencyHistogram()

    @property
    def successful_requests(self) -> int:
        return self.publish_latency.count
