"""`eventhubs` as Spark's Python Data Source API wants it: thin, the deciding is elsewhere.

Spark makes these objects in several processes: the data source where the query is planned, a
stream reader in one process that lives as long as the query, copies of both on executors. So
nothing here holds a socket when it is pickled.
"""

from __future__ import annotations

import difflib
import logging
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import (
    BinaryType,
    IntegralType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
    VariantType,
)

from penstock.model.errors import ArgumentError
from penstock.spark.errors import plain_errors
from penstock.spark.eventhubs.options import EventHubsOptions, ReadOptions, RowOptions, WriteOptions
from penstock.spark.eventhubs.planner import positions_of

try:  # Spark 4.2
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadMaxBytes,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
except ImportError:  # Spark 4.0 and 4.1: latestOffset() is called without start and limit
    ReadAllAvailable = ReadMaxBytes = ReadMaxRows = None  # type: ignore[misc,assignment]
    SupportsTriggerAvailableNow = object  # type: ignore[misc,assignment]

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.spark.eventhubs.checkpoint_reporter import CheckpointReporter
    from penstock.spark.eventhubs.hub_bounds import ReadPlanner
    from penstock.spark.eventhubs.planner import SequenceRange
    from penstock.spark.eventhubs.source import StreamOffsets

_log = logging.getLogger("penstock.spark")
_QUERY_ID, _BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"  # Spark's own words
_SINK_COLUMNS = ("body", "partitionId", "partitionKey", "properties")
_SOURCE_COLUMNS = (
    "body",
    "partition",
    "offset",
    "sequenceNumber",
    "enqueuedTime",
    "publisher",
    "partitionKey",
    "properties",
    "systemProperties",
    "eventHub",
)


class EventHubsDataSource(DataSource):
    """`spark.read.format("eventhubs")` and its three sisters."""

    def __init__(self, options: Mapping[str, str]) -> None:
        # Not given to the base class, whose attribute would show secrets to whoever prints it.
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
                "spark.read. Trigger.AvailableNow ends at what is there."
            )
        return EventHubsStreamReader(options, rows, _check_schema(schema, rows))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        if overwrite:
            raise ArgumentError('A hub cannot be overwritten: use .mode("append").')
        return EventHubsWriter(self._options.write(), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        return EventHubsStreamWriter(self._options.write(), schema)


class SequenceRangePartition(InputPartition):
    """One task's events."""

    def __init__(self, span: SequenceRange) -> None:
        super().__init__(tuple(span))


class EventHubsReader(DataSourceReader):
    def __init__(self, options: ReadOptions, rows: RowOptions, schema: StructType) -> None:
        self._options = options
        self._rows = rows
        self._schema = schema

    @plain_errors()
    def partitions(self) -> Sequence[InputPartition]:
        from penstock.spark.eventhubs.hub_bounds import ReadPlanner
        from penstock.spark.eventhubs.planner import SequenceRange, split_ranges
        from penstock.spark.eventhubs.positions import EARLIEST

        planner = ReadPlanner(self._options)
        try:
            bounds = planner.bounds()
            starts = planner.starts(bounds, EARLIEST)
            ends = planner.ends(bounds)
        finally:
            planner.close()
        spans = split_ranges(
            (SequenceRange(key, starts[key], ends[key]) for key in bounds),
            max_events_per_task=self._options.max_events_per_task,
            min_partitions=self._options.min_partitions,
        )
        # Spark takes an empty list for "one partition, None".
        return [SequenceRangePartition(span) for span in spans] or [
            SequenceRangePartition(SequenceRange("0", 0, 0))
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read_range(partition, self._options, self._rows, self._schema)


class EventHubsStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: ReadOptions, rows: RowOptions, schema: StructType) -> None:
        self._options = options
        self._rows = rows
        self._schema = schema
        self._planner: ReadPlanner | None = None
        self._poller: StreamOffsets | None = None
        self._committer: CheckpointReporter | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_planner": None, "_poller": None, "_committer": None}

    @plain_errors()
    def initialOffset(self) -> dict[str, int]:
        return self._stream_offsets().initial()

    def getDefaultReadLimit(self) -> Any:
        if self._options.max_events_per_trigger is not None:
            return ReadMaxRows(self._options.max_events_per_trigger)
        return ReadMaxBytes(self._options.max_bytes_per_trigger)

    @plain_errors()
    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, int]:
        """`start` is the end of what is processed and noted: Spark asks for more only then."""
        limited = ReadAllAvailable is None or not isinstance(limit, ReadAllAvailable)
        poller = self._stream_offsets()
        end = poller.next(start, limited=limited)
        if start is not None and self._committer is not None:
            self._committer.note(positions_of(start))
            if end == start and poller.is_at_its_end:
                self._committer.flush()  # the last call of a query that ends by itself
        return end

    @plain_errors()
    def reportLatestOffset(self) -> dict[str, int] | None:
        return self._stream_offsets().known_ends()

    @plain_errors()
    def prepareForTriggerAvailableNow(self) -> None:
        self._stream_offsets().stop_at_present()

    @plain_errors()
    def partitions(self, start: Any, end: Any) -> Sequence[InputPartition]:
        return [SequenceRangePartition(span) for span in self._stream_offsets().spans(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read_range(partition, self._options, self._rows, self._schema)

    def stop(self) -> None:
        if self._committer is not None:
            self._committer.close()
        if self._planner is not None:
            self._planner.close()

    def _stream_offsets(self) -> StreamOffsets:
        if self._poller is None:
            from penstock.spark.eventhubs.checkpoint_reporter import open_checkpoint_reporter
            from penstock.spark.eventhubs.hub_bounds import ReadPlanner
            from penstock.spark.eventhubs.source import StreamOffsets

            planner = self._planner = self._planner or ReadPlanner(self._options)
            poller = StreamOffsets(self._options, planner)
            self._committer = open_checkpoint_reporter(
                self._options, poller.offset_of, is_penstock=planner.is_penstock
            )
            self._poller = poller
        return self._poller


class SinkCommitMessage(WriterCommitMessage):
    """One task's events are stored."""

    def __init__(self, count: int) -> None:
        self.count = count


class EventHubsWriter(DataSourceArrowWriter):
    """A batch write. Made once, where the query is planned: all runs of its tasks share `_job`."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_columns(schema)
        self._options = options
        self._job = options.sink_id or secrets.token_hex(16)

    @plain_errors()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> SinkCommitMessage:
        from penstock.spark.eventhubs.sink import publish
        from penstock.spark.worker import configure_worker

        configure_worker()
        task = _task()
        return SinkCommitMessage(
            publish(iterator, self._options, ("batch", self._job, task.partitionId()))
        )

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Everything is stored already."""


class EventHubsStreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_columns(schema)
        self._options = options
        self._run = secrets.token_hex(16)

    @plain_errors()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> SinkCommitMessage:
        from penstock.spark.eventhubs.sink import publish
        from penstock.spark.worker import configure_worker

        configure_worker()
        task = _task()
        query = task.getLocalProperty(_QUERY_ID)
        batch = task.getLocalProperty(_BATCH_ID)
        # Without them another run of the batch could not be told from another batch.
        identity: tuple[object, ...] = ("stream", self._run, secrets.token_hex(16))
        if query is not None and batch is not None:
            identity = ("stream", self._options.sink_id or query, batch)
        return SinkCommitMessage(publish(iterator, self._options, (*identity, task.partitionId())))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Everything is stored already."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """What some tasks have stored stays: when the batch is run again, they leave it out."""


def check_columns(schema: StructType) -> None:
    """Columns of the source come along unharmed; a misspelt one of ours would be lost."""
    types = {field.name.lower(): field.dataType for field in schema}
    body = types.get("body")
    if not isinstance(body, StringType | BinaryType):
        seen = "there is none" if body is None else f"it is {body.simpleString()}"
        raise ArgumentError(f"The sink needs a column body of type string or binary: {seen}.")
    for name in ("partitionid", "partitionkey"):
        if not isinstance(types.get(name, StringType()), StringType | IntegralType):
            raise ArgumentError(f"The column {name} is {types[name].simpleString()}, not string.")
    properties = types.get("properties")
    if properties is not None and not isinstance(properties, MapType):
        raise ArgumentError(
            f"The column properties is {properties.simpleString()}: map<string,string> is needed."
        )
    for name in types.keys() - {field.lower() for field in (*_SINK_COLUMNS, *_SOURCE_COLUMNS)}:
        near = difflib.get_close_matches(name, [n.lower() for n in _SINK_COLUMNS], 1, 0.85)
        if near:
            raise ArgumentError(
                f"The sink has no column {name!r}: did you mean {near[0]!r}? It takes "
                f"{', '.join(_SINK_COLUMNS)}."
            )


def _task() -> TaskContext:
    task = TaskContext.get()
    assert task is not None, "write() runs in a task"
    return task


def _read_range(
    partition: InputPartition, options: ReadOptions, rows: RowOptions, schema: StructType
) -> Iterator[pa.RecordBatch]:
    from pyspark.sql.pandas.types import to_arrow_schema

    from penstock.spark.eventhubs.hub_bounds import range_settings
    from penstock.spark.eventhubs.planner import SequenceRange
    from penstock.spark.eventhubs.rows import record_batches
    from penstock.spark.worker import configure_worker

    configure_worker()
    with plain_errors():
        yield from record_batches(
            range_settings(options),
            SequenceRange(*partition.value),
            rows,
            to_arrow_schema(schema, timezone="UTC"),
            fail_on_data_loss=options.fail_on_data_loss,
        )


def spark_schema(rows: RowOptions) -> StructType:
    """The columns of the old connector, by the same names and types."""
    value = VariantType() if rows.properties_format == "variant" else StringType()
    schema = (
        StructType()
        .add("body", StringType() if rows.body_text else BinaryType())
        .add("partition", StringType())
        .add("offset", StringType())
        .add("sequenceNumber", LongType())
        .add("enqueuedTime", TimestampType())
        .add("publisher", StringType())
        .add("partitionKey", StringType())
    )
    if rows.properties:
        schema = schema.add("properties", MapType(StringType(), value))
    if rows.system:
        schema = schema.add("systemProperties", MapType(StringType(), value))
    return schema.add("eventHub", StringType()) if rows.hub else schema


def _check_schema(schema: StructType, rows: RowOptions) -> StructType:
    """Spark hands over a user's schema as it is: only ours can be read."""
    own = spark_schema(rows)
    if [(f.name, f.dataType) for f in own] != [(f.name, f.dataType) for f in schema]:
        raise ArgumentError(
            f"The schema of eventhubs is fixed: {own.simpleString()}. Leave .schema(...) out."
        )
    return own
