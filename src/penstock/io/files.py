"""Files that only their owner can read."""

from __future__ import annotations

import os
import stat
from pathlib import Path

PRIVATE_MODE = 0o600


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
