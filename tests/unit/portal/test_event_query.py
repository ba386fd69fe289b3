"""Which events an address names, and where reading starts."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from penstock.client import PartitionProperties
from penstock.formats.positions import StartKind, StartPosition
from penstock.model.errors import ArgumentError
from penstock.portal.event_query import EventQuery, parse_query

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
LAST_50, EARLIEST = StartPosition(StartKind.LAST, 50), StartPosition(StartKind.EARLIEST)
NOON_MS = int(NOON.timestamp() * 1000)


def query(kind: str, number: int = 0, offset: str = "") -> EventQuery:
    return EventQuery(StartPosition(StartKind[kind], number, offset))


@pytest.mark.parametrize(
    ("kind", "at", "expected"),
    [
        ("earliest", "", query("EARLIEST")),
        ("", "", query("LAST", 50)),
        ("latest", "", query("LAST", 50)),
        ("sequence", "42", query("SEQUENCE_NUMBER", 42)),
        ("42", "", query("SEQUENCE_NUMBER", 42)),
        ("-100", "", query("LAST", 100)),
        ("-5000", "", query("LAST", 1000)),
        ("offset", "4096", query("OFFSET", 0, "4096")),
        ("2026-01-31T12:00:00", "", query("TIME", NOON_MS)),
        ("time", "2026-01-31", query("TIME", NOON_MS - 43_200_000)),
        ("time", "-15min", query("TIME", NOON_MS - 900_000)),
        ("-2h", "", query("TIME", NOON_MS - 7_200_000)),
        ("before", "0:42,3:-1", EventQuery(LAST_50, before={"0": 42, "3": -1})),
        ("after", "7:0", EventQuery(EARLIEST, after={"7": 0})),
    ],
)
def test_start_is_understood(kind: str, at: str, expected: EventQuery) -> None:
    assert parse_query(kind, at, count=50, now_ms=NOON_MS) == expected


@pytest.mark.parametrize(
    ("kind", "at", "until"),
    [
        ("sequence", "-1", ""),
        ("sequence", "x", ""),
        ("sequence", "9" * 19, ""),
        ("offset", "", ""),
        ("time", "noon", ""),
        ("time", "-99999999d", ""),
        ("<script>", "", ""),
        ("before", "", ""),
        ("after", "0:x", ""),
        ("after", "-1:4", ""),
        ("earliest", "", "noon"),
        ("earliest", "", "-5"),
    ],
)
def test_span_that_is_none_is_a_sentence(kind: str, at: str, until: str) -> None:
    with pytest.raises(ArgumentError):
        parse_query(kind, at, until, count=50, now_ms=NOON_MS)


def parse(kind: str, at: str, until: str) -> EventQuery:
    return parse_query(kind, at, until, count=5, now_ms=NOON_MS)


def test_span_ends_at_a_time_or_a_number() -> None:
    assert parse("earliest", "", "2026-01-31T12:00").until_ms == NOON_MS
    assert parse("earliest", "", "2026-01-31T13:00+01:00").until_ms == NOON_MS
    assert parse("earliest", "", "41").last_of("0") == 41
    assert parse("before", "0:30,1:60", "41").last_of("0") == 29
    assert parse("before", "0:30,1:60", "41").last_of("1") == 41
    assert parse("earliest", "", "").last_of("0") > 10**18  # has no end


def _selector(span: EventQuery, last: int, partition: str = "0") -> str | None:
    position = span.position(partition, last=last)
    return None if position is None else position.selector.rpartition("number ")[2]


def test_span_becomes_a_position() -> None:
    assert _selector(query("LAST", 10), 99) == ">= '90'"
    assert _selector(query("LAST", 10), 3) == ">= '0'"
    assert _selector(query("SEQUENCE_NUMBER", 7), 9) == ">= '7'"
    assert _selector(query("SEQUENCE_NUMBER", 7), 3) is None
    assert (
        _selector(EventQuery(StartPosition(StartKind.LAST, 10), before={"0": 50}), 49) == ">= '40'"
    )
    assert _selector(EventQuery(EARLIEST, after={"0": 50}), 60) == "> '50'"
    assert _selector(EventQuery(EARLIEST, after={"0": 50}), 50) is None
    # "after" a millisecond earlier is "at or after".
    timed = query("TIME", 1000).position("0", last=3)
    assert timed is not None
    assert "> '999'" in timed.selector
    long_ago = query("TIME").position("0", last=3)
    assert long_ago is not None
    assert "> '0'" in long_ago.selector


@pytest.mark.parametrize(
    ("span", "may"),
    [
        (query("SEQUENCE_NUMBER", 9), True),
        (query("SEQUENCE_NUMBER", 10), False),
        (query("OFFSET", 0, "100"), True),
        (query("OFFSET", 0, "101"), False),
        (query("OFFSET", 0, "x"), True),
        (query("TIME", NOON_MS), True),
        (query("TIME", NOON_MS + 1000), False),
        (query("EARLIEST"), True),
    ],
)
def test_nobody_waits_for_what_is_behind_the_end(span: EventQuery, may: bool) -> None:
    known = PartitionProperties(
        eventhub_name="h",
        id="0",
        is_empty=False,
        beginning_sequence_number=0,
        last_enqueued_sequence_number=9,
        last_enqueued_offset="100",
        last_enqueued_time_utc=NOON,
    )
    assert span.has_events(known) is may
