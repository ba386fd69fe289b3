"""The ladder of throughput units (protocol.md 10.2): 1 to 20 by oneself, then blocks by a grant.

20 is followed by 40, 60, 80, 100, and from there on by blocks of 100.
"""

from __future__ import annotations

from penstock.model import limits

LADDER_TEXT = (
    f"{limits.THROUGHPUT_UNITS_MIN} to {limits.THROUGHPUT_UNITS_MAX}, "
    "or 40, 60, 80, 100 and blocks of 100 beyond"
)

_SMALL_BLOCK = 20
_LARGE_BLOCK = 100


def is_allowed_units(units: int) -> bool:
    """Whether a namespace can hold exactly so many, a grant given."""
    if not limits.THROUGHPUT_UNITS_MIN <= units <= limits.THROUGHPUT_UNITS_GRANTED_MAX:
        return False
    if units <= limits.THROUGHPUT_UNITS_MAX:
        return True
    return units % (_SMALL_BLOCK if units <= _LARGE_BLOCK else _LARGE_BLOCK) == 0


def next_allowed_units(units: int) -> int:
    """What can be held next after `units`."""
    assert is_allowed_units(units)
    if units < limits.THROUGHPUT_UNITS_MAX:
        return units + 1
    return units + (_SMALL_BLOCK if units < _LARGE_BLOCK else _LARGE_BLOCK)


assert is_allowed_units(limits.THROUGHPUT_UNITS_GRANTED_MAX)
