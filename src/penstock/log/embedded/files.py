"""The calls to the operating system that the log makes, behind one seam.

`OsFiles` is the real one; tests put one in its place that fails, tears and forgets. Every method
may raise OSError. None retries: after a failed flush the kernel may have dropped the pages, so a
second flush that succeeds proves nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

_FALLOC_FL_KEEP_SIZE = 1
_BUFFERS_PER_CALL = 1024  # IOV_MAX on Linux
_NOT_SUPPORTED = {errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}
_NO_WAIT: int = getattr(os, "RWF_NOWAIT", 0)  # Linux only


class Files(Protocol):
    """Files by descriptor, directories by path. Any thread."""

    def open(self, path: Path, *, create: bool = False, write: bool = True) -> int: ...

    def close(self, fd: int) -> None: ...

    def size(self, fd: int) -> int: ...

    def pread(self, fd: int, size: int, position: int) -> bytes:
        """Up to `size` bytes; fewer at the end of the file."""
        ...

    def pread_cached(self, fd: int, buffer: memoryview, position: int) -> int:
        """Fill the buffer as far as the operating system holds the file in memory; the bytes that
        were there, 0 where it cannot tell. Never waits for the disk."""
        ...

    def pwritev(self, fd: int, buffers: Sequence[bytes], position: int) -> int:
        """Write the buffers one after the other; the bytes written, which may be fewer."""
        ...

    def fdatasync(self, fd: int) -> None:
        """Return once the file's bytes, and its size, would survive a loss of power."""
        ...

    def allocate(self, fd: int, position: int, size: int) -> None:
        """Reserve blocks without changing the file's size, so that a flush need not find them."""
        ...

    def truncate(self, fd: int, size: int) -> None: ...

    def listdir(self, path: Path) -> list[str]:
        """Names in the directory, sorted; none if there is no such directory."""
        ...

    def mkdir(self, path: Path) -> None:
        """Make a directory and its parents where missing."""
        ...

    def rename(self, old: Path, new: Path) -> None: ...

    def unlink(self, path: Path) -> None: ...

    def rmdir(self, path: Path) -> None: ...

    def fsync_directory(self, path: Path) -> None:
        """Return once the names in the directory would survive a loss of power."""
        ...


class OsFiles:
    """The machine's own file system."""

    def open(self, path: Path, *, create: bool = False, write: bool = True) -> int:
        flags = (os.O_RDWR if write else os.O_RDONLY) | os.O_CLOEXEC
        return os.open(path, flags | (os.O_CREAT if create else 0), 0o600)

    def close(self, fd: int) -> None:
        os.close(fd)

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def pread(self, fd: int, size: int, position: int) -> bytes:
        return os.pread(fd, size, position)

    def pread_cached(self, fd: int, buffer: memoryview, position: int) -> int:
        if not _NO_WAIT:
            return 0
        try:
            return os.preadv(fd, [buffer], position, _NO_WAIT)
        except OSError as error:
            if error.errno in _NOT_SUPPORTED or error.errno == errno.EAGAIN:
                return 0
            raise

    def pwritev(self, fd: int, buffers: Sequence[bytes], position: int) -> int:
        return os.pwritev(fd, buffers, position)

    def fdatasync(self, fd: int) -> None:
        _fdatasync(fd)

    def allocate(self, fd: int, position: int, size: int) -> None:
        _allocate(fd, position, size)

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def listdir(self, path: Path) -> list[str]:
        try:
            return sorted(entry.name for entry in path.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []

    def mkdir(self, path: Path) -> None:
        if not path.parent.exists():
            self.mkdir(path.parent)  # events are nobody else's to read: not by the umask's leave
        path.mkdir(mode=0o700, exist_ok=True)

    def rename(self, old: Path, new: Path) -> None:
        old.rename(new)

    def unlink(self, path: Path) -> None:
        path.unlink()

    def rmdir(self, path: Path) -> None:
        path.rmdir()

    def fsync_directory(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def write_all(files: Files, fd: int, buffers: Sequence[bytes], position: int) -> None:
    """Write everything, going on after a short write; raises where the disk takes no more."""
    rest = [buffer for buffer in buffers if buffer]
    while rest:
        some = rest[:_BUFFERS_PER_CALL]
        written = files.pwritev(fd, some, position)
        if written <= 0:
            raise OSError(errno.EIO, "the disk took no byte and named no error")
        position += written
        rest = _after(some, written) + rest[_BUFFERS_PER_CALL:]


def read_small(files: Files, path: Path, bytes_max: int) -> bytes | None:
    """A whole file of at most `bytes_max` bytes; None if it is missing, larger or unreadable."""
    try:
        fd = files.open(path, write=False)
    except OSError:
        return None
    try:
        if files.size(fd) > bytes_max:
            return None
        return files.pread(fd, bytes_max, 0)
    except OSError:
        return None
    finally:
        files.close(fd)


def unlink_if_exists(files: Files, path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        files.unlink(path)


def replace_file(files: Files, path: Path, content: bytes, *, flush: bool = False) -> None:
    """Put a file in place whole; a derived one need not be flushed, it can be found again."""
    aside = path.with_name(path.name + ".new")
    fd = files.open(aside, create=True)
    try:
        files.truncate(fd, 0)
        write_all(files, fd, [content], 0)
        if flush:
            files.fdatasync(fd)
    finally:
        files.close(fd)
    files.rename(aside, path)


def _after(buffers: list[bytes], written: int) -> list[bytes]:
    """What is left of `buffers` when the first `written` bytes of them are on their way."""
    for index, buffer in enumerate(buffers):
        if written < len(buffer):
            return [buffer[written:], *buffers[index + 1 :]]
        written -= len(buffer)
    return []


def _find_fallocate() -> Callable[[int, int, int], int] | None:
    """Linux's fallocate: Python offers only posix_fallocate, which changes the size."""
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


def _allocate(fd: int, position: int, size: int) -> None:
    """Reserving is a favour to the flush: a file system that cannot do it is no worse off."""
    if _FALLOCATE is None:
        return
    code = _FALLOCATE(fd, position, size)
    if code and code not in _NOT_SUPPORTED:
        raise OSError(code, os.strerror(code))
