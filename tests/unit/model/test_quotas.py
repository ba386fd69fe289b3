"""Allowed numbers of throughput units."""

from __future__ import annotations

from penstock.model import limits
from penstock.model.quotas import is_allowed_units, next_allowed_units


def test_twenty_single_units_are_followed_by_blocks() -> None:
    allowed = [units for units in range(-1, 501) if is_allowed_units(units)]
    assert allowed == [*range(1, 21), 40, 60, 80, 100, 200, 300, 400, 500]


def test_next_allowed_units_skips_none() -> None:
    allowed = [1]
    while allowed[-1] < 400:
        allowed.append(next_allowed_units(allowed[-1]))
    assert allowed == [*range(1, 21), 40, 60, 80, 100, 200, 300, 400]


def test_most_units_are_the_granted_maximum() -> None:
    most = limits.THROUGHPUT_UNITS_GRANTED_MAX
    assert is_allowed_units(most)
    assert not is_allowed_units(next_allowed_units(most))
