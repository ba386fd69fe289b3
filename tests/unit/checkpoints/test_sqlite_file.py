"""The file: what is refused, what survives, who may share it."""

from __future__ import annotations

import itertools
import os
import sqlite3
import stat
from pathlib import Path

import pytest

from penstock.checkpoints import CheckpointStoreUnavailable, SqliteCheckpointStore
from penstock.checkpoints import sqlite_file as file_module
from penstock.checkpoints.records import GroupNames, namespace_key
from penstock.checkpoints.sqlite_file import CheckpointFile, CheckpointWrite
from penstock.model.checkpoints import Checkpoint, Claim, Ownership
from penstock.model.clock import ManualClock
from penstock.model.errors import ArgumentError

PLACE = GroupNames("namespace", "hub", "group")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def file(tmp_path: Path, clock: ManualClock) -> CheckpointFile:
    return open_file(tmp_path / "leases", clock)


def open_file(path: Path, clock: ManualClock) -> CheckpointFile:
    etags = itertools.count()
    return CheckpointFile(path, now_ms=clock.now_ms, new_etag=lambda: f"etag-{next(etags)}")


def claim(partition: str = "0", owner: str = "a", etag: str | None = None) -> Claim:
    return Claim(partition_id=partition, owner_id=owner, etag=etag)


def test_a_claim_has_the_clocks_time(file: CheckpointFile, clock: ManualClock) -> None:
    clock.advance(1234)
    (written,) = file.write([CheckpointWrite(PLACE, claims=[claim()])])
    assert written.ownerships == [
        Ownership(partition_id="0", owner_id="a", etag="etag-0", modified_ms=clock.now_ms())
    ]


def test_works_of_one_transaction_see_each_other(file: CheckpointFile) -> None:
    first, second, third = file.write(
        [
            CheckpointWrite(PLACE, claims=[claim(owner="a")]),
            CheckpointWrite(PLACE, claims=[claim(owner="b")]),
            CheckpointWrite(PLACE, claims=[claim(owner="c", etag="etag-0")]),
        ]
    )
    assert [each.owner_id for each in first.ownerships] == ["a"]
    assert second.ownerships == []
    assert [each.owner_id for each in third.ownerships] == ["c"]


def test_a_partition_that_is_claimed_twice_in_one_call_is_won_once(file: CheckpointFile) -> None:
    (written,) = file.write([CheckpointWrite(PLACE, claims=[claim(owner="a"), claim(owner="b")])])
    assert [each.owner_id for each in written.ownerships] == ["a"]


def test_forgetting_a_place_leaves_the_others(file: CheckpointFile) -> None:
    other = GroupNames("namespace", "hub", "other")
    saved = Checkpoint(partition_id="0", offset="1", sequence_number=1)
    file.write(
        [CheckpointWrite(place, claims=[claim()], checkpoints=[saved]) for place in (PLACE, other)]
    )
    file.write([CheckpointWrite(PLACE, forget=True)])
    assert file.ownerships(PLACE) == []
    assert {place for place, _ in file.read_all()} == {other}
    assert len(file.read_all()) == 2


def test_what_fails_half_way_writes_nothing(file: CheckpointFile) -> None:
    too_large = Checkpoint(partition_id="0", offset="1", sequence_number=2**64)
    with pytest.raises(OverflowError):
        file.write([CheckpointWrite(PLACE, claims=[claim()], checkpoints=[too_large])])
    assert file.read_all() == []
    file.write([CheckpointWrite(PLACE, claims=[claim()])])


def test_records_survive_closing(file: CheckpointFile, tmp_path: Path, clock: ManualClock) -> None:
    file.write([CheckpointWrite(PLACE, claims=[claim()])])
    known = file.read_all()
    file.close()
    file.close()
    again = open_file(tmp_path / "leases", clock)
    assert again.read_all() == known
    again.close()


def test_another_sqlite_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE theirs (a)")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(CheckpointStoreUnavailable, match="not a Penstock checkpoint file"):
        SqliteCheckpointStore(path)
    assert path.read_bytes() == before


def test_a_file_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "newer.sqlite"
    SqliteCheckpointStore(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(CheckpointStoreUnavailable, match="newer Penstock"):
        SqliteCheckpointStore(path)


@pytest.mark.parametrize("content", [b"no database at all" * 100, b"SQLite format 3\0" + b"x" * 90])
def test_a_file_that_is_no_database_is_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "text"
    path.write_bytes(content)
    with pytest.raises(CheckpointStoreUnavailable, match="text"):
        SqliteCheckpointStore(path)
    assert path.read_bytes() == content


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(CheckpointStoreUnavailable, match="nowhere"):
        SqliteCheckpointStore(tmp_path / "nowhere" / "leases")


def test_a_file_that_stays_locked_is_said_after_a_while(
    file: CheckpointFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: ManualClock
) -> None:
    monkeypatch.setattr(file_module, "_BUSY_S", 0.05)
    holder = sqlite3.connect(tmp_path / "leases", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    other = open_file(tmp_path / "leases", clock)  # opening reads only
    assert other.ownerships(PLACE) == []  # readers do not wait for writers
    with pytest.raises(CheckpointStoreUnavailable, match="locked"):
        other.write([CheckpointWrite(PLACE, claims=[claim()])])
    holder.execute("ROLLBACK")
    holder.close()
    other.write([CheckpointWrite(PLACE, claims=[claim()])])
    other.close()


def test_a_first_opening_waits_for_another_that_makes_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: ManualClock
) -> None:
    monkeypatch.setattr(file_module, "_BUSY_S", 0.05)
    holder = sqlite3.connect(tmp_path / "new", isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    with pytest.raises(CheckpointStoreUnavailable, match="locked"):
        open_file(tmp_path / "new", clock)
    holder.execute("ROLLBACK")
    holder.close()
    open_file(tmp_path / "new", clock).close()


def test_a_child_process_gets_a_connection_of_its_own(file: CheckpointFile) -> None:
    file.write([CheckpointWrite(PLACE, claims=[claim()])])
    mine = file._connection
    child = os.fork()
    if child == 0:
        try:
            file.write([CheckpointWrite(PLACE, claims=[claim(owner="child", etag="etag-0")])])
            os._exit(0 if file._connection is not mine else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert [each.owner_id for each in file.ownerships(PLACE)] == ["child"]
    assert file._connection is mine
    file.close()


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("Contoso.servicebus.windows.net", "contoso.servicebus.windows.net"),
        ("contoso.servicebus.windows.net:5671", "contoso.servicebus.windows.net"),
        ("sb://contoso.example.net:5671/", "contoso.example.net"),
        ("localhost:7777", "localhost"),
        ("127.0.0.1:5672", "localhost"),
        ("[::1]:5672", "localhost"),
        ("[2001:DB8::1]", "2001:db8::1"),
    ],
)
def test_a_namespace_is_the_same_on_every_port(text: str, key: str) -> None:
    assert namespace_key(text) == key


@pytest.mark.parametrize("text", ["", ":5671", "a b://c d/e/f", "host:123456", "[::1"])
def test_what_names_no_host_is_refused(text: str) -> None:
    with pytest.raises(ArgumentError):
        namespace_key(text)


def test_file_is_for_its_owner_alone(tmp_path: Path, clock: ManualClock) -> None:
    store = open_file(tmp_path / "leases", clock)
    store.write([CheckpointWrite(PLACE, claims=[claim()])])
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()}
    store.close()
    assert modes == {"leases": 0o600, "leases-wal": 0o600, "leases-shm": 0o600}


def test_row_that_vanished_is_noticed(tmp_path: Path, clock: ManualClock) -> None:
    store = open_file(tmp_path / "leases", clock)
    store.write([CheckpointWrite(PLACE, claims=[claim()])])
    store.close()
    connection = sqlite3.connect(tmp_path / "leases")
    connection.execute("UPDATE row_sums SET row_count = 2 WHERE name = 'ownership'")
    connection.commit()
    connection.close()
    with pytest.raises(
        CheckpointStoreUnavailable, match=r"leases is damaged: .* has 1 rows, but 2"
    ):
        open_file(tmp_path / "leases", clock)
