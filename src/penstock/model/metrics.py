"""Numbers over time: what is kept of each namespace, hub and consumer group, and for how long."""

from __future__ import annotations

from itertools import pairwise

import msgspec

# Counted within each step of time.
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
# As they were, the highest within the step; None where it is not known.
GAUGES = (
    "active_connections",
    "size_bytes",  # of the retained log
    "lag_events",  # of the group that is furthest behind, all partitions together
    "throughput_units",  # held by the namespace; None where they are not enforced
)
NAMES = (*COUNTERS, *GAUGES)

SECOND_MS = 1000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS


class MetricRetention(msgspec.Struct, frozen=True):
    """A resolution, and how long it is kept."""

    step_ms: int
    kept_ms: int


# Falling: what is older is kept in larger steps. 7 920 rows for each that is looked at.
LEVELS = (
    MetricRetention(10 * SECOND_MS, 2 * HOUR_MS),
    MetricRetention(MINUTE_MS, 2 * DAY_MS),
    MetricRetention(10 * MINUTE_MS, 30 * DAY_MS),
)
STEP_MS = LEVELS[0].step_ms
KEPT_MS = LEVELS[-1].kept_ms
SUBJECTS_MAX = 256  # rows of one moment: 2 million in all, about 190 MB
POINTS_MAX = 500  # of one answer's series

assert all(fine.kept_ms < coarse.kept_ms for fine, coarse in pairwise(LEVELS))
assert all(level.step_ms % STEP_MS == 0 for level in LEVELS)


class MetricSubject(msgspec.Struct, frozen=True):
    """What numbers are of: a namespace, one of its hubs, or one of that hub's consumer groups,
    by their keys; empty where it is not that special."""

    namespace: str
    hub: str = ""
    group: str = ""


class MetricSample(msgspec.Struct, frozen=True):
    """One subject's numbers of one step: `counters` in the order of COUNTERS, and so on."""

    subject: MetricSubject
    counters: tuple[int, ...]
    gauges: tuple[int | None, ...]


class MetricSeries(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers over time, one for each of `at_ms` (when a step begins); None where nothing was
    recorded. Counters are what was counted within the step, gauges the highest."""

    step_ms: int
    at_ms: list[int]
    values: dict[str, list[int | None]]
    lag_by_group: dict[str, list[int | None]] = {}
