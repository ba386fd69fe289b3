"""One delivered message, decoded for the writers of Arrow columns and Avro records.

`columns` returns sections as bytes; this module finds and checks every pair in them.
"""

from __future__ import annotations

import struct

import msgspec

from penstock.kernels._pure import messages, values
from penstock.kernels._pure.columns import decode_events, split_map
from penstock.kernels._pure.messages import SEQUENCE, VALUE, read_section_code
from penstock.kernels._pure.values import KernelError, variable_content

Pairs = list[tuple[bytes, bytes]]
"""Names as text, and encoded values."""

# Annotations of every event, which have columns of their own.
PLACE = messages.OWNED - {messages.PUBLISHER}
FIELDS = tuple(name.encode() for name, _ in messages.PROPERTIES_FIELDS)
_TEXTS = values.STRINGS + bytes((values.SYMBOL8, values.SYMBOL32))
_BINARIES = bytes((values.BINARY8, values.BINARY32))
_TRUE, _FALSE, _DOUBLE = 0x41, 0x42, 0x82
OTHER = object()


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
        annotations = _name_pairs(columns.system[0])
        body, value = _body_columns(columns.bodies[0], columns.body_kinds[0])
        return DecodedEvent(
            columns.sequence_numbers[0],
            columns.enqueued_ms[0],
            columns.offsets[0].encode(),
            _find_string(annotations, messages.KEY),
            _find_string(annotations, messages.PUBLISHER),
            _name_pairs(columns.properties[0]),
            [pair for pair in annotations if pair[0] not in PLACE],
            _fields(columns.message_properties[0]),
            body,
            value,
        )
    except (IndexError, struct.error):
        raise KernelError(f"the message is cut off in a value at byte {end}") from None


def decode_simple(value: bytes) -> object:
    """The value of an encoded null, boolean, integer, double, string, symbol (as str) or binary;
    OTHER for all other types."""
    code = value[0]
    if code in _TEXTS:
        return variable_content(value).decode()
    if code in _BINARIES:
        return variable_content(value)
    if code == values.NULL:
        return None
    if code in (_TRUE, _FALSE, values.BOOLEAN):
        return code == _TRUE or value[1:] == b"\x01"
    if code == _DOUBLE:
        return float(struct.unpack_from(">d", value, 1)[0])
    number = values.read_integer(value)
    return OTHER if number is None else number


def _property_name(key: bytes) -> bytes:
    """A key is a string or a symbol; ulongs are reserved, and others do not exist (AMQP 3.2)."""
    if key[0] in _TEXTS:
        return variable_content(key)
    number = values.read_integer(key)
    return key.hex().encode() if number is None else b"%d" % number


def _name_pairs(encoded: bytes) -> Pairs:
    """The pairs of an encoded map; none if there is no map."""
    pairs = split_map(encoded) if encoded else []
    return [(_property_name(key), value) for key, value in pairs]


def _fields(encoded: bytes) -> Pairs:
    if not encoded or encoded[0] == values.LIST0:
        return []
    budget = [values.ELEMENTS_MAX]
    end = len(encoded)
    count, position, _ = values.open_compound(encoded, encoded[0], 1, end, budget)
    if count > len(FIELDS):
        raise KernelError(f"{count} properties of a message: at most {len(FIELDS)} exist")
    found: Pairs = []
    for name in FIELDS[:count]:
        after = values.check_value(encoded, position, end, 2, budget)
        if encoded[position] != values.NULL:
            found.append((name, encoded[position:after]))
        position = after
    if position != end:
        raise KernelError(f"the properties end at byte {position}, their place at {end}")
    return found


def _find_string(pairs: Pairs, name: bytes) -> bytes | None:
    """The last string of that name: a key of another type routes nothing (protocol.md 4.5)."""
    value = dict(pairs).get(name)
    return variable_content(value) if value and value[0] in values.STRINGS else None


def _body_columns(body: bytes, kind: int) -> tuple[bytes | None, bytes | None]:
    if kind == VALUE:
        _, first = read_section_code(body, 0, len(body))
        value = body[first:]
        if value[0] == values.NULL:
            return b"", None
        is_plain = value[0] in values.STRINGS + _BINARIES
        return (variable_content(value), None) if is_plain else (None, value)
    if kind == SEQUENCE:
        return None, _join_sequences(body)
    return (body, None) if kind else (None, None)


def _join_sequences(sections: bytes) -> bytes:
    """The lists of all sequence sections as one."""
    parts: list[bytes] = []
    total = position = 0
    budget = [values.ELEMENTS_MAX]
    while position < len(sections):
        _, first = read_section_code(sections, position, len(sections))
        if sections[first] == values.LIST0:
            position = first + 1
            continue
        count, start, position = values.open_compound(
            sections, sections[first], first + 1, len(sections), budget
        )
        values.check_elements(sections, start, count, position, 2, budget)
        total += count
        parts.append(sections[start:position])
    inside = b"".join(parts)
    return struct.pack(">BII", values.LIST32, len(inside) + 4, total) + inside
