"""Quota grants and the audit log of the catalog (`catalog.api.Catalog`), kept by every backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from penstock.catalog.api import Catalog
from penstock.catalog.sqlite import SqliteCatalog
from penstock.model.entities import AuditEntry, Hub, Namespace
from penstock.model.errors import (
    ArgumentError,
    ArgumentOutOfRange,
    NotFound,
    PenstockError,
    QuotaExceeded,
)
from penstock.model.names import HubName, NamespaceName
from penstock.model.quotas import QuotaGrant, QuotaKind

NS = NamespaceName("Contoso")
NAMESPACE = Namespace(name=NS, created_ms=1, updated_ms=2)
WIDE = Hub(id="w1", namespace=NS, name=HubName("w"), partition_count=64, created_ms=3, updated_ms=4)
UNITS = QuotaGrant(
    namespace=NS, kind=QuotaKind.THROUGHPUT_UNITS, value=60, granted_by="Ada", granted_ms=5
)
PARTITIONS = QuotaGrant(
    namespace=NS, kind=QuotaKind.PARTITIONS, value=64, granted_by="Bo", granted_ms=6, note="load"
)
ENTRY = AuditEntry(at_ms=7, who="somebody", what="did.something", detail="to 'Contoso'")


@pytest.fixture(params=["memory", "sqlite"])
def catalog(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Catalog]:
    made: Catalog
    made = Catalog() if request.param == "memory" else SqliteCatalog(tmp_path / "catalog.db")
    made.put_namespace(NAMESPACE)
    yield made
    made.close()


def with_units(units: int | None, most: int | None = None) -> Namespace:
    return msgspec.structs.replace(NAMESPACE, throughput_units=units, maximum_throughput_units=most)


def test_nothing_is_granted_at_first(catalog: Catalog) -> None:
    assert catalog.quota_grants(NS) == []
    assert catalog.quota_grant(NS, QuotaKind.PARTITIONS) is None
    assert catalog.quota_grants("nobody") == []
    assert catalog.audit() == []


def test_grants_read_back_under_any_spelling(catalog: Catalog) -> None:
    catalog.put_quota_grant(UNITS)
    catalog.put_quota_grant(msgspec.structs.replace(PARTITIONS, namespace=NamespaceName("CONTOSO")))
    assert catalog.quota_grants("contoso") == [PARTITIONS, UNITS]
    assert catalog.quota_grant("CONTOSO", QuotaKind.THROUGHPUT_UNITS) == UNITS


def test_units_are_refused_until_they_are_granted(catalog: Catalog) -> None:
    with pytest.raises(QuotaExceeded) as refusal:
        catalog.put_namespace(with_units(40))
    text = str(refusal.value)
    assert "may have 20 throughput units without a grant" in text
    assert "`penstock grant Contoso --throughput-units 40 --by NAME`" in text
    assert "[[namespaces.grants]]" in text
    catalog.put_quota_grant(UNITS)
    for units in (40, 60, 20):
        catalog.put_namespace(with_units(units))
    with pytest.raises(QuotaExceeded, match=r"may have 60 .* by the grant of 'Ada': 80 need"):
        catalog.put_namespace(with_units(80))
    namespace = catalog.namespace(NS)
    assert namespace is not None
    assert namespace.throughput_units == 20


def test_auto_inflates_maximum_needs_the_same_grant(catalog: Catalog) -> None:
    with pytest.raises(QuotaExceeded, match="60 need a grant of 60"):
        catalog.put_namespace(with_units(4, 60))
    catalog.put_quota_grant(UNITS)
    catalog.put_namespace(with_units(4, 60))
    assert catalog.namespace(NS) == with_units(4, 60)


def test_units_between_the_blocks_are_refused_whatever_is_granted(catalog: Catalog) -> None:
    catalog.put_quota_grant(msgspec.structs.replace(UNITS, value=400))
    for units in (21, 39, 50, 99, 120, 250):
        with pytest.raises(ArgumentOutOfRange, match="1 to 20, or 40, 60, 80, 100 and blocks"):
            catalog.put_namespace(with_units(units))
    for units in (40, 60, 80, 100, 200, 300, 400):
        catalog.put_namespace(with_units(units))


def test_wide_hub_is_refused_until_partitions_are_granted(catalog: Catalog) -> None:
    with pytest.raises(QuotaExceeded) as refusal:
        catalog.put_hub(WIDE)
    assert "`penstock grant Contoso --partitions 64 --by NAME`" in str(refusal.value)
    assert catalog.hubs(NS) == []
    catalog.put_quota_grant(PARTITIONS)
    catalog.put_hub(WIDE)
    with pytest.raises(QuotaExceeded, match="65 need a grant of 65"):
        catalog.put_hub(msgspec.structs.replace(WIDE, id="w2", name="other", partition_count=65))
    assert catalog.hubs(NS) == [WIDE]


def test_withdrawn_grant_leaves_what_is_held_and_allows_no_more(catalog: Catalog) -> None:
    catalog.put_quota_grant(UNITS)
    catalog.put_quota_grant(PARTITIONS)
    catalog.put_namespace(with_units(60))
    catalog.put_hub(WIDE)
    catalog.delete_quota_grant("contoso", QuotaKind.THROUGHPUT_UNITS, by="Cy", now_ms=8)
    catalog.delete_quota_grant("contoso", QuotaKind.PARTITIONS, by="Cy", now_ms=9)
    assert catalog.quota_grants(NS) == []
    catalog.put_namespace(msgspec.structs.replace(with_units(60), updated_ms=99))
    catalog.put_hub(msgspec.structs.replace(WIDE, retention_hours=48))
    with pytest.raises(QuotaExceeded):
        catalog.put_namespace(with_units(40))


def test_each_grant_is_in_the_audit_log_newest_first(catalog: Catalog) -> None:
    catalog.put_quota_grant(UNITS)
    catalog.put_quota_grant(PARTITIONS)
    catalog.delete_quota_grant(NS, QuotaKind.PARTITIONS, by="Cy", now_ms=8)
    assert [(entry.at_ms, entry.who, entry.what) for entry in catalog.audit()] == [
        (8, "Cy", "withdraw.partitions"),
        (6, "Bo", "grant.partitions"),
        (5, "Ada", "grant.throughput-units"),
    ]
    assert catalog.audit()[1].detail == "'Contoso' may have up to 64 partitions (load)"
    assert [entry.at_ms for entry in catalog.audit(newest=2)] == [8, 6]


def test_audit_log_takes_what_others_did(catalog: Catalog) -> None:
    catalog.append_audit(ENTRY)
    inflated = msgspec.structs.replace(ENTRY, at_ms=8, what="units.inflated")
    catalog.put_namespace(with_units(3), audit=inflated)
    assert catalog.audit() == [inflated, ENTRY]


def test_audit_log_outlives_its_namespace(catalog: Catalog) -> None:
    catalog.put_quota_grant(UNITS)
    catalog.delete_namespace(NS)
    assert len(catalog.audit()) == 1
    catalog.put_namespace(NAMESPACE)
    assert catalog.quota_grants(NS) == []


def test_grant_is_told_to_subscribers(catalog: Catalog) -> None:
    told: list[int] = []
    catalog.subscribe(lambda _: told.append(len(catalog.quota_grants(NS))))
    catalog.put_quota_grant(UNITS)
    catalog.delete_quota_grant(NS, QuotaKind.THROUGHPUT_UNITS, by="Cy", now_ms=8)
    assert told == [1, 0]


def _grant(grant: QuotaGrant = UNITS, **changes: object) -> Callable[[Catalog], None]:
    return lambda c: c.put_quota_grant(msgspec.structs.replace(grant, **changes))


def _entry(**changes: object) -> Callable[[Catalog], None]:
    return lambda c: c.append_audit(msgspec.structs.replace(ENTRY, **changes))


def _withdraw(namespace: str, by: str = "Cy") -> Callable[[Catalog], None]:
    kind = QuotaKind.THROUGHPUT_UNITS
    return lambda c: c.delete_quota_grant(namespace, kind, by=by, now_ms=1)


REFUSED: list[tuple[str, type[PenstockError], Callable[[Catalog], None]]] = [
    ("units that need none", ArgumentOutOfRange, _grant(value=20)),
    ("units between blocks", ArgumentOutOfRange, _grant(value=50)),
    ("units beyond all", ArgumentOutOfRange, _grant(value=10_100)),
    ("partitions that need none", ArgumentOutOfRange, _grant(PARTITIONS, value=32)),
    ("partitions beyond all", ArgumentOutOfRange, _grant(PARTITIONS, value=1025)),
    ("nobody grants", ArgumentOutOfRange, _grant(granted_by="")),
    ("granter's name long", ArgumentOutOfRange, _grant(granted_by="a" * 257)),
    ("granter's name with NUL", ArgumentError, _grant(granted_by="a\0")),
    ("note long", ArgumentOutOfRange, _grant(note="n" * 1025)),
    ("time negative", ArgumentOutOfRange, _grant(granted_ms=-1)),
    ("namespace missing", NotFound, _grant(namespace=NamespaceName("nobody"))),
    ("grant missing", NotFound, _withdraw(NS)),
    ("grant's namespace missing", NotFound, _withdraw("nobody")),
    ("audit without who", ArgumentOutOfRange, _entry(who="")),
    ("audit without what", ArgumentOutOfRange, _entry(what="")),
    ("audit detail long", ArgumentOutOfRange, _entry(detail="d" * 4097)),
    ("audit detail not Unicode", ArgumentError, _entry(detail="\ud800")),
    ("audit time negative", ArgumentOutOfRange, _entry(at_ms=-1)),
]


@pytest.mark.parametrize(
    ("error", "act"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED]
)
def test_write_that_cannot_be_is_refused_and_changes_nothing(
    catalog: Catalog, error: type[PenstockError], act: Callable[[Catalog], None]
) -> None:
    with pytest.raises(error) as caught:
        act(catalog)
    assert type(caught.value) is error
    assert catalog.quota_grants(NS) == []
    assert catalog.audit() == []


def test_withdrawing_by_nobody_is_refused_and_changes_nothing(catalog: Catalog) -> None:
    catalog.put_quota_grant(UNITS)
    with pytest.raises(ArgumentOutOfRange):
        _withdraw(NS, by="")(catalog)
    assert catalog.quota_grants(NS) == [UNITS]
    assert len(catalog.audit()) == 1
