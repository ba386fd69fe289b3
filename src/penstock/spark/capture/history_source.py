"""Captured files as rows of the `eventhubs` source: the same columns, types and texts, so that
history and live events can be combined. Each Spark task opens some of the files."""

from __future__ import annotations

import atexit
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from pyarrow import compute, parquet
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from penstock.capture.container import (
    EMPTY_BYTES_MAX,
    AvroContainerReader,
    DamagedAvroFile,
    decode_long,
)
from penstock.capture.destinations import DestinationFolder
from penstock.capture.hub_files import ListedFile
from penstock.capture.records import CaptureRecord, Value, read_capture_records
from penstock.capture.storage import FileStore
from penstock.formats.amqp_values import encode_json
from penstock.model.capture import SequenceRange
from penstock.model.errors import ConfigurationError
from penstock.spark.capture.parquet_file import SYSTEM_TYPES, TYPES, json_from
from penstock.spark.eventhubs.data_source import spark_schema
from penstock.spark.eventhubs.options import RowOptions

SOURCE = "penstock-captured"
SCHEMA = spark_schema(RowOptions())
ARROW_SCHEMA = to_arrow_schema(SCHEMA, timezone="UTC")
_SHARE_BYTES = 64 * 1024 * 1024  # of files that one task reads
_ROWS = 4096
_LAST_FILES = 4  # of a partition, which are searched for its last event
# The source has columns for these, and not among the system properties.
_KNOWN = ("x-opt-sequence-number", "x-opt-offset", "x-opt-enqueued-time")
_KEY, _PUBLISHER = "x-opt-partition-key", "x-opt-publisher"


class HistoryPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Files to read, and the time of their events: from `since_us` on and before `until_us`."""

    targets: list[DestinationFolder]  # by the `place` of a file
    files: list[ListedFile]
    since_us: int
    until_us: int

    def __repr__(self) -> str:
        return f"HistoryPlan({len(self.files)} files)"


def write_captured_plan(plan: HistoryPlan) -> str:
    """Write a file for this user alone: its path is in the query, its content (credentials) is not.
    It is deleted when the process ends."""
    prefix = "penstock-captured-"
    with tempfile.NamedTemporaryFile(prefix=prefix, suffix=".json", delete=False) as file:
        atexit.register(Path(file.name).unlink, missing_ok=True)
        file.write(msgspec.json.encode(plan))
    return file.name


def _read_captured_plan(name: str) -> HistoryPlan:
    try:
        return msgspec.json.decode(Path(name).read_bytes(), type=HistoryPlan)
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigurationError(
            f"The list of captured files cannot be read ({type(error).__name__})."
        ) from None


class HistoryDataSource(DataSource):
    """`spark.read.format("penstock-captured").option("plan", file)`, used by `capture.read`."""

    @classmethod
    def name(cls) -> str:
        return SOURCE

    def schema(self) -> StructType:
        return SCHEMA

    def reader(self, schema: StructType) -> HistoryReader:
        return HistoryReader(_read_captured_plan(self.options.get("plan", "")))


class HistoryReader(DataSourceReader):
    def __init__(self, plan: HistoryPlan) -> None:
        self._plan = plan

    def partitions(self) -> Sequence[InputPartition]:
        """A partition has the files of one task."""
        shares: list[list[ListedFile]] = [[]]
        held = 0
        for file in self._plan.files:
            if held and held + file.size > _SHARE_BYTES:
                shares.append([])
                held = 0
            shares[-1].append(file)
            held += file.size
        return [InputPartition(share) for share in shares]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        for file in partition.value:
            yield from read_batches(self._plan, file)


def read_batches(plan: HistoryPlan, file: ListedFile) -> Iterator[Any]:
    """Record batches of one file's events, in order. Raises DamagedAvroFile, DestinationError."""
    with FileStore(plan.targets[file.place]).open(file.path) as opened:
        if file.file_type == "parquet":
            yield from _read_parquet(plan, file, opened)
            return
        held: list[CaptureRecord] = []
        for count, block in AvroContainerReader(opened).blocks():
            for record in read_capture_records(count, block):
                if plan.since_us <= record.enqueued_us < plan.until_us:
                    held.append(record)
                if len(held) >= _ROWS:
                    yield _build_batch(held, file.partition)
                    held = []
        if held:
            yield _build_batch(held, file.partition)


def next_sequence(stores: Sequence[FileStore], files: Sequence[ListedFile]) -> int | None:
    """The event after the last one of a partition's files; None when they have none. A file of a
    backfill may have a later name than a live one: of the last few files with events, the one that
    begins last is read to its end. Raises DamagedAvroFile, DestinationError."""
    begins: list[tuple[int, ListedFile]] = []
    for file in reversed(files):
        if file.file_type == "avro" and file.size <= EMPTY_BYTES_MAX:
            continue
        with stores[file.place].open(file.path) as opened:
            head = next(_sequence_ranges(file, opened), None)
        if head is not None:
            begins.append((head[0], file))
        if len(begins) == _LAST_FILES:
            break
    if not begins:
        return None
    _, last = max(begins, key=itemgetter(0))
    with stores[last.place].open(last.path) as opened:
        *_, (_, end) = _sequence_ranges(last, opened)
    return end


def _sequence_ranges(file: ListedFile, opened: Any) -> Iterator[SequenceRange]:
    """The sequence numbers of each block of an Avro file, or of a whole Parquet file."""
    if file.file_type == "parquet":
        numbers = _open_parquet(file, opened).read(columns=["SequenceNumber"]).column(0)
        if len(numbers):
            yield numbers[0].as_py(), numbers[-1].as_py() + 1
        return
    for count, block in AvroContainerReader(opened).blocks():
        first, _ = decode_long(block, 0)
        yield first, first + count


def _build_batch(held: Sequence[CaptureRecord], partition: str) -> Any:
    columns = {
        "body": [record.body for record in held],
        "partition": [partition] * len(held),
        "offset": [record.offset for record in held],
        "sequenceNumber": [record.sequence for record in held],
        "enqueuedTime": [record.enqueued_us for record in held],
        "publisher": [_text_or_none(record.system.get(_PUBLISHER)) for record in held],
        "partitionKey": [_text_or_none(record.system.get(_KEY)) for record in held],
        "properties": [_property_texts(record.properties) for record in held],
        "systemProperties": [_property_texts(record.system, leave=_KNOWN) for record in held],
    }
    arrays = [pa.array(columns[field.name], field.type) for field in ARROW_SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=ARROW_SCHEMA)


def _text_or_none(value: Value | None) -> str | None:
    return value if isinstance(value, str) else None


def _property_texts(pairs: Mapping[str, Value], leave: Sequence[str] = ()) -> list[tuple[str, str]]:
    """Values as JSON texts, as in the source."""
    return [(name, encode_json(value)) for name, value in pairs.items() if name not in leave]


def _open_parquet(file: ListedFile, opened: Any) -> Any:
    try:
        return parquet.ParquetFile(opened)
    except pa.ArrowException as error:
        raise DamagedAvroFile(f"{file.path} is not a Parquet file: {error}") from None


def _read_parquet(plan: HistoryPlan, file: ListedFile, opened: Any) -> Iterator[Any]:
    for batch in _open_parquet(file, opened).iter_batches(batch_size=_ROWS):
        times = batch.column("EnqueuedTimeUtc").cast(pa.int64())
        is_selected = compute.and_(
            compute.greater_equal(times, plan.since_us), compute.less(times, plan.until_us)
        )
        rows = batch.filter(is_selected)
        if rows.num_rows == 0:
            continue
        columns = {
            "body": rows.column("Body"),
            "partition": pa.array([file.partition] * rows.num_rows, pa.string()),
            "offset": rows.column("Offset"),
            "sequenceNumber": rows.column("SequenceNumber"),
            "enqueuedTime": rows.column("EnqueuedTimeUtc"),
            "publisher": _publishers(rows),
            "partitionKey": rows.column("PartitionKey"),
            "properties": _json_maps(rows, "Properties", TYPES),
            "systemProperties": _json_maps(rows, "SystemProperties", SYSTEM_TYPES),
        }
        arrays = [columns[field.name].cast(field.type) for field in ARROW_SCHEMA]
        yield pa.RecordBatch.from_arrays(arrays, schema=ARROW_SCHEMA)


def _publishers(rows: Any) -> Any:
    maps = rows.column("SystemProperties")
    return compute.map_lookup(maps, query_key=_PUBLISHER, occurrence="last")


def _json_maps(rows: Any, name: str, types: str) -> Any:
    """The plain texts of a Parquet file as JSON texts. Raises DamagedAvroFile."""
    maps = rows.column(name)
    if types not in rows.schema.names:
        return maps  # version 0.1 wrote no types
    letters = "".join(text or "" for text in rows.column(types).to_pylist())
    ends = maps.offsets
    first = ends[0].as_py()
    count = ends[len(ends) - 1].as_py() - first
    if len(letters) != count:
        raise DamagedAvroFile(f"{types} has {len(letters)} letters for {count} values.")
    plain = maps.items.slice(first, count).to_pylist()
    texts = [json_from(letter, text) for letter, text in zip(letters, plain, strict=True)]
    names = maps.keys.slice(first, count)
    starts = pa.array([end - first for end in ends.to_pylist()], pa.int32())
    return pa.MapArray.from_arrays(starts, names, pa.array(texts, pa.string()))
