"""Writes one window's file: spool, upload, record.

The bytes of a file depend only on its window and on the log: writing a window again, after a crash
or because storage lost the file, gives the same file under the same name.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from penstock.capture.captured_file import CapturedFile
from penstock.capture.container import BLOCK_BYTES, AvroContainerReader, AvroFile, DamagedAvroFile
from penstock.capture.state import CaptureStateFile
from penstock.capture.storage import UPLOAD_TRIES, FileStore
from penstock.capture.windows import ClosedRange
from penstock.model.capture import CaptureDescription
from penstock.spark.capture.blocks import CaptureBlock, read_blocks
from penstock.spark.capture.plan import CapturePlan

if TYPE_CHECKING:
    from penstock.spark.capture.parquet_file import ParquetFile

_log = logging.getLogger("penstock.capture")


class PlannedWindow(msgspec.Struct, frozen=True, array_like=True):
    """A window as the offset has it, with the settings that hold for its file."""

    partition: str
    range: ClosedRange
    settings: CaptureDescription


def read_window(plan: CapturePlan, window: PlannedWindow) -> Iterator[CaptureBlock]:
    """The window's events as blocks of its file. Raises ClientError."""
    closed, settings = window.range, window.settings
    if not closed.is_empty:
        yield from read_blocks(
            plan.ranges,
            window.partition,
            closed.first,
            closed.end - 1,
            encoding=settings.encoding,
            iso_time=plan.open_store(settings).target.destination.iso_time,
        )


class WindowWriter:
    """`add` blocks, then `finish`; or `discard`. Raises DestinationError, OSError."""

    def __init__(self, plan: CapturePlan, window: PlannedWindow, path: str | None = None) -> None:
        settings, closed = window.settings, window.range
        self._window = window
        self._store = plan.open_store(settings)
        self._path = path or plan.file_path(settings, window.partition, closed.named_s)
        plan.spool.mkdir(parents=True, exist_ok=True, mode=0o700)  # also on another machine
        file_name = f"{os.getpid()}-{window.partition}-{closed.window}.{settings.file_type}"
        self._spooled = plan.spool / file_name
        self._file: AvroFile | ParquetFile
        if settings.file_type == "parquet":
            from penstock.spark.capture.parquet_file import ParquetFile

            self._file = ParquetFile(self._spooled)
        else:
            # The sync marker between blocks follows from the window, so it is the same each time.
            name = f"{plan.namespace}/{plan.hub}/{window.partition}/{closed.window}/{closed.first}"
            deflate = settings.encoding == "AvroDeflate"
            self._file = AvroFile(self._spooled, name=name, deflate=deflate)
        self.count = 0

    def add(self, count: int, block: bytes) -> None:
        self._file.add(count, block)
        self.count += count

    def finish(self, first_ms: int, last_ms: int, tries: int = UPLOAD_TRIES) -> CapturedFile:
        """Upload the file. One that an earlier attempt uploaded is kept where it has more events:
        retention has removed some of them from the log since."""
        closed, settings = self._window.range, self._window.settings
        size, digest = self._file.close()
        count, stored = self.count, None
        if count < closed.end - closed.first:
            stored = read_larger_file(self._store, self._path, settings.file_type, count)
        if stored is None:
            self._store.upload(self._spooled, self._path, tries)
        else:
            self._file.discard()
            count, size, digest = stored
        return CapturedFile(
            path=self._path,
            url=self._store.url(self._path),
            partition=self._window.partition,
            window=closed.window,
            first_sequence=closed.first,
            last_sequence=closed.end - 1,
            count=count,
            bytes=size,
            sha256=digest,
            named_s=closed.named_s,
            first_ms=first_ms,
            last_ms=last_ms,
            account=settings.account,
            container=settings.container,
            encoding=settings.encoding,
            written_ms=time.time_ns() // 1_000_000,
        )

    def discard(self) -> None:
        with contextlib.suppress(OSError):
            self._file.discard()


def read_larger_file(
    store: FileStore, path: str, file_type: str, count: int
) -> tuple[int, int, str] | None:
    """Events, bytes and digest of the stored file if it has more than `count` events."""
    size = store.size(path)
    if size is None:
        return None
    try:
        with store.open(path) as opened:
            if file_type == "parquet":
                from pyarrow import parquet

                events = int(parquet.ParquetFile(opened).metadata.num_rows)
            else:
                events = sum(records for records, _ in AvroContainerReader(opened).blocks())
    except (DamagedAvroFile, ValueError):  # pyarrow's errors are ValueErrors
        return None
    if events <= count:
        return None
    digest = hashlib.sha256()
    with store.open(path) as opened:
        while piece := opened.read(BLOCK_BYTES):
            digest.update(piece)
    return events, size, digest.hexdigest()


def restore_file(plan: CapturePlan, state: CaptureStateFile, file: CapturedFile) -> CapturedFile:
    """Write a file again that storage accepted and lost, as long as the log has its events.

    One that cannot be restored is logged and returned as it is: `capture verify` reports it. Raises
    ClientError, DestinationError.
    """
    settings = msgspec.structs.replace(
        plan.settings,
        encoding=file.encoding or plan.settings.encoding,
        account=file.account or plan.settings.account,
        container=file.container if file.account else plan.settings.container,
    )
    closed = ClosedRange(file.window, file.first_sequence, file.last_sequence + 1, file.named_s)
    window = PlannedWindow(file.partition, closed, settings)
    writer = WindowWriter(plan, window, file.path)
    try:
        if file.count:
            for block in read_window(plan, window):
                writer.add(block.count, block.data)
        if writer.count < file.count:
            _log.error(
                "capture file lost: url=%s events=%d events_in_log=%d",
                *(file.url, file.count, writer.count),
            )
            return file
        restored = writer.finish(file.first_ms, file.last_ms)
        _log.warning("capture file written again: url=%s reason=missing_at_destination", file.url)
        file = msgspec.structs.replace(file, bytes=restored.bytes, sha256=restored.sha256)
        state.replace(file)
        return file
    finally:
        writer.discard()
