"""Files that only their owner can read, and small files with a checksum."""

from __future__ import annotations

import os
import stat
import zlib
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
