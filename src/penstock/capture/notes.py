"""Small databases beside the job's state: any process may open one, each act is one transaction.

Damage is detected as in the catalog (`penstock.io.sqlite`) when the job opens a file for a run; the
processes that open it for each batch do not compare all rows again.
"""

from __future__ import annotations

import sqlite3
import time
import zlib
from collections.abc import Sequence
from pathlib import Path

from penstock.io.database import connect, read_pragma, report_wal_damage
from penstock.io.sqlite import (
    WalDamage,
    check_rows,
    find_wal_damage,
    install_row_sums,
    transaction,
)

_BUSY_S = 30.0
_LOOK_AGAIN_S = 0.2
_LOOKS_MAX = 10


def open_notes(
    file: Path, schema: str, tables: Sequence[str], *, check: bool = False
) -> sqlite3.Connection:
    """Made where it is missing, in a directory of ours. Raises sqlite3.Error, OSError; with `check`
    also sqlite3.DatabaseError for a file whose rows have changed or vanished."""
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if check:
        report_wal_damage(file, "capture ledger", _find_wal_damage(file))
    database = connect(file, "capture ledger", busy_s=_BUSY_S)
    try:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        database.execute("PRAGMA recursive_triggers = ON")  # of INSERT OR REPLACE: sums of the old
        database.executescript(schema)
        _prepare(database, zlib.crc32(schema.encode()) >> 1, tables)
        text = check_rows(database) if check else None
        if text is not None:
            raise sqlite3.DatabaseError(f"it is damaged: {text}")
    except UnicodeDecodeError as error:  # of a message of SQLite's own
        database.close()
        raise sqlite3.DatabaseError(f"{file} is damaged: {error}") from error
    except sqlite3.Error as error:
        database.close()  # it is no database, or its disk is full
        raise type(error)(f"{file}: {error}") from error
    return database


def _prepare(database: sqlite3.Connection, version: int, tables: Sequence[str]) -> None:
    """Version 0.1 wrote no row sums; another schema has other ones."""
    if read_pragma(database, "user_version") == version:
        return
    with transaction(database):
        if read_pragma(database, "user_version") == version:
            return  # another process was faster
        install_row_sums(database, tables)
        database.execute(f"PRAGMA user_version = {version}")


def _find_wal_damage(file: Path) -> WalDamage | None:
    """Another process may be writing: damage counts when the file does not change meanwhile."""
    log = file.with_name(file.name + "-wal")
    for _ in range(_LOOKS_MAX):
        damage = find_wal_damage(file)
        if damage is None or not log.exists():
            return None
        before = log.stat()
        time.sleep(_LOOK_AGAIN_S)
        if find_wal_damage(file) == damage and log.exists():
            now = log.stat()
            if (now.st_size, now.st_mtime_ns) == (before.st_size, before.st_mtime_ns):
                return damage
    return None
