"""Leases and checkpoints in one SQLite file, which processes of one machine may share.

Write-ahead log, flushed at every commit. A claim is one UPDATE or INSERT whose condition is the
etag, so that of two claims of one record SQLite lets one through: compare-and-swap. Damage is
detected when the file is opened (`penstock.io.sqlite`); a committed row never vanishes silently.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from penstock.io.database import DatabaseFormat, DatabaseUnusable, open_database
from penstock.io.sqlite import transaction
from penstock.model.checkpoints import Checkpoint, Claim, Ownership
from penstock.model.errors import CheckpointStoreUnavailable

# "PENC": tells it from any other SQLite file that somebody names by mistake.
APPLICATION_ID = 0x50454E43
_BUSY_S = 15.0  # others hold the file for one flush; one that was paused meanwhile, for longer
_OPEN_AGAIN_S = 0.02

_TABLES = (
    """
    CREATE TABLE IF NOT EXISTS ownership (
        namespace TEXT NOT NULL,
        hub TEXT NOT NULL,
        consumer_group TEXT NOT NULL,
        partition_id TEXT NOT NULL,
        owner_id TEXT NOT NULL, -- empty: given up
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
# etag absent = create only if there is none (protocol.md 11.1).
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
_PLACE = " WHERE namespace = ? AND hub = ? AND consumer_group = ?"
_FORGET = (
    "DELETE FROM ownership WHERE namespace = ? AND hub = ? AND consumer_group = ?",
    "DELETE FROM checkpoints WHERE namespace = ? AND hub = ? AND consumer_group = ?",
)


class GroupKey(NamedTuple):
    """A consumer group by its keys: two spellings of one name are one place."""

    namespace: str
    hub: str
    group: str


class CheckpointWrite(NamedTuple):
    """What is to be written of one place, in this order."""

    place: GroupKey
    forget: bool = False
    claims: Sequence[Claim] = ()
    checkpoints: Sequence[Checkpoint] = ()


class CheckpointWriteResult(NamedTuple):
    """What was: claims that lost are left out."""

    ownerships: list[Ownership]
    checkpoints: list[Checkpoint]


class CheckpointFile:
    """Any thread, any number of processes. Raises CheckpointStoreUnavailable, which names the
    file. Whoever is forked with it gets a connection of its own."""

    def __init__(
        self,
        path: Path,
        *,
        now_ms: Callable[[], int],
        new_etag: Callable[[], str],
        is_shared: bool = True,
    ) -> None:
        """Without `is_shared` no other process uses the file, so the write-ahead log that an
        earlier process left can be checked before it is read."""
        self._path = path
        self._now_ms = now_ms
        self._new_etag = new_etag
        self._lock = threading.Lock()
        self._process = 0
        self._connection: sqlite3.Connection | None = None
        self._is_log_checked = is_shared
        with self._connection_locked():
            pass  # what cannot be opened is said at once

    def write(self, works: Sequence[CheckpointWrite]) -> list[CheckpointWriteResult]:
        """All in one transaction, durable on return; when it raises, nothing was written."""
        with self._connection_locked() as connection, transaction(connection):
            now_ms = self._now_ms()
            return [self._write(connection, work, now_ms) for work in works]

    def ownerships(self, place: GroupKey) -> list[Ownership]:
        with self._connection_locked() as connection:
            rows = connection.execute(_OWNED + _PLACE, place).fetchall()
        return [_ownership(*row[3:]) for row in rows]

    def checkpoints(self, place: GroupKey) -> list[Checkpoint]:
        with self._connection_locked() as connection:
            rows = connection.execute(_SAVED + _PLACE, place).fetchall()
        return [_checkpoint(*row[3:]) for row in rows]

    def read_all(self) -> list[tuple[GroupKey, Ownership | Checkpoint]]:
        with self._connection_locked() as connection:
            owned = connection.execute(_OWNED).fetchall()
            saved = connection.execute(_SAVED).fetchall()
        return [
            *((GroupKey(*row[:3]), _ownership(*row[3:])) for row in owned),
            *((GroupKey(*row[:3]), _checkpoint(*row[3:])) for row in saved),
        ]

    def close(self) -> None:
        with self._lock:
            if self._connection is not None and self._process == os.getpid():
                self._connection.close()
            self._connection = None

    def _write(
        self, connection: sqlite3.Connection, work: CheckpointWrite, now_ms: int
    ) -> CheckpointWriteResult:
        if work.forget:
            for statement in _FORGET:
                connection.execute(statement, work.place)
        won = []
        for claim in work.claims:
            record = Ownership(
                partition_id=claim.partition_id,
                owner_id=claim.owner_id,
                etag=self._new_etag(),
                modified_ms=now_ms,
            )
            if _has_won(connection, work.place, claim, record):
                won.append(record)
        saved = []
        for each in work.checkpoints:
            row = (*work.place, each.partition_id, each.offset, each.sequence_number, now_ms)
            connection.execute(_SAVE, row)
            saved.append(_checkpoint(*row[3:]))
        return CheckpointWriteResult(won, saved)

    @contextmanager
    def _connection_locked(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                if self._connection is None or self._process != os.getpid():
                    # A connection must not cross a fork; the parent's is left as it is.
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
        """Two processes that make the file at once: one finds it locked for a moment, and SQLite
        does not wait while the journal's mode changes."""
        give_up = time.monotonic() + _BUSY_S
        while True:
            try:
                connection = open_database(
                    self._path, _FORMAT, busy_s=_BUSY_S, check_log=not self._is_log_checked
                )
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > give_up:
                    raise
                time.sleep(_OPEN_AGAIN_S)
            else:
                self._is_log_checked = True  # a forked process opens it beside its parent
                return connection


def _has_won(
    connection: sqlite3.Connection, place: GroupKey, claim: Claim, record: Ownership
) -> bool:
    new = (record.owner_id, record.etag, record.modified_ms)
    if claim.etag is None:
        done = connection.execute(_CREATE, (*place, claim.partition_id, *new))
    else:
        done = connection.execute(_SWAP, (*new, *place, claim.partition_id, claim.etag))
    return done.rowcount == 1


def _ownership(partition_id: str, owner_id: str, etag: str, modified_ms: int) -> Ownership:
    return Ownership(
        partition_id=partition_id, owner_id=owner_id, etag=etag, modified_ms=modified_ms
    )


def _checkpoint(
    partition_id: str, offset: str, sequence_number: int, modified_ms: int
) -> Checkpoint:
    return Checkpoint(
        partition_id=partition_id,
        offset=offset,
        sequence_number=sequence_number,
        modified_ms=modified_ms,
    )
