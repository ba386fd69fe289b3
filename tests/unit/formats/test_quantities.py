"""Time spans as people write them."""

from __future__ import annotations

import pytest

from penstock.formats.quantities import parse_hours, parse_seconds
from penstock.model.errors import ArgumentError


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("30s", 30),
        ("30", 30),
        ("1.5h", 5400),
        ("1h30m", 5400),
        ("7d", 604800),
        ("250ms", 0.25),
        ("15min", 900),
    ],
)
def test_span_is_read(text: str, found: float) -> None:
    assert parse_seconds(text) == found


@pytest.mark.parametrize("text", ["", "s", "5x", "1h 30", "-5s", "1hh", "٣s", "9" * 12 + "s"])
def test_span_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ArgumentError, match="is not a duration"):
        parse_seconds(text)


def test_retention_is_whole_hours() -> None:
    assert parse_hours("7d") == 168
    assert parse_hours("36") == 36
    with pytest.raises(ArgumentError, match=r"1\.5 hours"):
        parse_hours("90m")
