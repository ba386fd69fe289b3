"""From events to the bytes of a batch, for producers.

    00 53 75 <binary:  <annotations> <fields> [00 53 74 <map>] 00 53 75 <binary: body> >

Properties are encoded here if their keys are str and their values None, bool, int, float, str or
bytes, and not of a subclass. The caller encodes all other events itself.
"""

from __future__ import annotations

import struct

from penstock.kernels._pure import values
from penstock.kernels._pure.values import KernelError, encode_variable

EVENT_BYTES_MAX = 64 * 1024 * 1024  # far above any publication; lengths stay within 32 bits

_PACK_U32 = struct.Struct(">I").pack
_PACK_LONG = struct.Struct(">Bq").pack
_PACK_DOUBLE = struct.Struct(">Bd").pack
_DATA = b"\x00\x53\x75"
_APPLICATION_PROPERTIES = b"\x00\x53\x74"
_NUMBERS = 2**31  # after the highest AMQP int comes 0
_SIGNED_BYTE = range(-128, 128)
_LONG = range(-(2**63), 2**63)


def append_event(
    out: bytearray,
    annotations: bytes,
    fields: bytes,
    properties: dict[str, object] | None,
    body: bytes,
) -> bool:
    """Append one event to a batch as a data section.

    `annotations` and `fields` are whole encoded sections, or empty. Returns False, and appends
    nothing, for properties of other types or an event that is too large.
    """
    if len(annotations) + len(fields) + len(body) > EVENT_BYTES_MAX:
        return False
    parts = [annotations, fields]
    if properties:
        encoded = _encode_map(properties)
        if encoded is None:
            return False
        parts += _APPLICATION_PROPERTIES, encoded
    parts += _DATA, encode_variable(values.BINARY8, body)
    message = b"".join(parts)
    if len(message) > EVENT_BYTES_MAX:
        return False
    out += _DATA + encode_variable(values.BINARY8, message)
    return True


def append_bodies(
    out: bytearray,
    annotations: bytes,
    number_at: int,
    number: int,
    data: bytes | memoryview,
    ends: bytes | memoryview,
    first: int,
    stop: int,
    *,
    size_max: int,
) -> list[int]:
    """Append rows `first` to `stop` - 1 of an Arrow column of bodies as events.

    `data` and `ends` are the column's bytes and int32 offsets, little endian. Each event gets
    `annotations`; if `number_at` is not negative, its number is written there as an AMQP int, the
    first one being `number`. Stops before `out` would have more than `size_max` bytes. Returns
    where the appended messages start in `out`. Raises KernelError for offsets that are not valid.
    """
    if len(ends) % 4:
        raise KernelError(f"{len(ends)} bytes of offsets: four each are needed")
    offsets = memoryview(ends).cast("B").cast("i")
    size = len(data)
    if not 0 <= first <= stop < len(offsets):
        raise KernelError(f"rows {first} to {stop} of {len(offsets) - 1}")
    if number_at >= 0 and number_at > len(annotations) - 4:
        raise KernelError(f"a number at byte {number_at} of {len(annotations)} of annotations")
    starts: list[int] = []
    for row in range(first, stop):
        begin, end = offsets[row], offsets[row + 1]
        if not 0 <= begin <= end <= size:
            raise KernelError(f"row {row} lies at {begin} to {end} of {size} bytes")
        own = annotations
        if number_at >= 0:
            numbered = (number + row - first) % _NUMBERS
            own = annotations[:number_at] + _PACK_U32(numbered) + annotations[number_at + 4 :]
        message = own + _DATA + encode_variable(values.BINARY8, bytes(data[begin:end]))
        section = _DATA + encode_variable(values.BINARY8, message)
        if len(out) + len(section) > size_max:
            break
        starts.append(len(out) + len(section) - len(message))
        out += section
    return starts


def _encode_map(properties: dict[str, object]) -> bytes | None:
    parts = bytearray()
    for key, value in properties.items():
        if type(key) is not str or not _append(parts, key) or not _append(parts, value):
            return None
    return values.encode_map(2 * len(properties), bytes(parts))


def _append(out: bytearray, value: object) -> bool:
    """Append the smallest encoding (AMQP 1.0 section 1.6); False for a value of another type."""
    kind = type(value)
    if kind is str:
        assert isinstance(value, str)
        try:
            text = value.encode()
        except UnicodeEncodeError:  # half of a surrogate pair
            return False
        out += encode_variable(values.STRING8, text)
    elif kind is int:
        assert isinstance(value, int)
        if value not in _LONG:
            return False
        small = value in _SIGNED_BYTE
        out += bytes((0x55, value & 0xFF)) if small else _PACK_LONG(0x81, value)
    elif value is None:
        out += b"\x40"
    elif kind is bool:
        out += b"\x41" if value else b"\x42"
    elif kind is float:
        out += _PACK_DOUBLE(0x82, value)
    elif kind is bytes:
        assert isinstance(value, bytes)
        out += encode_variable(values.BINARY8, value)
    else:
        return False
    return True
