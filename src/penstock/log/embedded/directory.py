"""Lock and format version of the data directory."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from pathlib import Path

import msgspec

from penstock.log.embedded.files import Files, read_small_file, replace_file
from penstock.model import limits
from penstock.model.errors import DataDirectoryError

FORMAT_VERSION = 1
FORMAT_FILE = "format.json"
LOCK_FILE = "lock"
_FORMAT_BYTES_MAX = 4096
# Reserved for the files that a start writes, mainly SQLite's shared-memory files. SQLite maps them
# into memory, so the process is killed by SIGBUS if the file system has no block for them.
_START_RESERVE_BYTES = 512 * limits.KB
_START_RESERVE_MIN_BYTES = 64 * limits.KB
_PID_BYTES = 20  # fixed, so that a new pid replaces the earlier one completely


class DirectoryFormat(msgspec.Struct, frozen=True):
    """`DIR/format.json`. A later version may add fields; a higher version number is refused."""

    format: int


class DirectoryLock:
    """Excludes other processes until `release` or the end of this process."""

    def __init__(self, directory: Path) -> None:
        """Raises DataDirectoryError with the pid of the process that holds the lock."""
        path = directory / LOCK_FILE
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise DataDirectoryError(
                f"The data directory {directory} cannot be used: {error.strerror}."
            ) from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(self._fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(self._fd)
            raise DataDirectoryError(
                f"The data directory {directory} is in use by the process with pid {holder}: "
                f"stop that process or choose another directory."
            ) from error
        self._write_pid()

    def reserve_space(self) -> None:
        """Reserve blocks so that the next start works on a full disk. Call it when the start is
        complete: a process that is killed, or stopped on a full disk, cannot reserve any. Reserves
        less if there is less space: a start on a full disk has used some of the blocks."""
        size = _START_RESERVE_BYTES
        while size >= _START_RESERVE_MIN_BYTES:
            with contextlib.suppress(OSError):
                Files().allocate(self._fd, 0, size)
                return
            size //= 2

    def release(self) -> None:
        """Release the lock. The file stays, because two processes could lock two files of the same
        name otherwise; it keeps its content and the reserved blocks."""
        self.reserve_space()
        os.close(self._fd)

    def _write_pid(self) -> None:
        """Write the pid for the error of another process. The lock works without it, and a full
        disk must not prevent the start: reads work, and retention frees space."""
        try:
            os.ftruncate(self._fd, _PID_BYTES + 1)  # releases the reserved blocks
            os.pwrite(self._fd, f"{os.getpid():<{_PID_BYTES}}\n".encode(), 0)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            os.ftruncate(self._fd, 0)  # removes the pid of an earlier process


def check_format(files: Files, directory: Path) -> None:
    """Write the version into a new directory. Raises DataDirectoryError for a newer version or an
    invalid file."""
    path = directory / FORMAT_FILE
    if FORMAT_FILE not in files.listdir(directory):
        replace_file(files, path, msgspec.json.encode(DirectoryFormat(FORMAT_VERSION)), flush=True)
        files.fsync_directory(directory)
        with contextlib.suppress(PermissionError):  # the parent belongs to another user
            files.fsync_directory(directory.parent)
        return
    content = read_small_file(files, path, _FORMAT_BYTES_MAX)
    try:
        stored = msgspec.json.decode(content or b"", type=DirectoryFormat)
    except msgspec.DecodeError as error:
        raise DataDirectoryError(
            f"The file {path} does not contain a valid format version: {error}."
        ) from error
    if stored.format > FORMAT_VERSION:
        raise DataDirectoryError(
            f"The data directory {directory} has format version {stored.format}, written by a "
            f"newer Penstock: this one reads up to version {FORMAT_VERSION}. The version is in "
            f"{path}."
        )
