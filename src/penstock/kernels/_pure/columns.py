"""From delivered messages to columns, for clients.

Sections are found by their lengths; only the message-annotations are decoded. The caller decodes,
and thereby checks, the content of `properties`, `system` and `message_properties`.
"""

from __future__ import annotations

import struct

import msgspec

from penstock.kernels._pure import messages, values
from penstock.kernels._pure.values import KernelError, check_value

_LISTS = bytes((values.LIST0, values.LIST8, values.LIST32))
_MAPS = bytes((values.MAP8, values.MAP32))
_FORMS = {
    messages.HEADER: _LISTS,
    messages.DELIVERY_ANNOTATIONS: _MAPS,
    messages.MESSAGE_ANNOTATIONS: _MAPS,
    messages.PROPERTIES: _LISTS,
    messages.APPLICATION_PROPERTIES: _MAPS,
    messages.DATA: bytes((values.BINARY8, values.BINARY32, values.NULL)),
    messages.SEQUENCE: _LISTS,
    messages.VALUE: bytes(range(256)),
    messages.FOOTER: _MAPS,
}
_BODIES = (messages.DATA, messages.SEQUENCE, messages.VALUE)
_NULL_VALUE = bytes((values.NULL,))

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
    columns = Columns([], [], [], [], [], [], [], [], b"")
    kinds = bytearray()
    for start, end in message_bounds(data, bounds):
        try:
            kinds.append(_decode_event(data, start, end, columns))
        except (IndexError, struct.error):
            raise KernelError(f"the message is cut off in a value at byte {end}") from None
    return msgspec.structs.replace(columns, body_kinds=bytes(kinds))


def message_bounds(data: bytes, bounds: list[int]) -> list[tuple[int, int]]:
    """Pairs of start and end, checked."""
    if bounds and not 0 <= min(bounds) <= max(bounds) <= len(data):
        raise KernelError(f"bounds from {min(bounds)} to {max(bounds)} of {len(data)} bytes")
    pairs = iter(bounds)
    return list(zip(pairs, pairs, strict=True))


def split_map(encoded: bytes) -> list[tuple[bytes, bytes]]:
    """The encoded keys and values of an encoded map, checked."""
    budget = [values.ELEMENTS_MAX]
    end = len(encoded)
    count, position, _ = values.open_compound(encoded, encoded[0], 1, end, budget)
    pairs = []
    for _ in range(count >> 1):
        value = check_value(encoded, position, end, 2, budget)
        after = check_value(encoded, value, end, 2, budget)
        pairs.append((encoded[position:value], encoded[value:after]))
        position = after
    if position != end:
        raise KernelError(f"a map of the message ends at byte {position}, its place at {end}")
    return pairs


def _decode_event(data: bytes, start: int, end: int, columns: Columns) -> int:
    """Append one event to the columns; return the kind of its body."""
    place: _Place | None = None
    system = properties = message_properties = b""
    bodies: list[bytes] = []
    kind = 0
    position = start
    while position < end:
        code, first = messages.read_section_code(data, position, end)
        stop = _value_end(data, code, first, end)
        if code in _BODIES:
            if kind not in (0, code):
                raise KernelError(f"a body of another kind, 0x{code:x}, at byte {position}")
            kind = code
            bodies.append(_body_bytes(data, code, position, first, stop))
        elif code == messages.MESSAGE_ANNOTATIONS:
            system = data[first:stop]
            place = _find_place(system)
        elif code == messages.APPLICATION_PROPERTIES:
            properties = data[first:stop]
        elif code == messages.PROPERTIES:
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
    if form not in _FORMS[code]:
        raise KernelError(f"no section, or one of the wrong type 0x{form:02x}, at byte {first}")
    if code == messages.VALUE:
        return check_value(data, first, end, 1, [values.ELEMENTS_MAX])
    if form in (values.LIST0, values.NULL):
        stop = first + 1
    elif form & 0x10:
        stop = first + 5 + int.from_bytes(data[first + 1 : first + 5], "big")
    else:
        stop = first + 2 + data[first + 1]
    if stop > end:
        raise KernelError(f"the section at byte {first} ends at {stop}, its place at {end}")
    return stop


def _body_bytes(data: bytes, code: int, position: int, first: int, stop: int) -> bytes:
    if code != messages.DATA:
        return data[position:stop]
    if data[first] == values.NULL:
        return b""
    return values.variable_content(data[first:stop])


def _find_place(system: bytes) -> _Place:
    """What the service's annotations say; the last one of each name counts."""
    named = {values.variable_content(key): value for key, value in split_map(system)}
    number = values.read_signed(named.get(b"x-opt-sequence-number", _NULL_VALUE))
    enqueued = values.read_signed(named.get(b"x-opt-enqueued-time", _NULL_VALUE))
    offset = values.read_string(named.get(b"x-opt-offset", _NULL_VALUE))
    key = values.read_string(named.get(b"x-opt-partition-key", _NULL_VALUE))
    if number is None or enqueued is None or offset is None:
        raise KernelError("a delivered message lacks its sequence number, offset or enqueued time")
    return number, enqueued, offset, key
