"""What SQLite adds to the catalog: durability, privacy of the file, and refusing strange files."""

from __future__ import annotations

import shutil
import sqlite3
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.catalog import sqlite
from penstock.catalog.sqlite import SqliteCatalog
from penstock.io.database import DatabaseFormat
from penstock.io.sqlite import register_row_sum
from penstock.model.entities import (
    AuthorizationRule,
    ConsumerGroup,
    Hub,
    HubStatus,
    Namespace,
    RevokedPublisher,
    Right,
    Secret,
    Tier,
)
from penstock.model.errors import DataDirectoryError
from penstock.model.names import GroupName, HubName, NamespaceName, PublisherName, RuleName
from penstock.model.quotas import QuotaGrant, QuotaKind

NS = NamespaceName("Contoso")
NAMESPACE = Namespace(
    name=NS,
    created_ms=1,
    updated_ms=2,
    hosts=("localhost", "contoso.example"),
    tier=Tier.DEDICATED,
    throughput_units=5,
    maximum_throughput_units=15,
)
HUB = Hub(
    id="a1",
    namespace=NS,
    name=HubName("plant/Line"),
    partition_count=4,
    created_ms=3,
    updated_ms=4,
    retention_hours=72,
    status=HubStatus.RECEIVE_DISABLED,
    user_metadata="é\n'\"",
)
GROUP = ConsumerGroup(
    namespace=NS, hub=HUB.name, name=GroupName("Audit"), created_ms=5, updated_ms=6
)
RULE = AuthorizationRule(
    namespace=NS,
    hub=None,
    name=RuleName("Root"),
    rights=Right.ALL,
    primary_key=Secret("prim"),
    secondary_key=Secret("sec"),
    created_ms=7,
    updated_ms=8,
)
HUB_RULE = msgspec.structs.replace(RULE, hub=HUB.name, rights=Right.SEND)
REVOKED = RevokedPublisher(
    namespace=NS, hub=HUB.name, name=PublisherName("Gerät 1/a"), revoked_ms=9
)

GRANT = QuotaGrant(
    namespace=NS,
    kind=QuotaKind.PARTITIONS,
    value=64,
    granted_by="é. Operator",
    granted_ms=10,
    note="by telephone",
)


def content(catalog: SqliteCatalog) -> list[object]:
    seen: list[object] = []
    for namespace in catalog.namespaces():
        seen += [namespace, *catalog.rules(namespace.name)]
        seen += catalog.quota_grants(namespace.name)
        for hub in catalog.hubs(namespace.name):
            seen += [hub, *catalog.groups(namespace.name, hub.name)]
            seen += catalog.rules(namespace.name, hub.name)
            seen += catalog.revoked_publishers(namespace.name, hub.name)
    return seen


def fill(catalog: SqliteCatalog) -> None:
    catalog.put_namespace(NAMESPACE)
    catalog.put_hub(HUB)
    catalog.put_group(GROUP)
    catalog.put_rule(RULE)
    catalog.put_rule(HUB_RULE)
    catalog.put_revoked_publisher(REVOKED)
    catalog.put_quota_grant(GRANT)


def filled(path: Path) -> list[object]:
    catalog = SqliteCatalog(path)
    fill(catalog)
    seen = content(catalog)
    catalog.close()
    return seen


def read(path: Path) -> list[object]:
    catalog = SqliteCatalog(path)
    seen = content(catalog)
    catalog.close()
    return seen


def test_reopened_catalog_holds_everything(tmp_path: Path) -> None:
    path = tmp_path / "catalog.db"
    before = filled(path)
    assert len(before) == 8
    assert read(path) == before


def test_replaced_records_survive_reopening_with_every_field(tmp_path: Path) -> None:
    path = tmp_path / "catalog.db"
    filled(path)
    catalog = SqliteCatalog(path)
    namespace = Namespace(name=NS, created_ms=11, updated_ms=12, hosts=("::1",))
    hub = Hub(
        id=HUB.id,
        namespace=NS,
        name=HUB.name,
        partition_count=HUB.partition_count,
        created_ms=13,
        updated_ms=14,
    )
    group = msgspec.structs.replace(GROUP, created_ms=15, updated_ms=16, user_metadata="new")
    rule = msgspec.structs.replace(
        RULE,
        rights=Right.LISTEN,
        primary_key=Secret("new-1"),
        secondary_key=Secret("new-2"),
        created_ms=17,
        updated_ms=18,
    )
    catalog.put_namespace(namespace)
    catalog.put_hub(hub)
    catalog.put_group(group)
    catalog.put_rule(rule)
    revoked = msgspec.structs.replace(REVOKED, revoked_ms=19)
    catalog.put_revoked_publisher(revoked)
    grant = msgspec.structs.replace(GRANT, value=96, granted_by="B", granted_ms=20, note="")
    catalog.put_quota_grant(grant)
    catalog.close()
    after = read(path)
    assert after[:4] == [namespace, rule, grant, hub]
    assert group in after
    assert after[-2:] == [HUB_RULE, revoked]
    assert len(after) == 8


def test_deletions_survive_reopening(tmp_path: Path) -> None:
    path = tmp_path / "catalog.db"
    filled(path)
    catalog = SqliteCatalog(path)
    catalog.delete_group(NS, HUB.name, "audit")
    catalog.delete_rule(NS, None, "root")
    catalog.delete_revoked_publisher(NS, HUB.name, REVOKED.name)
    catalog.delete_quota_grant(NS, QuotaKind.PARTITIONS, by="B", now_ms=21)
    catalog.close()
    assert [type(record) for record in read(path)] == [
        Namespace,
        Hub,
        ConsumerGroup,
        AuthorizationRule,
    ]
    catalog = SqliteCatalog(path)
    catalog.delete_hub(NS, HUB.name)
    catalog.close()
    assert read(path) == [NAMESPACE]
    catalog = SqliteCatalog(path)
    catalog.delete_namespace(NS)
    catalog.close()
    assert read(path) == []


@pytest.mark.parametrize("end", ["", "-wal", "-shm"])
def test_files_are_the_owners_alone(tmp_path: Path, end: str) -> None:
    path = tmp_path / "catalog.db"
    catalog = SqliteCatalog(path)
    fill(catalog)
    assert stat.S_IMODE(Path(f"{path}{end}").stat().st_mode) == 0o600
    catalog.close()


def test_file_opened_to_others_is_closed_to_them_again(tmp_path: Path) -> None:
    path = tmp_path / "catalog.db"
    filled(path)
    path.chmod(0o644)
    read(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_file_is_written_with_full_synchronisation_and_wal(tmp_path: Path) -> None:
    catalog = SqliteCatalog(tmp_path / "catalog.db")
    connection = catalog._connection
    pragmas = ("journal_mode", "synchronous", "foreign_keys", "user_version", "application_id")
    values = [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in pragmas]
    assert values == ["wal", 2, 1, len(sqlite.MIGRATIONS), sqlite.APPLICATION_ID]
    catalog.close()


WRITES: list[tuple[str, Callable[[SqliteCatalog], None]]] = [
    ("new hub", lambda c: c.put_hub(msgspec.structs.replace(HUB, id="b", name=HubName("new")))),
    ("hub changed", lambda c: c.put_hub(msgspec.structs.replace(HUB, retention_hours=1))),
    ("hub deleted", lambda c: c.delete_hub(NS, HUB.name)),
    ("namespace deleted", lambda c: c.delete_namespace(NS)),
    ("publisher resumed", lambda c: c.delete_revoked_publisher(NS, HUB.name, REVOKED.name)),
    ("rule changed", lambda c: c.put_rule(msgspec.structs.replace(RULE, primary_key=Secret("x")))),
]


@pytest.mark.parametrize("act", [act for _, act in WRITES], ids=[what for what, _ in WRITES])
def test_crash_at_any_statement_leaves_the_old_or_the_new_state(
    tmp_path: Path, act: Callable[[SqliteCatalog], None]
) -> None:
    """The files as they lie on disk before each statement are what a kill -9 leaves there."""
    path = tmp_path / "catalog.db"
    catalog = SqliteCatalog(path)
    fill(catalog)
    old = content(catalog)
    copies: list[Path] = []

    def snapshot(_statement: str) -> None:
        copy = tmp_path / f"crash{len(copies)}.db"
        copies.append(copy)
        for end in ("", "-wal"):
            shutil.copyfile(f"{path}{end}", f"{copy}{end}")

    connection = catalog._connection
    connection.set_trace_callback(snapshot)
    act(catalog)
    connection.set_trace_callback(None)
    snapshot("after the commit")
    assert Path(f"{copies[-1]}-wal").stat().st_size == 0
    new = content(catalog)
    catalog.close()
    assert old != new
    states = [read(copy) for copy in copies]
    assert len(states) >= 4  # BEGIN, one or more writes, COMMIT, and after it
    # Committed, but not yet moved into the database file: the write-ahead log has it.
    assert all(state == old for state in states[:-2])
    assert states[-2:] == [new, new]


def test_crash_during_the_first_start_leaves_a_usable_file(tmp_path: Path) -> None:
    path = tmp_path / "catalog.db"
    path.touch()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.close()
    assert filled(path) == read(path)


def test_failed_write_leaves_memory_and_file_as_before(tmp_path: Path) -> None:
    path = tmp_path / "catalog.db"
    catalog = SqliteCatalog(path)
    fill(catalog)
    before = content(catalog)
    calls: list[int] = []
    catalog.subscribe(lambda _: calls.append(1))
    connection = catalog._connection
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count = {pages}")  # a full disk, as SQLite sees it
    with pytest.raises(DataDirectoryError, match=r"catalog\.db cannot be used: .*full"):
        for number in range(1000):
            group = GroupName(f"g{number}")
            catalog.put_group(msgspec.structs.replace(GROUP, name=group, user_metadata="m" * 1000))
            before = content(catalog)
            calls.clear()
    assert content(catalog) == before
    assert calls == []
    catalog.close()
    assert read(path) == before


def test_failed_second_statement_takes_the_first_back(tmp_path: Path) -> None:
    path = tmp_path / "catalog.db"
    catalog = SqliteCatalog(path)
    fill(catalog)
    before = content(catalog)
    connection = catalog._connection
    connection.execute(
        "CREATE TEMP TRIGGER no_more BEFORE INSERT ON main.groups "
        "BEGIN SELECT raise(ABORT, 'no more groups'); END"
    )
    with pytest.raises(DataDirectoryError, match="no more groups"):
        catalog.put_hub(msgspec.structs.replace(HUB, id="b", name=HubName("new")))
    assert content(catalog) == before
    connection.execute("DROP TRIGGER no_more")
    catalog.put_hub(msgspec.structs.replace(HUB, id="b", name=HubName("new")))
    after = content(catalog)
    catalog.close()
    assert len(after) == len(before) + 2
    assert read(path) == after


def test_write_after_closing_is_refused_by_name(tmp_path: Path) -> None:
    catalog = SqliteCatalog(tmp_path / "catalog.db")
    catalog.close()
    catalog.close()
    with pytest.raises(DataDirectoryError, match="closed"):
        catalog.put_namespace(NAMESPACE)
    assert catalog.namespaces() == []


def test_file_locked_by_another_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "_BUSY_S", 0.0)
    path = tmp_path / "catalog.db"
    filled(path)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("PRAGMA locking_mode = EXCLUSIVE")
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(DataDirectoryError, match=r"catalog\.db cannot be used: database is locked"):
        SqliteCatalog(path)
    other.close()


def test_newer_version_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "catalog.db"
    filled(path)
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(DataDirectoryError, match=r"catalog\.db has catalog version 99.*newer"):
        SqliteCatalog(path)
    assert path.read_bytes() == before


def with_migrations(migrations: tuple[tuple[str, ...], ...], **changes: Any) -> DatabaseFormat:
    return msgspec.structs.replace(sqlite.DATABASE_FORMAT, migrations=migrations, **changes)


def test_older_version_is_migrated_and_keeps_its_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "catalog.db"
    before = filled(path)
    later = (*sqlite.MIGRATIONS, ("ALTER TABLE hubs ADD COLUMN capture TEXT",))
    monkeypatch.setattr(sqlite, "DATABASE_FORMAT", with_migrations(later))
    assert read(path) == before
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA user_version").fetchone() == (len(later),)
    connection.close()


@pytest.mark.parametrize("version", range(1, len(sqlite.MIGRATIONS)))
def test_file_of_each_earlier_version_gains_what_came_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    path = tmp_path / "catalog.db"
    with monkeypatch.context() as patch:
        old = with_migrations(sqlite.MIGRATIONS[:version], summed_tables=())
        patch.setattr(sqlite, "DATABASE_FORMAT", old)
        # It reads tables of the newest version.
        patch.setattr(sqlite, "load_entities", lambda connection: [])
        SqliteCatalog(path).close()
    before = filled(path)
    assert REVOKED in before
    assert read(path) == before


def test_failed_migration_leaves_the_older_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "catalog.db"
    before = filled(path)
    broken = ("ALTER TABLE hubs ADD COLUMN capture TEXT", "NONSENSE")
    with monkeypatch.context() as patch:
        patch.setattr(sqlite, "DATABASE_FORMAT", with_migrations((*sqlite.MIGRATIONS, broken)))
        with pytest.raises(DataDirectoryError, match="NONSENSE"):
            SqliteCatalog(path)
    assert read(path) == before


def test_foreign_sqlite_file_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "catalog.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE cookies (name TEXT)")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(DataDirectoryError, match=r"catalog\.db is an SQLite file, but not"):
        SqliteCatalog(path)
    assert path.read_bytes() == before


def test_file_of_other_bytes_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "catalog.db"
    path.write_bytes(b"no database at all " * 500)
    with pytest.raises(DataDirectoryError, match=r"catalog\.db cannot be used"):
        SqliteCatalog(path)


def test_directory_in_its_place_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "catalog.db"
    path.mkdir(0o755)
    with pytest.raises(DataDirectoryError, match=r"catalog\.db is not a file"):
        SqliteCatalog(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o755


def test_missing_directory_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(DataDirectoryError, match=r"absent/catalog\.db cannot be opened: No such"):
        SqliteCatalog(tmp_path / "absent" / "catalog.db")


def test_damaged_page_is_refused_or_does_no_harm(tmp_path: Path) -> None:
    """Every page overwritten in turn: either named as damage, or the content is untouched."""
    path = tmp_path / "catalog.db"
    before = filled(path)
    whole = path.read_bytes()
    refused = 0
    for start in range(0, len(whole), 4096):
        path.write_bytes(whole[:start] + b"\xa5" * 4096 + whole[start + 4096 :])
        try:
            assert read(path) == before
        except DataDirectoryError as error:
            refused += 1
            assert "catalog.db" in str(error)
    assert refused >= 9  # the header page, and each table and index


def test_file_cut_at_any_page_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "catalog.db"
    filled(path)
    whole = path.read_bytes()
    for size in range(4096, len(whole), 4096):
        path.write_bytes(whole[:size])
        with pytest.raises(DataDirectoryError, match=r"catalog\.db"):
            SqliteCatalog(path)


ROWS_SPOILED = [
    ("unknown tier", "UPDATE namespaces SET tier = 'Gold'"),
    ("unknown status", "UPDATE hubs SET status = 'Asleep'"),
    ("hosts no JSON", "UPDATE namespaces SET hosts = 'localhost'"),
    ("hosts of another type", "UPDATE namespaces SET hosts = '[1]'"),
    ("lost parent", "DELETE FROM hubs"),
    ("unknown kind of grant", "UPDATE quota_grants SET kind = 'beer'"),
]


@pytest.mark.parametrize(
    "statement", [case[1] for case in ROWS_SPOILED], ids=[case[0] for case in ROWS_SPOILED]
)
def test_spoiled_row_is_refused_by_name(tmp_path: Path, statement: str) -> None:
    path = tmp_path / "catalog.db"
    filled(path)
    connection = sqlite3.connect(path)
    register_row_sum(connection)
    connection.execute(statement)
    connection.commit()
    connection.close()
    with pytest.raises(DataDirectoryError, match=r"catalog\.db") as caught:
        SqliteCatalog(path)
    assert "prim" not in str(caught.value)


def test_keys_stand_in_no_error_when_a_write_fails(tmp_path: Path) -> None:
    catalog = SqliteCatalog(tmp_path / "catalog.db")
    fill(catalog)
    catalog.close()
    with pytest.raises(DataDirectoryError) as caught:
        catalog.put_rule(msgspec.structs.replace(RULE, primary_key=Secret("swordfish")))
    assert "swordfish" not in f"{caught.value!r}{caught.value.__cause__!r}"


def test_audit_log_survives_reopening_and_its_namespace(tmp_path: Path) -> None:
    path = tmp_path / "catalog.db"
    filled(path)
    catalog = SqliteCatalog(path)
    catalog.delete_namespace(NS)
    catalog.close()
    catalog = SqliteCatalog(path)
    (entry,) = catalog.audit()
    catalog.close()
    assert (entry.at_ms, entry.who, entry.what) == (10, "é. Operator", "grant.partitions")
    assert entry.detail == "'Contoso' may have up to 64 partitions (by telephone)"


@pytest.mark.parametrize("statement", ["UPDATE audit SET who = 'nobody'", "DELETE FROM audit"])
def test_audit_log_cannot_be_changed_by_other_hands(tmp_path: Path, statement: str) -> None:
    path = tmp_path / "catalog.db"
    filled(path)
    connection = sqlite3.connect(path)
    register_row_sum(connection)
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        connection.execute(statement)
    connection.close()
