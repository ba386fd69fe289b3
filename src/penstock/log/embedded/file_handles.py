"""Cache of open segment files, shared by readers and the committer.

A file stays open while it is in use and afterwards until the cache evicts it, so that thousands of
idle partitions need no descriptors.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import threading
from collections import OrderedDict
from collections.abc import Iterator

from penstock.log.embedded.files import Files
from penstock.log.embedded.segment import Segment

_logger = logging.getLogger(__name__)

_READ_ONLY = {errno.EROFS, errno.EACCES}
HANDLES_MAX = 256  # open files, unless more are in use; well below the usual limit of 1024


class FileHandle:
    """An open file and its number of users. Guarded by the cache's lock."""

    __slots__ = ("fd", "is_doomed", "users")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.users = 0
        self.is_doomed = False  # its last user closes it


class FileHandleCache:
    """Any thread. Every `acquire` needs a `release`."""

    def __init__(self, files: Files, *, handles_max: int = HANDLES_MAX) -> None:
        self._files = files
        self._handles_max = handles_max
        self._lock = threading.Lock()
        # Least recently used first. A descriptor is closed only under the lock.
        self._open: OrderedDict[Segment, FileHandle] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def acquire(self, segment: Segment) -> FileHandle:
        """Open the segment's file, or use the open one. Raises OSError; FileNotFoundError if
        retention has removed it."""
        with self._lock:
            handle = self._open.get(segment)
            if handle is None:
                handle = self._open[segment] = FileHandle(self._open_file(segment))
            else:
                self._open.move_to_end(segment)
            handle.users += 1
            return handle

    @contextlib.contextmanager
    def use(self, segment: Segment) -> Iterator[int]:
        """Acquire the segment's file for the `with` block, which gets its descriptor."""
        handle = self.acquire(segment)
        try:
            yield handle.fd
        finally:
            self.release(handle)

    def release(self, handle: FileHandle) -> None:
        with self._lock:
            assert handle.users > 0
            handle.users -= 1
            if handle.is_doomed and not handle.users:
                self._close(handle)
            self._trim()

    def read_cached(self, segment: Segment, buffer: memoryview, position: int) -> int:
        """Fill the buffer from the page cache. Returns the number of bytes; 0 if the file is not
        open or another thread holds the lock. Never waits, neither for the disk nor for a thread.
        The lock prevents that the descriptor is closed and used again for another file
        meanwhile."""
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
        """The file was removed: close it when its last user releases it."""
        with self._lock:
            handle = self._open.pop(segment, None)
            if handle is not None:
                self._doom(handle)

    def close(self) -> None:
        with self._lock:
            while self._open:
                self._doom(self._open.popitem()[1])

    def _open_file(self, segment: Segment) -> int:
        """Read-only if necessary: a file system that became read-only after an error can be
        read."""
        try:
            return self._files.open(segment.path)
        except OSError as error:
            if error.errno not in _READ_ONLY:
                raise
            return self._files.open(segment.path, write=False)

    def _trim(self) -> None:
        """Close the least recently used files that are not in use, down to the limit."""
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
        """A failure is only logged: everything that matters was flushed before."""
        try:
            self._files.close(handle.fd)
        except OSError as error:
            _logger.warning("file close failed fd=%d error=%r", handle.fd, str(error))
