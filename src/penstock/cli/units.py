"""What people write for a time span (`7d`, `1h30m`, `30s`) and for a moment."""

from __future__ import annotations

import re

import typer

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_PART = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)(ms|[smhdw])")


def parse_seconds(text: str, *, option: str) -> float:
    """`30s`, `1h30m`, `7d`; a bare number is seconds. Raises typer.BadParameter."""
    wanted = text.strip().lower()
    if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,6})?", wanted):
        return float(wanted)
    parts = _PART.findall(wanted)
    if not parts or "".join(number + unit for number, unit in parts) != wanted:
        raise typer.BadParameter(
            f"'{text}' is no time span: 30s, 15m, 1h30m or 7d are.", param_hint=option
        )
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


def parse_hours(text: str, *, option: str) -> int:
    """A retention: whole hours; a bare number is hours. Raises typer.BadParameter."""
    wanted = text.strip()
    if wanted.isascii() and wanted.isdigit():
        return int(wanted)
    found = parse_seconds(wanted, option=option) / 3600
    if found != int(found):
        raise typer.BadParameter(
            f"'{text}' is {found:g} hours: whole hours are kept.", param_hint=option
        )
    return int(found)
