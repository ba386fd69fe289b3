"""Two load-balanced processors on one hub, with checkpoint stores of ours and the official ones."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest
from azure.eventhub import CheckpointStore, EventData
from azure.eventhub.aio import CheckpointStore as AioCheckpointStore
from azure.eventhub.exceptions import ConnectionLostError
from azure.eventhub.extensions.checkpointstoreblob import BlobCheckpointStore
from azure.eventhub.extensions.checkpointstoreblobaio import (
    BlobCheckpointStore as AioBlobCheckpointStore,
)

if TYPE_CHECKING:
    from tests.compatibility.conftest import Outcomes, PythonSdk, Reading, Sdks
    from tests.conftest import Azurite

Record = dict[str, Any]
BALANCE_S = 0.5
WAIT_S = 60


class Memory:
    """The records (protocol.md 11.1): claims are compare-and-swap, the last checkpoint wins."""

    def __init__(self) -> None:
        self.ownerships: dict[str, Record] = {}
        self.checkpoints: dict[str, Record] = {}

    def claim(self, wanted: Iterable[Record]) -> list[Record]:
        won = []
        for record in wanted:
            known = self.ownerships.get(record["partition_id"])
            if known is not None and known["etag"] != record.get("etag"):
                continue
            record = record | {"etag": str(uuid.uuid4()), "last_modified_time": time.time()}
            self.ownerships[record["partition_id"]] = record
            won.append(dict(record))
        return won


class MemoryStore(CheckpointStore, Memory):
    """For the blocking client."""

    def list_ownership(self, *names: str, **options: Any) -> list[Record]:
        return [dict(record) for record in self.ownerships.values()]

    def claim_ownership(self, ownership_list: Iterable[Record], **options: Any) -> list[Record]:
        return self.claim(ownership_list)

    def update_checkpoint(self, checkpoint: Record, **options: Any) -> None:
        self.checkpoints[checkpoint["partition_id"]] = dict(checkpoint)

    def list_checkpoints(self, *names: str, **options: Any) -> list[Record]:
        return [dict(record) for record in self.checkpoints.values()]


class AioMemoryStore(AioCheckpointStore, Memory):
    """For the asynchronous client."""

    async def list_ownership(self, *names: str, **options: Any) -> list[Record]:
        return [dict(record) for record in self.ownerships.values()]

    async def claim_ownership(
        self, ownership_list: Iterable[Record], **options: Any
    ) -> list[Record]:
        return self.claim(ownership_list)

    async def update_checkpoint(self, checkpoint: Record, **options: Any) -> None:
        self.checkpoints[checkpoint["partition_id"]] = dict(checkpoint)

    async def list_checkpoints(self, *names: str, **options: Any) -> list[Record]:
        return [dict(record) for record in self.checkpoints.values()]


class Processors:
    """Processors over one store, and what all of them received."""

    def __init__(self, sdk: PythonSdk, hub: str, store: Any) -> None:
        self.sdk = sdk
        self.hub = hub
        self.store = store

    async def start(self, stack: AsyncExitStack) -> Reading:
        client = {"checkpoint_store": self.store, "load_balancing_interval": BALANCE_S}
        options: dict[str, Any] = {"client": client, "checkpoint": True, "max_wait_time": 0.2}
        return await stack.enter_async_context(self.sdk.reading(self.hub, None, **options))

    async def collect(self, wanted: set[str], *readings: Reading) -> list[str]:
        """Until everything wanted was seen by one or the other."""
        seen: list[str] = []

        async def listen(reading: Reading) -> None:
            while not wanted <= set(seen):
                try:
                    event = await reading.next(within_s=WAIT_S)
                except ConnectionLostError as moved:  # a partition went to the other one
                    assert moved.error == "link:stolen", moved
                    continue
                if event is not None:
                    seen.append(event.body_as_str())

        await asyncio.wait_for(_first_done(*map(listen, readings)), WAIT_S)
        return seen

    async def wait_until_owned(self, *, by: int) -> None:
        """Each processor has its share."""

        def shared(records: list[Record]) -> bool:
            owners = [record["owner_id"] for record in records if record["owner_id"]]
            shares = [owners.count(each) for each in set(owners)]
            return len(shares) == by and sum(shares) == 4 and max(shares) == 4 // by

        await self._wait_until(self.store.list_ownership, shared)

    async def wait_until_done(self, sequence_number: int) -> None:
        """Every partition is checkpointed so far."""

        def done(records: list[Record]) -> bool:
            return [int(record["sequence_number"]) for record in records] == [sequence_number] * 4

        await self._wait_until(self.store.list_checkpoints, done)

    async def _wait_until(self, list_them: Any, holds: Callable[[list[Record]], bool]) -> None:
        """A store has no event to wait for: it is looked at again, as the processors do."""
        place = (self.sdk.server["amqp"], self.hub, "$Default")
        async with asyncio.timeout(WAIT_S):
            while not holds(list(await self.sdk.call(list_them, *place))):  # noqa: ASYNC110
                await asyncio.sleep(0.04)


async def _first_done(*works: Any) -> None:
    tasks = [asyncio.create_task(work) for work in works]
    done, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
    for task in done:
        task.result()


async def fill(sdk: PythonSdk, hub: str, name: str) -> set[str]:
    sent = set()
    async with sdk.producing(hub) as producer:
        for partition in "0123":
            texts = [f"{name} {partition} {number}" for number in range(5)]
            batch = [EventData(text) for text in texts]
            await sdk.call(producer.send_batch, batch, partition_id=partition)
            sent |= set(texts)
    return sent


async def balance_and_resume(sdk: PythonSdk, store: Any) -> None:
    """Two share the work; one leaves and the other takes over; a third begins where they ended."""
    hub = sdk.hub()
    processors = Processors(sdk, hub, store)
    first = await fill(sdk, hub, "first")
    async with AsyncExitStack() as staying:
        stays = await processors.start(staying)
        async with AsyncExitStack() as leaving:
            leaves = await processors.start(leaving)
            seen = await processors.collect(first, stays, leaves)
            assert set(seen) == first
            await processors.wait_until_done(4)
            await processors.wait_until_owned(by=2)
        second = await fill(sdk, hub, "second")
        await processors.wait_until_owned(by=1)
        assert second <= set(await processors.collect(second, stays))
        await processors.wait_until_done(9)
    third = await fill(sdk, hub, "third")
    async with AsyncExitStack() as resuming:
        resumed = await processors.collect(third, await processors.start(resuming))
        await processors.wait_until_done(14)
    assert sorted(resumed) == sorted(third)  # nothing before a checkpoint comes again


async def over_memory(sdk: PythonSdk) -> None:
    store = MemoryStore() if sdk.flavour == "sync" else AioMemoryStore()
    await balance_and_resume(sdk, store)
    assert set(store.checkpoints) == set(store.ownerships) == set("0123")


@pytest.fixture(scope="module")
def outcomes(sdks: Sdks, azurite: Azurite) -> Outcomes:
    async def over_blobs(sdk: PythonSdk) -> None:
        container = f"{sdk.flavour}-{uuid.uuid4()}"
        kind: Any = BlobCheckpointStore if sdk.flavour == "sync" else AioBlobCheckpointStore
        store = kind.from_connection_string(azurite.connection_string, container)
        try:
            await sdk.call(store._container_client.create_container)
            await balance_and_resume(sdk, store)
        finally:
            await sdk.call(store.close)

    cases = [over_memory, over_blobs]
    return sdks.run((cases, [("sync", "tcp"), ("aio", "tcp")]))


@pytest.mark.parametrize("flavour", ["sync", "aio"])
def test_processors_balance_over_a_store_in_memory(outcomes: Outcomes, flavour: str) -> None:
    outcomes.check("over_memory", flavour)


@pytest.mark.parametrize("flavour", ["sync", "aio"])
def test_processors_balance_over_the_official_blob_store(
    outcomes: Outcomes, azurite: Azurite, flavour: str
) -> None:
    outcomes.check("over_blobs", flavour)
