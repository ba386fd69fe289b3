"""A data directory that commit 2ffc782 wrote opens, reads back and continues in this version.

How the archives were made: tests/fixtures/data_directory_2ffc782/write.py.
"""

from __future__ import annotations

import base64
import json
import sqlite3
import tarfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from penstock.capture.windows import ClosedRange
from penstock.catalog.sqlite import SqliteCatalog
from penstock.checkpoints.aio import ServiceCheckpointStore
from penstock.client import (
    EventData,
    EventHubConsumerClient,
    EventHubProducerClient,
)
from penstock.model.clock import ManualClock
from penstock.service.config.loader import load_settings
from penstock.service.wiring import Penstock
from penstock.spark.capture.plan import open_run_state

FIXTURES = Path(__file__).parents[1] / "fixtures" / "data_directory_2ffc782"
HOST = "factory.example.com"


class OldDirectory:
    """A copy of one archive, its configuration, and what its writer read from it."""

    def __init__(self, root: Path, name: str) -> None:
        with tarfile.open(FIXTURES / f"{name}.tar.xz") as archive:
            archive.extractall(root, filter="tar")  # with the modes that 0.1 gave
        self.data = root / "data"
        self.expected: dict[str, Any] = json.loads((root / "expected.json").read_text())
        # Retention and certificates are as they were when the directory was written.
        self.clock = ManualClock(self.expected["now_ms"])
        config = (root / "penstock.toml").read_text().replace("@ROOT@", str(root))
        self._config = root / "run.toml"
        self._config.write_text(f"[capture]\nrun = false\n{config}")

    @asynccontextmanager
    async def served(self) -> AsyncIterator[OldService]:
        ports = dict.fromkeys(("amqp_port", "amqps_port", "https_port", "admin_port"), 0)
        flags = {"config": str(self._config), "data": str(self.data), "portal": False} | ports
        service = Penstock(load_settings(flags=flags, environ={}), clock=self.clock)
        facts = (await service.start()).as_dict()
        try:
            yield OldService(facts, service)
        finally:
            await service.stop()


class OldService:
    """The service on the old directory, as a client sees it."""

    def __init__(self, facts: dict[str, Any], service: Penstock) -> None:
        self.service = service
        self._facts = facts
        self.connection_string: str = facts["emulator_connection_string"]

    async def events(self, hub: str) -> dict[str, list[list[object]]]:
        found: dict[str, list[list[object]]] = {}
        async with EventHubConsumerClient(self.connection_string, eventhub_name=hub) as consumer:
            for partition in await consumer.get_partition_ids():
                rows = found[partition] = []
                async for columns in consumer.read_range(partition, 0, 2**62):
                    rows += [
                        [number, str(offset), at_ms, base64.b64encode(body).decode()]
                        for number, offset, at_ms, body in zip(
                            columns.sequence_numbers,
                            columns.offsets,
                            columns.enqueued_ms,
                            columns.bodies,
                            strict=True,
                        )
                    ]
        return found

    def producer(self, hub: str, producer_id: int | None = None) -> EventHubProducerClient:
        return EventHubProducerClient(
            self.connection_string,
            eventhub_name=hub,
            idempotent=producer_id is not None,
            producer_id=producer_id,
        )

    async def checkpoints(self, group: str) -> tuple[list[Any], list[Any]]:
        """The checkpoints and the ownerships of a consumer group of the hub `readings`."""
        store = ServiceCheckpointStore(
            self.connection_string, https_url=self._facts["https"], ca_file=self._facts["ca_file"]
        )
        async with store:
            return (
                [dict(each) for each in await store.list_checkpoints(HOST, "readings", group)],
                [dict(each) for each in await store.list_ownership(HOST, "readings", group)],
            )


@pytest.fixture(params=["stopped", "killed"])
def old(request: pytest.FixtureRequest, tmp_path: Path) -> OldDirectory:
    return OldDirectory(tmp_path, request.param)


async def _is_as_expected(old: OldDirectory, service: OldService) -> None:
    for hub, events in old.expected["events"].items():
        assert await service.events(hub) == events, hub
    for group, checkpoints in old.expected["checkpoints"].items():
        found = await service.checkpoints(group)
        assert found == (checkpoints, old.expected["ownerships"][group])
    for hub, producers in old.expected["producers"].items():
        for producer_id, published in producers.items():
            async with service.producer(hub, int(producer_id)) as client:
                states = [await client.producer_state(partition) for partition in ("0", "1")]
            assert [state.published for state in states] == published, (hub, producer_id)


async def test_everything_is_read_back_and_publishing_continues(old: OldDirectory) -> None:
    async with old.served() as service:
        await _is_as_expected(old, service)
        async with service.producer("orders") as plain:
            await plain.send_event(EventData("of this version"), partition_id="0")
        rows = old.expected["events"]["orders"]["0"]
        after = await service.events("orders")
        assert after["0"][:-1] == rows
        number, offset, _, body = after["0"][-1]
        assert number == rows[-1][0] + 1
        assert int(str(offset)) > int(rows[-1][1])
        assert base64.b64decode(str(body)) == b"of this version"
        old.expected["events"]["orders"] = after
    async with old.served() as service:
        await _is_as_expected(old, service)


async def test_duplicate_of_a_numbered_batch_is_recognized(old: OldDirectory) -> None:
    """The old version stored four events in each batch: the last batch is sent again."""
    async with old.served() as service, service.producer("orders", 4711) as client:
        state = await client.producer_state("1")
        assert state.published == old.expected["producers"]["orders"]["4711"][1]
        client._lanes["1"].state.published -= 4  # type: ignore[union-attr]
        await client.send_batch([EventData(f"again {i}") for i in range(4)], partition_id="1")
        assert await service.events("orders") == old.expected["events"]["orders"]
        await client.send_batch([EventData("next")], partition_id="1")
        after = await service.events("orders")
        assert [row[0] for row in after["1"]] == list(
            range(len(old.expected["events"]["orders"]["1"]) + 1)
        )


async def test_old_version_refuses_what_this_version_has_opened(tmp_path: Path) -> None:
    """Version 0.1 refuses files whose version is above the one that it writes itself, before it
    changes anything (docs/guides/production.md#upgrade-and-rollback)."""
    old = OldDirectory(tmp_path, "stopped")
    names = ("catalog.sqlite", "checkpoints.sqlite")
    known = [_version_of(old.data / name) for name in names]
    async with old.served():
        pass
    for name, version in zip(names, known, strict=True):
        assert _version_of(old.data / name) > version > 0


def _version_of(database: Path) -> int:
    with closing(sqlite3.connect(database)) as connection:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)


def test_catalog_of_the_old_directory_is_complete(old: OldDirectory) -> None:
    catalog = SqliteCatalog(old.data / "catalog.sqlite")
    try:
        found = {
            hub.name: (hub.partition_count, hub.retention_hours, hub.status.value)
            for hub in catalog.hubs("factory")
        }
        assert found == {
            each["name"]: (each["partition_count"], each["retention_hours"], each["status"])
            for each in old.expected["hubs"]
        }
        assert [hub.name for hub in catalog.hubs("offices")] == ["orders"]
        assert {group.name for group in catalog.groups("factory", "readings")} == {
            *("$Default", "alerts", "archive")
        }
        assert catalog.rule("factory", "readings", "devices") is not None
        assert "capture" in json.dumps(catalog.hub("factory", "orders").metadata)  # type: ignore[union-attr]
    finally:
        catalog.close()


def test_capture_continues_where_the_old_state_ends(old: OldDirectory) -> None:
    """Both files of the run become one. No window is closed twice and none is left out: every
    window after the recorded ones starts where they end, and each file keeps its name."""
    state_folder = old.data / "capture"
    (run,) = state_folder.glob("*-*/")
    (names,) = state_folder.glob("*.names.sqlite")
    with closing(sqlite3.connect(names)) as database:
        taken = database.execute("SELECT partition, window, named_s FROM taken").fetchall()
    files = [*(old.data.parent / "captured").rglob("*.avro")]
    assert len(taken) >= len(files)
    hub_id = run.name.partition("-")[0]
    for _ in range(2):  # the second time from the new file
        with closing(open_run_state(run, hub_id, check=True)) as state:
            assert state.totals().files == 2  # the clean stop came before the second batch's commit
            starts = state.starts()
            events = old.expected["events"]["orders"]
            captured = {partition: starts[partition].sequence for partition in starts}
            assert sorted(captured) == ["0", "1"]
            assert all(0 < captured[each] <= len(events[each]) for each in captured)
            assert state.totals().events == sum(captured.values())
            # The recorded windows have no gap and no overlap.
            for partition, end in captured.items():
                recorded = [f for f in state.newest_files(1000) if f.partition == partition]
                recorded.sort(key=lambda file: file.window)
                assert [file.window for file in recorded] == [*range(starts[partition].window)]
                firsts = [file.first_sequence for file in recorded]
                assert [*firsts, end] == [0, *(file.last_sequence + 1 for file in recorded)]
            for partition, window, named_s in taken:
                closed = ClosedRange(window, 0, 1, named_s - 1)
                (named,) = state.take_names(partition, [closed], after_s=named_s - 1)
                assert named.named_s == named_s
        assert [*state_folder.glob("*.names.sqlite*"), *run.glob("ledger.sqlite*")] == []
        assert (state_folder / f"{hub_id}.sqlite").exists()


def test_killed_directory_has_its_rows_in_write_ahead_logs(tmp_path: Path) -> None:
    """What makes the variant worth having: without its WAL the catalog is one empty page."""
    old = OldDirectory(tmp_path, "killed")
    for name in ("catalog", "checkpoints"):
        assert (old.data / f"{name}.sqlite").stat().st_size == 4096
        assert (old.data / f"{name}.sqlite-wal").stat().st_size > 100_000
