"""What the stores are built over: records of one consumer group, blocking, from any thread."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from penstock.checkpoints.records import Names, namespace_key
from penstock.checkpoints.sqlite_file import CheckpointFile, Place, Work
from penstock.model.checkpoints import Checkpoint, Claim, Ownership
from penstock.model.clock import SystemClock
from penstock.model.names import key


class Backend(Protocol):
    """Raises PenstockError: CheckpointStoreUnavailable when trying again may help."""

    def ownerships(self, names: Names) -> list[Ownership]: ...
    def checkpoints(self, names: Names) -> list[Checkpoint]: ...

    def claim(self, names: Names, claims: Sequence[Claim]) -> list[Ownership]:
        """The claims that won; what lost a race is left out."""
        ...

    def save(self, names: Names, checkpoint: Checkpoint) -> None: ...
    def close(self) -> None: ...


class FileBackend:
    """A file of this machine. The clock of the leases is the machine's, the same for everybody
    who can open the file."""

    def __init__(self, path: Path) -> None:
        self._file = CheckpointFile(path, now_ms=SystemClock().now_ms, new_etag=new_etag)

    def ownerships(self, names: Names) -> list[Ownership]:
        return self._file.ownerships(_place(names))

    def checkpoints(self, names: Names) -> list[Checkpoint]:
        return self._file.checkpoints(_place(names))

    def claim(self, names: Names, claims: Sequence[Claim]) -> list[Ownership]:
        (written,) = self._file.write([Work(_place(names), claims=claims)])
        return written.ownerships

    def save(self, names: Names, checkpoint: Checkpoint) -> None:
        self._file.write([Work(_place(names), checkpoints=[checkpoint])])

    def close(self) -> None:
        self._file.close()


def new_etag() -> str:
    return uuid.uuid4().hex


def _place(names: Names) -> Place:
    return Place(namespace_key(names.namespace), key(names.hub), key(names.group))
