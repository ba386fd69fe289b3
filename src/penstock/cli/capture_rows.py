"""Events in the schema of Event Hubs Capture (protocol.md 9), both ways.

Its unions hold long, double, string and bytes. Where that does not say each byte of what was sent,
SystemProperties has the bytes too (`penstock:...`), and those are what `import` publishes: an
export that is imported is the same events. Files of Capture itself have none, and need none.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from penstock.capture.container import SCHEMA
from penstock.cli.avro import Reader, record_reader, write_bytes, write_double, write_long
from penstock.cli.records import check_body, check_sections
from penstock.cli.sections import (
    BODY_KINDS,
    DATA,
    FIELD_NAMES,
    SERVICE_ANNOTATIONS,
    EventCopy,
    EventSections,
    InvalidEvent,
    encode_annotations,
    encode_fields,
    encode_properties,
    field_values,
    map_values,
    own_annotations,
)
from penstock.client.values import to_avro_union
from penstock.kernels import Columns
from penstock.model.errors import ArgumentError

__all__ = [
    "SCHEMA",
    "capture_record_reader",
    "encode_capture_records",
    "read_capture_record",
    "read_rows",
]

Value = int | float | str | bytes
_OWN = "penstock:"
_PARTITION, _BODY_TYPE = f"{_OWN}partition", f"{_OWN}body-type"
_RAW = tuple(
    f"{_OWN}{name}" for name in ("application-properties", "properties", "message-annotations")
)
_SEQUENCE_NUMBER, _OFFSET = "x-opt-sequence-number", "x-opt-offset"
_TIME, _KEY = "x-opt-enqueued-time", "x-opt-partition-key"
_FIELDS = frozenset(FIELD_NAMES.values())
_KINDS = {name: kind for kind, name in BODY_KINDS.items()}
_LONG, _DOUBLE, _STRING, _BYTES = b"\x00", b"\x02", b"\x04", b"\x06"


def encode_capture_records(columns: Columns, partition: str) -> bytes:
    """The records of an Avro block."""
    out = bytearray()
    end = bytes(1)
    kept = _pair(_PARTITION, partition)
    for row, body in enumerate(columns.bodies):
        key, kind = columns.partition_keys[row], columns.body_kinds[row]
        number, milliseconds = columns.sequence_numbers[row], columns.enqueued_ms[row]
        offset = columns.offsets[row].encode()
        own = own_annotations(columns.system[row], key)
        properties, system, count = _maps(
            columns.properties[row], columns.message_properties[row], own, key, kind
        )
        write_long(out, number)
        write_bytes(out, offset)
        out += _written_time(milliseconds // 1000)
        write_long(out, count + 4)
        out += _NUMBER_HEAD
        write_long(out, number)
        out += _OFFSET_HEAD
        write_bytes(out, offset)
        out += _TIME_HEAD
        write_long(out, milliseconds)
        out += kept + system + end
        out += properties
        out += b"\x02"
        write_bytes(out, body)
    return bytes(out)


def capture_record_reader(schema: Any) -> Callable[[int, bytes], list[EventCopy]]:
    """What makes events of a block: quickly for Capture's schema, somehow for one like it."""
    if isinstance(schema, dict) and _shape(schema) == _SHAPE:
        return read_rows
    records = record_reader(schema)
    return lambda count, block: [read_capture_record(each) for each in records(count, block)]


def read_rows(count: int, block: bytes) -> list[EventCopy]:
    """The events of a block in Capture's schema. What repeats is looked at once."""
    events: list[EventCopy] = []
    position = 0
    try:
        for _ in range(count):
            position = _skip_long(block, position)  # SequenceNumber
            position = _skip_bytes(block, position)  # Offset
            position = _skip_bytes(block, position)  # EnqueuedTimeUtc
            system, position = _read_pairs(block, position)
            own, position = _read_pairs(block, position)
            sections, key, kind, partition = _parse_properties(system, own)
            body = b""
            if block[position] == 2:
                length, position = _length(block, position + 1)
                body = block[position : position + length]
                position += length
            elif block[position] == 0:
                position += 1
            else:
                raise InvalidEvent(f"branch {block[position]} of an Avro union of 2")
            if kind != DATA:
                check_body(body, kind)
            events.append(EventCopy(body, sections, key=key, kind=kind, partition=partition))
    except IndexError:
        raise InvalidEvent("an Avro record is cut off") from None
    if position != len(block):
        raise InvalidEvent(f"an Avro block of {len(block)} bytes has records of {position}")
    return events


def _read_pairs(block: bytes, position: int) -> tuple[bytes, int]:
    """A map's pairs as they are encoded, without those that every event has another value of."""
    kept: list[bytes] = []
    while True:
        count, position = _long(block, position)
        if count == 0:
            return b"".join(kept), position
        if count < 0:
            count = -count
            position = _skip_long(block, position)
        for _ in range(min(count, len(block) - position + 1)):
            start = position
            position = _skip_bytes(block, position)
            head = block[start : position + 1]
            branch = block[position]
            if branch in _SKIPPERS:
                position = _SKIPPERS[branch](block, position + 1)
            else:
                raise InvalidEvent(f"branch {branch // 2} of an Avro union of 4")
            if head not in _CHANGING:
                kept.append(block[start:position])


def _long(block: bytes, position: int) -> tuple[int, int]:
    byte = block[position]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position + 1
    value, place = byte & 0x7F, 7
    while byte >= 0x80:
        position += 1
        byte = block[position]
        value |= (byte & 0x7F) << place
        place += 7
        if place > 70:
            raise InvalidEvent("an Avro number is longer than 64 bits")
    return (value >> 1) ^ -(value & 1), position + 1


def _length(block: bytes, position: int) -> tuple[int, int]:
    length, position = _long(block, position)
    if not 0 <= length <= len(block) - position:
        raise InvalidEvent(
            f"an Avro value of {length} bytes where {len(block) - position} are left"
        )
    return length, position


def _skip_long(block: bytes, position: int) -> int:
    while block[position] >= 0x80:
        position += 1
    return position + 1


def _skip_bytes(block: bytes, position: int) -> int:
    byte = block[position]
    if byte < 0x80 and not byte & 1:
        return position + 1 + (byte >> 1)
    length, position = _length(block, position)
    return position + length


def _skip_double(block: bytes, position: int) -> int:
    return position + 8


_SKIPPERS = {0: _skip_long, 2: _skip_double, 4: _skip_bytes, 6: _skip_bytes}


@lru_cache(maxsize=4096)
def _parse_properties(
    system: bytes, own: bytes
) -> tuple[EventSections, str | None, int, str | None]:
    """What the pairs of a record say; those of most records are the same."""
    return _build_sections(_pairs_of(own), _pairs_of(system))


def _pairs_of(encoded: bytes) -> dict[str, Value]:
    reader = Reader(encoded)
    found: dict[str, Value] = {}
    while reader.left:
        name, branch = reader.string(), reader.long()
        if branch == 0:
            found[name] = reader.long()
        elif branch == 1:
            found[name] = reader.double()
        else:
            found[name] = reader.string() if branch == 2 else reader.bytes()
    return found


def _shape(schema: dict[str, Any]) -> object:
    """What matters of a schema to one who reads: the fields' names and types."""
    fields = schema.get("fields")
    if not isinstance(fields, list) or not all(isinstance(each, dict) for each in fields):
        return None
    return [(each.get("name"), each.get("type")) for each in fields]


def read_capture_record(row: Mapping[str, Any]) -> EventCopy:
    """The event of one record, of ours or of Capture's. Raises BadEvent."""
    body, system = row.get("Body"), row.get("SystemProperties") or {}
    own = row.get("Properties") or {}
    if isinstance(body, str):
        body = body.encode()
    if not isinstance(body, bytes | None) or not isinstance(own, dict):
        raise InvalidEvent("the record is not of Event Hubs Capture's schema")
    if not isinstance(system, dict) or "Body" not in row:
        raise InvalidEvent("the record is not of Event Hubs Capture's schema")
    sections, key, kind, partition = _build_sections(own, system)
    body = check_body(body or b"", kind)
    return EventCopy(body, sections, key=key, kind=kind, partition=partition)


def _build_sections(
    own: Mapping[str, Any], system: Mapping[str, Any]
) -> tuple[EventSections, str | None, int, str | None]:
    kind = _KINDS.get(system.get(_BODY_TYPE, "data"))
    key, partition = system.get(_KEY), system.get(_PARTITION)
    if kind is None or not isinstance(key, str | None) or not isinstance(partition, str | None):
        raise InvalidEvent("the record has a body type, key or partition that is none")
    sections = _from_values(own, system)
    raw = [system.get(name, one) for name, one in zip(_RAW, sections, strict=True)]
    if not all(isinstance(one, bytes) for one in raw):
        raise InvalidEvent("the record has AMQP sections that are no bytes")
    return check_sections(EventSections(*raw)), key, kind, partition


@lru_cache(maxsize=1024)
def _maps(
    properties: bytes, fields: bytes, annotations: bytes, key: str | None, kind: int
) -> tuple[bytes, bytes, int]:
    """Properties whole; of the system's those that repeat, and how many."""
    own = {name: to_avro_union(value) for name, value in map_values(properties).items()}
    system: dict[str, Value] = {} if key is None else {_KEY: key}
    told = map_values(annotations) | field_values(fields)
    system |= {
        name: to_avro_union(value)
        for name, value in told.items()
        if name not in SERVICE_ANNOTATIONS
    }
    if kind != DATA:
        system[_BODY_TYPE] = BODY_KINDS[kind]
    came = EventSections(properties, fields, annotations)
    again = _from_values(own, system)
    for name, one, other in zip(_RAW, came, again, strict=True):
        if one != other:
            system[name] = one
    pairs = b"".join(_pair(name, value) for name, value in system.items())
    out = bytearray()
    if own:
        write_long(out, len(own))
        out += b"".join(_pair(name, value) for name, value in own.items())
    return bytes(out) + b"\x00", pairs, len(system)


def _from_values(properties: Mapping[str, Value], system: Mapping[str, Value]) -> EventSections:
    fields = {name: each for name, each in system.items() if name in _FIELDS}
    annotations = {
        name: each
        for name, each in system.items()
        if name not in _FIELDS and name not in SERVICE_ANNOTATIONS and not name.startswith(_OWN)
    }
    try:
        encoded_fields = encode_fields(fields)
    except ArgumentError:
        encoded_fields = b""  # Avro has no type for it: the bytes stand beside it, or it is lost
    try:
        return EventSections(
            encode_properties(properties), encoded_fields, encode_annotations(annotations)
        )
    except ArgumentError as error:
        raise InvalidEvent(str(error)) from None


def _pair(name: str, value: Value) -> bytes:
    out = bytearray()
    write_bytes(out, name.encode())
    if isinstance(value, int):
        out += _LONG
        write_long(out, value)
    elif isinstance(value, float):
        out += _DOUBLE
        write_double(out, value)
    elif isinstance(value, str):
        out += _STRING
        write_bytes(out, value.encode())
    else:
        out += _BYTES
        write_bytes(out, value)
    return bytes(out)


def _head(name: str, branch: bytes) -> bytes:
    out = bytearray()
    write_bytes(out, name.encode())
    return bytes(out) + branch


_SHAPE = _shape(json.loads(SCHEMA))
_NUMBER_HEAD = _head(_SEQUENCE_NUMBER, _LONG)
_OFFSET_HEAD = _head(_OFFSET, _STRING)
_TIME_HEAD = _head(_TIME, _LONG)
_CHANGING = frozenset((_NUMBER_HEAD, _OFFSET_HEAD, _TIME_HEAD))


@lru_cache(maxsize=1024)
def _written_time(seconds: int) -> bytes:
    """As Capture writes it: 9/26/2017 8:05:27 PM. The milliseconds are in SystemProperties."""
    try:
        at = datetime.fromtimestamp(seconds, UTC)
        shown = f"{at.month}/{at.day}/{at.year} {at.hour % 12 or 12}:{at:%M:%S %p}"
    except (ValueError, OverflowError, OSError):
        shown = str(seconds)  # of no calendar
    out = bytearray()
    write_bytes(out, shown.encode())
    return bytes(out)
