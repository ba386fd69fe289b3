"""How senders that press on one meter at the same time share it.

While nobody is refused there is one bucket for all. From the first refusal on what flows in is
dealt out to those who send, in the order of fair queueing: to the sender whose next publication
would be complete first if all were served at the same rate. So a flood of small publications does
not keep a large one waiting for ever, many attempts buy no more than few, and large ones are paid
one after the other, not all at the same late moment. What one does not use flows on to the others.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heapreplace

BYTES, EVENTS = 0, 1
DIMENSIONS = (BYTES, EVENTS)

# Clients are told to wait four seconds (50002); until then what they saved is kept for them.
_KEPT_MS = 5_000
_SENDERS_MAX = 4_096  # beyond it senders share one share: memory is bounded, whoever connects
_DEALT_PER_MS = 32  # shares: with more senders tokens are dealt out less often
_PICKS_MAX = 32  # of one deal, beyond one for each share; what is left then waits for the next
_STEPS = 8  # in so many a sender's pot is filled beyond the publication that it waits for


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
