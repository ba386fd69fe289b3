"""From delivered messages to records of Event Hubs Capture in Avro's binary form (protocol.md 9).

    SequenceNumber long, Offset string, EnqueuedTimeUtc string,
    SystemProperties and Properties maps of union [long, double, string, bytes],
    Body union [null, bytes]

A long is zigzag in groups of seven bits; strings and bytes have their length in front; a map is
one block, its count in front, and a zero; a value of a union has its branch in front.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache

from penstock.kernels._pure.columns import message_bounds
from penstock.kernels._pure.decoded_event import DecodedEvent, Pairs, decode_simple, open_event
from penstock.kernels._pure.messages import KEY
from penstock.kernels._pure.values import KernelError

BLOCK_BYTES_MAX = 2**31 - 1  # readers of Avro keep a block's size in an int

_LONG, _DOUBLE, _STRING, _BYTES = b"\x00", b"\x02", b"\x04", b"\x06"
_NO_BODY, _BODY = b"\x00", b"\x02"
_LONG_MAX = 2**63 - 1


class AvroRecordWriter:
    """Collects delivered messages as the records of an Avro block until `take`.

    `other` returns the encoded union value (branch and value) of an encoded AMQP value that is not
    null, boolean, integer, double, string, symbol or binary.
    """

    def __init__(
        self,
        other: Callable[[bytes], bytes],
        *,
        iso_time: bool = False,
        block_bytes_max: int = BLOCK_BYTES_MAX,
    ) -> None:
        if not 0 <= block_bytes_max <= BLOCK_BYTES_MAX:
            raise KernelError(f"block_bytes_max is {block_bytes_max}: 0 to {BLOCK_BYTES_MAX}.")
        self._other = other
        self._time = _iso_time if iso_time else _usual_time
        self._unit = 1 if iso_time else 1000  # milliseconds that are written alike
        self._bytes_max = block_bytes_max
        self._rows = 0
        self._out = bytearray()

    @property
    def rows(self) -> int:
        return self._rows

    @property
    def size(self) -> int:
        return len(self._out)

    def add(self, data: bytes, bounds: list[int]) -> None:
        """Add the messages data[bounds[2 * i]:bounds[2 * i + 1]].

        Raises KernelError like `decode_events`, and when the block would become too large. The
        messages before the one that caused the error have been added.
        """
        for start, end in message_bounds(data, bounds):
            record = self._record(open_event(data, start, end))
            if len(self._out) + len(record) > self._bytes_max:
                raise KernelError(
                    f"a block would hold more than {self._bytes_max} bytes: take it before"
                )
            self._out += record
            self._rows += 1

    def take(self) -> bytes:
        """Return all records and remove them."""
        taken = bytes(self._out)
        self._out.clear()
        self._rows = 0
        return taken

    def _record(self, event: DecodedEvent) -> bytes:
        number, time, offset = event.sequence_number, event.enqueued_ms, event.offset
        system = [
            encode_bytes(b"x-opt-sequence-number") + _LONG + encode_long(number),
            encode_bytes(b"x-opt-offset") + _STRING + encode_bytes(offset),
            encode_bytes(b"x-opt-enqueued-time") + _LONG + encode_long(time),
        ]
        if event.partition_key is not None:
            system.append(encode_bytes(KEY) + _STRING + encode_bytes(event.partition_key))
        own = [
            pair
            for pair in event.annotations + event.fields
            if pair[0] != KEY or event.partition_key is None
        ]
        return b"".join(
            (
                encode_long(number),
                encode_bytes(offset),
                encode_bytes(self._time(time // self._unit)),
                _encode_map(system + self._pairs(own)),
                _encode_map(self._pairs(event.properties)),
                self._body(event),
            )
        )

    def _pairs(self, pairs: Pairs) -> list[bytes]:
        return [encode_bytes(name) + self._union(value) for name, value in pairs]

    def _union(self, encoded: bytes) -> bytes:
        value = decode_simple(encoded)
        if value is None:
            value = ""
        elif isinstance(value, bool):
            value = "true" if value else "false"
        elif isinstance(value, int):
            if value <= _LONG_MAX:
                return _LONG + encode_long(value)
            value = str(value)
        if isinstance(value, str):
            return _STRING + encode_bytes(value.encode())
        if isinstance(value, float):
            return _DOUBLE + encoded[:0:-1]  # the same bits, little endian
        if isinstance(value, bytes):
            return _BYTES + encode_bytes(value)
        return self._other(encoded)

    def _body(self, event: DecodedEvent) -> bytes:
        if event.value is not None:
            return _BODY + encode_bytes(_text_of_union(self._union(event.value)))
        return _NO_BODY if event.body is None else _BODY + encode_bytes(event.body)


def encode_long(number: int) -> bytes:
    """
    Zigzag encoding, in groups of seven bits.

    >>> encode_long(-1), encode_long(64)
    (b'\\x01', b'\\x80\\x01')
    """
    rest = (number << 1) ^ (number >> 63)
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def encode_bytes(text: bytes) -> bytes:
    return encode_long(len(text)) + text


def _encode_map(pairs: list[bytes]) -> bytes:
    return encode_long(len(pairs)) + b"".join(pairs) + b"\x00" if pairs else b"\x00"


def _text_of_union(union: bytes) -> bytes:
    """The value as the bytes of a body; a number becomes its text."""
    if union[:1] == _DOUBLE:
        return repr(struct.unpack_from("<d", union, 1)[0]).encode()
    number, place = 0, 0
    for i in range(1, len(union)):
        number |= (union[i] & 0x7F) << place
        place += 7
        if union[i] < 0x80:
            break
    number = (number >> 1) ^ -(number & 1)
    return b"%d" % number if union[:1] == _LONG else union[len(union) - number :]


@lru_cache(maxsize=1024)
def _usual_time(seconds: int) -> bytes:
    """As .NET writes it: 9/26/2017 8:05:27 PM. The milliseconds are in SystemProperties."""
    at = _calendar(seconds)
    if at is None:
        return b"%d" % seconds
    shown = f"{at.month}/{at.day}/{at.year} {at.hour % 12 or 12}:{at:%M:%S} "
    return (shown + ("AM" if at.hour < 12 else "PM")).encode()


@lru_cache(maxsize=1024)
def _iso_time(milliseconds: int) -> bytes:
    """As IoT Hub writes it: 2018-06-11T00:00:08.2250000Z."""
    seconds, rest = divmod(milliseconds, 1000)
    at = _calendar(seconds)
    if at is None:
        return b"%d" % milliseconds
    return f"{at.year:04}-{at:%m-%dT%H:%M:%S}.{rest:03}0000Z".encode()


def _calendar(seconds: int) -> datetime | None:
    """None for a time outside of the range of datetime."""
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return None
