"""Columns: how the kernel's buffers become Arrow record batches."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from penstock.client.ranges import EventsLost, RangeSettings, read_chunks
from penstock.formats.amqp_values import json_text, plain_text
from penstock.kernels import ArrowColumnBuilder
from penstock.spark.errors import events_gone
from penstock.spark.eventhubs.options import RowOptions
from penstock.spark.eventhubs.planner import SequenceRange

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.kernels import ArrowColumns, MapColumn, TextColumn

# Between a thousand and ten thousand rows a batch Spark is at its fastest.
BATCH_ROWS = 8192
BATCH_BYTES = 2 * 1024 * 1024  # what is made, sent and read again stays in the processor's cache


def record_batches(
    settings: RangeSettings,
    span: SequenceRange,
    rows: RowOptions,
    schema: pa.Schema,
    *,
    fail_on_data_loss: bool,
) -> Iterator[pa.RecordBatch]:
    """The events of a span, in order. Raises DataLoss where some are gone, unless that is
    allowed; then it goes on with what is there. Raises ClientError."""
    maker = _BatchBuilder(settings, span, rows, schema)
    gatherer = ArrowColumnBuilder(
        plain_text if rows.properties_format == "string" else json_text,
        properties=rows.properties,
        system=rows.system,
        json=rows.properties_format != "string",
    )
    hub = settings.eventhub_name or ""
    expected = span.first
    while expected < span.end:
        try:
            for chunk in read_chunks(settings, span.partition_id, expected, span.end - 1):
                if chunk.first > expected and fail_on_data_loss:
                    raise events_gone(hub, span.partition_id, expected, chunk.first, chunk.first)
                gatherer.add(chunk.data, chunk.bounds)
                expected = chunk.last + 1
                if gatherer.rows >= BATCH_ROWS or gatherer.size >= BATCH_BYTES:
                    yield maker.batch(gatherer.take())
            break
        except EventsLost as error:
            if fail_on_data_loss:
                raise events_gone(
                    hub, span.partition_id, expected, error.found, error.found
                ) from error
            expected = max(expected, error.found)
    if expected < span.end and fail_on_data_loss:
        raise events_gone(hub, span.partition_id, expected, span.end, None)
    if gatherer.rows:
        yield maker.batch(gatherer.take())


class _BatchBuilder:
    """Makes batches of one span: what is the same in each row is made once."""

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
        self._kept: dict[tuple[str, int], Any] = {}

    def batch(self, gathered: ArrowColumns) -> pa.RecordBatch:
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
        if not self._rows.body_text:
            return body
        try:
            return body.cast(pa.string())
        except pa.ArrowInvalid:  # some are no UTF-8
            decoded = [
                None if each is None else each.decode("utf-8", "replace")
                for each in body.to_pylist()
            ]
            return pa.array(decoded, pa.string())

    def _texts(self, texts: TextColumn, count: int, *, binary: bool = False) -> Any:
        pa = self._pa
        kind = pa.binary() if binary else pa.string()
        valid = None if texts.valid is None else pa.py_buffer(texts.valid)
        buffers = [valid, pa.py_buffer(texts.ends), pa.py_buffer(texts.data)]
        return pa.Array.from_buffers(kind, count, buffers)

    def _constant(self, name: str, count: int) -> Any:
        key = (name, count)
        if key not in self._kept:
            if len(self._kept) > 64:
                self._kept.clear()
            self._kept[key] = self._pa.repeat(
                self._pa.scalar(self._constants[name], self._pa.string()), count
            )
        return self._kept[key]

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
# scalars; what is not goes in as its JSON text.

_NO_NAMES = b"\x01\x00\x00"
_V_NULL, _V_TRUE, _V_FALSE, _V_INT64, _V_DOUBLE, _V_STRING = 0, 1, 2, 6, 7, 16
_SHORT_MAX = 63


def variant_of(text: str | None) -> bytes:
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
    """Values repeat: each is made once."""
    encoded = values.dictionary_encode()
    made = pa.array([variant_of(text) for text in encoded.dictionary.to_pylist()], pa.binary())
    indices = encoded.indices
    data = made.take(indices)
    metadata = pa.repeat(pa.scalar(_NO_NAMES, pa.binary()), len(values))
    arrays = {"value": data, "metadata": metadata}
    fields = [kind.field(index) for index in range(kind.num_fields)]
    return pa.StructArray.from_arrays([arrays[field.name] for field in fields], fields=fields)
