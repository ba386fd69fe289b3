"""Selectors as the SDKs write them (protocol.md 5.3), and what else peers may send."""

from __future__ import annotations

import pytest

from penstock.amqp.types import Described, Symbol, Ulong
from penstock.gateway.amqp.filters import SELECTOR, parse_expression, start_position
from penstock.model.errors import ArgumentError
from penstock.model.positions import EARLIEST, LATEST, Position, PositionKind

OFFSET, SEQUENCE, TIME = PositionKind.OFFSET, PositionKind.SEQUENCE, PositionKind.ENQUEUED_TIME


@pytest.mark.parametrize(
    ("expression", "position"),
    [
        ("amqp.annotation.x-opt-offset > '-1'", EARLIEST),
        ("amqp.annotation.x-opt-offset > -1", EARLIEST),
        ("amqp.annotation.x-opt-offset > '@latest'", LATEST),
        ("amqp.annotation.x-opt-offset > @latest", LATEST),
        ("amqp.annotation.x-opt-offset >= '@latest'", LATEST),
        ("amqp.annotation.x-opt-offset > '1234'", Position(OFFSET, 1234)),
        ("amqp.annotation.x-opt-offset >= 42", Position(OFFSET, 42, True)),
        ("amqp.annotation.x-opt-sequence-number > '7'", Position(SEQUENCE, 7)),
        ("amqp.annotation.x-opt-sequence-number >= '0'", Position(SEQUENCE, 0, True)),
        ("amqp.annotation.x-opt-sequence-number > '-1'", EARLIEST),
        ("amqp.annotation.x-opt-enqueued-time > '1700000000000'", Position(TIME, 1700000000000)),
        ("amqp.annotation.x-opt-enqueued-time >= 5", Position(TIME, 5, True)),
        ("amqp.annotation.x-opt-enqueuedtimeutc > 1700000000000", Position(TIME, 1700000000000)),
    ],
)
def test_selector_gives_the_position(expression: str, position: Position) -> None:
    assert parse_expression(expression) == position


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "amqp.annotation.x-opt-offset",
        "amqp.annotation.x-opt-offset < '1'",
        "amqp.annotation.x-opt-unknown > '1'",
        "amqp.annotation.x-opt-offset > 'abc'",
        "amqp.annotation.x-opt-offset > '１'",
        "amqp.annotation.x-opt-offset > '99999999999999999999'",
        "amqp.annotation.x-opt-offset > '9223372036854775808'",
        "amqp.annotation.x-opt-sequence-number > '@latest'",
        "amqp.annotation.x-opt-offset > '1' or 1=1",
        "amqp.annotation.x-opt-offset > '" + "1" * 600 + "'",
    ],
)
def test_selector_that_cannot_be_read_is_refused(expression: str) -> None:
    with pytest.raises(ArgumentError):
        parse_expression(expression)


@pytest.mark.parametrize(
    ("key", "descriptor"),
    [
        (SELECTOR, Symbol(SELECTOR)),
        (SELECTOR, Ulong(0x0000468C00000004)),
        (SELECTOR, Ulong(0x000000137000000A)),
        ("selector", Symbol(SELECTOR)),
        ("anything", Symbol(SELECTOR)),
    ],
)
def test_selector_is_found_by_key_or_descriptor(key: str, descriptor: object) -> None:
    filters: dict[str, object] = {
        Symbol(key): Described(descriptor, "amqp.annotation.x-opt-offset > '9'")
    }
    assert start_position(filters) == Position(OFFSET, 9)


def test_no_filter_starts_at_the_beginning() -> None:
    assert start_position(None) == EARLIEST
    assert start_position({"other": Described(Symbol("other"), "x")}) == EARLIEST


def test_selector_that_is_no_string_is_refused() -> None:
    with pytest.raises(ArgumentError):
        start_position({SELECTOR: Described(Symbol(SELECTOR), 5)})
