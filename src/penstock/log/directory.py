"""The data directory itself: held by one process, and of a version that this one can read."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

import msgspec

from penstock.log.files import Files, read_small, replace_file
from penstock.model.errors import DataDirectoryError

FORMAT_VERSION = 1
FORMAT_FILE = "format.json"
LOCK_FILE = "lock"
_FORMAT_BYTES_MAX = 4096


class Format(msgspec.Struct, frozen=True):
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
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """The file stays: removing it would let two processes lock two files of one name."""
        os.ftruncate(self._fd, 0)
        os.close(self._fd)


def check_format(files: Files, directory: Path) -> None:
    """Write the version into a new directory; refuse one that is newer or not to be understood."""
    path = directory / FORMAT_FILE
    if FORMAT_FILE not in files.listdir(directory):
        replace_file(files, path, msgspec.json.encode(Format(FORMAT_VERSION)), flush=True)
        files.fsync_directory(directory)
        with contextlib.suppress(PermissionError):  # somebody else's, and there before us
            files.fsync_directory(directory.parent)
        return
    content = read_small(files, path, _FORMAT_BYTES_MAX)
    try:
        found = msgspec.json.decode(content or b"", type=Format)
    except msgspec.DecodeError as error:
        raise DataDirectoryError(
            f"The file {path} does not tell the directory's format version: {error}."
        ) from error
    if found.format > FORMAT_VERSION:
        raise DataDirectoryError(
            f"The data directory {directory} has format version {found.format}, written by a newer "
            f"Penstock: this one reads up to version {FORMAT_VERSION}."
        )
