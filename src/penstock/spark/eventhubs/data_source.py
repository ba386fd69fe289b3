"""The classes that PySpark's Data Source API requires for `eventhubs`: source, readers, writers.

Spark creates these objects in several processes: the data source where the query is planned, a
stream reader in one process that lives as long as the query, copies of both on executors. So no
object holds a socket when it is pickled.
"""

from __future__ import annotations

import ctypes
import difflib
import functools
import gc
import logging
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql import types
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StringType, StructType

from penstock.model.errors import ArgumentError
from penstock.spark.errors import plain_errors
from penstock.spark.eventhubs.options import EventHubsOptions, ReadOptions, RowOptions, WriteOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.spark.eventhubs.checkpoint_reporter import CheckpointReporter
    from penstock.spark.eventhubs.planner import ReadPlanner, StreamOffsets

_log = logging.getLogger("penstock.spark")
# Local properties that Spark sets.
_QUERY_ID, _BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"
# glibc's mallopt. Memory that is returned to the system comes back page by page, and on a virtual
# machine the first access to a page may trap into the host: a task keeps what the next batch needs.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_KEPT_BYTES = 32 * 1024 * 1024  # the most that glibc allows for the second
_SINK_COLUMNS = ("body", "partitionId", "partitionKey", "properties")


class EventHubsDataSource(DataSource):
    """The format `eventhubs`: batch and streaming, reading and writing."""

    def __init__(self, options: Mapping[str, str]) -> None:
        # Not passed to the base class, whose public attribute would hold the secrets.
        self._options = EventHubsOptions(options)
        for note in self._options.notes:
            _log.warning("eventhubs: %s.", note)

    def __repr__(self) -> str:
        return "<EventHubsDataSource>"

    @classmethod
    def name(cls) -> str:
        return "eventhubs"

    def schema(self) -> StructType:
        return spark_schema(self._options.rows())

    def reader(self, schema: StructType) -> DataSourceReader:
        rows = self._options.rows()
        return EventHubsReader(self._options.read(), rows, _check_schema(schema, rows))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        rows = self._options.rows()
        options = self._options.read()
        if self._options.text("endingPosition") or self._options.text("endingPositions"):
            raise ArgumentError(
                "A streaming query has no end: endingPosition and endingPositions are for "
                "spark.read. Trigger.AvailableNow ends at the end that the hub has."
            )
        return EventHubsStreamReader(options, rows, _check_schema(schema, rows))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        if overwrite:
            raise ArgumentError('A hub cannot be overwritten: use .mode("append").')
        return EventHubsWriter(self._options.write(), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        return EventHubsStreamWriter(self._options.write(), schema)


@functools.cache
def _configure_worker() -> None:
    """Tune this Python worker, once, before its first task: tasks allocate much memory.

    Spark runs a garbage collection after every task. `gc.freeze` excludes the objects of the
    modules that are imported by now, which stay anyway.
    """
    gc.freeze()
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return  # not glibc
    mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
    mallopt(_MMAP_THRESHOLD, _KEPT_BYTES)


class _RangeReader:
    """Reads the range of a task: the value of a partition is a SequenceRange."""

    def __init__(self, options: ReadOptions, rows: RowOptions, schema: StructType) -> None:
        self._options = options
        self._rows = rows
        self._schema = schema

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from pyspark.sql.pandas.types import to_arrow_schema

        from penstock.spark.eventhubs.planner import SequenceRange, range_settings
        from penstock.spark.eventhubs.rows import record_batches

        _configure_worker()
        with plain_errors():
            yield from record_batches(
                range_settings(self._options),
                SequenceRange(*partition.value),
                self._rows,
                to_arrow_schema(self._schema, timezone="UTC"),
                fail_on_data_loss=self._options.fail_on_data_loss,
            )


class EventHubsReader(_RangeReader, DataSourceReader):
    @plain_errors()
    def partitions(self) -> Sequence[InputPartition]:
        from penstock.spark.eventhubs.planner import ReadPlanner, SequenceRange, split_ranges
        from penstock.spark.eventhubs.positions import EARLIEST

        with ReadPlanner(self._options) as planner:
            bounds = planner.bounds()
            starts, ends = planner.starts(bounds, EARLIEST), planner.ends(bounds)
        ranges = split_ranges(
            (SequenceRange(key, starts[key], ends[key]) for key in bounds),
            self._options.max_events_per_task,
            self._options.min_partitions,
        )
        # Spark reads an empty list as one partition, None.
        return [InputPartition(tuple(span)) for span in ranges or [SequenceRange("0", 0, 0)]]


class EventHubsStreamReader(_RangeReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    _planner: ReadPlanner | None = None
    _offsets: StreamOffsets | None = None
    _reporter: CheckpointReporter | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_planner": None, "_offsets": None, "_reporter": None}

    @plain_errors()
    def initialOffset(self) -> dict[str, int]:
        return self._stream_offsets().initial()

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.max_events_per_trigger is not None:
            return ReadMaxRows(self._options.max_events_per_trigger)
        return ReadMaxBytes(self._options.max_bytes_per_trigger)

    @plain_errors()
    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        """Spark calls this when everything before `start` is processed and in its checkpoint."""
        offsets = self._stream_offsets()
        end = offsets.next(start, limited=not isinstance(limit, ReadAllAvailable))
        if self._reporter is not None:
            self._reporter.report(start)
            if end == start and offsets.is_at_its_end:
                self._reporter.flush()  # the last call of a query that ends by itself
        return end

    @plain_errors()
    def reportLatestOffset(self) -> dict[str, int] | None:
        return self._stream_offsets().latest()

    @plain_errors()
    def prepareForTriggerAvailableNow(self) -> None:
        self._stream_offsets().stop_at_current_end()

    @plain_errors()
    def partitions(self, start: Any, end: Any) -> Sequence[InputPartition]:
        return [InputPartition(tuple(span)) for span in self._stream_offsets().ranges(start, end)]

    def stop(self) -> None:
        if self._reporter is not None:
            self._reporter.close()
        if self._planner is not None:
            self._planner.close()

    def _stream_offsets(self) -> StreamOffsets:
        if self._offsets is None:
            from penstock.spark.eventhubs.checkpoint_reporter import open_checkpoint_reporter
            from penstock.spark.eventhubs.planner import ReadPlanner, StreamOffsets

            planner = self._planner = self._planner or ReadPlanner(self._options)
            offsets = StreamOffsets(self._options, planner)
            self._reporter = open_checkpoint_reporter(
                self._options, offsets.service_offset, is_penstock=planner.is_penstock
            )
            self._offsets = offsets
        return self._offsets


class EventHubsWriter(DataSourceArrowWriter):
    """A batch write. Created once, where the query is planned: all runs of its tasks share the job
    id."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_columns(schema)
        self._options = options
        self._job = options.sink_id or secrets.token_hex(16)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _publish(iterator, self._options, ("batch", self._job))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Everything is stored already."""


class EventHubsStreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_columns(schema)
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        task = _task_context()
        query, batch = task.getLocalProperty(_QUERY_ID), task.getLocalProperty(_BATCH_ID)
        if query is None or batch is None:
            # Another run of the batch could not be distinguished from another batch.
            return _publish(iterator, self._options, ("stream", secrets.token_hex(32)))
        return _publish(iterator, self._options, ("stream", self._options.sink_id or query, batch))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Everything is stored already."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """What some tasks have stored stays: they skip it when the batch is run again."""


def check_columns(schema: StructType) -> None:
    """Raise ArgumentError unless the sink can write these columns. It ignores columns of the source
    and others, but not a misspelled column of its own."""
    columns = {field.name.lower(): field.dataType for field in schema}
    body = columns.get("body")
    if not isinstance(body, StringType | types.BinaryType):
        actual = "there is none" if body is None else f"it is {body.simpleString()}"
        raise ArgumentError(f"The sink needs a column body of type string or binary: {actual}.")
    for name in ("partitionid", "partitionkey"):
        if not isinstance(columns.get(name, StringType()), StringType | types.IntegralType):
            raise ArgumentError(f"The column {name} is {columns[name].simpleString()}, not string.")
    properties = columns.get("properties")
    if properties is not None and not isinstance(properties, types.MapType):
        raise ArgumentError(
            f"The column properties is {properties.simpleString()}: map<string,string> is needed."
        )
    sink_columns = [name.lower() for name in _SINK_COLUMNS]
    source_columns = {field.name.lower() for field in spark_schema(RowOptions(hub=True))}
    for name in columns.keys() - source_columns.union(sink_columns):
        near = difflib.get_close_matches(name, sink_columns, 1, 0.85)
        if near:
            raise ArgumentError(
                f"The sink has no column {name!r}: did you mean {near[0]!r}? It takes "
                f"{', '.join(_SINK_COLUMNS)}."
            )


def _task_context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "write() runs in a task"
    return context


@plain_errors()
def _publish(
    batches: Iterator[pa.RecordBatch], options: WriteOptions, identity: tuple[object, ...]
) -> WriterCommitMessage:
    from penstock.spark.eventhubs.sink import publish

    _configure_worker()
    publish(batches, options, (*identity, _task_context().partitionId()))
    return WriterCommitMessage()  # the events are stored already


def spark_schema(rows: RowOptions) -> StructType:
    """The columns of the old connector, by the same names and types."""
    value = types.VariantType() if rows.properties_format == "variant" else StringType()
    schema = (
        StructType()
        .add("body", StringType() if rows.body_format == "string" else types.BinaryType())
        .add("partition", StringType())
        .add("offset", StringType())
        .add("sequenceNumber", types.LongType())
        .add("enqueuedTime", types.TimestampType())
        .add("publisher", StringType())
        .add("partitionKey", StringType())
    )
    if rows.properties:
        schema = schema.add("properties", types.MapType(StringType(), value))
    if rows.system:
        schema = schema.add("systemProperties", types.MapType(StringType(), value))
    return schema.add("eventHub", StringType()) if rows.hub else schema


def _check_schema(schema: StructType, rows: RowOptions) -> StructType:
    """Raise ArgumentError if the user's schema is not the one of the format."""
    own = spark_schema(rows)
    if [(f.name, f.dataType) for f in own] != [(f.name, f.dataType) for f in schema]:
        raise ArgumentError(
            f"The schema of eventhubs is fixed: {own.simpleString()}. Leave .schema(...) out."
        )
    return own
