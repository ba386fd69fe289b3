"""Bytes to values: every constructor of AMQP 1.6, written for hostile input.

The decoder compares a declared size or count with the bytes present before it builds anything. A
compound must consume exactly the size that it declares; nesting and counts have limits. The number
of values built is bounded by the bytes received, also for array elements of zero width. Any input
gives a value or raises AmqpDecodeError.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from typing import Final

import msgspec

from penstock.amqp import types as t
from penstock.amqp.errors import AmqpDecodeError, LocalError

# Decoding needs two Python calls per level: this stays far below the interpreter's own limit.
_DEPTH_LIMIT: Final = 128


class DecodeLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How much one call may build. Raises LocalError if `depth_max` is too large."""

    depth_max: int = 32
    count_max: int = 65536  # elements of one compound
    elements_max: int = 100_000  # of all compounds, described values and message sections together
    # hash(UUID) is not keyed: a peer can send thousands of UUIDs that collide, and a dict of them
    # takes quadratic time. No AMQP map that we know of has UUIDs as keys.
    uuid_keys_max: int = 256

    def __post_init__(self) -> None:
        if self.depth_max > _DEPTH_LIMIT:
            raise LocalError(f"depth_max {self.depth_max} is above {_DEPTH_LIMIT}")


DEFAULT: Final = DecodeLimits()
# For performatives and request-response messages, which have tens of elements and come before
# authentication, so their cost must be small. 512 elements also bound colliding map keys: hash(int)
# is not keyed either, but 256 colliding keys are harmless.
SMALL: Final = DecodeLimits(count_max=512, elements_max=512)


class DecodeBudget:
    """What remains of the limits during one call. Methods raise AmqpDecodeError beyond them."""

    __slots__ = ("count_max", "depth_max", "elements", "uuid_keys")

    def __init__(self, limits: DecodeLimits) -> None:
        self.depth_max = limits.depth_max
        self.count_max = limits.count_max
        self.elements = limits.elements_max
        self.uuid_keys = limits.uuid_keys_max

    def take(self, count: int) -> None:
        if count > self.count_max:
            raise AmqpDecodeError(
                f"compound of {count} elements; at most {self.count_max} are allowed"
            )
        self.elements -= count
        if self.elements < 0:
            raise AmqpDecodeError("value has more elements in all than are allowed")

    def take_uuid_key(self) -> None:
        self.uuid_keys -= 1
        if self.uuid_keys < 0:
            raise AmqpDecodeError("value has more uuid map keys than are allowed")

    def enter(self, depth: int) -> int:
        """The depth of the next level."""
        if depth >= self.depth_max:
            raise AmqpDecodeError(f"value is nested deeper than {self.depth_max}")
        return depth + 1


def decode(
    data: bytes, start: int = 0, end: int | None = None, *, limits: DecodeLimits = DEFAULT
) -> tuple[object, int]:
    """The value at `start` and the position after it; reads nothing from `end` on.

    Raises AmqpDecodeError.

    >>> decode(bytes.fromhex("c0 08 03 40 41 a1 03 68 75 62"))
    ([None, True, 'hub'], 10)
    """
    return read_value(data, start, span_end(data, start, end), DecodeBudget(limits), 0)


def skip(
    data: bytes, start: int = 0, end: int | None = None, *, limits: DecodeLimits = DEFAULT
) -> int:
    """The position after the value at `start`, without building it.

    Checks lengths, depth and counts as `decode` does, but not contents (UTF-8, map keys).
    """
    return _skip_value(data, start, span_end(data, start, end), DecodeBudget(limits), 0)


def span_end(data: bytes, start: int, end: int | None) -> int:
    """`end`, or the length of `data`. Raises LocalError if start..end is not within `data`."""
    stop = len(data) if end is None else end
    if not 0 <= start <= stop <= len(data):
        raise LocalError(f"span {start}..{stop} is not within {len(data)} bytes")
    return stop


# --- values ----------------------------------------------------------------------------------


def read_value(
    data: bytes, pos: int, end: int, budget: DecodeBudget, depth: int = 0
) -> tuple[object, int]:
    if pos >= end:
        raise truncated_error(pos)
    code = data[pos]
    if code != t.DESCRIBED:
        return _read_body(data, pos + 1, end, code, budget, depth)
    deeper = budget.enter(depth)
    budget.take(1)  # nested described values declare no count that would be checked
    descriptor, pos = read_value(data, pos + 1, end, budget, deeper)
    value, pos = read_value(data, pos, end, budget, deeper)
    return t.Described(descriptor, value), pos


def _read_body(
    data: bytes, pos: int, end: int, code: int, budget: DecodeBudget, depth: int
) -> tuple[object, int]:
    """Read what follows constructor `code`; in an array, all elements share one constructor."""
    fixed = _FIXED.get(code)
    if fixed is not None:
        width, build = fixed
        stop = pos + width
        if stop > end:
            raise truncated_error(pos)
        return build(data[pos:stop]), stop
    width = _length_width(code, pos)
    start, stop = _read_length(data, pos, end, width)
    build_variable = _VARIABLE.get(code)
    if build_variable is not None:
        return build_variable(data[start:stop]), stop
    deeper = budget.enter(depth)
    count, start = _read_count(data, start, stop, width, budget)
    return _COMPOUND[code](data, start, stop, count, budget, deeper), stop


def _length_width(code: int, pos: int) -> int:
    """Width of the length field that follows constructor `code`."""
    if code not in _VARIABLE and code not in _COMPOUND:
        raise AmqpDecodeError(f"unknown constructor {code:#04x} before position {pos}")
    return 4 if code & 0x10 else 1  # Ax, Cx, Ex are narrow; Bx, Dx, Fx wide


def _read_length(data: bytes, pos: int, end: int, width: int) -> tuple[int, int]:
    """The start and end of what a length of `width` bytes at `pos` declares."""
    start = pos + width
    if start > end:
        raise truncated_error(pos)
    stop = start + int.from_bytes(data[pos:start], "big")
    if stop > end:
        raise AmqpDecodeError(
            f"length at position {pos} declares {stop - start} bytes, {end - start} are present"
        )
    return start, stop


def _read_count(
    data: bytes, pos: int, stop: int, width: int, budget: DecodeBudget
) -> tuple[int, int]:
    """The count of a compound, charged to the budget, and the position after it."""
    start = pos + width
    if start > stop:
        raise AmqpDecodeError(f"compound at position {pos} is too short for its count")
    count = int.from_bytes(data[pos:start], "big")
    # Array elements may have zero width: ten bytes could declare an array of 65,535 nulls.
    present = 1 + width + stop - pos  # constructor, size, contents
    if count > present:
        raise AmqpDecodeError(
            f"compound of {present} bytes at position {pos} declares {count} elements: at most "
            "one element per byte is allowed"
        )
    budget.take(count)
    return count, start


def _read_list(
    data: bytes, pos: int, stop: int, count: int, budget: DecodeBudget, depth: int
) -> list[object]:
    _check_room(pos, stop, count)
    values: list[object] = []
    for _ in range(count):
        value, pos = read_value(data, pos, stop, budget, depth)
        values.append(value)
    _check_consumed(pos, stop)
    return values


def _read_map(
    data: bytes, pos: int, stop: int, count: int, budget: DecodeBudget, depth: int
) -> dict[object, object]:
    _check_room(pos, stop, count)
    _check_even(count)
    pairs: dict[object, object] = {}
    for _ in range(count // 2):
        key, pos = read_value(data, pos, stop, budget, depth)
        value, pos = read_value(data, pos, stop, budget, depth)
        _check_key(key, pairs, budget)
        pairs[key] = value
    _check_consumed(pos, stop)
    return pairs


def _check_key(key: object, pairs: dict[object, object], budget: DecodeBudget) -> None:
    if type(key) is uuid.UUID:
        budget.take_uuid_key()
    try:
        duplicate = key in pairs
    except TypeError:
        raise AmqpDecodeError(f"{type(key).__name__} as a map key is not supported") from None
    if duplicate:  # AMQP 1.6.23: a map with two identical keys is invalid
        raise AmqpDecodeError(f"map has the same {type(key).__name__} key twice")


def _read_array(
    data: bytes, pos: int, stop: int, count: int, budget: DecodeBudget, depth: int
) -> t.Array:
    descriptors: list[object] = []
    code, pos = _read_code(data, pos, stop)
    while code == t.DESCRIBED:
        depth = budget.enter(depth)
        descriptor, pos = read_value(data, pos, stop, budget, depth)
        descriptors.append(descriptor)
        code, pos = _read_code(data, pos, stop)
    _check_array_room(pos, stop, count, code)
    array = t.Array((), code, tuple(descriptors))
    for _ in range(count):
        value, pos = _read_body(data, pos, stop, code, budget, depth)
        array.append(value)
    _check_consumed(pos, stop)
    return array


def _read_code(data: bytes, pos: int, stop: int) -> tuple[int, int]:
    if pos >= stop:
        raise truncated_error(pos)
    return data[pos], pos + 1


# --- checks shared by reading and skipping ---------------------------------------------------


def _check_room(pos: int, stop: int, count: int) -> None:
    # Outside arrays every value has at least its constructor byte.
    if count > stop - pos:
        raise AmqpDecodeError(
            f"compound at position {pos} declares {count} elements in {stop - pos} bytes"
        )


def _check_even(count: int) -> None:
    if count % 2:
        raise AmqpDecodeError(f"map has a key without a value: count {count} is odd")


def _check_array_room(pos: int, stop: int, count: int, code: int) -> None:
    """Check that `count` elements of constructor `code` can be in the bytes present."""
    fixed = _FIXED.get(code)
    needed = count * (fixed[0] if fixed is not None else _length_width(code, pos))
    present = stop - pos
    if needed > present or (fixed is not None and needed != present):
        raise AmqpDecodeError(
            f"array of {count} elements {code:#04x} needs {needed} bytes, {present} are present"
        )


def _check_consumed(pos: int, stop: int) -> None:
    if pos != stop:
        raise AmqpDecodeError(f"compound ends at position {stop}, its elements at {pos}")


def truncated_error(pos: int) -> AmqpDecodeError:
    return AmqpDecodeError(f"value is cut short at position {pos}")


# --- skipping --------------------------------------------------------------------------------


def _skip_value(data: bytes, pos: int, end: int, budget: DecodeBudget, depth: int) -> int:
    if pos >= end:
        raise truncated_error(pos)
    code = data[pos]
    if code != t.DESCRIBED:
        return _skip_body(data, pos + 1, end, code, budget, depth)
    deeper = budget.enter(depth)
    budget.take(1)
    pos = _skip_value(data, pos + 1, end, budget, deeper)
    return _skip_value(data, pos, end, budget, deeper)


def _skip_body(data: bytes, pos: int, end: int, code: int, budget: DecodeBudget, depth: int) -> int:
    fixed = _FIXED.get(code)
    if fixed is not None:
        if pos + fixed[0] > end:
            raise truncated_error(pos)
        return pos + fixed[0]
    width = _length_width(code, pos)
    start, stop = _read_length(data, pos, end, width)
    if code in _VARIABLE:
        return stop
    deeper = budget.enter(depth)
    count, start = _read_count(data, start, stop, width, budget)
    if code in (t.ARRAY_8, t.ARRAY_32):
        start = _skip_elements(data, start, stop, count, budget, deeper)
    else:
        if code in (t.MAP_8, t.MAP_32):
            _check_even(count)
        _check_room(start, stop, count)
        for _ in range(count):
            start = _skip_value(data, start, stop, budget, deeper)
    _check_consumed(start, stop)
    return stop


def _skip_elements(
    data: bytes, pos: int, stop: int, count: int, budget: DecodeBudget, depth: int
) -> int:
    code, pos = _read_code(data, pos, stop)
    while code == t.DESCRIBED:
        depth = budget.enter(depth)
        pos = _skip_value(data, pos, stop, budget, depth)
        code, pos = _read_code(data, pos, stop)
    _check_array_room(pos, stop, count, code)
    if code in _FIXED:
        return stop
    for _ in range(count):
        pos = _skip_body(data, pos, stop, code, budget, depth)
    return pos


# --- builders: the bytes of one value to the value --------------------------------------------


def _integer_builder(kind: Callable[[int], object], *, signed: bool) -> Callable[[bytes], object]:
    def build(chunk: bytes) -> object:
        return kind(int.from_bytes(chunk, "big", signed=signed))

    return build


def _constant_builder(value: object) -> Callable[[bytes], object]:
    def build(chunk: bytes) -> object:
        return value

    return build


def _build_list(chunk: bytes) -> object:
    return []


def _build_boolean(chunk: bytes) -> bool:
    if chunk[0] > 1:
        raise AmqpDecodeError(f"boolean of value {chunk[0]}; only 0 and 1 are defined")
    return chunk[0] == 1


def _build_float(chunk: bytes) -> object:
    return t.Float(struct.unpack(">f", chunk)[0])


def _build_double(chunk: bytes) -> object:
    return struct.unpack(">d", chunk)[0]


def _build_char(chunk: bytes) -> t.Char:
    code_point = int.from_bytes(chunk, "big")
    if code_point > 0x10FFFF or 0xD800 <= code_point <= 0xDFFF:
        raise AmqpDecodeError(f"char {code_point:#x} is no Unicode scalar value")
    return t.Char(chr(code_point))


def _build_uuid(chunk: bytes) -> uuid.UUID:
    return uuid.UUID(bytes=chunk)


def build_string(chunk: bytes) -> str:
    try:
        return chunk.decode()
    except UnicodeDecodeError as error:
        # `from None`: the cause would carry the whole string.
        raise AmqpDecodeError(f"string is not UTF-8 at its byte {error.start}") from None


def build_symbol(chunk: bytes) -> str:
    try:
        return chunk.decode("ascii")
    except UnicodeDecodeError as error:
        raise AmqpDecodeError(f"symbol is not ASCII at its byte {error.start}") from None


def _build_symbol(chunk: bytes) -> t.Symbol:
    return t.Symbol(build_symbol(chunk))


def _build_binary(chunk: bytes) -> bytes:
    return chunk


_FIXED: Final[dict[int, tuple[int, Callable[[bytes], object]]]] = {
    t.NULL: (0, _constant_builder(None)),
    t.TRUE: (0, _constant_builder(True)),
    t.FALSE: (0, _constant_builder(False)),
    t.UINT_0: (0, _constant_builder(t.Uint(0))),
    t.ULONG_0: (0, _constant_builder(t.Ulong(0))),
    t.LIST_0: (0, _build_list),
    t.UBYTE: (1, _integer_builder(t.Ubyte, signed=False)),
    t.BYTE: (1, _integer_builder(t.Byte, signed=True)),
    t.SMALL_UINT: (1, _integer_builder(t.Uint, signed=False)),
    t.SMALL_ULONG: (1, _integer_builder(t.Ulong, signed=False)),
    t.SMALL_INT: (1, _integer_builder(t.Int, signed=True)),
    t.SMALL_LONG: (1, _integer_builder(t.Long, signed=True)),
    t.BOOLEAN: (1, _build_boolean),
    t.USHORT: (2, _integer_builder(t.Ushort, signed=False)),
    t.SHORT: (2, _integer_builder(t.Short, signed=True)),
    t.UINT: (4, _integer_builder(t.Uint, signed=False)),
    t.INT: (4, _integer_builder(t.Int, signed=True)),
    t.FLOAT: (4, _build_float),
    t.CHAR: (4, _build_char),
    t.DECIMAL32: (4, t.Decimal32),
    t.ULONG: (8, _integer_builder(t.Ulong, signed=False)),
    t.LONG: (8, _integer_builder(t.Long, signed=True)),
    t.DOUBLE: (8, _build_double),
    t.TIMESTAMP: (8, _integer_builder(t.Timestamp, signed=True)),
    t.DECIMAL64: (8, t.Decimal64),
    t.DECIMAL128: (16, t.Decimal128),
    t.UUID: (16, _build_uuid),
}

_VARIABLE: Final[dict[int, Callable[[bytes], object]]] = {
    t.BINARY_8: _build_binary,
    t.STRING_8: build_string,
    t.SYMBOL_8: _build_symbol,
    t.BINARY_32: _build_binary,
    t.STRING_32: build_string,
    t.SYMBOL_32: _build_symbol,
}

_CompoundReader = Callable[[bytes, int, int, int, DecodeBudget, int], object]

_COMPOUND: Final[dict[int, _CompoundReader]] = {
    t.LIST_8: _read_list,
    t.LIST_32: _read_list,
    t.MAP_8: _read_map,
    t.MAP_32: _read_map,
    t.ARRAY_8: _read_array,
    t.ARRAY_32: _read_array,
}
