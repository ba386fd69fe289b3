"""The record of one event: the portal's download, `penstock export` and Capture write the same."""

from __future__ import annotations

import io

import pytest
from tests.unit.formats.event_samples import VALUES

from penstock.amqp import types as t
from penstock.amqp.encoder import encode
from penstock.amqp.message import DataBody, Message, SequenceBody, ValueBody, encode_message
from penstock.capture.container import AvroContainerReader, decode_long, decode_text
from penstock.capture.records import _read_value
from penstock.cli.events.export_import import FileFormat, _open_writer
from penstock.formats.amqp_values import avro_value
from penstock.formats.avro import encode_capture_records
from penstock.formats.event_sections import encode_fields
from penstock.formats.event_view import EventView
from penstock.kernels import AvroRecordWriter, Columns, decode_events
from penstock.portal.responses import download_response

POSITION: dict[object, object] = {
    t.Symbol("x-opt-sequence-number-epoch"): t.Int(-1),
    t.Symbol("x-opt-sequence-number"): 7,
    t.Symbol("x-opt-offset"): "4242",
    t.Symbol("x-opt-enqueued-time"): t.Timestamp(1_794_812_715_255),
}
KEY: dict[object, object] = {t.Symbol("x-opt-partition-key"): "käy"}
OWN: dict[object, object] = {
    t.Symbol("iothub-connection-device-id"): "d7",
    t.Symbol("com.microsoft:producer-id"): t.Long(5),
    t.Symbol("x-opt-own"): t.Uint(1),
}
FIELDS = b"\x00\x53\x73" + encode_fields(
    {"message-id": t.Ulong(7), "content-type": t.Symbol("text/plain"), "group-sequence": t.Uint(1)}
)
BODIES: dict[str, DataBody | ValueBody | SequenceBody] = {
    "data": DataBody([b"body \xff\x00"]),
    "text value": ValueBody("text"),
    "timestamp value": ValueBody(t.Timestamp(1)),
    "null value": ValueBody(None),
    "map value": ValueBody({"a": 1.5}),
    "sequence": SequenceBody([[1, "x"], [None]]),
}


def message(body: str = "data", *, annotations: dict[object, object], fields: bytes = b"") -> bytes:
    """A message as the service delivers it."""
    section = b"\x00\x53\x72" + encode(annotations)
    properties = b"\x00\x53\x74" + encode(dict(VALUES))
    return section + fields + properties + encode_message(Message(body=BODIES[body]))


def captured(data: bytes) -> bytes:
    writer = AvroRecordWriter(avro_value)
    writer.add(data, [0, len(data)])
    return writer.take()


def without_own_pairs(record: bytes) -> bytes:
    """The record without the blocks of `penstock:` pairs, which follow Capture's pairs."""
    name = b"penstock:partition"
    start = end = record.index(bytes((2 * len(name),)) + name) - 1  # the count is one byte
    while record[end]:
        count, end = decode_long(record, end)
        for _ in range(count):
            pair, end = decode_text(record, end)
            assert pair.startswith("penstock:")
            _, end = _read_value(record, end)
    return record[:start] + record[end:]


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("annotations", [POSITION, POSITION | KEY, POSITION | KEY | OWN])
@pytest.mark.parametrize("fields", [b"", FIELDS])
def test_export_and_capture_write_the_same_avro_record(
    body: str, annotations: dict[object, object], fields: bytes
) -> None:
    data = message(body, annotations=annotations, fields=fields)
    columns = decode_events(data, [0, len(data)])
    record = encode_capture_records(columns, "3", [0])
    assert without_own_pairs(record) == captured(data)


@pytest.mark.parametrize("body", BODIES)
def test_download_and_export_write_the_same_bytes(body: str) -> None:
    data = message(body, annotations=POSITION | KEY | OWN, fields=FIELDS)
    columns = decode_events(data, [0, len(data)])
    event = EventView(columns, "3", 0)
    assert download_response([event], "h", "jsonl").body == exported(columns, "jsonl")
    downloaded = download_response([event], "h", "avro").body
    assert blocks(downloaded) == blocks(exported(columns, "avro"))


def exported(columns: Columns, file_format: FileFormat) -> bytes:
    target = io.BytesIO()
    _open_writer(target, file_format, deflate=False)(columns, "3")
    return target.getvalue()


def blocks(file: bytes | memoryview) -> list[tuple[int, bytes]]:
    """All but the sync marker, which is random."""
    return list(AvroContainerReader(io.BytesIO(file)).blocks())
