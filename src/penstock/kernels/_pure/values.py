"""AMQP values as bytes: where one ends, and whether a reader may be given it (AMQP 1.6).

A value that passes is whole, at most 32 deep, its counts fit its bytes and our limits, its strings
are UTF-8 and its symbols ASCII. So no stored event can be a bomb for the clients that read it.

Every check takes `budget`, a list of one number: how many elements the message may still hold.
Bytes that end in the middle of a value may also raise IndexError; the public kernels name that.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

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
ULONGS = b"\x44\x53\x80"

CODE_POINT_MAX = 0x10FFFF

_U32 = struct.Struct(">I").unpack_from
_U32_U32 = struct.Struct(">II").unpack_from

_Check = Callable[[bytes, int, int, int, int, list[int]], int]


class KernelError(ValueError):
    """Bytes that are not what they claim to be; the message says what, and at which byte."""


class KeyTooLong(KernelError):
    """A partition key of more characters than are allowed (protocol.md 4.5)."""


class KeyConflict(KernelError):
    """The event's partition key is not the publisher it is sent through (protocol.md 4.1)."""


def _widths() -> bytes:
    """Bytes of each fixed-width type with its constructor; 0 for all that need a closer look."""
    table = bytearray(256)
    for width, codes in (
        (1, b"\x40\x41\x42\x43\x44\x45"),
        (2, b"\x50\x51\x52\x53\x54\x55"),
        (3, b"\x60\x61"),
        (5, b"\x70\x71\x72\x74"),
        (9, b"\x80\x81\x82\x83\x84"),
        (17, b"\x94\x98"),
    ):
        for code in codes:
            table[code] = width
    return bytes(table)


WIDTH = _widths()


def check_value(data: bytes, position: int, end: int, depth: int, budget: list[int]) -> int:
    """Where the value at `position` ends, never beyond `end`."""
    if position >= end:
        raise KernelError(f"a value is missing at byte {position}")
    code = data[position]
    width = WIDTH[code]
    if not width:
        return _check_body(data, code, position + 1, end, depth, budget)
    if position + width > end:
        raise _overrun(position, position + width, end)
    return position + width


def check_text(data: bytes, code: int, start: int, stop: int) -> None:
    """Strings are UTF-8 and symbols ASCII (AMQP 1.6.20, 1.6.21): some clients die of others."""
    text = data[start:stop]
    if text.isascii():
        return
    if code in (SYMBOL8, SYMBOL32):
        raise KernelError(f"the symbol at byte {start} is not ASCII")
    try:
        text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise KernelError(f"the string is not UTF-8 at byte {start + error.start}") from None


def check_descriptor(data: bytes, position: int, end: int) -> int:
    """Where a descriptor ends: a ulong or a symbol, all others are reserved (AMQP 1.2)."""
    if position < end and (data[position] in ULONGS or data[position] in (SYMBOL8, SYMBOL32)):
        return check_value(data, position, end, DEPTH_MAX, [0])
    raise KernelError(f"no ulong or symbol descriptor at byte {position}")


def open_compound(
    data: bytes, code: int, position: int, end: int, budget: list[int]
) -> tuple[int, int, int]:
    """Count, first element and end of a list, map or array; `position` is behind `code`.

    <size u8>  <count u8>  <elements>     list8, map8, array8
    <size u32> <count u32> <elements>     list32, map32, array32; size counts from the count on
    """
    first = position + (8 if code & 0x10 else 2)
    if first > end:
        raise KernelError(f"a size and a count are missing at byte {position}")
    if code & 0x10:
        size, count = _U32_U32(data, position)
        stop = position + 4 + size
    else:
        stop = position + 1 + data[position]
        count = data[position + 1]
    if not first <= stop <= end:
        raise _overrun(position, stop, end)
    budget[0] -= count
    if count > COUNT_MAX or budget[0] < 0:
        raise KernelError(
            f"{count} elements at byte {position}: at most {COUNT_MAX} are allowed in one value, "
            f"{ELEMENTS_MAX} in one message"
        )
    if count > stop - first and code not in (ARRAY8, ARRAY32):
        raise KernelError(f"{count} elements in {stop - first} bytes at byte {position}")
    if count & 1 and code in (MAP8, MAP32):
        raise KernelError(f"a map of {count} elements, an odd number, at byte {position}")
    return count, first, stop


def check_elements(
    data: bytes, position: int, count: int, stop: int, depth: int, budget: list[int]
) -> int:
    """Check `count` values that fill the bytes up to `stop`, and return that.

    Simple values are passed over here, for speed: should they lead beyond `stop`, the position
    stays beyond, so that it is noticed at the end at the latest.
    """
    for _ in range(count):
        code = data[position]
        width = WIDTH[code]
        if width:
            position += width
        elif code in (STRING8, SYMBOL8):
            text = position + 2
            position = text + data[position + 1]
            if not data[text:position].isascii():
                check_text(data, code, text, position)
        else:
            position = check_value(data, position, stop, depth, budget)
    if position != stop:
        raise _overrun(position, position, stop)
    return stop


def _check_body(
    data: bytes, code: int, position: int, end: int, depth: int, budget: list[int]
) -> int:
    """Like `check_value`, for a value whose constructor stands apart, as in an array."""
    check = _CHECKS.get(code)
    if check is None:
        raise KernelError(f"unknown constructor 0x{code:02x} before byte {position}")
    return check(data, code, position, end, depth, budget)


def _check_variable8(
    data: bytes, code: int, position: int, end: int, depth: int, budget: list[int]
) -> int:
    if position >= end:
        raise KernelError(f"a length is missing at byte {position}")
    stop = position + 1 + data[position]
    if stop > end:
        raise _overrun(position, stop, end)
    if code != BINARY8:
        check_text(data, code, position + 1, stop)
    return stop


def _check_variable32(
    data: bytes, code: int, position: int, end: int, depth: int, budget: list[int]
) -> int:
    if position + 4 > end:
        raise KernelError(f"a length is missing at byte {position}")
    stop = position + 4 + int(_U32(data, position)[0])
    if stop > end:
        raise _overrun(position, stop, end)
    if code != BINARY32:
        check_text(data, code, position + 4, stop)
    return stop


def _check_compound(
    data: bytes, code: int, position: int, end: int, depth: int, budget: list[int]
) -> int:
    if depth > DEPTH_MAX:
        raise _too_deep(position)
    count, position, stop = open_compound(data, code, position, end, budget)
    if not count and position == stop:
        return stop
    return check_elements(data, position, count, stop, depth + 1, budget)


def _check_array(
    data: bytes, code: int, position: int, end: int, depth: int, budget: list[int]
) -> int:
    if depth > DEPTH_MAX:
        raise _too_deep(position)
    count, position, stop = open_compound(data, code, position, end, budget)
    if position == stop and not count:
        return stop  # .NET leaves out the constructor of an empty array
    if position < stop and data[position] == DESCRIBED:
        position = check_descriptor(data, position + 1, stop)
    if position >= stop or data[position] == DESCRIBED:
        raise KernelError(f"no constructor of the array's elements at byte {position}")
    code = data[position]
    position += 1
    if WIDTH[code]:
        # Not a loop: elements of no width (null, true, …) cost no bytes, so they may cost no time.
        position += count * (WIDTH[code] - 1)
    elif code == BOOLEAN:
        position += count  # any octets: PY writes 0x41 and 0x42 inside an array
    else:
        for _ in range(count):
            position = _check_body(data, code, position, stop, depth + 1, budget)
    if position != stop:
        raise _overrun(position, position, stop)
    return stop


def _check_described(
    data: bytes, code: int, position: int, end: int, depth: int, budget: list[int]
) -> int:
    if depth > DEPTH_MAX:
        raise _too_deep(position)
    position = check_descriptor(data, position, end)
    return check_value(data, position, end, depth + 1, budget)


def _check_boolean(
    data: bytes, code: int, position: int, end: int, depth: int, budget: list[int]
) -> int:
    if position >= end or data[position] > 1:
        raise KernelError(f"a boolean is neither 0 nor 1 at byte {position}")
    return position + 1


def _check_char(
    data: bytes, code: int, position: int, end: int, depth: int, budget: list[int]
) -> int:
    if position + 4 > end or _U32(data, position)[0] > CODE_POINT_MAX:
        raise KernelError(f"no Unicode code point at byte {position}")
    return position + 4


def _too_deep(position: int) -> KernelError:
    return KernelError(f"values nested deeper than {DEPTH_MAX} at byte {position}")


def _overrun(position: int, stop: int, end: int) -> KernelError:
    return KernelError(f"the value at byte {position} ends at {stop}, its place at {end}")


_CHECKS: dict[int, _Check] = {
    DESCRIBED: _check_described,
    BOOLEAN: _check_boolean,
    CHAR: _check_char,
    BINARY8: _check_variable8,
    STRING8: _check_variable8,
    SYMBOL8: _check_variable8,
    BINARY32: _check_variable32,
    STRING32: _check_variable32,
    SYMBOL32: _check_variable32,
    LIST8: _check_compound,
    MAP8: _check_compound,
    LIST32: _check_compound,
    MAP32: _check_compound,
    ARRAY8: _check_array,
    ARRAY32: _check_array,
}
