"""One event as an Avro record of Event Hubs Capture (docs/protocol.md 9), both ways.

The record equals the one that Capture writes for the event (`kernels.AvroRecordWriter`), byte for
byte, with one addition: more blocks of the SystemProperties map, whose names begin with
`penstock:`. They hold the partition and, where the values of the record do not keep every byte of
the event, the encoded sections. `import` publishes those, so an imported export has the same
events. Readers of Avro see the pairs of all blocks as one map. Capture's own files have no such
pairs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

from penstock.amqp.errors import AmqpDecodeError
from penstock.formats.amqp_values import (
    AvroValue,
    InvalidEvent,
    decode_body,
    encode_avro_union,
    to_avro_union,
)
from penstock.formats.event_sections import (
    BODY_KINDS,
    BODY_TYPES,
    DATA,
    FIELDS,
    PARTITION_KEY,
    POSITION_ANNOTATIONS,
    SECTION_NAMES,
    SERVICE_ANNOTATIONS,
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
from penstock.kernels import Columns, encode_avro_bytes, encode_avro_long, format_capture_time
from penstock.model.errors import ArgumentError

_OWN = "penstock:"
_PARTITION, _BODY_TYPE, _BODY = f"{_OWN}partition", f"{_OWN}body-type", f"{_OWN}body"
_SECTIONS = tuple(f"{_OWN}{name}" for name in SECTION_NAMES)
_LONG, _STRING = b"\x00", b"\x04"
_SEQUENCE_NUMBER = encode_avro_bytes(b"x-opt-sequence-number") + _LONG
_OFFSET = encode_avro_bytes(b"x-opt-offset") + _STRING
_TIME = encode_avro_bytes(b"x-opt-enqueued-time") + _LONG
_POSITION_PAIRS = 3  # the pairs above, which every record has
_NAMES_WITH_VALUES = POSITION_ANNOTATIONS | {PARTITION_KEY}


def encode_capture_records(columns: Columns, partition: str, rows: Iterable[int]) -> bytes:
    """The records of an Avro block, one for each of the rows."""
    out = bytearray()
    for row in rows:
        key, kind, body = columns.partition_keys[row], columns.body_kinds[row], columns.bodies[row]
        number, time_ms = columns.sequence_numbers[row], columns.enqueued_ms[row]
        offset = encode_avro_bytes(columns.offsets[row].encode())
        count, system, extra, properties = _encode_maps(
            columns.properties[row],
            columns.message_properties[row],
            own_annotations(columns.system[row], key, _NAMES_WITH_VALUES),
            key,
            partition,
        )
        if kind != DATA:
            extra += _encode_block({_BODY_TYPE: BODY_TYPES[kind], _BODY: body})
        out += encode_avro_long(number) + offset
        out += encode_avro_bytes(format_capture_time(time_ms // 1000))
        out += encode_avro_long(count + _POSITION_PAIRS)
        out += _SEQUENCE_NUMBER + encode_avro_long(number)
        out += _OFFSET + offset + _TIME + encode_avro_long(time_ms)
        out += system + extra + b"\x00" + properties
        out += b"\x02" + encode_avro_bytes(_read_body(body, kind)) if kind else b"\x00"
    return bytes(out)


def _read_body(body: bytes, kind: int) -> bytes:
    """Like Capture: the bytes of data, else the text of the value or of the joined sequences."""
    if kind == DATA:
        return body
    try:
        union = to_avro_union(decode_body(body))
    except AmqpDecodeError:
        return body
    return union if isinstance(union, bytes) else str(union).encode()


@lru_cache(maxsize=1024)
def _encode_maps(
    properties: bytes, fields: bytes, annotations: bytes, key: str | None, partition: str
) -> tuple[int, bytes, bytes, bytes]:
    """What events often have in common.

    Returns the count and the pairs of SystemProperties after the position, the block of additional
    pairs, and the Properties map.
    """
    own = {name: to_avro_union(value) for name, value in map_values(properties).items()}
    system: dict[str, AvroValue] = {} if key is None else {PARTITION_KEY: key}
    named = map_values(annotations) | field_values(fields)
    system |= {name: to_avro_union(value) for name, value in named.items()}
    extra: dict[str, AvroValue] = {_PARTITION: partition}
    original = EventSections(properties, fields, own_annotations(annotations, key))
    rebuilt = _build_sections(own, system)
    for name, section, other in zip(_SECTIONS, original, rebuilt, strict=True):
        if section != other:
            extra[name] = section
    pairs = b"".join(_encode_pair(name, value) for name, value in system.items())
    return len(system), pairs, _encode_block(extra), _encode_block(own) + b"\x00"


def _encode_block(values: Mapping[str, AvroValue]) -> bytes:
    """One block of a map; nothing if it has no pairs, as an empty block ends a map."""
    if not values:
        return b""
    pairs = b"".join(_encode_pair(name, value) for name, value in values.items())
    return encode_avro_long(len(values)) + pairs


def _encode_pair(name: str, value: AvroValue) -> bytes:
    return encode_avro_bytes(name.encode()) + encode_avro_union(value)


# --- reading --------------------------------------------------------------------------------------


def parse_capture_record(
    system: Mapping[str, AvroValue], properties: Mapping[str, AvroValue], body: bytes | None
) -> EventContent:
    """The event of a record of Capture or of `penstock export`. Raises InvalidEvent."""
    kind = BODY_KINDS.get(str(system.get(_BODY_TYPE, "data")))
    key, partition = system.get(PARTITION_KEY), system.get(_PARTITION)
    if kind is None or not isinstance(key, str | None) or not isinstance(partition, str | None):
        raise InvalidEvent("the record has an invalid body type, partition key or partition")
    rebuilt = _build_sections(properties, system)
    raw = [system.get(name, section) for name, section in zip(_SECTIONS, rebuilt, strict=True)]
    content = system.get(_BODY, body or b"")
    if not isinstance(content, bytes) or not all(isinstance(section, bytes) for section in raw):
        raise InvalidEvent("the record has AMQP sections that are not bytes")
    sections = EventSections(*(section for section in raw if isinstance(section, bytes)))
    return check_content(EventContent(content, sections, key, kind, partition))


def _build_sections(
    properties: Mapping[str, AvroValue], system: Mapping[str, AvroValue]
) -> EventSections:
    annotations = {
        name: value
        for name, value in system.items()
        if name not in FIELDS and name not in SERVICE_ANNOTATIONS and not name.startswith(_OWN)
    }
    try:
        fields = encode_fields({name: value for name, value in system.items() if name in FIELDS})
    except ArgumentError:
        fields = b""  # the schema has no type for a value: the encoded section is in the record
    try:
        return EventSections(encode_properties(properties), fields, encode_annotations(annotations))
    except ArgumentError as error:
        raise InvalidEvent(str(error)) from None
