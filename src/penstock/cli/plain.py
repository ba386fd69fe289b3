"""AMQP values as JSON, both ways.

JSON has null, booleans, numbers and text: for AMQP's null, boolean, long, double and string they
stand as they are. Every other type says its name: {"$type": "uint", "value": 7}. Decimals, arrays
and described values are base64; they also have `text`, for people, which is ignored on reading.
"""

from __future__ import annotations

import base64
import binascii
import math
import uuid
from collections.abc import Callable
from typing import Any

from penstock.amqp import types as t
from penstock.amqp.decoder import DEFAULT, DecodeBudget, read_value
from penstock.amqp.encoder import encode
from penstock.amqp.errors import AmqpDecodeError, LocalError
from penstock.cli.sections import InvalidEvent
from penstock.client.values import display_value

_LONG = range(-(2**63), 2**63)
_DEPTH_MAX = 32
_INTEGERS: dict[type, str] = {
    t.Ubyte: "ubyte",
    t.Ushort: "ushort",
    t.Uint: "uint",
    t.Ulong: "ulong",
    t.Byte: "byte",
    t.Short: "short",
    t.Int: "int",
    t.Timestamp: "timestamp",
}
_TEXTS: dict[type, str] = {t.Char: "char", t.Symbol: "symbol"}
_BYTES: dict[type, str] = {
    bytes: "binary",
    t.Decimal32: "decimal32",
    t.Decimal64: "decimal64",
    t.Decimal128: "decimal128",
}
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def to_json_value(value: object) -> object:
    """What JSON writes for an AMQP value."""
    kind = type(value)
    if value is None or kind in (str, bool, int):
        return value
    if isinstance(value, float):
        return _plain_float(value, kind)
    if kind is t.Long:
        return int(value)  # type: ignore[call-overload]  # a Long is one
    if kind in _INTEGERS:
        return _typed_json(_INTEGERS[kind], int(value))  # type: ignore[call-overload]  # these are
    if kind in _TEXTS:
        return _typed_json(_TEXTS[kind], str(value))
    if isinstance(value, bytes):
        typed = _typed_json(_BYTES[kind], base64.b64encode(value).decode())
        return typed if kind is bytes else typed | {"text": display_value(value)}
    if isinstance(value, uuid.UUID):
        return _typed_json("uuid", str(value))
    if kind is list:
        assert isinstance(value, list)
        return _typed_json("list", [to_json_value(each) for each in value])
    if isinstance(value, dict):
        return _typed_json(
            "map", [[to_json_value(name), to_json_value(each)] for name, each in value.items()]
        )
    # Arrays and described values: rare, and only their bytes say all of it.
    typed = _typed_json("amqp", base64.b64encode(encode(value)).decode())
    return typed | {"text": display_value(value)}


def from_json_value(value: object, depth: int = 0) -> object:
    """The AMQP value again. Raises BadEvent."""
    if value is None or isinstance(value, bool | str | float):
        return value
    if isinstance(value, int):
        if int(value) not in _LONG:
            raise InvalidEvent(f"{value} is no AMQP long: say which type it has.")
        return value
    if depth > _DEPTH_MAX:
        raise InvalidEvent(f"A value is nested deeper than {_DEPTH_MAX}.")
    if not isinstance(value, dict) or value.keys() - {"text"} != {"$type", "value"}:
        raise InvalidEvent(f'{_short(value)} is no value: write {{"$type": …, "value": …}}.')
    name, inner = value["$type"], value["value"]
    read = _READERS.get(name) if isinstance(name, str) else None
    if read is None:
        raise InvalidEvent(f"{_short(name)} is no AMQP type.")
    try:
        return read(inner, depth + 1)
    except (ValueError, TypeError, AttributeError, OverflowError):
        raise InvalidEvent(f"{_short(inner)} is no {name}.") from None


def _typed_json(name: str, value: object) -> dict[str, object]:
    return {"$type": name, "value": value}


def _plain_float(value: float, kind: type) -> object:
    shown: object = float(value)
    if not math.isfinite(value):
        shown = next(name for name, each in _NOT_FINITE.items() if repr(each) == repr(float(value)))
    if kind is t.Float:
        return _typed_json("float", shown)
    return shown if math.isfinite(value) else _typed_json("double", shown)


def _number_reader(kind: type, width: int, *, signed: bool) -> Callable[[Any, int], object]:
    def read(value: Any, depth: int) -> object:
        if type(value) is not int:
            raise TypeError
        value.to_bytes(width, "big", signed=signed)  # in range, or OverflowError
        return kind(value)

    return read


def _real(kind: type) -> Callable[[Any, int], object]:
    def read(value: Any, depth: int) -> object:
        if isinstance(value, str):
            if value not in _NOT_FINITE:
                raise ValueError
            value = _NOT_FINITE[value]
        if isinstance(value, bool):
            raise TypeError
        return kind(value)

    return read


def _text_reader(kind: type) -> Callable[[Any, int], object]:
    def read(value: Any, depth: int) -> object:
        if not isinstance(value, str):
            raise TypeError
        return kind(value)

    return read


def _binary(kind: type) -> Callable[[Any, int], object]:
    def read(value: Any, depth: int) -> object:
        return kind(decode_base64(value))

    return read


def _list(value: Any, depth: int) -> object:
    if not isinstance(value, list):
        raise TypeError
    return [from_json_value(each, depth) for each in value]


def _read_json_map(value: Any, depth: int) -> object:
    return {from_json_value(name, depth): from_json_value(each, depth) for name, each in value}


def _uuid(value: Any, depth: int) -> object:
    return uuid.UUID(value)


def _decode_raw_value(value: Any, depth: int) -> object:
    data = decode_base64(value)
    try:
        found, stop = read_value(data, 0, len(data), DecodeBudget(DEFAULT))
        encode(found)
    except (AmqpDecodeError, LocalError):
        raise ValueError from None
    if stop != len(data):
        raise ValueError
    return found


def decode_base64(text: object) -> bytes:
    if not isinstance(text, str):
        raise TypeError
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ValueError from None


_READERS: dict[str, Callable[[Any, int], object]] = {
    "ubyte": _number_reader(t.Ubyte, 1, signed=False),
    "ushort": _number_reader(t.Ushort, 2, signed=False),
    "uint": _number_reader(t.Uint, 4, signed=False),
    "ulong": _number_reader(t.Ulong, 8, signed=False),
    "byte": _number_reader(t.Byte, 1, signed=True),
    "short": _number_reader(t.Short, 2, signed=True),
    "int": _number_reader(t.Int, 4, signed=True),
    "timestamp": _number_reader(t.Timestamp, 8, signed=True),
    "float": _real(t.Float),
    "double": _real(float),
    "char": _text_reader(t.Char),
    "symbol": _text_reader(t.Symbol),
    **{name: _binary(kind) for kind, name in _BYTES.items()},
    "uuid": _uuid,
    "list": _list,
    "map": _read_json_map,
    "amqp": _decode_raw_value,
}


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
