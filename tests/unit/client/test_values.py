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
from penstock.client.values import avro_value, json_text, plain_text

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
        (t.Decimal32(b"\0\0\0\1"), '"AAAAAQ=="', "AAAAAQ==", b"\0\0\0\1"),
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
