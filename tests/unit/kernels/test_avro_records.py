"""Records of Event Hubs Capture: fastavro reads what was meant."""

from __future__ import annotations

import io
import json
import struct
from typing import Any

import fastavro
import pytest

from penstock.amqp import types as t
from penstock.amqp.message import (
    DataBody,
    Message,
    Properties,
    SequenceBody,
    ValueBody,
    encode_message,
)
from penstock.capture.container import SCHEMA
from penstock.formats.amqp_values import avro_value
from penstock.kernels import AvroRecordWriter, KernelError

PARSED = fastavro.parse_schema(json.loads(SCHEMA))
TIME_MS = 1_506_456_327_225  # 26 September 2017, 20:05:27.225
PLACE: dict[Any, Any] = {
    t.Symbol("x-opt-sequence-number-epoch"): t.Int(-1),
    t.Symbol("x-opt-sequence-number"): t.Long(7),
    t.Symbol("x-opt-offset"): "1000",
    t.Symbol("x-opt-enqueued-time"): t.Timestamp(TIME_MS),
}
SYSTEM = {"x-opt-sequence-number": 7, "x-opt-offset": "1000", "x-opt-enqueued-time": TIME_MS}


def delivered(
    annotations: dict[str, Any] | None = None, body: Any = None, **sections: Any
) -> bytes:
    own = {t.Symbol(name): value for name, value in (annotations or {}).items()}
    made = DataBody([b"body"]) if body is None else body
    return encode_message(Message(message_annotations=PLACE | own, body=made, **sections))


def read(block: bytes) -> Any:
    return fastavro.schemaless_reader(io.BytesIO(block), PARSED, None)


def records(*messages: bytes, **options: Any) -> list[Any]:
    rows = AvroRecordWriter(avro_value, **options)
    for message in messages:
        rows.add(b"??" + message + b"!", [2, 2 + len(message)])
    assert rows.rows == len(messages)
    size = rows.size
    block = rows.take()
    assert (size, rows.rows, rows.size, rows.take()) == (len(block), 0, 0, b"")
    stream = io.BytesIO(block)
    found = [fastavro.schemaless_reader(stream, PARSED, None) for _ in messages]
    assert stream.tell() == len(block)
    return found


def test_record_has_capture_s_fields() -> None:
    assert records(delivered()) == [
        {
            "SequenceNumber": 7,
            "Offset": "1000",
            "EnqueuedTimeUtc": "9/26/2017 8:05:27 PM",
            "SystemProperties": SYSTEM,
            "Properties": {},
            "Body": b"body",
        }
    ]


@pytest.mark.parametrize(
    ("milliseconds", "usual", "iso"),
    [
        (0, "1/1/1970 12:00:00 AM", "1970-01-01T00:00:00.0000000Z"),
        (-1, "12/31/1969 11:59:59 PM", "1969-12-31T23:59:59.9990000Z"),
        (43_200_000, "1/1/1970 12:00:00 PM", "1970-01-01T12:00:00.0000000Z"),
        (1_528_675_208_225, "6/11/2018 12:00:08 AM", "2018-06-11T00:00:08.2250000Z"),
        (2**62, str(2**62 // 1000), str(2**62)),
    ],
)
def test_time_is_written_in_both_forms(milliseconds: int, usual: str, iso: str) -> None:
    message = delivered().replace(struct.pack(">q", TIME_MS), struct.pack(">q", milliseconds))
    (row,) = records(message)
    assert row["EnqueuedTimeUtc"] == usual
    assert row["SystemProperties"]["x-opt-enqueued-time"] == milliseconds
    first, second = records(message, delivered(), iso_time=True)
    assert (first["EnqueuedTimeUtc"], second["EnqueuedTimeUtc"]) == (
        iso,
        "2017-09-26T20:05:27.2250000Z",
    )


VALUES = {
    "null": (None, ""),
    "text": ("é" * 70, "é" * 70),
    "symbol": (t.Symbol("s"), "s"),
    "true": (True, "true"),
    "false": (False, "false"),
    "byte": (t.Byte(-128), -128),
    "ushort": (t.Ushort(65535), 65535),
    "int": (t.Int(-(2**31)), -(2**31)),
    "long": (-(2**63), -(2**63)),
    "ulong": (t.Ulong(2**63 - 1), 2**63 - 1),
    "large": (t.Ulong(2**64 - 1), str(2**64 - 1)),
    "double": (-1.5, -1.5),
    "float": (t.Float(1.5), 1.5),
    "binary": (b"\xff" * 300, b"\xff" * 300),
    "time": (t.Timestamp(5), 5),
    "list": ([1], "[1]"),
}


@pytest.mark.parametrize("name", list(VALUES))
def test_value_takes_its_branch_of_the_union(name: str) -> None:
    value, expected = VALUES[name]
    message = delivered(application_properties={name: value, "next": 1})
    assert [row["Properties"] for row in records(message, message)] == [
        {name: expected, "next": 1}
    ] * 2


def test_system_properties_hold_key_annotations_and_fields() -> None:
    fields = Properties(message_id="id", user_id=b"u", creation_time=t.Timestamp(5))
    message = delivered(
        {"own": 1, "x-opt-partition-key": "key", "x-opt-publisher": "p"}, properties=fields
    )
    (row,) = records(message)
    assert row["SystemProperties"] == SYSTEM | {
        "x-opt-partition-key": "key",
        "own": 1,
        "x-opt-publisher": "p",
        "message-id": "id",
        "user-id": b"u",
        "creation-time": 5,
    }
    assert list(row["SystemProperties"])[:4] == [*SYSTEM, "x-opt-partition-key"]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (DataBody([b"a", b"b"]), b"ab"),
        (ValueBody("text"), b"text"),
        (ValueBody(None), b""),
        (ValueBody(-70), b"-70"),
        (ValueBody(1.5), b"1.5"),
        (ValueBody(True), b"true"),
        (ValueBody({"a": 1}), b'{"a":1}'),
        (SequenceBody([[1], [2]]), b"[1,2]"),
    ],
)
def test_body_is_bytes(body: Any, expected: bytes) -> None:
    assert records(delivered(body=body))[0]["Body"] == expected


def test_body_is_null_where_there_is_none() -> None:
    message = encode_message(Message(message_annotations=PLACE, body=None))
    assert records(message)[0]["Body"] is None


def test_bad_message_leaves_those_before_it() -> None:
    good = delivered(application_properties={"a": 1})
    rows = AvroRecordWriter(avro_value)
    data = good + good[:-1]
    with pytest.raises(KernelError, match="ends at"):
        rows.add(data, [0, len(good), len(good), len(data)])
    assert rows.rows == 1
    assert read(rows.take())["Body"] == b"body"


def test_block_does_not_outgrow_its_bound() -> None:
    message = delivered()
    rows = AvroRecordWriter(avro_value, block_bytes_max=200)
    rows.add(message, [0, len(message)])
    with pytest.raises(KernelError, match="more than 200 bytes"):
        rows.add(message, [0, len(message)])
    assert rows.rows == 1
    rows.take()
    rows.add(message, [0, len(message)])
    assert rows.rows == 1
    with pytest.raises(KernelError, match="block_bytes_max"):
        AvroRecordWriter(avro_value, block_bytes_max=2**31)


def test_large_unions_of_the_helper_have_room() -> None:
    union = b"\x04" + b"\xc0\x9a\x0c" + b"x" * 100_000
    rows = AvroRecordWriter(lambda value: union)
    message = delivered(
        body=DataBody([b"y" * 500_000]),
        application_properties={str(i): t.Timestamp(0) for i in range(9)},
    )
    rows.add(message, [0, len(message)])
    row = read(rows.take())
    assert row["Properties"] == {str(i): "x" * 100_000 for i in range(9)}
    assert row["Body"] == b"y" * 500_000
