"""What is noted every ten seconds: differences of counters, gauges, lag; what a failure does."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import Any

import pytest

from penstock.broker.broker import Broker
from penstock.catalog.api import Catalog
from penstock.log.memory import MemoryLogStore
from penstock.model.checkpoints import Checkpoint, Ownership
from penstock.model.clock import ManualClock
from penstock.model.entities import Hub, Namespace
from penstock.model.errors import DataDirectoryError
from penstock.model.events import EventBatch
from penstock.model.metrics import (
    COUNTERS,
    GAUGES,
    STEP_MS,
    SUBJECTS_MAX,
    MetricRequest,
    MetricSample,
    MetricSeries,
    MetricSubject,
)
from penstock.model.names import HubName, NamespaceName
from penstock.service.metric_history import MetricHistory
from penstock.service.periodic_tasks import ITEMS_PER_TURN

NAMESPACE = NamespaceName("Contoso")
SECTION = b"\x00\x53\x75\xa0\x01a"
DEADLINE_S = 30.0


class Store:
    """Keeps what it is given, and on which thread; refuses when it is told to."""

    def __init__(self) -> None:
        self.records: list[tuple[int, list[MetricSample]]] = []
        self.threads: set[str] = set()
        self.refuses = False
        self.recorded = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def record(self, at_ms: int, samples: Sequence[MetricSample]) -> None:
        self.threads.add(threading.current_thread().name)
        if self.refuses:
            raise DataDirectoryError("The disk is full.")
        self.records.append((at_ms, list(samples)))
        self._loop.call_soon_threadsafe(self.recorded.set)

    def read(self, request: MetricRequest, *, now_ms: int) -> MetricSeries:
        self.threads.add(threading.current_thread().name)
        return MetricSeries(step_ms=now_ms, at_ms=[], values={})

    def sample(self, *subject: str) -> MetricSample:
        """Of the last record."""
        _, samples = self.records[-1]
        return next(each for each in samples if each.subject == MetricSubject(*subject))

    def counted(self, *subject: str) -> dict[str, int]:
        return dict(zip(COUNTERS, self.sample(*subject).counters, strict=True))

    def gauges(self, *subject: str) -> dict[str, int | None]:
        return dict(zip(GAUGES, self.sample(*subject).gauges, strict=True))


class Kept:
    def __init__(self) -> None:
        self.saved: list[Checkpoint] = []

    def ownerships(self, hub_id: str, group: str) -> list[Ownership]:
        return []

    def checkpoints(self, hub_id: str, group: str) -> list[Checkpoint]:
        return self.saved


class World:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.catalog = Catalog()
        self.broker = Broker(
            self.catalog,
            MemoryLogStore(lambda work: work()),
            self.clock,
            producer_ids=itertools.count(1).__next__,
        )
        self.catalog.put_namespace(
            Namespace(name=NAMESPACE, created_ms=0, updated_ms=0, throughput_units=3)
        )
        self.kept = Kept()
        self.connected: Iterable[tuple[str, list[str]]] = []
        self.store = Store()
        self.history = MetricHistory(
            self.broker,
            self.catalog,
            self.kept,
            self.store,
            connections=lambda: self.connected,
            clock=self.clock,
            loop=asyncio.get_running_loop(),
        )

    def put_hub(self, name: str, hub_id: str | None = None) -> None:
        hub = Hub(
            id=hub_id or f"{name}-id",
            namespace=NAMESPACE,
            name=HubName(name),
            partition_count=2,
            created_ms=0,
            updated_ms=0,
        )
        self.catalog.put_hub(hub)
        self.broker.hub(NAMESPACE, name)

    def publish(self, hub: str, count: int = 1) -> None:
        done: list[object] = []
        batch = EventBatch(sections=SECTION * count, count=count)
        self.broker.hub(NAMESPACE, hub).publish(
            batch, size_bytes=10 * count, partition=0, done=done.append
        )
        assert len(done) == 1


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    made.put_hub("Orders")
    yield made
    await made.history.stop()


async def test_counters_are_told_as_differences(world: World) -> None:
    world.publish("Orders", 3)
    await world.history.note()
    first = world.store.counted("contoso", "orders")
    assert (first["incoming_messages"], first["incoming_bytes"]) == (3, 30)
    assert first["successful_requests"] == 1
    world.publish("Orders", 2)
    await world.history.note()
    assert world.store.counted("contoso", "orders")["incoming_messages"] == 2
    await world.history.note()
    assert set(world.store.counted("contoso", "orders").values()) == {0}


async def test_namespace_is_the_sum_of_its_hubs(world: World) -> None:
    world.put_hub("other")
    world.publish("Orders", 3)
    world.publish("other", 4)
    await world.history.note()
    assert world.store.counted("contoso")["incoming_messages"] == 7
    whole, parts = (
        world.store.gauges("contoso"),
        [world.store.gauges("contoso", hub)["size_bytes"] or 0 for hub in ("orders", "other")],
    )
    assert whole["size_bytes"] == sum(parts) > 0
    assert whole["throughput_units"] == 3


async def test_connections_are_counted_once_for_each_hub(world: World) -> None:
    world.connected = [("Contoso", ["orders", "ORDERS"]), ("contoso", []), ("", [])]
    await world.history.note()
    assert world.store.gauges("contoso")["active_connections"] == 2
    assert world.store.gauges("contoso", "orders")["active_connections"] == 1


async def test_many_connections_are_all_counted(world: World) -> None:
    world.connected = [("contoso", ["orders"])] * 1000
    await world.history.note()
    assert world.store.gauges("contoso", "orders")["active_connections"] == 1000


async def test_a_turn_looks_at_a_bounded_number_of_connections(world: World) -> None:
    turn, looked_at = 0, Counter[int]()

    async def count_turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    def connections() -> Iterator[tuple[str, list[str]]]:
        for _ in range(3000):
            looked_at[turn] += 1
            yield "contoso", ["orders"]

    world.connected = connections()
    counting = asyncio.create_task(count_turns())
    await world.history.note()
    counting.cancel()
    assert looked_at.total() == 3000
    assert max(looked_at.values()) <= ITEMS_PER_TURN


async def test_lag_is_noted_by_group_and_the_worst_for_the_hub(world: World) -> None:
    world.publish("Orders", 5)
    await world.history.note()
    assert world.store.gauges("contoso", "orders")["lag_events"] is None
    world.kept.saved = [Checkpoint(partition_id="0", offset="0", sequence_number=1)]
    await world.history.note()
    assert world.store.gauges("contoso", "orders", "$default")["lag_events"] == 3
    assert world.store.gauges("contoso", "orders")["lag_events"] == 3
    assert world.store.gauges("contoso")["lag_events"] == 3


async def test_hub_made_again_begins_at_zero(world: World) -> None:
    world.publish("Orders", 5)
    await world.history.note()
    world.catalog.delete_hub(NAMESPACE, "orders")
    world.put_hub("Orders", "another-id")
    world.publish("Orders", 2)
    await world.history.note()
    assert world.store.counted("contoso", "orders")["incoming_messages"] == 2


async def test_what_the_disk_refuses_is_made_up_for(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.store.refuses = True
    world.publish("Orders", 3)
    await world.history.task.run_once()
    await world.history.task.run_once()
    assert caplog.text.count("The disk is full.") == 1
    world.store.refuses = False
    world.publish("Orders", 1)
    await world.history.task.run_once()
    assert world.store.counted("contoso", "orders")["incoming_messages"] == 4


async def test_sample_belongs_to_the_step_that_has_ended(world: World) -> None:
    world.clock.advance(STEP_MS - world.clock.now_ms() % STEP_MS)
    turn = world.clock.now_ms()
    for later_ms in (0, STEP_MS // 2 - 1, 1, STEP_MS // 2 - 1):
        world.clock.advance(later_ms)
        await world.history.note()
    ended = turn - STEP_MS
    assert [at_ms for at_ms, _ in world.store.records] == [ended, ended, turn, turn]


async def test_too_many_hubs_leave_the_quiet_ones_out(world: World) -> None:
    for number in range(SUBJECTS_MAX):
        world.put_hub(f"hub-{number}")
    world.publish("hub-200")
    await world.history.note()
    _, samples = world.store.records[-1]
    assert len(samples) == SUBJECTS_MAX
    assert [each.subject for each in samples[:2]] == [
        MetricSubject("contoso"),
        MetricSubject("contoso", "hub-200"),
    ]


async def test_disk_is_waited_for_on_a_thread_of_its_own(world: World) -> None:
    await world.history.note()
    request = MetricRequest(
        namespace="contoso", hub=None, names=["incoming_bytes"], since_ms=0, until_ms=1, points=1
    )
    found = await world.history.read(request)
    assert found.step_ms == world.clock.now_ms()
    (name,) = world.store.threads
    assert name.startswith("penstock-history")


async def test_stopping_notes_the_last_seconds(world: World) -> None:
    world.history.task.start()
    world.publish("Orders", 3)
    await world.history.stop()
    counts = [
        dict(zip(COUNTERS, each.counters, strict=True))["incoming_messages"]
        for _, samples in world.store.records
        for each in samples
        if each.subject == MetricSubject("contoso", "orders")
    ]
    assert sum(counts) == 3


async def test_turn_of_the_step_is_noted_by_itself(world: World) -> None:
    world.clock.advance(STEP_MS - world.clock.now_ms() % STEP_MS - 1)  # the turn is a moment away
    world.history.task.start()
    await asyncio.wait_for(world.store.recorded.wait(), DEADLINE_S)
    assert world.store.records


async def test_failed_sample_does_not_end_the_others(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = asyncio.Event()
    hubs = world.broker.hubs

    def fail() -> Any:
        monkeypatch.setattr(world.broker, "hubs", hubs)
        failed.set()
        raise RuntimeError("a bug")

    monkeypatch.setattr(world.broker, "hubs", fail)
    world.clock.advance(STEP_MS - world.clock.now_ms() % STEP_MS - 1)
    world.history.task.start()
    await asyncio.wait_for(failed.wait(), DEADLINE_S)
    await asyncio.wait_for(world.store.recorded.wait(), DEADLINE_S)
    assert "a bug" in caplog.text
