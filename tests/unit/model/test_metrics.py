"""Histograms of latencies; retention of samples."""

from __future__ import annotations

from itertools import pairwise

import pytest

from penstock.model.metrics import FLUSH_BOUNDS_S, LEVELS, STEP_MS, FlushLatencies


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


def test_coarser_levels_are_kept_longer_in_multiples_of_the_finest_step() -> None:
    assert all(fine.kept_ms < coarse.kept_ms for fine, coarse in pairwise(LEVELS))
    assert all(level.step_ms % STEP_MS == 0 for level in LEVELS)
