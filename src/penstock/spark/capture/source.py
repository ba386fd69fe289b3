"""Capture inside Spark: a source whose micro-batches are whole windows, and a sink that makes a
file of each.

The offset holds the windows of the batch that ends there, and what they were cut for: Spark writes
it down before any task runs, so a batch that is run again writes the very same files, whatever was
changed meanwhile. Between source and sink travel blocks of Avro records, not events.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import BinaryType, BooleanType, LongType, StringType, StructType

from penstock.capture import file_names
from penstock.capture.captured_file import CapturedFile
from penstock.capture.container import AvroContainerReader, DamagedAvroFile
from penstock.capture.description import CaptureDescription
from penstock.capture.destinations import FileStore, resolve_destination
from penstock.capture.ledger import CaptureStateFile, ClosedWindow
from penstock.capture.taken import FileNameRegistry
from penstock.capture.window_file import TRIES, AvroFile, WindowFile, spool_directory, upload_file
from penstock.capture.windows import (
    ClosedRange,
    PartitionEnd,
    PartitionObservation,
    WindowRules,
    WindowStart,
    WindowTimer,
    close_windows,
    is_log_behind,
    open_first_windows,
    window_start_at_end,
)
from penstock.model.errors import ArgumentError, InternalError
from penstock.spark.capture.blocks import read_blocks
from penstock.spark.capture.log_reader import CaptureLogReader, CapturePartitionLog
from penstock.spark.capture.plan import (
    OPTION,
    SINK,
    CapturePlan,
    read_plan,
    window_name,
)
from penstock.spark.eventhubs.data_source import EventHubsDataSource

SCHEMA = (
    StructType()
    .add("partition", StringType())
    .add("window", LongType())
    .add("first", LongType())
    .add("end", LongType())
    .add("named_s", LongType())
    .add("closed_ms", LongType())
    .add("settings", StringType())
    .add("count", LongType())
    .add("first_ms", LongType())
    .add("last_ms", LongType())
    .add("is_last", BooleanType())
    .add("block", BinaryType())
)
_WINDOWS_MAX = 16  # of one partition in one batch
_BYTES_MAX = 256 * 1024 * 1024  # of one partition in one batch, unless one window has more
_PIECE_BYTES = 1024 * 1024
_TASKS_MAX = 3  # of one partition at once: a group has five readers at most

_log = logging.getLogger("penstock.capture")

Offset = dict[str, Any]


class CaptureSource(EventHubsDataSource):
    """`spark.readStream.format("eventhubs").option("capturePlan", file)`: the source `eventhubs`,
    as the sessions of the capture job alone have it. Without a plan it is the one of everybody;
    everybody's refuses plans, so nobody's query can have one read."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._file = options.get(OPTION)
        others = {name: value for name, value in options.items() if name.lower() != OPTION.lower()}
        super().__init__(others)

    def schema(self) -> StructType:
        return super().schema() if self._file is None else SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        if self._file is None:
            return super().streamReader(schema)
        return CaptureStreamReader(read_plan(self._file))


class WindowsPartition(InputPartition):
    """Some windows of one batch, in order."""

    def __init__(self, cuts: Sequence[tuple[str, ClosedRange]], settings: str) -> None:
        super().__init__((list(cuts), settings))
        self.cuts = list(cuts)
        self.settings = settings  # what they were cut for, as JSON


class CaptureStreamReader(DataSourceStreamReader):
    def __init__(self, plan: CapturePlan) -> None:
        self._plan = plan
        self._log: CaptureLogReader | None = None
        self._watch = WindowTimer()

    def __getstate__(self) -> dict[str, Any]:
        return {"plan": self._plan}  # an executor needs no connection of the driver's

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["plan"])  # type: ignore[misc]

    def initialOffset(self) -> Offset:
        """Where the ledger says that we stand, if the checkpoint was lost; where the service knows
        us to be, if the ledger was lost too; else where Capture was switched on."""
        ledger = CaptureStateFile(self._plan.ledger)
        try:
            known = ledger.places()
        finally:
            ledger.close()
        places = {key: self._first(key) for key in self._plan.starts}
        places |= {key: each.place for key, each in self._plan.reached.items()}
        return self._offset(places | known, {})

    def latestOffset(self, start: Offset, limit: Any) -> Offset:
        """Behind the windows that are over; `start` itself when none is."""
        stood = window_starts(start)
        if self._log is None:
            self._log = CaptureLogReader(self._plan.ranges)
        ends = self._log.ends()
        for key in ends.keys() - stood.keys():
            stood[key] = self._first(key)
        views = {key: CapturePartitionLog(self._log, key) for key in stood}
        places = open_first_windows(stood, ends, views)
        cuts: dict[str, list[ClosedRange]] = {}
        for key in sorted(places, key=partition_order):
            if key in ends:
                place, found = self._close_windows(key, places[key], ends[key], views[key])
                if found:
                    places[key], cuts[key] = place, found
        # Without a window nothing is written down: Spark compares offsets as texts. With one, also
        # when the others were opened.
        return self._offset(places, cuts) if cuts else start

    def _close_windows(
        self, key: str, place: WindowStart, end: PartitionEnd, view: CapturePartitionLog
    ) -> tuple[WindowStart, list[ClosedRange]]:
        """The windows of one partition that are over, under names that are ours."""
        now_ms = time.time_ns() // 1_000_000
        if is_log_behind(place, end):
            _log.warning(
                "the log of %s/%s, partition %s, ends with %d events, %d were captured before: "
                "an older one was put back; capture goes on from its end",
                *(self._plan.namespace, self._plan.hub, key),
                *(end.next_sequence, place.sequence),
            )
            following, cuts = window_start_at_end(place, end, now_ms)
        else:
            waited_ms = self._watch.waited_ms(key, place, time.monotonic_ns() // 1_000_000)
            seen = PartitionObservation(end, now_ms, waited_ms, self._plan.stop(key))
            following, cuts = close_windows(
                place, self._rules, view, seen, windows_max=_WINDOWS_MAX, bytes_max=_BYTES_MAX
            )
        if not cuts:
            return place, []
        taken = FileNameRegistry(self._plan.names_file)
        try:
            cuts = taken.take(
                self._plan.run,
                key,
                cuts,
                after_s=place.named_s,
                is_there=self._looker(key) if self._plan.is_backfill else None,
            )
        finally:
            taken.close()
        return msgspec.structs.replace(following, named_s=cuts[-1].named_s), cuts

    def _looker(self, key: str) -> Callable[[int], bool]:
        """Events from before may lie between those of other runs, within one second even: no file
        of theirs is written over, also where nobody has a note of it any more."""
        store = check_target(self._plan)

        def is_there(named_s: int) -> bool:
            return (
                store.size(window_file_path(self._plan, self._plan.settings, key, named_s))
                is not None
            )

        return is_there

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        settings = str(end["settings"])
        empty: list[tuple[str, ClosedRange]] = []
        tasks: list[WindowsPartition] = []
        for key, cuts in closed_ranges(end).items():
            full = [(key, cut) for cut in cuts if not cut.is_empty]
            empty += [(key, cut) for cut in cuts if cut.is_empty]
            share = -(-len(full) // _TASKS_MAX)
            tasks += [
                WindowsPartition(full[at : at + share], settings)
                for at in range(0, len(full), share or 1)
            ]
        if empty:
            tasks.append(WindowsPartition(empty, settings))
        return tasks

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, WindowsPartition)
        settings = msgspec.json.decode(partition.settings, type=CaptureDescription)
        target = resolve_destination(self._plan.destinations, settings.account, settings.container)
        for key, cut in partition.cuts:
            total, first_ms, last_ms = 0, 0, 0
            if not cut.is_empty:
                found = read_blocks(
                    self._plan.ranges,
                    key,
                    cut.first,
                    cut.end - 1,
                    encoding=settings.encoding,
                    iso_time=target.destination.iso_time,
                )
                for block in found:
                    total += block.count
                    first_ms, last_ms = first_ms or block.first_ms, block.last_ms
                    yield _block_batch(key, cut, partition.settings, block.count, block.data)
            # The last row says that the window is whole, and is all there is of an empty one.
            yield _block_batch(
                key, cut, partition.settings, total, b"", times=(first_ms, last_ms), is_last=True
            )

    def commit(self, end: Offset) -> None:
        """Nothing: the ledger is written by the sink, when the files are there."""

    def stop(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None

    def _first(self, key: str) -> WindowStart:
        return WindowStart(self._plan.starts.get(key, 0), named_s=self._plan.named_s)

    @property
    def _rules(self) -> WindowRules:
        settings = self._plan.settings
        return WindowRules(interval_ms=settings.interval_s * 1000, size_bytes=settings.size_bytes)

    def _offset(self, places: dict[str, WindowStart], cuts: dict[str, list[ClosedRange]]) -> Offset:
        ordered = sorted(places, key=partition_order)
        return {
            "cuts": {key: msgspec.to_builtins(cuts[key]) for key in ordered if key in cuts},
            "places": {key: msgspec.to_builtins(places[key]) for key in ordered},
            "settings": msgspec.json.encode(self._plan.settings).decode(),
        }


def window_starts(offset: Offset) -> dict[str, WindowStart]:
    return msgspec.convert(offset["places"], dict[str, WindowStart])


def closed_ranges(offset: Offset) -> dict[str, list[ClosedRange]]:
    return msgspec.convert(offset["cuts"], dict[str, list[ClosedRange]])


def _block_batch(
    partition: str,
    cut: ClosedRange,
    settings: str,
    count: int,
    block: bytes,
    *,
    times: tuple[int, int] = (0, 0),
    is_last: bool = False,
) -> Any:
    import pyarrow as pa

    values: dict[str, tuple[object, Any]] = {
        "partition": (partition, pa.string()),
        "window": (cut.window, pa.int64()),
        "first": (cut.first, pa.int64()),
        "end": (cut.end, pa.int64()),
        "named_s": (cut.named_s, pa.int64()),
        "closed_ms": (cut.closed_ms, pa.int64()),
        "settings": (settings, pa.string()),
        "count": (count, pa.int64()),
        "first_ms": (times[0], pa.int64()),
        "last_ms": (times[1], pa.int64()),
        "is_last": (is_last, pa.bool_()),
        "block": (block, pa.binary()),
    }
    schema = pa.schema([(name, kind) for name, (_, kind) in values.items()])
    arrays = [pa.array([value], kind) for value, kind in values.values()]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def partition_order(key: str) -> tuple[int, str]:
    return (int(key), "") if key.isdecimal() else (-1, key)


# --- files ----------------------------------------------------------------------------------------


class CaptureSink(DataSource):
    """`df.writeStream.format("penstock-capture-files").option("capturePlan", file)`."""

    @classmethod
    def name(cls) -> str:
        return SINK

    def streamWriter(self, schema: Any, overwrite: bool) -> CaptureStreamWriter:
        return CaptureStreamWriter(read_plan(self.options.get(OPTION)))


class CaptureCommitMessage(WriterCommitMessage):
    """Windows with their files, and the places behind them."""

    def __init__(self) -> None:
        self.closed: list[ClosedWindow] = []
        self.places: dict[str, WindowStart] = {}


class CaptureStreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, plan: CapturePlan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[Any]) -> CaptureCommitMessage:
        written = CaptureCommitMessage()
        writing: _WindowWriter | None = None
        try:
            for batch in iterator:
                for row in batch.to_pylist():
                    if writing is None:
                        writing = _WindowWriter(self._plan, row)
                    writing.add(row)
                    if row["is_last"]:
                        writing.finish(row, written)
                        writing = None
        finally:
            if writing is not None:
                writing.discard()
        if writing is not None:
            raise InternalError("A window's last row did not come: the batch is run again.")
        return written

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        ledger = CaptureStateFile(self._plan.ledger)
        try:
            for message in messages:
                if isinstance(message, CaptureCommitMessage):
                    ledger.record(message.closed, message.places)
        finally:
            ledger.close()

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Files that are in place already are the ones that the next try writes again."""


class _WindowWriter:
    """One window's file on its way."""

    def __init__(self, plan: CapturePlan, row: dict[str, Any]) -> None:
        self._plan = plan
        self._settings = msgspec.json.decode(row["settings"], type=CaptureDescription)
        self._key: tuple[str, int] = (row["partition"], row["window"])
        self._count = 0
        self._file: WindowFile | None = None
        # One whose events were all lost has a file, which says so.
        if row["is_last"] and row["first"] == row["end"] and self._settings.skip_empty:
            return
        self._spooled = spool_directory(plan.spool) / (
            f"{os.getpid()}-{row['partition']}-{row['window']}.{self._settings.kind}"
        )
        self._file = self._open_file(row)

    def _open_file(self, row: dict[str, Any]) -> WindowFile:
        if self._settings.kind == "parquet":
            from penstock.spark.capture.parquet import ParquetFile

            return ParquetFile(self._spooled)
        name = window_name(self._plan, *self._key, row["first"])
        deflate = self._settings.encoding == "AvroDeflate"
        return AvroFile(self._spooled, name=name, deflate=deflate)

    def add(self, row: dict[str, Any]) -> None:
        if (row["partition"], row["window"]) != self._key:
            raise InternalError("Rows of two windows are mixed: the batch is run again.")
        if not row["is_last"]:
            assert self._file is not None
            self._file.add(row["count"], row["block"])
            self._count += row["count"]

    def finish(self, row: dict[str, Any], written: CaptureCommitMessage) -> None:
        if self._count != row["count"]:
            raise InternalError(f"{self._count} of {row['count']} events came.")
        settings, partition = self._settings, row["partition"]
        cut = ClosedRange(
            *(row[name] for name in ("window", "first", "end", "named_s", "closed_ms"))
        )
        made = None if self._file is None else self._upload(self._file, cut, row)
        written.places[partition] = cut.next_start
        written.closed.append(ClosedWindow(cut.named_s, settings.interval_s, made))

    def _upload(self, file: WindowFile, cut: ClosedRange, row: dict[str, Any]) -> CapturedFile:
        settings, partition = self._settings, row["partition"]
        size, digest = file.close()
        store = FileStore(
            resolve_destination(self._plan.destinations, settings.account, settings.container)
        )
        path = window_file_path(self._plan, settings, partition, cut.named_s)
        count = row["count"]
        better = None
        if count < cut.end - cut.first:
            better = _written_before(store, path, settings.kind, count)
        if better is None:
            upload_file(store, self._spooled, path, tries=_tries())
        else:
            file.discard()
            count, size, digest = better
        return CapturedFile(
            path=path,
            url=store.url(path),
            partition=partition,
            window=cut.window,
            first_sequence=cut.first,
            last_sequence=cut.end - 1,
            count=count,
            bytes=size,
            sha256=digest,
            named_s=cut.named_s,
            first_ms=row["first_ms"],
            last_ms=row["last_ms"],
            account=settings.account,
            container=settings.container,
            encoding=settings.encoding,
            written_ms=time.time_ns() // 1_000_000,
        )

    def discard(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.discard()


def _tries() -> int:
    """A task that failed once need not be patient again: storage is away, and who watches should
    hear of it."""
    context = TaskContext.get()
    return TRIES if context is None or context.attemptNumber() == 0 else 1


def _written_before(
    store: FileStore, path: str, kind: str, count: int
) -> tuple[int, int, str] | None:
    """Events, bytes and digest of the file that an earlier try of this batch wrote, where it holds
    more than the log does by now: it is not written over."""
    size = store.size(path)
    if size is None:
        return None
    try:
        with store.open(path) as opened:
            if kind == "parquet":
                from pyarrow import parquet

                events = int(parquet.ParquetFile(opened).metadata.num_rows)
            else:
                events = sum(each for each, _ in AvroContainerReader(opened).blocks())
    except (DamagedAvroFile, ValueError):  # pyarrow's errors are ValueErrors
        return None
    if events <= count:
        return None
    digest = hashlib.sha256()
    with store.open(path) as opened:
        while piece := opened.read(_PIECE_BYTES):
            digest.update(piece)
    return events, size, digest.hexdigest()


def window_file_path(
    plan: CapturePlan, settings: CaptureDescription, partition: str, named_s: int
) -> str:
    """Of the window that is named by that second."""
    return file_names.format_file_path(
        settings.name_format,
        namespace=plan.namespace,
        hub=plan.hub,
        partition=partition,
        at_s=named_s,
        kind=settings.kind,
    )


def check_target(plan: CapturePlan) -> FileStore:
    """The store that a plan's files go to. Raises ArgumentError."""
    store = FileStore(
        resolve_destination(plan.destinations, plan.settings.account, plan.settings.container)
    )
    if not Path(plan.state).is_absolute():
        raise ArgumentError(f"The state directory {plan.state} is not an absolute path.")
    return store
