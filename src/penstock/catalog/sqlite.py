"""The catalog in one SQLite file (WAL, flushed at every commit, readable by its owner alone)."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from penstock.catalog import rows
from penstock.catalog.index import CatalogIndex, Entity, Record
from penstock.catalog.schema import APPLICATION_ID, MIGRATIONS
from penstock.model.errors import DataDirectoryError
from penstock.model.ledger import AuditEntry

_BUSY_S = 1.0  # another process holding the file is a mistake; do not stop the loop for long
_FILE_MODE = 0o600  # it holds keys


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


class _SqliteStore:
    def __init__(self, path: Path) -> None:
        self._path = path
        _ensure_private_file(path)
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
        with self._translated(), self._transaction():
            for record in records:
                statement, values = rows.put_statement(record)
                self._connection.execute(statement, values)

    def delete(self, record: Entity, *audit: AuditEntry) -> None:
        with self._translated(), self._transaction():
            statement, values = rows.delete_statement(record)
            self._connection.execute(statement, values)  # the children go by ON DELETE CASCADE
            for entry in audit:
                self._connection.execute(*rows.put_statement(entry))

    def audit(self, newest: int) -> list[AuditEntry]:
        with self._translated():
            return rows.load_audit(self._connection, newest)

    def load(self) -> list[Record]:
        """Everything, parents before children."""
        with self._translated():
            return rows.load(self._connection)

    def close(self) -> None:
        self._connection.close()

    def _open(self) -> None:
        version = self._checked_version()
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.execute("PRAGMA foreign_keys = ON")
        self._check_content()
        for number in range(version, len(MIGRATIONS)):
            self._migrate(number)

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
        damage = self._connection.execute("PRAGMA quick_check(1)").fetchone()
        if damage != ("ok",):
            raise DataDirectoryError(f"{self._path} is damaged: {damage[0]}")
        if self._connection.execute("PRAGMA foreign_key_check").fetchone() is not None:
            raise DataDirectoryError(f"{self._path} is damaged: a row has lost its parent.")

    def _migrate(self, number: int) -> None:
        with self._transaction():
            for statement in MIGRATIONS[number]:
                self._connection.execute(statement)
            self._connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            self._connection.execute(f"PRAGMA user_version = {number + 1}")

    def _pragma(self, name: str) -> int:
        value: int = self._connection.execute(f"PRAGMA {name}").fetchone()[0]
        return value

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            # A commit that failed may have ended the transaction itself.
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """SQLite's errors, and values that no longer fit their type, name the file."""
        try:
            yield
        except (sqlite3.Error, ValueError, msgspec.MsgspecError) as error:
            raise DataDirectoryError(f"The catalog {self._path} cannot be used: {error}") from error


def _ensure_private_file(path: Path) -> None:
    try:
        try:
            # Made here and not by SQLite, so that it is never readable by others; the files
            # beside it (-wal, -shm) take over its mode.
            path.touch(_FILE_MODE, exist_ok=False)
            _flush_directory(path.parent)
        except FileExistsError:
            if not path.is_file():
                raise DataDirectoryError(f"{path} is not a file.") from None
            path.chmod(_FILE_MODE)
    except OSError as error:
        raise DataDirectoryError(
            f"The catalog {path} cannot be opened: {error.strerror}."
        ) from error


def _flush_directory(directory: Path) -> None:
    """The new file's name survives a power cut only once its directory is flushed."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
