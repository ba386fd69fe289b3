"""Time spans on the command line: `7d`, `1h30m`, `30s`."""

from __future__ import annotations

import re

import typer

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_PART = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)(ms|[smhdw])")


def parse_seconds(text: str, *, option: str) -> float:
    """Seconds of a time span; a number without a unit is seconds. Raises typer.BadParameter."""
    span = text.strip().lower()
    if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,6})?", span):
        return float(span)
    parts = _PART.findall(span)
    if not parts or "".join(number + unit for number, unit in parts) != span:
        raise typer.BadParameter(
            f"'{text}' is not a time span: write 30s, 15m, 1h30m or 7d.", param_hint=option
        )
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


def parse_hours(text: str, *, option: str) -> int:
    """Whole hours of a retention; a number without a unit is hours. Raises typer.BadParameter."""
    span = text.strip()
    if span.isascii() and span.isdigit():
        return int(span)
    hours = parse_seconds(span, option=option) / 3600
    if hours != int(hours):
        raise typer.BadParameter(
            f"'{text}' is {hours:g} hours: a retention has whole hours.", param_hint=option
        )
    return int(hours)
