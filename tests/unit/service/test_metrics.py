"""`/metrics`: text that Prometheus reads, rendered in bounded pieces."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.types import Message

from penstock.broker.broker import Broker
from penstock.broker.hub import HubRuntime
from penstock.broker.lag import LagRow
from penstock.catalog.api import Catalog
from penstock.log.memory import MemoryLogStore
from penstock.model.clock import ManualClock
from penstock.model.entities import Hub, Namespace
from penstock.model.metrics import FlushLatencies
from penstock.model.names import HubName, NamespaceName
from penstock.service.metrics import BrokerCollector, Family, MetricsPage, format_labels
from penstock.service.periodic_tasks import ITEMS_PER_TURN

NS = NamespaceName("contoso")
PARTITIONS = 4


class Rows:
    """The lag of each hub; counts the hubs that are asked for in one event-loop turn."""

    def __init__(self) -> None:
        self.turn = 0
        self.hubs_of_turn: dict[int, int] = {}

    def __call__(self, hub: HubRuntime) -> list[LagRow]:
        self.hubs_of_turn[self.turn] = self.hubs_of_turn.get(self.turn, 0) + 1
        return [
            LagRow(
                namespace=hub.entity.namespace,
                hub=hub.entity.name,
                group="$Default",
                partition=partition,
                last_sequence_number=9,
                checkpoint_sequence_number=None,
                lag_events=5,
                lag_bytes=None,
                lag_seconds=None,
                owner=None,
                epoch=None,
                readers=1,
            )
            for partition in hub.partition_ids
        ]

    async def count_turns(self) -> None:
        while True:
            self.turn += 1
            await asyncio.sleep(0)


def collector_of(hubs: int, rows: Rows) -> BrokerCollector:
    catalog = Catalog()
    catalog.put_namespace(Namespace(name=NS, created_ms=0, updated_ms=0, throughput_units=2))
    broker = Broker(
        catalog, MemoryLogStore(lambda work: None), ManualClock(), producer_ids=lambda: 1
    )
    for number in range(hubs):
        catalog.put_hub(
            Hub(
                id=f"{number:032}",
                namespace=NS,
                name=HubName(f"hub-{number:04}"),
                partition_count=PARTITIONS,
                created_ms=0,
                updated_ms=0,
            )
        )
        broker.hub(NS, f"hub-{number:04}")
    return BrokerCollector(
        broker=broker,
        lag=rows,
        connections=lambda: 3,
        connections_opened=lambda: 4,
        flushes=FlushLatencies(),
        answered={201: 7},
        certificate_expires_ms=lambda: 1_790_000_000_500,
    )


async def scrape(collector: BrokerCollector) -> str:
    sent: list[Message] = []

    async def receive() -> Message:
        raise AssertionError("a scrape has no body")

    async def send(message: Message) -> None:
        sent.append(message)

    await MetricsPage(collector.collect)({"type": "http"}, receive, send)
    start, *pieces = sent
    assert start["status"] == 200
    assert start["headers"] == [(b"content-type", b"text/plain; version=0.0.4; charset=utf-8")]
    assert [each.get("more_body", False) for each in pieces[-2:]] == [True, False]
    return b"".join(each["body"] for each in pieces).decode()


async def test_text_is_what_prometheus_reads() -> None:
    text = await scrape(collector_of(2, Rows()))
    families = {each.name: each for each in text_string_to_metric_families(text)}
    (incoming, _) = families["penstock_incoming_messages"].samples
    assert incoming.name == "penstock_incoming_messages_total"
    assert incoming.labels == {"namespace": NS, "hub": "hub-0000"}
    lag = families["penstock_consumer_lag_events"].samples
    assert len(lag) == 2 * PARTITIONS
    assert lag[0].labels["group"] == "$Default"
    latency = families["penstock_publish_latency_seconds"]
    assert latency.type == "histogram"
    assert latency.samples[-1].name == "penstock_publish_latency_seconds_sum"
    assert {each.labels.get("le") for each in latency.samples} >= {"0.001", "+Inf"}
    (expiry,) = families["penstock_certificate_expiry_timestamp_seconds"].samples
    assert expiry.value == 1_790_000_000.5
    assert families["penstock_active_connections"].samples[0].value == 3
    assert families["penstock_https_requests"].samples[0].labels == {"status": "201"}
    assert "penstock_consumer_lag_seconds" in text  # a family without samples keeps its help


async def test_scrape_handles_a_bounded_number_of_hubs_per_turn() -> None:
    rows = Rows()
    collector = collector_of(500, rows)
    counting = asyncio.create_task(rows.count_turns())
    await scrape(collector)
    counting.cancel()
    items_of_hub = 2 * PARTITIONS  # partitions, and rows of one group
    assert sum(rows.hubs_of_turn.values()) == 500
    assert max(rows.hubs_of_turn.values()) * items_of_hub < ITEMS_PER_TURN + items_of_hub


@pytest.mark.parametrize("value", ['a"b', "a\\b", "a\nb"])
def test_label_values_are_escaped(value: str) -> None:
    family = Family("gauge", "test", "a test")
    family.add(format_labels(hub=value), 1)
    (parsed,) = text_string_to_metric_families(b"".join(family.pieces()).decode())
    assert parsed.samples[0].labels == {"hub": value}
