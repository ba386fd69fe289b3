"""The ladder of throughput units (protocol.md 10.2)."""

from __future__ import annotations

import pytest

from penstock.model import limits
from penstock.model.quotas import is_allowed_units, next_allowed_units
from penstock.model.usage import HOUR_MS, hour_of


def test_ladder_has_twenty_small_steps_then_blocks() -> None:
    steps = [units for units in range(-1, 501) if is_allowed_units(units)]
    assert steps == [*range(1, 21), 40, 60, 80, 100, 200, 300, 400, 500]


def test_ladder_is_climbed_step_by_step() -> None:
    steps = [1]
    while steps[-1] < 400:
        steps.append(next_allowed_units(steps[-1]))
    assert steps == [*range(1, 21), 40, 60, 80, 100, 200, 300, 400]


def test_ladder_ends_somewhere() -> None:
    most = limits.THROUGHPUT_UNITS_GRANTED_MAX
    assert is_allowed_units(most)
    assert not is_allowed_units(next_allowed_units(most))


@pytest.mark.parametrize(("now_ms", "hour"), [(0, 0), (HOUR_MS - 1, 0), (HOUR_MS, HOUR_MS)])
def test_hour_begins_where_the_clock_says(now_ms: int, hour: int) -> None:
    assert hour_of(now_ms) == hour
