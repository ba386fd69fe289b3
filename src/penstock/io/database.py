"""Opening a SQLite file of Penstock: private, recognized, checked for damage, brought up to date.

The catalog, the checkpoint store, the metric history and Capture's ledgers share this code; how
damage is detected is in `penstock.io.sqlite`.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

import msgspec

from penstock.io.sqlite import (
    WalDamage,
    check_rows,
    check_structure,
    find_wal_damage,
    install_row_sums,
    make_private_file,
    register_row_sum,
    transaction,
)

# SQLite's own default is 2 MB for each connection: memory would grow for hours as files grow.
CACHE_KB = 256

_logger = logging.getLogger(__name__)


class DatabaseUnusable(sqlite3.DatabaseError):
    """The file is damaged or not of this kind. The text is for the operator and names the file."""


class DatabaseInaccessible(DatabaseUnusable):
    """The file cannot be used by this process and is left as it is: it is of a newer version, or
    the operating system refuses access."""


class DatabaseFormat(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of database file, and the steps that lead to its present version. `PRAGMA
    user_version` of a file is the number of steps that it has applied."""

    name: str  # in messages: "The {name} {path} is damaged"
    application_id: int  # distinguishes it from other SQLite files
    migrations: Sequence[Sequence[str]]
    summed_tables: Sequence[str]
    is_durable: bool = True  # every commit is flushed; otherwise a power cut may cost the newest
    remedy: str = "Restore it from a backup."

    @property
    def version(self) -> int:
        return len(self.migrations)


def open_database(
    path: Path | None,
    kind: DatabaseFormat,
    *,
    busy_s: float,
    check_log: bool = True,
    check_content: bool = True,
) -> sqlite3.Connection:
    """Open the file, create it where it is missing, and upgrade it from an older version.

    Without a path the database is in memory. The connection is not bound to a thread; its owner
    uses one at a time. With `check_log` no other connection may have the file open. Raises
    DatabaseUnusable, and sqlite3.Error where SQLite itself fails, such as for a locked file.
    """
    connection = connect(path, kind.name, busy_s=busy_s)
    try:
        if path is not None and check_log:
            report_wal_damage(path, kind.name, find_wal_damage(path), is_durable=kind.is_durable)
        try:
            _prepare(connection, path, kind, check_content=check_content)
        except UnicodeDecodeError as error:  # in SQLite's own message about a damaged file
            raise DatabaseUnusable(f"The {kind.name} {path} is damaged: {error}") from error
    except BaseException:
        connection.close()
        raise
    return connection


def connect(path: Path | None, name: str, *, busy_s: float) -> sqlite3.Connection:
    """A connection to a file that only its owner can read. SQLite does not touch the file yet.
    Transactions begin and end only where the caller says so. Raises DatabaseInaccessible."""
    if path is not None:
        try:
            make_private_file(path)
        except OSError as error:
            raise DatabaseInaccessible(
                f"The {name} {path} cannot be opened: {error.strerror or error}."
            ) from error
    connection = sqlite3.connect(
        ":memory:" if path is None else path,
        timeout=busy_s,
        isolation_level=None,
        check_same_thread=False,
    )
    register_row_sum(connection)
    return connection


def open_read_only(file: Path, *, busy_s: float, is_locked: bool = False) -> sqlite3.Connection:
    """A connection that changes nothing in the file. It is not bound to a thread.

    A file without a write-ahead log is read without locks, so that SQLite creates no files beside
    it; a service that starts meanwhile may then change it while it is read. `is_locked` excludes
    that: SQLite locks the file, and creates `-wal` and `-shm` where it can. Raises sqlite3.Error.
    """
    name = quote(str(file.absolute()))
    has_log = file.with_name(f"{file.name}-wal").exists()
    modes = ["mode=ro", "immutable=1"] if is_locked else ["mode=ro" if has_log else "immutable=1"]
    while True:
        connection = sqlite3.connect(
            f"file:{name}?{modes.pop(0)}", uri=True, timeout=busy_s, check_same_thread=False
        )
        register_row_sum(connection)
        try:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except sqlite3.Error:
            connection.close()
            if has_log or not modes:
                raise
            continue  # the directory cannot be written, so no service can start on it
        return connection


def copy_database(source: sqlite3.Connection, target: Path) -> None:
    """Copy a database into an existing empty file: a snapshot in one step, which delays no writer.
    The copy is one file without a write-ahead log. Raises sqlite3.Error."""
    with closing(sqlite3.connect(target)) as copy:
        source.backup(copy)
        copy.execute("PRAGMA journal_mode = DELETE")


def report_wal_damage(
    path: Path, name: str, damage: WalDamage | None, *, is_durable: bool = True
) -> None:
    """Raise DatabaseUnusable where a transaction that was on disk is lost; log a warning where the
    last one may never have been complete, as after a power cut."""
    if damage is None:
        return
    if damage.is_certain and is_durable:
        raise DatabaseUnusable(
            f"The {name} {path} is damaged: {damage.text}. Restore it from a backup. To continue "
            "with what is left, move the -wal file away; later changes are lost then."
        )
    _logger.warning("last changes of the %s discarded: file=%s reason=%s", name, path, damage.text)


def _prepare(
    connection: sqlite3.Connection, path: Path | None, kind: DatabaseFormat, *, check_content: bool
) -> None:
    version = _check_version(connection, path, kind)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA synchronous = {'FULL' if kind.is_durable else 'NORMAL'}")
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute(f"PRAGMA cache_size = -{CACHE_KB}")
    damage = None
    if version < kind.version:
        # The only check of a file whose version has no row sums.
        damage = check_structure(connection)
        if damage is None:
            _upgrade(connection, kind)
    elif check_content:
        damage = check_rows(connection)
    if damage is not None:
        raise DatabaseUnusable(f"The {kind.name} {path} is damaged: {damage} {kind.remedy}")


def _check_version(connection: sqlite3.Connection, path: Path | None, kind: DatabaseFormat) -> int:
    """The version of the file. Called before anything is written: the file may belong to another
    program. Raises DatabaseUnusable."""
    version = read_pragma(connection, "user_version")
    if read_pragma(connection, "application_id") != kind.application_id:
        tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        # An empty file is left by a first start that was killed, and is used.
        if version != 0 or tables != (0,):
            raise DatabaseUnusable(f"{path} is an SQLite file, but not a Penstock {kind.name}.")
    if version > kind.version:
        raise DatabaseInaccessible(
            f"{path} has {kind.name} version {version}, written by a newer Penstock: "
            f"this one knows versions up to {kind.version}. Start the newer one."
        )
    return version


def _upgrade(connection: sqlite3.Connection, kind: DatabaseFormat) -> None:
    with transaction(connection):
        # Read again: another process that shares the file may have upgraded it.
        for step in kind.migrations[read_pragma(connection, "user_version") :]:
            for statement in step:
                connection.execute(statement)
        install_row_sums(connection, kind.summed_tables)
        connection.execute(f"PRAGMA application_id = {kind.application_id}")
        connection.execute(f"PRAGMA user_version = {kind.version}")


def read_pragma(connection: sqlite3.Connection, name: str) -> int:
    value: int = connection.execute(f"PRAGMA {name}").fetchone()[0]
    return value
