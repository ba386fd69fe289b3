"""Throughput units as token buckets (protocol.md 10.4).

A unit is 1 MB/s or 1000 events/s in, whichever is used up first. The namespace's units are shared
by all its hubs; of them one partition takes at most one unit's worth. A refused publication costs
nothing, so the accepted rate does not sink under a flood of retries. Senders that press at the same
time share equally (`shares`).
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from penstock.broker.shares import BYTES, EVENTS, FairShares
from penstock.model import limits
from penstock.model.errors import ServerBusy

# Word for word: users' alerts match on 50002 (protocol.md 6.2).
BUSY_TEXT = (
    "The request was terminated because the entity is being throttled. "
    "Error code : 50002. Please wait 4 seconds and try again."
)

_BURST_MS = 250  # a bucket holds a quarter of a second's worth
_SCALE = 1000  # tokens are thousandths of a byte or event: rate x milliseconds stays an integer


class IngressCounts(msgspec.Struct, frozen=True, gc=False):
    """What a throttle has seen since it was made, enforced or not."""

    admitted_publications: int
    admitted_events: int
    admitted_bytes: int
    refused_publications: int


class Throttle:
    """The meter of a namespace, or of one partition of it when `parent` is given.

    `units` None counts and never refuses. Times are monotonic milliseconds. A sender is whatever
    compares equal to itself: a link, an address; None stands for all that say nothing.
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
        "_on_short",
        "_refused_publications",
        "_shares",
        "_units",
        "is_enforced",
        "parent",
    )

    def __init__(
        self,
        units: int | None,
        *,
        parent: Throttle | None = None,
        on_short: Callable[[], None] | None = None,
    ) -> None:
        """`on_short` is told whenever this throttle had no room."""
        self.parent = parent
        self._on_short = on_short
        self._admitted_publications = 0
        self._admitted_events = 0
        self._admitted_bytes = 0
        self._refused_publications = 0
        self._filled_ms: int | None = None  # None: full, whatever the time is
        self._byte_tokens = 0  # below 0: a debt
        self._event_tokens = 0
        self._shares = FairShares()
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
        if was_enforced and units is not None:
            self._byte_tokens = min(self._byte_tokens, self._byte_capacity)
            self._event_tokens = min(self._event_tokens, self._event_capacity)
            self._shares.trim((self._byte_capacity, self._event_capacity))
        else:
            self._shares.dissolve()
            self._filled_ms = None

    @property
    def ingress(self) -> IngressCounts:
        return IngressCounts(
            self._admitted_publications,
            self._admitted_events,
            self._admitted_bytes,
            self._refused_publications,
        )

    def admit(self, size_bytes: int, events: int, now_ms: int, sender: object = None) -> None:
        """Take one publication's worth from this bucket and its parent's, or from neither and
        raise ServerBusy."""
        parent = self.parent
        fits = self.has_room(size_bytes, events, now_ms, sender)
        if parent is None:
            if fits:
                self.take(size_bytes, events, now_ms, sender)
                return
        elif parent.has_room(size_bytes, events, now_ms, sender):
            if fits:
                self.take(size_bytes, events, now_ms, sender)
                parent.take(size_bytes, events, now_ms, sender)
                return
            parent.count_refusal()
        else:
            parent.refuse(size_bytes, events, now_ms, sender)
        if fits:
            self.count_refusal()
        else:
            self.refuse(size_bytes, events, now_ms, sender)
        raise ServerBusy(BUSY_TEXT)

    def has_room(self, size_bytes: int, events: int, now_ms: int, sender: object = None) -> bool:
        """A publication larger than the bucket needs it full and leaves it in debt: one such is
        taken at once, and over time the rate is the same (protocol.md 10.4). Where senders press,
        it must be saved for whole: many debts at once would be many times the rate."""
        if self._units is None:
            return True
        self._fill(now_ms)
        size, count = size_bytes * _SCALE, events * _SCALE
        if not self._shares:
            return self._byte_tokens >= min(
                size, self._byte_capacity
            ) and self._event_tokens >= min(count, self._event_capacity)
        saved = self._shares.of(sender, now_ms).saved
        return (
            saved[BYTES] + max(0, self._byte_tokens) >= size
            and saved[EVENTS] + max(0, self._event_tokens) >= count
        )

    def take(self, size_bytes: int, events: int, now_ms: int, sender: object = None) -> None:
        if self._units is not None:
            size, count = size_bytes * _SCALE, events * _SCALE
            if self._shares:
                share = self._shares.of(sender, now_ms)
                size, count = share.spend(BYTES, size), share.spend(EVENTS, count)
            self._byte_tokens -= size
            self._event_tokens -= count
        self._admitted_publications += 1
        self._admitted_events += events
        self._admitted_bytes += size_bytes

    def refuse(self, size_bytes: int, events: int, now_ms: int, sender: object = None) -> None:
        """It had no room: from now on the sender saves for this publication."""
        self.count_refusal()
        self._shares.refuse(sender, (size_bytes * _SCALE, events * _SCALE), now_ms)
        if self._on_short is not None:
            self._on_short()

    def count_refusal(self) -> None:
        self._refused_publications += 1

    def forget(self, sender: object) -> None:
        """The sender has left: what it saved is for all."""
        if self._shares:
            self._give_back(self._shares.forget(sender))

    def _set_rates(self, units: int | None) -> None:
        assert units is None or units > 0
        self._units = units
        self.is_enforced = units is not None  # nobody is asked where nobody is refused
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
        if elapsed_ms <= 0:
            return
        size, count = elapsed_ms * self._byte_rate, elapsed_ms * self._event_rate
        if self._shares:
            if not self._shares.are_due(elapsed_ms):
                return
            self._give_back(self._shares.expire(now_ms))
        self._filled_ms = now_ms
        if self._shares:
            self._byte_tokens = self._dealt(BYTES, size, self._byte_tokens, self._byte_capacity)
            self._event_tokens = self._dealt(
                EVENTS, count, self._event_tokens, self._event_capacity
            )
        else:
            self._give_back((size, count))

    def _dealt(self, dimension: int, amount: int, tokens: int, capacity: int) -> int:
        """What the common bucket then has: its debt is paid first, and it gets what nobody can
        hold, as far as that and what is saved make one bucket."""
        owed = min(amount, max(0, -tokens))
        left = self._shares.deal(dimension, amount - owed, capacity)
        room = capacity - self._shares.sum_saved(dimension)
        return max(tokens + owed, min(tokens + owed + left, room))

    def _give_back(self, tokens: tuple[int, int]) -> None:
        self._byte_tokens = min(self._byte_tokens + tokens[BYTES], self._byte_capacity)
        self._event_tokens = min(self._event_tokens + tokens[EVENTS], self._event_capacity)
