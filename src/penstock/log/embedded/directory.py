"""The data directory itself: held by one process, and of a version that this one can read."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from pathlib import Path

import msgspec

from penstock.log.embedded.files import Files, OsFiles, read_small, replace_file
from penstock.model import limits
from penstock.model.errors import DataDirectoryError

FORMAT_VERSION = 1
FORMAT_FILE = "format.json"
LOCK_FILE = "lock"
_FORMAT_BYTES_MAX = 4096
# Reserved for what a start writes: SQLite's shared-memory files above all. SQLite maps them into
# memory, so the process ends by SIGBUS where the file system has no block for them.
_START_RESERVE_BYTES = 512 * limits.KB
_START_RESERVE_MIN_BYTES = 64 * limits.KB
_PID_BYTES = 20  # always this many, so that the new pid replaces the whole earlier one


class DirectoryFormat(msgspec.Struct, frozen=True):
    """`DIR/format.json`: a later version may add fields; a version we do not know is refused."""

    format: int


class DirectoryLock:
    """Keeps every other process out until `release`, or until this one dies."""

    def __init__(self, directory: Path) -> None:
        """Raises DataDirectoryError naming the process that holds it."""
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
                f"stop that one or choose another directory."
            ) from error
        self._write_pid()

    def reserve_space(self) -> None:
        """Reserve blocks, so that the next start works on a full disk. Call it when the start is
        complete: a process that is killed, or stopped on a full disk, cannot reserve any. As much
        as there is room for, since a start on a full disk has used some of the blocks."""
        size = _START_RESERVE_BYTES
        while size >= _START_RESERVE_MIN_BYTES:
            with contextlib.suppress(OSError):
                OsFiles().allocate(self._fd, 0, size)
                return
            size //= 2

    def release(self) -> None:
        """The file stays: removing it would let two processes lock two files of one name. It keeps
        its content and the reserved blocks."""
        self.reserve_space()
        os.close(self._fd)

    def _write_pid(self) -> None:
        """For the error of another process. The lock holds without it, and a full disk must not
        keep the service from starting: reads work, and retention frees space."""
        try:
            os.ftruncate(self._fd, _PID_BYTES + 1)  # gives back the reserve
            os.pwrite(self._fd, f"{os.getpid():<{_PID_BYTES}}\n".encode(), 0)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            os.ftruncate(self._fd, 0)  # not the pid of an earlier process


def check_format(files: Files, directory: Path) -> None:
    """Write the version into a new directory; refuse one that is newer or not to be understood."""
    path = directory / FORMAT_FILE
    if FORMAT_FILE not in files.listdir(directory):
        replace_file(files, path, msgspec.json.encode(DirectoryFormat(FORMAT_VERSION)), flush=True)
        files.fsync_directory(directory)
        with contextlib.suppress(PermissionError):  # somebody else's, and there before us
            files.fsync_directory(directory.parent)
        return
    content = read_small(files, path, _FORMAT_BYTES_MAX)
    try:
        found = msgspec.json.decode(content or b"", type=DirectoryFormat)
    except msgspec.DecodeError as error:
        raise DataDirectoryError(
            f"The file {path} does not tell the directory's format version: {error}."
        ) from error
    if found.format > FORMAT_VERSION:
        raise DataDirectoryError(
            f"The data directory {directory} has format version {found.format}, written by a newer "
            f"Penstock: this one reads up to version {FORMAT_VERSION}. The version is in {path}."
        )
