"""Files that storage took and then lost are written again, as long as the log has their events.

Before a manifest says that a slot is complete, each of its files is looked for. What is written
again is the same file: the window's events, in the same blocks, under the same name.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence

import msgspec

from penstock.capture.captured_file import CapturedFile
from penstock.capture.destinations import FileStore
from penstock.capture.ledger import CaptureStateFile
from penstock.capture.window_file import AvroFile, WindowFile, spool_directory, upload_file
from penstock.model.errors import PenstockError
from penstock.spark.capture.blocks import read_blocks
from penstock.spark.capture.plan import CapturePlan, window_name

_log = logging.getLogger("penstock.capture")


class StorageLost(PenstockError):
    """A captured file is gone, and so are its events."""


def repaired(
    plan: CapturePlan, store: FileStore, ledger: CaptureStateFile, files: Sequence[CapturedFile]
) -> list[CapturedFile]:
    """The files, each of which is there now, if the log can still give it; one that is gone for
    good is listed all the same, and `verify` will say that it is not there. Raises ClientError,
    DestinationError."""
    found = []
    for file in files:
        if store.size(file.path) != file.bytes:
            try:
                file = _again(plan, store, file)
            except StorageLost as error:
                _log.error("%s", error)
            else:
                _log.warning("storage had lost %s: it was written again", file.url)
                ledger.replace(file)
        found.append(file)
    return found


def _again(plan: CapturePlan, store: FileStore, file: CapturedFile) -> CapturedFile:
    spooled = spool_directory(plan.spool) / f"{os.getpid()}-again-{file.partition}-{file.window}"
    encoding = file.encoding or plan.settings.encoding
    made: WindowFile
    if file.path.endswith(".parquet"):
        from penstock.spark.capture.parquet import ParquetFile

        made = ParquetFile(spooled)
    else:
        name = window_name(plan, file.partition, file.window, file.first_sequence)
        made = AvroFile(spooled, name=name, deflate=encoding == "AvroDeflate")
    count = 0
    try:
        if file.count:
            blocks = read_blocks(
                plan.ranges,
                file.partition,
                file.first_sequence,
                file.last_sequence,
                encoding=encoding,
                iso_time=store.target.destination.iso_time,
            )
            for block in blocks:
                made.add(block.count, block.data)
                count += block.count
        if count < file.count:
            raise StorageLost(
                f"{file.url} is gone, and of its {file.count} events the log has {count} only."
            )
        size, digest = made.close()
        upload_file(store, spooled, file.path)
    except BaseException:
        made.discard()
        raise
    return msgspec.structs.replace(file, bytes=size, sha256=digest)
