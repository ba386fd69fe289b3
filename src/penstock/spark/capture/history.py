"""Captured history as DataFrames: alone, and bridged to the live hub.

`penstock.capture.read` calls `read`. The files that exist at the call are history; what the log has
after the last of them is live. Captured files have the columns, types and texts of the `eventhubs`
source, so that both can be combined. Each Spark task opens some of the files.
"""

from __future__ import annotations

import atexit
import itertools
import json
import logging
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from pyarrow import compute, parquet
from pyspark.sql import DataFrame, SparkSession, functions
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from penstock.capture import destinations, hub_files
from penstock.capture.container import (
    EMPTY_BYTES_MAX,
    AvroContainerReader,
    DamagedAvroFile,
    decode_long,
)
from penstock.capture.description import INTERVAL_S, NAME_FORMAT_DEFAULT, check_name_format
from penstock.capture.destinations import DestinationFolder
from penstock.capture.hub_files import FileLocationFilter, ListedFile
from penstock.capture.records import CaptureRecord, Value, read_capture_records
from penstock.capture.storage import FileStore
from penstock.formats.amqp_values import encode_json
from penstock.formats.quantities import EPOCH
from penstock.management.client import ManagementClient
from penstock.model.capture import SequenceRange
from penstock.model.errors import ArgumentError, ConfigurationError
from penstock.spark.capture.parquet_file import SYSTEM_TYPES, TYPES, json_from
from penstock.spark.capture.plan import find_reading_rule
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
BEYOND_US = 2**62  # later than every event
_TOLERANCE_S = 120  # names of a backfill may be a minute early, and clocks differ
_log = logging.getLogger("penstock.capture")
Moment = datetime | str | None


class HistoryLocation(msgspec.Struct, frozen=True, kw_only=True):
    """A hub, where its files are, and source options for the live hub."""

    locations: list[FileLocationFilter]
    namespace: str
    hub: str
    live: dict[str, str] = {}

    def __repr__(self) -> str:  # the options contain a key
        return f"HistoryLocation({self.namespace}/{self.hub})"


def read(
    spark: SparkSession,
    hub: str,
    *,
    start: Moment = None,
    end: Moment = None,
    live: bool = False,
    connection_string: str | None = None,
    **options: Any,
) -> DataFrame:
    """The captured events of a hub, stored from `start` on and before `end` (UTC), in the columns
    of the `eventhubs` source. With `live` also those that are in the log and in no file yet, each
    event once.

    Without the option `url` the service is asked where the files are (PENSTOCK_DATA, or
    PENSTOCK_ADMIN_URL and PENSTOCK_ADMIN_TOKEN) and how the hub is read; with it, `container`,
    `namespace` and `name_format` locate the files. `options` are the destination's
    (`account_name`, `account_key`, ...). Further ones are of the `eventhubs` source. Raises
    PenstockError."""
    files = _find_files(hub, connection_string, **options)
    history = files.frame(spark, start, end)
    if not live:
        return history
    return history.unionByName(files.load_live(spark.read, start, end))


def bridge(
    spark: SparkSession,
    hub: str,
    *,
    start: Moment = None,
    connection_string: str | None = None,
    **options: Any,
) -> tuple[DataFrame, DataFrame]:
    """History, and a stream that begins after it: each event is in exactly one of them. Parameters
    are as for `read`."""
    files = _find_files(hub, connection_string, **options)
    return files.frame(spark, start, None), files.load_live(spark.readStream, start, None)


class CapturedFiles:
    """The files that a hub has now. Raises DestinationError."""

    def __init__(self, where: HistoryLocation) -> None:
        self._where = where
        self._stores = [FileStore(location.target) for location in where.locations]
        self._files = hub_files.list_hub_files(
            where.locations, self._stores, where.namespace, where.hub
        )

    def frame(self, spark: SparkSession, start: Moment, end: Moment) -> DataFrame:
        """Their events, stored from `start` on and before `end`."""
        since_us = to_microseconds("start", start, -BEYOND_US)
        until_us = to_microseconds("end", end, BEYOND_US)
        plan = HistoryPlan(
            targets=[location.target for location in self._where.locations],
            files=select_files(self._files, since_us, until_us),
            since_us=since_us,
            until_us=until_us,
        )
        spark.dataSource.register(HistoryDataSource)
        file = write_captured_plan(plan)
        return spark.read.format(SOURCE).option("plan", file).load()

    def load_live(self, reader: Any, start: Moment, end: Moment) -> Any:
        """The events of the live hub that follow the last ones of the files, stored from `start`
        on and before `end`."""
        if not self._where.live:
            raise ArgumentError(
                "Live events are read from the hub: give connection_string, or set "
                "PENSTOCK_CONNECTION_STRING."
            )
        options = {
            "eventhubs.eventHubName": self._where.hub,
            "eventhubs.startingPosition": "earliest",
            **self._where.live,
        }
        following = {
            key: number
            for key, files in itertools.groupby(self._files, key=attrgetter("partition"))
            if (number := next_sequence(self._stores, list(files))) is not None
        }
        if following:
            options["eventhubs.startingPositions"] = json.dumps(following)
        frame = reader.format("eventhubs").options(**options).load()
        for name, moment in (("start", start), ("end", end)):
            if moment is not None:
                bound = functions.timestamp_micros(functions.lit(to_microseconds(name, moment, 0)))
                column = functions.col("enqueuedTime")
                frame = frame.where(column >= bound if name == "start" else column < bound)
        return frame.select(SCHEMA.names)


def select_files(files: Sequence[ListedFile], since_us: int, until_us: int) -> list[ListedFile]:
    """Files that can have events of that time, by their names: too many cost time, too few would
    lose events.

    A window's events were stored before it closed, and at most an interval before that. Its name
    is the time when it closed, or later: where windows close more often than once a second, each
    is named a second after the one before. So a name may be late by as many seconds as the names
    before it are consecutive. A second without a file may be a window without a file, which took
    at least an interval."""
    chosen = []
    before: ListedFile | None = None
    late_s = 0
    for file in files:
        if before is None or before.partition != file.partition:
            late_s = 0
        else:
            distance_s = file.named_s - before.named_s
            gap_s = max(0, distance_s - 1)
            late_s = max(0, late_s + distance_s - gap_s * INTERVAL_S[0])
        before = file
        closed_us = (file.named_s + _TOLERANCE_S) * 1_000_000
        opened_us = (file.named_s - late_s - INTERVAL_S[1] - _TOLERANCE_S) * 1_000_000
        if closed_us >= since_us and opened_us < until_us:
            chosen.append(file)
    return chosen


def _find_files(
    hub: str,
    connection_string: str | None,
    *,
    url: str | None = None,
    options: Mapping[str, str] | None = None,
    container: str = "",
    namespace: str | None = None,
    name_format: str = NAME_FORMAT_DEFAULT,
    **source: str,
) -> CapturedFiles:
    """`source` are options of the `eventhubs` source."""
    storage = dict(options or {})
    if url is None:
        where = locate_history(hub, namespace, storage)
    elif namespace is None:
        raise ArgumentError("With url, give the namespace too: it is part of the paths.")
    else:
        destinations.check_destination("url", url, storage)
        destination = destinations.Destination(name="url", url=url, options=storage)
        target = destinations.resolve_destination([destination], "url", container)
        location = FileLocationFilter(target=target, name_format=check_name_format(name_format))
        where = HistoryLocation(locations=[location], namespace=namespace, hub=hub)
    text = connection_string or os.environ.get("PENSTOCK_CONNECTION_STRING")
    live = {"eventhubs.connectionString": text} if text else where.live
    return CapturedFiles(msgspec.structs.replace(where, live=live and {**live, **source}))


def locate_history(hub: str, namespace: str | None, options: dict[str, str]) -> HistoryLocation:
    """Ask the service that the environment names. Credentials of destinations come from the
    environment or from `options`. Raises PenstockError."""
    with ManagementClient.find() as client:
        namespace = namespace or client.namespaces()[0].name
        statuses = [
            status
            for status in client.capture_status()
            if (status.namespace, status.hub.casefold()) == (namespace, hub.casefold())
        ]
        if not statuses:
            client.hub(namespace, hub)  # raises NotFound, unless it was never captured
            raise ArgumentError(f"The event hub '{hub}' was never captured.")
        configured = [
            destinations.environment_destination(summary.name, summary.url, os.environ, options)
            for summary in client.capture_destinations()
        ]
        live = {}
        rule = find_reading_rule(client, namespace, preferred="Listen")
        if rule is not None:
            keys = client.keys(namespace, None, rule.name)
            live["eventhubs.connectionString"] = keys.primary_connection_string
            if client.ca_file:
                live["eventhubs.tls.caFile"] = client.ca_file
    (status,) = statuses
    locations, warnings = hub_files.resolve_locations(
        status.places, configured, created_ms=status.created_ms
    )
    for warning in warnings:
        _log.warning("%s", warning)
    return HistoryLocation(locations=locations, namespace=namespace, hub=status.hub, live=live)


def to_microseconds(name: str, moment: Moment, default: int) -> int:
    """Microseconds since 1970. A time without a zone is UTC. Raises ArgumentError."""
    if moment is None:
        return default
    try:
        at = datetime.fromisoformat(moment) if isinstance(moment, str) else moment
    except ValueError:
        raise ArgumentError(f"{name} is {moment!r}: an ISO time is expected.") from None
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return (at - EPOCH) // timedelta(microseconds=1)


# --- files as rows -------------------------------------------------------------------------------


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
