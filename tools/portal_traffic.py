"""An hour of a shop's traffic for the picture of the portal's first page: five hubs, eight consumer
groups, about 300 events a second that rise and fall, one group that is stopped for some minutes and
a sale, when a hub has four times its events. It takes a few percent of a core."""

from __future__ import annotations

import asyncio
import json
import math
import random
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from penstock.checkpoints.aio import ServiceCheckpointStore
from penstock.client import (
    EventData,
    EventHubConsumerClient,
    EventHubProducerClient,
    EventPosition,
    EventProcessorClient,
    RetryPolicy,
)
from penstock.client.partition_pump import PartitionContext

NAMESPACE = "contoso"
UNITS = 4
SEND_S = 1.0  # between two publications to a hub
CHECKPOINT_S = 15.0
# As parts of the whole time.
SALE_HUB, SALE_FROM, SALE_UNTIL, SALE_FACTOR = "clickstream", 0.58, 0.63, 4
STOPPED_FROM, STOPPED_UNTIL = 0.30, 0.40
STOPPED_GROUP = ("clickstream", "recommendations")


@dataclass(frozen=True)
class Hub:
    partitions: int
    groups: tuple[str, ...]
    rate: float  # events per second on average
    swing: float  # how much of it comes and goes
    period: float  # of the swing, as a part of the whole time
    body_bytes: int


HUBS = {
    "clickstream": Hub(8, ("recommendations",), 120, 0.55, 0.45, 220),
    "orders": Hub(4, ("billing", "shipping", "fraud-check"), 35, 0.4, 0.7, 420),
    "payments": Hub(4, ("ledger",), 22, 0.35, 0.3, 380),
    "shipments": Hub(2, ("notifications",), 9, 0.5, 0.9, 300),
    "telemetry": Hub(8, ("alerts", "dashboards"), 110, 0.12, 0.2, 160),
}


def configuration() -> str:
    """The hubs as TOML."""
    lines = ['portal_environment = "Demo"']
    lines += ["[[namespaces]]", f'name = "{NAMESPACE}"', f"throughput_units = {UNITS}"]
    for name, hub in HUBS.items():
        lines += ["[[namespaces.hubs]]", f'name = "{name}"', f"partition_count = {hub.partitions}"]
        lines += [f"groups = {json.dumps(hub.groups)}"]
    return "\n".join(lines) + "\n"


async def run(facts: dict[str, Any], seconds: float) -> None:
    """Returns after `seconds`; the last events are read by then."""
    string = str(facts["emulator_connection_string"])
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:
        store = ServiceCheckpointStore(
            string, https_url=str(facts["https"]), ca_file=str(facts["ca_file"])
        )
        await stack.enter_async_context(store)
        began = time.monotonic()
        for name, hub in HUBS.items():
            for group in hub.groups:
                reader = _Reader(name, group, began, seconds)
                await stack.enter_async_context(await reader.start(string, store, stack))
            tasks.create_task(_publish(string, name, hub, began, seconds))


class _Reader:
    """One consumer group: reads everything and saves a checkpoint every 15 s."""

    def __init__(self, hub: str, group: str, began: float, seconds: float) -> None:
        self._names = hub, group
        self._stopped_from = began + STOPPED_FROM * seconds
        self._stopped_until = began + STOPPED_UNTIL * seconds
        self._next_checkpoint: dict[str, float] = {}

    async def start(
        self, string: str, store: ServiceCheckpointStore, stack: AsyncExitStack
    ) -> EventProcessorClient:
        hub, group = self._names
        consumer = EventHubConsumerClient(string, group, eventhub_name=hub)
        await stack.enter_async_context(consumer)
        return EventProcessorClient(
            consumer,
            store,
            self._on_events,
            starting_position=EventPosition.earliest(),
            load_balancing_interval_s=20,
            ownership_expiration_s=120,
        )

    async def _on_events(self, context: PartitionContext, events: list[EventData]) -> None:
        now = time.monotonic()
        if self._names == STOPPED_GROUP and self._stopped_from <= now < self._stopped_until:
            await asyncio.sleep(self._stopped_until - now)
        due = self._next_checkpoint.get(context.partition_id, 0.0)
        if events and now >= due:
            self._next_checkpoint[context.partition_id] = now + CHECKPOINT_S
            await context.update_checkpoint()


async def _publish(string: str, name: str, hub: Hub, began: float, seconds: float) -> None:
    chance = random.Random(name)
    filler = "x" * hub.body_bytes
    owed, number = 0.0, 0
    retry = RetryPolicy(retry_total=10)
    async with EventHubProducerClient(string, eventhub_name=name, retry=retry) as producer:
        due = began + chance.random() * SEND_S
        while (now := time.monotonic()) < began + seconds:
            if now < due:
                await asyncio.sleep(due - now)
            due = max(due + SEND_S, time.monotonic() - SEND_S)
            part = (due - began) / seconds
            wave = math.sin(2 * math.pi * part / hub.period) + chance.gauss(0, 0.12)
            is_sale = name == SALE_HUB and SALE_FROM <= part < SALE_UNTIL
            rate = hub.rate * (SALE_FACTOR if is_sale else 1)
            owed += max(0.0, rate * SEND_S * (1 + hub.swing * wave))
            while owed >= 1:
                count = int(min(owed, 200))
                events = [
                    EventData(json.dumps({"id": number + index, "of": name, "data": filler}))
                    for index in range(count)
                ]
                await producer.send_batch(events)
                owed, number = owed - count, number + count


def traffic(facts: dict[str, Any], seconds: float) -> None:
    asyncio.run(run(facts, seconds))
