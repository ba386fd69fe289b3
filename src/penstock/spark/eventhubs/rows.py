"""Columns of the source: the kernel's buffers become Arrow record batches."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.client.ranges import EventsLost, RangeSettings, read_chunks
from penstock.formats.amqp_values import json_text, plain_text
from penstock.kernels import ArrowColumnBuilder
from penstock.spark.errors import events_gone_error
from penstock.spark.eventhubs.options import RowOptions
from penstock.spark.eventhubs.planner import SequenceRange

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.kernels import ArrowColumns, MapColumn, TextColumn

# Spark is fastest with 1,000 to 10,000 rows per batch.
BATCH_ROWS = 8192
BATCH_BYTES = 2 * 1024 * 1024  # a batch of this size stays in the processor's cache


def record_batches(
    settings: RangeSettings,
    span: SequenceRange,
    rows: RowOptions,
    schema: pa.Schema,
    *,
    fail_on_data_loss: bool,
) -> Iterator[pa.RecordBatch]:
    """Read the events of a range, in order. Raises ClientError, and DataLoss if events are gone;
    without `fail_on_data_loss` it continues with the events that are left."""
    batches = _BatchBuilder(settings, span, rows, schema)
    columns = ArrowColumnBuilder(
        plain_text if rows.properties_format == "string" else json_text,
        properties=rows.properties,
        system=rows.system,
        json=rows.properties_format != "string",
    )
    gone_error = partial(events_gone_error, settings.eventhub_name or "", span.partition_id)
    expected = span.first
    while expected < span.end:
        try:
            for chunk in read_chunks(settings, span.partition_id, expected, span.end - 1):
                if chunk.first > expected and fail_on_data_loss:
                    raise gone_error(expected, chunk.first, chunk.first)
                columns.add(chunk.data, chunk.bounds)
                expected = chunk.last + 1
                if columns.rows >= BATCH_ROWS or columns.size >= BATCH_BYTES:
                    yield batches.build(columns.take())
            break
        except EventsLost as error:
            if fail_on_data_loss:
                raise gone_error(expected, error.found, error.found) from error
            expected = max(expected, error.found)
    if expected < span.end and fail_on_data_loss:
        raise gone_error(expected, span.end, None)
    if columns.rows:
        yield batches.build(columns.take())


class _BatchBuilder:
    """Builds the batches of one range; columns with one value for all rows are cached."""

    def __init__(
        self, settings: RangeSettings, span: SequenceRange, rows: RowOptions, schema: pa.Schema
    ) -> None:
        import pyarrow as pa

        self._pa = pa
        self._rows = rows
        self._schema = schema
        self._constants = {
            "partition": span.partition_id,
            "eventHub": settings.eventhub_name or "",
        }
        self._cached: dict[tuple[str, int], Any] = {}

    def build(self, gathered: ArrowColumns) -> pa.RecordBatch:
        pa, count = self._pa, gathered.rows
        columns: dict[str, Any] = {
            "body": self._body(gathered.body, count),
            "partition": self._constant("partition", count),
            "offset": self._texts(gathered.offset, count),
            "sequenceNumber": _numbers(pa, pa.int64(), gathered.sequence_numbers, count),
            "enqueuedTime": _numbers(pa, pa.timestamp("us", tz="UTC"), gathered.enqueued_us, count),
            "publisher": self._texts(gathered.publisher, count),
            "partitionKey": self._texts(gathered.partition_key, count),
        }
        if self._rows.properties:
            columns["properties"] = self._maps("properties", gathered.properties, count)
        if self._rows.system:
            columns["systemProperties"] = self._maps("systemProperties", gathered.system, count)
        if self._rows.hub:
            columns["eventHub"] = self._constant("eventHub", count)
        arrays = [columns[field.name] for field in self._schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _body(self, texts: TextColumn, count: int) -> Any:
        pa = self._pa
        body = self._texts(texts, count, binary=True)
        if self._rows.body_format == "binary":
            return body
        try:
            return body.cast(pa.string())
        except pa.ArrowInvalid:  # some bodies are not UTF-8
            bodies = body.to_pylist()
            decoded = [None if data is None else data.decode("utf-8", "replace") for data in bodies]
            return pa.array(decoded, pa.string())

    def _texts(self, texts: TextColumn, count: int, *, binary: bool = False) -> Any:
        pa = self._pa
        kind = pa.binary() if binary else pa.string()
        valid = None if texts.valid is None else pa.py_buffer(texts.valid)
        buffers = [valid, pa.py_buffer(texts.ends), pa.py_buffer(texts.data)]
        return pa.Array.from_buffers(kind, count, buffers)

    def _constant(self, name: str, count: int) -> Any:
        key = (name, count)
        if key not in self._cached:
            if len(self._cached) > 64:
                self._cached.clear()
            self._cached[key] = self._pa.repeat(
                self._pa.scalar(self._constants[name], self._pa.string()), count
            )
        return self._cached[key]

    def _maps(self, name: str, maps: MapColumn, count: int) -> Any:
        pa = self._pa
        kind = self._schema.field(name).type
        pairs = struct.unpack_from("<i", maps.ends, len(maps.ends) - 4)[0]
        names = self._texts(maps.names, pairs)
        values = self._texts(maps.values, pairs)
        if self._rows.properties_format == "variant":
            values = _variants(pa, values, kind.item_type)
        entries = pa.StructArray.from_arrays(
            [names, values], fields=[kind.key_field, kind.item_field]
        )
        return pa.Array.from_buffers(
            kind, count, [None, pa.py_buffer(maps.ends)], children=[entries]
        )


def _numbers(pa: Any, kind: Any, data: bytes, count: int) -> Any:
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(data)])


# --- variants -------------------------------------------------------------------------------------
# Spark's variant: `metadata` is version 1 and a dictionary of no field names; `value` begins with a
# byte (kind << 2 | 0 for a primitive, length << 2 | 1 for a short string). Values of properties are
# scalars; other values become a string of their JSON text.

_NO_NAMES = b"\x01\x00\x00"
_V_NULL, _V_TRUE, _V_FALSE, _V_INT64, _V_DOUBLE, _V_STRING = 0, 1, 2, 6, 7, 16
_SHORT_MAX = 63


def encode_variant(text: str | None) -> bytes:
    """The variant of a scalar's JSON text."""
    value = None if text is None else json.loads(text)
    if value is None:
        return bytes((_V_NULL << 2,))
    if isinstance(value, bool):
        return bytes(((_V_TRUE if value else _V_FALSE) << 2,))
    if isinstance(value, int) and -(2**63) <= value < 2**63:
        return bytes((_V_INT64 << 2,)) + struct.pack("<q", value)
    if isinstance(value, float):
        return bytes((_V_DOUBLE << 2,)) + struct.pack("<d", value)
    data = (value if isinstance(value, str) else text or "").encode()
    if len(data) <= _SHORT_MAX:
        return bytes((len(data) << 2 | 1,)) + data
    return bytes((_V_STRING << 2,)) + struct.pack("<I", len(data)) + data


def _variants(pa: Any, values: Any, kind: Any) -> Any:
    """Values repeat: each distinct one is encoded once."""
    unique = values.dictionary_encode()
    encoded = pa.array(
        [encode_variant(text) for text in unique.dictionary.to_pylist()], pa.binary()
    )
    data = encoded.take(unique.indices)
    metadata = pa.repeat(pa.scalar(_NO_NAMES, pa.binary()), len(values))
    arrays = {"value": data, "metadata": metadata}
    fields = [kind.field(index) for index in range(kind.num_fields)]
    return pa.StructArray.from_arrays([arrays[field.name] for field in fields], fields=fields)
