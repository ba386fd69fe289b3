"""What an encoded AMQP value is as text, and in an Avro union of Event Hubs Capture: the values
that the kernels leave to others. Nothing here raises: an odd property must not stop a pipeline.

JSON has arrays and objects for lists, arrays and maps, numbers for integers of every width and for
floats, text for symbols, characters, uuids and times (ISO 8601, UTC); binary is base64, as Spark
writes it. A described value is what it describes.
"""

from __future__ import annotations

import base64
import json
import math
import struct
import uuid
from datetime import UTC, datetime, timedelta

from penstock.amqp import types as t
from penstock.amqp.decoder import decode
from penstock.amqp.errors import DecodeError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LONG = range(-(2**63), 2**63)


def json_text(encoded: bytes) -> str:
    """The value's JSON text.

    >>> json_text(bytes.fromhex("c0 05 02 54 01 a1 00")), json_text(bytes.fromhex("a0 01 ff"))
    ('[1,""]', '"/w=="')
    """
    return json_of(_decoded(encoded))


def plain_text(encoded: bytes) -> str:
    """The text without the quotes of JSON; binary that is UTF-8 as such.

    >>> plain_text(bytes.fromhex("a0 02 68 69")), plain_text(bytes.fromhex("83 0000000000000001"))
    ('hi', '1970-01-01T00:00:00.001Z')
    """
    value = _decoded(encoded)
    if isinstance(value, bytes) and type(value) is bytes:
        try:
            return value.decode()
        except UnicodeDecodeError:
            return _base64(value)
    plain = _plain(value)
    return plain if isinstance(plain, str) else _dumps(plain)


def avro_value(encoded: bytes) -> bytes:
    """The encoded union [long, double, string, bytes]: what has no place there becomes text.

    >>> avro_value(bytes.fromhex("83 0000000000000001")), avro_value(bytes.fromhex("56 01"))
    (b'\\x00\\x02', b'\\x04\\x08true')
    """
    value = to_union(_decoded(encoded))
    if isinstance(value, int):
        return b"\x00" + _zigzag(value)
    if isinstance(value, float):
        return b"\x02" + struct.pack("<d", value)
    if isinstance(value, str):
        text = value.encode()
        return b"\x04" + _zigzag(len(text)) + text
    return b"\x06" + _zigzag(len(value)) + value


def to_union(value: object) -> int | float | str | bytes:
    """What of the union stands for a decoded AMQP value."""
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
    return json_of(value)


def json_of(value: object) -> str:
    """The JSON text of a decoded AMQP value."""
    return _dumps(_plain(value))


def _decoded(encoded: bytes) -> object:
    try:
        value, stop = decode(encoded)
    except DecodeError:
        return encoded  # such as a map whose keys are lists: its bytes say all of it
    return value if stop == len(encoded) else encoded


def _dumps(plain: object) -> str:
    return json.dumps(plain, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _plain(value: object) -> object:
    """What JSON can hold."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, t.Timestamp):
        return _time(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return _real(value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bytes):
        return _base64(value)
    if isinstance(value, t.Described):
        return _plain(value.value)
    if isinstance(value, dict):
        return {_name(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return str(value)  # a uuid


def _name(key: object) -> str:
    plain = _plain(key)
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


def _time(milliseconds: int) -> object:
    try:
        at = _EPOCH + timedelta(milliseconds=int(milliseconds))
    except OverflowError:
        return int(milliseconds)  # of no calendar
    return at.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


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
