"""Logs whose hub is not in the catalog: reported, kept and not shadowed; deletions are finished."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.catalog.sqlite import SqliteCatalog
from penstock.client import EventData, EventHubConsumerClient, EventHubProducerClient
from penstock.management.client import ManagementClient
from penstock.model.errors import PenstockError
from penstock.model.names import HubName
from penstock.service.config.settings import (
    DEFAULT_NAMESPACE,
    HubSettings,
    NamespaceSettings,
    Settings,
)
from penstock.service.unclaimed_logs import find_unclaimed_logs, forget_deletions
from penstock.service.wiring import Penstock

DEADLINE_S = 30.0


class Served:
    def __init__(self, facts: dict[str, Any]) -> None:
        self._facts = facts

    async def publish(self, hub: str, body: str) -> None:
        text = self._facts["emulator_connection_string"]
        async with EventHubProducerClient(text, eventhub_name=hub) as producer:
            await producer.send_event(EventData(body), partition_id="0")

    async def bodies(self, hub: str) -> list[bytes]:
        text = self._facts["emulator_connection_string"]
        found: list[bytes] = []
        async with EventHubConsumerClient(text, eventhub_name=hub) as consumer:
            async for columns in consumer.read_range("0", 0, 2**62):
                found += [bytes(body) for body in columns.bodies]
        return found

    async def warnings(self) -> list[str]:
        def ask() -> bytes:
            with urllib.request.urlopen(f"{self._facts['admin']}/ready", timeout=30) as answer:
                content: bytes = answer.read()
            return content

        found: list[str] = json.loads(await asyncio.to_thread(ask))["warnings"]
        return [text for text in found if "log director" in text]  # the machine has others

    async def manage(self, act: Callable[[ManagementClient], Any]) -> Any:
        def run() -> Any:
            client = ManagementClient(self._facts["admin"], self._facts["admin_token"])
            with client:
                return act(client)

        return await asyncio.to_thread(run)

    async def hub_names(self) -> list[str]:
        hubs = await self.manage(lambda client: client.hubs(DEFAULT_NAMESPACE))
        return [hub.name for hub in hubs]


@asynccontextmanager
async def _served(data: Path, *hubs: str) -> AsyncIterator[Served]:
    wanted = tuple(HubSettings(name=HubName(hub), partition_count=2) for hub in hubs)
    settings = Settings(
        data=data,
        namespaces=(NamespaceSettings(name=DEFAULT_NAMESPACE, hubs=wanted),),
        namespaces_given=True,
        portal=False,
        amqp_port=0,
        amqps_port=0,
        https_port=0,
        admin_port=0,
    )
    service = Penstock(settings)
    facts = await service.start()
    try:
        yield Served(facts.as_dict())
    finally:
        await service.stop()


def _logs(data: Path) -> list[Path]:
    return sorted(each for each in (data / "log").iterdir() if each.is_dir())


def _wait_until(is_so: Callable[[], bool]) -> None:
    """Files of dropped logs are removed in the background."""
    deadline = time.monotonic() + DEADLINE_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


async def _used(data: Path, *hubs: str) -> None:
    async with _served(data, *hubs) as service:
        for hub in hubs:
            await service.publish(hub, f"kept in {hub}")


def _lose_catalog(data: Path) -> None:
    for file in data.glob("catalog.sqlite*"):
        file.unlink()


async def test_deletion_that_a_crash_interrupted_is_finished(tmp_path: Path) -> None:
    await _used(tmp_path, "orders", "readings")
    catalog = SqliteCatalog(tmp_path / "catalog.sqlite")
    orders = catalog.hub(DEFAULT_NAMESPACE, "orders")
    assert orders is not None
    catalog.delete_hub(DEFAULT_NAMESPACE, "orders")  # and no broker that drops the log
    catalog.close()
    assert (tmp_path / "log" / orders.id).is_dir()
    async with _served(tmp_path, "readings") as service:
        assert await service.warnings() == []
        assert await service.bodies("readings") == [b"kept in readings"]
        await asyncio.to_thread(_wait_until, lambda: len(_logs(tmp_path)) == 1)
    assert not (tmp_path / "log" / orders.id).exists()
    async with _served(tmp_path, "readings"):
        pass
    catalog = SqliteCatalog(tmp_path / "catalog.sqlite")
    assert catalog.deleted_hubs() == []
    catalog.close()


def test_namespace_records_the_deletion_of_its_hubs(tmp_path: Path) -> None:
    asyncio.run(_used(tmp_path, "orders", "readings"))
    catalog = SqliteCatalog(tmp_path / "catalog.sqlite")
    ids = sorted(hub.id for hub in catalog.hubs(DEFAULT_NAMESPACE))
    catalog.delete_namespace(DEFAULT_NAMESPACE)
    assert sorted(catalog.deleted_hubs()) == ids
    catalog.close()


async def test_deletion_is_forgotten_when_its_log_is_gone(tmp_path: Path) -> None:
    await _used(tmp_path, "orders", "readings")
    catalog = SqliteCatalog(tmp_path / "catalog.sqlite")
    orders, readings = catalog.hubs(DEFAULT_NAMESPACE)
    catalog.delete_namespace(DEFAULT_NAMESPACE)
    shutil.rmtree(tmp_path / "log" / orders.id)
    await forget_deletions(tmp_path / "log", catalog)
    assert catalog.deleted_hubs() == [readings.id]
    catalog.close()


async def test_log_without_a_hub_is_reported_and_its_name_stays_free(tmp_path: Path) -> None:
    await _used(tmp_path, "orders", "readings")
    (first, second) = _logs(tmp_path)
    _lose_catalog(tmp_path)
    async with _served(tmp_path, "orders", "readings", "new") as service:
        assert await service.hub_names() == ["new"]
        (text,) = await service.warnings()
        for part in (str(first), str(second), "'penstock/orders'", "'penstock/readings'"):
            assert part in text
        with pytest.raises(PenstockError, match=r"cannot be created.* has events of"):
            await service.manage(
                lambda client: client.put_hub(DEFAULT_NAMESPACE, "ORDERS", partition_count=2)
            )
        await service.publish("new", "goes on")
    assert first.is_dir()
    assert second.is_dir()
    shutil.rmtree(first)
    shutil.rmtree(second)
    async with _served(tmp_path, "orders", "readings", "new") as service:
        assert await service.hub_names() == ["new", "orders", "readings"]
        assert await service.warnings() == []
        assert await service.bodies("orders") == []


async def test_catalog_that_comes_back_claims_its_logs_again(tmp_path: Path) -> None:
    data, aside = tmp_path / "data", tmp_path / "aside"
    await _used(data, "orders")
    shutil.copy2(data / "catalog.sqlite", aside)
    _lose_catalog(data)
    async with _served(data, "orders") as service:
        assert await service.hub_names() == []
    _lose_catalog(data)
    shutil.copy2(aside, data / "catalog.sqlite")
    async with _served(data, "orders") as service:
        assert await service.warnings() == []
        assert await service.bodies("orders") == [b"kept in orders"]


async def test_log_without_a_name_may_be_that_of_any_absent_hub(tmp_path: Path) -> None:
    """Version 0.1 wrote no names into the log directories."""
    await _used(tmp_path, "orders")
    (folder,) = _logs(tmp_path)
    (folder / "hub.json").unlink()
    _lose_catalog(tmp_path)
    async with _served(tmp_path, "orders", "readings") as service:
        assert await service.hub_names() == []
        (warning,) = await service.warnings()
        assert str(folder) in warning
        assert "an unknown event hub" in warning
        # Only the configuration waits for the operator; a command is the operator.
        await service.manage(
            lambda client: client.put_hub(DEFAULT_NAMESPACE, "readings", partition_count=2)
        )
        assert await service.hub_names() == ["readings"]


async def test_no_flipped_bit_gives_a_log_another_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await _used(tmp_path, "orders")
    (folder,) = _logs(tmp_path)
    file = folder / "hub.json"
    whole = file.read_bytes()
    for place in range(len(whole) * 8):
        flipped = bytearray(whole)
        flipped[place // 8] ^= 1 << place % 8
        file.write_bytes(flipped)
        caplog.clear()
        (log,) = find_unclaimed_logs(folder.parent, ())
        if log.names is None:
            assert f"name file unusable: file={file}" in caplog.text, place
        else:
            assert (log.names.namespace, log.names.name) == ("penstock", "orders"), place


async def test_deleted_hub_leaves_nothing_behind(tmp_path: Path) -> None:
    async with _served(tmp_path, "orders") as service:
        await service.publish("orders", "soon gone")
        await service.manage(lambda client: client.delete_hub(DEFAULT_NAMESPACE, "orders"))
        await asyncio.to_thread(_wait_until, lambda: not _logs(tmp_path))
        await service.manage(
            lambda client: client.put_hub(DEFAULT_NAMESPACE, "orders", partition_count=2)
        )
        await service.publish("orders", "again")
        assert await service.bodies("orders") == [b"again"]
