"""Where reading starts, what bodies look like, what a form's properties become."""

from __future__ import annotations

import csv
import doctest
import gzip
import io
import json
from datetime import UTC, datetime
from typing import Any

import fastavro
import pytest

from penstock.client import EventData, PartitionProperties
from penstock.model.errors import ArgumentError
from penstock.portal import avro, bodies, components, downloads, spans, texts
from penstock.portal.application import PageRouter
from penstock.portal.event_browser import EventRow
from penstock.portal.finding import compile_search
from penstock.portal.page_request import PageRoute
from penstock.portal.pages.send import parse_properties
from penstock.portal.spans import EventQuery, parse_span

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("kind", "at", "expected"),
    [
        ("earliest", "", EventQuery("earliest")),
        ("", "", EventQuery("last", "50")),
        ("latest", "", EventQuery("last", "50")),
        ("sequence", "42", EventQuery("sequence", "42")),
        ("42", "", EventQuery("sequence", "42")),
        ("-100", "", EventQuery("last", "100")),
        ("-5000", "", EventQuery("last", "1000")),
        ("offset", "4096", EventQuery("offset", "4096")),
        ("2026-01-31T12:00:00", "", EventQuery("time", "2026-01-31T12:00:00")),
        ("time", "2026-01-31", EventQuery("time", "2026-01-31")),
        ("time", "-15min", EventQuery("time", "2026-01-31T11:45:00+00:00")),
        ("-2h", "", EventQuery("time", "2026-01-31T10:00:00+00:00")),
        ("before", "0:42,3:-1", EventQuery("before", places={"0": 42, "3": -1})),
        ("after", "7:0", EventQuery("after", places={"7": 0})),
    ],
)
def test_start_is_understood(kind: str, at: str, expected: EventQuery) -> None:
    now_ms = int(NOON.timestamp() * 1000)
    assert parse_span(kind, at, count=50, now_ms=now_ms) == expected


@pytest.mark.parametrize(
    ("kind", "at", "until"),
    [
        ("sequence", "-1", ""),
        ("sequence", "x", ""),
        ("sequence", "9" * 19, ""),
        ("offset", "", ""),
        ("time", "noon", ""),
        ("time", "-99999999d", ""),
        ("time", "0001-01-01T00:00:00+23:59", ""),
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
        parse_span(kind, at, until, count=50)


def test_span_ends_at_a_time_or_a_number() -> None:
    assert parse_span("earliest", "", "2026-01-31T12:00", count=5).until == NOON
    assert parse_span("earliest", "", "2026-01-31T13:00+01:00", count=5).until == NOON
    assert parse_span("earliest", "", "41", count=5).last_of("0") == 41
    assert parse_span("before", "0:30,1:60", "41", count=5).last_of("0") == 29
    assert parse_span("before", "0:30,1:60", "41", count=5).last_of("1") == 41
    assert parse_span("earliest", "", "", count=5).last_of("0") is None


def _selector(span: EventQuery, last: int, partition: str = "0") -> str | None:
    position = span.position(partition, last=last, count=10)
    return None if position is None else position.selector.rpartition("number ")[2]


def test_span_becomes_a_position() -> None:
    assert _selector(EventQuery("last", "10"), 99) == ">= '90'"
    assert _selector(EventQuery("last", "10"), 3) == ">= '0'"
    assert _selector(EventQuery("sequence", "7"), 9) == ">= '7'"
    assert _selector(EventQuery("sequence", "7"), 3) is None
    assert _selector(EventQuery("before", places={"0": 50}), 49) == ">= '40'"
    assert _selector(EventQuery("after", places={"0": 50}), 60) == "> '50'"
    assert _selector(EventQuery("after", places={"0": 50}), 50) is None
    # "after" a millisecond earlier is "at or after".
    timed = EventQuery("time", "1970-01-01T00:00:01").position("0", last=3, count=10)
    assert timed is not None
    assert "> '999'" in timed.selector
    long_ago = EventQuery("time", "0001-01-01").position("0", last=3, count=10)
    assert long_ago is not None
    assert "> '0'" in long_ago.selector


@pytest.mark.parametrize(
    ("span", "may"),
    [
        (EventQuery("sequence", "9"), True),
        (EventQuery("sequence", "10"), False),
        (EventQuery("offset", "100"), True),
        (EventQuery("offset", "101"), False),
        (EventQuery("offset", "x"), True),
        (EventQuery("time", "2026-01-31T12:00"), True),
        (EventQuery("time", "2026-01-31T12:00:01"), False),
        (EventQuery("earliest"), True),
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
    assert span.may_begin_before(known) is may


def test_bodies_are_shown_as_what_they_are() -> None:
    assert bodies.best_view(b'{"a": 1}') == "json"
    assert bodies.format_body(b'{"b":[1]}', "json") == '{\n  "b": [\n    1\n  ]\n}'
    assert bodies.best_view("grüße".encode()) == "text"
    assert bodies.best_view(bytes(range(256))) == "hex"
    assert bodies.format_body(b"AB", "hex").startswith("00000000  41 42")
    assert bodies.format_body(b"not json", "json") == "not json"
    assert bodies.best_view(b"") == "text"
    assert "bytes more" in bodies.format_body(b"x" * 300_000, "text")
    assert bodies.preview(EventData(b"a\n  b")) == "a b"
    assert bodies.preview(EventData(b"x" * 500)).endswith("…")


def test_gzip_is_opened_and_a_bomb_only_a_little() -> None:
    assert bodies.unpack_gzip(gzip.compress(b"hello"))[0] == b"hello"
    content, note = bodies.unpack_gzip(gzip.compress(bytes(50 * 1024 * 1024)))
    assert len(content) <= 4 * 1024 * 1024
    assert "beginning" in note
    assert "damaged" in bodies.unpack_gzip(b"\x1f\x8bnonsense")[1]
    assert bodies.unpack_gzip(b"plain") == (b"plain", "")


def test_deeply_nested_json_is_text() -> None:
    assert bodies.best_view(b"[" * 100_000) == "text"


def test_properties_are_lines_or_an_object() -> None:
    assert parse_properties("a=1\n\n b = x=y \n") == {"a": "1", "b": "x=y"}
    assert parse_properties('{"n": 1, "t": "x", "b": true}') == {"n": 1, "t": "x", "b": True}
    for wrong in ("novalue", "=x", '{"a": [1]}', "{", '{"a": null}'):
        with pytest.raises(ArgumentError):
            parse_properties(wrong)


def test_avro_file_is_read_by_another_library() -> None:
    events = [EventData("one", properties={"a": 1, "b": "x", "c": 1.5, "d": b"\x00"})]
    records: list[Any] = list(fastavro.reader(io.BytesIO(avro.container(events))))
    assert records[0]["Body"] == b"one"
    assert records[0]["Properties"] == {"a": 1, "b": "x", "c": 1.5, "d": b"\x00"}
    assert list(fastavro.reader(io.BytesIO(avro.container([])))) == []


HOSTILE = (
    "=cmd|'/c calc'!A1",
    " +1",
    "@SUM(A1)",
    "\t=1",
    "\uff1d1",
    'a"b,c\r\nd',
    "\x1b[31mred\x7f\x9b",
    "\u202eturned\u200b",
    "tag\U000e0041",
    "\x00",
)


def test_lines_say_the_same_and_command_no_terminal() -> None:
    rows = [EventRow("0", EventData(text, properties={text: text})) for text in HOSTILE]
    written = downloads.to_json_lines(rows).decode()
    assert all(c.isprintable() or c == "\n" for c in written)
    read = [json.loads(line) for line in written.split("\n")[:-1]]
    assert [each["body"] for each in read] == list(HOSTILE)
    assert [each["properties"] for each in read] == [{text: text} for text in HOSTILE]


def test_csv_has_no_formula_and_keeps_its_cells() -> None:
    rows = [EventRow("0", EventData(text, properties={"=1": text})) for text in HOSTILE]
    rows.append(EventRow("1", EventData(b"\xff\xfe")))
    written = downloads.to_csv(rows).decode("utf-8-sig")
    read = list(csv.DictReader(io.StringIO(written, newline="")))
    assert len(read) == len(rows)
    for cell in (cell for each in read for cell in each.values()):
        assert not cell.lstrip().startswith(("=", "+", "-", "@", "\uff1d")), cell
        assert all(c.isprintable() or c in "\r\n\t" for c in cell)
    assert read[0]["body"] == "'" + HOSTILE[0]
    assert read[5]["body"] == HOSTILE[5]
    assert read[-1]["body_base64"] == "//4="


def test_file_is_named_after_the_hub_and_nothing_else() -> None:
    answer = downloads.download_response([], 'a/b"\r\nx: \u00e9', "csv")
    assert answer.headers["content-disposition"] == 'attachment; filename="a-b---x---.csv"'
    assert (
        downloads.download_response([], "h", "exe")
        .headers["content-disposition"]
        .endswith('h.jsonl"')
    )


def test_packed_bodies_are_searched_and_previewed() -> None:
    event = EventData(gzip.compress(b'{"word": "needle"}'))
    wanted = compile_search("needle", "json.word == needle")
    assert wanted is not None
    assert wanted("0", event)
    assert bodies.preview(event) == '{"word": "needle"}'
    bomb = EventData(gzip.compress(bytes(20 * 1024 * 1024)))
    assert not wanted("0", bomb)


@pytest.mark.parametrize("module", [texts, bodies, spans, components])
def test_examples_are_true(module: Any) -> None:
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0


async def _nothing(visit: Any) -> Any:
    raise AssertionError


def test_router_matches_whole_segments_and_methods() -> None:
    router = PageRouter(
        [PageRoute("GET", "/hubs/{hub}/events", _nothing), PageRoute("POST", "/hubs", _nothing)]
    )
    found = router.find("GET", ["hubs", "a/b", "events"])
    assert found is not None
    assert found[1] == {"hub": "a/b"}
    assert router.find("GET", ["hubs", "a", "b", "events"]) is None
    assert router.find("GET", ["hubs"]) is None
    assert router.find("POST", ["hubs"]) is not None
