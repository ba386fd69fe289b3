"""Durations that users write in options."""

from __future__ import annotations

from penstock.cli.option_parsers import parse_option
from penstock.formats import quantities


def parse_seconds(text: str, *, option: str) -> float:
    """`30s`, `1h30m`, `7d`; a number without a unit is in seconds. Raises typer.BadParameter."""
    return parse_option(quantities.parse_seconds, text, option=option)


def parse_hours(text: str, *, option: str) -> int:
    """Whole hours; a number without a unit is in hours. Raises typer.BadParameter."""
    return parse_option(quantities.parse_hours, text, option=option)
