"""Throughput units as token buckets (design.md 6, protocol.md 10.4).

A unit is 1 MB/s or 1000 events/s in, whichever is used up first. The namespace's units are shared
by all its hubs; of them one partition takes at most one unit's worth. A refused publication costs
nothing, so the accepted rate does not sink under a flood of retries.
"""

from __future__ import annotations

import msgspec

from penstock.model import limits
from penstock.model.errors import ServerBusy

# Word for word: users' alerts match on 50002 (protocol.md 6.2).
BUSY_TEXT = (
    "The request was terminated because the entity is being throttled. "
    "Error code : 50002. Please wait 4 seconds and try again."
)

_BURST_MS = 250  # a bucket holds a quarter of a second's worth
_SCALE = 1000  # tokens are thousandths of a byte or event: rate x milliseconds stays an integer


class Ingress(msgspec.Struct, frozen=True, gc=False):
    """What a throttle has seen since it was made, enforced or not."""

    admitted_publications: int
    admitted_events: int
    admitted_bytes: int
    refused_publications: int


class Throttle:
    """The meter of a namespace, or of one partition of it when `parent` is given.

    `units` None counts and never refuses. Times are monotonic milliseconds.
    """

    __slots__ = (
        "_admitted_bytes",
        "_admitted_events",
        "_admitted_publications",
        "_byte_capacity",
        "_byte_rate",
        "_byte_tokens",
        "_event_capacity",
        "_event_rate",
        "_event_tokens",
        "_filled_ms",
        "_refused_publications",
        "_units",
        "parent",
    )

    def __init__(self, units: int | None, *, parent: Throttle | None = None) -> None:
        self.parent = parent
        self._admitted_publications = 0
        self._admitted_events = 0
        self._admitted_bytes = 0
        self._refused_publications = 0
        self._filled_ms: int | None = None  # None: full, whatever the time is
        self._byte_tokens = 0
        self._event_tokens = 0
        self._set_rates(units)

    @property
    def units(self) -> int | None:
        return self._units

    @units.setter
    def units(self, units: int | None) -> None:
        """A change holds from the next publication on; a debt stays."""
        if units == self._units:
            return
        was_enforced = self._units is not None
        self._set_rates(units)
        if was_enforced:
            self._byte_tokens = min(self._byte_tokens, self._byte_capacity)
            self._event_tokens = min(self._event_tokens, self._event_capacity)
        else:
            self._filled_ms = None

    @property
    def ingress(self) -> Ingress:
        return Ingress(
            self._admitted_publications,
            self._admitted_events,
            self._admitted_bytes,
            self._refused_publications,
        )

    def admit(self, size_bytes: int, events: int, now_ms: int) -> None:
        """Take one publication's worth from this bucket and its parent's, or from neither and
        raise ServerBusy."""
        parent = self.parent
        if self.has_room(size_bytes, events, now_ms) and (
            parent is None or parent.has_room(size_bytes, events, now_ms)
        ):
            self.take(size_bytes, events)
            if parent is not None:
                parent.take(size_bytes, events)
            return
        self.refuse()
        if parent is not None:
            parent.refuse()
        raise ServerBusy(BUSY_TEXT)

    def has_room(self, size_bytes: int, events: int, now_ms: int) -> bool:
        """A publication larger than the bucket needs it full and leaves it in debt: one such is
        taken at once, and over time the rate is the same (design.md 6)."""
        if self._units is None:
            return True
        self._fill(now_ms)
        return self._byte_tokens >= min(
            size_bytes * _SCALE, self._byte_capacity
        ) and self._event_tokens >= min(events * _SCALE, self._event_capacity)

    def take(self, size_bytes: int, events: int) -> None:
        if self._units is not None:
            self._byte_tokens -= size_bytes * _SCALE
            self._event_tokens -= events * _SCALE
        self._admitted_publications += 1
        self._admitted_events += events
        self._admitted_bytes += size_bytes

    def refuse(self) -> None:
        self._refused_publications += 1

    def _set_rates(self, units: int | None) -> None:
        assert units is None or units > 0
        self._units = units
        self._byte_rate = (units or 0) * limits.UNIT_INGRESS_BYTES_PER_S
        self._event_rate = (units or 0) * limits.UNIT_INGRESS_EVENTS_PER_S
        self._byte_capacity = self._byte_rate * _BURST_MS
        self._event_capacity = self._event_rate * _BURST_MS

    def _fill(self, now_ms: int) -> None:
        if self._filled_ms is None:
            self._byte_tokens = self._byte_capacity
            self._event_tokens = self._event_capacity
            self._filled_ms = now_ms
            return
        elapsed_ms = now_ms - self._filled_ms
        if elapsed_ms > 0:
            self._filled_ms = now_ms
            self._byte_tokens = min(
                self._byte_tokens + elapsed_ms * self._byte_rate, self._byte_capacity
            )
            self._event_tokens = min(
                self._event_tokens + elapsed_ms * self._event_rate, self._event_capacity
            )
