"""A flipped bit in a SQLite file or in its write-ahead log is noticed, or changes no row."""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.io.sqlite import (
    check_rows,
    find_wal_damage,
    install_row_sums,
    make_private_file,
    register_row_sum,
    transaction,
)

ROWS = 60
FLIPS = 300


def _open(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    register_row_sum(connection)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA foreign_keys = ON")
    return connection


def _fill(connection: sqlite3.Connection) -> None:
    """One transaction for each row, as the catalog and the checkpoint store write."""
    with transaction(connection):
        connection.execute("CREATE TABLE parents (name TEXT PRIMARY KEY, age INTEGER) STRICT")
        connection.execute(
            "CREATE TABLE children (parent TEXT REFERENCES parents (name) ON DELETE CASCADE, "
            "name TEXT NOT NULL, PRIMARY KEY (parent, name)) STRICT, WITHOUT ROWID"
        )
        connection.execute("CREATE TABLE counts (at INTEGER PRIMARY KEY, value INTEGER) STRICT")
        install_row_sums(connection, ("parents", "children", "counts"))
    for number in range(ROWS):
        with transaction(connection):
            connection.execute(
                "INSERT INTO parents VALUES (?, ?)", (f"parent {number:03}", number or None)
            )
            connection.execute("INSERT INTO counts VALUES (?, ?)", (number, -(2**40) * number))
            connection.execute("INSERT INTO children VALUES (?, 'a')", (f"parent {number:03}",))
    with transaction(connection):
        connection.execute("UPDATE parents SET age = age + 1 WHERE age > 10")
        connection.execute("UPDATE counts SET value = NULL WHERE at = 5")
        connection.execute("DELETE FROM parents WHERE name = 'parent 007'")  # and its child


def _rows(connection: sqlite3.Connection) -> list[object]:
    return [
        connection.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall()
        for table in ("parents", "children", "counts")
    ]


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """A database whose process was killed: nearly all rows are in the write-ahead log."""
    path = tmp_path / "made.sqlite"
    connection = _open(path)
    _fill(connection)
    copy = tmp_path / "killed.sqlite"
    for end in ("", "-wal"):
        shutil.copyfile(f"{path}{end}", f"{copy}{end}")
    connection.close()
    return copy


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    path = tmp_path / "stopped.sqlite"
    connection = _open(path)
    _fill(connection)
    connection.close()
    return path


def _copy(path: Path, name: str) -> Path:
    target = path.with_name(name)
    for end in ("", "-wal"):
        source = path.with_name(path.name + end)
        if source.exists():
            shutil.copyfile(source, target.with_name(target.name + end))
    return target


def _outcome(path: Path) -> list[object] | str:
    """The rows, or what is said to be wrong."""
    damage = find_wal_damage(path)
    if damage is not None:
        return damage.text
    connection = None
    try:
        connection = _open(path)
        return check_rows(connection) or _rows(connection)
    except (sqlite3.Error, UnicodeDecodeError) as error:  # of names or of SQLite's own message
        return str(error)
    finally:
        if connection is not None:
            connection.close()


def _flip(path: Path, at: int, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1 << bit
    path.write_bytes(content)


@pytest.mark.parametrize("end", ["", "-wal"])
def test_flipped_bit_is_noticed_or_changes_nothing(stopped: Path, killed: Path, end: str) -> None:
    made = killed if end else stopped
    expected = _outcome(_copy(made, "expected.sqlite"))
    assert isinstance(expected, list)
    chance = random.Random(15)
    size = made.with_name(made.name + end).stat().st_size
    noticed = 0
    # The header and the end of the file are places of their own.
    places = [*range(0, 100, 3), *range(size - 40, size), *chance.sample(range(size), FLIPS)]
    for at in places:
        copy = _copy(made, "flipped.sqlite")
        _flip(copy.with_name(copy.name + end), at, chance.randrange(8))
        outcome = _outcome(copy)
        assert outcome == expected or isinstance(outcome, str), (at, outcome)
        noticed += isinstance(outcome, str)
        copy.with_name(copy.name + "-wal").unlink(missing_ok=True)
    assert noticed > len(places) // 3


def test_log_of_a_killed_process_is_sound(killed: Path) -> None:
    assert killed.with_name(killed.name + "-wal").stat().st_size > 100_000
    assert find_wal_damage(killed) is None


def test_frames_of_an_older_generation_are_no_damage(tmp_path: Path) -> None:
    """After a checkpoint SQLite writes the log from its beginning and leaves the old frames."""
    path = tmp_path / "made.sqlite"
    connection = _open(path)
    _fill(connection)
    connection.execute("PRAGMA wal_checkpoint(RESTART)")
    connection.execute("INSERT INTO counts VALUES (1000, 1)")
    copy = _copy(path, "copy.sqlite")
    connection.close()
    assert find_wal_damage(copy) is None
    outcome = _outcome(copy)
    assert isinstance(outcome, list)
    assert (1000, 1) in outcome[2]  # type: ignore[operator]


def test_damage_before_two_commits_is_certain_and_in_the_last_one_is_not(killed: Path) -> None:
    log = killed.with_name(killed.name + "-wal")
    size = log.stat().st_size
    first, last = _copy(killed, "first.sqlite"), _copy(killed, "last.sqlite")
    _flip(first.with_name(first.name + "-wal"), size // 2, 0)
    _flip(last.with_name(last.name + "-wal"), size - 100, 0)
    damages = [find_wal_damage(first), find_wal_damage(last)]
    assert [damage is not None and damage.is_certain for damage in damages] == [True, False]
    assert damages[1] is not None
    assert "-wal breaks off" in damages[1].text


def test_torn_end_of_the_log_is_no_damage(killed: Path) -> None:
    """A process that is killed within a write leaves a part of a frame."""
    log = killed.with_name(killed.name + "-wal")
    log.write_bytes(log.read_bytes()[:-1000])
    assert find_wal_damage(killed) is None


CHANGES: list[tuple[str, Callable[[sqlite3.Connection], object]]] = [
    ("rows, but", lambda c: c.execute("DELETE FROM counts WHERE at = 3")),
    ("a row of the table parents", lambda c: c.execute("UPDATE parents SET age = 99")),
    ("definitions of its tables", lambda c: c.execute("CREATE TABLE other (a)")),
]


@pytest.mark.parametrize(("text", "change"), CHANGES)
def test_change_behind_the_triggers_is_named(
    stopped: Path, text: str, change: Callable[[sqlite3.Connection], object]
) -> None:
    connection = _open(stopped)
    triggers = connection.execute(
        "SELECT name, sql FROM sqlite_master WHERE type = 'trigger'"
    ).fetchall()
    for name, _ in triggers:
        connection.execute(f"DROP TRIGGER {name}")
    change(connection)
    for _, sql in triggers:
        connection.execute(sql)
    damage = check_rows(connection)
    connection.close()
    assert damage is not None
    assert text in damage


def test_existing_files_are_made_private(tmp_path: Path) -> None:
    path = tmp_path / "made.sqlite"
    connection = _open(path)
    connection.execute("CREATE TABLE a (b)")
    files = [path, path.with_name("made.sqlite-wal"), path.with_name("made.sqlite-shm")]
    for file in files:
        file.chmod(0o644)
    make_private_file(path)
    modes = [file.stat().st_mode & 0o777 for file in files]
    connection.close()
    assert modes == [0o600] * 3
    with pytest.raises(OSError, match="not a file"):
        make_private_file(tmp_path)
