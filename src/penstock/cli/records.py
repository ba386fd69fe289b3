"""JSON lines of events: what `tail -o jsonl` shows, `export` writes and `import` reads.

Properties stand there for people and programs. Where they do not say each byte of what was sent
(AMQP has several encodings of one number), `amqp` holds the bytes too, and those are published. A
body that is not data has its text in `body` and its encoded sections in `body_base64`, which win.
"""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache

import msgspec

from penstock.amqp.errors import AmqpDecodeError
from penstock.amqp.message import decode_message
from penstock.cli.plain import decode_base64, from_json_value, to_json_value
from penstock.cli.sections import (
    BODY_KINDS,
    DATA,
    FIELD_NAMES,
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
from penstock.client.values import display_body
from penstock.kernels import Columns
from penstock.model.errors import ArgumentError

_KINDS = {name: kind for kind, name in BODY_KINDS.items()}
_FIELDS = frozenset(FIELD_NAMES.values())
_RAW = ("application-properties", "properties", "message-annotations")  # as Sections has them
_EPOCH_MS_MIN, _EPOCH_MS_MAX = -62_135_596_800_000, 253_402_300_799_999


class EventRecord(msgspec.Struct, kw_only=True):
    """One line. What is unset is not written."""

    partition: str | None = None
    sequence_number: int | None = None
    offset: str | None = None
    enqueued_time: str | None = None
    partition_key: str | None = None
    properties: dict[str, object] = {}
    system_properties: dict[str, object] = {}
    body: str | msgspec.UnsetType = msgspec.UNSET
    body_base64: str | msgspec.UnsetType = msgspec.UNSET
    body_type: str | msgspec.UnsetType = msgspec.UNSET
    amqp: dict[str, str] | msgspec.UnsetType = msgspec.UNSET


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(EventRecord)


def to_records(
    columns: Columns, partition: str, rows: Sequence[int] | None = None
) -> list[EventRecord]:
    """One of each row, or of the rows that are wanted."""
    return [
        _build_record(columns, partition, row)
        for row in (range(len(columns.bodies)) if rows is None else rows)
    ]


def to_json_lines(found: list[EventRecord]) -> bytes:
    """JSON, one a line."""
    return _encoder.encode_lines(found)


def read_line(line: bytes) -> EventCopy:
    """The event that a line holds. Raises BadEvent."""
    try:
        record = _decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidEvent(f"no event: {error}") from None
    kind = DATA
    if record.body_type is not msgspec.UNSET:
        if record.body_type not in _KINDS:
            raise InvalidEvent(f"body_type is one of {', '.join(_KINDS)}")
        kind = _KINDS[record.body_type]
    return EventCopy(
        check_body(_encode_body(record), kind),
        _sections(record),
        key=record.partition_key,
        kind=kind,
        partition=record.partition,
    )


@lru_cache(maxsize=1024)
def format_enqueued_time(enqueued_ms: int) -> str:
    """2026-11-16T08:15:00.123Z"""
    if not _EPOCH_MS_MIN <= enqueued_ms <= _EPOCH_MS_MAX:
        return str(enqueued_ms)  # of no calendar: shown as it came
    seconds, milliseconds = divmod(enqueued_ms, 1000)
    at = datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None)
    return f"{at.isoformat()}.{milliseconds:03}Z"


def _build_record(columns: Columns, partition: str, row: int) -> EventRecord:
    key = columns.partition_keys[row]
    told = _split_properties(
        columns.properties[row],
        columns.message_properties[row],
        own_annotations(columns.system[row], key),
    )
    record = EventRecord(
        partition=partition,
        sequence_number=columns.sequence_numbers[row],
        offset=columns.offsets[row],
        enqueued_time=format_enqueued_time(columns.enqueued_ms[row]),
        partition_key=key,
        properties=told[0],
        system_properties=told[1],
        amqp=told[2] or msgspec.UNSET,
    )
    kind, body = columns.body_kinds[row], columns.bodies[row]
    if kind != DATA:
        record.body_type = BODY_KINDS[kind]
        record.body_base64 = base64.b64encode(body).decode()
        with contextlib.suppress(UnicodeDecodeError):
            record.body = display_body(body, BODY_KINDS[kind]).decode()
        return record
    try:
        record.body = body.decode()
    except UnicodeDecodeError:
        record.body_base64 = base64.b64encode(body).decode()
    return record


@lru_cache(maxsize=1024)
def _split_properties(
    properties: bytes, fields: bytes, annotations: bytes
) -> tuple[dict[str, object], dict[str, object], dict[str, str]]:
    """Properties and system properties as JSON, and the bytes of what these do not say exactly."""
    plain = {name: to_json_value(value) for name, value in map_values(properties).items()}
    system = map_values(annotations) | field_values(fields)
    plain_system = {name: to_json_value(value) for name, value in system.items()}
    came = EventSections(properties, fields, annotations)
    again = _from_values(plain, plain_system)
    raw = {
        name: base64.b64encode(one).decode()
        for name, one, other in zip(_RAW, came, again, strict=True)
        if one != other
    }
    return plain, plain_system, raw


def _from_values(properties: dict[str, object], system: dict[str, object]) -> EventSections:
    own = {name: from_json_value(value) for name, value in properties.items()}
    fields = {name: from_json_value(each) for name, each in system.items() if name in _FIELDS}
    annotations = {
        name: from_json_value(each) for name, each in system.items() if name not in _FIELDS
    }
    try:
        return EventSections(
            encode_properties(own), encode_fields(fields), encode_annotations(annotations)
        )
    except ArgumentError as error:
        raise InvalidEvent(str(error)) from None


def _sections(record: EventRecord) -> EventSections:
    found = _from_values(record.properties, record.system_properties)
    if record.amqp is msgspec.UNSET:
        return found
    raw: dict[str, bytes] = {}
    for name, text in record.amqp.items():
        if name not in _RAW:
            raise InvalidEvent(f"amqp has {', '.join(_RAW)}, not {name!r}")
        try:
            raw[name] = decode_base64(text)
        except (ValueError, TypeError):
            raise InvalidEvent(f"amqp.{name} is not base64") from None
    return check_sections(
        EventSections(*(raw.get(name, one) for name, one in zip(_RAW, found, strict=True)))
    )


def check_sections(sections: EventSections) -> EventSections:
    """Bytes from a file are published: they must be what they say."""
    map_values(sections.properties)
    map_values(sections.annotations)
    field_values(sections.fields)
    return sections


def check_body(body: bytes, kind: int) -> bytes:
    """Of a body that is no data the encoded sections."""
    if kind != DATA:
        try:
            decode_message(body)
        except AmqpDecodeError as error:
            raise InvalidEvent(f"the body is no {BODY_KINDS[kind]}: {error}") from None
    return body


def _encode_body(record: EventRecord) -> bytes:
    if record.body_base64 is not msgspec.UNSET:
        try:
            return decode_base64(record.body_base64)
        except (ValueError, TypeError):
            raise InvalidEvent("body_base64 is not base64") from None
    if record.body is msgspec.UNSET:
        raise InvalidEvent(
            "neither body nor body_base64 is there; `penstock send --lines` sends lines as they are"
        )
    return record.body.encode("utf-8", "surrogatepass")
