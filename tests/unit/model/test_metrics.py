"""Histograms of latencies."""

from __future__ import annotations

import pytest

from penstock.model.metrics import FLUSH_BOUNDS_S, FlushLatencies


def test_each_time_is_counted_in_its_class() -> None:
    times = FlushLatencies()
    for seconds in (0.0, 0.0005, 0.0006, 10.0, 10.1, 300.0):
        times.observe(seconds)
    assert (times.counts[0], times.counts[1]) == (2, 1)
    assert (times.counts[-2], times.counts[-1]) == (1, 2)
    assert sum(times.counts) == 6
    assert len(times.counts) == len(FLUSH_BOUNDS_S) + 1
    assert times.total_s == pytest.approx(320.1011)


def test_what_was_read_does_not_change_afterwards() -> None:
    times = FlushLatencies()
    before = times.counts
    times.observe(1.0)
    assert sum(before) == 0
