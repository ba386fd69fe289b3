"""From delivered messages to the buffers of Arrow columns.

Numbers are little endian. A column of texts is a buffer of bytes and the end of each text in it; a
column of maps is the end of each map in a column of names and a column of values.
"""

from __future__ import annotations

import json as _json
import math
import struct
from collections.abc import Callable

import msgspec

from penstock.kernels._pure.columns import message_bounds
from penstock.kernels._pure.decoded_event import DecodedEvent, decode_simple, open_event
from penstock.kernels._pure.values import KernelError

BUFFER_BYTES_MAX = 2**31 - 1  # Arrow's 32-bit offsets end there
ROW_BYTES = 40  # two numbers, and where four texts and two maps end
PAIR_BYTES = 8  # where its name and its value end

_US_MAX = 2**63 - 1


class TextColumn(msgspec.Struct, frozen=True):
    """`ends` is int32[n + 1] and begins with 0; text i is data[ends[i]:ends[i + 1]]. `valid` is a
    bitmap, least significant bit first, or None when all are valid."""

    ends: bytes
    data: bytes
    valid: bytes | None


class MapColumn(msgspec.Struct, frozen=True):
    """`ends` is int32[rows + 1]; map i are the pairs from ends[i] to ends[i + 1]."""

    ends: bytes
    names: TextColumn
    values: TextColumn


class ArrowColumns(msgspec.Struct, frozen=True):
    """Events, row i of each column is event i. Times are microseconds since 1970."""

    rows: int
    sequence_numbers: bytes  # int64[rows]
    enqueued_us: bytes  # int64[rows]
    body: TextColumn
    offset: TextColumn
    publisher: TextColumn
    partition_key: TextColumn
    properties: MapColumn
    system: MapColumn


class ArrowColumnBuilder:
    """Collects delivered messages as columns until `take`.

    `other` returns the text of an encoded AMQP value that is not null, boolean, integer, finite
    double, string or symbol: with `json` its JSON text, else its plain text. Without `properties`
    or `system` these maps are empty.
    """

    def __init__(
        self,
        other: Callable[[bytes], str],
        *,
        properties: bool = True,
        system: bool = True,
        json: bool = True,
        buffer_bytes_max: int = BUFFER_BYTES_MAX,
    ) -> None:
        if not 0 <= buffer_bytes_max <= BUFFER_BYTES_MAX:
            raise KernelError(f"buffer_bytes_max is {buffer_bytes_max}: 0 to {BUFFER_BYTES_MAX}.")
        self._other = other
        self._with_properties = properties
        self._with_system = system
        self._json = json
        self._bytes_max = buffer_bytes_max
        self._clear()

    @property
    def rows(self) -> int:
        return len(self._numbers)

    @property
    def size(self) -> int:
        """Bytes of all columns, without the bitmaps."""
        pairs = sum(names.count for _, names, _ in self._maps)
        held = sum(len(column.data) for column in self._columns)
        return self.rows * ROW_BYTES + pairs * PAIR_BYTES + held

    def add(self, data: bytes, bounds: list[int]) -> None:
        """Add the messages data[bounds[2 * i]:bounds[2 * i + 1]].

        Raises KernelError like `decode_events`, and when a column would become too large. The
        messages before the one that caused the error have been added.
        """
        for start, end in message_bounds(data, bounds):
            self._add(open_event(data, start, end))

    def take(self) -> ArrowColumns:
        """Return all rows and remove them."""
        numbers, times = _int64(self._numbers), _int64(self._times)
        body, offset, publisher, key = (column.build() for column in self._columns[:4])
        properties, system = (
            MapColumn(_int32(ends), names.build(), values.build())
            for ends, names, values in self._maps
        )
        taken = ArrowColumns(
            self.rows, numbers, times, body, offset, publisher, key, properties, system
        )
        self._clear()
        return taken

    def _clear(self) -> None:
        self._numbers: list[int] = []
        self._times: list[int] = []
        # Body, offset, publisher and key; names and values of properties and of system properties.
        self._columns = [_TextColumnBuilder() for _ in range(8)]
        property_names, property_values, system_names, system_values = self._columns[4:]
        # With the end of each map in them.
        self._maps = [([0], property_names, property_values), ([0], system_names, system_values)]

    def _add(self, event: DecodedEvent) -> None:
        """Add one row, or none if an error is raised: everything is built and checked first."""
        body = event.body
        if event.value is not None:
            body = self._other(event.value).encode()
        texts = [[text] for text in (body, event.offset, event.publisher, event.partition_key)]
        properties = event.properties if self._with_properties else []
        system = event.annotations + event.fields if self._with_system else []
        for pairs in (properties, system):
            texts += [name for name, _ in pairs], [self._text(value) for _, value in pairs]
        for column, added in zip(self._columns, texts, strict=True):
            size = len(column.data) + sum(len(text or b"") for text in added)
            if max(size, column.count + len(added)) > self._bytes_max:
                limit = f"{self._bytes_max} bytes or texts"
                raise KernelError(f"a column would hold more than {limit}: take it before")
        self._numbers.append(event.sequence_number)
        # Times outside of int64 microseconds become the earliest or the latest one.
        self._times.append(max(-_US_MAX - 1, min(event.enqueued_ms * 1000, _US_MAX)))
        for column, added in zip(self._columns, texts, strict=True):
            for text in added:
                column.add(text)
        for ends, names, _ in self._maps:
            ends.append(names.count)

    def _text(self, encoded: bytes) -> bytes | None:
        value = decode_simple(encoded)
        if isinstance(value, str):
            return (_json.dumps(value, ensure_ascii=False) if self._json else value).encode()
        if value is None:
            return b"null" if self._json else None
        if isinstance(value, bool):
            return b"true" if value else b"false"
        if isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
            return repr(value).encode()
        return self._other(encoded).encode()


class _TextColumnBuilder:
    """A column of texts while it grows."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.count = 0
        self._ends = [0]
        self._missing: list[int] = []

    def add(self, text: bytes | None) -> None:
        if text is None:
            self._missing.append(self.count)
        else:
            self.data += text
        self.count += 1
        self._ends.append(len(self.data))

    def build(self) -> TextColumn:
        valid: bytes | None = None
        if self._missing:
            bits = bytearray(b"\xff" * (self.count // 8))
            if self.count % 8:
                bits.append((1 << self.count % 8) - 1)
            for i in self._missing:
                bits[i >> 3] &= ~(1 << (i & 7))
            valid = bytes(bits)
        return TextColumn(_int32(self._ends), bytes(self.data), valid)


def _int32(numbers: list[int]) -> bytes:
    return struct.pack(f"<{len(numbers)}i", *numbers)


def _int64(numbers: list[int]) -> bytes:
    return struct.pack(f"<{len(numbers)}q", *numbers)
