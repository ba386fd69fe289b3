"""Metrics of namespaces, hubs and consumer groups over time: names, samples, series, retention; and
histograms of latencies."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import msgspec

# Counted within each step.
COUNTERS = (
    "incoming_messages",
    "incoming_bytes",
    "outgoing_messages",
    "outgoing_bytes",
    "successful_requests",
    "throttled_requests",
    "user_errors",
    "server_errors",
)
# The highest value within the step; None if unknown.
GAUGES = (
    "active_connections",
    "size_bytes",  # of the retained log
    "lag_events",  # of the group with the largest lag, summed over all partitions
    "throughput_units",  # of the namespace; None if units are not enforced
)
NAMES = (*COUNTERS, *GAUGES)

SECOND_MS = 1000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS


class MetricRetention(msgspec.Struct, frozen=True):
    """A resolution and how long samples of it are kept."""

    step_ms: int
    kept_ms: int


# Older samples are kept in larger steps: 7,920 rows per subject.
LEVELS = (
    MetricRetention(10 * SECOND_MS, 2 * HOUR_MS),
    MetricRetention(MINUTE_MS, 2 * DAY_MS),
    MetricRetention(10 * MINUTE_MS, 30 * DAY_MS),
)
STEP_MS = LEVELS[0].step_ms
KEPT_MS = LEVELS[-1].kept_ms
SUBJECTS_MAX = 256  # rows per step: 2 million in all, about 190 MB
POINTS_MAX = 500  # of one series in a response

LATENCY_BOUNDS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)
FAST_MS = 64
# An SSD flushes in less than a millisecond, a hard disk in tens, a failing disk in seconds.
FLUSH_BOUNDS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


class MetricSubject(msgspec.Struct, frozen=True):
    """A namespace, one of its hubs, or a consumer group of that hub, by their keys (folded names).
    `hub` and `group` are empty for the levels above."""

    namespace: str
    hub: str = ""
    group: str = ""


class MetricSample(msgspec.Struct, frozen=True):
    """Values of one subject in one step, in the order of COUNTERS and GAUGES."""

    subject: MetricSubject
    counters: tuple[int, ...]
    gauges: tuple[int | None, ...]


class MetricSeries(msgspec.Struct, frozen=True, kw_only=True):
    """Values over time, one for each of `at_ms`, the starts of the steps; None where nothing was
    recorded."""

    step_ms: int
    at_ms: list[int]
    values: dict[str, list[int | None]]
    lag_by_group: dict[str, list[int | None]] = {}


class MetricRequest(msgspec.Struct, frozen=True, kw_only=True):
    """At most `points` steps with since_ms <= start < until_ms, of a namespace or of one hub."""

    namespace: str
    hub: str | None
    names: Sequence[str]
    since_ms: int
    until_ms: int
    points: int


class LatencyHistogram:
    """Histogram of publish latencies in milliseconds.

    `fast` counts each value below FAST_MS by itself, so that the hot path only increments one
    element of it.
    """

    __slots__ = ("_slow", "_slow_ms", "fast")

    def __init__(self) -> None:
        self.fast = [0] * FAST_MS
        self._slow = [0] * (len(LATENCY_BOUNDS_MS) + 1)
        self._slow_ms = 0

    def observe(self, milliseconds: int) -> None:
        milliseconds = max(0, milliseconds)  # the wall clock may have been set back
        if milliseconds < FAST_MS:
            self.fast[milliseconds] += 1
        else:
            self._slow[bisect_left(LATENCY_BOUNDS_MS, milliseconds)] += 1
            self._slow_ms += milliseconds

    @property
    def counts(self) -> list[int]:
        """Counts by LATENCY_BOUNDS_MS; the last one counts everything above."""
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


class FlushLatencies:
    """Histogram of flushes, one per commit round. Only the committer thread calls `observe`; any
    thread may read."""

    def __init__(self) -> None:
        self._counts = [0] * (len(FLUSH_BOUNDS_S) + 1)
        self.total_s = 0.0

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(FLUSH_BOUNDS_S, seconds)] += 1
        self.total_s += seconds

    @property
    def counts(self) -> list[int]:
        """Counts by FLUSH_BOUNDS_S; the last one counts everything above."""
        return self._counts.copy()
