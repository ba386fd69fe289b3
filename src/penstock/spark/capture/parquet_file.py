"""Captured events as Parquet: schema, blocks, files.

The columns are those of Avro under the same names, but typed, and properties are maps of texts.
Texts do not say whether 7 was a number, so beside each map is a text with a letter per value:

| letter | the value was | its JSON is |
|---|---|---|
| `t` | a text, or a value for which JSON has no other form | the text in quotes |
| `j` | a number, a boolean, a list, a map, null | the text as it is; `null` for none |
| `b` | binary that is UTF-8 | its base64 in quotes |

A block travels as an Arrow stream and becomes one row group.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet

from penstock.capture.container import DamagedAvroFile
from penstock.formats.amqp_values import encode_json, json_text, plain_text
from penstock.kernels import ArrowColumnBuilder, ArrowColumns, MapColumn
from penstock.spark.arrow_arrays import (
    TEXT_MAP,
    TIME,
    map_array,
    number_array,
    text_array,
    value_array,
)

SYSTEM_TYPES, TYPES = "SystemPropertyTypes", "PropertyTypes"
_LETTERS = ("t", "j", "b")
# By the first byte of a JSON text; none begins with a b.
_LETTER_OF = bytes(
    {ord('"'): ord("t"), ord("b"): ord("b")}.get(byte, ord("j")) for byte in range(256)
)
_ROW_GROUP_BYTES = 16 * 1024 * 1024
PARQUET_SCHEMA = pa.schema(
    [
        pa.field("SequenceNumber", pa.int64(), nullable=False),
        pa.field("Offset", pa.string(), nullable=False),
        pa.field("EnqueuedTimeUtc", TIME, nullable=False),
        pa.field("PartitionKey", pa.string()),
        pa.field("SystemProperties", TEXT_MAP),
        pa.field("Properties", TEXT_MAP),
        pa.field("Body", pa.binary()),
        pa.field(SYSTEM_TYPES, pa.string()),
        pa.field(TYPES, pa.string()),
    ]
)


class ParquetBlockBuilder:
    """`rows` is how many messages were added since `take`, which returns them as a block."""

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
        batch = record_batch(self._plain.take(), self._typed.take())
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        return bytes(sink.getvalue())


def read_block(block: bytes) -> pa.Table:
    with pa.ipc.open_stream(block) as stream:
        return stream.read_all()


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


def record_batch(plain: ArrowColumns, typed: ArrowColumns) -> pa.RecordBatch:
    """`typed` has the same events with values as JSON."""
    rows = plain.rows
    columns = [
        number_array(pa.int64(), rows, plain.sequence_numbers),
        text_array(plain.offset, rows),
        number_array(TIME, rows, plain.enqueued_us),
        text_array(plain.partition_key, rows),
        map_array(plain.system, rows, TEXT_MAP, value_array(plain.system)),
        map_array(plain.properties, rows, TEXT_MAP, value_array(plain.properties)),
        text_array(plain.body, rows, pa.binary()),
        _letter_array(typed.system, rows),
        _letter_array(typed.properties, rows),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=PARQUET_SCHEMA)


def _letter_array(maps: MapColumn, rows: int) -> pa.Array:
    """A letter is one byte, so the texts of letters end where the maps do."""
    begins = memoryview(maps.values.ends).cast("i")[:-1]
    letters = bytes(map(maps.values.data.__getitem__, begins)).translate(_LETTER_OF)
    buffers = [None, pa.py_buffer(maps.ends), pa.py_buffer(letters)]
    return pa.Array.from_buffers(pa.string(), rows, buffers)


class ParquetFile:
    """Has the methods of `AvroFile`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._writer = parquet.ParquetWriter(str(path), PARQUET_SCHEMA, compression="snappy")

    def add(self, count: int, block: bytes) -> None:
        table = read_block(block)
        assert table.num_rows == count
        self._writer.write_table(table, row_group_size=max(1, count))

    def close(self) -> tuple[int, str]:
        self._writer.close()
        with self.path.open("rb") as file:
            os.fsync(file.fileno())
            digest = hashlib.file_digest(file, "sha256")
        return self.path.stat().st_size, digest.hexdigest()

    def discard(self) -> None:
        self._writer.close()
        self.path.unlink(missing_ok=True)
