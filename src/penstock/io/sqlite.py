"""SQLite files that detect damage: row sums, and a check of the write-ahead log before it is read.

SQLite has no checksums in its database file, and it takes a damaged frame of the write-ahead log
for the end of the log. A flipped bit can therefore change a row, or make committed transactions
vanish, without an error. Two measures make that visible:

- Row sums. The table `row_sums` has the number of rows and the sum of the rows' CRC-32 for every
  table, kept by triggers in the transaction that changes the rows. `check_rows` compares.
- `find_wal_damage` reads the write-ahead log before SQLite does, and tells a log that ends from one
  that breaks off.
"""

from __future__ import annotations

import sqlite3
import struct
import zlib
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from penstock.io.files import fsync_directory, make_private

_ROW_SUMS = """
    CREATE TABLE IF NOT EXISTS row_sums (
        name TEXT PRIMARY KEY, -- of a table
        row_count INTEGER NOT NULL,
        row_sum INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID
"""
_SCHEMA = "sqlite_master"
_INTEGER_MASK = 2**31 - 1
_SUM_MASK = 2**48 - 1

_WAL_HEADER = struct.Struct(">8I")
_WAL_FRAME = struct.Struct(">6I")
_WAL_MAGIC = 0x377F0682  # with the lowest bit set the checksums are big-endian
_U32 = 0xFFFFFFFF


# --- files and transactions ---------------------------------------------------------------------


def make_private_file(path: Path) -> None:
    """Create the file for its owner alone, or take other users' rights to an existing one away.

    SQLite gives `-wal` and `-shm` the mode of the file beside them when it creates them. Raises
    OSError, also when the path is not a file.
    """
    if make_private(path):
        fsync_directory(path.parent)
    for file in (path.with_name(path.name + end) for end in ("-wal", "-shm")):
        if file.exists():
            make_private(file)


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """BEGIN IMMEDIATE, then COMMIT or, when the body raises, ROLLBACK."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        # A commit that failed may have ended the transaction itself.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


# --- row sums -----------------------------------------------------------------------------------


def register_row_sum(connection: sqlite3.Connection) -> None:
    """Every connection that writes to a file with row sums needs the function that sums a row."""
    connection.create_function("penstock_row_sum", -1, _row_sum, deterministic=True)


def install_row_sums(connection: sqlite3.Connection, tables: Sequence[str]) -> None:
    """Add row sums to these tables, or renew them after a change of the tables' columns. The
    present rows are taken as they are. To be called within a transaction."""
    connection.execute(_ROW_SUMS)
    for table in tables:
        count, total = _measure(connection, table)
        connection.execute(
            "INSERT OR REPLACE INTO row_sums VALUES (?, ?, ?)", (table, count, total)
        )
        added, removed = (_sum_of(connection, table, row) for row in ("NEW", "OLD"))
        for event, rows, change in (
            ("INSERT", "+ 1", f"+ {added}"),
            ("DELETE", "- 1", f"- {removed}"),
            ("UPDATE", "+ 0", f"+ {added} - {removed}"),
        ):
            sums = f"row_sum = (row_sum {change}) & {_SUM_MASK}"
            _install_trigger(connection, table, event, f"row_count = row_count {rows}, {sums}")
    connection.execute(
        "INSERT OR REPLACE INTO row_sums VALUES (?, ?, ?)", (_SCHEMA, *_measure_schema(connection))
    )


def check_rows(connection: sqlite3.Connection) -> str | None:
    """What is wrong with the file's structure, tables or rows, in words; None for a sound file.

    Other connections may write meanwhile: all is read in one transaction. Raises sqlite3.Error, or
    UnicodeDecodeError with a message of SQLite's, where SQLite itself cannot read the file.
    """
    connection.execute("BEGIN")
    try:
        return _check_rows(connection)
    finally:
        if connection.in_transaction:  # an error may have ended it
            connection.execute("ROLLBACK")


def check_structure(connection: sqlite3.Connection) -> str | None:
    """What is wrong with the file's structure, in words: all that can be checked without row sums.
    Raises as `check_rows` does."""
    (result,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
    if result != "ok":
        return str(result)
    if connection.execute("PRAGMA foreign_key_check").fetchone() is not None:
        return "a row has lost its parent."
    return None


def _check_rows(connection: sqlite3.Connection) -> str | None:
    damage = check_structure(connection)
    if damage is not None:
        return damage
    sums = connection.execute("SELECT name, row_count, row_sum FROM row_sums").fetchall()
    for table, count, total in sums:
        if table == _SCHEMA:
            if _measure_schema(connection) != (count, total):
                return "the definitions of its tables have changed."
            continue
        actual_count, actual_total = _measure(connection, table)
        if actual_count != count:
            return f"the table {table} has {actual_count} rows, but {count} were stored."
        if actual_total != total:
            return f"a row of the table {table} has changed."
    if _SCHEMA not in {row[0] for row in sums}:
        return "the sums of its rows are missing."
    return None


def _install_trigger(connection: sqlite3.Connection, table: str, event: str, change: str) -> None:
    name = f"row_sums_{table}_{event.lower()}"
    connection.execute(f"DROP TRIGGER IF EXISTS {name}")
    update = f"UPDATE row_sums SET {change} WHERE name = '{table}'"  # noqa: S608 - our own tables
    connection.execute(f"CREATE TRIGGER {name} AFTER {event} ON {table} BEGIN {update}; END")


def _measure(connection: sqlite3.Connection, table: str) -> tuple[int, int]:
    expression = _sum_of(connection, table)
    query = f"SELECT count(*), ifnull(sum({expression}), 0) & {_SUM_MASK} FROM {table}"  # noqa: S608 - names of our own tables
    count, total = connection.execute(query).fetchone()
    return count, total


def _measure_schema(connection: sqlite3.Connection) -> tuple[int, int]:
    rows = connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master").fetchall()
    return len(rows), sum(_row_sum(*row) for row in rows) & _SUM_MASK


def _sum_of(connection: sqlite3.Connection, table: str, row: str = "") -> str:
    """The SQL expression for the sum of one row. A table of integers alone is summed without a
    call into Python for each row; there, too, a changed bit always changes the sum."""
    prefix = f"{row}." if row else ""
    columns = [
        (f'{prefix}"{name}"', kind)
        for _, name, kind, *_ in connection.execute(f"PRAGMA table_info({table})")
    ]
    if any(kind != "INTEGER" for _, kind in columns):
        return f"penstock_row_sum({', '.join(name for name, _ in columns)})"
    terms = [
        f"{2 * index + 1} * ((ifnull({name}, -1) & {_INTEGER_MASK}) "
        f"+ 7 * (ifnull({name}, -1) >> 31))"
        for index, (name, _) in enumerate(columns)
    ]
    return f"({' + '.join(terms)})"


def _row_sum(*values: str | int | float | bytes | None) -> int:
    return zlib.crc32(repr(values).encode("utf-8", "surrogatepass"))


# --- the write-ahead log ------------------------------------------------------------------------


class WalDamage(msgspec.Struct, frozen=True):
    """Where a write-ahead log breaks off. `is_certain`: a transaction that was on disk is lost;
    otherwise the last one was either never complete, as after a power cut, or is damaged."""

    text: str
    is_certain: bool


def find_wal_damage(file: Path) -> WalDamage | None:
    """Compare the write-ahead log of a database file with its checksums, as SQLite would.

    No other connection may have the file open. After a killed process the log ends with a complete
    frame; a frame of the present generation that does not fit its checksum was damaged, or the
    power failed while it was written. Every commit is flushed before the next one is written: when
    a second commit follows, the first was complete once.
    """
    path = file.with_name(file.name + "-wal")
    try:
        content = memoryview(path.read_bytes())
    except FileNotFoundError:
        return None
    if len(content) < _WAL_HEADER.size + _WAL_FRAME.size:
        return None  # no frame was ever written
    magic, _, page, _, *salts, sum_1, sum_2 = _WAL_HEADER.unpack_from(content)
    is_little = not magic & 1
    sums = _wal_sums(content[:24], (0, 0), is_little=is_little)
    if magic & ~1 != _WAL_MAGIC or sums != (sum_1, sum_2) or page < 512:
        return WalDamage(f"the header of {path} is damaged", is_certain=True)
    size = _WAL_FRAME.size + page
    for start in range(_WAL_HEADER.size, len(content) - size + 1, size):
        frame = content[start : start + size]
        _, _, *frame_salts, sum_1, sum_2 = _WAL_FRAME.unpack_from(frame)
        sums = _wal_sums(frame[:8], sums, is_little=is_little)
        sums = _wal_sums(frame[_WAL_FRAME.size :], sums, is_little=is_little)
        if frame_salts != salts or sums != (sum_1, sum_2):
            return _judge_damage(path, content[start:], size, salts)
    return None


def _judge_damage(
    path: Path, frames_left: memoryview, size: int, salts: Sequence[int]
) -> WalDamage | None:
    """The first of the frames does not match its checksum. Frames of an older generation, which the
    present one has not overwritten yet, have other salts; a flipped bit changes only one of the
    two."""
    commits = frames = 0
    for start in range(0, len(frames_left) - size + 1, size):
        _, committed_pages, *frame_salts, _, _ = _WAL_FRAME.unpack_from(frames_left[start:])
        if frame_salts[0] == salts[0] or frame_salts[1] == salts[1]:
            frames += 1
            commits += committed_pages != 0
    if frames == 0:
        return None
    return WalDamage(
        f"{path} breaks off before its last {frames} pages, with {commits} commits",
        is_certain=commits >= 2,
    )


def _wal_sums(data: memoryview, sums: tuple[int, int], *, is_little: bool) -> tuple[int, int]:
    words = array("I", bytes(data))
    if (words.itemsize, is_little) != (4, _IS_LITTLE):
        words.byteswap()
    first, second = sums
    for even, odd in zip(words[::2], words[1::2], strict=True):
        first = (first + even + second) & _U32
        second = (second + odd + first) & _U32
    return first, second


_IS_LITTLE = struct.pack("=H", 1) == b"\x01\x00"
