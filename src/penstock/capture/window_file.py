"""A window's file while it is written: block by block into a spool, so that memory holds one block
whatever the window's size; then uploaded whole."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Protocol

from penstock.capture import container
from penstock.capture.storage import DestinationError, FileStore

UPLOAD_TRIES = 5
_PAUSE_S = 0.5


class WindowFile(Protocol):
    """A file in one format."""

    def add(self, count: int, block: bytes) -> None: ...

    def close(self) -> tuple[int, str]:
        """Flush to disk. Returns size and hexadecimal SHA-256."""
        ...

    def discard(self) -> None:
        """Delete the file. May be called after `close`, and twice."""
        ...


class AvroFile:
    """Frames Avro blocks as they come."""

    def __init__(self, path: Path, *, name: str, deflate: bool) -> None:
        self.path = path
        self._sync = container.sync_marker(name)
        self._digest = hashlib.sha256()
        self._bytes = 0
        self._file: BinaryIO = path.open("wb")
        self._write(container.encode_header(self._sync, deflate=deflate))

    def add(self, count: int, block: bytes) -> None:
        self._write(container.encode_block_header(count, len(block)))
        self._write(block)
        self._write(self._sync)

    def close(self) -> tuple[int, str]:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        return self._bytes, self._digest.hexdigest()

    def discard(self) -> None:
        self._file.close()
        self.path.unlink(missing_ok=True)

    def _write(self, piece: bytes) -> None:
        self._file.write(piece)
        self._digest.update(piece)
        self._bytes += len(piece)


def upload_file(
    store: FileStore,
    source: Path,
    path: str,
    *,
    tries: int = UPLOAD_TRIES,
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Put a spooled file in place, with retries for some seconds: a failure means that its events
    are read again. Raises DestinationError."""
    for attempt in range(tries):
        try:
            store.put(source, path)
            return
        except DestinationError:
            if attempt == tries - 1:
                raise
            pause(_PAUSE_S * 2**attempt)
