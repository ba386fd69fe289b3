"""The catalog in one SQLite file: flushed at every commit, checked when it is opened.

A committed row never vanishes without an error. Each commit is moved from the write-ahead log into
the database file before it counts, so a damaged log costs at most a change that was never
confirmed; row sums (`penstock.io.sqlite`) detect a damaged database file.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from penstock.catalog import sqlite_rows
from penstock.catalog.index import CatalogIndex, Entity, Record
from penstock.catalog.schema import APPLICATION_ID, MIGRATIONS, SUMMED_TABLES
from penstock.io.database import DatabaseFormat, DatabaseUnusable, open_database
from penstock.io.sqlite import transaction
from penstock.model.errors import DataDirectoryError
from penstock.model.usage import AuditEntry

_BUSY_S = 1.0  # another process holding the file is a mistake; do not stop the loop for long


class SqliteCatalog(CatalogIndex):
    """`catalog.api.Catalog` kept in a file; reads come from the copy made when it was opened.

    Raises DataDirectoryError, which names the file, when it cannot be opened, is damaged, or was
    written by a newer Penstock; and on a write that the disk refuses. One process at a time: the
    lock on the data directory sees to that.
    """

    def __init__(self, path: Path) -> None:
        store = _SqliteStorage(path)
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


class _SqliteStorage:
    def __init__(self, path: Path) -> None:
        self._path = path
        with self._translate_errors():
            self._connection = open_database(path, _format(), busy_s=_BUSY_S)
            try:
                empty_log(self._connection)
            except BaseException:
                self._connection.close()
                raise

    def put(self, records: tuple[Record, ...]) -> None:
        with self._translate_errors():
            with transaction(self._connection):
                for record in records:
                    statement, values = sqlite_rows.put_statement(record)
                    self._connection.execute(statement, values)
            empty_log(self._connection)

    def delete(self, record: Entity, *audit: AuditEntry) -> None:
        with self._translate_errors():
            with transaction(self._connection):
                statement, values = sqlite_rows.delete_statement(record)
                self._connection.execute(statement, values)  # children go by ON DELETE CASCADE
                for entry in audit:
                    self._connection.execute(*sqlite_rows.put_statement(entry))
            empty_log(self._connection)

    def audit(self, newest: int) -> list[AuditEntry]:
        with self._translate_errors():
            return sqlite_rows.load_audit(self._connection, newest)

    def deleted_hubs(self) -> list[str]:
        with self._translate_errors():
            return [row[0] for row in self._connection.execute("SELECT id FROM deleted_hubs")]

    def forget_deleted_hubs(self, ids: Collection[str]) -> None:
        with self._translate_errors():
            with transaction(self._connection):
                statement = "DELETE FROM deleted_hubs WHERE id = ?"
                self._connection.executemany(statement, [(each,) for each in ids])
            empty_log(self._connection)

    def load(self) -> list[Record]:
        """Everything, parents before children."""
        with self._translate_errors():
            return sqlite_rows.load_entities(self._connection)

    def close(self) -> None:
        self._connection.close()

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """SQLite's errors, and values that no longer fit their type, name the file."""
        try:
            yield
        except DatabaseUnusable as error:
            raise DataDirectoryError(str(error)) from error
        except (sqlite3.Error, ValueError, msgspec.MsgspecError) as error:
            raise DataDirectoryError(f"The catalog {self._path} cannot be used: {error}") from error


def _format() -> DatabaseFormat:
    return DatabaseFormat(
        name="catalog",
        application_id=APPLICATION_ID,
        migrations=MIGRATIONS,
        summed_tables=SUMMED_TABLES,
    )


def empty_log(connection: sqlite3.Connection) -> None:
    """Move what is in the write-ahead log into the database file, flush it, and empty the log.

    Another connection may be reading or writing at that moment, so this is not an error when it is
    refused: that connection, or the next write, does it.
    """
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
