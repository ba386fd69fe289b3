"""Tail cache: the newest committed batches of each partition in memory, for readers that keep up.

The cache holds references to the appended bytes and copies nothing. Batches are evicted by size and
by age: without the age, the cache of a partition with little traffic would grow for hours before it
reached its size. Owner's thread, except for `TailCache.last_offset`.
"""

from __future__ import annotations

from bisect import bisect_right

from penstock.model import limits
from penstock.model.events import StoredBatch
from penstock.model.sections import last_section_position

CACHED_BATCHES_MAX = 256  # returned at once: a reader sends what its credit allows and reads again
STORE_TAIL_CACHE_BYTES = 64 * limits.MB  # all partitions of a store together
_BATCH_COST = 250  # bytes of a batch besides its sections: two objects and two list entries
EXPIRED_BATCHES_MAX = 1_024  # evicted by age in one call, which is on the event loop
_COMPACT_AT = 512  # evicted entries at the front of the lists before they are removed


class TailCacheBudget:
    """Limits the tail caches of a store together: the least recently written cache is evicted
    first."""

    __slots__ = ("_bytes_max", "_caches", "bytes")

    def __init__(self, bytes_max: int = STORE_TAIL_CACHE_BYTES) -> None:
        self._bytes_max = bytes_max
        self._caches: dict[TailCache, None] = {}  # least recently written first
        self.bytes = 0

    def reserve(self, cache: TailCache, cost: int) -> None:
        """`cache` grew by `cost` bytes; evict from the least recently written ones above the
        limit."""
        self.bytes += cost
        self._caches.pop(cache, None)
        self._caches[cache] = None
        while self.bytes > self._bytes_max:
            oldest = next(iter(self._caches))
            if len(oldest):
                oldest.evict_oldest()
            else:
                del self._caches[oldest]

    def forget(self, cache: TailCache) -> None:
        self._caches.pop(cache, None)


class TailCache:
    """The newest batches of one partition, up to `bytes_max`, and the offset of the newest
    event."""

    __slots__ = ("_batches", "_budget", "_bytes", "_bytes_max", "_firsts", "_newest", "_start")

    def __init__(self, bytes_max: int, budget: TailCacheBudget, *, last_offset: int = -1) -> None:
        self._bytes_max = bytes_max
        self._budget = budget
        self._batches: list[StoredBatch | None] = []
        self._firsts: list[int] = []
        self._start = 0  # entries before it are evicted
        self._bytes = 0
        # The newest batch, or the offset of its last event.
        self._newest: StoredBatch | int = last_offset

    def __len__(self) -> int:
        return len(self._batches) - self._start

    @property
    def last_offset(self) -> int:
        """Offset of the newest event; computed on demand from its batch. Any thread: `_newest` is
        replaced as a whole and only by the owner's thread."""
        newest = self._newest
        if isinstance(newest, int):
            return newest
        return newest.base_offset + last_section_position(newest.sections)

    def resolve_last_offset(self) -> int:
        """The same, and store the result. Owner's thread."""
        self._newest = self.last_offset
        return self._newest

    def add(self, batches: list[StoredBatch]) -> None:
        """Add newly committed batches, in order, which directly follow the cached ones."""
        assert batches
        cost = sum([len(batch.sections) for batch in batches]) + _BATCH_COST * len(batches)
        self._batches += batches
        self._firsts += [batch.first_sequence for batch in batches]
        self._newest = batches[-1]
        self._bytes += cost
        self._budget.reserve(self, cost)
        while self._bytes > self._bytes_max:
            self.evict_oldest()
        self.drop_older(batches[-1].enqueued_ms - limits.TAIL_CACHE_AGE_MS)

    def drop_older(self, oldest_ms: int) -> None:
        """Evict batches that were stored before `oldest_ms`, up to `EXPIRED_BATCHES_MAX`."""
        for _ in range(min(EXPIRED_BATCHES_MAX, len(self))):
            oldest = self._batches[self._start]
            if oldest is None or oldest.enqueued_ms >= oldest_ms:
                return
            self.evict_oldest()

    def read_from(self, sequence: int) -> list[StoredBatch] | None:
        """Batches from the one that holds `sequence`; None if that one is not cached."""
        if self._start == len(self._firsts) or sequence < self._firsts[self._start]:
            return None
        first = bisect_right(self._firsts, sequence, self._start) - 1
        assert first >= self._start
        return [b for b in self._batches[first : first + CACHED_BATCHES_MAX] if b is not None]

    def evict_oldest(self) -> None:
        """Evict the oldest batch. Before the last one goes, the offset of its newest event is
        stored."""
        evicted = self._batches[self._start]
        assert evicted is not None
        if len(self) == 1:
            self.resolve_last_offset()
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
        """Evict events that retention has dropped: readers must not get them from the cache
        either."""
        while len(self) and self._firsts[self._start] < sequence:
            self.evict_oldest()

    def clear(self) -> None:
        """Evict everything; the hub was deleted."""
        while len(self):
            self.evict_oldest()
        self._batches, self._firsts, self._start, self._newest = [], [], 0, -1
        self._budget.forget(self)
