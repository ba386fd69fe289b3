"""AMQP values as text, as JSON and in the Avro union of Event Hubs Capture.

Two JSON forms exist. The plain form is for people and for Spark columns: arrays and objects for
lists, arrays and maps, numbers for integers of every width and for floats, text for symbols,
characters, UUIDs, decimals and times (ISO 8601, UTC); binary is base64. The described types of .NET
(DateTimeOffset, TimeSpan, Uri) are text; any other described value is the value that it describes.
Functions that write the plain form never raise: an unusual property must not stop a pipeline.

The typed form keeps every type, so that an event can be published again: null, booleans, longs,
doubles and strings are JSON's own; any other value is {"$type": "uint", "value": 7}. Decimals,
arrays and described values are base64; their `text` is for people and is ignored when it is read.
"""

from __future__ import annotations

import base64
import json
import math
import struct
import uuid
from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from penstock.amqp import types as t
from penstock.amqp.decoder import DEFAULT, DecodeBudget, decode, read_value
from penstock.amqp.encoder import encode
from penstock.amqp.errors import AmqpDecodeError, LocalError
from penstock.amqp.message import SequenceBody, ValueBody, decode_message
from penstock.formats.quantities import EPOCH, MILLISECOND
from penstock.kernels import encode_avro_bytes, encode_avro_long
from penstock.model.errors import PenstockError

AvroValue = int | float | str | bytes
_LONG = range(-(2**63), 2**63)
_DEPTH_MAX = 32
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class InvalidEvent(PenstockError):
    """A file or a service provided something that is not an event."""


def json_text(encoded: bytes) -> str:
    """The value's JSON text.

    >>> json_text(bytes.fromhex("c0 05 02 54 01 a1 00")), json_text(bytes.fromhex("a0 01 ff"))
    ('[1,""]', '"/w=="')
    """
    return encode_json(_decode_value(encoded))


def plain_text(encoded: bytes) -> str:
    """The value as text without the quotes of JSON. Binary that is UTF-8 is decoded.

    >>> plain_text(bytes.fromhex("a0 02 68 69")), plain_text(bytes.fromhex("83 0000000000000001"))
    ('hi', '1970-01-01T00:00:00.001Z')
    """
    return display_value(_decode_value(encoded))


def display_value(value: object) -> str:
    """Like `plain_text`, for a decoded value.

    >>> display_value(t.Described("com.microsoft:timespan", 15_000_000)), display_value([1, "a"])
    ('00:00:01.5000000', '[1,"a"]')
    """
    if type(value) is bytes:
        try:
            return value.decode()
        except UnicodeDecodeError:
            return _base64(value)
    plain = _to_plain_value(value)
    return plain if isinstance(plain, str) else _dumps(plain)


def display_body(body: bytes, body_type: str) -> bytes:
    """The bytes of a body that people read and filters look into.

    `body_type` is "data", "value", "sequence" or "none". Data is returned as it is; `body` is
    otherwise the encoded sections: of a value its text, or the bytes of a binary value; of
    sequences one JSON array. Sections that cannot be decoded are returned as they are.
    """
    if body_type == "data":
        return body
    try:
        value = decode_body(body)
    except AmqpDecodeError:
        return body
    if type(value) is bytes:
        return value
    return b"" if value is None else display_value(value).encode()


def decode_body(sections: bytes) -> object:
    """The value of an encoded body that is not data: of sequences one list, None if there is no
    body. Raises AmqpDecodeError."""
    body = decode_message(sections).body
    if isinstance(body, SequenceBody):
        return [element for section in body.lists for element in section]
    return body.value if isinstance(body, ValueBody) else None


def to_readable(value: object) -> object:
    """Decimals as `Decimal`, and .NET's DateTimeOffset, TimeSpan and Uri as text; any other value
    is returned unchanged."""
    if isinstance(value, t.Decimal32 | t.Decimal64 | t.Decimal128):
        return _parse_decimal(value)
    if isinstance(value, t.Described) and isinstance(value.descriptor, str):
        convert = _DOTNET_TYPES.get(value.descriptor)
        text = None if convert is None else convert(value.value)
        return value if text is None else text
    return value


def avro_value(encoded: bytes) -> bytes:
    """The encoded Avro union [long, double, string, bytes] of an encoded AMQP value.

    Values of other types become text.

    >>> avro_value(bytes.fromhex("83 0000000000000001")), avro_value(bytes.fromhex("56 01"))
    (b'\\x00\\x02', b'\\x04\\x08true')
    """
    return encode_avro_union(to_avro_union(_decode_value(encoded)))


def encode_avro_union(value: AvroValue) -> bytes:
    """The branch number and the value."""
    if isinstance(value, int):
        return b"\x00" + encode_avro_long(value)
    if isinstance(value, float):
        return b"\x02" + struct.pack("<d", value)
    if isinstance(value, str):
        return b"\x04" + encode_avro_bytes(value.encode())
    return b"\x06" + encode_avro_bytes(value)


def to_avro_union(value: object) -> AvroValue:
    """The value of the union that represents a decoded AMQP value."""
    if isinstance(value, t.Described):
        value = to_readable(value)
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        plain = int(value)  # `in` a range is slow for a subclass of int
        return plain if plain in _LONG else str(plain)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bytes):
        return bytes(value)
    if isinstance(value, uuid.UUID):
        return str(value)
    return encode_json(value)


def encode_json(value: object) -> str:
    """The JSON text of a decoded AMQP value."""
    return _dumps(_to_plain_value(value))


def _decode_value(encoded: bytes) -> object:
    try:
        value, stop = decode(encoded)
    except AmqpDecodeError:
        return encoded  # such as a map whose keys are lists
    return value if stop == len(encoded) else encoded


def _dumps(plain: object) -> str:
    return json.dumps(plain, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _to_plain_value(value: object) -> object:
    """The plain form of a decoded value."""
    value = to_readable(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, t.Timestamp):
        return _format_timestamp(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return _to_plain_float(value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bytes):
        return _base64(value)
    if isinstance(value, t.Described):
        return _to_plain_value(value.value)
    if isinstance(value, dict):
        return {_key_text(key): _to_plain_value(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_to_plain_value(element) for element in value]
    return str(value)  # a uuid or a Decimal


def _key_text(key: object) -> str:
    plain = _to_plain_value(key)
    return plain if isinstance(plain, str) else _dumps(plain)


def _format_not_finite(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _to_plain_float(value: float) -> object:
    """A float of 32 bits is written in the fewest digits: 0.1 and not 0.10000000149011612."""
    if not math.isfinite(value):
        return _format_not_finite(value)
    if isinstance(value, t.Float):
        for digits in range(6, 10):
            short = float(f"{value:.{digits}g}")
            if abs(short) <= _FLOAT_MAX and struct.pack(">f", short) == struct.pack(">f", value):
                return short
    return float(value)


_FLOAT_MAX = struct.unpack(">f", b"\x7f\x7f\xff\xff")[0]


def _format_timestamp(milliseconds: int) -> object:
    try:
        time = EPOCH + int(milliseconds) * MILLISECOND
    except OverflowError:
        return int(milliseconds)  # outside of the calendar
    return time.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


# Bits of the exponent, bits of the coefficient and bias of IEEE 754-2008 decimals, by their bytes.
_DECIMALS = {4: (8, 23, 101), 8: (10, 53, 398), 16: (14, 113, 6176)}
_DIGITS = {4: 7, 8: 16, 16: 34}
# .NET's client shifts the exponent of a decimal128 by nine bits instead of seven: bits 7 and 8,
# which are 0 for every scale of a .NET decimal (0 to 28), are missing. Read as IEEE 754 its
# exponents are these, which mean numbers below 1e-4500.
_DOTNET_EXPONENTS = range(0x0604, 0x0621)
_DOTNET_SHIFT = 0x1800 - 0x0600


def _parse_decimal(encoded: bytes) -> Decimal:
    """The number of an IEEE 754-2008 decimal in its binary integer encoding (AMQP 1.6.13)."""
    exponent_bits, coefficient_bits, bias = _DECIMALS[len(encoded)]
    bits = int.from_bytes(encoded, "big")
    sign = bits >> (8 * len(encoded) - 1)
    special = encoded[0] & 0x7C
    if special == 0x7C:
        return Decimal("NaN")
    if special == 0x78:
        return Decimal("-Infinity" if sign else "Infinity")
    if encoded[0] & 0x60 == 0x60:  # the coefficient begins with the implied bits 100
        coefficient_bits -= 2
        coefficient = 1 << (coefficient_bits + 2) | bits & ((1 << coefficient_bits) - 1)
    else:
        coefficient = bits & ((1 << coefficient_bits) - 1)
    exponent = bits >> coefficient_bits & ((1 << exponent_bits) - 1)
    if len(encoded) == 16 and exponent in _DOTNET_EXPONENTS:
        exponent += _DOTNET_SHIFT
    if coefficient >= 10 ** _DIGITS[len(encoded)]:
        coefficient = 0  # not canonical: IEEE 754-2008 reads it as zero
    return Decimal((sign, tuple(map(int, str(coefficient))), exponent - bias))


_TICKS = 10_000_000  # .NET ticks in a second
_YEAR_1 = datetime(1, 1, 1)  # noqa: DTZ001  # ticks have no zone; the text says UTC


def _format_datetime_offset(ticks: object) -> str | None:
    """2026-11-17T08:15:00.1234567Z"""
    if not isinstance(ticks, int) or ticks < 0:
        return None
    seconds, fraction = divmod(int(ticks), _TICKS)
    try:
        time = _YEAR_1 + timedelta(seconds=seconds)
    except OverflowError:
        return None  # after the year 9999
    return f"{time.isoformat()}.{fraction:07}Z"


def _format_timespan(ticks: object) -> str | None:
    """In the form of .NET: 1.02:03:04.5000000 is one day, two hours, three minutes, 4.5 s."""
    if not isinstance(ticks, int):
        return None
    seconds, fraction = divmod(abs(int(ticks)), _TICKS)
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    sign = "-" if ticks < 0 else ""
    day = f"{days}." if days else ""
    fraction_text = f".{fraction:07}" if fraction else ""
    return f"{sign}{day}{hour:02}:{minute:02}:{second:02}{fraction_text}"


def _format_uri(text: object) -> str | None:
    return str(text) if isinstance(text, str) else None


_DOTNET_TYPES: dict[str, Callable[[object], str | None]] = {
    "com.microsoft:datetime-offset": _format_datetime_offset,
    "com.microsoft:timespan": _format_timespan,
    "com.microsoft:uri": _format_uri,
}


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


# --- typed JSON -----------------------------------------------------------------------------------

_INTEGERS: dict[str, tuple[type, int, bool]] = {  # the type, its bytes, whether it is signed
    "ubyte": (t.Ubyte, 1, False),
    "ushort": (t.Ushort, 2, False),
    "uint": (t.Uint, 4, False),
    "ulong": (t.Ulong, 8, False),
    "byte": (t.Byte, 1, True),
    "short": (t.Short, 2, True),
    "int": (t.Int, 4, True),
    "timestamp": (t.Timestamp, 8, True),
}
_TEXTS: dict[str, type] = {"char": t.Char, "symbol": t.Symbol}
_BYTES: dict[str, type] = {
    "binary": bytes,
    "decimal32": t.Decimal32,
    "decimal64": t.Decimal64,
    "decimal128": t.Decimal128,
}
_TYPE_NAMES: dict[type, str] = {
    **{kind: name for name, (kind, _, _) in _INTEGERS.items()},
    **{kind: name for name, kind in (_TEXTS | _BYTES).items()},
    t.Float: "float",
    float: "double",
    uuid.UUID: "uuid",
    list: "list",
    dict: "map",
}


def to_json_value(value: object) -> object:
    """The typed JSON form of a decoded AMQP value."""
    kind = type(value)
    if value is None or kind in (str, bool, int):
        return value
    if kind is t.Long:
        return int(value)  # type: ignore[call-overload]  # a Long is one
    name = _TYPE_NAMES.get(kind, "amqp")
    content: Any = value
    if name in _INTEGERS:
        content = int(content)
    elif name in _TEXTS or name == "uuid":
        content = str(content)
    elif name in _BYTES:
        content = _base64(content)
    elif name in ("float", "double"):
        content = float(content)
        if not math.isfinite(content):
            content = _format_not_finite(content)
        elif name == "double":
            return content
    elif name == "list":
        content = [to_json_value(element) for element in content]
    elif name == "map":
        content = [[to_json_value(key), to_json_value(item)] for key, item in content.items()]
    else:  # an array or a described value: only its encoding keeps all of it
        content = _base64(encode(value))
    typed = {"$type": name, "value": content}
    has_text = name == "amqp" or name.startswith("decimal")
    return typed | {"text": display_value(value)} if has_text else typed


def from_json_value(value: object, depth: int = 0) -> object:
    """The AMQP value of a typed JSON form. Raises InvalidEvent."""
    if value is None or isinstance(value, bool | str | float):
        return value
    if isinstance(value, int):
        if int(value) not in _LONG:
            raise InvalidEvent(f"{value} is outside of the range of an AMQP long: name its $type.")
        return value
    if depth > _DEPTH_MAX:
        raise InvalidEvent(f"A value is nested deeper than {_DEPTH_MAX} levels.")
    if not isinstance(value, dict) or value.keys() - {"text"} != {"$type", "value"}:
        raise InvalidEvent(f'{_short(value)} is not a value: write {{"$type": …, "value": …}}.')
    name, content = value["$type"], value["value"]
    try:
        return _read_typed(name, content, depth + 1)
    except (ValueError, TypeError, AttributeError, OverflowError, KeyError):
        raise InvalidEvent(f"{_short(content)} is not a valid {_short(name)}.") from None


def _read_typed(name: Any, content: Any, depth: int) -> object:
    """Raises InvalidEvent for an unknown type, and built-in errors for content of another type."""
    if name in _INTEGERS:
        kind, width, signed = _INTEGERS[name]
        if type(content) is not int:
            raise TypeError
        content.to_bytes(width, "big", signed=signed)  # raises OverflowError
        return kind(content)
    if name in _BYTES:
        return _BYTES[name](decode_base64(content))
    if name in _TEXTS and isinstance(content, str):
        return _TEXTS[name](content)
    if name in ("float", "double") and not isinstance(content, bool):
        number = _NOT_FINITE[content] if isinstance(content, str) else content
        return t.Float(number) if name == "float" else float(number)
    if name == "uuid":
        return uuid.UUID(content)
    if name == "list" and isinstance(content, list):
        return [from_json_value(element, depth) for element in content]
    if name == "map":
        return {from_json_value(key, depth): from_json_value(item, depth) for key, item in content}
    if name == "amqp":
        return _decode_encoded(decode_base64(content))
    if name in _TYPE_NAMES.values():
        raise TypeError
    raise InvalidEvent(f"{_short(name)} is not an AMQP type.")


def _decode_encoded(encoded: bytes) -> object:
    try:
        value, stop = read_value(encoded, 0, len(encoded), DecodeBudget(DEFAULT))
        encode(value)
    except (AmqpDecodeError, LocalError):
        raise ValueError from None
    if stop != len(encoded):
        raise ValueError
    return value


def decode_base64(text: str) -> bytes:
    """Raises ValueError, and TypeError for anything but text."""
    return base64.b64decode(text, validate=True)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
