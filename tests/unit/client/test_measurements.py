"""What the load generator counts: settled ranges and latencies."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.client.load.measurements import LatencySamples, LoadResult, OutstandingDeliveries

WRAP = 2**32


def test_latencies_give_percentiles_within_one_percent() -> None:
    latencies = LatencySamples()
    for number in range(1, 1001):
        latencies.add(number / 10)
    for share, wanted in ((0.5, 50.0), (0.99, 99.0), (0.999, 99.9), (1.0, 100.0)):
        found = latencies.percentile(share)
        assert found is not None
        assert abs(found - wanted) <= wanted / 100


def test_latencies_are_weighted_by_their_counts() -> None:
    latencies = LatencySamples()
    latencies.add(1.0, 99)
    latencies.add(500.0, 1)
    half, most = latencies.percentile(0.5), latencies.percentile(0.995)
    assert half is not None and most is not None
    assert half < 1.02
    assert most > 490


def test_latencies_of_nothing_have_no_percentile_and_zero_counts_as_little() -> None:
    latencies = LatencySamples()
    assert latencies.percentile(0.5) is None
    latencies.add(0.0)
    found = latencies.percentile(0.5)
    assert found is not None
    assert found < 0.0011


def test_settled_range_takes_what_it_names_of_several_runs() -> None:
    outstanding = OutstandingDeliveries()
    outstanding.add(0, 10, 1.0)
    outstanding.add(10, 10, 2.0)
    assert outstanding.settle(0, 14) == [(10, 1.0), (5, 2.0)]
    assert outstanding.count == 5
    assert outstanding.settle(15, 19) == [(5, 2.0)]
    assert outstanding.count == 0


def test_settled_range_across_the_wrap_of_ids() -> None:
    outstanding = OutstandingDeliveries()
    outstanding.add(WRAP - 5, 10, 1.0)
    assert outstanding.settle(WRAP - 5, 1) == [(7, 1.0)]
    assert outstanding.settle(2, 4) == [(3, 1.0)]
    assert outstanding.count == 0


def test_range_that_names_nothing_outstanding_takes_nothing() -> None:
    outstanding = OutstandingDeliveries()
    outstanding.add(100, 10, 1.0)
    for first, last in ((0, 99), (110, 200), (5, 3), (109 + 2**31, 99)):
        assert outstanding.settle(first, last) == []
    assert outstanding.settle(0, 2**31 - 1) == [(10, 1.0)]
    assert outstanding.settle(0, 2**31 - 1) == []
    assert outstanding.count == 0


@given(
    start=st.integers(0, WRAP - 1),
    runs=st.lists(st.integers(1, 20), min_size=1, max_size=10),
    ranges=st.lists(st.tuples(st.integers(-30, 230), st.integers(0, 60)), max_size=20),
)
def test_outstanding_agrees_with_a_set_of_ids(
    start: int, runs: list[int], ranges: list[tuple[int, int]]
) -> None:
    outstanding, left, following = OutstandingDeliveries(), set[int](), 0
    for count in runs:
        outstanding.add((start + following) % WRAP, count, 0.0)
        left |= set(range(following, following + count))
        following += count
    for first, length in ranges:
        named = set(range(first, first + length + 1))
        settled = outstanding.settle((start + first) % WRAP, (start + first + length) % WRAP)
        assert sum(count for count, _ in settled) == len(left & named)
        left -= named
        assert outstanding.count == len(left)
    assert outstanding.clear() == len(left)
    assert outstanding.count == 0


def test_result_has_its_rates() -> None:
    result = LoadResult(seconds=2.0, events=150, payload_bytes=1_048_576)
    assert (result.events_per_s, result.mb_per_s) == (75.0, 0.5)
    assert LoadResult().events_per_s == 0.0
