"""Allowed numbers of throughput units, and the quota grants by which an operator raises a limit.

Without a quota grant a namespace has 1 to 20 units. With one it has 40, 60, 80, 100 or a multiple
of 100.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from penstock.model import limits
from penstock.model.names import NamespaceName

UNITS_TEXT = (
    f"{limits.THROUGHPUT_UNITS_MIN} to {limits.THROUGHPUT_UNITS_MAX}, "
    "or 40, 60, 80, 100 and blocks of 100 beyond"
)

_SMALL_BLOCK = 20
_LARGE_BLOCK = 100


class QuotaKind(StrEnum):
    """A limit that an operator may raise for one namespace."""

    THROUGHPUT_UNITS = "throughput-units"  # of the namespace
    PARTITIONS = "partitions"  # of each hub of the namespace


class QuotaGrant(msgspec.Struct, frozen=True, kw_only=True):
    """The namespace may have up to `value` of `kind`. A newer grant of the kind replaces it."""

    namespace: NamespaceName
    kind: QuotaKind
    value: int
    granted_by: str
    granted_ms: int
    note: str = ""


def is_allowed_units(units: int) -> bool:
    """Whether a namespace can hold this number of units, a quota grant permitting."""
    if not limits.THROUGHPUT_UNITS_MIN <= units <= limits.THROUGHPUT_UNITS_GRANTED_MAX:
        return False
    if units <= limits.THROUGHPUT_UNITS_MAX:
        return True
    return units % (_SMALL_BLOCK if units <= _LARGE_BLOCK else _LARGE_BLOCK) == 0


def next_allowed_units(units: int) -> int:
    """The next higher number of units that a namespace can hold."""
    if units < limits.THROUGHPUT_UNITS_MAX:
        return units + 1
    return units + (_SMALL_BLOCK if units < _LARGE_BLOCK else _LARGE_BLOCK)
