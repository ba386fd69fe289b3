"""`runtime.json` in the data directory: how programs on this machine find the running service.

The service holds a lock on the file while it runs. The system releases the lock when the process
ends, however it ends, so a reader that gets the lock knows that the file is stale.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path

from penstock.io.files import PRIVATE_MODE
from penstock.model import limits
from penstock.model.errors import DataDirectoryError

FILE_NAME = "runtime.json"
_BYTES_MAX = 64 * limits.KB


def read_runtime(directory: Path) -> dict[str, object] | None:
    """What the service that runs on this data directory wrote; None where no service runs, or
    where the file is not a JSON object. Raises DataDirectoryError where it cannot be read."""
    path = directory / FILE_NAME
    try:
        with path.open("rb") as file:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return None
            facts = json.loads(file.read(_BYTES_MAX))
    except (FileNotFoundError, ValueError):
        return None
    except OSError as error:
        raise DataDirectoryError(f"Cannot read {path} ({error.strerror or error}).") from error
    return facts if isinstance(facts, dict) else None


class RuntimeFile:
    """The file of this process, from `write` to `remove`."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / FILE_NAME
        self._handle: int | None = None  # open and locked while the file exists

    def write(self, facts: Mapping[str, object]) -> None:
        """Put the file in place as a whole, locked. Raises OSError; then there is no file."""
        self.remove()
        temporary = self.path.with_name(f"{FILE_NAME}.new")
        try:
            temporary.unlink(missing_ok=True)
            self._handle = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_RDWR, PRIVATE_MODE)
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with os.fdopen(self._handle, "wb", closefd=False) as stream:
                stream.write(json.dumps(facts).encode() + b"\n")
            temporary.replace(self.path)
        except OSError:
            temporary.unlink(missing_ok=True)
            self.remove()
            raise

    def remove(self) -> None:
        """A file that another process wrote meanwhile stays. Does nothing without a file."""
        if self._handle is None:
            return
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(self._handle), self.path.stat()):
                self.path.unlink()
        os.close(self._handle)
        self._handle = None
