"""Serial numbers wrap at 2**32 and compare by the shorter way round (RFC 1982)."""

from __future__ import annotations

import doctest

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.amqp import decoder, encoder, serial
from penstock.amqp.serial import serial_add, serial_distance

IDS = st.integers(min_value=0, max_value=2**32 - 1)
STEPS = st.integers(min_value=-(2**31), max_value=2**31 - 1)


@pytest.mark.parametrize(
    ("a", "n", "expected"),
    [
        (0, 0, 0),
        (0, 1, 1),
        (5, -3, 2),
        (0xFFFFFFFF, 1, 0),
        (0xFFFFFFFE, 5, 3),
        (0, -1, 0xFFFFFFFF),
        (7, 2**32, 7),
    ],
)
def test_serial_add_wraps_into_32_bits(a: int, n: int, expected: int) -> None:
    assert serial_add(a, n) == expected


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (0, 0, 0),
        (3, 1, 2),
        (1, 3, -2),
        (0, 0xFFFFFFFF, 1),
        (0xFFFFFFFF, 0, -1),
        (2, 0xFFFFFFFE, 4),
        (0x7FFFFFFF, 0, 0x7FFFFFFF),
        (0x80000001, 0, -0x7FFFFFFF),
        # Undefined in RFC 1982: exactly half the circle. Ours is the same number both ways.
        (0x80000000, 0, -0x80000000),
        (0, 0x80000000, -0x80000000),
    ],
)
def test_serial_distance_takes_the_shorter_way_round(a: int, b: int, expected: int) -> None:
    assert serial_distance(a, b) == expected


@settings(deadline=None)
@given(IDS, STEPS)
def test_serial_distance_undoes_serial_add(a: int, n: int) -> None:
    assert serial_distance(serial_add(a, n), a) == n


@settings(deadline=None)
@given(IDS, IDS)
def test_serial_add_of_the_distance_arrives(a: int, b: int) -> None:
    assert serial_add(b, serial_distance(a, b)) == a


@settings(deadline=None)
@given(IDS, st.integers())
def test_serial_add_stays_in_range_for_any_step(a: int, n: int) -> None:
    assert 0 <= serial_add(a, n) <= 0xFFFFFFFF


@settings(deadline=None)
@given(IDS, IDS)
def test_serial_distance_is_antisymmetric_except_at_half_the_circle(a: int, b: int) -> None:
    distance = serial_distance(a, b)
    if distance != -(2**31):
        assert serial_distance(b, a) == -distance


def test_examples_in_docstrings_hold() -> None:
    for module in (serial, encoder, decoder):
        result = doctest.testmod(module)
        assert result.attempted > 0
        assert result.failed == 0
