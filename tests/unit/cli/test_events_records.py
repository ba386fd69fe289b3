"""Events as JSON lines and as Capture's Avro: what comes out of a file is what went into it."""

from __future__ import annotations

import base64
import io
import json
import math
import uuid
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.amqp import types as t
from penstock.amqp.encoder import encode
from penstock.cli.avro import AvroContainerWriter, Reader, read_blocks, read_container, write_long
from penstock.cli.capture_rows import (
    SCHEMA,
    capture_record_reader,
    encode_capture_records,
    read_capture_record,
)
from penstock.cli.plain import from_json_value, to_json_value
from penstock.cli.records import (
    EventRecord,
    format_enqueued_time,
    read_line,
    to_json_lines,
    to_records,
)
from penstock.cli.sections import (
    EventCopy,
    EventSections,
    InvalidEvent,
    copy_events,
    encode_annotations,
    encode_fields,
    encode_properties,
    own_annotations,
)
from penstock.kernels import Columns

# Every simple type that AMQP has, and those that are not simple.
VALUES: dict[str, object] = {
    "null": None,
    "true": True,
    "false": False,
    "ubyte": t.Ubyte(255),
    "ushort": t.Ushort(65535),
    "uint": t.Uint(2**32 - 1),
    "ulong": t.Ulong(2**64 - 1),
    "byte": t.Byte(-128),
    "short": t.Short(-32768),
    "int": t.Int(-(2**31)),
    "long": -(2**63),
    "small long": 5,
    "float": t.Float(1.5),
    "double": 0.1,
    "not a number": math.nan,
    "infinite float": t.Float(-math.inf),
    "char": t.Char("ß"),
    "timestamp": t.Timestamp(1_794_812_715_255),
    "far timestamp": t.Timestamp(2**62),
    "uuid": uuid.UUID(int=2**100 + 7),
    "binary": b"\x00\xff\x1b[2J",
    "string": "Grüße \U0001f40d \u202e\x00",
    "symbol": t.Symbol("sym"),
    "decimal32": t.Decimal32(b"abcd"),
    "decimal64": t.Decimal64(b"abcdefgh"),
    "decimal128": t.Decimal128(b"abcdefghijklmnop"),
    "list": [1, "two", t.Uint(3), [None]],
    "map": {"a": t.Ubyte(1), t.Symbol("b"): {}},
    "array": t.Array([1, 2, 3], code=t.INT),
    "timespan": t.Described(t.Symbol("com.microsoft:timespan"), 36_000_000_000),
}
KINDS = {"data": 0x75, "sequence": 0x76, "value": 0x77}
BODIES = {
    0x75: b"body \xff",
    0x76: b"\x00\x53\x76" + encode([1, "a"]),
    0x77: b"\x00\x53\x77" + encode({"a": 1}),
}


def columns(
    *,
    body: bytes = b"body",
    kind: int = 0x75,
    key: str | None = None,
    sections: EventSections | None = None,
) -> Columns:
    """One event as a service delivers it."""
    sections = sections or EventSections()
    place: dict[object, object] = {
        t.Symbol("x-opt-sequence-number-epoch"): t.Int(-1),
        t.Symbol("x-opt-sequence-number"): 7,
        t.Symbol("x-opt-offset"): "4242",
        t.Symbol("x-opt-enqueued-time"): t.Timestamp(1_794_812_715_255),
    }
    if key is not None:
        place[t.Symbol("x-opt-partition-key")] = key
    system = encode(place)
    if sections.annotations:
        inside = system[3:] + sections.annotations[3:]
        count = system[2] + sections.annotations[2]
        system = bytes((0xD1,)) + (len(inside) + 4).to_bytes(4, "big") + count.to_bytes(4, "big")
        system += inside
    return Columns(
        [7],
        ["4242"],
        [1_794_812_715_255],
        [key],
        [body],
        [sections.properties],
        [system],
        [sections.fields],
        bytes((kind,)),
    )


def through_json(found: Columns) -> EventCopy:
    return read_line(to_json_lines(to_records(found, "3")))


def through_avro(found: Columns) -> EventCopy:
    file = io.BytesIO()
    AvroContainerWriter(file, SCHEMA, deflate=len(found.bodies[0]) % 2 == 0).write_block(
        len(found.bodies), encode_capture_records(found, "3")
    )
    file.seek(0)
    quick = blocks_of(file.getvalue())
    ((row,),) = read_blocks(file)
    (event,) = quick
    assert published(event) == published(read_capture_record(row))  # the way for any schema agrees
    return event


def blocks_of(data: bytes) -> list[EventCopy]:
    schema, blocks = read_container(io.BytesIO(data))
    read = capture_record_reader(schema)
    return [event for count, block in blocks for event in read(count, block)]


def published(event: EventCopy) -> tuple[bytes, object, object]:
    """Its bytes in a publication, and where it goes."""
    out = bytearray()
    event.append_to(out, b"")
    return bytes(out), event.partition_key, event.partition


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
    assert json.loads(to_json_lines(to_records(columns(sections=sections, key="k"), "3"))) == {
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
    (line,) = to_records(columns(body=b"\xff\x00"), "0")
    assert line.body_base64 == "/wA="
    assert b'"body":' not in to_json_lines([line])


def test_minimal_line_is_an_event() -> None:
    event = read_line(b'{"body": "x"}')
    assert (event.body, event.partition_key, event.partition) == (b"x", None, None)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"7", "no event"),
        (b'{"body": 7}', "no event"),
        (b"{", "no event"),
        (b'{"key": "value"}', "neither body nor body_base64"),
        (b'{"body_base64": "=="}', "not base64"),
        (b'{"body": "", "properties": {"a": {"$type": "uint", "value": -1}}}', "no uint"),
        (b'{"body": "", "properties": {"a": {"$type": "nonsense", "value": 1}}}', "no AMQP type"),
        (b'{"body": "", "properties": {"a": [1]}}', "no value"),
        (b'{"body": "", "properties": {"a": 99999999999999999999}}', "no AMQP long"),
        (b'{"body": "", "system_properties": {"content-type": 7}}', "cannot be"),
        (b'{"body": "", "body_type": "odd"}', "body_type is one of"),
        (b'{"body": "", "body_type": "value", "body_base64": "AAA="}', "the body is no value"),
        (b'{"body": "", "amqp": {"application-properties": "wQA="}}', "cannot be read"),
        (b'{"body": "", "amqp": {"application-properties": "RQ=="}}', "no map"),
        (b'{"body": "", "amqp": {"properties": "wAI="}}', "cannot be read"),
        (b'{"body": "", "amqp": {"footer": ""}}', "amqp has"),
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
    assert format_enqueued_time(milliseconds) == shown


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


# --- Avro -----------------------------------------------------------------------------------------

# Two events, the second without a body, in Capture's schema and with deflate, as another Avro
# library writes them.
FOREIGN = base64.b85decode(
    "Phx5T1QcO*a&InUZ)9a-4rFC!Y+-a|7GZXBZ!U9VXk~3-lm~kvba`-PB03-<a%E$0a%3VbAR=yIZDk@lAR<j^V{&hEZ)S"
    "8ZQ)O~?X=7zVb#pFFWpi_3XK8L{E=6`_ZgfOpbYUVaAR=aIWo%?~B03;jdm?UOZDk@lAR<#`adl;GV`WZtZDM6|A}k;xba"
    "`-PB03-<Y;SI7B7H0%dm?UOZDk@lAR<p@W^-k9A}k;xba`-PB03-<b98cPZf7EWEFgO#ZeeX@B03-<MQ(9*Wp!m_RB3HxR"
    "diz_EFdCud2nSSIv^r*baH8KXCi$pAbTQiVQpn1Iv^rbd2@7SZBTM=aAk6IX=QUFEFdCud2nSSIv{%@ba`-PB03-<ZDDXC"
    "EFdCwVQh6}b0Rt*TOw?4Zf7DaAR=UMbz*E~A}k;xb98cPZf7DaAR=OUbY*iQU44BlAbTQiVQpn1Iv^rYa&K^Da&&2Bb0RD"
    "tB6N9hWg<Etdm?msaAhJoAR=vHa3U-qB6eYHb!BrRIv`sjY;SI7A}k;xWN&q1Y-J)WAR=>ga%pa7A}k;xVtI6Bb0S@ReJmh"
    "*B5q-AWg<EtB0_Iuc_J(zB6N9hWg<EtTOw|CY-}PdAR=OUbY*iQU431B05CB!Gc+|eH#j+AVq;`wW(0%-<Kr+fGBMJy)HgE"
    "IH!?6ZSFo@$Ftsu=R|xRsQmfF-FDTJ1NGvMJEXmBz)6Gt;WMN4$*Mf)_rxuo`<|U`<=9T6qr4}*pNkGK&)6$AlOIW}LLyb"
    "ty11c>|P0=mM%uQw3aQ4=p>){f~`FSO&c_q3fl?ACR3W)^;Iho0cAba$)iu3arIGFMnxR}zI7{K6%JyS6YM@ec$2~!dq3&V"
    "c~CXs5T5+y4mLp{@40S*&m6JrcdSO7f%)CvG^jzBOmGBY$aHa9pqVPa!sWo7"
)


def test_file_of_another_library_is_read() -> None:
    first, second = blocks_of(FOREIGN)
    assert (first.body, first.partition_key) == (b'{"t":21.5}', "d7")
    assert first.properties == {"n": 5, "f": 1.5, "s": "text", "b": b"\x00\xff"}
    assert first.content_type == "application/json"
    assert (second.body, second.properties, second.partition_key) == (b"", {}, None)


def test_export_has_the_schema_and_the_columns_of_capture() -> None:
    file = io.BytesIO()
    writer = AvroContainerWriter(file, SCHEMA, deflate=False)
    assert len(file.getvalue()) <= 508  # what tools take for an empty file (protocol.md 9)
    sections = EventSections(
        encode_properties({"n": t.Uint(5), "yes": True, "none": None, "big": t.Ulong(2**64 - 1)}),
        encode_fields({"content-type": "text/plain"}),
    )
    writer.write_block(1, encode_capture_records(columns(sections=sections, key="k"), "3"))
    file.seek(0)
    ((row,),) = read_blocks(file)
    system = row.pop("SystemProperties")
    assert row == {
        "SequenceNumber": 7,
        "Offset": "4242",
        "EnqueuedTimeUtc": "11/16/2026 7:05:15 AM",
        "Properties": {"n": 5, "yes": "true", "none": "", "big": str(2**64 - 1)},
        "Body": b"body",
    }
    assert {name: value for name, value in system.items() if "penstock" not in name} == {
        "x-opt-sequence-number": 7,
        "x-opt-offset": "4242",
        "x-opt-enqueued-time": 1_794_812_715_255,
        "x-opt-partition-key": "k",
        "content-type": "text/plain",
    }


@given(st.integers(-(2**63), 2**63 - 1))
def test_avro_number_is_read_as_written(number: int) -> None:
    out = bytearray()
    write_long(out, number)
    assert Reader(bytes(out)).long() == number


def test_file_that_is_cut_anywhere_is_refused() -> None:
    for cut in range(len(FOREIGN)):
        try:
            found = blocks_of(FOREIGN[:cut])
        except InvalidEvent:
            continue
        assert found == []  # the header alone, whole


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_damaged_file_is_refused_or_read(data: st.DataObject) -> None:
    file = io.BytesIO()
    AvroContainerWriter(file, SCHEMA, deflate=False).write_block(
        1, encode_capture_records(columns(key="k"), "0")
    )
    damaged = bytearray(data.draw(st.sampled_from([FOREIGN, file.getvalue()])))
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    for read in (blocks_of, lambda data: list(read_blocks(io.BytesIO(data)))):
        try:
            assert isinstance(read(bytes(damaged)), list)
        except InvalidEvent:
            continue


def test_line_holds_what_struct_says() -> None:
    """The keys that programs rely on (docs/cli-events.md)."""
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
