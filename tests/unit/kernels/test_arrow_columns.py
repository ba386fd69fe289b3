"""Columns as Arrow keeps them: what stands in which buffer."""

from __future__ import annotations

import itertools
import struct
from typing import Any

import pyarrow as pa
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
from penstock.formats.amqp_values import json_text, plain_text
from penstock.kernels import ArrowColumnBuilder, ArrowColumns, KernelError, MapColumn, TextColumn

PLACE: dict[Any, Any] = {
    t.Symbol("x-opt-sequence-number-epoch"): t.Int(-1),
    t.Symbol("x-opt-sequence-number"): t.Long(7),
    t.Symbol("x-opt-offset"): "1000",
    t.Symbol("x-opt-enqueued-time"): t.Timestamp(1_700_000_000_123),
}


def delivered(
    annotations: dict[str, Any] | None = None, body: Any = None, **sections: Any
) -> bytes:
    own = {t.Symbol(name): value for name, value in (annotations or {}).items()}
    made = DataBody([b"body"]) if body is None else body
    return encode_message(Message(message_annotations=PLACE | own, body=made, **sections))


def gathered(*messages: bytes, **options: Any) -> ArrowColumns:
    gatherer = ArrowColumnBuilder(json_text if options.get("json", True) else plain_text, **options)
    for message in messages:
        gatherer.add(b"??" + message + b"!", [2, 2 + len(message)])
    assert gatherer.rows == len(messages)
    taken = gatherer.take()
    assert (gatherer.rows, gatherer.size, gatherer.take().rows) == (0, 0, 0)
    return taken


def texts(column: TextColumn, kind: Any = None) -> list[Any]:
    """As Arrow reads them."""
    buffers = [column.valid, column.ends, column.data]
    count = len(column.ends) // 4 - 1
    array = pa.Array.from_buffers(
        kind or pa.string(),
        count,
        [None if each is None else pa.py_buffer(each) for each in buffers],
    )
    array.validate(full=True)
    found: list[Any] = array.to_pylist()
    return found


def maps(column: MapColumn) -> list[dict[str, Any]]:
    ends = struct.unpack(f"<{len(column.ends) // 4}i", column.ends)
    pairs = list(zip(texts(column.names), texts(column.values), strict=True))
    return [dict(pairs[a:b]) for a, b in itertools.pairwise(ends)]


def test_every_event_has_its_place_and_body() -> None:
    columns = gathered(delivered(), delivered(body=DataBody([b"a", b"b"])))
    assert struct.unpack("<2q", columns.sequence_numbers) == (7, 7)
    assert struct.unpack("<2q", columns.enqueued_us) == (1_700_000_000_123_000,) * 2
    assert texts(columns.offset) == ["1000", "1000"]
    assert texts(columns.body, pa.binary()) == [b"body", b"ab"]
    assert columns.body.valid is None
    assert texts(columns.partition_key) == texts(columns.publisher) == [None, None]
    assert maps(columns.properties) == maps(columns.system) == [{}, {}]


def test_keys_and_publishers_stand_apart_and_among_the_annotations() -> None:
    own = {"x-opt-partition-key": "kéy", "x-opt-publisher": "device"}
    columns = gathered(delivered(), delivered(own), delivered({"x-opt-partition-key": 5}))
    assert texts(columns.partition_key) == [None, "kéy", None]
    assert texts(columns.publisher) == [None, "device", None]
    assert maps(columns.system) == [
        {},
        {"x-opt-partition-key": '"kéy"', "x-opt-publisher": '"device"'},
        {"x-opt-partition-key": "5"},
    ]


VALUES = {
    "null": (None, "null", None),
    "text": ('a"\\\n\x01é', '"a\\"\\\\\\n\\u0001é"', 'a"\\\n\x01é'),
    "symbol": (t.Symbol("s"), '"s"', "s"),
    "true": (True, "true", "true"),
    "small": (1, "1", "1"),
    "long": (-(2**63), str(-(2**63)), str(-(2**63))),
    "ulong": (t.Ulong(2**64 - 1), str(2**64 - 1), str(2**64 - 1)),
    "short": (t.Short(-2), "-2", "-2"),
    "double": (100.0, "100.0", "100.0"),
    "large": (1e300, "1e+300", "1e+300"),
    "infinite": (float("inf"), '"Infinity"', "Infinity"),
    "binary": (b"\xff", '"/w=="', "/w=="),
    "time": (t.Timestamp(0), '"1970-01-01T00:00:00.000Z"', "1970-01-01T00:00:00.000Z"),
    "list": ([1], "[1]", "[1]"),
}


@pytest.mark.parametrize("json", [True, False])
@pytest.mark.parametrize("name", list(VALUES))
def test_property_is_its_text(name: str, json: bool) -> None:
    value, as_json, as_plain = VALUES[name]
    message = delivered(application_properties={name: value, "next": "x"})
    shown = '"x"' if json else "x"
    columns = gathered(message, message, json=json)
    assert maps(columns.properties) == [{name: as_json if json else as_plain, "next": shown}] * 2


def test_system_holds_annotations_and_fields_that_are_set() -> None:
    fields = Properties(
        message_id="id", user_id=b"\x00", content_type=t.Symbol("text/plain"),
        creation_time=t.Timestamp(0), group_sequence=t.Uint(3),
    )  # fmt: skip
    message = delivered({"iothub-name": "d"}, properties=fields)
    assert maps(gathered(message).system) == [
        {
            "iothub-name": '"d"',
            "message-id": '"id"',
            "user-id": '"AA=="',
            "content-type": '"text/plain"',
            "creation-time": '"1970-01-01T00:00:00.000Z"',
            "group-sequence": "3",
        }
    ]


def test_maps_that_nobody_wants_stay_empty() -> None:
    message = delivered(
        {"own": 1}, application_properties={"a": 1}, properties=Properties(subject="s")
    )
    columns = gathered(message, message, properties=False)
    assert maps(columns.properties) == [{}, {}]
    assert len(maps(columns.system)[1]) == 2
    columns = gathered(message, system=False)
    assert (maps(columns.properties), maps(columns.system)) == ([{"a": "1"}], [{}])


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (ValueBody("text"), b"text"),
        (ValueBody(b"\xff"), b"\xff"),
        (ValueBody(None), b""),
        (ValueBody({"a": 1}), b'{"a":1}'),
        (ValueBody(5), b"5"),
        (SequenceBody([[1, "a"], [None]]), b'[1,"a",null]'),
    ],
)
def test_body_of_another_kind_is_its_text(body: Any, expected: bytes) -> None:
    assert texts(gathered(delivered(body=body)).body, pa.binary()) == [expected]


def test_event_without_a_body_has_none() -> None:
    message = encode_message(Message(message_annotations=PLACE, body=None))
    columns = gathered(delivered(), message, delivered())
    assert texts(columns.body, pa.binary()) == [b"body", None, b"body"]
    assert columns.body.valid == b"\x05"


def test_validity_has_a_bit_for_each_of_many() -> None:
    messages = [delivered({"x-opt-partition-key": str(i)} if i % 3 else {}) for i in range(20)]
    expected = [str(i) if i % 3 else None for i in range(20)]
    assert texts(gathered(*messages).partition_key) == expected


def test_bad_message_leaves_those_before_it() -> None:
    good = delivered(application_properties={"a": 1})
    gatherer = ArrowColumnBuilder(json_text)
    bad = good[:-1]
    data = good + bad + good
    with pytest.raises(KernelError, match="ends at"):
        gatherer.add(data, [0, len(good), len(good), 2 * len(good) - 1, len(good), len(data)])
    assert gatherer.rows == 1
    gatherer.add(good, [0, len(good)])
    assert maps(gatherer.take().properties) == [{"a": "1"}] * 2


def test_bounds_outside_of_the_data_are_refused() -> None:
    gatherer = ArrowColumnBuilder(json_text)
    for bounds in ([0, 9], [-1, 2]):
        with pytest.raises(KernelError, match="bounds from"):
            gatherer.add(b"12345678", bounds)
    with pytest.raises(ValueError, match="shorter"):
        gatherer.add(b"12345678", [0, 1, 2])
    assert gatherer.rows == 0


def test_column_does_not_outgrow_its_bound() -> None:
    message = delivered(application_properties={"name": "v" * 10})
    gatherer = ArrowColumnBuilder(json_text, buffer_bytes_max=30)
    gatherer.add(message * 2, [0, len(message), len(message), 2 * len(message)])
    with pytest.raises(KernelError, match="more than 30 bytes"):
        gatherer.add(message, [0, len(message)])
    assert gatherer.rows == 2
    assert len(maps(gatherer.take().properties)) == 2
    gatherer.add(message, [0, len(message)])
    assert gatherer.rows == 1
    with pytest.raises(KernelError, match="buffer_bytes_max"):
        ArrowColumnBuilder(json_text, buffer_bytes_max=2**31)


def test_error_of_the_helper_passes_and_nothing_is_half_added() -> None:
    def helper(value: bytes) -> str:
        raise LookupError(value.hex())

    gatherer = ArrowColumnBuilder(helper)
    message = delivered(application_properties={"a": 1, "b": b"x"})
    with pytest.raises(LookupError, match="a00178"):
        gatherer.add(message, [0, len(message)])
    assert (gatherer.rows, gatherer.size) == (0, 0)


def test_size_is_what_the_buffers_hold() -> None:
    gatherer = ArrowColumnBuilder(json_text)
    message = delivered(application_properties={"ab": 1})
    gatherer.add(message, [0, len(message)])
    assert gatherer.size == 40 + 8 + len("body" + "1000" + "ab" + "1")


def test_time_of_no_calendar_stays_at_the_end() -> None:
    far = delivered().replace(struct.pack(">q", 1_700_000_000_123), struct.pack(">q", 2**62))
    assert struct.unpack("<q", gathered(far).enqueued_us) == (2**63 - 1,)
