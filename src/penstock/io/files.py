"""Private files, files replaced as a whole, flushed directories, locks, checksums."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path

PRIVATE_MODE = 0o600
_CHECKSUM = b"crc32:"


def make_private(path: Path) -> bool:
    """Create the file for its owner alone, or take other users' rights to an existing one away.
    Returns whether it was created. Raises OSError, also when the path is not a file."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, PRIVATE_MODE))
    except FileExistsError:
        if not path.is_file():
            raise IsADirectoryError(f"{path} is not a file") from None
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            path.chmod(PRIVATE_MODE)
        return False
    return True


def write_file_atomically(
    file: Path, content: bytes, *, mode: int = PRIVATE_MODE, replace: bool = True
) -> None:
    """Write a small file so that it is always complete; it is on disk on return. Without `replace`
    an existing file stays, also one that another process creates meanwhile. Raises OSError."""
    temporary = file.with_name(f"{file.name}.{os.getpid()}.new")
    handle = os.open(temporary, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, mode)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(handle)
        if replace:
            temporary.replace(file)
        else:
            with contextlib.suppress(FileExistsError):
                file.hardlink_to(temporary)
        fsync_directory(file.parent)
    finally:
        temporary.unlink(missing_ok=True)


def fsync_directory(directory: Path) -> None:
    """Flush a directory: the name of a new file survives a power cut only after that."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def lock_file(path: Path) -> Iterator[None]:
    """Hold the lock of a file, which is created where it is missing. The system releases the lock
    when the process ends, however it ends. Raises BlockingIOError where another process holds it.
    """
    make_private(path)
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


def add_checksum(content: bytes) -> bytes:
    """The content followed by a line with its CRC-32."""
    return content + b"\n" + _CHECKSUM + f"{zlib.crc32(content):08x}\n".encode()


def remove_checksum(stored: bytes) -> tuple[bytes, bool]:
    """The content of a small file, and whether it has a checksum: version 0.1 wrote none.

    Raises ValueError where the content does not match its checksum. White space around both is
    ignored, since keys may be written by hand.
    """
    content, end, line = stored.strip().partition(b"\n")
    if not end and _CHECKSUM not in content:
        return content, False
    if add_checksum(content) != content + b"\n" + line + b"\n":
        raise ValueError("it does not match its checksum")
    return content, True
