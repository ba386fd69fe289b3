"""docs/grafana.json asks only for metrics, and labels, that the service has."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from penstock.broker.broker import Broker
from penstock.catalog.api import Catalog
from penstock.log.memory import MemoryLogStore
from penstock.model.clock import ManualClock
from penstock.model.entities import Hub, Namespace
from penstock.model.metrics import FlushLatencies
from penstock.model.names import HubName, NamespaceName
from penstock.service.metrics import BrokerCollector

PAGE = Path(__file__).resolve().parents[3] / "docs" / "grafana.json"
NS = NamespaceName("contoso")


@pytest.fixture(scope="module")
def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(PAGE.read_text())
    return found


@pytest.fixture(scope="module")
def metrics() -> dict[str, Metric]:
    """Every family that the collector gives, by the names under which it can be asked for."""
    catalog, clock = Catalog(), ManualClock()
    catalog.put_namespace(Namespace(name=NS, created_ms=0, updated_ms=0, throughput_units=2))
    catalog.put_hub(
        Hub(
            id="h",
            namespace=NS,
            name=HubName("events"),
            partition_count=2,
            created_ms=0,
            updated_ms=0,
        )
    )
    broker = Broker(catalog, MemoryLogStore(lambda work: None), clock, producer_ids=lambda: 1)
    broker.hub(NS, "events")
    collector = BrokerCollector(
        broker=broker,
        lag=lambda hub: [],
        connections=lambda: 1,
        connections_opened=lambda: 2,
        flushes=FlushLatencies(),
        answered={201: 1},
        certificate_expires_ms=lambda: 1_000,
    )

    async def collect() -> str:
        families = await collector.collect()
        return b"".join(piece for family in families.values() for piece in family.pieces()).decode()

    found = {}
    for family in text_string_to_metric_families(asyncio.run(collect())):
        found[family.name] = family
        found.update({sample.name: family for sample in family.samples})
    return found


def expressions(dashboard: dict[str, Any]) -> list[str]:
    targets = [target for panel in dashboard["panels"] for target in panel["targets"]]
    variables = [variable["query"] for variable in dashboard["templating"]["list"]]
    return [*(target["expr"] for target in targets), *variables]


def test_every_metric_of_the_dashboard_exists(
    dashboard: dict[str, Any], metrics: dict[str, Metric]
) -> None:
    named = {
        name for text in expressions(dashboard) for name in re.findall(r"\bpenstock_[a-z_]+", text)
    }
    assert len(named) > 10
    assert sorted(named - metrics.keys()) == []


def test_dashboard_shows_units_with_their_values(metrics: dict[str, Metric]) -> None:
    for name in ("penstock_throughput_units", "penstock_throughput_units_limit"):
        (sample,) = metrics[name].samples
        assert (sample.labels, sample.value) == ({"namespace": NS}, 2)


def test_panels_have_a_place_and_a_number_of_their_own(dashboard: dict[str, Any]) -> None:
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels]
    assert len(set(places)) == len(places)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)
