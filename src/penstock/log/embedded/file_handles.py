"""Open segment files: few at a time, shared by readers and the committer.

A file stays open while somebody uses it and after that until others push it out, so that thousands
of partitions cost no descriptors while they are idle.
"""

from __future__ import annotations

import errno
import logging
import threading
from collections import OrderedDict

from penstock.log.embedded.files import Files
from penstock.log.embedded.segment import Segment

_logger = logging.getLogger(__name__)

_READ_ONLY = {errno.EROFS, errno.EACCES}
HANDLES_MAX = 256  # kept open though unused; far below the usual 1024 of a process


class FileHandle:
    """An open file and how many are using it."""

    __slots__ = ("fd", "is_doomed", "users")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.users = 0
        self.is_doomed = False  # to be closed by its last user


class FileHandleCache:
    """Any thread. `acquire` and `release` come in pairs."""

    def __init__(self, files: Files, *, handles_max: int = HANDLES_MAX) -> None:
        self._files = files
        self._handles_max = handles_max
        self._lock = threading.Lock()
        self._open: OrderedDict[Segment, FileHandle] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def acquire(self, segment: Segment) -> FileHandle:
        """Raises OSError, FileNotFoundError among them when retention was faster."""
        with self._lock:
            handle = self._open.get(segment)
            if handle is None:
                handle = self._open[segment] = FileHandle(self._open_file(segment))
            else:
                self._open.move_to_end(segment)
            handle.users += 1
            return handle

    def release(self, handle: FileHandle) -> None:
        with self._lock:
            assert handle.users > 0
            handle.users -= 1
            if handle.is_doomed and not handle.users:
                self._close(handle)
            self._trim()

    def read_cached(self, segment: Segment, buffer: memoryview, position: int) -> int:
        """Fill the buffer from a file that is open and as far as it is in memory; the bytes that
        were. Never waits, neither for the disk nor for another thread that opens a file: then it
        is 0. The lock keeps the descriptor from being closed and given to another file."""
        if not self._lock.acquire(blocking=False):
            return 0
        try:
            handle = self._open.get(segment)
            if handle is None:
                return 0
            return self._files.pread_cached(handle.fd, buffer, position)
        finally:
            self._lock.release()

    def forget(self, segment: Segment) -> None:
        """The file is gone: close it when its last reader is done."""
        with self._lock:
            handle = self._open.pop(segment, None)
            if handle is not None:
                self._doom(handle)

    def close(self) -> None:
        with self._lock:
            while self._open:
                self._doom(self._open.popitem()[1])

    def _open_file(self, segment: Segment) -> int:
        """A file system that turned read-only after an error still serves what it holds."""
        try:
            return self._files.open(segment.path)
        except OSError as error:
            if error.errno not in _READ_ONLY:
                raise
            return self._files.open(segment.path, write=False)

    def _trim(self) -> None:
        """Close what was used longest ago and is not in use, down to the limit."""
        if len(self._open) <= self._handles_max:
            return
        for segment, handle in list(self._open.items()):
            if not handle.users:
                del self._open[segment]
                self._close(handle)
                if len(self._open) <= self._handles_max:
                    return

    def _doom(self, handle: FileHandle) -> None:
        handle.is_doomed = True
        if not handle.users:
            self._close(handle)

    def _close(self, handle: FileHandle) -> None:
        """Everything in the file that matters was flushed before: a failure only warns."""
        try:
            self._files.close(handle.fd)
        except OSError as error:
            _logger.warning("file close failed fd=%d error=%s", handle.fd, error)
