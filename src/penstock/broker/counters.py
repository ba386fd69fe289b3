"""What a hub has done since it was opened: plain numbers, counted per batch, for the metrics."""

from __future__ import annotations

from bisect import bisect_left

import msgspec

LATENCY_BOUNDS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)


class Latencies:
    """A histogram of milliseconds; the last bucket is everything beyond the bounds."""

    __slots__ = ("counts", "total_ms")

    def __init__(self) -> None:
        self.counts = [0] * (len(LATENCY_BOUNDS_MS) + 1)
        self.total_ms = 0

    def observe(self, milliseconds: int) -> None:
        self.counts[bisect_left(LATENCY_BOUNDS_MS, milliseconds)] += 1
        self.total_ms += milliseconds


class HubCounters(msgspec.Struct):
    """A request is one publication. Messages and bytes are those acknowledged, or delivered."""

    incoming_messages: int = 0
    incoming_bytes: int = 0
    outgoing_messages: int = 0
    outgoing_bytes: int = 0
    successful_requests: int = 0
    throttled_requests: int = 0
    user_errors: int = 0
    server_errors: int = 0
    publish_latency: Latencies = msgspec.field(default_factory=Latencies)
