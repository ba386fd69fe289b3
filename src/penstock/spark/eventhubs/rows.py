"""Columns of the source: the kernel's buffers become Arrow record batches."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from functools import lru_cache, partial
from typing import Any

import pyarrow as pa

from penstock.client.ranges import EventsLost, RangeSettings, read_chunks
from penstock.formats.amqp_values import json_text, plain_text
from penstock.kernels import ArrowColumnBuilder, ArrowColumns, MapColumn, TextColumn
from penstock.spark.arrow_arrays import TIME, map_array, number_array, text_array, value_array
from penstock.spark.errors import events_gone_error
from penstock.spark.eventhubs.options import RowOptions
from penstock.spark.eventhubs.planner import SequenceRange

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
    hub = settings.eventhub_name or ""
    build = partial(_build_batch, rows=rows, schema=schema, hub=hub, partition=span.partition_id)
    columns = ArrowColumnBuilder(
        plain_text if rows.properties_format == "string" else json_text,
        properties=rows.properties,
        system=rows.system,
        json=rows.properties_format != "string",
    )
    gone_error = partial(events_gone_error, hub, span.partition_id)
    expected = span.first
    while expected < span.end:
        try:
            for chunk in read_chunks(settings, span.partition_id, expected, span.end - 1):
                if chunk.first > expected and fail_on_data_loss:
                    raise gone_error(expected, chunk.first, chunk.first)
                columns.add(chunk.data, chunk.bounds)
                expected = chunk.last + 1
                if columns.rows >= BATCH_ROWS or columns.size >= BATCH_BYTES:
                    yield build(columns.take())
            break
        except EventsLost as error:
            if fail_on_data_loss:
                raise gone_error(expected, error.found, error.found) from error
            expected = max(expected, error.found)
    if expected < span.end and fail_on_data_loss:
        raise gone_error(expected, span.end, None)
    if columns.rows:
        yield build(columns.take())


def _build_batch(
    gathered: ArrowColumns, *, rows: RowOptions, schema: pa.Schema, hub: str, partition: str
) -> pa.RecordBatch:
    count = gathered.rows
    columns: dict[str, Any] = {
        "body": _body_array(gathered.body, count, rows),
        "partition": _constant_array(partition, count),
        "offset": text_array(gathered.offset, count),
        "sequenceNumber": number_array(pa.int64(), count, gathered.sequence_numbers),
        "enqueuedTime": number_array(TIME, count, gathered.enqueued_us),
        "publisher": text_array(gathered.publisher, count),
        "partitionKey": text_array(gathered.partition_key, count),
    }
    if rows.properties:
        kind = schema.field("properties").type
        columns["properties"] = _properties_array(gathered.properties, count, kind, rows)
    if rows.system:
        kind = schema.field("systemProperties").type
        columns["systemProperties"] = _properties_array(gathered.system, count, kind, rows)
    if rows.hub:
        columns["eventHub"] = _constant_array(hub, count)
    return pa.RecordBatch.from_arrays([columns[field.name] for field in schema], schema=schema)


def _body_array(texts: TextColumn, count: int, rows: RowOptions) -> pa.Array:
    body = text_array(texts, count, pa.binary())
    if rows.body_format == "binary":
        return body
    try:
        return body.cast(pa.string())
    except pa.ArrowInvalid:  # some bodies are not UTF-8
        bodies = body.to_pylist()
        decoded = [None if data is None else data.decode("utf-8", "replace") for data in bodies]
        return pa.array(decoded, pa.string())


@lru_cache(maxsize=64)
def _constant_array(text: str, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(text, pa.string()), count)


def _properties_array(maps: MapColumn, count: int, kind: pa.DataType, rows: RowOptions) -> pa.Array:
    values = value_array(maps)
    if rows.properties_format == "variant":
        values = _variants(values, kind.item_type)
    return map_array(maps, count, kind, values)


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


def _variants(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Values repeat: each distinct one is encoded once."""
    unique = values.dictionary_encode()
    encoded = [encode_variant(text) for text in unique.dictionary.to_pylist()]
    arrays = {
        "value": pa.array(encoded, pa.binary()).take(unique.indices),
        "metadata": pa.repeat(pa.scalar(_NO_NAMES, pa.binary()), len(values)),
    }
    fields = [kind.field(index) for index in range(kind.num_fields)]
    return pa.StructArray.from_arrays([arrays[field.name] for field in fields], fields=fields)
