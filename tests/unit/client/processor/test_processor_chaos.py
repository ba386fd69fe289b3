"""Many processors whose ways to the store break at random, for half an hour of turned time."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from penstock.client import EventData, PartitionContext

if TYPE_CHECKING:
    from tests.unit.client.processor.conftest import Hub, Kit, Store

PARTITIONS, PROCESSORS = 7, 4
EXPIRATION_S = 60.0  # as the kit's processors have it
MINUTES = 30


class World:
    """One set of records, reached by every processor through a store of its own."""

    def __init__(self, memory: Kit, seed: int) -> None:
        self.chance = random.Random(seed)
        self.hub: Hub = memory.Hub(PARTITIONS)
        self.memory = memory
        self.common = memory.Store()
        self.stores: dict[str, Store] = {}
        self.working: Counter[tuple[str, str]] = Counter()  # (owner, partition)
        self.processed: set[str] = set()
        self.takeovers = 0
        self.at_work: list[tuple[float, dict[str, Any], dict[str, Any]]] = []
        self.sent = 0

    def store(self, owner: str) -> Store:
        store = self.stores[owner] = self.memory.Store()
        store.owned, store.saved = self.common.owned, self.common.saved
        store.new_etag = self.common.new_etag
        store.on_claim = self.judge
        return store

    def judge(self, before: dict[str, Any] | None, claim: dict[str, Any]) -> None:
        """Whoever takes a partition because its lease ended finds nobody at work on it."""
        now_s = self.common.clock.now_ms() / 1000
        if before is None or before["owner_id"] in ("", claim["owner_id"]):
            return
        if now_s - before["last_modified_time"] > EXPIRATION_S:
            self.takeovers += 1
            if self.working[before["owner_id"], claim["partition_id"]]:
                self.at_work.append((now_s, before, claim))

    async def on_events(self, context: PartitionContext, events: list[EventData]) -> None:
        place = context.owner_id, context.partition_id
        self.working[place] += 1
        try:
            await self.memory.passes(self.chance.choice((0, 0.1, 3, 40)))
            self.processed.update(event.body_as_str() for event in events)
            await context.update_checkpoint()
        finally:
            self.working[place] -= 1

    def send(self) -> None:
        for partition in range(PARTITIONS):
            self.hub.send(partition, f"{partition}-{self.sent}")
        self.sent += 1

    def disturb(self) -> None:
        store = self.chance.choice(list(self.stores.values()))
        store.error, store.hangs, store.hands_back = None, False, False
        match self.chance.randrange(6):
            case 0:
                store.error = OSError("no store")
            case 1:
                store.hangs = True
            case 2:
                store.hands_back = True
            case 3:
                store.lost_answers = 1
            case _:
                pass


@pytest.mark.parametrize("seed", range(4))
def test_nobody_works_on_a_partition_whose_lease_another_took_over(memory: Kit, seed: int) -> None:
    async def scene() -> None:
        random.seed(seed)  # the processors' own chance
        world = World(memory, seed)
        user = memory.User()
        processors = [
            user.processor(world.hub, world.store(name), owner_id=name, on_events=world.on_events)
            for name in "abcd"[:PROCESSORS]
        ]
        for processor in processors:
            await processor.start()
        for _ in range(MINUTES * 6):
            await memory.passes(10 * world.chance.random())
            world.send()
            world.disturb()
        for store in world.stores.values():
            store.error, store.hangs, store.hands_back = None, False, False
        await memory.until(lambda: len(world.processed) == PARTITIONS * world.sent)
        await memory.until(lambda: sorted(world.common.owners().values()) == [1, 2, 2, 2])
        await asyncio.gather(*(processor.stop() for processor in processors))
        assert world.common.owners() == {"": PARTITIONS}
        assert world.takeovers > 5
        assert world.at_work == []
        assert not +world.working

    memory.turned(scene())
