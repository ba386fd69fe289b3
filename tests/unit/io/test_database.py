"""Opening a database file: what is refused, what is left alone, what is brought up to date."""

from __future__ import annotations

import sqlite3
import stat
from pathlib import Path

import pytest

from penstock.io.database import (
    DatabaseFormat,
    DatabaseInaccessible,
    DatabaseUnusable,
    copy_database,
    open_database,
    open_read_only,
    read_pragma,
)
from penstock.io.sqlite import transaction

STEPS = (("CREATE TABLE notes (id INTEGER PRIMARY KEY, text TEXT NOT NULL) STRICT",), ())
FORMAT = DatabaseFormat(
    name="notebook", application_id=0x4E4F5445, migrations=STEPS, summed_tables=("notes",)
)


def opened(path: Path | None, kind: DatabaseFormat = FORMAT) -> sqlite3.Connection:
    return open_database(path, kind, busy_s=1.0)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "notes.sqlite"
    connection = opened(path)
    for text in ("first", "second"):
        with transaction(connection):
            connection.execute("INSERT INTO notes (text) VALUES (?)", (text,))
    connection.close()
    return path


def texts(path: Path) -> list[str]:
    connection = opened(path)
    rows = [row[0] for row in connection.execute("SELECT text FROM notes ORDER BY id")]
    connection.close()
    return rows


def test_file_is_created_for_its_owner_alone(written: Path) -> None:
    assert stat.S_IMODE(written.stat().st_mode) == 0o600
    assert texts(written) == ["first", "second"]


def test_database_in_memory_has_the_same_tables() -> None:
    connection = opened(None)
    assert read_pragma(connection, "user_version") == 2
    connection.close()


def test_file_of_an_older_version_is_upgraded(tmp_path: Path) -> None:
    """Version 1 had no row sums; it is in the write-ahead log of a process that was killed."""
    path, copy = tmp_path / "made.sqlite", tmp_path / "killed.sqlite"
    connection = sqlite3.connect(path, isolation_level=None)
    for statement in (
        "PRAGMA journal_mode = WAL",
        *STEPS[0],
        f"PRAGMA application_id = {FORMAT.application_id}",
        "PRAGMA user_version = 1",
        "INSERT INTO notes (text) VALUES ('old')",
    ):
        connection.execute(statement)
    for end in ("", "-wal"):
        Path(f"{copy}{end}").write_bytes(Path(f"{path}{end}").read_bytes())
    connection.close()
    assert texts(copy) == ["old"]
    upgraded = opened(copy)
    assert read_pragma(upgraded, "user_version") == 2
    assert upgraded.execute("SELECT row_count FROM row_sums WHERE name = 'notes'").fetchone() == (
        1,
    )
    upgraded.close()


def test_file_of_a_newer_version_and_of_another_kind_are_left_alone(written: Path) -> None:
    before = written.read_bytes()
    older = DatabaseFormat(
        name="notebook",
        application_id=FORMAT.application_id,
        migrations=STEPS[:1],
        summed_tables=("notes",),
    )
    with pytest.raises(DatabaseInaccessible, match=f"{written} has notebook version 2, written by"):
        opened(written, older)
    other = DatabaseFormat(name="diary", application_id=1, migrations=STEPS, summed_tables=())
    with pytest.raises(DatabaseUnusable, match=f"{written} is an SQLite file, but not a .* diary"):
        opened(written, other)
    assert written.read_bytes() == before


def test_changed_row_is_refused_and_the_file_named(written: Path) -> None:
    content = written.read_bytes()
    written.write_bytes(content.replace(b"second", b"secomd"))
    with pytest.raises(
        DatabaseUnusable,
        match=f"The notebook {written} is damaged: a row of the table notes has changed. Restore",
    ):
        opened(written)


def test_file_that_the_system_refuses_is_named(tmp_path: Path) -> None:
    path = tmp_path / "absent" / "notes.sqlite"
    with pytest.raises(
        DatabaseInaccessible, match=f"The notebook {path} cannot be opened: No such"
    ):
        opened(path)


def _killed(tmp_path: Path) -> Path:
    """The file of a process that was killed: two commits are in the write-ahead log."""
    path, copy = tmp_path / "made.sqlite", tmp_path / "killed.sqlite"
    connection = opened(path)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    for text in ("first", "second"):
        with transaction(connection):
            connection.execute("INSERT INTO notes (text) VALUES (?)", (text,))
    for end in ("", "-wal"):
        Path(f"{copy}{end}").write_bytes(Path(f"{path}{end}").read_bytes())
    connection.close()
    return copy


def _damage_log(path: Path, at: int) -> None:
    log = path.with_name(f"{path.name}-wal")
    content = bytearray(log.read_bytes())
    content[at] ^= 1
    log.write_bytes(content)


def test_damaged_first_commit_in_the_log_is_refused(tmp_path: Path) -> None:
    path = _killed(tmp_path)
    _damage_log(path, 100)
    with pytest.raises(DatabaseUnusable, match=f"The notebook {path} is damaged: .* breaks off"):
        opened(path)


@pytest.mark.parametrize("is_durable", [True, False])
def test_damaged_last_commit_in_the_log_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_durable: bool
) -> None:
    """Also the first one where commits are not flushed one by one."""
    path = _killed(tmp_path)
    _damage_log(path, -1 if is_durable else 100)
    kind = DatabaseFormat(
        name="notebook",
        application_id=FORMAT.application_id,
        migrations=STEPS,
        summed_tables=("notes",),
        is_durable=is_durable,
    )
    connection = opened(path, kind)
    rows = connection.execute("SELECT text FROM notes").fetchall()
    connection.close()
    assert rows == ([("first",)] if is_durable else [])
    assert f"last changes of the notebook discarded: file={path}" in caplog.text


def test_reading_creates_no_file(written: Path) -> None:
    connection = open_read_only(written, busy_s=1.0)
    assert connection.execute("SELECT count(*) FROM notes").fetchone() == (2,)
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        connection.execute("DELETE FROM notes")
    connection.close()
    assert list(written.parent.iterdir()) == [written]


def test_reader_sees_what_a_running_service_has_committed(written: Path) -> None:
    owner = opened(written)
    with transaction(owner):
        owner.execute("INSERT INTO notes (text) VALUES ('third')")
    for is_locked in (False, True):
        connection = open_read_only(written, busy_s=1.0, is_locked=is_locked)
        assert connection.execute("SELECT count(*) FROM notes").fetchone() == (3,)
        connection.close()
    owner.close()


def test_copy_is_one_file(written: Path, tmp_path: Path) -> None:
    source = open_read_only(written, busy_s=1.0, is_locked=True)
    target = tmp_path / "copy" / "notes.sqlite"
    target.parent.mkdir()
    copy_database(source, target)
    source.close()
    assert list(target.parent.iterdir()) == [target]
    assert texts(target) == ["first", "second"]
