"""From delivered messages to columns, for clients.

Sections are found by their lengths; only the message-annotations are decoded. The caller decodes,
and thereby checks, the content of `properties`, `system` and `message_properties`.
"""

from __future__ import annotations

import struct

import msgspec

from penstock.kernels._pure.messages import (
    APPLICATION_PROPERTIES,
    DATA,
    DELIVERY_ANNOTATIONS,
    FOOTER,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    SEQUENCE,
    VALUE,
    read_integer,
    read_section_code,
    read_string,
)
from penstock.kernels._pure.values import (
    BINARY8,
    BINARY32,
    ELEMENTS_MAX,
    LIST0,
    LIST8,
    LIST32,
    MAP8,
    MAP32,
    NULL,
    KernelError,
    check_value,
    open_compound,
)

_U32 = struct.Struct(">I").unpack_from
_I64 = struct.Struct(">q").unpack_from

_SEQUENCE_NUMBER = b"x-opt-sequence-number"
_OFFSET = b"x-opt-offset"
_ENQUEUED_TIME = b"x-opt-enqueued-time"
_PARTITION_KEY = b"x-opt-partition-key"
_WANTED = frozenset((_SEQUENCE_NUMBER, _OFFSET, _ENQUEUED_TIME, _PARTITION_KEY))

# The pairs as the service writes them (protocol.md 13); anything else is read pair by pair.
_EPOCH_AND_SEQUENCE = (
    b"\xa3\x1bx-opt-sequence-number-epoch\x54\xff" + b"\xa3\x15x-opt-sequence-number\x81"
)
_OFFSET_KEY = b"\xa3\x0cx-opt-offset\xa1"
_ENQUEUED_KEY = b"\xa3\x13x-opt-enqueued-time\x83"
_AFTER_SEQUENCE = 3 + len(_EPOCH_AND_SEQUENCE) + 8
_PLACE_COUNT = 8  # keys and values
_KEY_KEY = b"\xa3\x13x-opt-partition-key\xa1"
_BODIES = (DATA, SEQUENCE, VALUE)
_LISTS = bytes((LIST0, LIST8, LIST32))
_MAPS = bytes((MAP8, MAP32))
_FORMS = {
    HEADER: _LISTS,
    DELIVERY_ANNOTATIONS: _MAPS,
    MESSAGE_ANNOTATIONS: _MAPS,
    PROPERTIES: _LISTS,
    APPLICATION_PROPERTIES: _MAPS,
    DATA: bytes((BINARY8, BINARY32, NULL)),
    SEQUENCE: _LISTS,
    VALUE: bytes(range(256)),
    FOOTER: _MAPS,
}

_Place = tuple[int, int, str, str | None]  # sequence number, enqueued time, offset, partition key


class Columns(msgspec.Struct, frozen=True):
    """Delivered events, one list per attribute; row i of each is event i.

    `bodies` are the data sections' bytes joined; of a sequence or value body the whole encoded
    sections, `body_kinds` says which (0x75, 0x76, 0x77, or 0 for no body). `properties`, `system`
    and `message_properties` are the encoded application-properties map, message-annotations map
    and properties list, empty where there is none.
    """

    sequence_numbers: list[int]
    offsets: list[str]
    enqueued_ms: list[int]
    partition_keys: list[str | None]
    bodies: list[bytes]
    properties: list[bytes]
    system: list[bytes]
    message_properties: list[bytes]
    body_kinds: bytes


def decode_events(data: bytes, bounds: list[int]) -> Columns:
    """Decode delivered messages, data[bounds[2 * i]:bounds[2 * i + 1]], into columns.

    Raises KernelError for bytes that are no message, or one without the sequence number, offset
    and time that Event Hubs gives to every event (protocol.md 5.4).
    """
    if bounds and not 0 <= min(bounds) <= max(bounds) <= len(data):
        raise KernelError(f"bounds from {min(bounds)} to {max(bounds)} of {len(data)} bytes")
    columns = Columns([], [], [], [], [], [], [], [], b"")
    kinds = bytearray()
    pairs = iter(bounds)
    for start, end in zip(pairs, pairs, strict=True):
        try:
            kinds.append(_decode_event(data, start, end, columns))
        except (IndexError, struct.error):
            raise KernelError(f"the message is cut off in a value at byte {end}") from None
    return msgspec.structs.replace(columns, body_kinds=bytes(kinds))


def _decode_event(data: bytes, start: int, end: int, columns: Columns) -> int:
    """Append one event to the columns; return the kind of its body."""
    place: _Place | None = None
    system = properties = message_properties = b""
    bodies: list[bytes] = []
    kind = 0
    position = start
    while position < end:
        if data[position] == 0 and data[position + 1] == 0x53:
            code, first = data[position + 2], position + 3
        else:
            code, first = read_section_code(data, position, end)
        stop = _value_end(data, code, first, end)
        if code in _BODIES:
            if kind not in (0, code):
                raise KernelError(f"a body of another kind, 0x{code:x}, at byte {position}")
            kind = code
            bodies.append(_body_bytes(data, code, position, first, stop))
        elif code == MESSAGE_ANNOTATIONS:
            system = data[first:stop]
            place = _usual_place(system) or _any_place(system)
        elif code == APPLICATION_PROPERTIES:
            properties = data[first:stop]
        elif code == PROPERTIES:
            message_properties = data[first:stop]
        position = stop
    if place is None:
        raise KernelError(f"the message at byte {start} has no message-annotations")
    columns.sequence_numbers.append(place[0])
    columns.enqueued_ms.append(place[1])
    columns.offsets.append(place[2])
    columns.partition_keys.append(place[3])
    columns.bodies.append(bodies[0] if len(bodies) == 1 else b"".join(bodies))
    columns.properties.append(properties)
    columns.system.append(system)
    columns.message_properties.append(message_properties)
    return kind


def _value_end(data: bytes, code: int, first: int, end: int) -> int:
    """The end of the section's value, by its length."""
    form = data[first]
    if form not in _FORMS.get(code, b""):
        raise KernelError(f"no section, or one of the wrong type 0x{form:02x}, at byte {first}")
    if code == VALUE:
        return check_value(data, first, end, 1, [ELEMENTS_MAX])
    if form in (LIST0, NULL):
        stop = first + 1
    elif form & 0x10:
        stop = first + 5 + int(_U32(data, first + 1)[0])
    else:
        stop = first + 2 + data[first + 1]
    if stop > end:
        raise KernelError(f"the section at byte {first} ends at {stop}, its place at {end}")
    return stop


def _body_bytes(data: bytes, code: int, position: int, first: int, stop: int) -> bytes:
    if code != DATA:
        return data[position:stop]
    if data[first] == NULL:
        return b""
    return data[first + (2 if data[first] == BINARY8 else 5) : stop]


def _usual_place(system: bytes) -> _Place | None:
    """Read annotations at fixed positions, as Penstock and Event Hubs write them; else None.

    c1 <size> <count> <epoch pair> <sequence number> <offset> <enqueued time> [<partition key>] …
    """
    if not system.startswith(_EPOCH_AND_SEQUENCE, 3):
        return None
    offset = _AFTER_SEQUENCE + len(_OFFSET_KEY) + 1
    enqueued = offset + system[offset - 1]
    if system[0] != MAP8 or not system.startswith(_OFFSET_KEY, _AFTER_SEQUENCE):
        return None
    if not system.startswith(_ENQUEUED_KEY, enqueued):
        return None
    number = _I64(system, _AFTER_SEQUENCE - 8)[0]
    text = _decode_offset(system[offset:enqueued])
    after = enqueued + len(_ENQUEUED_KEY) + 8
    milliseconds = _I64(system, after - 8)[0]
    if after == len(system) and system[2] == _PLACE_COUNT:
        return number, milliseconds, text, None
    length = after + len(_KEY_KEY)
    if system[2] != _PLACE_COUNT + 2 or not system.startswith(_KEY_KEY, after):
        return None
    if length + 1 + system[length] != len(system):
        return None
    return number, milliseconds, text, _decode_offset(system[length + 1 :])


def _any_place(system: bytes) -> _Place:
    """Read the annotations pair by pair."""
    budget = [ELEMENTS_MAX]
    end = len(system)
    count, position, _ = open_compound(system, system[0], 1, end, budget)
    found: dict[bytes, tuple[int, int]] = {}
    for _ in range(count >> 1):
        value = check_value(system, position, end, 2, budget)
        name = system[position + (5 if system[position] & 0x10 else 2) : value]
        position = check_value(system, value, end, 2, budget)
        if name in _WANTED:
            found[name] = (value, position)
    if position != end:
        raise KernelError(f"the annotations end at byte {position}, their place at {end}")
    number = read_integer(system, found[_SEQUENCE_NUMBER][0]) if _SEQUENCE_NUMBER in found else None
    enqueued = read_integer(system, found[_ENQUEUED_TIME][0]) if _ENQUEUED_TIME in found else None
    offset = read_string(system, *found[_OFFSET]) if _OFFSET in found else None
    key = read_string(system, *found[_PARTITION_KEY]) if _PARTITION_KEY in found else None
    if number is None or enqueued is None or offset is None:
        raise KernelError("a delivered message lacks its sequence number, offset or enqueued time")
    return number, enqueued, offset, key


def _decode_offset(encoded: bytes) -> str:
    try:
        return encoded.decode()
    except UnicodeDecodeError:
        raise KernelError("an offset or a partition key is not UTF-8") from None
