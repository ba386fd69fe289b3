"""The texts of AMQP values that the kernels leave to others."""

from __future__ import annotations

import io
import json
import uuid

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.amqp import types as t
from penstock.amqp.encoder import encode
from penstock.amqp.message import DataBody, Message, SequenceBody, ValueBody, encode_message
from penstock.formats.amqp_values import (
    avro_value,
    display_body,
    display_value,
    json_text,
    plain_text,
    to_readable,
)

UNION = ["long", "double", "string", "bytes"]
ID = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")


@pytest.mark.parametrize(
    ("value", "as_json", "as_plain", "as_avro"),
    [
        (None, "null", "null", ""),
        (True, "true", "true", "true"),
        (t.Ulong(2**64 - 1), str(2**64 - 1), str(2**64 - 1), str(2**64 - 1)),
        (t.Byte(-3), "-3", "-3", -3),
        (t.Float(0.1), "0.1", "0.1", pytest.approx(0.1)),
        (float("nan"), '"NaN"', "NaN", pytest.approx(float("nan"), nan_ok=True)),
        (float("-inf"), '"-Infinity"', "-Infinity", float("-inf")),
        ('sä"y', '"sä\\"y"', 'sä"y', 'sä"y'),
        (t.Symbol("s"), '"s"', "s", "s"),
        (t.Char("c"), '"c"', "c", "c"),
        (b"hi", '"aGk="', "hi", b"hi"),
        (b"\xff", '"/w=="', "/w==", b"\xff"),
        (t.Timestamp(1), '"1970-01-01T00:00:00.001Z"', "1970-01-01T00:00:00.001Z", 1),
        (t.Timestamp(2**62), str(2**62), str(2**62), 2**62),
        (ID, f'"{ID}"', str(ID), str(ID)),
        ([1, "a", None], '[1,"a",null]', '[1,"a",null]', '[1,"a",null]'),
        ({"a": b"x", 1: []}, '{"a":"eA==","1":[]}', '{"a":"eA==","1":[]}', '{"a":"eA==","1":[]}'),
        (t.Described(t.Symbol("d"), [1]), "[1]", "[1]", "[1]"),
        (t.Decimal32(b"\0\0\0\1"), '"1E-101"', "1E-101", b"\0\0\0\1"),
        (t.Described(t.Symbol("com.microsoft:uri"), "a:b"), '"a:b"', "a:b", "a:b"),
    ],
)
def test_values_have_texts(value: object, as_json: str, as_plain: str, as_avro: object) -> None:
    encoded = encode(value)
    assert json_text(encoded) == as_json
    assert plain_text(encoded) == as_plain
    assert fastavro.schemaless_reader(io.BytesIO(avro_value(encoded)), UNION, None) == as_avro


@given(st.binary(max_size=40))
def test_no_bytes_stop_a_pipeline(data: bytes) -> None:
    json.loads(json_text(data))
    assert isinstance(plain_text(data), str)
    out = avro_value(data)
    stream = io.BytesIO(out)
    fastavro.schemaless_reader(stream, UNION, None)
    assert stream.tell() == len(out)


@pytest.mark.parametrize(
    ("kind", "encoded", "text"),
    [
        # As IEEE 754-2008 encodes them with a binary integer.
        (t.Decimal32, "31 80 00 0f", "0.15"),
        (t.Decimal32, "b2 80 00 07", "-7"),
        (t.Decimal32, "6c a0 00 01", "8388609"),
        (t.Decimal32, "6c b8 96 80", "0"),  # a coefficient of eight digits
        (t.Decimal32, "78 00 00 00", "Infinity"),
        (t.Decimal32, "f8 00 00 00", "-Infinity"),
        (t.Decimal32, "7c 00 00 00", "NaN"),
        (t.Decimal64, "31 a0 00 00 00 00 00 7b", "12.3"),
        (t.Decimal64, "31 c0 00 00 00 00 00 01", "1"),
        (t.Decimal128, "30 3e" + "00" * 13 + "01", "0.1"),
        (t.Decimal128, "b0 40" + "00" * 13 + "2a", "-42"),
        # As .NET's client writes 0.1, -79228162514264337593543950335 and 1E-28.
        (t.Decimal128, "0c 3e" + "00" * 13 + "01", "0.1"),
        (t.Decimal128, "8c 40 00 00" + "ff" * 12, "-79228162514264337593543950335"),
        (t.Decimal128, "0c 08" + "00" * 13 + "01", "1E-28"),
    ],
)
def test_decimal_has_the_text_of_its_number(kind: type[bytes], encoded: str, text: str) -> None:
    value = kind(bytes.fromhex(encoded))
    assert display_value(value) == text
    assert str(to_readable(value)) == text
    assert json_text(encode([value])) == f'["{text}"]'


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("datetime-offset", 638_989_641_001_234_567, "2025-11-17T08:15:00.1234567Z"),
        ("datetime-offset", 0, "0001-01-01T00:00:00.0000000Z"),
        ("datetime-offset", 2**63 - 1, str(2**63 - 1)),  # of no calendar
        ("datetime-offset", "soon", "soon"),
        ("timespan", 937_840_000_000, "1.02:03:04"),
        ("timespan", -15_000_000, "-00:00:01.5000000"),
        ("uri", "https://example.com/ä", "https://example.com/ä"),
        ("unknown", 5, "5"),
    ],
)
def test_described_types_of_dotnet_have_texts(name: str, value: object, text: str) -> None:
    described = t.Described(t.Symbol(f"com.microsoft:{name}"), value)
    assert display_value(described) == text
    assert plain_text(encode(described)) == text


@pytest.mark.parametrize(
    ("body", "body_type", "expected"),
    [
        (ValueBody('{"a":1}'), "value", b'{"a":1}'),
        (ValueBody(b"\xff\x00"), "value", b"\xff\x00"),
        (ValueBody(t.Int(7)), "value", b"7"),
        (ValueBody(True), "value", b"true"),
        (ValueBody(None), "value", b""),
        (ValueBody({"a": [1, b"x"]}), "value", b'{"a":[1,"eA=="]}'),
        (ValueBody(t.Decimal128(bytes.fromhex("303e" + "00" * 13 + "01"))), "value", b"0.1"),
        (SequenceBody([[1, "a"], [None]]), "sequence", b'[1,"a",null]'),
        (None, "none", b""),
    ],
)
def test_body_is_displayed_as_text(body: object, body_type: str, expected: bytes) -> None:
    encoded = encode_message(Message(body=body))  # type: ignore[arg-type]  # one of the three
    assert display_body(encoded, body_type) == expected


def test_data_and_damaged_bodies_are_displayed_as_they_are() -> None:
    encoded = encode_message(Message(body=DataBody([b"x"])))
    assert display_body(encoded, "data") == encoded
    assert display_body(b"\x00\x53\x77\xa1\x07{", "value") == b"\x00\x53\x77\xa1\x07{"
