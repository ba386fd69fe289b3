"""The tail cache: which batches are in memory, and how much memory they take."""

from __future__ import annotations

from itertools import pairwise

from penstock.log.tail_cache import (
    CACHED_BATCHES_MAX,
    EXPIRED_BATCHES_MAX,
    TailCache,
    TailCacheBudget,
)
from penstock.model import limits
from penstock.model.events import StoredBatch

COST = 250  # bytes of a batch besides its sections


def batch(number: int, size: int = 100, *, at_ms: int = 0) -> StoredBatch:
    message = b"x" * (size - 5)
    return StoredBatch(number, number * 1000, at_ms, 1, b"\x00\x53\x75\xa0" + bytes([95]) + message)


def test_read_begins_with_the_batch_that_holds_the_event() -> None:
    cache = TailCache(1 << 20, TailCacheBudget())
    assert cache.read_from(0) is None
    cache.add([StoredBatch(10, 0, 0, 5, b""), StoredBatch(15, 0, 0, 5, b"")])
    assert cache.read_from(9) is None
    for sequence, first in ((10, 10), (14, 10), (15, 15), (19, 15)):
        batches = cache.read_from(sequence)
        assert batches is not None
        assert batches[0].first_sequence == first


def test_read_returns_a_bounded_number_of_batches() -> None:
    cache = TailCache(1 << 20, TailCacheBudget())
    cache.add([batch(number) for number in range(CACHED_BATCHES_MAX * 2)])
    batches = cache.read_from(3)
    assert batches is not None
    assert [b.first_sequence for b in batches] == list(range(3, 3 + CACHED_BATCHES_MAX))


def test_full_cache_evicts_the_oldest_batch() -> None:
    cache = TailCache(10 * (COST + 100), TailCacheBudget())
    for number in range(5000):
        cache.add([batch(number)])
        assert len(cache) == min(number + 1, 10)
    assert cache.read_from(4989) is None
    assert cache.read_from(4990) is not None
    assert len(cache._batches) < 2000  # the entries of evicted batches are removed too


def test_caches_share_one_budget_and_the_least_recently_written_one_is_evicted() -> None:
    budget = TailCacheBudget(20 * (COST + 100))
    old, young, newest = (TailCache(1 << 20, budget) for _ in range(3))
    old.add([batch(number) for number in range(10)])
    young.add([batch(number) for number in range(10)])
    newest.add([batch(0)])
    assert (len(old), len(young), len(newest)) == (9, 10, 1)
    newest.add([batch(number) for number in range(1, 15)])
    assert (len(old), len(young), len(newest)) == (0, 5, 15)
    old.add([batch(10)])
    assert (len(old), len(young), len(newest)) == (1, 4, 15)
    assert budget.bytes <= 20 * (COST + 100)


def test_newest_offset_is_known_after_its_batch_was_evicted() -> None:
    cache = TailCache(1, TailCacheBudget(), last_offset=7)
    assert cache.last_offset == 7
    two = b"\x00\x53\x75\xa0\x01a" + b"\x00\x53\x75\xa0\x01b"
    cache.add([StoredBatch(0, 100, 0, 2, two)])
    assert len(cache) == 0
    assert cache.last_offset == cache.resolve_last_offset() == 106


def test_dropped_events_leave_the_cache() -> None:
    budget = TailCacheBudget()
    cache = TailCache(1 << 20, budget)
    cache.add([batch(number) for number in range(10)])
    cache.drop_before(4)
    assert cache.read_from(3) is None
    assert len(cache) == 6
    cache.clear()
    assert len(cache) == 0
    assert cache.last_offset == -1
    assert budget.bytes == 0


def test_old_batches_leave_when_newer_ones_come() -> None:
    cache = TailCache(1 << 20, TailCacheBudget())
    for second in range(1000):
        cache.add([batch(second, at_ms=second * 1000)])
    kept = limits.TAIL_CACHE_AGE_MS // 1000 + 1
    assert len(cache) == kept
    assert cache.read_from(999 - kept) is None
    assert cache.read_from(1000 - kept) is not None


def test_quiet_partition_holds_nothing_after_some_passes_of_bounded_length() -> None:
    budget = TailCacheBudget()
    cache = TailCache(1 << 22, budget)
    cache.add([batch(number) for number in range(3000)])
    cache.drop_older(0)
    lengths = [len(cache)]
    while len(cache):
        cache.drop_older(1)
        lengths.append(len(cache))
    assert max(before - after for before, after in pairwise(lengths)) == EXPIRED_BATCHES_MAX
    assert budget.bytes == 0
    assert cache.last_offset == 2999 * 1000
    cache.add([batch(3000, at_ms=2)])
    assert cache.read_from(3000) is not None
