"""Throughput units as token buckets (design.md 6, protocol.md 10.4).

A unit is 1 MB/s or 1000 events/s in, whichever is used up first. The namespace's units are shared
by all its hubs; of them one partition takes at most one unit's worth. A refused publication costs
nothing, so the accepted rate does not sink under a flood of retries. Senders that press at the same
time share equally (`shares`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heapreplace

import msgspec

from penstock.broker import error_messages
from penstock.model import limits

_BURST_MS = 250  # a bucket holds a quarter of a second's worth
_SCALE = 1000  # tokens are thousandths of a byte or event: rate x milliseconds stays an integer

BYTES, EVENTS = 0, 1
DIMENSIONS = (BYTES, EVENTS)

# Clients are told to wait four seconds (50002); until then what they saved is kept for them.
_KEPT_MS = 5_000
_SENDERS_MAX = 4_096  # beyond it senders share one share: memory is bounded, whoever connects
_DEALT_PER_MS = 32  # shares: with more senders tokens are dealt out less often
_PICKS_MAX = 32  # of one deal, beyond one for each share; what is left then waits for the next
_STEPS = 8  # in so many a sender's pot is filled beyond the publication that it waits for


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
        raise error_messages.server_busy_error()

    def has_room(self, size_bytes: int, events: int, now_ms: int, sender: object = None) -> bool:
        """A publication larger than the bucket needs it full and leaves it in debt: one such is
        taken at once, and over time the rate is the same (design.md 6). Where senders press, it
        must be saved for whole: many debts at once would be many times the rate."""
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


class SenderShare:
    """One sender: what it was given in all, what of it is saved, and what it was refused last. In
    the meter's tokens."""

    __slots__ = ("given", "saved", "seen_ms", "wanted")

    def __init__(self, given: list[int], now_ms: int) -> None:
        self.given = given
        self.saved = [0, 0]
        self.wanted = [0, 0]
        self.seen_ms = now_ms

    def spend(self, dimension: int, cost: int) -> int:
        """What is missing after all that was saved is spent."""
        own = min(cost, self.saved[dimension])
        self.saved[dimension] -= own
        return cost - own


class FairShares:
    """Everybody who sends, from a refusal on until nobody was refused for a while."""

    __slots__ = ("_by_sender", "_given", "_refused_ms", "_undealt")

    def __init__(self) -> None:
        self._by_sender: dict[object, SenderShare] = {}
        self._refused_ms = 0
        self._given = [0, 0]  # to whoever had least of those who could hold more
        self._undealt = [0, 0]

    def __bool__(self) -> bool:
        return bool(self._by_sender)

    def __len__(self) -> int:
        return len(self._by_sender)

    def of(self, sender: object, now_ms: int) -> SenderShare:
        """The sender's share, made if it has none: it begins where the others are."""
        share = self._by_sender.get(sender)
        if share is None:
            if len(self._by_sender) >= _SENDERS_MAX:
                sender = None
            share = self._by_sender.setdefault(sender, SenderShare(self._given.copy(), now_ms))
        share.seen_ms = now_ms
        return share

    def refuse(self, sender: object, wanted: tuple[int, int], now_ms: int) -> None:
        """The sender saves for what it was refused."""
        self.of(sender, now_ms).wanted = list(wanted)
        self._refused_ms = now_ms

    def are_due(self, elapsed_ms: int) -> bool:
        """Whether enough time has passed to deal out what came in."""
        return elapsed_ms * _DEALT_PER_MS >= len(self._by_sender)

    def sum_saved(self, dimension: int) -> int:
        """By everybody, with what is still to be dealt out."""
        saved = sum(share.saved[dimension] for share in self._by_sender.values())
        return saved + self._undealt[dimension]

    def deal(self, dimension: int, amount: int, capacity: int) -> int:
        """Deal out what came in; what nobody can hold is returned."""
        amount += self._undealt[dimension]
        self._undealt[dimension] = 0
        part = capacity // len(self._by_sender)
        queue = self._queue(dimension, part)
        picks = len(queue) + _PICKS_MAX
        while amount > 0 and queue and picks > 0:
            picks -= 1
            _, number, share = queue[0]
            give = min(amount, _missing_share(share, dimension, part))
            share.saved[dimension] += give
            share.given[dimension] += give
            amount -= give
            if _missing_share(share, dimension, part) > 0:
                heapreplace(queue, (_finish(share, dimension), number, share))
            else:
                heappop(queue)
        if not queue:
            return amount
        self._undealt[dimension] = min(amount, capacity)
        return amount - self._undealt[dimension]

    def trim(self, capacities: tuple[int, int]) -> None:
        """The meter holds less from now on, and so does everybody."""
        for dimension in DIMENSIONS:
            self._undealt[dimension] = min(self._undealt[dimension], capacities[dimension])
            for share in self._by_sender.values():
                most = max(capacities[dimension] // len(self), share.wanted[dimension])
                share.saved[dimension] = min(share.saved[dimension], most)

    def expire(self, now_ms: int) -> tuple[int, int]:
        """What was saved by those who did not come back; by everybody when the press is over."""
        earliest_ms = now_ms - _KEPT_MS
        if self._refused_ms < earliest_ms:
            return self.dissolve()
        gone = [who for who, share in self._by_sender.items() if share.seen_ms < earliest_ms]
        return _sum_saved(self._by_sender.pop(sender) for sender in gone)

    def forget(self, sender: object) -> tuple[int, int]:
        """What was saved by one that has left."""
        share = self._by_sender.pop(sender, None)
        return (0, 0) if share is None else _sum_saved((share,))

    def dissolve(self) -> tuple[int, int]:
        size, count = _sum_saved(self._by_sender.values())
        self._by_sender.clear()
        saved = size + self._undealt[BYTES], count + self._undealt[EVENTS]
        self._undealt = [0, 0]
        return saved

    def _queue(self, dimension: int, part: int) -> list[tuple[int, int, SenderShare]]:
        """A heap of those who can hold more. Those who cannot go along with the others: who comes
        back after a rest has what it saved, not all that it left to others meanwhile."""
        hungry: list[SenderShare] = []
        full: list[SenderShare] = []
        for share in self._by_sender.values():
            (hungry if _missing_share(share, dimension, part) > 0 else full).append(share)
        if hungry:
            least = self._given[dimension] = min(share.given[dimension] for share in hungry)
            for share in full:
                share.given[dimension] = max(share.given[dimension], least)
        queue = [(_finish(share, dimension), n, share) for n, share in enumerate(hungry)]
        heapify(queue)
        return queue


def _finish(share: SenderShare, dimension: int) -> int:
    """When its next publication would be complete if all were served alike, in tokens given."""
    given, saved = share.given[dimension], share.saved[dimension]
    wanted = share.wanted[dimension]
    return given + wanted - (saved if saved < wanted else 0)


def _missing_share(share: SenderShare, dimension: int, part: int) -> int:
    """Up to the publication it waits for; beyond it a step at a time. Not above 0: it is full."""
    saved, wanted = share.saved[dimension], share.wanted[dimension]
    if saved < wanted:
        return wanted - saved
    return min(part - saved, max(wanted, part // _STEPS, 1))


def _sum_saved(shares: Iterable[SenderShare]) -> tuple[int, int]:
    size = count = 0
    for share in shares:
        size += share.saved[BYTES]
        count += share.saved[EVENTS]
    return size, count
