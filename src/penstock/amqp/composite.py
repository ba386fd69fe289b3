"""Composite types (AMQP 1.4), declared as classes with annotated fields. Derives their codec.

    @composite("amqp:detach:list", 0x16)
    class Detach(Composite, kw_only=True):
        handle: Uint                        # no default: mandatory
        closed: Boolean = False             # null or absent on the wire: the default
        error: ErrorField | None = None

`Uint` is `Annotated[int, UINT]`: an int for Python and mypy, a `FieldCodec` (reader and writer) for
the wire. On the wire a composite is a described list of its fields in the order of declaration:

    00 53 16  c0 <size> 03  <handle> <closed> <error>

Writing follows protocol.md 0.2: descriptors as smallulong (E1), every field written (E2).
Reading accepts everything that AMQP allows: any form of descriptor and list, short lists, any
integer type whose value fits the field.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Annotated, Any, Final, TypeVar, get_args

import msgspec

from penstock.amqp import types as t
from penstock.amqp.decoder import (
    DecodeBudget,
    build_string,
    build_symbol,
    read_value,
    truncated_error,
)
from penstock.amqp.encoder import (
    close_compound,
    open_compound,
    write_binary,
    write_string,
    write_symbol,
    write_uint,
    write_ulong,
    write_value,
)
from penstock.amqp.errors import AmqpDecodeError, LocalError

# (data, pos, end, budget) -> (value, next position). A reader may read bytes after `end` but within
# `data`: its caller compares the position with `end` before it uses the value. IndexError and
# struct.error mean that `data` itself ended.
Reader = Callable[[bytes, int, int, DecodeBudget], tuple[Any, int]]
# Any: a writer gets values of the type that the field's annotation names.
FieldWriter = Callable[[bytearray, Any], None]

_u32_at: Final = struct.Struct(">I").unpack_from
_u64_at: Final = struct.Struct(">Q").unpack_from


class FieldCodec(msgspec.Struct, frozen=True):
    """Reads and writes one type of field. The composite handles null."""

    name: str
    read: Reader
    write: FieldWriter


class CompositeField(msgspec.Struct, frozen=True):
    name: str
    codec: FieldCodec
    mandatory: bool


class CompositeType(msgspec.Struct, frozen=True):
    """What `composite` derived from one class."""

    name: str  # as the specification writes it: "sasl-init"
    symbol: str
    code: int
    cls: type[Composite]
    fields: tuple[CompositeField, ...]
    empty_as_list0: bool
    # The same information, arranged for the two loops that run for every frame.
    head: bytes  # descriptor: 00 53 <code>
    mandatory: tuple[str, ...]
    readers: tuple[tuple[str, Reader], ...]
    writers: tuple[tuple[str, FieldWriter], ...]


class Composite(msgspec.Struct, gc=False):
    """Base of every composite. gc=False is safe because no composite is part of a cycle."""


C = TypeVar("C", bound=Composite)

SPECS: Final[dict[type[Composite], CompositeType]] = {}
# The two forms a descriptor has on the wire: ulong code and symbol.
SPECS_BY_DESCRIPTOR: Final[dict[int | str, CompositeType]] = {}


def composite(
    symbol: str, code: int, *, empty_as_list0: bool = False
) -> Callable[[type[C]], type[C]]:
    """Derive and register the codec of the decorated class.

    `empty_as_list0` is for composites without fields that are not performatives (E3).
    """

    def derive(cls: type[C]) -> type[C]:
        fields = tuple(_build_field(info) for info in msgspec.structs.fields(cls))
        spec = CompositeType(
            name=symbol.removeprefix("amqp:").removesuffix(":list"),
            symbol=symbol,
            code=code,
            cls=cls,
            fields=fields,
            empty_as_list0=empty_as_list0,
            head=bytes((t.DESCRIBED, t.SMALL_ULONG, code)),
            mandatory=tuple(field.name for field in fields if field.mandatory),
            readers=tuple((field.name, field.codec.read) for field in fields),
            writers=tuple((field.name, field.codec.write) for field in fields),
        )
        SPECS[cls] = spec
        SPECS_BY_DESCRIPTOR[code] = SPECS_BY_DESCRIPTOR[symbol] = spec
        return cls

    return derive


def _build_field(info: msgspec.structs.FieldInfo) -> CompositeField:
    codecs = [part for part in _annotation_parts(info.type) if isinstance(part, FieldCodec)]
    if len(codecs) != 1:
        raise TypeError(f"{info.name} needs exactly one FieldCodec")
    return CompositeField(info.name, codecs[0], info.required)


def _annotation_parts(hint: Any) -> list[object]:
    """`Annotated[X, codec] | None` -> [..., codec, ...]"""
    parts: list[object] = []
    for part in get_args(hint):
        parts.append(part)
        parts.extend(getattr(part, "__metadata__", ()))
    return parts


# --- writing ---------------------------------------------------------------------------------


def write_composite(out: bytearray, value: Composite) -> None:
    """Append a composite. Raises LocalError, which names the field, if it cannot be encoded."""
    spec = SPECS[type(value)]
    out += spec.head
    if not spec.fields and spec.empty_as_list0:
        out.append(t.LIST_0)
        return
    start = open_compound(out, t.LIST_8)
    name, field_value = "", None
    try:
        for name, write in spec.writers:
            field_value = getattr(value, name)
            if field_value is None:
                out.append(t.NULL)
            else:
                write(out, field_value)
    except LocalError as error:
        raise LocalError(f"{spec.name}.{name}: {error}") from None
    except (AttributeError, TypeError, struct.error):
        type_name = type(field_value).__name__
        raise LocalError(f"{spec.name}.{name} cannot be a {type_name}") from None
    for name in spec.mandatory:
        if getattr(value, name) is None:
            raise LocalError(f"{spec.name}.{name} is mandatory")
    close_compound(out, start, len(spec.writers))


# --- reading ---------------------------------------------------------------------------------


def read_descriptor(data: bytes, pos: int, end: int) -> tuple[int | str | None, int]:
    """The descriptor of the described value at `pos`; None if it is neither ulong nor symbol."""
    if data[pos] != t.DESCRIBED:
        raise AmqpDecodeError(f"constructor {data[pos]:#04x} where a described list must be")
    code = data[pos + 1]
    if code == t.SMALL_ULONG:
        return data[pos + 2], pos + 3
    if code == t.ULONG:
        return _u64_at(data, pos + 2)[0], pos + 10
    if code == t.SYMBOL_8 or code == t.SYMBOL_32:
        return _read_symbol(data, pos + 1, end, None)
    return None, pos + 1


def read_composite(
    spec: CompositeType, data: bytes, pos: int, end: int, budget: DecodeBudget
) -> tuple[Composite, int]:
    """The composite of type `spec` whose list begins at `pos`, and the position after it.

    `pos` is after the descriptor. Raises AmqpDecodeError, which names the field.
    """
    pos, stop, count = _read_list_header(data, pos, end)
    if count > len(spec.fields):
        raise AmqpDecodeError(f"{spec.name} has {len(spec.fields)} fields, {count} came")
    values: dict[str, Any] = {}
    name = spec.name
    try:
        for name, read in spec.readers[:count]:
            if data[pos] == t.NULL:
                pos += 1
            else:
                values[name], pos = read(data, pos, stop, budget)
    except AmqpDecodeError as error:
        raise AmqpDecodeError(f"{spec.name}.{name}: {error}") from None
    except (IndexError, struct.error):
        raise AmqpDecodeError(f"{spec.name}.{name}: cut short") from None
    if pos != stop:
        raise AmqpDecodeError(f"{spec.name} ends at position {stop}, its fields at {pos}")
    for name in spec.mandatory:
        if name not in values:
            raise AmqpDecodeError(f"{spec.name}.{name} is mandatory and absent")
    return spec.cls(**values), stop


def _read_list_header(data: bytes, pos: int, end: int) -> tuple[int, int, int]:
    """(first element, end of the list, count) of the list at `pos`."""
    code = data[pos]
    if code == t.LIST_8:
        start, stop, count = pos + 3, pos + 2 + data[pos + 1], data[pos + 2]
    elif code == t.LIST_32:
        start, stop = pos + 9, pos + 5 + _u32_at(data, pos + 1)[0]
        count = _u32_at(data, pos + 5)[0]
    elif code == t.LIST_0:
        start, stop, count = pos + 1, pos + 1, 0
    else:
        raise AmqpDecodeError(f"constructor {code:#04x} where a list must be")
    if stop > end:
        raise AmqpDecodeError(f"list declares to end at position {stop}, the data ends at {end}")
    if start > stop:
        raise AmqpDecodeError(f"list at position {pos} is too short for its count")
    return start, stop, count


# --- codecs: integers ------------------------------------------------------------------------

# Clients choose different integer types, so a field accepts all of them: (width, signed).
_INTEGERS: Final[dict[int, tuple[int, bool]]] = {
    t.UINT_0: (0, False),
    t.ULONG_0: (0, False),
    t.UBYTE: (1, False),
    t.SMALL_UINT: (1, False),
    t.SMALL_ULONG: (1, False),
    t.BYTE: (1, True),
    t.SMALL_INT: (1, True),
    t.SMALL_LONG: (1, True),
    t.USHORT: (2, False),
    t.SHORT: (2, True),
    t.UINT: (4, False),
    t.INT: (4, True),
    t.ULONG: (8, False),
    t.LONG: (8, True),
}


def _read_integer(data: bytes, pos: int, name: str, maximum: int) -> tuple[int, int]:
    form = _INTEGERS.get(data[pos])
    if form is None:
        raise _wrong_type_error(data, pos, name)
    start, stop = pos + 1, pos + 1 + form[0]
    if stop > len(data):
        raise truncated_error(pos)
    value = int.from_bytes(data[start:stop], "big", signed=form[1])
    if not 0 <= value <= maximum:
        raise AmqpDecodeError(f"{value} does not fit {name}")
    return value, stop


def _read_uint(data: bytes, pos: int, end: int, budget: DecodeBudget) -> tuple[int, int]:
    code = data[pos]
    if code == t.SMALL_UINT:
        return data[pos + 1], pos + 2
    if code == t.UINT_0:
        return 0, pos + 1
    if code == t.UINT:
        return _u32_at(data, pos + 1)[0], pos + 5
    return _read_integer(data, pos, "uint", 0xFFFFFFFF)


def _integer_reader(name: str, maximum: int) -> Reader:
    def read(data: bytes, pos: int, end: int, budget: DecodeBudget) -> tuple[int, int]:
        return _read_integer(data, pos, name, maximum)

    return read


def _fixed_writer(code: int, name: str, width: int) -> FieldWriter:
    def write(out: bytearray, value: int) -> None:
        if not 0 <= value < 1 << (8 * width):
            raise LocalError(f"value does not fit {name}")
        out.append(code)
        out += value.to_bytes(width, "big")

    return write


# --- codecs: the other scalars ---------------------------------------------------------------


def _read_boolean(data: bytes, pos: int, end: int, budget: DecodeBudget) -> tuple[bool, int]:
    code = data[pos]
    if code == t.TRUE:
        return True, pos + 1
    if code == t.FALSE:
        return False, pos + 1
    if code == t.BOOLEAN and data[pos + 1] <= 1:
        return data[pos + 1] == 1, pos + 2
    raise _wrong_type_error(data, pos, "boolean")


def _write_boolean(out: bytearray, value: bool) -> None:
    if value is True:
        out.append(t.TRUE)
    elif value is False:
        out.append(t.FALSE)
    else:
        raise TypeError


def _read_timestamp(data: bytes, pos: int, end: int, budget: DecodeBudget) -> tuple[int, int]:
    if data[pos] != t.TIMESTAMP:
        raise _wrong_type_error(data, pos, "timestamp")
    stop = pos + 9
    return int.from_bytes(data[pos + 1 : stop], "big", signed=True), stop


def _write_timestamp(out: bytearray, value: int) -> None:
    if not isinstance(value, int):
        raise TypeError
    write_value(out, t.Timestamp(value), 0)


def _read_chunk(
    data: bytes, pos: int, end: int, code_8: int, code_32: int, name: str
) -> tuple[bytes, int]:
    """The contents of a variable-width value."""
    code = data[pos]
    if code == code_8:
        start = pos + 2
        stop = start + data[pos + 1]
    elif code == code_32:
        start = pos + 5
        stop = start + _u32_at(data, pos + 1)[0]
    else:
        raise _wrong_type_error(data, pos, name)
    if stop > end:
        raise truncated_error(pos)
    return data[start:stop], stop


def _read_binary(data: bytes, pos: int, end: int, budget: DecodeBudget) -> tuple[bytes, int]:
    return _read_chunk(data, pos, end, t.BINARY_8, t.BINARY_32, "binary")


def _read_string(data: bytes, pos: int, end: int, budget: DecodeBudget) -> tuple[str, int]:
    chunk, pos = _read_chunk(data, pos, end, t.STRING_8, t.STRING_32, "string")
    return build_string(chunk), pos


def _read_symbol(data: bytes, pos: int, end: int, budget: DecodeBudget | None) -> tuple[str, int]:
    chunk, pos = _read_chunk(data, pos, end, t.SYMBOL_8, t.SYMBOL_32, "symbol")
    return build_symbol(chunk), pos


def _wrong_type_error(data: bytes, pos: int, name: str) -> AmqpDecodeError:
    return AmqpDecodeError(f"constructor {data[pos]:#04x} where {name} must be")


# --- codecs: symbols, maps, anything ---------------------------------------------------------


def _read_symbols(data: bytes, pos: int, end: int, budget: DecodeBudget) -> tuple[list[str], int]:
    """A `multiple` field (AMQP 1.4): one symbol or an array. A list is tolerated."""
    value, pos = read_value(data, pos, end, budget)
    values = value if isinstance(value, list) else [value]
    if any(type(symbol) is not t.Symbol for symbol in values):
        raise AmqpDecodeError("another type where symbols must be")
    return [str(symbol) for symbol in values], pos


def _write_symbols(out: bytearray, value: list[str]) -> None:
    if isinstance(value, str):
        raise TypeError  # a str is an iterable of str too
    if not value:
        out.append(t.NULL)  # AMQP 1.4: null and an empty array mean the same
        return
    write_value(out, t.Array([_as_symbol(text) for text in value]), 0)


def _read_map(
    data: bytes, pos: int, end: int, budget: DecodeBudget
) -> tuple[dict[Any, object], int]:
    if data[pos] != t.MAP_8 and data[pos] != t.MAP_32:
        raise _wrong_type_error(data, pos, "map")
    value, pos = read_value(data, pos, end, budget)
    assert isinstance(value, dict)
    return value, pos


def _write_map(out: bytearray, value: dict[object, object]) -> None:
    if not isinstance(value, dict):
        raise TypeError
    write_value(out, value, 0)


def _read_symbol_map(
    data: bytes, pos: int, end: int, budget: DecodeBudget
) -> tuple[dict[str, object], int]:
    value, pos = _read_map(data, pos, end, budget)
    if not all(isinstance(key, str) for key in value):
        raise AmqpDecodeError("map key that is not a symbol")
    return value, pos


def _write_symbol_map(out: bytearray, value: dict[str, object]) -> None:
    _write_map(out, {_as_symbol(key): item for key, item in value.items()})


def _as_symbol(text: str) -> t.Symbol:
    if not isinstance(text, str):
        raise TypeError
    return t.Symbol(text)


def choice_codec(*classes: type[Composite], name: str, or_described: bool = False) -> FieldCodec:
    """Codec of a field that holds one of these composites, or any described value if
    `or_described`."""
    allowed = {SPECS[cls].code for cls in classes}

    def read(data: bytes, pos: int, end: int, budget: DecodeBudget) -> tuple[object, int]:
        descriptor, start = read_descriptor(data, pos, end)
        spec = None if descriptor is None else SPECS_BY_DESCRIPTOR.get(descriptor)
        if spec is not None and spec.code in allowed:
            return read_composite(spec, data, start, end, budget)
        if or_described:
            return read_value(data, pos, end, budget)
        raise AmqpDecodeError(f"another described type where {name} must be")

    def write(out: bytearray, value: object) -> None:
        if isinstance(value, classes):
            write_composite(out, value)
        elif or_described and isinstance(value, t.Described):
            write_value(out, value, 0)
        else:
            raise TypeError

    return FieldCodec(name, read, write)


# --- codecs by name, and the annotations that use them ---------------------------------------

UBYTE: Final = FieldCodec(
    "ubyte", _integer_reader("ubyte", 0xFF), _fixed_writer(t.UBYTE, "ubyte", 1)
)
USHORT: Final = FieldCodec(
    "ushort", _integer_reader("ushort", 0xFFFF), _fixed_writer(t.USHORT, "ushort", 2)
)
UINT: Final = FieldCodec("uint", _read_uint, write_uint)
ULONG: Final = FieldCodec("ulong", _integer_reader("ulong", 0xFFFF_FFFF_FFFF_FFFF), write_ulong)
BOOLEAN: Final = FieldCodec("boolean", _read_boolean, _write_boolean)
TIMESTAMP: Final = FieldCodec("timestamp", _read_timestamp, _write_timestamp)
BINARY: Final = FieldCodec("binary", _read_binary, write_binary)
STRING: Final = FieldCodec("string", _read_string, write_string)
SYMBOL: Final = FieldCodec("symbol", _read_symbol, write_symbol)
SYMBOLS: Final = FieldCodec("symbols", _read_symbols, _write_symbols)
MAP: Final = FieldCodec("map", _read_map, _write_map)
SYMBOL_MAP: Final = FieldCodec("map with symbol keys", _read_symbol_map, _write_symbol_map)

Ubyte = Annotated[int, UBYTE]
Ushort = Annotated[int, USHORT]
Uint = Annotated[int, UINT]
Ulong = Annotated[int, ULONG]
Boolean = Annotated[bool, BOOLEAN]
Timestamp = Annotated[int, TIMESTAMP]
Binary = Annotated[bytes, BINARY]
String = Annotated[str, STRING]
SymbolText = Annotated[str, SYMBOL]
Symbols = Annotated[list[str], SYMBOLS]
Map = Annotated[dict[object, object], MAP]
SymbolMap = Annotated[dict[str, object], SYMBOL_MAP]
