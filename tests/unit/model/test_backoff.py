"""Pauses between attempts."""

from __future__ import annotations

import pytest

from penstock.model.backoff import Backoff


def test_pauses_double_up_to_the_longest() -> None:
    backoff = Backoff(1, 5)
    assert [backoff.pause_s(failures) for failures in (1, 2, 3, 4, 10**9)] == [1, 2, 4, 5, 5]


def test_jitter_lengthens_or_shortens_a_pause() -> None:
    backoff = Backoff(1, 5, jitter=0.2)
    pauses = [backoff.pause_s(1, chance) for chance in (0.0, 0.5, 1.0)]
    assert pauses == pytest.approx([0.8, 1.0, 1.2])
