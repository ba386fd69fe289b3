"""Small databases beside the job's state: any process may open one, each act is one transaction."""

from __future__ import annotations

import sqlite3
from pathlib import Path

_BUSY_S = 30.0


def open_notes(file: Path, schema: str) -> sqlite3.Connection:
    """Made where it is missing, in a directory of ours. Raises sqlite3.Error, OSError."""
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    database = sqlite3.connect(file, timeout=_BUSY_S, isolation_level=None)
    try:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        database.executescript(schema)
    except sqlite3.Error:
        database.close()  # it is no database, or its disk is full
        raise
    return database
