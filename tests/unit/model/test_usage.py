"""Clock hours of the usage ledger."""

from __future__ import annotations

import pytest

from penstock.model.usage import HOUR_MS, hour_of


@pytest.mark.parametrize(("now_ms", "hour"), [(0, 0), (HOUR_MS - 1, 0), (HOUR_MS, HOUR_MS)])
def test_hour_begins_where_the_clock_says(now_ms: int, hour: int) -> None:
    assert hour_of(now_ms) == hour
