"""The catalog in one SQLite file: flushed at every commit, checked when it is opened.

A committed row never vanishes without an error. Each commit is moved from the write-ahead log into
the database file before it counts, so a damaged log costs at most a change that was never
confirmed; row sums (`penstock.io.sqlite`) detect a damaged database file.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from penstock.catalog import rows
from penstock.catalog.index import CatalogIndex, Entity, Record
from penstock.catalog.schema import APPLICATION_ID, MIGRATIONS, SUMMED_TABLES
from penstock.io.sqlite import (
    check_rows,
    find_wal_damage,
    install_row_sums,
    make_private_file,
    register_row_sum,
    transaction,
)
from penstock.model.errors import DataDirectoryError
from penstock.model.ledger import AuditEntry

_logger = logging.getLogger(__name__)

_BUSY_S = 1.0  # another process holding the file is a mistake; do not stop the loop for long


class SqliteCatalog(CatalogIndex):
    """`catalog.api.Catalog` kept in a file; reads come from the copy made when it was opened.

    Raises DataDirectoryError, which names the file, when it cannot be opened, is damaged, or was
    written by a newer Penstock; and on a write that the disk refuses. One process at a time: the
    lock on the data directory sees to that.
    """

    def __init__(self, path: Path) -> None:
        store = _SqliteStore(path)
        try:
            super().__init__(store, store.load())
        except BaseException:
            store.close()
            raise
        self._sqlite = store

    def deleted_hubs(self) -> list[str]:
        """The ids of hubs whose deletion is committed and whose log may still be there."""
        return self._sqlite.deleted_hubs()

    def forget_deleted_hubs(self, ids: Collection[str]) -> None:
        """Their logs are gone."""
        self._sqlite.forget_deleted_hubs(ids)


class _SqliteStore:
    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            make_private_file(path)
        except OSError as error:
            raise DataDirectoryError(
                f"The catalog {path} cannot be opened: {error.strerror or error}."
            ) from error
        self._check_log()
        with self._translated():
            # isolation_level None: transactions begin and end only where this file says so.
            self._connection = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None)
        try:
            with self._translated():
                self._open()
        except BaseException:
            self._connection.close()
            raise

    def put(self, records: tuple[Record, ...]) -> None:
        with self._translated():
            with transaction(self._connection):
                for record in records:
                    statement, values = rows.put_statement(record)
                    self._connection.execute(statement, values)
            empty_log(self._connection)

    def delete(self, record: Entity, *audit: AuditEntry) -> None:
        with self._translated():
            with transaction(self._connection):
                statement, values = rows.delete_statement(record)
                self._connection.execute(statement, values)  # children go by ON DELETE CASCADE
                for entry in audit:
                    self._connection.execute(*rows.put_statement(entry))
            empty_log(self._connection)

    def audit(self, newest: int) -> list[AuditEntry]:
        with self._translated():
            return rows.load_audit(self._connection, newest)

    def deleted_hubs(self) -> list[str]:
        with self._translated():
            return [row[0] for row in self._connection.execute("SELECT id FROM deleted_hubs")]

    def forget_deleted_hubs(self, ids: Collection[str]) -> None:
        with self._translated():
            with transaction(self._connection):
                statement = "DELETE FROM deleted_hubs WHERE id = ?"
                self._connection.executemany(statement, [(each,) for each in ids])
            empty_log(self._connection)

    def load(self) -> list[Record]:
        """Everything, parents before children."""
        with self._translated():
            return rows.load(self._connection)

    def close(self) -> None:
        self._connection.close()

    def _check_log(self) -> None:
        damage = find_wal_damage(self._path)
        if damage is None:
            return
        if damage.is_certain:
            raise DataDirectoryError(
                f"The catalog {self._path} is damaged: {damage.text}. Restore it from a backup. To "
                "continue with what is left, move the -wal file away; later changes are lost then."
            )
        _logger.warning("catalog change discarded: file=%s reason=%s", self._path, damage.text)

    def _open(self) -> None:
        register_row_sum(self._connection)
        version = self._checked_version()
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.execute("PRAGMA foreign_keys = ON")
        if version == len(MIGRATIONS):
            self._check_content()
        else:
            self._check_structure()
            with transaction(self._connection):
                for number in range(version, len(MIGRATIONS)):
                    self._migrate(number)
                install_row_sums(self._connection, SUMMED_TABLES)
        empty_log(self._connection)

    def _checked_version(self) -> int:
        """Judged before anything is written to a file that may not be ours."""
        version = self._pragma("user_version")
        if self._pragma("application_id") != APPLICATION_ID:
            tables = self._connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            # A first start that was killed leaves an empty file, and that one is ours.
            if version != 0 or tables != (0,):
                raise DataDirectoryError(
                    f"{self._path} is an SQLite file, but not a Penstock catalog."
                )
        if version > len(MIGRATIONS):
            raise DataDirectoryError(
                f"{self._path} has catalog version {version}, written by a newer Penstock: "
                f"this one knows versions up to {len(MIGRATIONS)}. Start the newer one."
            )
        return version

    def _check_content(self) -> None:
        damage = check_rows(self._connection)
        if damage is not None:
            raise DataDirectoryError(
                f"The catalog {self._path} is damaged: {damage} Restore it from a backup."
            )
        self._check_structure()

    def _check_structure(self) -> None:
        """All that can be checked in a file of a version without row sums."""
        damage = self._connection.execute("PRAGMA integrity_check(1)").fetchone()
        if damage != ("ok",):
            raise DataDirectoryError(f"{self._path} is damaged: {damage[0]}")
        if self._connection.execute("PRAGMA foreign_key_check").fetchone() is not None:
            raise DataDirectoryError(f"{self._path} is damaged: a row has lost its parent.")

    def _migrate(self, number: int) -> None:
        for statement in MIGRATIONS[number]:
            self._connection.execute(statement)
        self._connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        self._connection.execute(f"PRAGMA user_version = {number + 1}")

    def _pragma(self, name: str) -> int:
        value: int = self._connection.execute(f"PRAGMA {name}").fetchone()[0]
        return value

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """SQLite's errors, and values that no longer fit their type, name the file."""
        try:
            yield
        except (sqlite3.Error, ValueError, msgspec.MsgspecError) as error:
            raise DataDirectoryError(f"The catalog {self._path} cannot be used: {error}") from error


def empty_log(connection: sqlite3.Connection) -> None:
    """Move what is in the write-ahead log into the database file, flush it, and empty the log.

    Another connection may be reading or writing at that moment, so this is not an error when it is
    refused: that connection, or the next write, does it.
    """
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
