"""One event as a JSON or CSV record, and back: `tail -o jsonl`, `export`, `import`, downloads.

The values of a JSON record are for people and programs. Where they do not keep every byte of the
event (AMQP has several encodings of one number), `amqp` holds the encoded section, and `import`
publishes that. A body that is not data has its text in `body` and its encoded sections in
`body_base64`, which is published.
"""

from __future__ import annotations

import base64
import csv
import io
import json
from collections.abc import Callable, Iterable
from functools import lru_cache

import msgspec

from penstock.formats.amqp_values import (
    InvalidEvent,
    decode_base64,
    display_body,
    encode_json,
    from_json_value,
    to_json_value,
)
from penstock.formats.body_view import INVISIBLE, escape_invisible
from penstock.formats.event_sections import (
    BODY_KINDS,
    BODY_TYPES,
    DATA,
    FIELDS,
    SECTION_NAMES,
    EventContent,
    EventSections,
    check_content,
    encode_annotations,
    encode_fields,
    encode_properties,
    field_values,
    map_values,
    own_annotations,
)
from penstock.formats.quantities import format_time
from penstock.kernels import Columns
from penstock.model.errors import ArgumentError

_CSV_COLUMNS = (
    "partition", "sequence_number", "offset", "enqueued_time", "partition_key", "properties",
    "body", "body_base64", "body_type",
)  # fmt: skip
# Some spreadsheets take a cell that begins with one of these for a formula.
_FORMULA = tuple("=+-@|%\t\r\n\uff1d\uff0b\uff0d\uff20")


class EventRecord(msgspec.Struct, kw_only=True):
    """One JSON object. Fields that are UNSET are not written."""

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


def to_record(columns: Columns, partition: str, row: int) -> EventRecord:
    key = columns.partition_keys[row]
    properties, system_properties, encoded = _split_properties(
        columns.properties[row],
        columns.message_properties[row],
        own_annotations(columns.system[row], key),
    )
    record = EventRecord(
        partition=partition,
        sequence_number=columns.sequence_numbers[row],
        offset=columns.offsets[row],
        enqueued_time=format_time(columns.enqueued_ms[row]),
        partition_key=key,
        properties=properties,
        system_properties=system_properties,
        amqp=encoded or msgspec.UNSET,
    )
    kind, body = columns.body_kinds[row], columns.bodies[row]
    if kind != DATA:
        record.body_type = BODY_TYPES[kind]
        record.body_base64 = base64.b64encode(body).decode()
    try:
        record.body = display_body(body, BODY_TYPES[kind]).decode()
    except UnicodeDecodeError:
        record.body_base64 = base64.b64encode(body).decode()
    return record


def to_json_lines(columns: Columns, partition: str, rows: Iterable[int]) -> bytes:
    """One JSON record per line. Invisible characters are written as JSON escapes."""
    lines = _encoder.encode_lines([to_record(columns, partition, row) for row in rows])
    if lines.isascii() and b"\x7f" not in lines:
        return lines  # msgspec has escaped the other control characters
    return INVISIBLE.sub(lambda match: json.dumps(match[0])[1:-1], lines.decode()).encode()


def to_csv(events: Iterable[tuple[Columns, str, int]]) -> bytes:
    """A CSV file for spreadsheets, with a byte order mark for UTF-8.

    A cell that begins like a formula gets an apostrophe; invisible characters are escaped.
    """
    text = io.StringIO()
    writer = csv.writer(text, quoting=csv.QUOTE_ALL)
    writer.writerow(_CSV_COLUMNS)
    for columns, partition, row in events:
        record = msgspec.structs.asdict(to_record(columns, partition, row))
        record["properties"] = encode_json(_read_values(map_values, columns.properties[row]))
        writer.writerow([_format_cell(record[name]) for name in _CSV_COLUMNS])
    return ("\ufeff" + text.getvalue()).encode()


def _format_cell(value: object) -> str:
    text = "" if value is None or value is msgspec.UNSET else str(value)
    return escape_invisible("'" + text if text.lstrip(" ").startswith(_FORMULA) else text)


@lru_cache(maxsize=1024)
def _split_properties(
    properties: bytes, fields: bytes, annotations: bytes
) -> tuple[dict[str, object], dict[str, object], dict[str, str]]:
    """Properties and system properties as JSON, and the sections that these do not keep exactly."""
    named = _read_values(map_values, annotations) | _read_values(field_values, fields)
    own = {
        name: to_json_value(value) for name, value in _read_values(map_values, properties).items()
    }
    system = {name: to_json_value(value) for name, value in named.items()}
    encoded = {
        name: base64.b64encode(section).decode()
        for name, section, rebuilt in zip(
            SECTION_NAMES,
            (properties, fields, annotations),
            _build_sections(own, system),
            strict=True,
        )
        if section != rebuilt
    }
    return own, system, encoded


def _read_values(read: Callable[[bytes], dict[str, object]], section: bytes) -> dict[str, object]:
    """No values if the section is damaged: then the record has its bytes in `amqp`."""
    try:
        return read(section)
    except InvalidEvent:
        return {}


# --- reading --------------------------------------------------------------------------------------


def read_line(line: bytes) -> EventContent:
    """The event of a JSON record. Raises InvalidEvent."""
    try:
        record = _decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidEvent(f"not an event: {error}") from None
    kind = DATA
    if record.body_type is not msgspec.UNSET:
        if record.body_type not in BODY_KINDS:
            raise InvalidEvent(f"body_type must be one of {', '.join(BODY_KINDS)}")
        kind = BODY_KINDS[record.body_type]
    content = EventContent(
        _read_body(record),
        _read_sections(record),
        key=record.partition_key,
        kind=kind,
        partition=record.partition,
    )
    return check_content(content)


def _read_body(record: EventRecord) -> bytes:
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


def _read_sections(record: EventRecord) -> EventSections:
    sections = _build_sections(record.properties, record.system_properties)
    if record.amqp is msgspec.UNSET:
        return sections
    encoded = dict(zip(SECTION_NAMES, sections, strict=True))
    for name, text in record.amqp.items():
        if name not in encoded:
            raise InvalidEvent(f"amqp may have {', '.join(SECTION_NAMES)}, not {name!r}")
        try:
            encoded[name] = decode_base64(text)
        except (ValueError, TypeError):
            raise InvalidEvent(f"amqp.{name} is not base64") from None
    return EventSections(*encoded.values())


def _build_sections(properties: dict[str, object], system: dict[str, object]) -> EventSections:
    own = {name: from_json_value(value) for name, value in properties.items()}
    named = {name: from_json_value(value) for name, value in system.items()}
    try:
        return EventSections(
            encode_properties(own),
            encode_fields({name: value for name, value in named.items() if name in FIELDS}),
            encode_annotations({n: value for n, value in named.items() if n not in FIELDS}),
        )
    except ArgumentError as error:
        raise InvalidEvent(str(error)) from None
