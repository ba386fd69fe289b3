"""Looking for events: texts, conditions, and sentences for conditions that are none."""

from __future__ import annotations

import base64
import json

import pytest

from penstock.amqp.encoder import encode
from penstock.amqp.message import Message, ValueBody, encode_message
from penstock.amqp.types import Decimal128, Described, Symbol, Timestamp, Uint
from penstock.client import EventData
from penstock.client.event_data import ReceivedEvent
from penstock.model.errors import ArgumentError
from penstock.portal.bodies import preview, read_body
from penstock.portal.downloads import to_csv, to_json_lines
from penstock.portal.event_browser import EventRow
from penstock.portal.finding import compile_search, format_value


def event() -> EventData:
    made = EventData(
        '{"temperature": 31.5, "device": {"id": "d7"}, "tags": ["a", "b"], "ok": true}',
        properties={"kind": "alarm", "level": 3, "raw": b"\xff"},
    )
    made.partition_key = "Key-7"
    made.sequence_number = 42
    made.offset = "4096"
    return made


@pytest.mark.parametrize("text", ["temperature", "TEMPERATURE", "key-7", "alarm", "level", "31.5"])
def test_text_is_found_wherever_people_look(text: str) -> None:
    wanted = compile_search(text, "")
    assert wanted is not None
    assert wanted("0", event())


def test_text_that_is_nowhere_is_not_found() -> None:
    wanted = compile_search("pressure", "")
    assert wanted is not None
    assert not wanted("0", event())


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("json.temperature >= 30", True),
        ("json.temperature > 31.5", False),
        ("json.device.id == d7", True),
        ("json.device.id == 'd7'", True),
        ("json.tags.1 == b", True),
        ("json.ok == true", True),
        ("json.nothing == 1", False),
        ("json.nothing != 1", True),
        ("properties.kind = alarm", True),
        ("properties.level < 4 and properties.level > 2", True),
        ("key contains KEY", True),
        ("body contains device", True),
        ("size > 10 and partition == 0", True),
        ("partition != 0", False),
        ("sequence == 42", True),
        ("offset == 4096", True),
        ("sequence == words", False),
        ("time >= 2026-01-01T00:00:00", False),
    ],
)
def test_condition_is_judged(expression: str, expected: bool) -> None:
    wanted = compile_search("", expression)
    assert wanted is not None
    assert wanted("0", event()) is expected


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("key", "no condition"),
        ("key == a or key == b", "joined by 'and'"),
        ("__import__ == os", "There is no"),
        ("key.x == 1", "There is no"),
        (" and ".join(["size > 1"] * 11), "At most 10"),
        ("x" * 1001, "at most 1000"),
    ],
)
def test_condition_that_is_none_is_a_sentence(expression: str, why: str) -> None:
    with pytest.raises(ArgumentError, match=why):
        compile_search("", expression)


def test_nothing_asked_for_is_everything() -> None:
    assert compile_search("", "  ") is None


def test_body_that_is_no_json_has_no_fields() -> None:
    wanted = compile_search("", "json.a == 1")
    assert wanted is not None
    assert not wanted("0", EventData(b"\xff\xfe"))


def received(value: object, **properties: object) -> EventData:
    """An event of a plain AMQP client: its body is an AMQP value."""
    body = encode_message(Message(body=ValueBody(value)))
    return ReceivedEvent(1, "10", 0, None, body, encode(properties), b"", b"", 0x77)


PRICE = Decimal128(bytes.fromhex("0c3e" + "00" * 13 + "01"))  # 0.1 of .NET


@pytest.mark.parametrize(
    "expression",
    [
        "json.a == 1",
        "body contains a",
        "properties.price == 0.1",
        "properties.price < 0.2",
        "properties.link contains example",
    ],
)
def test_amqp_values_are_found(expression: str) -> None:
    wanted = compile_search("", expression)
    link = Described(Symbol("com.microsoft:uri"), "https://example.com")
    assert wanted is not None
    assert wanted("0", received('{"a": 1}', price=PRICE, link=link))


def test_amqp_values_are_shown_as_text() -> None:
    event = received('{"a": 1}', price=PRICE)
    assert preview(event) == '{"a": 1}'
    assert read_body(event) == (b'{"a": 1}', "")
    assert preview(received(b"\xff\x00\x01")) == "ff 00 01"
    assert format_value(PRICE) == "0.1"
    assert format_value([PRICE, b"\xff"]) == '["0.1","/w=="]'


def test_downloads_have_the_text_and_the_sections_of_an_amqp_value() -> None:
    event = received("text", price=PRICE)
    (line,) = to_json_lines([EventRow("0", event)]).splitlines()
    record = json.loads(line)
    assert (record["body"], record["body_type"]) == ("text", "value")
    assert base64.b64decode(record["body_base64"]) == event.body
    assert record["properties"] == {"price": "0.1"}
    assert b'"text"' in to_csv([EventRow("0", event)])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Timestamp(1_700_000_000_000), "2023-11-14T22:13:20.000Z"),
        (True, "true"),
        (None, "null"),
        (Uint(7), "7"),
        ("text", "text"),
        (b"bytes", "bytes"),
        (Described(Symbol("com.microsoft:uri"), "https://example.org"), "https://example.org"),
    ],
    ids=str,
)
def test_properties_are_shown_for_people(value: object, text: str) -> None:
    assert format_value(value) == text
