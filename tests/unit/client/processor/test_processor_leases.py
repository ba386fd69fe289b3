"""Event processors and their leases: balance, loss, theft, stores that fail, the end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import pytest

from penstock.client import (
    ClientClosed,
    ClientStolen,
    ClientTimedOut,
    CloseReason,
    EventData,
    EventPosition,
    LeaseLost,
    PartitionContext,
)

if TYPE_CHECKING:
    from tests.unit.client.processor.conftest import Kit

LOST, SHUTDOWN = CloseReason.OWNERSHIP_LOST, CloseReason.SHUTDOWN
INTERVAL_S, EXPIRATION_S = 10.0, 60.0  # as the kit's processors have them


@pytest.mark.parametrize("strategy", ["greedy", "balanced"])
def test_processors_share_partitions_and_take_over_when_one_stops(
    memory: Kit, strategy: str
) -> None:
    async def scene() -> None:
        hub, store = memory.Hub(8), memory.Store()
        users = [memory.User() for _ in range(3)]
        first, second, third = (
            user.processor(hub, store, owner_id=name, strategy=strategy)
            for user, name in zip(users, "abc", strict=True)
        )
        async with second, third:
            async with first:
                await memory.until(lambda: sorted(store.owners().values()) == [2, 3, 3])
                await memory.until(lambda: len(hub.readers) == 8)
                moved = len(store.claims)
                await memory.passes(10 * INTERVAL_S)
                owners = {partition: owner for _, partition, owner in store.claims[:moved]}
                late = {partition: owner for _, partition, owner in store.claims[moved:]}
                assert late == owners  # renewed, not moved
            within_s = 4 * INTERVAL_S if strategy == "balanced" else 1.2 * INTERVAL_S
            await memory.until(lambda: store.owners() == {"b": 4, "c": 4}, within_s)
            await memory.until(lambda: len(hub.readers) == 8)
        assert store.owners() == {"": 8}
        for number in range(8):
            hub.send(number, "late")
        assert [error for user in users for error in user.errors if error[0] is None] == []

    memory.turned(scene())


def test_dead_processors_partitions_are_taken_when_its_leases_end_and_not_before(
    memory: Kit,
) -> None:
    async def scene() -> None:
        hub, store, user = memory.Hub(4), memory.Store(), memory.User()
        for number in range(2):
            store.set_owner(number, "dead")
        async with user.processor(hub, store, owner_id="me"):
            await memory.until(lambda: store.owners() == {"dead": 2, "me": 2})
            await memory.passes(EXPIRATION_S - 1)
            assert store.owners() == {"dead": 2, "me": 2}
            took_s = await memory.until(lambda: len(hub.readers) == 4)
            assert took_s <= 1.2 * INTERVAL_S

    memory.turned(scene())


@pytest.mark.parametrize("way", ["raises", "hangs", "hands back"])
def test_processing_stops_before_the_lease_ends_when_it_cannot_be_renewed(
    memory: Kit, way: str
) -> None:
    async def scene() -> None:
        hub, store, user, other = memory.Hub(1), memory.Store(), memory.User(), memory.User()
        user.act = memory.for_ever
        hub.send(0, "a")
        broken = memory.Store()
        broken.owned = store.owned  # one that reaches the same records, until it does not
        async with user.processor(hub, broken) as processor:
            await memory.until(lambda: user.bodies)
            claimed_s = broken.claims[-1][0]
            if way == "raises":
                broken.error = OSError("no store")
            broken.hangs, broken.hands_back = way == "hangs", way == "hands back"
            async with other.processor(hub, store):
                await memory.until(lambda: user.ended_s)
                assert user.ended_s[0] < claimed_s + EXPIRATION_S
                assert processor.owned_partitions == []
                await memory.until(lambda: other.bodies)
                assert user.ended_s[0] < asyncio.get_running_loop().time()
        assert (user.closed, other.bodies["0"]) == ([("0", LOST)], ["a"])
        if way == "hangs":
            assert {type(error) for _, error in user.errors} == {ClientTimedOut}

    memory.turned(scene())


def test_processing_goes_on_from_the_checkpoint_when_the_store_is_back(memory: Kit) -> None:
    async def scene() -> None:
        hub, store, user = memory.Hub(1), memory.Store(), memory.User()
        user.act = memory.save
        hub.send(0, "a")
        async with user.processor(hub, store):
            await memory.until(lambda: store.saved)
            store.error = OSError("no store")
            await memory.until(lambda: user.closed == [("0", LOST)])
            hub.send(0, "b")
            await memory.passes(100)
            store.error = None
            await memory.until(lambda: store.saved["0"]["sequence_number"] == 1)
        assert user.bodies["0"] == ["a", "b"]
        assert user.initialized == ["0", "0"]

    memory.turned(scene())


def test_store_that_fails_for_less_than_a_lease_disturbs_nobody(memory: Kit) -> None:
    async def scene() -> None:
        hub, store, user = memory.Hub(2), memory.Store(), memory.User()
        async with user.processor(hub, store):
            await memory.until(lambda: len(hub.readers) == 2)
            for _ in range(5):
                store.error = OSError("no store")
                await memory.passes(EXPIRATION_S / 2)
                store.error = None
                await memory.passes(INTERVAL_S)
        assert len(hub.opened) == 2
        assert set(user.closed) == {("0", SHUTDOWN), ("1", SHUTDOWN)}
        assert user.errors

    memory.turned(scene())


def test_processor_that_stood_still_hands_nothing_over(memory: Kit) -> None:
    async def scene() -> None:
        hub, store, user = memory.Hub(1), memory.Store(), memory.User()
        clock = memory.LoopClock()
        closed: list[tuple[CloseReason, int]] = []

        async def on_close(context: PartitionContext, reason: CloseReason) -> None:
            closed.append((reason, len(user.bodies)))

        async with user.processor(hub, store, clock=clock, on_partition_close=on_close):
            await memory.until(lambda: hub.readers)
            clock.off_s += EXPIRATION_S  # the machine slept: no timer of ours ran
            hub.send(0, "a")
            await memory.until(lambda: user.bodies)  # nobody had taken it meanwhile
        assert closed == [(LOST, 0), (SHUTDOWN, 1)]
        assert user.errors == []

    memory.turned(scene())


def test_stolen_partition_is_given_up_at_once_and_the_thief_left_alone(memory: Kit) -> None:
    async def scene() -> None:
        hub, store, user = memory.Hub(1), memory.Store(), memory.User()
        async with user.processor(hub, store):
            await memory.until(lambda: hub.readers)
            store.set_owner(0, "thief")
            thief = hub.open_partition("0", EventPosition.earliest(), owner_level=0)
            await thief.open()
            assert await memory.until(lambda: user.closed) < 1
            for _ in range(20):  # it renews
                await memory.passes(INTERVAL_S)
                store.set_owner(0, "thief")
            assert hub.readers["0"] is thief
            assert thief.error is None
        assert user.closed == [("0", LOST)]
        assert [type(error) for _, error in user.errors] == [ClientStolen]
        assert store.owners() == {"thief": 1}

    memory.turned(scene())


def test_reader_without_a_lease_is_displaced_again_after_longer_and_longer_pauses(
    memory: Kit,
) -> None:
    async def scene() -> None:
        hub, store, user = memory.Hub(1), memory.Store(), memory.User()
        async with user.processor(hub, store):
            for _ in range(6):
                await memory.until(lambda: hub.readers)
                hub.readers.pop("0").fail(ClientStolen("another reader"))
            took_s = await memory.until(lambda: hub.readers)
            assert 5 < took_s < 40
            hub.send(0, "a")
            await memory.until(lambda: user.bodies)
            hub.readers["0"].fail(ClientStolen("another reader"))
            hub.readers.pop("0")
            assert await memory.until(lambda: hub.readers) < 2  # it had been well meanwhile
        assert store.owners() == {"": 1}

    memory.turned(scene())


def test_checkpoint_is_refused_when_the_partition_was_lost(memory: Kit) -> None:
    async def scene() -> None:
        hub, store, user = memory.Hub(1), memory.Store(), memory.User()
        contexts: list[PartitionContext] = []

        async def keep(context: PartitionContext, events: list[EventData]) -> None:
            contexts.append(context)

        user.act = keep
        hub.send(0, "a")
        async with user.processor(hub, store):
            await memory.until(lambda: contexts)
            store.set_owner(0, "thief")
            await memory.until(lambda: user.closed)
            with pytest.raises(LeaseLost):
                await contexts[0].update_checkpoint()
        assert store.saved == {}

    memory.turned(scene())


def test_lost_handler_is_cancelled_in_the_next_round(memory: Kit) -> None:
    async def scene() -> None:
        hub, store, user = memory.Hub(1), memory.Store(), memory.User()
        user.act = memory.for_ever
        hub.send(0, "a")
        async with user.processor(hub, store):
            await memory.until(lambda: user.bodies)
            store.set_owner(0, "thief")
            assert await memory.until(lambda: user.closed) < 1.2 * INTERVAL_S
            assert len(user.ended_s) == 1

    memory.turned(scene())


def test_claim_whose_answer_was_lost_is_found_in_the_next_round(memory: Kit) -> None:
    async def scene() -> None:
        hub, store, user = memory.Hub(2), memory.Store(), memory.User()
        store.lost_answers = 1
        async with user.processor(hub, store, owner_id="me"):
            await memory.until(lambda: len(hub.readers) == 2)
        assert [type(error) for _, error in user.errors] == [OSError]

    memory.turned(scene())


@pytest.mark.parametrize("off_s", [-1000.0, 1000.0])
def test_store_whose_clock_is_wrong_makes_nobody_take_what_is_live(
    memory: Kit, off_s: float
) -> None:
    async def scene() -> None:
        hub, store = memory.Hub(4), memory.Store(off_s)
        users = [memory.User(), memory.User()]
        first = users[0].processor(hub, store)
        second = users[1].processor(hub, store)
        async with first:
            await memory.until(lambda: len(hub.readers) == 4)
            async with second:
                await memory.until(lambda: sorted(store.owners().values()) == [2, 2])
                await memory.passes(INTERVAL_S)
                opened = len(hub.opened)
                await memory.passes(3 * EXPIRATION_S)
                assert len(hub.opened) == opened

    memory.turned(scene())


# --- the end --------------------------------------------------------------------------------------


def test_stop_lets_a_handler_end_its_work_and_delays_no_other_partition(memory: Kit) -> None:
    async def scene() -> None:
        hub, store, user = memory.Hub(2), memory.Store(), memory.User()
        released: list[dict[str, int]] = []

        async def slow(context: PartitionContext, events: list[EventData]) -> None:
            await memory.passes(8)
            released.append(store.owners())
            await context.update_checkpoint()

        user.act = slow
        hub.send(0, "a")
        processor = user.processor(hub, store, owner_id="me")
        await processor.start()
        await memory.until(lambda: user.bodies and len(hub.readers) == 2)
        await processor.stop()
        assert released == [{"me": 1, "": 1}]
        assert store.saved["0"]["sequence_number"] == 0
        assert store.owners() == {"": 2}
        await processor.stop()  # harmless

    memory.turned(scene())


def test_stop_cancels_a_handler_that_does_not_end(memory: Kit) -> None:
    async def scene() -> None:
        hub, store, user = memory.Hub(1), memory.Store(), memory.User()
        user.act = memory.for_ever
        hub.send(0, "a")
        processor = user.processor(hub, store)
        await processor.start()
        await memory.until(lambda: user.bodies)
        begin_s = asyncio.get_running_loop().time()
        await processor.stop()
        assert 25 < asyncio.get_running_loop().time() - begin_s < 35
        assert user.closed == [("0", SHUTDOWN)]
        assert store.owners() == {"": 1}

    memory.turned(scene())


def test_handler_may_ask_for_the_end(memory: Kit) -> None:
    async def scene() -> None:
        hub, store, user = memory.Hub(2), memory.Store(), memory.User()
        hub.send(0, "a")
        processor = user.processor(hub, store)

        async def stop(context: PartitionContext, events: list[EventData]) -> None:
            await processor.stop()

        user.act = stop
        await asyncio.wait_for(processor.run(), 20)
        assert store.owners() == {"": 2}

    memory.turned(scene())


def test_cancelled_run_gives_the_leases_back(memory: Kit) -> None:
    async def scene() -> None:
        hub, store, user = memory.Hub(2), memory.Store(), memory.User()
        running = asyncio.create_task(user.processor(hub, store).run())
        await memory.until(lambda: len(hub.readers) == 2)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert store.owners() == {"": 2}
        assert hub.readers == {}

    memory.turned(scene())


def test_store_that_fails_at_the_end_holds_nothing_up(memory: Kit) -> None:
    async def scene() -> None:
        hub, store, user = memory.Hub(1), memory.Store(), memory.User()
        async with user.processor(hub, store, owner_id="me"):
            await memory.until(lambda: hub.readers)
            store.error = OSError("no store")
        assert [type(error) for _, error in user.errors] == [OSError]
        assert store.owners() == {"me": 1}  # until the lease ends

    memory.turned(scene())


def test_close_handler_that_fails_is_reported(memory: Kit) -> None:
    async def scene() -> None:
        hub, store, user = memory.Hub(1), memory.Store(), memory.User()

        async def on_close(context: PartitionContext, reason: CloseReason) -> None:
            raise ValueError("of the close handler")

        async with user.processor(hub, store, on_partition_close=on_close):
            await memory.until(lambda: hub.readers)
        assert [str(error) for _, error in user.errors] == ["of the close handler"]
        assert store.owners() == {"": 1}

    memory.turned(scene())


def test_processor_ends_when_its_consumer_is_closed(memory: Kit) -> None:
    async def scene() -> None:
        hub, store, user = memory.Hub(2), memory.Store(), memory.User()
        running = asyncio.create_task(user.processor(hub, store).run())
        await memory.until(lambda: len(hub.readers) == 2)
        hub.readers["0"].fail(ClientClosed("The reader is closed."))
        await asyncio.wait_for(running, 20)
        assert store.owners() == {"": 2}

    memory.turned(scene())


# --- blocking stores ------------------------------------------------------------------------------


class BlockingStore:
    """The official interface for blocking clients: called in threads."""

    def __init__(self) -> None:
        self.owned: dict[str, dict[str, Any]] = {}
        self.saved: list[dict[str, Any]] = []
        self.threads: set[str] = set()

    def list_ownership(self, namespace: str, hub: str, group: str) -> list[dict[str, Any]]:
        self.threads.add(threading.current_thread().name)
        return [dict(each) for each in self.owned.values()]

    def claim_ownership(self, ownership_list: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        won = []
        for each in ownership_list:
            number = int(self.owned.get(each["partition_id"], {"etag": 0})["etag"])
            record = {**each, "etag": str(number + 1), "last_modified_time": None}
            self.owned[each["partition_id"]] = record
            won.append(record)
        return won

    def update_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.saved.append(checkpoint)

    def list_checkpoints(self, namespace: str, hub: str, group: str) -> list[dict[str, Any]]:
        return list(self.saved)


async def test_blocking_stores_are_called_in_threads(memory: Kit) -> None:
    hub, store, user = memory.Hub(1), BlockingStore(), memory.User()
    done = asyncio.Event()

    async def save(context: PartitionContext, events: list[EventData]) -> None:
        await context.update_checkpoint()
        done.set()

    user.act = save
    hub.send(0, "a")
    async with user.processor(hub, store):
        await asyncio.wait_for(done.wait(), 30)
    assert [each["offset"] for each in store.saved] == ["0"]
    assert store.owned["0"]["owner_id"] == ""
    assert all(name.startswith("penstock-leases") for name in store.threads)
