"""The throttle: ingress token buckets per throughput unit, fair shares among senders (protocol.md
10.4).

A unit is 1 MB/s or 1,000 events/s in, whichever is used up first. All hubs of a namespace share its
units; one partition accepts at most the ingress of one unit. A refused publication costs nothing,
so a flood of retries does not lower the accepted rate.

While no publication is refused there is one bucket for all senders. From the first refusal on, new
tokens are distributed to the senders by fair queueing: to the sender whose next publication would
be complete first if all were served at the same rate. So a flood of small publications does not
delay a large one forever, a sender gains nothing by trying more often, and large publications are
completed one after the other. What a sender cannot use goes to the others.

Arithmetic: tokens are integers, thousandths of a byte or of an event, so that rate times elapsed
milliseconds is exact and no rounding adds up. The capacity is 250 ms of the rate. A share holds at
most its part of the capacity, or the one publication that its sender waits for. New tokens that no
share can hold go to the common bucket only while it and the shares are together below one capacity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heapreplace

from penstock.broker import error_messages
from penstock.model import limits

_SCALE = 1000  # tokens are thousandths of a byte or event: rate x milliseconds stays an integer

BYTES, EVENTS = 0, 1

# Error 50002 asks clients to wait four seconds; their share is kept until they come back.
_KEPT_MS = 5_000
_SENDERS_MAX = 4_096  # further senders have one share together, so that memory is bounded
_SHARES_PER_MS = 32  # with more senders, tokens are distributed less often
_PICKS_MAX = 32  # of one distribution, beyond one per share; remaining tokens wait for the next
_FILL_STEPS = 8  # a share is filled in 8 steps beyond the publication that its sender waits for


class Throttle:
    """Throttle of a namespace, or of one partition if `parent` is given.

    With `units` None it never refuses. Times are monotonic milliseconds. A sender is any
    hashable object (a link, an address); None stands for all senders without an identity.
    """

    def __init__(
        self,
        units: int | None,
        *,
        parent: Throttle | None = None,
        on_short: Callable[[], None] | None = None,
    ) -> None:
        """`on_short` is called whenever this throttle refuses for lack of tokens."""
        self.parent = parent
        self._on_short = on_short
        self._filled_ms: int | None = None  # None: the bucket is full at the first use
        self._byte_tokens = 0  # of the common bucket; negative is a debt, paid before shares
        self._event_tokens = 0
        self._shares = FairShares()
        self._set_rates(units)

    def set_units(self, units: int | None) -> None:
        """Takes effect with the next publication; a debt remains."""
        if units == self.units:
            return
        was_enforced = self.units is not None
        self._set_rates(units)
        if was_enforced and units is not None:
            self._byte_tokens = min(self._byte_tokens, self._byte_capacity)
            self._event_tokens = min(self._event_tokens, self._event_capacity)
            self._shares.trim((self._byte_capacity, self._event_capacity))
        else:
            self._shares.dissolve()
            self._filled_ms = None

    def admit(self, size_bytes: int, events: int, now_ms: int, sender: object = None) -> None:
        """Take the tokens of one publication from this throttle and its parent. Raises ServerBusy
        if one of them has too few; then none are taken from either."""
        parent = self.parent
        fits = self.has_room(size_bytes, events, now_ms, sender)
        if parent is not None and not parent.has_room(size_bytes, events, now_ms, sender):
            parent.refuse(size_bytes, events, now_ms, sender)
        elif fits:
            self.take(size_bytes, events, now_ms, sender)
            if parent is not None:
                parent.take(size_bytes, events, now_ms, sender)
            return
        if not fits:
            self.refuse(size_bytes, events, now_ms, sender)
        raise error_messages.server_busy_error()

    def has_room(self, size_bytes: int, events: int, now_ms: int, sender: object = None) -> bool:
        """Whether the tokens suffice.

        Without shares, a publication larger than the bucket needs a full bucket and leaves it in
        debt, so over time the rate holds. With shares, its sender must save the whole size: several
        senders in debt at once would be several times the rate.
        """
        if self.units is None:
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
        if self.units is not None:
            size, count = size_bytes * _SCALE, events * _SCALE
            if self._shares:
                share = self._shares.of(sender, now_ms)
                size, count = share.spend(BYTES, size), share.spend(EVENTS, count)
            self._byte_tokens -= size
            self._event_tokens -= count

    def refuse(self, size_bytes: int, events: int, now_ms: int, sender: object = None) -> None:
        """From now on the sender saves for this publication."""
        self._shares.refuse(sender, (size_bytes * _SCALE, events * _SCALE), now_ms)
        if self._on_short is not None:
            self._on_short()

    def forget(self, sender: object) -> None:
        """The sender closed: its saved tokens go back to the common bucket."""
        if self._shares:
            self._give_back(self._shares.forget(sender))

    def _set_rates(self, units: int | None) -> None:
        assert units is None or units > 0
        self.units = units
        self._byte_rate = (units or 0) * limits.UNIT_INGRESS_BYTES_PER_S
        self._event_rate = (units or 0) * limits.UNIT_INGRESS_EVENTS_PER_S
        self._byte_capacity = self._byte_rate * limits.UNIT_BURST_MS
        self._event_capacity = self._event_rate * limits.UNIT_BURST_MS

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
            self._byte_tokens = self._distribute(
                BYTES, size, self._byte_tokens, self._byte_capacity
            )
            self._event_tokens = self._distribute(
                EVENTS, count, self._event_tokens, self._event_capacity
            )
        else:
            self._give_back((size, count))

    def _distribute(self, dimension: int, amount: int, tokens: int, capacity: int) -> int:
        """Distribute `amount` new tokens; return the new content of the common bucket. Its debt is
        paid first. It gets what no share can hold, up to one capacity together with the shares."""
        paid = min(amount, max(0, -tokens))
        remaining = self._shares.distribute(dimension, amount - paid, capacity)
        room = capacity - self._shares.sum_saved(dimension)
        return max(tokens + paid, min(tokens + paid + remaining, room))

    def _give_back(self, tokens: tuple[int, int]) -> None:
        self._byte_tokens = min(self._byte_tokens + tokens[BYTES], self._byte_capacity)
        self._event_tokens = min(self._event_tokens + tokens[EVENTS], self._event_capacity)


class SenderShare:
    """The share of one sender, in tokens by dimension (BYTES, EVENTS).

    `received` is the total it was given: its virtual time, which orders the queue. `saved` is the
    part of it that is not spent. `refused` is the cost of its last refused publication.
    """

    __slots__ = ("received", "refused", "saved", "seen_ms")

    def __init__(self, received: list[int], now_ms: int) -> None:
        self.received = received
        self.saved = [0, 0]
        self.refused = [0, 0]
        self.seen_ms = now_ms

    def spend(self, dimension: int, cost: int) -> int:
        """Spend saved tokens; return the part of the cost that they do not cover."""
        own = min(cost, self.saved[dimension])
        self.saved[dimension] -= own
        return cost - own


class FairShares:
    """Shares of all senders, from a refusal until there was none for _KEPT_MS. Empty: the throttle
    uses its common bucket only."""

    __slots__ = ("_by_sender", "_least_received", "_refused_ms", "_undistributed")

    def __init__(self) -> None:
        self._by_sender: dict[object, SenderShare] = {}
        self._refused_ms = 0
        # Lowest `received` of the shares that can hold more. New and full shares start from it, so
        # that a sender that was away does not catch up on what it did not ask for.
        self._least_received = [0, 0]
        self._undistributed = [0, 0]

    def __len__(self) -> int:
        return len(self._by_sender)

    def of(self, sender: object, now_ms: int) -> SenderShare:
        """The share of the sender, created if there is none; it starts level with the others."""
        share = self._by_sender.get(sender)
        if share is None:
            if len(self._by_sender) >= _SENDERS_MAX:
                sender = None
            share = self._by_sender.setdefault(
                sender, SenderShare(self._least_received.copy(), now_ms)
            )
        share.seen_ms = now_ms
        return share

    def refuse(self, sender: object, cost: tuple[int, int], now_ms: int) -> None:
        """From now on the sender saves for the publication of this cost."""
        self.of(sender, now_ms).refused = list(cost)
        self._refused_ms = now_ms

    def are_due(self, elapsed_ms: int) -> bool:
        """Whether enough time has passed to distribute new tokens."""
        return elapsed_ms * _SHARES_PER_MS >= len(self._by_sender)

    def sum_saved(self, dimension: int) -> int:
        """Tokens saved by all senders, with those that are not yet distributed."""
        saved = sum(share.saved[dimension] for share in self._by_sender.values())
        return saved + self._undistributed[dimension]

    def distribute(self, dimension: int, amount: int, capacity: int) -> int:
        """Distribute new tokens among the shares; return those that no share can hold."""
        amount += self._undistributed[dimension]
        self._undistributed[dimension] = 0
        part = capacity // len(self._by_sender)
        queue = self._queue(dimension, part)
        picks = len(queue) + _PICKS_MAX
        while amount > 0 and queue and picks > 0:
            picks -= 1
            _, number, share = queue[0]
            tokens = min(amount, _missing_tokens(share, dimension, part))
            share.saved[dimension] += tokens
            share.received[dimension] += tokens
            amount -= tokens
            if _missing_tokens(share, dimension, part) > 0:
                heapreplace(queue, (_virtual_finish(share, dimension), number, share))
            else:
                heappop(queue)
        if not queue:
            return amount
        self._undistributed[dimension] = min(amount, capacity)
        return amount - self._undistributed[dimension]

    def trim(self, capacities: tuple[int, int]) -> None:
        """The capacities were lowered: limit every share to them."""
        for dimension in (BYTES, EVENTS):
            self._undistributed[dimension] = min(
                self._undistributed[dimension], capacities[dimension]
            )
            for share in self._by_sender.values():
                most = max(capacities[dimension] // len(self), share.refused[dimension])
                share.saved[dimension] = min(share.saved[dimension], most)

    def expire(self, now_ms: int) -> tuple[int, int]:
        """Remove the shares of senders that did not come back, or all once there was no refusal for
        _KEPT_MS; return the tokens they had saved."""
        earliest_ms = now_ms - _KEPT_MS
        if self._refused_ms < earliest_ms:
            return self.dissolve()
        expired = [
            sender for sender, share in self._by_sender.items() if share.seen_ms < earliest_ms
        ]
        return _sum_saved(self._by_sender.pop(sender) for sender in expired)

    def forget(self, sender: object) -> tuple[int, int]:
        """Remove the share of a sender; return the tokens it had saved."""
        share = self._by_sender.pop(sender, None)
        return (0, 0) if share is None else _sum_saved((share,))

    def dissolve(self) -> tuple[int, int]:
        size, count = _sum_saved(self._by_sender.values())
        self._by_sender.clear()
        saved = size + self._undistributed[BYTES], count + self._undistributed[EVENTS]
        self._undistributed = [0, 0]
        return saved

    def _queue(self, dimension: int, part: int) -> list[tuple[int, int, SenderShare]]:
        """A heap of the shares that can hold more. The `received` of full shares is raised along
        with the others: a sender that pauses keeps what it saved, not what others used since."""
        fillable: list[SenderShare] = []
        full: list[SenderShare] = []
        for share in self._by_sender.values():
            (fillable if _missing_tokens(share, dimension, part) > 0 else full).append(share)
        if fillable:
            least = self._least_received[dimension] = min(
                share.received[dimension] for share in fillable
            )
            for share in full:
                share.received[dimension] = max(share.received[dimension], least)
        queue = [(_virtual_finish(share, dimension), n, share) for n, share in enumerate(fillable)]
        heapify(queue)
        return queue


def _virtual_finish(share: SenderShare, dimension: int) -> int:
    """Virtual time, in tokens received, at which the next publication of the sender is complete if
    all senders are served at the same rate."""
    saved, refused = share.saved[dimension], share.refused[dimension]
    return share.received[dimension] + refused - (saved if saved < refused else 0)


def _missing_tokens(share: SenderShare, dimension: int, part: int) -> int:
    """Tokens up to the publication that the sender waits for; beyond it, one step at a time. The
    share is full if the result is not positive."""
    saved, refused = share.saved[dimension], share.refused[dimension]
    if saved < refused:
        return refused - saved
    return min(part - saved, max(refused, part // _FILL_STEPS, 1))


def _sum_saved(shares: Iterable[SenderShare]) -> tuple[int, int]:
    size = count = 0
    for share in shares:
        size += share.saved[BYTES]
        count += share.saved[EVENTS]
    return size, count
