"""AMQP values as bytes: where one ends, and whether a reader may be given it (AMQP 1.6).

A value that passes is whole and at most 32 deep, its counts fit our limits, its strings are UTF-8,
its symbols ASCII, its characters Unicode scalar values. No list, map or array has more elements
than bytes, so a publication has fewer elements than bytes: what decoding it costs is bounded.

Every check takes `budget`, a list of one number: how many elements the message may still hold.
No check reads beyond `end`. The functions at the end build the errors; the compiled implementation
raises the same ones.
"""

from __future__ import annotations

import struct

DEPTH_MAX = 32  # a section's own map or list is the first level
COUNT_MAX = 65_536  # elements of one list, map or array
ELEMENTS_MAX = 100_000  # elements and body sections of one message

# Constructors (AMQP 1.6) that the kernels name.
DESCRIBED = 0x00
NULL = 0x40
LIST0 = 0x45
BOOLEAN, CHAR = 0x56, 0x73
BINARY8, STRING8, SYMBOL8 = 0xA0, 0xA1, 0xA3
BINARY32, STRING32, SYMBOL32 = 0xB0, 0xB1, 0xB3
LIST8, MAP8, LIST32, MAP32 = 0xC0, 0xC1, 0xD0, 0xD1
ARRAY8, ARRAY32 = 0xE0, 0xF0
TIMESTAMP = 0x83
ULONGS = b"\x44\x53\x80"
STRINGS = bytes((STRING8, STRING32))
_SIGNED = b"\x51\x54\x55\x61\x71\x81\x83"  # a timestamp is a number as well
_UNSIGNED = b"\x43\x44\x50\x52\x53\x60\x70\x80"

CODE_POINT_MAX = 0x10FFFF
SURROGATES = range(0xD800, 0xE000)  # halves of a UTF-16 pair: UTF-32 has none (AMQP 1.6.16)

_VARIABLES = bytes((BINARY8, STRING8, SYMBOL8, BINARY32, STRING32, SYMBOL32))
_NESTED = bytes((DESCRIBED, LIST8, MAP8, LIST32, MAP32, ARRAY8, ARRAY32))
_NO_KEYS = frozenset({DESCRIBED, LIST0, *range(LIST8, 0x100)})  # compounds and arrays

_U32 = struct.Struct(">I").unpack_from
_U32_U32 = struct.Struct(">II").unpack_from


class KernelError(ValueError):
    """Bytes that are not what they claim to be; the message says what, and at which byte."""


class KeyTooLong(KernelError):
    """A partition key of more characters than are allowed (protocol.md 4.5)."""


class KeyConflict(KernelError):
    """The event's partition key is not the publisher it is sent through (protocol.md 4.1)."""


_TYPE_NAMES = {
    "described": b"\x00",
    "null": b"\x40",
    "boolean": b"\x41\x42\x56",
    "ubyte": b"\x50",
    "ushort": b"\x60",
    "uint": b"\x43\x52\x70",
    "ulong": ULONGS,
    "byte": b"\x51",
    "short": b"\x61",
    "int": b"\x54\x71",
    "long": b"\x55\x81",
    "float": b"\x72",
    "double": b"\x82",
    "char": b"\x73",
    "timestamp": b"\x83",
    "decimal32": b"\x74",
    "decimal64": b"\x84",
    "decimal128": b"\x94",
    "uuid": b"\x98",
    "binary": b"\xa0\xb0",
    "string": b"\xa1\xb1",
    "symbol": b"\xa3\xb3",
    "list": b"\x45\xc0\xd0",
    "map": b"\xc1\xd1",
    "array": b"\xe0\xf0",
}
_TYPES = {code: name for name, codes in _TYPE_NAMES.items() for code in codes}

# Bytes of a fixed-width type with its constructor, by the constructor's upper four bits.
_WIDTHS = {4: 1, 5: 2, 6: 3, 7: 5, 8: 9, 9: 17}
_FIXED = _TYPES.keys() - {BOOLEAN, CHAR}  # without those whose value is checked
# The same by constructor; 0 for all that need a closer look.
WIDTH = bytes(_WIDTHS.get(code >> 4, 0) if code in _FIXED else 0 for code in range(256))


def type_name(code: int) -> str:
    """The AMQP type that a constructor is of, or "unknown"."""
    return _TYPES.get(code, "unknown")


def check_value(data: bytes, position: int, end: int, depth: int, budget: list[int]) -> int:
    """Where the value at `position` ends, never beyond `end`."""
    if position >= end:
        raise missing_value(position)
    code = data[position]
    width = WIDTH[code]
    if not width:
        return _check_body(data, code, position + 1, end, depth, budget)
    if position + width > end:
        raise overrun(position, position + width, end)
    return position + width


def check_text(data: bytes, code: int, start: int, stop: int) -> None:
    """Strings are UTF-8 and symbols ASCII (AMQP 1.6.20, 1.6.21): some clients die of others."""
    text = data[start:stop]
    if text.isascii():
        return
    if code in (SYMBOL8, SYMBOL32):
        raise symbol_not_ascii(start)
    try:
        text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise KernelError(f"the string is not UTF-8 at byte {start + error.start}") from None


def check_descriptor(data: bytes, position: int, end: int) -> int:
    """Where a descriptor ends: a ulong or a symbol, all others are reserved (AMQP 1.2)."""
    if position < end and (data[position] in ULONGS or data[position] in (SYMBOL8, SYMBOL32)):
        return check_value(data, position, end, DEPTH_MAX, [0])
    raise missing_descriptor(position)


def open_compound(
    data: bytes, code: int, position: int, end: int, budget: list[int]
) -> tuple[int, int, int]:
    """Count, first element and end of a list, map or array; `position` is behind `code`.

    <size u8>  <count u8>  <elements>     list8, map8, array8
    <size u32> <count u32> <elements>     list32, map32, array32; size counts from the count on
    """
    first = position + (8 if code & 0x10 else 2)
    if first > end:
        raise missing_size(position)
    if code & 0x10:
        size, count = _U32_U32(data, position)
        stop = position + 4 + size
    else:
        stop = position + 1 + data[position]
        count = data[position + 1]
    if not first <= stop <= end:
        raise overrun(position, stop, end)
    budget[0] -= count
    if count > COUNT_MAX or budget[0] < 0:
        raise too_many_elements(count, position)
    if count > stop - first:
        raise more_elements_than_bytes(count, stop - first, position)
    if count & 1 and code in (MAP8, MAP32):
        raise odd_map(count, position)
    return count, first, stop


def check_elements(
    data: bytes, position: int, count: int, stop: int, depth: int, budget: list[int]
) -> int:
    """Check `count` values that fill the bytes up to `stop`, and return that."""
    for _ in range(count):
        position = check_value(data, position, stop, depth, budget)
    return check_end(position, stop)


def check_end(position: int, stop: int) -> int:
    """Return `stop`, where the last element must end."""
    if position != stop:
        raise overrun(position, position, stop)
    return stop


def _check_body(
    data: bytes, code: int, position: int, end: int, depth: int, budget: list[int]
) -> int:
    """Like `check_value`, for a value whose constructor stands apart, as in an array."""
    if code in _VARIABLES:
        first = position + (4 if code & 0x10 else 1)
        if first > end:
            raise missing_length(position)
        stop = first + (_U32(data, position)[0] if code & 0x10 else data[position])
        if stop > end:
            raise overrun(position, stop, end)
        if code not in (BINARY8, BINARY32):
            check_text(data, code, first, stop)
        return stop
    if code == BOOLEAN:
        if position >= end or data[position] > 1:
            raise bad_boolean(position)
        return position + 1
    if code == CHAR:
        code_point = int.from_bytes(data[position : position + 4], "big")
        if position + 4 > end or code_point > CODE_POINT_MAX or code_point in SURROGATES:
            raise bad_character(position)
        return position + 4
    if code not in _NESTED:
        raise unknown_constructor(code, position)
    return _check_nested(data, code, position, end, depth, budget)


def _check_nested(
    data: bytes, code: int, position: int, end: int, depth: int, budget: list[int]
) -> int:
    """A described value, list, map or array."""
    if depth > DEPTH_MAX:
        raise too_deep(position)
    if code == DESCRIBED:
        position = check_descriptor(data, position, end)
        return check_value(data, position, end, depth + 1, budget)
    count, position, stop = open_compound(data, code, position, end, budget)
    if not count and position == stop:
        return stop  # .NET leaves out the constructor of an empty array
    if code in (ARRAY8, ARRAY32):
        return _check_array(data, position, count, stop, depth + 1, budget)
    if code in (MAP8, MAP32):
        return _check_pairs(data, position, count, stop, depth + 1, budget)
    return check_elements(data, position, count, stop, depth + 1, budget)


def _check_pairs(
    data: bytes, position: int, count: int, stop: int, depth: int, budget: list[int]
) -> int:
    """Like `check_elements`, for a map: readers that keep it in a hash table need primitive keys
    (azure-eventhub for Python fails again and again at any other)."""
    for _ in range(count // 2):
        if position < stop and data[position] in _NO_KEYS:
            raise compound_key(data[position], position)
        position = check_value(data, position, stop, depth, budget)
        position = check_value(data, position, stop, depth, budget)
    return check_end(position, stop)


def _check_array(
    data: bytes, position: int, count: int, stop: int, depth: int, budget: list[int]
) -> int:
    if position < stop and data[position] == DESCRIBED:
        position = check_descriptor(data, position + 1, stop)
    if position >= stop or data[position] == DESCRIBED:
        raise missing_element_constructor(position)
    code = data[position]
    position += 1
    if code not in _TYPES:
        raise unknown_constructor(code, position)  # also for an array without elements
    if WIDTH[code]:
        position += count * (WIDTH[code] - 1)
    elif code == BOOLEAN:
        position += count  # any octets: azure-eventhub writes 0x41 and 0x42 inside an array
    else:
        for _ in range(count):
            position = _check_body(data, code, position, stop, depth, budget)
    return check_end(position, stop)


def variable_content(value: bytes) -> bytes:
    """The content of an encoded string, symbol or binary."""
    return value[5 if value[0] & 0x10 else 2 :]


def read_string(value: bytes) -> str | None:
    """The text of an encoded string; None for any other value."""
    return variable_content(value).decode() if value[0] in STRINGS else None


def read_signed(value: bytes) -> int | None:
    """The number of an encoded signed integer or timestamp; None for any other value."""
    return int.from_bytes(value[1:], "big", signed=True) if value[0] in _SIGNED else None


def read_integer(value: bytes) -> int | None:
    """The number of an encoded integer; None for any other value, also for a timestamp."""
    if value[0] in _UNSIGNED:
        return int.from_bytes(value[1:], "big")
    return None if value[0] == TIMESTAMP else read_signed(value)


def encode_variable(code: int, content: bytes) -> bytes:
    """The binary, string or symbol; `code` is its constructor for a length of one byte."""
    return variable_head(code, len(content)) + content


def variable_head(code: int, length: int) -> bytes:
    if length <= 0xFF:
        return bytes((code, length))
    return struct.pack(">BI", code | 0x10, length)


def encode_map(count: int, pairs: bytes) -> bytes:
    """The map with these encoded pairs in the smaller of its two forms; `count` has keys and
    values."""
    if count <= 0xFF and len(pairs) < 0xFF:
        return bytes((MAP8, len(pairs) + 1, count)) + pairs
    return struct.pack(">BII", MAP32, len(pairs) + 4, count) + pairs


# Errors.


def missing_value(position: int) -> KernelError:
    return KernelError(f"a value is missing at byte {position}")


def missing_length(position: int) -> KernelError:
    return KernelError(f"a length is missing at byte {position}")


def missing_size(position: int) -> KernelError:
    return KernelError(f"a size and a count are missing at byte {position}")


def missing_descriptor(position: int) -> KernelError:
    return KernelError(f"no ulong or symbol descriptor at byte {position}")


def missing_element_constructor(position: int) -> KernelError:
    return KernelError(f"no constructor of the array's elements at byte {position}")


def unknown_constructor(code: int, position: int) -> KernelError:
    return KernelError(f"unknown constructor 0x{code:02x} before byte {position}")


def symbol_not_ascii(position: int) -> KernelError:
    return KernelError(f"the symbol at byte {position} is not ASCII")


def bad_boolean(position: int) -> KernelError:
    return KernelError(f"a boolean is neither 0 nor 1 at byte {position}")


def bad_character(position: int) -> KernelError:
    return KernelError(f"no Unicode character at byte {position}")


def too_many_elements(count: int, position: int) -> KernelError:
    return KernelError(
        f"{count} elements at byte {position}: at most {COUNT_MAX} are allowed in one value, "
        f"{ELEMENTS_MAX} in one message"
    )


def more_elements_than_bytes(count: int, size: int, position: int) -> KernelError:
    return KernelError(f"{count} elements in {size} bytes at byte {position}")


def compound_key(code: int, position: int) -> KernelError:
    return KernelError(
        f"a map's key at byte {position} is of type {code:#04x}: a primitive type is allowed"
    )


def odd_map(count: int, position: int) -> KernelError:
    return KernelError(f"a map of {count} elements, an odd number, at byte {position}")


def too_deep(position: int) -> KernelError:
    return KernelError(f"values nested deeper than {DEPTH_MAX} at byte {position}")


def overrun(position: int, stop: int, end: int) -> KernelError:
    return KernelError(f"the value at byte {position} ends at {stop}, its place at {end}")
