"""A window's file while it is written: block by block into a spool, so that memory holds one block
whatever the window's size; then put in place whole."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Protocol

from penstock.capture import container
from penstock.capture.destinations import DestinationError, FileStore

TRIES = 5
_PAUSE_S = 0.5


class WindowFile(Protocol):
    """Of one format."""

    def add(self, count: int, block: bytes) -> None: ...

    def close(self) -> tuple[int, str]:
        """On disk: its size and its sha256, in hexadecimal."""
        ...

    def discard(self) -> None:
        """It is not wanted; harmless when done before."""
        ...


class AvroFile:
    """Avro blocks as they come, framed."""

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
    tries: int = TRIES,
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Into its place, trying again for some seconds: what is spooled need not be read again.
    Raises DestinationError."""
    for tried in range(tries):
        try:
            store.put(source, path)
            return
        except DestinationError:
            if tried == tries - 1:
                raise
            pause(_PAUSE_S * 2**tried)


def spool_directory(wanted: Path) -> Path:
    """Where files are written before they are put in place; private. An executor on another
    machine has no such directory: it makes one of its own."""
    wanted.mkdir(parents=True, exist_ok=True, mode=0o700)
    return wanted


def remove_stale_spools(spool: Path) -> int:
    """Remove what a killed job left; how many files that were."""
    if not spool.is_dir():
        return 0
    left = [file for file in spool.iterdir() if file.is_file()]
    for file in left:
        file.unlink(missing_ok=True)
    return len(left)
