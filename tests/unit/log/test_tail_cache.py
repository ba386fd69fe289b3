"""The batches kept in memory for readers that keep up, and the memory they may take."""

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

COST = 250  # of a batch beside its sections


def batch(number: int, size: int = 100, *, at_ms: int = 0) -> StoredBatch:
    message = b"x" * (size - 5)
    return StoredBatch(number, number * 1000, at_ms, 1, b"\x00\x53\x75\xa0" + bytes([95]) + message)


def test_tail_gives_from_the_batch_that_holds_the_event() -> None:
    tail = TailCache(1 << 20, TailCacheBudget())
    assert tail.read_from(0) is None
    tail.add([StoredBatch(10, 0, 0, 5, b""), StoredBatch(15, 0, 0, 5, b"")])
    assert tail.read_from(9) is None
    for sequence, first in ((10, 10), (14, 10), (15, 15), (19, 15)):
        found = tail.read_from(sequence)
        assert found is not None
        assert found[0].first_sequence == first


def test_tail_hands_out_a_bounded_number_at_once() -> None:
    tail = TailCache(1 << 20, TailCacheBudget())
    tail.add([batch(number) for number in range(CACHED_BATCHES_MAX * 2)])
    found = tail.read_from(3)
    assert found is not None
    assert [b.first_sequence for b in found] == list(range(3, 3 + CACHED_BATCHES_MAX))


def test_tail_forgets_the_oldest_when_it_is_full() -> None:
    tail = TailCache(10 * (COST + 100), TailCacheBudget())
    for number in range(5000):
        tail.add([batch(number)])
        assert len(tail) == min(number + 1, 10)
    assert tail.read_from(4989) is None
    assert tail.read_from(4990) is not None
    assert len(tail._batches) < 2000  # the slots of the forgotten go too


def test_tails_share_one_budget_and_the_one_written_longest_ago_pays() -> None:
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


def test_tail_knows_the_newest_events_offset_after_forgetting_it() -> None:
    tail = TailCache(1, TailCacheBudget(), last_offset=7)
    assert tail.last_offset == 7
    two = b"\x00\x53\x75\xa0\x01a" + b"\x00\x53\x75\xa0\x01b"
    tail.add([StoredBatch(0, 100, 0, 2, two)])
    assert len(tail) == 0
    assert tail.last_offset == tail.resolve_last_offset() == 106


def test_dropped_events_leave_the_tail() -> None:
    budget = TailCacheBudget()
    tail = TailCache(1 << 20, budget)
    tail.add([batch(number) for number in range(10)])
    tail.drop_before(4)
    assert tail.read_from(3) is None
    assert len(tail) == 6
    tail.clear()
    assert len(tail) == 0
    assert tail.last_offset == -1
    assert budget.bytes == 0


def test_old_batches_leave_when_newer_ones_come() -> None:
    tail = TailCache(1 << 20, TailCacheBudget())
    for second in range(1000):
        tail.add([batch(second, at_ms=second * 1000)])
    kept = limits.TAIL_CACHE_AGE_MS // 1000 + 1
    assert len(tail) == kept
    assert tail.read_from(999 - kept) is None
    assert tail.read_from(1000 - kept) is not None


def test_quiet_partition_holds_nothing_after_some_passes_of_bounded_length() -> None:
    budget = TailCacheBudget()
    tail = TailCache(1 << 22, budget)
    tail.add([batch(number) for number in range(3000)])
    tail.drop_older(0)
    lengths = [len(tail)]
    while len(tail):
        tail.drop_older(1)
        lengths.append(len(tail))
    assert max(before - after for before, after in pairwise(lengths)) == EXPIRED_BATCHES_MAX
    assert budget.bytes == 0
    assert tail.last_offset == 2999 * 1000
    tail.add([batch(3000, at_ms=2)])
    assert tail.read_from(3000) is not None
