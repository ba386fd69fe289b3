"""The contract of `catalog.api.UsageLedger`, kept by every backend."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.support.usage_ledger import MemoryUsageLedger

from penstock.catalog.api import UsageLedger
from penstock.catalog.sqlite import SqliteCatalog
from penstock.catalog.usage_ledger import SqliteUsageLedger
from penstock.model.names import NamespaceName
from penstock.model.usage import HOUR_MS, Usage

NS = NamespaceName("Contoso")
TEN = 10 * HOUR_MS
COUNT = Usage(
    namespace=NS,
    hour_ms=TEN,
    run="first",
    units=3,
    ingress_events=7,
    ingress_messages=5,
    ingress_bytes=1000,
    egress_bytes=2000,
    capture_hours=1,
)


@pytest.fixture(params=["memory", "sqlite"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[UsageLedger]:
    made: UsageLedger
    if request.param == "memory":
        made = MemoryUsageLedger()
    else:
        SqliteCatalog(tmp_path / "catalog.db").close()  # makes the tables
        made = SqliteUsageLedger(tmp_path / "catalog.db")
    yield made
    made.close()


def changed(**changes: object) -> Usage:
    return msgspec.structs.replace(COUNT, **changes)


def test_ledger_is_empty_at_first(ledger: UsageLedger) -> None:
    assert ledger.usage() == []


def test_count_reads_back_with_every_field(ledger: UsageLedger) -> None:
    ledger.record([COUNT])
    assert ledger.usage() == [changed(run="")]


def test_count_recorded_again_counts_once(ledger: UsageLedger) -> None:
    for _ in range(3):
        ledger.record([COUNT])
    assert ledger.usage() == [changed(run="")]


def test_run_that_grew_replaces_itself(ledger: UsageLedger) -> None:
    ledger.record([COUNT])
    grown = changed(units=4, ingress_events=70, ingress_messages=50, ingress_bytes=10_000)
    ledger.record([grown])
    assert ledger.usage() == [msgspec.structs.replace(grown, run="")]


def test_older_count_that_comes_late_takes_nothing_away(ledger: UsageLedger) -> None:
    grown = changed(units=4, ingress_bytes=10_000)
    ledger.record([grown])
    ledger.record([COUNT])
    assert ledger.usage() == [msgspec.structs.replace(grown, run="")]


def test_runs_of_one_hour_are_added_up_and_units_are_the_highest(ledger: UsageLedger) -> None:
    ledger.record([COUNT, changed(run="second", units=2)])
    assert ledger.usage() == [
        Usage(
            namespace=NS,
            hour_ms=TEN,
            units=3,
            ingress_events=14,
            ingress_messages=10,
            ingress_bytes=2000,
            egress_bytes=4000,
            capture_hours=2,
        )
    ]


def test_namespaces_and_hours_stay_apart(ledger: UsageLedger) -> None:
    later = TEN + HOUR_MS
    ledger.record([changed(hour_ms=later), changed(namespace=NamespaceName("alpha")), COUNT])
    found = [(usage.hour_ms, usage.namespace) for usage in ledger.usage()]
    assert found == [(TEN, "alpha"), (TEN, NS), (later, NS)]


def test_namespace_is_one_in_any_spelling(ledger: UsageLedger) -> None:
    ledger.record([COUNT, changed(namespace=NamespaceName("CONTOSO"), run="second")])
    (usage,) = ledger.usage()
    assert usage.ingress_bytes == 2000


def test_hours_are_found_from_and_until(ledger: UsageLedger) -> None:
    hours = [TEN + n * HOUR_MS for n in range(4)]
    ledger.record([changed(hour_ms=hour) for hour in hours])
    found = ledger.usage(since_ms=hours[1], until_ms=hours[3])
    assert [usage.hour_ms for usage in found] == hours[1:3]


def test_large_counts_are_exact(ledger: UsageLedger) -> None:
    ledger.record([changed(ingress_bytes=2**60 + 1), changed(run="b", ingress_bytes=2**60 + 1)])
    assert ledger.usage()[0].ingress_bytes == 2**61 + 2
