"""One delivered message, decoded for the writers of Arrow columns and Avro records.

`columns` returns sections as bytes; this module finds and checks every pair in them.
"""

from __future__ import annotations

import struct

import msgspec

from penstock.kernels._pure.columns import decode_events
from penstock.kernels._pure.messages import SEQUENCE, VALUE, read_section_code
from penstock.kernels._pure.values import (
    BINARY8,
    BINARY32,
    ELEMENTS_MAX,
    LIST0,
    LIST32,
    NULL,
    STRING8,
    STRING32,
    SYMBOL8,
    SYMBOL32,
    KernelError,
    check_elements,
    check_value,
    open_compound,
)

Pairs = list[tuple[bytes, bytes]]
"""Names as text, and encoded values."""

# Annotations of every event, which have columns of their own.
PLACE = frozenset(
    (
        b"x-opt-sequence-number",
        b"x-opt-sequence-number-epoch",
        b"x-opt-offset",
        b"x-opt-enqueued-time",
    )
)
PARTITION_KEY = b"x-opt-partition-key"
PUBLISHER = b"x-opt-publisher"
# The fields of AMQP's own properties (AMQP 3.2.4), in their order.
FIELDS = (
    b"message-id",
    b"user-id",
    b"to",
    b"subject",
    b"reply-to",
    b"correlation-id",
    b"content-type",
    b"content-encoding",
    b"absolute-expiry-time",
    b"creation-time",
    b"group-id",
    b"group-sequence",
    b"reply-to-group-id",
)
TEXTS = bytes((STRING8, STRING32, SYMBOL8, SYMBOL32))
_STRINGS = bytes((STRING8, STRING32))
_PLAIN_BODIES = _STRINGS + bytes((BINARY8, BINARY32))
_INTEGERS = {
    **dict.fromkeys((0x50, 0x52, 0x53), struct.Struct(">B")),
    **dict.fromkeys((0x51, 0x54, 0x55), struct.Struct(">b")),
    0x60: struct.Struct(">H"),
    0x61: struct.Struct(">h"),
    0x70: struct.Struct(">I"),
    0x71: struct.Struct(">i"),
    0x80: struct.Struct(">Q"),
    0x81: struct.Struct(">q"),
}
_ZEROS = b"\x43\x44"
_PACK_LIST32 = struct.Struct(">BII").pack


class DecodedEvent(msgspec.Struct, frozen=True):
    """One event. A body that is not data, string or binary is in `value`, encoded; `body` is None
    then and in an event without body."""

    sequence_number: int
    enqueued_ms: int
    offset: bytes
    partition_key: bytes | None
    publisher: bytes | None
    properties: Pairs
    annotations: Pairs  # without PLACE
    fields: Pairs  # that are set
    body: bytes | None
    value: bytes | None


def open_event(data: bytes, start: int, end: int) -> DecodedEvent:
    """Decode the message data[start:end]. Raises KernelError like `decode_events`."""
    columns = decode_events(data, [start, end])
    try:
        annotations = _split_map(columns.system[0])
        body, value = _body_columns(columns.bodies[0], columns.body_kinds[0])
        properties = columns.properties[0]
        fields = columns.message_properties[0]
        return DecodedEvent(
            columns.sequence_numbers[0],
            columns.enqueued_ms[0],
            columns.offsets[0].encode(),
            _find_string(annotations, PARTITION_KEY),
            _find_string(annotations, PUBLISHER),
            _split_map(properties) if properties else [],
            [pair for pair in annotations if pair[0] not in PLACE],
            _fields(fields) if fields else [],
            body,
            value,
        )
    except (IndexError, struct.error):
        raise KernelError(f"the message is cut off in a value at byte {end}") from None


def message_bounds(data: bytes, bounds: list[int]) -> list[tuple[int, int]]:
    """Pairs of start and end, checked."""
    if bounds and not 0 <= min(bounds) <= max(bounds) <= len(data):
        raise KernelError(f"bounds from {min(bounds)} to {max(bounds)} of {len(data)} bytes")
    pairs = iter(bounds)
    return list(zip(pairs, pairs, strict=True))


def decode_text(value: bytes) -> bytes:
    """The content of an encoded string, symbol or binary."""
    return value[5 if value[0] & 0x10 else 2 :]


def decode_integer(value: bytes) -> int | None:
    """The value of an encoded integer; None for any other value, also for a timestamp."""
    if value[0] in _ZEROS:
        return 0
    form = _INTEGERS.get(value[0])
    return None if form is None else int(form.unpack_from(value, 1)[0])


def _property_name(key: bytes) -> bytes:
    """A key is a string or a symbol; ulongs are reserved, and others do not exist (AMQP 3.2)."""
    if key[0] in TEXTS:
        return decode_text(key)
    number = decode_integer(key)
    return key.hex().encode() if number is None else b"%d" % number


def _split_map(encoded: bytes) -> Pairs:
    budget = [ELEMENTS_MAX]
    end = len(encoded)
    count, position, _ = open_compound(encoded, encoded[0], 1, end, budget)
    found: Pairs = []
    for _ in range(count >> 1):
        value = check_value(encoded, position, end, 2, budget)
        after = check_value(encoded, value, end, 2, budget)
        name = encoded[position:value]
        found.append((_property_name(name), encoded[value:after]))
        position = after
    if position != end:
        raise KernelError(f"a map of the message ends at byte {position}, its place at {end}")
    return found


def _fields(encoded: bytes) -> Pairs:
    if encoded[0] == LIST0:
        return []
    budget = [ELEMENTS_MAX]
    end = len(encoded)
    count, position, _ = open_compound(encoded, encoded[0], 1, end, budget)
    if count > len(FIELDS):
        raise KernelError(f"{count} properties of a message: at most {len(FIELDS)} exist")
    found: Pairs = []
    for name in FIELDS[:count]:
        after = check_value(encoded, position, end, 2, budget)
        if encoded[position] != NULL:
            found.append((name, encoded[position:after]))
        position = after
    if position != end:
        raise KernelError(f"the properties end at byte {position}, their place at {end}")
    return found


def _find_string(pairs: Pairs, name: bytes) -> bytes | None:
    """The last string of that name: a key of another type routes nothing (protocol.md 4.5)."""
    found = [value for each, value in pairs if each == name]
    return decode_text(found[-1]) if found and found[-1][0] in _STRINGS else None


def _body_columns(body: bytes, kind: int) -> tuple[bytes | None, bytes | None]:
    if kind == VALUE:
        _, first = read_section_code(body, 0, len(body))
        value = body[first:]
        if value[0] == NULL:
            return b"", None
        return (decode_text(value), None) if value[0] in _PLAIN_BODIES else (None, value)
    if kind == SEQUENCE:
        return None, _join_sequences(body)
    return (body, None) if kind else (None, None)


def _join_sequences(sections: bytes) -> bytes:
    """The lists of all sequence sections as one."""
    parts: list[bytes] = []
    total = position = 0
    budget = [ELEMENTS_MAX]
    while position < len(sections):
        code, first = read_section_code(sections, position, len(sections))
        assert code == SEQUENCE
        if sections[first] == LIST0:
            position = first + 1
            continue
        count, start, stop = open_compound(
            sections, sections[first], first + 1, len(sections), budget
        )
        check_elements(sections, start, count, stop, 2, budget)
        total += count
        parts.append(sections[start:stop])
        position = stop
    inside = b"".join(parts)
    return _PACK_LIST32(LIST32, len(inside) + 4, total) + inside
