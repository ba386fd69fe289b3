"""What the stores are built over: records of one consumer group, blocking, from any thread."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from penstock.checkpoints.records import GroupNames, namespace_key
from penstock.checkpoints.sqlite_file import CheckpointFile, CheckpointWrite, GroupKey
from penstock.model.checkpoints import Checkpoint, Claim, Ownership
from penstock.model.clock import SystemClock
from penstock.model.names import fold_name


class CheckpointBackend(Protocol):
    """Raises PenstockError: CheckpointStoreUnavailable when trying again may help."""

    def ownerships(self, names: GroupNames) -> list[Ownership]: ...
    def checkpoints(self, names: GroupNames) -> list[Checkpoint]: ...

    def claim(self, names: GroupNames, claims: Sequence[Claim]) -> list[Ownership]:
        """The claims that won; what lost a race is left out."""
        ...

    def save(self, names: GroupNames, checkpoint: Checkpoint) -> None: ...
    def close(self) -> None: ...


class SqliteBackend:
    """A file of this machine. The clock of the leases is the machine's, the same for everybody
    who can open the file."""

    def __init__(self, path: Path) -> None:
        self._file = CheckpointFile(path, now_ms=SystemClock().now_ms, new_etag=new_etag)

    def ownerships(self, names: GroupNames) -> list[Ownership]:
        return self._file.ownerships(_store_group_key(names))

    def checkpoints(self, names: GroupNames) -> list[Checkpoint]:
        return self._file.checkpoints(_store_group_key(names))

    def claim(self, names: GroupNames, claims: Sequence[Claim]) -> list[Ownership]:
        (written,) = self._file.write([CheckpointWrite(_store_group_key(names), claims=claims)])
        return written.ownerships

    def save(self, names: GroupNames, checkpoint: Checkpoint) -> None:
        self._file.write([CheckpointWrite(_store_group_key(names), checkpoints=[checkpoint])])

    def close(self) -> None:
        self._file.close()


def new_etag() -> str:
    return uuid.uuid4().hex


def _store_group_key(names: GroupNames) -> GroupKey:
    return GroupKey(namespace_key(names.namespace), fold_name(names.hub), fold_name(names.group))
