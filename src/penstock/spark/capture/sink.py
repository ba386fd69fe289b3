"""Spark sink that writes one file per window. Writing a window twice gives the same file, so a
task or batch that runs again is harmless; the commit records each window once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import msgspec
from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage

from penstock.capture.state import ClosedWindow
from penstock.capture.storage import UPLOAD_TRIES
from penstock.capture.windows import WindowStart
from penstock.model.errors import InternalError
from penstock.spark.capture.plan import OPTION, SINK, CapturePlan, read_plan
from penstock.spark.capture.window_writer import PlannedWindow, WindowWriter


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
