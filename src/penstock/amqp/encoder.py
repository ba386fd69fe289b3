"""Values to bytes, each in its smallest encoding (AMQP 1.6).

`type(value)` selects the writer; a subclass without its own writer is written as its nearest base.
Out-of-range values, cycles and types that AMQP does not have raise LocalError.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Iterable
from typing import Any, Final

from penstock.amqp import types as t
from penstock.amqp.errors import LocalError

# Any: a writer gets only values of the type that it is registered for.
Writer = Callable[[bytearray, Any, int], None]

# As deep as DecodeLimits permits, so that every decoded value can be encoded. With three Python
# calls per level it is far below the interpreter's own limit. It also stops a value that contains
# itself.
ENCODE_DEPTH_MAX: Final = 128

_pack_u32: Final = struct.Struct(">I").pack
_pack_code_u32: Final = struct.Struct(">BI").pack
_pack_compound_32: Final = struct.Struct(">BII").pack


def encode(value: object) -> bytes:
    """The encoding of one value, constructor included.

    >>> encode([None, True, "hub"]).hex(" ")
    'c0 08 03 40 41 a1 03 68 75 62'
    """
    out = bytearray()
    write_value(out, value, 0)
    return bytes(out)


def write_value(out: bytearray, value: object, depth: int) -> None:
    kind = type(value)
    writer = _WRITERS.get(kind)
    if writer is None:
        writer = _nearest_writer(kind)
    writer(out, value, depth)


def _nearest_writer(kind: type) -> Writer:
    for base in kind.__mro__[1:]:
        writer = _WRITERS.get(base)
        if writer is not None:
            return writer
    raise LocalError(f"{kind.__name__} is no AMQP type")


# --- scalars ---------------------------------------------------------------------------------


def _write_null(out: bytearray, value: None, depth: int) -> None:
    out.append(t.NULL)


def _write_bool(out: bytearray, value: bool, depth: int) -> None:
    out.append(t.TRUE if value else t.FALSE)


def write_uint(out: bytearray, value: int, depth: int = 0) -> None:
    if 0 < value < 0x100:
        out.append(t.SMALL_UINT)
        out.append(value)
    elif value == 0:
        out.append(t.UINT_0)
    elif 0 < value < 0x1_0000_0000:
        out += _pack_code_u32(t.UINT, value)
    else:
        raise _out_of_range_error("uint", value)


def write_ulong(out: bytearray, value: int, depth: int = 0) -> None:
    if 0 < value < 0x100:
        out.append(t.SMALL_ULONG)
        out.append(value)
    elif value == 0:
        out.append(t.ULONG_0)
    else:
        out.append(t.ULONG)
        _append_fixed(out, value, "ulong", 8, signed=False)


def _write_int(out: bytearray, value: int, depth: int) -> None:
    if -0x80 <= value < 0x80:
        out.append(t.SMALL_INT)
        out.append(value & 0xFF)
    else:
        out.append(t.INT)
        _append_fixed(out, value, "int", 4, signed=True)


def _write_long(out: bytearray, value: int, depth: int) -> None:
    if -0x80 <= value < 0x80:
        out.append(t.SMALL_LONG)
        out.append(value & 0xFF)
    else:
        out.append(t.LONG)
        _append_fixed(out, value, "long", 8, signed=True)


def _append_fixed(out: bytearray, value: int, name: str, width: int, *, signed: bool) -> None:
    try:
        out += value.to_bytes(width, "big", signed=signed)
    except OverflowError:
        raise _out_of_range_error(name, value) from None


def _out_of_range_error(name: str, value: int) -> LocalError:
    # Python refuses to format an int of thousands of digits.
    text = str(value) if value.bit_length() <= 64 else f"an int of {value.bit_length()} bits"
    return LocalError(f"{text} does not fit {name}")


def _integer_writer(name: str, width: int, *, signed: bool) -> Writer:
    def write(out: bytearray, value: int, depth: int) -> None:
        _append_fixed(out, value, name, width, signed=signed)

    return write


def _write_float(out: bytearray, value: float, depth: int) -> None:
    try:
        out += struct.pack(">f", value)
    except OverflowError:
        raise LocalError("number does not fit float") from None


def _write_double(out: bytearray, value: float, depth: int) -> None:
    out += struct.pack(">d", value)


def _write_char(out: bytearray, value: str, depth: int) -> None:
    if len(value) != 1 or "\ud800" <= value <= "\udfff":
        raise LocalError("char must be exactly one Unicode scalar value")
    out += _pack_u32(ord(value))


def _write_boolean_byte(out: bytearray, value: bool, depth: int) -> None:
    if value is not True and value is not False:
        raise TypeError
    out.append(value)


def _write_uuid(out: bytearray, value: uuid.UUID, depth: int) -> None:
    out += value.bytes


def _decimal_writer(width: int) -> Writer:
    def write(out: bytearray, value: bytes, depth: int) -> None:
        if len(value) != width:
            raise LocalError(f"decimal{width * 8} has {width} bytes, not {len(value)}")
        out += value

    return write


def _constructor_writer(code: int, write_element: Writer) -> Writer:
    def write(out: bytearray, value: Any, depth: int) -> None:
        out.append(code)
        write_element(out, value, depth)

    return write


# --- variable width --------------------------------------------------------------------------


def write_binary(out: bytearray, value: bytes, depth: int = 0) -> None:
    _append_variable(out, value, t.BINARY_8, t.BINARY_32)


def write_string(out: bytearray, value: str, depth: int = 0) -> None:
    _append_variable(out, _to_utf8(value), t.STRING_8, t.STRING_32)


def write_symbol(out: bytearray, value: str, depth: int = 0) -> None:
    _append_variable(out, _to_ascii(value), t.SYMBOL_8, t.SYMBOL_32)


def _write_raw(out: bytearray, value: t.Raw, depth: int) -> None:
    if not value:
        raise LocalError("Raw holds no bytes; it must hold one encoded value")
    out += value


def _append_variable(out: bytearray, chunk: bytes, code_8: int, code_32: int) -> None:
    length = len(chunk)
    if length < 0x100:
        out.append(code_8)
        out.append(length)
    else:
        out += _pack_code_u32(code_32, length)
    out += chunk


def _to_utf8(value: str) -> bytes:
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise LocalError("string holds a lone surrogate; AMQP strings are UTF-8") from None


def _to_ascii(value: str) -> bytes:
    try:
        return value.encode("ascii")
    except UnicodeEncodeError:
        raise LocalError("symbol holds a character outside ASCII") from None


def _identity_bytes(value: bytes) -> bytes:
    return value


def _variable_writer(width: int, to_bytes: Callable[[Any], bytes]) -> Writer:
    def write(out: bytearray, value: Any, depth: int) -> None:
        chunk = to_bytes(value)
        _append_length(out, len(chunk), width)
        out += chunk

    return write


def _append_length(out: bytearray, length: int, width: int) -> None:
    if length >> (8 * width):
        raise LocalError(f"{length} does not fit an array element's {width}-byte length")
    out += length.to_bytes(width, "big")


# --- compounds -------------------------------------------------------------------------------


def _write_list(out: bytearray, value: list[object], depth: int) -> None:
    if not value:
        out.append(t.LIST_0)
        return
    start = open_compound(out, t.LIST_8)
    _append_all(out, value, depth)
    close_compound(out, start, len(value))


def _write_map(out: bytearray, value: dict[object, object], depth: int) -> None:
    start = open_compound(out, t.MAP_8)
    _append_pairs(out, value, depth)
    close_compound(out, start, 2 * len(value))


def _write_array(out: bytearray, value: t.Array, depth: int) -> None:
    start = open_compound(out, t.ARRAY_8)
    _append_elements(out, value, depth)
    close_compound(out, start, len(value))


def open_compound(out: bytearray, code: int) -> int:
    """Append the narrow header (code, size, count); `close_compound` fills in size and count.

    Returns the position that `close_compound` needs.
    """
    start = len(out)
    out.append(code)
    out += b"\x00\x00"
    return start


def close_compound(out: bytearray, start: int, count: int) -> None:
    """Fill in the header at `start`; widen it in place if size or count exceed 8 bits."""
    size = len(out) - start - 2  # the count and what follows it
    if size < 0x100 and count < 0x100:
        out[start + 1] = size
        out[start + 2] = count
        return
    # C0 -> D0, C1 -> D1, E0 -> F0: the wide code is always the narrow one plus 0x10.
    out[start : start + 3] = _pack_compound_32(out[start] + 0x10, size + 3, count)


def _append_all(out: bytearray, values: Iterable[object], depth: int) -> None:
    deeper = _enter(depth)
    for value in values:
        write_value(out, value, deeper)


def _append_pairs(out: bytearray, pairs: dict[object, object], depth: int) -> None:
    deeper = _enter(depth)
    for key, value in pairs.items():
        write_value(out, key, deeper)
        write_value(out, value, deeper)


def _enter(depth: int) -> int:
    if depth >= ENCODE_DEPTH_MAX:
        raise LocalError(f"value is nested deeper than {ENCODE_DEPTH_MAX}, or contains itself")
    return depth + 1


def _write_described(out: bytearray, value: t.Described, depth: int) -> None:
    deeper = _enter(depth)
    _append_descriptor(out, value.descriptor, deeper)
    write_value(out, value.value, deeper)


def _append_descriptor(out: bytearray, descriptor: object, depth: int) -> None:
    out.append(t.DESCRIBED)
    if type(descriptor) is int:
        write_ulong(out, descriptor)
    elif type(descriptor) is str:
        write_symbol(out, descriptor)
    else:
        write_value(out, descriptor, depth)


# --- arrays ----------------------------------------------------------------------------------


def _append_elements(out: bytearray, array: t.Array, depth: int) -> None:
    code = _choose_code(array) if array.code is None else array.code
    write = _ELEMENT_WRITERS.get(code)
    if write is None:
        raise LocalError(f"array: {code:#04x} is no constructor code")
    deeper = _enter(depth)
    for descriptor in array.descriptors:
        _append_descriptor(out, descriptor, deeper)
    out.append(code)
    for element in array:
        try:
            write(out, element, deeper)
        except (AttributeError, TypeError, struct.error):
            raise LocalError(
                f"array of {code:#04x} cannot hold a {type(element).__name__}"
            ) from None


def _choose_code(array: t.Array) -> int:
    if not array:
        raise LocalError("an empty array needs the code of its elements")
    kind = type(array[0])
    if any(type(element) is not kind for element in array):
        raise LocalError("the elements of an array must all have one type")
    if kind is t.Symbol:
        fits = all(len(symbol) < 0x100 for symbol in array if isinstance(symbol, str))
        return t.SYMBOL_8 if fits else t.SYMBOL_32
    code = _ARRAY_CODES.get(kind)
    if code is None:
        raise LocalError(f"array elements cannot be {kind.__name__}")
    return code


def _zero_width_writer(expected: object) -> Writer:
    def write(out: bytearray, value: object, depth: int) -> None:
        if value != expected:
            raise LocalError(f"array element must be {expected!r} for its zero-width constructor")

    return write


def _compound_writer(
    width: int,
    kind: type[list[Any] | dict[Any, Any]],
    append: Callable[[bytearray, Any, int], None],
) -> Writer:
    """Writes an array element that is a compound: size, count and contents, no constructor."""

    def write(out: bytearray, value: Any, depth: int) -> None:
        if not isinstance(value, kind):
            raise TypeError
        contents = bytearray()
        append(contents, value, depth)
        count = 2 * len(value) if isinstance(value, dict) else len(value)
        _append_length(out, width + len(contents), width)
        _append_length(out, count, width)
        out += contents

    return write


_ELEMENT_WRITERS: Final[dict[int, Writer]] = {
    t.NULL: _zero_width_writer(None),
    t.TRUE: _zero_width_writer(True),
    t.FALSE: _zero_width_writer(False),
    t.UINT_0: _zero_width_writer(0),
    t.ULONG_0: _zero_width_writer(0),
    t.LIST_0: _zero_width_writer([]),
    t.UBYTE: _integer_writer("ubyte", 1, signed=False),
    t.BYTE: _integer_writer("byte", 1, signed=True),
    t.SMALL_UINT: _integer_writer("smalluint", 1, signed=False),
    t.SMALL_ULONG: _integer_writer("smallulong", 1, signed=False),
    t.SMALL_INT: _integer_writer("smallint", 1, signed=True),
    t.SMALL_LONG: _integer_writer("smalllong", 1, signed=True),
    t.BOOLEAN: _write_boolean_byte,
    t.USHORT: _integer_writer("ushort", 2, signed=False),
    t.SHORT: _integer_writer("short", 2, signed=True),
    t.UINT: _integer_writer("uint", 4, signed=False),
    t.INT: _integer_writer("int", 4, signed=True),
    t.FLOAT: _write_float,
    t.CHAR: _write_char,
    t.DECIMAL32: _decimal_writer(4),
    t.ULONG: _integer_writer("ulong", 8, signed=False),
    t.LONG: _integer_writer("long", 8, signed=True),
    t.DOUBLE: _write_double,
    t.TIMESTAMP: _integer_writer("timestamp", 8, signed=True),
    t.DECIMAL64: _decimal_writer(8),
    t.DECIMAL128: _decimal_writer(16),
    t.UUID: _write_uuid,
    t.BINARY_8: _variable_writer(1, _identity_bytes),
    t.STRING_8: _variable_writer(1, _to_utf8),
    t.SYMBOL_8: _variable_writer(1, _to_ascii),
    t.BINARY_32: _variable_writer(4, _identity_bytes),
    t.STRING_32: _variable_writer(4, _to_utf8),
    t.SYMBOL_32: _variable_writer(4, _to_ascii),
    t.LIST_8: _compound_writer(1, list, _append_all),
    t.MAP_8: _compound_writer(1, dict, _append_pairs),
    t.LIST_32: _compound_writer(4, list, _append_all),
    t.MAP_32: _compound_writer(4, dict, _append_pairs),
    t.ARRAY_8: _compound_writer(1, t.Array, _append_elements),
    t.ARRAY_32: _compound_writer(4, t.Array, _append_elements),
}

# Types with one constructor only; an array of them uses it too.
_SINGLE: Final[dict[type, int]] = {
    t.Ubyte: t.UBYTE,
    t.Ushort: t.USHORT,
    t.Byte: t.BYTE,
    t.Short: t.SHORT,
    t.Timestamp: t.TIMESTAMP,
    t.Float: t.FLOAT,
    float: t.DOUBLE,
    t.Char: t.CHAR,
    t.Decimal32: t.DECIMAL32,
    t.Decimal64: t.DECIMAL64,
    t.Decimal128: t.DECIMAL128,
    uuid.UUID: t.UUID,
}

# Array elements share one constructor: the one that fits every value. Strings are str32 because
# Azure Event Hubs sends `partition_ids` that way (protocol.md 13), so every client can read it.
_ARRAY_CODES: Final[dict[type, int]] = _SINGLE | {
    type(None): t.NULL,
    bool: t.BOOLEAN,
    t.Uint: t.UINT,
    t.Ulong: t.ULONG,
    t.Int: t.INT,
    t.Long: t.LONG,
    int: t.LONG,
    bytes: t.BINARY_32,
    str: t.STRING_32,
    list: t.LIST_32,
    dict: t.MAP_32,
    t.Array: t.ARRAY_32,
}

_WRITERS: Final[dict[type, Writer]] = {
    kind: _constructor_writer(code, _ELEMENT_WRITERS[code]) for kind, code in _SINGLE.items()
} | {
    type(None): _write_null,
    bool: _write_bool,
    t.Uint: write_uint,
    t.Ulong: write_ulong,
    t.Int: _write_int,
    t.Long: _write_long,
    int: _write_long,
    bytes: write_binary,
    t.Raw: _write_raw,
    str: write_string,
    t.Symbol: write_symbol,
    list: _write_list,
    dict: _write_map,
    t.Array: _write_array,
    t.Described: _write_described,
}
