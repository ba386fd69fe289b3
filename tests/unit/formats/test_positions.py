"""Positions as people write them."""

from __future__ import annotations

import pytest

from penstock.cli.events.event_range import position_before_sequence
from penstock.client import EventPosition
from penstock.formats.positions import StartKind, StartPosition, parse_log_position, parse_position
from penstock.model.errors import ArgumentError

NOW_MS = 1_794_816_000_000  # 2026-11-16T08:00:00Z


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("earliest", StartPosition(StartKind.EARLIEST)),
        ("Latest", StartPosition(StartKind.LATEST)),
        ("-100", StartPosition(StartKind.LAST, 100)),
        ("0", StartPosition(StartKind.SEQUENCE_NUMBER, 0)),
        ("1234", StartPosition(StartKind.SEQUENCE_NUMBER, 1234)),
        ("@5678", StartPosition(StartKind.OFFSET, 0, "5678")),
        ("-15m", StartPosition(StartKind.TIME, 1_794_815_100_000)),
        ("2026-11-16T08:00:00Z", StartPosition(StartKind.TIME, 1_794_816_000_000)),
        ("2026-11-16 08:00", StartPosition(StartKind.TIME, 1_794_816_000_000)),
        ("2026-11-16T10:00:00+02:00", StartPosition(StartKind.TIME, 1_794_816_000_000)),
        ("2026-11-16", StartPosition(StartKind.TIME, 1_794_787_200_000)),
        ("8:00", StartPosition(StartKind.TIME, 1_794_816_000_000)),
        ("08:00:00.5", StartPosition(StartKind.TIME, 1_794_816_000_500)),
    ],
)
def test_place_is_understood(text: str, place: StartPosition) -> None:
    assert parse_position(text, now_ms=NOW_MS) == place


@pytest.mark.parametrize("text", ["", "yesterday", "@", "@a'b", "-", "-5x", "1.5", "25:00", "--1"])
def test_place_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ArgumentError):
        parse_position(text, now_ms=NOW_MS)


def test_place_becomes_a_selector() -> None:
    def selector(text: str) -> str:
        position = EventPosition.from_start(parse_position(text, now_ms=NOW_MS))
        return position.selector.removeprefix("amqp.annotation.x-opt-")

    assert selector("earliest") == "offset > '-1'"
    assert selector("latest") == "offset > '@latest'"
    assert selector("7") == "sequence-number >= '7'"
    assert selector("@70") == "offset >= '70'"
    # What was stored at that very millisecond is wanted too.
    assert selector("2026-11-16T08:00:00Z") == "enqueued-time > '1794815999999'"
    assert position_before_sequence(8).selector.endswith("sequence-number > '7'")
    assert position_before_sequence(0).selector.endswith("offset > '-1'")


@pytest.mark.parametrize("text", ["-100", "-15m", "@5678", "08:00", "", "9" * 19, "yesterday"])
def test_position_of_the_log_is_absolute(text: str) -> None:
    with pytest.raises(ArgumentError, match="is not a position"):
        parse_log_position(text)
