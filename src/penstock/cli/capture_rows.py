"""Events in the schema of Event Hubs Capture (protocol.md 9), both ways.

Its unions hold long, double, string and bytes. Where that does not say each byte of what was sent,
SystemProperties has the bytes too (`penstock:...`), and those are what `import` publishes: an
export that is imported is the same events. Files of Capture itself have none, and need none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from penstock.cli.avro import write_bytes, write_double, write_long
from penstock.cli.plain import to_avro
from penstock.cli.records import checked, checked_body
from penstock.cli.sections import (
    BODY_KINDS,
    DATA,
    FIELD_NAMES,
    SERVICE_ANNOTATIONS,
    BadEvent,
    Copy,
    Sections,
    encode_annotations,
    encode_fields,
    encode_properties,
    field_values,
    map_values,
    own_annotations,
)
from penstock.kernels import Columns
from penstock.model.errors import ArgumentError

Value = int | float | str | bytes
_UNION = ["long", "double", "string", "bytes"]
SCHEMA = json.dumps(
    {
        "type": "record",
        "name": "EventData",
        "namespace": "Microsoft.ServiceBus.Messaging",
        "fields": [
            {"name": "SequenceNumber", "type": "long"},
            {"name": "Offset", "type": "string"},
            {"name": "EnqueuedTimeUtc", "type": "string"},
            {"name": "SystemProperties", "type": {"type": "map", "values": _UNION}},
            {"name": "Properties", "type": {"type": "map", "values": _UNION}},
            {"name": "Body", "type": ["null", "bytes"]},
        ],
    },
    separators=(",", ":"),
)
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


def encode_rows(columns: Columns, partition: str) -> bytes:
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


def read_row(row: Mapping[str, Any]) -> Copy:
    """The event of one record, of ours or of Capture's. Raises BadEvent."""
    body, system = row.get("Body"), row.get("SystemProperties") or {}
    properties = row.get("Properties") or {}
    if isinstance(body, str):
        body = body.encode()
    if not isinstance(body, bytes | None) or not isinstance(properties, dict):
        raise BadEvent("the record is not of Event Hubs Capture's schema")
    if not isinstance(system, dict) or "Body" not in row:
        raise BadEvent("the record is not of Event Hubs Capture's schema")
    kind = _KINDS.get(system.get(_BODY_TYPE, "data"))
    key, partition = system.get(_KEY), system.get(_PARTITION)
    if kind is None or not isinstance(key, str | None) or not isinstance(partition, str | None):
        raise BadEvent("the record has a body type, key or partition that is none")
    sections = _from_values(properties, system)
    raw = [system.get(name, one) for name, one in zip(_RAW, sections, strict=True)]
    if not all(isinstance(one, bytes) for one in raw):
        raise BadEvent("the record has AMQP sections that are no bytes")
    return Copy(
        checked_body(body or b"", kind),
        checked(Sections(*raw)),
        key=key,
        kind=kind,
        partition=partition,
    )


@lru_cache(maxsize=1024)
def _maps(
    properties: bytes, fields: bytes, annotations: bytes, key: str | None, kind: int
) -> tuple[bytes, bytes, int]:
    """Properties whole; of the system's those that repeat, and how many."""
    own = {name: to_avro(value) for name, value in map_values(properties).items()}
    system: dict[str, Value] = {} if key is None else {_KEY: key}
    told = map_values(annotations) | field_values(fields)
    system |= {
        name: to_avro(value) for name, value in told.items() if name not in SERVICE_ANNOTATIONS
    }
    if kind != DATA:
        system[_BODY_TYPE] = BODY_KINDS[kind]
    came = Sections(properties, fields, annotations)
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


def _from_values(properties: Mapping[str, Value], system: Mapping[str, Value]) -> Sections:
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
        return Sections(
            encode_properties(properties), encoded_fields, encode_annotations(annotations)
        )
    except ArgumentError as error:
        raise BadEvent(str(error)) from None


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


_NUMBER_HEAD = _head(_SEQUENCE_NUMBER, _LONG)
_OFFSET_HEAD = _head(_OFFSET, _STRING)
_TIME_HEAD = _head(_TIME, _LONG)


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
