"""AMQP values and bodies as text and in an Avro union of Event Hubs Capture: the values that the
kernels leave to others. Nothing here raises: an odd property must not stop a pipeline.

JSON has arrays and objects for lists, arrays and maps, numbers for integers of every width and for
floats, text for symbols, characters, uuids, decimals and times (ISO 8601, UTC); binary is base64,
as Spark writes it. The described types of .NET (DateTimeOffset, TimeSpan, Uri) are text; any other
described value is what it describes.
"""

from __future__ import annotations

import base64
import json
import math
import struct
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from penstock.amqp import types as t
from penstock.amqp.decoder import decode
from penstock.amqp.errors import AmqpDecodeError
from penstock.amqp.message import SequenceBody, ValueBody, decode_message

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LONG = range(-(2**63), 2**63)


def json_text(encoded: bytes) -> str:
    """The value's JSON text.

    >>> json_text(bytes.fromhex("c0 05 02 54 01 a1 00")), json_text(bytes.fromhex("a0 01 ff"))
    ('[1,""]', '"/w=="')
    """
    return encode_json(_decode_value(encoded))


def plain_text(encoded: bytes) -> str:
    """The text without the quotes of JSON; binary that is UTF-8 as such.

    >>> plain_text(bytes.fromhex("a0 02 68 69")), plain_text(bytes.fromhex("83 0000000000000001"))
    ('hi', '1970-01-01T00:00:00.001Z')
    """
    return display_value(_decode_value(encoded))


def display_value(value: object) -> str:
    """The text of a decoded value for people; see `plain_text`.

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
        message_body = decode_message(body).body
    except AmqpDecodeError:
        return body
    if isinstance(message_body, SequenceBody):
        elements = [element for section in message_body.lists for element in section]
        return encode_json(elements).encode()
    if not isinstance(message_body, ValueBody):
        return body
    value = message_body.value
    if type(value) is bytes:
        return value
    return b"" if value is None else display_value(value).encode()


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
    """The encoded union [long, double, string, bytes]: what has no place there becomes text.

    >>> avro_value(bytes.fromhex("83 0000000000000001")), avro_value(bytes.fromhex("56 01"))
    (b'\\x00\\x02', b'\\x04\\x08true')
    """
    value = to_avro_union(_decode_value(encoded))
    if isinstance(value, int):
        return b"\x00" + _zigzag(value)
    if isinstance(value, float):
        return b"\x02" + struct.pack("<d", value)
    if isinstance(value, str):
        text = value.encode()
        return b"\x04" + _zigzag(len(text)) + text
    return b"\x06" + _zigzag(len(value)) + value


def to_avro_union(value: object) -> int | float | str | bytes:
    """What of the union stands for a decoded AMQP value."""
    if isinstance(value, t.Described):
        value = to_readable(value)
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        plain = int(value)  # a range looks at a subclass of int number by number
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
        return encoded  # such as a map whose keys are lists: its bytes say all of it
    return value if stop == len(encoded) else encoded


def _dumps(plain: object) -> str:
    return json.dumps(plain, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _to_plain_value(value: object) -> object:
    """What JSON can hold."""
    value = to_readable(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, t.Timestamp):
        return _format_timestamp(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return _real(value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bytes):
        return _base64(value)
    if isinstance(value, t.Described):
        return _to_plain_value(value.value)
    if isinstance(value, dict):
        return {_key_text(name): _to_plain_value(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_to_plain_value(each) for each in value]
    return str(value)  # a uuid or a Decimal


def _key_text(key: object) -> str:
    plain = _to_plain_value(key)
    return plain if isinstance(plain, str) else _dumps(plain)


def _real(value: float) -> object:
    """A float of 32 bits in the fewest digits that say it: 0.1, and not 0.10000000149011612."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, t.Float):
        for digits in range(6, 10):
            shown = float(f"{value:.{digits}g}")
            if abs(shown) <= _FLOAT_MAX and struct.pack(">f", shown) == struct.pack(">f", value):
                return shown
    return float(value)


_FLOAT_MAX = struct.unpack(">f", b"\x7f\x7f\xff\xff")[0]


def _format_timestamp(milliseconds: int) -> object:
    try:
        at = _EPOCH + timedelta(milliseconds=int(milliseconds))
    except OverflowError:
        return int(milliseconds)  # of no calendar
    return at.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


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
    if encoded[0] & 0x60 == 0x60:  # a coefficient of one bit more, its first three are 100
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


_TICKS = 10_000_000  # of .NET, in a second
_YEAR_1 = datetime(1, 1, 1)  # noqa: DTZ001  # ticks have no zone; the text says UTC


def _format_datetime_offset(ticks: object) -> str | None:
    """2026-11-17T08:15:00.1234567Z"""
    if not isinstance(ticks, int) or ticks < 0:
        return None
    seconds, fraction = divmod(int(ticks), _TICKS)
    try:
        at = _YEAR_1 + timedelta(seconds=seconds)
    except OverflowError:
        return None  # after the year 9999
    return f"{at.isoformat()}.{fraction:07}Z"


def _format_timespan(ticks: object) -> str | None:
    """As .NET writes it: 1.02:03:04.5000000, one day and two hours."""
    if not isinstance(ticks, int):
        return None
    seconds, fraction = divmod(abs(int(ticks)), _TICKS)
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    sign = "-" if ticks < 0 else ""
    day = f"{days}." if days else ""
    rest = f".{fraction:07}" if fraction else ""
    return f"{sign}{day}{hour:02}:{minute:02}:{second:02}{rest}"


def _format_uri(text: object) -> str | None:
    return str(text) if isinstance(text, str) else None


_DOTNET_TYPES: dict[str, Callable[[object], str | None]] = {
    "com.microsoft:datetime-offset": _format_datetime_offset,
    "com.microsoft:timespan": _format_timespan,
    "com.microsoft:uri": _format_uri,
}


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _zigzag(number: int) -> bytes:
    rest = (number << 1) ^ (number >> 63)
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)
