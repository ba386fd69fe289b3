"""Spark source whose micro-batches are whole windows, and sink that writes one file per window.

Exactly once: an offset has the windows of the batch that ends there, and the settings that held
when they were closed. Spark stores the offset before any task runs, so a batch that runs again
writes the same files under the same names, whatever was changed meanwhile. Blocks of encoded
records travel from source to sink, not single events.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import msgspec
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from penstock.capture import windows
from penstock.capture.file_names import partition_order
from penstock.capture.state import ClosedWindow
from penstock.capture.storage import UPLOAD_TRIES, FileStore
from penstock.capture.windows import ClosedRange, EventLocation, PartitionEnd, WindowStart
from penstock.client.errors import ClientError
from penstock.client.event_position import EventPosition, to_milliseconds
from penstock.client.ranges import HubReader
from penstock.model.capture import CaptureDescription
from penstock.model.errors import InternalError
from penstock.spark.capture.plan import OPTION, SINK, CapturePlan, read_plan
from penstock.spark.capture.window_writer import PlannedWindow, WindowWriter, read_window
from penstock.spark.eventhubs.data_source import EventHubsDataSource

_BLOCK_SCHEMA = pa.schema(
    {
        "window": pa.string(),
        "count": pa.int64(),
        "first_ms": pa.int64(),
        "last_ms": pa.int64(),
        "is_last": pa.bool_(),
        "block": pa.binary(),
    }
)
SCHEMA = from_arrow_schema(_BLOCK_SCHEMA)
_WINDOWS_MAX = 16  # of one partition in one batch
_BYTES_MAX = 256 * 1024 * 1024  # of one partition in one batch, unless one window has more
_TASKS_MAX = 3  # of one partition at once: a consumer group has at most five readers
_BEYOND_END = "com.microsoft:argument-error"
_log = logging.getLogger("penstock.capture")

Offset = dict[str, Any]


class CaptureSource(EventHubsDataSource):
    """`spark.readStream.format("eventhubs").option("capturePlan", file)`: the source `eventhubs`
    in sessions of the capture job. Without a plan it is the public one. The public one refuses
    plans, so no other query can read one."""

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


class CaptureStreamReader(DataSourceStreamReader):
    """Spark's driver calls all methods but `read`, which runs in tasks."""

    _log: CaptureLogReader | None = None

    def __init__(self, plan: CapturePlan) -> None:
        self._plan = plan
        self._timer = windows.WindowTimer()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_log": None}  # a task needs no connection of the driver

    def initialOffset(self) -> Offset:
        """Called without a query checkpoint. Continues from the job's state, else from the progress
        that the service stored, else from where Capture was switched on."""
        with closing(self._plan.open_state()) as state:
            stored = state.starts()
        reached = {
            key: windows.start_after(progress) for key, progress in self._plan.reached.items()
        }
        starts = {key: self._first_start(key) for key in self._plan.starts}
        return self._offset(starts | reached | stored, {})

    def latestOffset(self, start: Offset, limit: Any) -> Offset:
        """After the windows that are over; `start` itself when none is."""
        starts = window_starts(start)
        if self._log is None:
            self._log = CaptureLogReader(self._plan.ranges)
        ends = self._log.ends()
        for key in ends.keys() - starts.keys():
            starts[key] = self._first_start(key)
        logs = {key: CapturePartitionLog(self._log, key) for key in starts}
        starts = windows.open_first_windows(starts, ends, logs)
        closed: dict[str, list[ClosedRange]] = {}
        for key in sorted(starts, key=partition_order):
            if key in ends:
                following, ranges = self._close_windows(key, starts[key], ends[key], logs[key])
                if ranges:
                    starts[key], closed[key] = following, ranges
        # Spark compares offsets as texts: without a closed window, opened ones are not stored.
        return self._offset(starts, closed) if closed else start

    def _close_windows(
        self, key: str, start: WindowStart, end: PartitionEnd, log: CapturePartitionLog
    ) -> tuple[WindowStart, list[ClosedRange]]:
        """The windows of one partition that are over, with names that no other run has."""
        now_ms = time.time_ns() // 1_000_000
        if windows.is_log_behind(start, end):
            _log.warning(
                "capture log went back: hub=%s/%s partition=%s events=%d captured=%d; capture "
                "continues from the end of the log",
                *(self._plan.namespace, self._plan.hub, key),
                *(end.next_sequence, start.sequence),
            )
            following, ranges = windows.window_start_at_end(start, end, now_ms)
        else:
            waited_ms = self._timer.waited_ms(key, start, time.monotonic_ns() // 1_000_000)
            seen = windows.PartitionObservation(end, now_ms, waited_ms, self._plan.stop(key))
            settings = self._plan.settings
            rules = windows.WindowRules(
                interval_ms=settings.interval_s * 1000, size_bytes=settings.size_bytes
            )
            following, ranges = windows.close_windows(
                start, rules, log, seen, windows_max=_WINDOWS_MAX, bytes_max=_BYTES_MAX
            )
        if not ranges:
            return start, []
        exists = None
        if self._plan.is_backfill:
            store = self._plan.open_store(self._plan.settings)
            exists = functools.partial(self._has_file, store, key)
        with closing(self._plan.open_state()) as state:
            ranges = state.take_names(key, ranges, after_s=start.named_s, exists=exists)
        return msgspec.structs.replace(following, named_s=ranges[-1].named_s), ranges

    def _has_file(self, store: FileStore, key: str, named_s: int) -> bool:
        """A backfill writes between the files of other runs and must not overwrite them, also
        where the job's state has no entry of them any more."""
        return store.size(self._plan.file_path(self._plan.settings, key, named_s)) is not None

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """The value of a partition are some windows of the batch, in order."""
        settings = msgspec.json.decode(end["settings"], type=CaptureDescription)
        empty: list[PlannedWindow] = []
        tasks: list[InputPartition] = []
        for key, ranges in closed_ranges(end).items():
            planned = [PlannedWindow(key, closed, settings) for closed in ranges]
            empty += [window for window in planned if window.range.is_empty]
            full = [window for window in planned if not window.range.is_empty]
            share = -(-len(full) // _TASKS_MAX) or 1
            tasks += [InputPartition(full[at : at + share]) for at in range(0, len(full), share)]
        return [*tasks, InputPartition(empty)] if empty else tasks

    def read(self, partition: InputPartition) -> Iterator[Any]:
        for window in partition.value:
            text = msgspec.json.encode(window).decode()
            total, first_ms, last_ms = 0, 0, 0
            for block in read_window(self._plan, window):
                total += block.count
                first_ms, last_ms = first_ms or block.first_ms, block.last_ms
                yield _block_batch(text, block.count, 0, 0, False, block.data)
            # The last row completes the window, and is the only one of an empty window.
            yield _block_batch(text, total, first_ms, last_ms, True, b"")

    def commit(self, end: Offset) -> None:
        """Nothing to do: the sink records the windows when their files are stored."""

    def stop(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None

    def _first_start(self, key: str) -> WindowStart:
        return WindowStart(self._plan.starts.get(key, 0), named_s=self._plan.named_s)

    def _offset(
        self, starts: Mapping[str, WindowStart], closed: Mapping[str, list[ClosedRange]]
    ) -> Offset:
        """Keys and arrays are stored in Spark's checkpoint."""
        ordered = sorted(starts, key=partition_order)
        return {
            "cuts": {key: msgspec.to_builtins(closed[key]) for key in ordered if key in closed},
            "places": {key: msgspec.to_builtins(starts[key]) for key in ordered},
            "settings": msgspec.json.encode(self._plan.settings).decode(),
        }


def window_starts(offset: Offset) -> dict[str, WindowStart]:
    return msgspec.convert(offset["places"], dict[str, WindowStart])


def closed_ranges(offset: Offset) -> dict[str, list[ClosedRange]]:
    return msgspec.convert(offset["cuts"], dict[str, list[ClosedRange]])


def _block_batch(*values: object) -> Any:
    """One row of SCHEMA."""
    return pa.RecordBatch.from_arrays([[value] for value in values], schema=_BLOCK_SCHEMA)


# --- the sink -----------------------------------------------------------------------------------
# Writing a window twice gives the same file, so a task or batch that runs again is harmless; the
# commit records each window once.


class CaptureSink(DataSource):
    """`df.writeStream.format("penstock-capture-files").option("capturePlan", file)`."""

    @classmethod
    def name(cls) -> str:
        return SINK

    def streamWriter(self, schema: Any, overwrite: bool) -> CaptureStreamWriter:
        return CaptureStreamWriter(read_plan(self.options.get(OPTION)))


class CaptureCommitMessage(WriterCommitMessage):
    """Windows with their files, and where their partitions continue."""

    def __init__(self) -> None:
        self.closed: list[ClosedWindow] = []
        self.starts: dict[str, WindowStart] = {}


class CaptureStreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, plan: CapturePlan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[Any]) -> CaptureCommitMessage:
        """In a task. The rows of a window come together, its last row at the end."""
        message = CaptureCommitMessage()
        rows = (row for batch in iterator for row in batch.to_pylist())
        for row in rows:
            window = msgspec.json.decode(row["window"], type=PlannedWindow)
            closed, settings = window.range, window.settings
            file = None
            # A window whose events were all lost has a file that says so.
            if not (closed.is_empty and settings.skip_empty):
                writer = WindowWriter(self._plan, window)
                try:
                    last = _write_rows(writer, row, rows)
                    file = writer.finish(last["first_ms"], last["last_ms"], _upload_tries())
                finally:
                    writer.discard()
            message.starts[window.partition] = closed.next_start
            message.closed.append(ClosedWindow(closed.named_s, settings.interval_s, file))
        return message

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """On the driver. May be called twice for a batch."""
        with closing(self._plan.open_state()) as state:
            for message in messages:
                if isinstance(message, CaptureCommitMessage):
                    state.record(message.closed, message.starts)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing to do: the next attempt overwrites the files with the same bytes."""


def _write_rows(
    writer: WindowWriter, row: dict[str, Any], following: Iterator[dict[str, Any]]
) -> dict[str, Any]:
    """Write the rows of a window. Returns the last one."""
    window = row["window"]
    while not row["is_last"]:
        writer.add(row["count"], row["block"])
        next_row = next(following, None)
        if next_row is None or next_row["window"] != window:
            raise InternalError("The last row of a window is missing: the batch runs again.")
        row = next_row
    if writer.count != row["count"]:
        raise InternalError(f"A window has {writer.count} of {row['count']} events.")
    return row


def _upload_tries() -> int:
    """A task that failed before does not retry uploads: storage is unavailable, which should be
    reported soon."""
    context = TaskContext.get()
    return UPLOAD_TRIES if context is None or context.attemptNumber() == 0 else 1


# --- the log ------------------------------------------------------------------------------------


class CaptureLogReader(HubReader):
    """Reads the ends of partitions, and the single events that windows end before."""

    def ends(self) -> dict[str, PartitionEnd]:
        return {
            partition: PartitionEnd(
                properties["last_enqueued_sequence_number"] + 1,
                _parse_offset(properties["last_enqueued_offset"]),
                to_milliseconds(properties["last_enqueued_time_utc"]),
                properties["is_empty"],
            )
            for partition, properties in self.partitions().items()
        }

    def first(self, partition: str, position: EventPosition) -> EventLocation | None:
        """The first event at a position; None when there is none yet."""
        return self._ask(self._read_first(partition, position))

    async def _read_first(self, partition: str, position: EventPosition) -> EventLocation | None:
        try:
            async with self._client.open_partition(partition, position, prefetch=1) as reader:
                columns = await reader.receive_columns()
        except ClientError as error:
            if error.error is not None and error.error.condition == _BEYOND_END:
                return None  # a position after the end is refused
            raise
        if not columns.sequence_numbers:
            return None
        offset = _parse_offset(columns.offsets[0])
        return EventLocation(columns.sequence_numbers[0], offset, columns.enqueued_ms[0])


class CapturePartitionLog:
    """`capture.windows.PartitionEvents` of one partition. Reads no event twice."""

    def __init__(self, reader: CaptureLogReader, partition: str) -> None:
        self._first = functools.cache(functools.partial(reader.first, partition))

    def at(self, sequence: int) -> EventLocation | None:
        return self._first(EventPosition.from_sequence_number(sequence, inclusive=True))

    def beyond(self, offset: int) -> EventLocation | None:
        return self._first(EventPosition.from_offset(offset, inclusive=True))

    def since(self, time_ms: int) -> EventLocation | None:
        return self._first(EventPosition.from_enqueued_ms(max(0, time_ms - 1)))


def _parse_offset(text: str) -> int:
    """Some namespaces of Azure have offsets that are no numbers: -1, and their windows close by
    time alone."""
    try:
        return int(text)
    except ValueError:
        return -1
