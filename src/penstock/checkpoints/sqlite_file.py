"""Leases and checkpoints in one SQLite file, which processes of one machine may share.

Every commit is flushed to disk. A claim is one UPDATE or INSERT whose condition is the etag, so
that SQLite accepts only one of two claims of a record: compare-and-swap. Damage is detected when
the file is opened (`penstock.io.sqlite`); a committed row never vanishes without an error.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from penstock.checkpoints.records import GroupNames
from penstock.io.database import DatabaseFormat, DatabaseUnusable, open_database, open_read_only
from penstock.io.sqlite import transaction
from penstock.model.checkpoints import Checkpoint, Claim, Ownership
from penstock.model.errors import CheckpointStoreUnavailable, DataDirectoryError

APPLICATION_ID = 0x50454E43  # "PENC"; other SQLite files, named by mistake, have another id
_BUSY_S = 15.0  # a process holds the file for one flush, and for longer if it is suspended
_OPEN_AGAIN_S = 0.02
_OFFLINE_BUSY_S = 2.0

_TABLES = (
    """
    CREATE TABLE IF NOT EXISTS ownership (
        namespace TEXT NOT NULL,
        hub TEXT NOT NULL,
        consumer_group TEXT NOT NULL,
        partition_id TEXT NOT NULL,
        owner_id TEXT NOT NULL, -- empty: released
        etag TEXT NOT NULL,
        modified_ms INTEGER NOT NULL,
        PRIMARY KEY (namespace, hub, consumer_group, partition_id)
    ) STRICT, WITHOUT ROWID
    """,
    """
    CREATE TABLE IF NOT EXISTS checkpoints (
        namespace TEXT NOT NULL,
        hub TEXT NOT NULL,
        consumer_group TEXT NOT NULL,
        partition_id TEXT NOT NULL,
        "offset" TEXT NOT NULL,
        sequence_number INTEGER NOT NULL,
        modified_ms INTEGER NOT NULL,
        PRIMARY KEY (namespace, hub, consumer_group, partition_id)
    ) STRICT, WITHOUT ROWID
    """,
)
_FORMAT = DatabaseFormat(
    name="checkpoint file",
    application_id=APPLICATION_ID,
    migrations=(_TABLES, ()),  # 2: row sums
    summed_tables=("ownership", "checkpoints"),
    remedy="Restore it from a backup, or move it away to begin without checkpoints.",
)
# No etag in the claim: create the record only if there is none (protocol.md 11.1).
_CREATE = """
    INSERT INTO ownership (namespace, hub, consumer_group, partition_id, owner_id, etag,
        modified_ms)
    VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING
"""
_SWAP = """
    UPDATE ownership SET owner_id = ?, etag = ?, modified_ms = ?
    WHERE namespace = ? AND hub = ? AND consumer_group = ? AND partition_id = ? AND etag = ?
"""
_SAVE = """
    INSERT INTO checkpoints (namespace, hub, consumer_group, partition_id, "offset",
        sequence_number, modified_ms)
    VALUES (?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT DO UPDATE SET "offset" = excluded."offset",
        sequence_number = excluded.sequence_number, modified_ms = excluded.modified_ms
"""
_OWNED = """
    SELECT namespace, hub, consumer_group, partition_id, owner_id, etag, modified_ms FROM ownership
"""
_SAVED = """
    SELECT namespace, hub, consumer_group, partition_id, "offset", sequence_number, modified_ms
    FROM checkpoints
"""
_OF_GROUP = " WHERE namespace = ? AND hub = ? AND consumer_group = ?"
_FORGET = (
    "DELETE FROM ownership WHERE namespace = ? AND hub = ? AND consumer_group = ?",
    "DELETE FROM checkpoints WHERE namespace = ? AND hub = ? AND consumer_group = ?",
)


class CheckpointWrite(NamedTuple):
    """Changes of one group, named by its folded names, made in this order."""

    key: GroupNames
    forget: bool = False
    claims: Sequence[Claim] = ()
    checkpoints: Sequence[Checkpoint] = ()


class CheckpointWriteResult(NamedTuple):
    """What was written; claims that lost are missing."""

    ownerships: list[Ownership]
    checkpoints: list[Checkpoint]


class CheckpointFile:
    """Any thread of any number of processes may use the file; a forked process opens its own
    connection. Raises CheckpointStoreUnavailable, which names the file."""

    def __init__(
        self,
        path: Path,
        *,
        now_ms: Callable[[], int],
        new_etag: Callable[[], str] = lambda: uuid.uuid4().hex,
        is_shared: bool = True,
    ) -> None:
        """Without `is_shared` no other process uses the file, so the write-ahead log that an
        earlier process left can be checked before it is read."""
        self._path = path
        self._now_ms = now_ms
        self._new_etag = new_etag
        self._lock = threading.Lock()  # held by every use of the three below
        self._process = 0  # the process that opened the connection
        self._connection: sqlite3.Connection | None = None
        self._is_log_checked = is_shared
        with self._connection_locked():
            pass  # a file that cannot be opened raises here, not at the first use

    def write(self, writes: Sequence[CheckpointWrite]) -> list[CheckpointWriteResult]:
        """Make all changes in one transaction, durable on return. If this raises, nothing was
        written."""
        with self._connection_locked() as connection, transaction(connection):
            now_ms = self._now_ms()
            return [self._write(connection, write, now_ms) for write in writes]

    def ownerships(self, names: GroupNames) -> list[Ownership]:
        return [Ownership(*row[3:]) for row in self._select(_OWNED + _OF_GROUP, names.fold())]

    def checkpoints(self, names: GroupNames) -> list[Checkpoint]:
        return [Checkpoint(*row[3:]) for row in self._select(_SAVED + _OF_GROUP, names.fold())]

    def claim(self, names: GroupNames, claims: Sequence[Claim]) -> list[Ownership]:
        """The claims that won; those that lost are missing."""
        (result,) = self.write([CheckpointWrite(names.fold(), claims=claims)])
        return result.ownerships

    def save(self, names: GroupNames, checkpoint: Checkpoint) -> None:
        self.write([CheckpointWrite(names.fold(), checkpoints=[checkpoint])])

    def read_all(self) -> list[tuple[GroupNames, Ownership | Checkpoint]]:
        """With the folded names of the groups."""
        return [
            *((GroupNames(*row[:3]), Ownership(*row[3:])) for row in self._select(_OWNED)),
            *((GroupNames(*row[:3]), Checkpoint(*row[3:])) for row in self._select(_SAVED)),
        ]

    def _select(self, statement: str, values: Sequence[str] = ()) -> list[tuple[Any, ...]]:
        with self._connection_locked() as connection:
            return connection.execute(statement, values).fetchall()

    def close(self) -> None:
        with self._lock:
            if self._connection is not None and self._process == os.getpid():
                self._connection.close()
            self._connection = None

    def _write(
        self, connection: sqlite3.Connection, write: CheckpointWrite, now_ms: int
    ) -> CheckpointWriteResult:
        if write.forget:
            for statement in _FORGET:
                connection.execute(statement, write.key)
        won = []
        for claim in write.claims:
            record = Ownership(claim.partition_id, claim.owner_id, self._new_etag(), now_ms)
            if _has_won(connection, write.key, claim, record):
                won.append(record)
        saved = []
        for checkpoint in write.checkpoints:
            values = checkpoint.partition_id, checkpoint.offset, checkpoint.sequence_number, now_ms
            connection.execute(_SAVE, (*write.key, *values))
            saved.append(Checkpoint(*values))
        return CheckpointWriteResult(won, saved)

    @contextmanager
    def _connection_locked(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                if self._connection is None or self._process != os.getpid():
                    # SQLite forbids the use of a connection after a fork.
                    self._connection = self._open()
                    self._process = os.getpid()
                yield self._connection
            except DatabaseUnusable as error:
                raise CheckpointStoreUnavailable(str(error)) from error
            except (sqlite3.Error, UnicodeDecodeError) as error:
                raise CheckpointStoreUnavailable(
                    f"The checkpoint file {self._path} cannot be used: {error}"
                ) from error

    def _open(self) -> sqlite3.Connection:
        """Of two processes that create the file at once, one finds it locked for a moment; SQLite
        itself does not wait while the journal mode changes."""
        deadline_s = time.monotonic() + _BUSY_S
        while True:
            try:
                connection = open_database(
                    self._path, _FORMAT, busy_s=_BUSY_S, check_log=not self._is_log_checked
                )
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > deadline_s:
                    raise
                time.sleep(_OPEN_AGAIN_S)
            else:
                self._is_log_checked = True  # a forked process shares the file with its parent
                return connection


def _has_won(
    connection: sqlite3.Connection, key: GroupNames, claim: Claim, record: Ownership
) -> bool:
    values = (record.owner_id, record.etag, record.modified_ms)
    if claim.etag is None:
        cursor = connection.execute(_CREATE, (*key, claim.partition_id, *values))
    else:
        cursor = connection.execute(_SWAP, (*values, *key, claim.partition_id, claim.etag))
    return cursor.rowcount == 1


def read_checkpoints_offline(file: Path) -> list[tuple[str, str, Checkpoint]]:
    """Hub id, group and checkpoint of a data directory's file, also while a service runs; none if
    the file does not exist. Nothing is written. Raises DataDirectoryError if it cannot be read."""
    if not file.is_file():
        return []
    try:
        with closing(open_read_only(file, busy_s=_OFFLINE_BUSY_S)) as connection:
            rows = connection.execute(_SAVED).fetchall()
    except sqlite3.Error as error:
        raise DataDirectoryError(f"{file} cannot be read: {error}") from error
    return [(hub_id, group, Checkpoint(*saved)) for _, hub_id, group, *saved in rows]
