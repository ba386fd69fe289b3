"""The ledger in the catalog's file: beside a running service, after it, without it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from penstock.catalog import offline, sqlite
from penstock.catalog import usage_ledger as ledger_module
from penstock.catalog.sqlite import SqliteCatalog
from penstock.catalog.usage_ledger import SqliteUsageLedger
from penstock.model.entities import Namespace
from penstock.model.errors import DataDirectoryError, NotFound
from penstock.model.names import NamespaceName
from penstock.model.quotas import QuotaGrant, QuotaKind
from penstock.model.usage import HOUR_MS, Usage

NS = NamespaceName("contoso")
COUNT = Usage(namespace=NS, hour_ms=HOUR_MS, run="a", units=2, ingress_bytes=5)
SUM = Usage(namespace=NS, hour_ms=HOUR_MS, units=2, ingress_bytes=5)
GRANT = QuotaGrant(
    namespace=NS, kind=QuotaKind.THROUGHPUT_UNITS, value=40, granted_by="Ada", granted_ms=1
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / offline.FILE


@pytest.fixture
def running(file: Path) -> Iterator[SqliteUsageLedger]:
    """A service's catalog and ledger, open."""
    catalog = SqliteCatalog(file)
    catalog.put_namespace(Namespace(name=NS, created_ms=1, updated_ms=1))
    ledger = SqliteUsageLedger(file)
    yield ledger
    ledger.close()
    catalog.close()


def test_usage_is_read_beside_a_running_service(running: SqliteUsageLedger, tmp_path: Path) -> None:
    assert offline.read_usage_offline(tmp_path) == []
    running.record([COUNT])
    assert offline.read_usage_offline(tmp_path) == [SUM]
    assert offline.read_usage_offline(tmp_path, since_ms=2 * HOUR_MS) == []


def test_usage_is_read_while_the_service_writes(running: SqliteUsageLedger, tmp_path: Path) -> None:
    running.record([COUNT])
    running._connection.execute("BEGIN IMMEDIATE")
    assert offline.read_usage_offline(tmp_path) == [SUM]


def test_reading_usage_leaves_the_file_as_it_was(file: Path, tmp_path: Path) -> None:
    SqliteCatalog(file).close()
    ledger = SqliteUsageLedger(file)
    ledger.record([COUNT])
    ledger.close()
    before = file.read_bytes()
    assert offline.read_usage_offline(tmp_path) == [SUM]
    assert file.read_bytes() == before


def test_usage_survives_a_writer_that_was_killed(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit counts when it is in the write-ahead log and not yet in the database file."""
    SqliteCatalog(file).close()
    monkeypatch.setattr(ledger_module, "empty_log", lambda connection: None)
    ledger = SqliteUsageLedger(file)
    ledger.record([COUNT])
    copy = tmp_path / "copy"
    copy.mkdir()
    for part in tmp_path.glob(f"{offline.FILE}*"):
        if not part.name.endswith("-shm"):
            (copy / part.name).write_bytes(part.read_bytes())
    ledger.close()
    assert (copy / f"{offline.FILE}-wal").stat().st_size > 0
    assert offline.read_usage_offline(copy) == [SUM]


def test_missing_catalog_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="There is no catalog in"):
        offline.read_usage_offline(tmp_path)
    with pytest.raises(NotFound, match="There is no catalog in"):
        offline.store_grant_offline(tmp_path, GRANT)
    assert list(tmp_path.iterdir()) == []


def test_catalog_of_an_older_penstock_has_no_ledger_yet(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        old = msgspec.structs.replace(
            sqlite.DATABASE_FORMAT, migrations=sqlite.MIGRATIONS[:2], summed_tables=()
        )
        patch.setattr(sqlite, "DATABASE_FORMAT", old)
        patch.setattr(sqlite, "load_entities", lambda connection: [])
        SqliteCatalog(file).close()
    with pytest.raises(DataDirectoryError, match="older Penstock"):
        offline.read_usage_offline(tmp_path)


def test_other_bytes_are_refused_by_name(file: Path, tmp_path: Path) -> None:
    file.write_bytes(b"no database " * 1000)
    with pytest.raises(DataDirectoryError, match=offline.FILE):
        offline.read_usage_offline(tmp_path)


def test_grant_is_kept_and_recorded(file: Path, tmp_path: Path) -> None:
    catalog = SqliteCatalog(file)
    catalog.put_namespace(Namespace(name=NS, created_ms=1, updated_ms=1))
    catalog.close()
    offline.store_grant_offline(tmp_path, GRANT)
    catalog = SqliteCatalog(file)
    assert catalog.quota_grants(NS) == [GRANT]
    assert [entry.who for entry in catalog.audit()] == ["Ada"]
    catalog.close()


def test_grant_to_a_namespace_that_is_not_there_is_not_found(file: Path, tmp_path: Path) -> None:
    SqliteCatalog(file).close()
    with pytest.raises(NotFound, match="namespace 'contoso' does not exist"):
        offline.store_grant_offline(tmp_path, GRANT)


def test_count_that_cannot_be_written_is_refused_whole(
    running: SqliteUsageLedger, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    monkeypatch.setattr(ledger_module, "_BUSY_S", 0.0)
    hasty = SqliteUsageLedger(file)
    with pytest.raises(DataDirectoryError, match=r"ledger in .* used: database is locked"):
        hasty.record([COUNT])
    other.execute("ROLLBACK")
    other.close()
    hasty.record([COUNT])
    assert hasty.usage() == [SUM]
    hasty.close()


def test_one_bad_count_takes_the_others_back(running: SqliteUsageLedger) -> None:
    too_large = Usage(namespace=NS, hour_ms=HOUR_MS, run="b", ingress_bytes=2**70)
    with pytest.raises((DataDirectoryError, OverflowError)):
        running.record([COUNT, too_large])
    assert running.usage() == []


def test_closed_ledger_says_so(file: Path) -> None:
    SqliteCatalog(file).close()
    ledger = SqliteUsageLedger(file)
    ledger.close()
    with pytest.raises(DataDirectoryError, match="closed"):
        ledger.record([COUNT])
    with pytest.raises(DataDirectoryError, match="closed"):
        ledger.usage()
