"""What a load generator counts: the cost is per turn of the event loop, not per delivery."""

from __future__ import annotations

import math
from collections import Counter, deque

import msgspec

from penstock.amqp.serial import serial_add, serial_distance

_MB = 1_048_576
_STEPS = 100  # latency classes per factor of e: each is 1 % wide
_LATENCY_MS_MIN = 0.001


class LatencySamples(Counter[int]):
    """A histogram with a resolution of 1 %, in a few kilobytes for any number of samples: counts by
    latency class."""

    def add(self, ms: float, count: int = 1) -> None:
        self[int(math.log(max(ms, _LATENCY_MS_MIN)) * _STEPS // 1)] += count

    def percentile(self, share: float) -> float | None:
        """The latency that a `share` (0 to 1) of the samples does not exceed; None if empty."""
        remaining = max(1, math.ceil(share * self.total()))
        for key in sorted(self):
            remaining -= self[key]
            if remaining <= 0:
                return math.exp((key + 0.5) / _STEPS)
        return None


class SentDeliveries(msgspec.Struct):
    """The deliveries first … first + count - 1, sent at the same time."""

    first: int
    count: int
    at_s: float


class OutstandingDeliveries:
    """Deliveries that are not settled, as runs of delivery-ids in the order of sending.

    Partitions commit in any order, so a disposition may settle the middle of a run. Ids that are
    not outstanding (of another link, or in an absurd range) are ignored.
    """

    def __init__(self) -> None:
        self._runs: deque[SentDeliveries] = deque()
        self.count = 0

    def add(self, first: int, count: int, at_s: float) -> None:
        self._runs.append(SentDeliveries(first, count, at_s))
        self.count += count

    def settle(self, first: int, last: int) -> list[tuple[int, float]]:
        """Remove first … last; returns the number and the send time for each run with some."""
        settled: list[tuple[int, float]] = []
        unsettled: list[SentDeliveries] = []
        runs = self._runs
        while runs and serial_distance(runs[0].first, last) <= 0:
            run = runs.popleft()
            start = max(0, serial_distance(first, run.first))
            stop = min(run.count, serial_distance(last, run.first) + 1)
            if start >= stop:
                unsettled.append(run)
                continue
            settled.append((stop - start, run.at_s))
            self.count -= stop - start
            if start > 0:
                unsettled.append(SentDeliveries(run.first, start, run.at_s))
            if stop < run.count:
                unsettled.append(
                    SentDeliveries(serial_add(run.first, stop), run.count - stop, run.at_s)
                )
        runs.extendleft(reversed(unsettled))
        return settled

    def clear(self) -> int:
        """Forget all; returns how many deliveries were outstanding."""
        count, self.count = self.count, 0
        self._runs.clear()
        return count


class LoadResult(msgspec.Struct, kw_only=True):
    """One run, over all its connections. `latencies` are from send to acknowledgement, `deliveries`
    from send to receive."""

    events: int = 0
    payload_bytes: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0  # of the generator
    errors: int = 0
    first_error: str | None = None
    first_condition: str | None = None
    events_read: int = 0
    latencies: LatencySamples = msgspec.field(default_factory=LatencySamples)
    deliveries: LatencySamples = msgspec.field(default_factory=LatencySamples)

    @property
    def events_per_s(self) -> float:
        return self.events / self.seconds if self.seconds else 0.0

    @property
    def mb_per_s(self) -> float:
        return self.payload_bytes / self.seconds / _MB if self.seconds else 0.0
