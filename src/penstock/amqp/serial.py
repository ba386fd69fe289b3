"""Serial number arithmetic (RFC 1982) for the 32-bit ids of AMQP 2.8.8.

Delivery ids, transfer ids and delivery counts wrap at 2**32. Never compare two of them with `<` and
never subtract them directly: use `serial_distance`. It is right as long as the two are less than
2**31 apart, which windows and credit keep them. A peer may send any value, so callers must bound
the result (a negative distance must not become credit).
"""

from __future__ import annotations

from typing import Final

_MODULUS: Final = 1 << 32
_MASK: Final = _MODULUS - 1
_HALF: Final = 1 << 31


def serial_add(a: int, n: int) -> int:
    """`a` plus `n`, which may be negative, wrapped into 32 bits.

    >>> serial_add(0xFFFFFFFF, 1)
    0
    """
    return (a + n) & _MASK


def serial_distance(a: int, b: int) -> int:
    """`a - b` in the shorter direction: positive if `a` comes after `b`.

    RFC 1982 leaves the order of two ids exactly half the circle apart undefined; here that distance
    is -2**31 both ways.

    >>> serial_distance(2, 0xFFFFFFFF)
    3
    """
    return ((a - b + _HALF) & _MASK) - _HALF
