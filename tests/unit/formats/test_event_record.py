"""Events as JSON lines and as Capture's Avro: what comes out of a file is what went into it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.formats.event_samples import BODIES, KINDS, VALUES, columns, published

from penstock.amqp import types as t
from penstock.amqp.encoder import encode
from penstock.capture.records import read_capture_records
from penstock.cli.events.event_sender import EventCopy, copy_events
from penstock.formats.amqp_values import InvalidEvent, from_json_value, to_json_value
from penstock.formats.avro import encode_capture_records, parse_capture_record
from penstock.formats.event_record import EventRecord, read_line, to_json_lines, to_record
from penstock.formats.event_sections import (
    EventSections,
    encode_annotations,
    encode_fields,
    encode_properties,
    own_annotations,
)
from penstock.formats.quantities import format_time
from penstock.kernels import Columns


def through_json(found: Columns) -> EventCopy:
    return EventCopy(read_line(to_json_lines(found, "3", [0])))


def through_avro(columns: Columns) -> EventCopy:
    records = encode_capture_records(columns, "3", range(len(columns.bodies)))
    (record,) = read_capture_records(1, records)
    return EventCopy(parse_capture_record(record.system, record.properties, record.body))


@pytest.mark.parametrize("name", VALUES)
def test_value_is_the_same_after_json(name: str) -> None:
    value = VALUES[name]
    again = from_json_value(json.loads(json.dumps(to_json_value(value), allow_nan=False)))
    assert encode(again) == encode(value)
    assert type(again) is type(value)


@pytest.mark.parametrize("through", [through_json, through_avro])
@pytest.mark.parametrize("name", VALUES)
def test_property_of_each_type_is_the_same_byte_for_byte(name: str, through: Any) -> None:
    sections = EventSections(
        encode_properties({"p": VALUES[name], "q": "text"}),
        encode_fields({"content-type": "text/plain", "message-id": "m"}),
        encode_annotations({"x-opt-own": VALUES[name]}),
    )
    found = columns(sections=sections, key="k")
    assert published(through(found)) == published(copy_events(found, "3")[0])


@pytest.mark.parametrize("through", [through_json, through_avro])
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("key", [None, "", "käy"])
def test_body_of_each_kind_is_the_same_byte_for_byte(
    kind: int, key: str | None, through: Any
) -> None:
    found = columns(body=BODIES[kind], kind=kind, key=key)
    assert published(through(found)) == published(copy_events(found, "3")[0])


@pytest.mark.parametrize("through", [through_json, through_avro])
def test_encoding_that_is_not_the_shortest_stays(through: Any) -> None:
    """The official SDK writes 5 with eight bytes; nobody may find another byte in a copy."""
    long_five = bytes.fromhex("c1 0d 02 a1 01 6e 81 00 00 00 00 00 00 00 05")
    fields = bytes.fromhex("c0 04 01 a1 01 6d")
    found = columns(sections=EventSections(long_five, fields))
    copy = through(found)
    assert long_five in published(copy)[0]
    assert fields in published(copy)[0]


@pytest.mark.parametrize("through", [through_json, through_avro])
@given(
    body=st.binary(max_size=200),
    properties=st.dictionaries(
        st.text(max_size=10),
        st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.text(),
        max_size=5,
    ),
    key=st.none() | st.text(max_size=20),
)
@settings(max_examples=60, deadline=None)
def test_any_event_is_the_same_byte_for_byte(
    through: Any, body: bytes, properties: dict[str, object], key: str | None
) -> None:
    found = columns(body=body, key=key, sections=EventSections(encode_properties(properties)))
    assert published(through(found)) == published(copy_events(found, "3")[0])


def test_json_line_is_readable() -> None:
    sections = EventSections(
        encode_properties({"a": "b", "n": t.Uint(5)}),
        encode_fields({"content-type": "text/plain"}),
        encode_annotations({"iothub-connection-device-id": "d7"}),
    )
    assert json.loads(to_json_lines(columns(sections=sections, key="k"), "3", [0])) == {
        "partition": "3",
        "sequence_number": 7,
        "offset": "4242",
        "enqueued_time": "2026-11-16T07:05:15.255Z",
        "partition_key": "k",
        "properties": {"a": "b", "n": {"$type": "uint", "value": 5}},
        "system_properties": {"content-type": "text/plain", "iothub-connection-device-id": "d7"},
        "body": "body",
    }


def test_body_that_is_no_text_is_base64() -> None:
    binary = columns(body=b"\xff\x00")
    assert to_record(binary, "0", 0).body_base64 == "/wA="
    assert b'"body":' not in to_json_lines(binary, "0", [0])


def test_minimal_line_is_an_event() -> None:
    event = read_line(b'{"body": "x"}')
    assert (event.body, event.key, event.partition) == (b"x", None, None)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"7", "not an event"),
        (b'{"body": 7}', "not an event"),
        (b"{", "not an event"),
        (b'{"key": "value"}', "neither body nor body_base64"),
        (b'{"body_base64": "=="}', "not base64"),
        (
            b'{"body": "", "properties": {"a": {"$type": "uint", "value": -1}}}',
            "valid 'uint'",
        ),
        (
            b'{"body": "", "properties": {"a": {"$type": "nonsense", "value": 1}}}',
            "AMQP type",
        ),
        (b'{"body": "", "properties": {"a": [1]}}', "is not a value"),
        (b'{"body": "", "properties": {"a": 99999999999999999999}}', "range of an AMQP long"),
        (b'{"body": "", "system_properties": {"content-type": 7}}', "cannot be"),
        (b'{"body": "", "body_type": "odd"}', "body_type must be one of"),
        (
            b'{"body": "", "body_type": "value", "body_base64": "AAA="}',
            "not a valid value",
        ),
        (b'{"body": "", "amqp": {"application-properties": "wQA="}}', "cannot be read"),
        (b'{"body": "", "amqp": {"application-properties": "RQ=="}}', "not one map"),
        (b'{"body": "", "amqp": {"properties": "wAI="}}', "cannot be read"),
        (b'{"body": "", "amqp": {"footer": ""}}', "amqp may have"),
    ],
)
def test_line_that_is_no_event_is_refused(line: bytes, why: str) -> None:
    with pytest.raises(InvalidEvent, match=why):
        read_line(line)


def test_nesting_of_a_line_is_bounded() -> None:
    value: object = 1
    for _ in range(100):
        value = {"$type": "list", "value": [value]}
    with pytest.raises(InvalidEvent, match="nested deeper"):
        read_line(json.dumps({"body": "", "properties": {"a": value}}).encode())


@pytest.mark.parametrize(
    ("milliseconds", "shown"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (1_794_812_715_255, "2026-11-16T07:05:15.255Z"),
        (-62_135_596_800_000, "0001-01-01T00:00:00.000Z"),
        (2**62, str(2**62)),
    ],
)
def test_time_is_shown_whatever_it_is(milliseconds: int, shown: str) -> None:
    assert format_time(milliseconds) == shown


def test_annotations_of_the_service_and_stamps_are_not_copied() -> None:
    system = encode(
        {
            t.Symbol("x-opt-sequence-number"): 1,
            t.Symbol("x-opt-offset"): "1",
            t.Symbol("x-opt-enqueued-time"): t.Timestamp(1),
            t.Symbol("com.microsoft:producer-id"): 7,
            t.Symbol("x-opt-own"): t.Uint(1),
        }
    )
    assert own_annotations(system, None) == encode({t.Symbol("x-opt-own"): t.Uint(1)})


def test_line_holds_what_struct_says() -> None:
    """The keys that programs rely on (docs/reference/cli-events.md)."""
    assert EventRecord.__struct_fields__ == (
        "partition",
        "sequence_number",
        "offset",
        "enqueued_time",
        "partition_key",
        "properties",
        "system_properties",
        "body",
        "body_base64",
        "body_type",
        "amqp",
    )


HOSTILE = ("\x1b[31mred\x7f\x9b", "\u202eturned\u200b", "tag\U000e0041", "\x00", "käse")


@pytest.mark.parametrize("text", HOSTILE)
def test_json_has_no_character_that_controls_a_terminal(text: str) -> None:
    event = columns(body=text.encode(), sections=EventSections(encode_properties({"p": text})))
    line = to_json_lines(event, "0", [0]).decode()
    assert line.endswith("\n") and line[:-1].isprintable()
    record = json.loads(line)
    assert (record["body"], record["properties"]) == (text, {"p": text})


def test_damaged_properties_are_exported_as_bytes() -> None:
    event = columns(sections=EventSections(b"\xc1\x03\x02\xff"))
    line = to_json_lines(event, "0", [0])
    assert json.loads(line)["amqp"] == {"application-properties": "wQMC/w=="}
    with pytest.raises(InvalidEvent, match="cannot be read"):
        read_line(line)
