"""Where reading starts, what bodies look like, what a form's properties become."""

from __future__ import annotations

import doctest
import gzip
import io
from typing import Any

import fastavro
import pytest

from penstock.client import EventData
from penstock.model.errors import ArgumentError
from penstock.portal import avro, bodies, texts
from penstock.portal.pages.sending import parse_properties
from penstock.portal.reading import Start, parse_start
from penstock.portal.web import Route, Router


@pytest.mark.parametrize(
    ("kind", "at", "expected"),
    [
        ("earliest", "", Start("earliest")),
        ("", "", Start("last", "50")),
        ("latest", "", Start("last", "50")),
        ("sequence", "42", Start("sequence", "42")),
        ("42", "", Start("sequence", "42")),
        ("-100", "", Start("last", "100")),
        ("-5000", "", Start("last", "1000")),
        ("offset", "4096", Start("offset", "4096")),
        ("2026-01-31T12:00:00", "", Start("time", "2026-01-31T12:00:00")),
        ("time", "2026-01-31", Start("time", "2026-01-31")),
    ],
)
def test_start_is_understood(kind: str, at: str, expected: Start) -> None:
    assert parse_start(kind, at, count=50) == expected


@pytest.mark.parametrize(
    ("kind", "at"),
    [("sequence", "-1"), ("sequence", "x"), ("offset", ""), ("time", "noon"), ("<script>", "")],
)
def test_start_that_is_none_is_a_sentence(kind: str, at: str) -> None:
    with pytest.raises(ArgumentError):
        parse_start(kind, at, count=50)


def test_start_becomes_a_position() -> None:
    assert "'90'" in Start("last", "10").position(last_sequence=99).selector
    assert "'0'" in Start("last", "10").position(last_sequence=3).selector
    assert ">= '7'" in Start("sequence", "7").position(last_sequence=3).selector
    # "after" a millisecond earlier is "at or after".
    timed = Start("time", "1970-01-01T00:00:01").position(last_sequence=3)
    assert "> '999'" in timed.selector


def test_bodies_are_shown_as_what_they_are() -> None:
    assert bodies.best_view(b'{"a": 1}') == "json"
    assert bodies.shown(b'{"b":[1]}', "json") == '{\n  "b": [\n    1\n  ]\n}'
    assert bodies.best_view("grüße".encode()) == "text"
    assert bodies.best_view(bytes(range(256))) == "hex"
    assert bodies.shown(b"AB", "hex").startswith("00000000  41 42")
    assert bodies.shown(b"not json", "json") == "not json"
    assert bodies.best_view(b"") == "text"
    assert "bytes more" in bodies.shown(b"x" * 300_000, "text")
    assert bodies.preview(b"a\n  b") == "a b"
    assert bodies.preview(b"x" * 500).endswith("…")


def test_gzip_is_opened_and_a_bomb_only_a_little() -> None:
    assert bodies.unpacked(gzip.compress(b"hello"))[0] == b"hello"
    content, note = bodies.unpacked(gzip.compress(bytes(50 * 1024 * 1024)))
    assert len(content) <= 4 * 1024 * 1024
    assert "beginning" in note
    assert "damaged" in bodies.unpacked(b"\x1f\x8bnonsense")[1]
    assert bodies.unpacked(b"plain") == (b"plain", "")


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


@pytest.mark.parametrize("module", [texts, bodies])
def test_examples_are_true(module: Any) -> None:
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0


async def _nothing(visit: Any) -> Any:
    raise AssertionError


def test_router_matches_whole_segments_and_methods() -> None:
    router = Router(
        [Route("GET", "/hubs/{hub}/events", _nothing), Route("POST", "/hubs", _nothing)]
    )
    found = router.find("GET", ["hubs", "a/b", "events"])
    assert found is not None
    assert found[1] == {"hub": "a/b"}
    assert router.find("GET", ["hubs", "a", "b", "events"]) is None
    assert router.find("GET", ["hubs"]) is None
    assert router.find("POST", ["hubs"]) is not None
