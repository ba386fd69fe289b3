"""The operating-system calls of the log, in one class.

Tests use subclasses of `Files` that inject faults. Every method may raise OSError. None retries:
after a failed flush the kernel may have dropped the pages, so a second flush that succeeds proves
nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from penstock.io.files import fsync_directory

_FALLOC_FL_KEEP_SIZE = 1
_BUFFERS_PER_CALL = 1024  # IOV_MAX on Linux
_NOT_SUPPORTED = {errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}
_NO_WAIT: int = getattr(os, "RWF_NOWAIT", 0)  # Linux only


class Files:
    """The file system. Any thread."""

    def open(self, path: Path, *, create: bool = False, write: bool = True) -> int:
        flags = (os.O_RDWR if write else os.O_RDONLY) | os.O_CLOEXEC
        return os.open(path, flags | (os.O_CREAT if create else 0), 0o600)

    def close(self, fd: int) -> None:
        os.close(fd)

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def pread(self, fd: int, size: int, position: int) -> bytes:
        """Up to `size` bytes; fewer at the end of the file."""
        return os.pread(fd, size, position)

    def pread_cached(self, fd: int, buffer: memoryview, position: int) -> int:
        """Fill the buffer as far as the page cache holds the file. Returns the number of bytes, 0
        if the system cannot tell. Never waits for the disk."""
        if not _NO_WAIT:
            return 0
        try:
            return os.preadv(fd, [buffer], position, _NO_WAIT)
        except OSError as error:
            if error.errno in _NOT_SUPPORTED or error.errno == errno.EAGAIN:
                return 0
            raise

    def pwritev(self, fd: int, buffers: Sequence[bytes], position: int) -> int:
        """Write the buffers in order. Returns the number of bytes written, which may be fewer."""
        return os.pwritev(fd, buffers, position)

    def fdatasync(self, fd: int) -> None:
        """Return when the file's content and size survive a power failure."""
        _fdatasync(fd)

    def allocate(self, fd: int, position: int, size: int) -> None:
        """Reserve blocks without changing the file's size, so that a flush need not allocate them.
        That is an optimization: a file system that does not support it is no error."""
        code = 0 if _FALLOCATE is None else _FALLOCATE(fd, position, size)
        if code and code not in _NOT_SUPPORTED:
            raise OSError(code, os.strerror(code))

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def listdir(self, path: Path) -> list[str]:
        """Sorted names in the directory; an empty list if there is no such directory."""
        try:
            return sorted(entry.name for entry in path.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []

    def mkdir(self, path: Path) -> None:
        """Create a directory and its missing parents, with mode 0700."""
        if not path.parent.exists():
            self.mkdir(path.parent)  # not parents=True, whose mode depends on the umask
        path.mkdir(mode=0o700, exist_ok=True)

    def rename(self, old: Path, new: Path) -> None:
        old.rename(new)

    def unlink(self, path: Path) -> None:
        path.unlink()

    def rmdir(self, path: Path) -> None:
        path.rmdir()

    def fsync_directory(self, path: Path) -> None:
        """Return when the names in the directory survive a power failure."""
        fsync_directory(path)


@contextlib.contextmanager
def open_file(
    files: Files, path: Path, *, create: bool = False, write: bool = True
) -> Iterator[int]:
    """Open a file for the `with` block, which gets its descriptor."""
    fd = files.open(path, create=create, write=write)
    try:
        yield fd
    finally:
        files.close(fd)


def write_all(files: Files, fd: int, buffers: Sequence[bytes], position: int) -> None:
    """Write all buffers, continuing after a short write. Raises OSError."""
    remaining = [buffer for buffer in buffers if buffer]
    while remaining:
        buffers_of_call = remaining[:_BUFFERS_PER_CALL]
        written = files.pwritev(fd, buffers_of_call, position)
        if written <= 0:
            raise OSError(errno.EIO, "the disk wrote no byte and reported no error")
        position += written
        remaining = _drop_written(buffers_of_call, written) + remaining[_BUFFERS_PER_CALL:]


def read_small_file(files: Files, path: Path, bytes_max: int) -> bytes | None:
    """The content of a file; None if it is missing, unreadable or larger than `bytes_max`."""
    try:
        with open_file(files, path, write=False) as fd:
            return files.pread(fd, bytes_max, 0) if files.size(fd) <= bytes_max else None
    except OSError:
        return None


def unlink_if_exists(files: Files, path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        files.unlink(path)


def replace_file(files: Files, path: Path, content: bytes, *, flush: bool = False) -> None:
    """Replace a file atomically. A derived file need not be flushed: it can be rebuilt."""
    temporary = path.with_name(path.name + ".new")
    with open_file(files, temporary, create=True) as fd:
        files.truncate(fd, 0)
        write_all(files, fd, [content], 0)
        if flush:
            files.fdatasync(fd)
    files.rename(temporary, path)


def _drop_written(buffers: list[bytes], written: int) -> list[bytes]:
    """`buffers` without their first `written` bytes."""
    for index, buffer in enumerate(buffers):
        if written < len(buffer):
            return [buffer[written:], *buffers[index + 1 :]]
        written -= len(buffer)
    return []


def _find_fallocate() -> Callable[[int, int, int], int] | None:
    """Linux's fallocate; Python offers only posix_fallocate, which changes the file's size."""
    try:
        call = ctypes.CDLL(None, use_errno=True).fallocate
    except (OSError, AttributeError):
        return None
    call.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]

    def fallocate(fd: int, position: int, size: int) -> int:
        return 0 if call(fd, _FALLOC_FL_KEEP_SIZE, position, size) == 0 else ctypes.get_errno()

    return fallocate


_FALLOCATE = _find_fallocate()
_fdatasync: Callable[[int], None] = getattr(os, "fdatasync", os.fsync)
