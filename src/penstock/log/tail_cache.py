"""The newest committed batches of each partition in memory, for readers that keep up.

The bytes are those that were appended, held once more by reference: keeping them copies nothing.
Batches leave by size and by age. Without the age the cache of a partition with little traffic would
grow for hours before it reached its size.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from operator import attrgetter

from penstock.model import limits
from penstock.model.events import StoredBatch
from penstock.model.sections import last_section_position

CACHED_BATCHES_MAX = 256  # handed out at once: a reader takes what its credit allows and comes back
STORE_TAIL_BYTES = 64 * limits.MB  # all partitions of a store together
_BATCH_COST = 250  # what a batch costs beside its sections: two objects and two list slots
EXPIRED_BATCHES_MAX = 1_024  # forgotten for their age in one call: about 0.3 ms
_COMPACT_AT = 512  # evicted slots that are tolerated at the front before the lists are cut

_enqueued_ms = attrgetter("enqueued_ms")  # never falls within a partition


class TailCacheBudget:
    """Shares the store's memory between its partitions: who was written last keeps the most."""

    __slots__ = ("_bytes_max", "_tails", "bytes")

    def __init__(self, bytes_max: int = STORE_TAIL_BYTES) -> None:
        self._bytes_max = bytes_max
        self._tails: dict[TailCache, None] = {}  # the one written longest ago first
        self.bytes = 0

    def reserve(self, tail: TailCache, cost: int) -> None:
        """`tail` grew by `cost`; those written longest ago pay when there is too much."""
        self.bytes += cost
        self._tails.pop(tail, None)
        self._tails[tail] = None
        while self.bytes > self._bytes_max:
            oldest = next(iter(self._tails))
            if len(oldest):
                oldest.evict_one()
            else:
                del self._tails[oldest]

    def forget(self, tail: TailCache) -> None:
        self._tails.pop(tail, None)


class TailCache:
    """The last batches of one partition, at most `bytes_max` of them, and the newest's offset."""

    __slots__ = ("_batches", "_budget", "_bytes", "_bytes_max", "_firsts", "_newest", "_start")

    def __init__(self, bytes_max: int, budget: TailCacheBudget, *, last_offset: int = -1) -> None:
        self._bytes_max = bytes_max
        self._budget = budget
        self._batches: list[StoredBatch | None] = []
        self._firsts: list[int] = []
        self._start = 0  # slots before it are evicted
        self._bytes = 0
        self._newest: StoredBatch | int = (
            last_offset  # the newest batch, or its last event's offset
        )

    def __len__(self) -> int:
        return len(self._batches) - self._start

    @property
    def last_offset(self) -> int:
        """Of the newest event; found by a walk over its batch, and only if somebody asks. Any
        thread: `_newest` is replaced as a whole and only ever by the owner's thread."""
        newest = self._newest
        if isinstance(newest, int):
            return newest
        return newest.base_offset + last_section_position(newest.sections)

    def settle_last_offset(self) -> int:
        """The same on the owner's thread, which may keep the answer."""
        self._newest = self.last_offset
        return self._newest

    def add(self, batches: list[StoredBatch]) -> None:
        """Newly committed batches, in order, right after those already here."""
        assert batches
        cost = sum([len(batch.sections) for batch in batches]) + _BATCH_COST * len(batches)
        self._batches += batches
        self._firsts += [batch.first_sequence for batch in batches]
        self._newest = batches[-1]
        self._bytes += cost
        self._budget.reserve(self, cost)
        while self._bytes > self._bytes_max:
            self.evict_one()
        self.drop_older(batches[-1].enqueued_ms - limits.TAIL_CACHE_AGE_MS)

    def drop_older(self, oldest_ms: int) -> None:
        """Forget batches that were stored before `oldest_ms`, up to `EXPIRED_BATCHES_MAX`."""
        batches, start = self._batches, self._start
        end = min(len(batches), start + EXPIRED_BATCHES_MAX)
        if start == end or _enqueued_ms(batches[start]) >= oldest_ms:
            return
        for _ in range(bisect_left(batches, oldest_ms, start, end, key=_enqueued_ms) - start):
            self.evict_one()

    def since(self, sequence: int) -> list[StoredBatch] | None:
        """From the batch that holds `sequence` on; None if that one is not here."""
        if self._start == len(self._firsts) or sequence < self._firsts[self._start]:
            return None
        found = bisect_right(self._firsts, sequence, self._start) - 1
        assert found >= self._start
        return [b for b in self._batches[found : found + CACHED_BATCHES_MAX] if b is not None]

    def evict_one(self) -> None:
        """Forget the oldest batch; the last one leaves its newest event's offset behind."""
        evicted = self._batches[self._start]
        assert evicted is not None
        if len(self) == 1:
            self.settle_last_offset()
        self._batches[self._start] = None
        self._start += 1
        cost = len(evicted.sections) + _BATCH_COST
        self._bytes -= cost
        self._budget.bytes -= cost
        if self._start >= _COMPACT_AT and self._start * 2 >= len(self._batches):
            del self._batches[: self._start], self._firsts[: self._start]
            self._start = 0
        assert self._bytes >= 0

    def drop_before(self, sequence: int) -> None:
        """Retention dropped these events: readers must not get them from here either."""
        while len(self) and self._firsts[self._start] < sequence:
            self.evict_one()

    def clear(self) -> None:
        """Forget everything."""
        while len(self):
            self.evict_one()
        self._batches, self._firsts, self._start, self._newest = [], [], 0, -1
        self._budget.forget(self)
