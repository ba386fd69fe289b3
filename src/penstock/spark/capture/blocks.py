"""Ranges of events to Avro or Parquet blocks; schema and file of Parquet.

A block has about a megabyte (Parquet: 16), so a task holds a few of them whatever the size of its
window. Blocks end where the messages say, not where the network split them: a range that is read
again gives the same blocks.

Parquet has the columns of Avro under the same names, but typed, and properties as maps of texts.
Texts do not say whether 7 was a number, so beside each map is a text with a letter per value:

| letter | the value was | its JSON is |
|---|---|---|
| `t` | a text, or a value for which JSON has no other form | the text in quotes |
| `j` | a number, a boolean, a list, a map, null | the text as it is; `null` for none |
| `b` | binary that is UTF-8 | its base64 in quotes |

A Parquet block travels as an Arrow stream and becomes one row group.
"""

from __future__ import annotations

import hashlib
import os
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import accumulate
from operator import sub
from pathlib import Path
from typing import Any

import msgspec

from penstock.capture.container import BLOCK_BYTES, DamagedAvroFile, deflate
from penstock.client.ranges import MessageChunk, RangeSettings, read_chunks
from penstock.formats.amqp_values import avro_value, encode_json, json_text, plain_text
from penstock.kernels import (
    ArrowColumnBuilder,
    ArrowColumns,
    AvroRecordWriter,
    MapColumn,
    TextColumn,
    decode_events,
)

SYSTEM_TYPES, TYPES = "SystemPropertyTypes", "PropertyTypes"
_LETTERS = ("t", "j", "b")
# By the first byte of a JSON text; none begins with a b.
_LETTER_OF = bytes(
    {ord('"'): ord("t"), ord("b"): ord("b")}.get(byte, ord("j")) for byte in range(256)
)
_DIGEST_BYTES = 1024 * 1024
_CODEC = "snappy"
_ROW_GROUP_BYTES = 16 * 1024 * 1024


class CaptureBlock(msgspec.Struct, frozen=True):
    """`first_ms` and `last_ms` are the enqueued times of its first and last event."""

    count: int
    data: bytes
    first_ms: int
    last_ms: int


def read_blocks(
    ranges: RangeSettings,
    partition: str,
    first: int,
    last: int,
    *,
    encoding: str,
    iso_time: bool = False,
) -> Iterator[CaptureBlock]:
    """Raises ClientError."""
    chunks = read_chunks(ranges, partition, first, last)
    builder: _ParquetBuilder | _AvroBuilder
    if encoding == "Parquet":
        builder = _ParquetBuilder()
    else:
        builder = _AvroBuilder(iso_time=iso_time, is_deflated=encoding == "AvroDeflate")
    first_ms = last_ms = 0
    for piece in split_chunks(chunks, builder.block_bytes):
        first_ms = first_ms or piece.first_ms
        last_ms = piece.last_ms
        builder.add(piece.data, piece.bounds)
        if piece.is_end:
            yield CaptureBlock(builder.rows, builder.take(), first_ms, last_ms)
            first_ms = 0
    if builder.rows:
        yield CaptureBlock(builder.rows, builder.take(), first_ms, last_ms)


class ChunkPiece(msgspec.Struct, frozen=True):
    """Messages of one block; with `is_end` the block is full."""

    data: bytes
    bounds: list[int]
    is_end: bool
    first_ms: int
    last_ms: int


def split_chunks(chunks: Iterable[MessageChunk], limit: int = BLOCK_BYTES) -> Iterator[ChunkPiece]:
    """A block ends after the message with which it has `limit` bytes."""
    held = 0
    for chunk in chunks:
        data, bounds = chunk.data, chunk.bounds
        first_ms, last_ms = _first_and_last_time(data, bounds)
        size = sum(bounds[1::2]) - sum(bounds[::2])
        while held + size >= limit:
            sizes = map(sub, bounds[1::2], bounds[::2])
            reached = list(accumulate(sizes, initial=held))
            index = bisect_left(reached, limit)  # this many messages fill the block
            taken = bounds[: 2 * index]
            yield ChunkPiece(data, taken, True, first_ms, _first_and_last_time(data, taken)[1])
            bounds = bounds[2 * index :]
            held, size = 0, size - (reached[index] - held)
            if not bounds:
                break
            first_ms, last_ms = _first_and_last_time(data, bounds)
        if bounds:
            held += size
            yield ChunkPiece(data, bounds, False, first_ms, last_ms)


def _first_and_last_time(data: bytes, bounds: list[int]) -> tuple[int, int]:
    ends = decode_events(data, [*bounds[:2], *bounds[-2:]])
    return ends.enqueued_ms[0], ends.enqueued_ms[-1]


class _AvroBuilder:
    block_bytes = BLOCK_BYTES

    def __init__(self, *, iso_time: bool, is_deflated: bool) -> None:
        self._records = AvroRecordWriter(avro_value, iso_time=iso_time)
        self._is_deflated = is_deflated
        self.add = self._records.add

    @property
    def rows(self) -> int:
        return self._records.rows

    def take(self) -> bytes:
        records = self._records.take()
        return deflate(records) if self._is_deflated else records


class _ParquetBuilder:
    block_bytes = _ROW_GROUP_BYTES

    def __init__(self) -> None:
        self._plain = ArrowColumnBuilder(plain_text, json=False)
        self._typed = ArrowColumnBuilder(_typed_json_value)

    def add(self, data: bytes, bounds: list[int]) -> None:
        self._plain.add(data, bounds)
        self._typed.add(data, bounds)

    @property
    def rows(self) -> int:
        return self._plain.rows

    def take(self) -> bytes:
        import pyarrow as pa

        batch = record_batch(self._plain.take(), self._typed.take())
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        return bytes(sink.getvalue())


def _typed_json_value(encoded: bytes) -> str:
    """The JSON text, whose first byte tells the letter, of a value that the kernel does not write
    itself."""
    plain, text = plain_text(encoded), json_text(encoded)
    if text == plain:
        return text
    return text if text == encode_json(plain) else "b"


def json_from(letter: str, plain: str | None) -> str:
    """The value's JSON text, as `penstock.client.values.json_text` has it. Raises
    DamagedAvroFile.

    >>> json_from("t", "7"), json_from("j", "7"), json_from("b", "7"), json_from("j", None)
    ('"7"', '7', '"Nw=="', 'null')
    """
    if letter not in _LETTERS:
        raise DamagedAvroFile(f"The type '{letter}' is not one of t, j and b.")
    if plain is None:
        return "null"
    if letter == "j":
        return plain
    return encode_json(plain if letter == "t" else plain.encode())


def parquet_schema() -> Any:
    import pyarrow as pa

    texts = pa.map_(pa.string(), pa.string())
    return pa.schema(
        [
            pa.field("SequenceNumber", pa.int64(), nullable=False),
            pa.field("Offset", pa.string(), nullable=False),
            pa.field("EnqueuedTimeUtc", pa.timestamp("us", tz="UTC"), nullable=False),
            pa.field("PartitionKey", pa.string()),
            pa.field("SystemProperties", texts),
            pa.field("Properties", texts),
            pa.field("Body", pa.binary()),
            pa.field(SYSTEM_TYPES, pa.string()),
            pa.field(TYPES, pa.string()),
        ]
    )


def record_batch(plain: ArrowColumns, typed: ArrowColumns) -> Any:
    """Without a copy of the kernel's buffers. `typed` has the same events with values as JSON."""
    import pyarrow as pa

    rows = plain.rows
    times = pa.timestamp("us", tz="UTC")
    columns = [
        pa.Array.from_buffers(pa.int64(), rows, [None, pa.py_buffer(plain.sequence_numbers)]),
        _text_array(plain.offset, rows, pa.string()),
        pa.Array.from_buffers(times, rows, [None, pa.py_buffer(plain.enqueued_us)]),
        _text_array(plain.partition_key, rows, pa.string()),
        _map_array(plain.system, rows),
        _map_array(plain.properties, rows),
        _text_array(plain.body, rows, pa.binary()),
        _letter_array(typed.system, rows),
        _letter_array(typed.properties, rows),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=parquet_schema())


def _text_array(texts: TextColumn, rows: int, kind: Any) -> Any:
    import pyarrow as pa

    valid = None if texts.valid is None else pa.py_buffer(texts.valid)
    return pa.Array.from_buffers(
        kind, rows, [valid, pa.py_buffer(texts.ends), pa.py_buffer(texts.data)]
    )


def _map_array(maps: MapColumn, rows: int) -> Any:
    import pyarrow as pa

    pairs = len(maps.names.ends) // 4 - 1
    ends = pa.Array.from_buffers(pa.int32(), rows + 1, [None, pa.py_buffer(maps.ends)])
    names = _text_array(maps.names, pairs, pa.string())
    return pa.MapArray.from_arrays(ends, names, _text_array(maps.values, pairs, pa.string()))


def _letter_array(maps: MapColumn, rows: int) -> Any:
    """A letter is one byte, so the texts of letters end where the maps do."""
    import pyarrow as pa

    begins = memoryview(maps.values.ends).cast("i")[:-1]
    letters = bytes(map(maps.values.data.__getitem__, begins)).translate(_LETTER_OF)
    return pa.Array.from_buffers(
        pa.string(), rows, [None, pa.py_buffer(maps.ends), pa.py_buffer(letters)]
    )


class ParquetFile:
    """A `capture.window_file.WindowFile`."""

    def __init__(self, path: Path) -> None:
        from pyarrow import parquet

        self.path = path
        self._writer = parquet.ParquetWriter(str(path), parquet_schema(), compression=_CODEC)

    def add(self, count: int, block: bytes) -> None:
        import pyarrow as pa

        with pa.ipc.open_stream(block) as stream:
            table = stream.read_all()
        assert table.num_rows == count
        self._writer.write_table(table, row_group_size=max(1, count))

    def close(self) -> tuple[int, str]:
        self._writer.close()
        digest, size = hashlib.sha256(), 0
        with self.path.open("rb") as file:
            os.fsync(file.fileno())
            while piece := file.read(_DIGEST_BYTES):
                digest.update(piece)
                size += len(piece)
        return size, digest.hexdigest()

    def discard(self) -> None:
        self._writer.close()
        self.path.unlink(missing_ok=True)
