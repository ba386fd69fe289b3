"""Time spans as people write them."""

from __future__ import annotations

import pytest
import typer

from penstock.cli.units import parse_hours, parse_seconds


@pytest.mark.parametrize(
    ("text", "found"),
    [("30s", 30), ("30", 30), ("1.5h", 5400), ("1h30m", 5400), ("7d", 604800), ("250ms", 0.25)],
)
def test_span_is_read(text: str, found: float) -> None:
    assert parse_seconds(text, option="--wait") == found


@pytest.mark.parametrize("text", ["", "s", "5x", "1h 30", "-5s", "1hh", "٣s", "9" * 12 + "s"])
def test_span_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="not a time span"):
        parse_seconds(text, option="--wait")


def test_retention_is_whole_hours() -> None:
    assert parse_hours("7d", option="--retention") == 168
    assert parse_hours("36", option="--retention") == 36
    with pytest.raises(typer.BadParameter, match=r"1\.5 hours"):
        parse_hours("90m", option="--retention")
