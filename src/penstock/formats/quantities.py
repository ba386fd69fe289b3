"""Sizes, durations, counts and times as text, and durations and times read from text."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from penstock.model.errors import ArgumentError

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)

_SECONDS = {
    "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0,
}  # fmt: skip
_PART = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)(ms|min|[smhdw])")
_COUNT_UNITS = ("", "k", "M", "G", "T")
_SIZE_UNITS = ("B", "KB", "MB", "GB", "TB")
_UNKNOWN = "–"


def parse_seconds(text: str) -> float:
    """Read a duration: `30s`, `15min`, `1h30m`, `7d`. A number without a unit is in seconds.

    Raises ArgumentError.
    """
    duration = text.strip().lower().replace(" ", "")
    if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,6})?", duration):
        return float(duration)
    parts = _PART.findall(duration)
    if not parts or "".join(number + unit for number, unit in parts) != duration:
        raise ArgumentError(f"'{text[:40]}' is not a duration. Examples: 30s, 15m, 1h30m, 7d.")
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


def parse_hours(text: str) -> int:
    """Read a retention in whole hours: `7d`. A number without a unit is in hours.

    Raises ArgumentError.
    """
    if text.strip().isascii() and text.strip().isdigit():
        return int(text)
    hours = parse_seconds(text) / 3600
    if hours != int(hours):
        raise ArgumentError(f"'{text}' is {hours:g} hours. Only whole hours are allowed.")
    return int(hours)


def parse_time_ms(text: str) -> int:
    """Read an ISO 8601 time as milliseconds since 1970. A time without a zone is UTC.

    Raises ValueError.
    """
    time = datetime.fromisoformat(text)
    aware = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    return (aware - EPOCH) // MILLISECOND


@lru_cache(maxsize=1024)
def format_time(time_ms: int) -> str:
    """
    >>> format_time(1_794_812_715_255)
    '2026-11-16T07:05:15.255Z'

    A time outside of the calendar is returned as its number of milliseconds.
    """
    try:
        time = EPOCH + time_ms * MILLISECOND
    except OverflowError:
        return str(time_ms)
    return time.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


def format_moment(time_ms: int | None) -> str:
    """Like `format_time`, to the second and without `T` and `Z`; a dash if there is no time."""
    if time_ms is None or time_ms <= 0:
        return _UNKNOWN
    return format_time(time_ms)[:19].replace("T", " ")


def format_moment_with_age(time_ms: int | None, now_ms: int, *, unknown: str = _UNKNOWN) -> str:
    if time_ms is None or time_ms <= 0:
        return unknown
    return f"{format_moment(time_ms)} ({format_age(time_ms, now_ms)})"


def format_age(time_ms: int | None, now_ms: int) -> str:
    if time_ms is None or time_ms <= 0:
        return "never"
    return f"{format_duration(max(0, now_ms - time_ms) // 1000)} ago"


def format_count(value: float | None) -> str:
    """
    >>> format_count(999), format_count(12_345), format_count(2_500_000), format_count(None)
    ('999', '12.3k', '2.5M', '–')
    """
    return _UNKNOWN if value is None else _scale_unit(value, 1000, _COUNT_UNITS, "")


def format_size(value: float | None) -> str:
    """
    >>> format_size(512), format_size(1536), format_size(5 * 1024**3)
    ('512 B', '1.5 KB', '5 GB')
    """
    return _UNKNOWN if value is None else _scale_unit(value, 1024, _SIZE_UNITS, " ")


def format_integer(value: int | None) -> str:
    """
    >>> format_integer(1234567), format_integer(None)
    ('1,234,567', '–')
    """
    return _UNKNOWN if value is None else f"{value:,}"


def format_number(value: float | None) -> str:
    """Exact below a million, then with three digits.

    >>> format_number(5398), format_number(0.42), format_number(7_204_000), format_number(None)
    ('5,398', '0.4', '7.2 M', '–')
    """
    if value is None:
        return _UNKNOWN
    if abs(value) < 10:
        return f"{value:.1f}".removesuffix(".0")
    if abs(value) < 999_999.5:
        return f"{value:,.0f}"
    amount, unit = value / 1e6, "M"
    for larger in ("G", "T"):
        if abs(amount) < 999.5:
            break
        amount, unit = amount / 1000, larger
    return f"{amount:.3g} {unit}"


def format_plural(number: int, noun: str) -> str:
    """
    >>> format_plural(1, "unit"), format_plural(0, "unit")
    ('1 unit', '0 units')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def format_duration(value: float | None) -> str:
    """
    >>> [format_duration(seconds) for seconds in (0.4, 95, 7300, 200_000)]
    ['0.4 s', '1 min 35 s', '2 h 1 min', '2 d 7 h']
    """
    if value is None:
        return _UNKNOWN
    if value < 10:
        return f"{value:.1f} s".replace(".0 ", " ")
    seconds = int(value)
    if seconds < 60:
        return f"{seconds} s"
    for limit, unit_s, smaller_s, names in (
        (3600, 60, 1, ("min", "s")),
        (86_400, 3600, 60, ("h", "min")),
        (math.inf, 86_400, 3600, ("d", "h")),
    ):
        if seconds < limit:
            remaining = seconds % unit_s // smaller_s
            return f"{seconds // unit_s} {names[0]}" + (
                f" {remaining} {names[1]}" if remaining else ""
            )
    raise AssertionError("unreachable")


def _scale_unit(value: float, step: int, names: tuple[str, ...], gap: str) -> str:
    amount = float(value)
    for name in names:
        if abs(amount) < step or name == names[-1]:
            break
        amount /= step
    digits = 0 if abs(amount) >= 100 or amount == int(amount) else 1
    return f"{amount:.{digits}f}".removesuffix(".0") + gap + name
