"""Checkpoints follow the catalog; lag reads the disk on another thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.broker.broker import Broker
from penstock.catalog.api import Catalog
from penstock.checkpoints.server_store import ServerCheckpointStore
from penstock.log.memory import MemoryLogStore
from penstock.model.checkpoints import Checkpoint
from penstock.model.clock import ManualClock
from penstock.model.entities import ConsumerGroup, Hub, Namespace
from penstock.model.events import EventBatch, Receipt
from penstock.model.names import GroupName, HubName, NamespaceName
from penstock.service.lag_report import LagReport, follow_catalog

NAMESPACE = NamespaceName("contoso")
SAVED = [Checkpoint(partition_id="0", offset="0", sequence_number=0)]


@pytest.fixture
def catalog() -> Catalog:
    catalog = Catalog()
    catalog.put_namespace(Namespace(name=NAMESPACE, created_ms=0, updated_ms=0))
    put_hub(catalog, "first-id")
    return catalog


def put_hub(catalog: Catalog, hub_id: str) -> None:
    hub = Hub(
        id=hub_id,
        namespace=NAMESPACE,
        name=HubName("events"),
        partition_count=2,
        created_ms=0,
        updated_ms=0,
    )
    catalog.put_hub(hub)


def put_group(catalog: Catalog, name: str) -> None:
    catalog.put_group(
        ConsumerGroup(
            namespace=NAMESPACE,
            hub=HubName("events"),
            name=GroupName(name),
            created_ms=0,
            updated_ms=0,
        )
    )


def open_keeper(folder: Path, clock: ManualClock) -> ServerCheckpointStore:
    loop = asyncio.get_running_loop()
    return ServerCheckpointStore(folder / "checkpoints.sqlite", now_ms=clock.now_ms, loop=loop)


async def test_checkpoints_end_with_their_group_and_their_hub(
    tmp_path: Path, catalog: Catalog
) -> None:
    keeper = open_keeper(tmp_path, ManualClock())
    stop = follow_catalog(keeper, catalog)
    put_group(catalog, "Readers")
    await keeper.save("first-id", "readers", SAVED)
    await keeper.save("first-id", "$Default", SAVED)
    catalog.delete_group(NAMESPACE, "events", "readers")
    put_group(catalog, "Readers")
    assert keeper.checkpoints("first-id", "readers") == []
    assert len(keeper.checkpoints("first-id", "$Default")) == 1
    catalog.delete_hub(NAMESPACE, "events")
    put_hub(catalog, "second-id")
    assert keeper.checkpoints("first-id", "$Default") == []
    assert keeper.checkpoints("second-id", "$Default") == []
    stop()
    await keeper.close()


async def test_what_was_deleted_while_nobody_looked_is_forgotten_at_the_start(
    tmp_path: Path, catalog: Catalog
) -> None:
    keeper = open_keeper(tmp_path, ManualClock())
    await keeper.save("an-old-id", "$Default", SAVED)
    await keeper.save("first-id", "$Default", SAVED)
    await keeper.close()
    again = open_keeper(tmp_path, ManualClock())
    follow_catalog(again, catalog)()
    assert again.checkpoints("an-old-id", "$Default") == []
    assert len(again.checkpoints("first-id", "$Default")) == 1
    await again.close()


async def test_lag_in_seconds_comes_from_the_disk_when_it_is_measured(
    tmp_path: Path, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    loop = asyncio.get_running_loop()

    def wake(work: Callable[[], None]) -> None:
        loop.call_soon(work)

    logs = MemoryLogStore(wake)
    broker = Broker(catalog, logs, clock, producer_ids=lambda: 1)
    stored: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    sections = b"\x00\x53\x75\xa0\x01x" * 2
    hub = broker.hub(NAMESPACE, "events")
    hub.publish(
        EventBatch(sections, 2), size_bytes=len(sections), partition=0, done=stored.set_result
    )
    assert isinstance(await asyncio.wait_for(stored, 10), Receipt)
    keeper = open_keeper(tmp_path, clock)
    await keeper.save("first-id", "$Default", SAVED)
    clock.advance(3000)
    with ThreadPoolExecutor(1) as reads:
        lag = LagReport(broker, catalog, keeper, clock, reads)
        assert [row.lag_seconds for row in lag.hub_rows(hub)] == [3.0, None]
        assert await lag.measure() == lag.hub_rows(hub)  # memory knows it all
        monkeypatch.setattr(type(hub.log(0)), "read_cached", lambda *_: None)
        assert [row.lag_seconds for row in lag.hub_rows(hub)] == [None, None]
        (first, second) = await lag.measure("contoso", "EVENTS")
        assert (first.lag_events, first.lag_seconds) == (1, 3.0)
        assert (second.lag_events, second.lag_seconds) == (None, None)
    await keeper.close()
