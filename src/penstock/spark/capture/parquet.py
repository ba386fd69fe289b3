"""Parquet beside Avro: the same columns by the same names, but typed, and maps of texts.

Plain texts do not say what they were: whether 7 was a number. Beside each map stands a text with a
letter for each of its values, so that whoever reads the file can tell.

| letter | the value was | its JSON is |
|---|---|---|
| `t` | a text, or what JSON has no other form for | the text in quotes |
| `j` | a number, a boolean, a list, a map, nothing | the text as it is; `null` for none |
| `b` | binary that is UTF-8 | its base64 in quotes |

Blocks travel as Arrow's own stream format; one block becomes one row group.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.capture.container import DamagedAvroFile
from penstock.client.ranges import MessageChunk
from penstock.formats.amqp_values import encode_json, json_text, plain_text
from penstock.kernels import ArrowColumnBuilder, ArrowColumns, MapColumn, TextColumn

if TYPE_CHECKING:
    from penstock.spark.capture.blocks import CaptureBlock

SYSTEM_TYPES, TYPES = "SystemPropertyTypes", "PropertyTypes"
_LETTERS = ("t", "j", "b")
# By how a JSON text begins; none begins with a b.
_LETTER_OF = bytes(
    {ord('"'): ord("t"), ord("b"): ord("b")}.get(byte, ord("j")) for byte in range(256)
)
_DIGEST_BYTES = 1024 * 1024
_CODEC = "snappy"
_ROW_GROUP_BYTES = 16 * 1024 * 1024


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


def column_blocks(chunks: Iterable[MessageChunk]) -> Iterator[CaptureBlock]:
    from penstock.spark.capture.blocks import CaptureBlock, split_chunks

    plain, typed = ArrowColumnBuilder(plain_text, json=False), ArrowColumnBuilder(_typed_json_value)
    first_ms = last_ms = 0
    for piece in split_chunks(chunks, _ROW_GROUP_BYTES):
        first_ms = first_ms or piece.first_ms
        last_ms = piece.last_ms
        plain.add(piece.data, piece.bounds)
        typed.add(piece.data, piece.bounds)
        if piece.is_end:
            yield CaptureBlock(plain.rows, _stream(plain.take(), typed.take()), first_ms, last_ms)
            first_ms = 0
    if plain.rows:
        yield CaptureBlock(plain.rows, _stream(plain.take(), typed.take()), first_ms, last_ms)


def _typed_json_value(encoded: bytes) -> str:
    """Of a value that the kernel leaves to others: what begins as JSON of its type does."""
    plain, text = plain_text(encoded), json_text(encoded)
    if text == plain:
        return text
    return text if text == encode_json(plain) else "b"


def json_from(letter: str, plain: str | None) -> str:
    """The value's JSON text, as `formats.amqp_values.json_text` has it. Raises DamagedFile.

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


def record_batch(gathered: ArrowColumns, typed: ArrowColumns) -> Any:
    """Without a copy of what the kernel made. `typed` are the same events, values as JSON."""
    import pyarrow as pa

    rows = gathered.rows
    times = pa.timestamp("us", tz="UTC")
    columns = [
        pa.Array.from_buffers(pa.int64(), rows, [None, pa.py_buffer(gathered.sequence_numbers)]),
        _text_array(gathered.offset, rows, pa.string()),
        pa.Array.from_buffers(times, rows, [None, pa.py_buffer(gathered.enqueued_us)]),
        _text_array(gathered.partition_key, rows, pa.string()),
        _maps(gathered.system, rows),
        _maps(gathered.properties, rows),
        _text_array(gathered.body, rows, pa.binary()),
        _letters(typed.system, rows),
        _letters(typed.properties, rows),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=parquet_schema())


def _text_array(texts: TextColumn, rows: int, kind: Any) -> Any:
    import pyarrow as pa

    valid = None if texts.valid is None else pa.py_buffer(texts.valid)
    return pa.Array.from_buffers(
        kind, rows, [valid, pa.py_buffer(texts.ends), pa.py_buffer(texts.data)]
    )


def _maps(maps: MapColumn, rows: int) -> Any:
    import pyarrow as pa

    pairs = len(maps.names.ends) // 4 - 1
    ends = pa.Array.from_buffers(pa.int32(), rows + 1, [None, pa.py_buffer(maps.ends)])
    names = _text_array(maps.names, pairs, pa.string())
    return pa.MapArray.from_arrays(ends, names, _text_array(maps.values, pairs, pa.string()))


def _letters(maps: MapColumn, rows: int) -> Any:
    """A letter is one byte: texts of them end where the maps do."""
    import pyarrow as pa

    begins = memoryview(maps.values.ends).cast("i")[:-1]
    letters = bytes(map(maps.values.data.__getitem__, begins)).translate(_LETTER_OF)
    return pa.Array.from_buffers(
        pa.string(), rows, [None, pa.py_buffer(maps.ends), pa.py_buffer(letters)]
    )


def _stream(gathered: ArrowColumns, typed: ArrowColumns) -> bytes:
    import pyarrow as pa

    batch = record_batch(gathered, typed)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


class ParquetFile:
    """`capture.writing.WindowFile`."""

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
