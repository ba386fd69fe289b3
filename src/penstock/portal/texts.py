"""Numbers and times as people read them."""

from __future__ import annotations

import math
from datetime import UTC, datetime

_STEPS = ("", "k", "M", "G", "T")
_BYTES = ("B", "KB", "MB", "GB", "TB")


def format_count(value: float | None) -> str:
    """
    >>> format_count(999), format_count(12_345), format_count(2_500_000), format_count(None)
    ('999', '12.3k', '2.5M', '–')
    """
    if value is None:
        return "–"
    return _scale_unit(value, 1000, _STEPS, "")


def format_size(value: float | None) -> str:
    """
    >>> format_size(512), format_size(1536), format_size(5 * 1024**3)
    ('512 B', '1.5 KB', '5 GB')
    """
    if value is None:
        return "–"
    return _scale_unit(value, 1024, _BYTES, " ")


def format_integer(value: int | None) -> str:
    """Exactly, with thin spaces between thousands.

    >>> format_integer(1234567), format_integer(None)
    ('1\u202f234\u202f567', '–')
    """
    return "–" if value is None else f"{value:,}".replace(",", "\u202f")


def format_plural(number: int, noun: str) -> str:
    """
    >>> format_plural(1, "unit"), format_plural(0, "unit")
    ('1 unit', '0 units')
    """
    return f"{format_integer(number)} {noun}{'' if number == 1 else 's'}"


def format_duration(value: float | None) -> str:
    """
    >>> [format_duration(seconds) for seconds in (0.4, 95, 7300, 200_000)]
    ['0.4 s', '1 min 35 s', '2 h 1 min', '2 d 7 h']
    """
    if value is None:
        return "–"
    if value < 10:
        return f"{value:.1f} s".replace(".0 ", " ")
    whole_s = int(value)
    if whole_s < 60:
        return f"{whole_s} s"
    for limit, unit, below, part in (
        (3600, 60, 1, ("min", "s")),
        (86_400, 3600, 60, ("h", "min")),
        (math.inf, 86_400, 3600, ("d", "h")),
    ):
        if whole_s < limit:
            rest = whole_s % unit // below
            return f"{whole_s // unit} {part[0]}" + (f" {rest} {part[1]}" if rest else "")
    raise AssertionError("unreachable")


def format_moment(at_ms: int | None) -> str:
    """To the second, UTC; a dash for what never was."""
    if at_ms is None or at_ms <= 0:
        return "–"
    try:
        when = datetime.fromtimestamp(at_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return str(at_ms)
    return when.strftime("%Y-%m-%d %H:%M:%S")


def format_age(at_ms: int | None, now_ms: int) -> str:
    if at_ms is None or at_ms <= 0:
        return "never"
    return f"{format_duration(max(0, now_ms - at_ms) // 1000)} ago"


def _scale_unit(value: float, step: int, names: tuple[str, ...], gap: str) -> str:
    amount = float(value)
    for name in names:
        if abs(amount) < step or name == names[-1]:
            break
        amount /= step
    # 999.96 would read "1000": the next unit's one.
    digits = 0 if abs(amount) >= 100 or amount == int(amount) else 1
    return f"{amount:.{digits}f}".removesuffix(".0") + gap + name
