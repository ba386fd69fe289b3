"""What the kernels that gather rows promise, pure or compiled: the columns say what our own decoder
says of each message, the Avro records what fastavro reads."""

from __future__ import annotations

import importlib
import io
import itertools
import json
import os
import struct
import uuid
from types import ModuleType
from typing import Any

import fastavro
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.amqp import types as t
from penstock.amqp.message import DataBody, Message, Properties, encode_message
from penstock.capture.container import SCHEMA
from penstock.formats.amqp_values import avro_value, encode_json, json_text, to_avro_union
from penstock.kernels import MapColumn, TextColumn
from penstock.kernels._pure import arrow_columns, avro_records

# PENSTOCK_FUZZ_EXAMPLES=5000 for a long run.
thorough = settings(
    max_examples=int(os.environ.get("PENSTOCK_FUZZ_EXAMPLES", "60")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
PARSED = fastavro.parse_schema(json.loads(SCHEMA))
FIELDS = ("message_id", "user_id", "content_type", "creation_time", "group_sequence")


def _built() -> list[tuple[ModuleType, ModuleType]]:
    pure = (arrow_columns, avro_records)
    try:
        built = [
            importlib.import_module(f"penstock.kernels.{n}")
            for n in ("_arrow_columns", "_avro_records")
        ]
    except ImportError:
        return [pure]
    return [pure, (built[0], built[1])]


implementations = pytest.mark.parametrize(
    "modules", _built(), ids=lambda modules: modules[0].__name__[17:]
)
values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 2**64 - 1).map(t.Ulong),
    st.integers(0, 255).map(t.Ubyte),
    st.integers(-(2**31), 2**31 - 1).map(t.Int),
    st.floats(allow_nan=False),
    st.text(max_size=80),
    st.binary(max_size=80),
    st.integers(-(2**63), 2**63 - 1).map(t.Timestamp),
    st.uuids(),
    st.lists(st.integers(0, 9), max_size=3),
)
names = st.text(st.characters(codec="ascii", min_codepoint=33), min_size=1, max_size=80)
messages = st.fixed_dictionaries(
    {
        "number": st.integers(0, 2**63 - 1),
        "time": st.integers(-(2**45), 2**45),
        "own": st.dictionaries(names.map(lambda name: f"own-{name}"), values, max_size=3),
        "key": st.none() | st.text(max_size=20),
        "body": st.lists(st.binary(max_size=300), min_size=1, max_size=2),
        "properties": st.dictionaries(st.text(max_size=80), values, max_size=4),
        "fields": st.fixed_dictionaries(
            {},
            optional={
                "message_id": st.text(max_size=9) | st.uuids(),
                "user_id": st.binary(max_size=9),
                "content_type": names.map(t.Symbol),
                "creation_time": st.integers(0, 2**45).map(t.Timestamp),
                "group_sequence": st.integers(0, 2**32 - 1).map(t.Uint),
            },
        ),
    }
)


def encoded(said: dict[str, Any]) -> bytes:
    place: dict[Any, object] = {
        t.Symbol("x-opt-sequence-number-epoch"): t.Int(-1),
        t.Symbol("x-opt-sequence-number"): t.Long(said["number"]),
        t.Symbol("x-opt-offset"): str(said["number"]),
        t.Symbol("x-opt-enqueued-time"): t.Timestamp(said["time"]),
    }
    if said["key"] is not None:
        place[t.Symbol("x-opt-partition-key")] = said["key"]
    own = {t.Symbol(name): value for name, value in said["own"].items()}
    return encode_message(
        Message(
            message_annotations=place | own,
            properties=Properties(**said["fields"]) if said["fields"] else None,
            application_properties=said["properties"] or None,
            body=DataBody(said["body"]),
        )
    )


def run_of(said: list[dict[str, Any]]) -> tuple[bytes, list[int]]:
    made = [encoded(each) for each in said]
    stops = list(itertools.accumulate(map(len, made)))
    return b"".join(made), [
        place for stop, one in zip(stops, made, strict=True) for place in (stop - len(one), stop)
    ]


def told(said: dict[str, Any]) -> dict[str, object]:
    """Annotations and fields, without the place."""
    key = {} if said["key"] is None else {"x-opt-partition-key": said["key"]}
    fields = {
        name.replace("_", "-"): said["fields"][name] for name in FIELDS if name in said["fields"]
    }
    return {**key, **said["own"], **fields}


def texts(column: TextColumn) -> list[str | None]:
    ends = struct.unpack(f"<{len(column.ends) // 4}i", column.ends)
    return [
        column.data[a:b].decode() if column.valid is None or column.valid[i >> 3] >> (i & 7) & 1
        else None
        for i, (a, b) in enumerate(itertools.pairwise(ends))
    ]  # fmt: skip


def maps(column: MapColumn) -> list[dict[str | None, str | None]]:
    ends = struct.unpack(f"<{len(column.ends) // 4}i", column.ends)
    pairs = list(zip(texts(column.names), texts(column.values), strict=True))
    return [dict(pairs[a:b]) for a, b in itertools.pairwise(ends)]


@implementations
@thorough
@given(said=st.lists(messages, min_size=1, max_size=4))
def test_columns_say_what_was_sent(
    modules: tuple[ModuleType, ModuleType], said: list[dict[str, Any]]
) -> None:
    builder = modules[0].ArrowColumnBuilder(json_text)
    builder.add(*run_of(said))
    columns = builder.take()
    assert columns.rows == len(said)
    assert texts(columns.partition_key) == [each["key"] for each in said]
    assert texts(columns.offset) == [str(each["number"]) for each in said]
    ends = struct.unpack(f"<{len(said) + 1}i", columns.body.ends)
    bodies = [columns.body.data[a:b] for a, b in itertools.pairwise(ends)]
    assert bodies == [b"".join(each["body"]) for each in said]
    assert columns.enqueued_us == struct.pack(
        f"<{len(said)}q", *(each["time"] * 1000 for each in said)
    )
    expected = [{name: encode_json(v) for name, v in each["properties"].items()} for each in said]
    assert maps(columns.properties) == expected
    assert maps(columns.system) == [
        {name: encode_json(value) for name, value in told(each).items()} for each in said
    ]


@implementations
@thorough
@given(said=st.lists(messages, min_size=1, max_size=4))
def test_records_say_what_was_sent(
    modules: tuple[ModuleType, ModuleType], said: list[dict[str, Any]]
) -> None:
    rows = modules[1].AvroRecordWriter(avro_value)
    rows.add(*run_of(said))
    stream = io.BytesIO(rows.take())
    for each in said:
        row: Any = fastavro.schemaless_reader(stream, PARSED, None)
        place = {
            "x-opt-sequence-number": each["number"],
            "x-opt-offset": str(each["number"]),
            "x-opt-enqueued-time": each["time"],
        }
        assert row["SequenceNumber"] == each["number"]
        assert row["Body"] == b"".join(each["body"])
        assert row["Properties"] == {n: to_avro_union(v) for n, v in each["properties"].items()}
        assert row["SystemProperties"] == place | {
            n: to_avro_union(v) for n, v in told(each).items()
        }
    assert stream.read() == b""


def test_uuids_are_text_in_both() -> None:
    number = uuid.UUID(int=7)
    assert encode_json(number) == f'"{number}"'
    assert to_avro_union(number) == str(number)
