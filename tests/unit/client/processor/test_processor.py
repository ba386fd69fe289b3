"""Event processors: what they read, from where, and what they do when something fails."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from penstock.client import (
    ClientClosed,
    ClientError,
    ClientNotFound,
    CloseReason,
    EventData,
    EventPosition,
    PartitionContext,
)
from penstock.client.partition_pump import restart_delay_s
from penstock.model.errors import ArgumentError

if TYPE_CHECKING:
    from tests.unit.client.processor.conftest import Kit


# --- reading --------------------------------------------------------------------------------------


def test_processor_reads_every_partition_and_releases_them_when_it_stops(memory: Kit) -> None:
    async def scene() -> None:
        hub, store, user = memory.Hub(3), memory.Store(), memory.User()
        for number in range(3):
            hub.send(number, "a", "b")
        async with user.processor(hub, store) as processor:
            await memory.until(lambda: len(user.bodies) == 3)
            assert sorted(processor.owned_partitions) == ["0", "1", "2"]
            assert store.owners() == {processor.owner_id: 3}
        assert dict(user.bodies) == {each: ["a", "b"] for each in "012"}
        assert sorted(user.initialized) == ["0", "1", "2"]
        assert set(user.closed) == {(each, CloseReason.SHUTDOWN) for each in "012"}
        assert store.owners() == {"": 3}
        assert hub.readers == {}
        assert user.errors == []

    memory.turned(scene())


def test_processor_starts_behind_the_checkpoint(memory: Kit) -> None:
    async def scene() -> None:
        hub, store, first, second = memory.Hub(1), memory.Store(), memory.User(), memory.User()
        first.act = memory.save
        hub.send(0, "a", "b")
        async with first.processor(hub, store):
            await memory.until(lambda: store.saved)
        assert store.saved["0"]["offset"] == "100"
        assert store.saved["0"]["sequence_number"] == 1
        hub.send(0, "c")
        async with second.processor(hub, store):
            await memory.until(lambda: second.bodies)
        assert second.bodies["0"] == ["c"]
        assert hub.opened[-1][2] == "amqp.annotation.x-opt-offset > '100'"

    memory.turned(scene())


def test_checkpoint_of_a_given_event_is_saved(memory: Kit) -> None:
    async def scene() -> None:
        hub, store, user = memory.Hub(1), memory.Store(), memory.User()

        async def save_first(context: PartitionContext, events: list[EventData]) -> None:
            await context.update_checkpoint(events[0])
            with pytest.raises(ArgumentError):
                await context.update_checkpoint(EventData(b"never received"))

        user.act = save_first
        hub.send(0, "a", "b")
        async with user.processor(hub, store):
            await memory.until(lambda: store.saved)
        assert store.saved["0"]["sequence_number"] == 0
        assert user.errors == []

    memory.turned(scene())


def test_processor_without_checkpoint_starts_at_the_end_and_skips_nothing_after_it(
    memory: Kit,
) -> None:
    async def scene() -> None:
        hub, store, user = memory.Hub(2), memory.Store(), memory.User()
        hub.send(0, "old")
        async with user.processor(hub, store, starting_position=None):
            await memory.until(lambda: len(hub.readers) == 2)
            hub.readers["0"].fail(ClientError("the network"))
            hub.readers["1"].fail(ClientError("the network"))
            hub.send(0, "new")  # while nobody reads
            hub.send(1, "first")
            await memory.until(lambda: len(user.bodies) == 2)
        assert dict(user.bodies) == {"0": ["new"], "1": ["first"]}

    memory.turned(scene())


def test_starting_positions_may_differ_by_partition(memory: Kit) -> None:
    async def scene() -> None:
        hub, store, user = memory.Hub(2), memory.Store(), memory.User()
        for number in range(2):
            hub.send(number, "a", "b")
        positions = {"1": EventPosition.from_sequence_number(0)}
        async with user.processor(hub, store, starting_position=positions):
            await memory.until(lambda: user.bodies and len(hub.readers) == 2)
        assert dict(user.bodies) == {"1": ["b"]}

    memory.turned(scene())


def test_slow_handler_stops_the_reading(memory: Kit) -> None:
    async def scene() -> None:
        hub, store, user = memory.Hub(1), memory.Store(), memory.User()
        user.act = memory.for_ever
        hub.send(0, *"abcdef")
        async with user.processor(hub, store, max_batch_size=2):
            await memory.until(lambda: user.bodies)
            await memory.passes(300)
            assert hub.takes == 1
            assert user.bodies["0"] == ["a", "b"]

    memory.turned(scene())


def test_handler_is_called_without_events_when_it_asked_for_that(memory: Kit) -> None:
    async def scene() -> None:
        hub, store, user, batches = memory.Hub(1), memory.Store(), memory.User(), []

        async def note(context: PartitionContext, events: list[EventData]) -> None:
            batches.append(len(events))
            await context.update_checkpoint()  # of nothing: nothing

        user.act = note
        async with user.processor(hub, store, max_wait_time_s=2.0):
            await memory.until(lambda: len(batches) == 3)
        assert batches == [0, 0, 0]
        assert store.saved == {}

    memory.turned(scene())


# --- what fails -----------------------------------------------------------------------------------


def test_handler_that_fails_is_given_everything_behind_the_checkpoint_again(memory: Kit) -> None:
    async def scene() -> None:
        hub, store, user = memory.Hub(1), memory.Store(), memory.User()
        fails = [ValueError("first"), ValueError("second")]

        async def act(context: PartitionContext, events: list[EventData]) -> None:
            if events[0].body == b"a":
                await context.update_checkpoint()
            elif events[0].body == b"c" and fails:
                raise fails.pop(0)

        user.act = act
        hub.send(0, *"abc")
        async with user.processor(hub, store, max_batch_size=1):
            await memory.until(lambda: user.bodies["0"].count("c") == 3)
        assert user.bodies["0"] == [*"abcbcbc"]
        assert [(where, str(error)) for where, error in user.errors] == [
            ("0", "first"),
            ("0", "second"),
        ]
        assert user.closed == [("0", CloseReason.SHUTDOWN)]
        first, second, third = (when for when, _, _ in hub.opened)
        assert 0.3 < second - first < 1 and 0.3 < third - second < 1

    memory.turned(scene())


def test_reader_that_fails_is_opened_again_behind_what_was_handled(memory: Kit) -> None:
    async def scene() -> None:
        hub, store, user = memory.Hub(1), memory.Store(), memory.User()
        hub.send(0, "a")
        async with user.processor(hub, store):
            await memory.until(lambda: user.bodies)
            hub.readers["0"].fail(ClientError("the network"))
            await memory.until(lambda: user.errors)
            hub.send(0, "b")
            await memory.until(lambda: len(user.bodies["0"]) == 2)
        assert user.bodies["0"] == ["a", "b"]
        assert user.initialized == ["0"]

    memory.turned(scene())


def test_pauses_grow_while_nothing_can_be_read(memory: Kit) -> None:
    async def scene() -> None:
        hub, store, user = memory.Hub(1), memory.Store(), memory.User()
        async with user.processor(hub, store):
            await memory.until(lambda: hub.readers)
            hub.error = ClientError("the service is away")
            hub.readers["0"].fail(hub.error)
            await memory.until(lambda: len(hub.opened) == 10)
            hub.error = None
            hub.send(0, "a")
            await memory.until(lambda: user.bodies)
        times = [when for when, _, _ in hub.opened]
        pauses = [after - before for before, after in pairwise(times)]
        assert pauses[0] < 1 < 20 < pauses[-1] < 40
        assert sum(pauses) < 300

    memory.turned(scene())


def test_backoff_is_bounded() -> None:
    assert 0.4 <= restart_delay_s(1) <= 0.6
    assert all(24 <= restart_delay_s(times) <= 36 for times in (7, 20, 1000, 10**9))


def test_error_handler_that_fails_or_hangs_stops_nothing(memory: Kit) -> None:
    async def scene() -> None:
        hub, store, user = memory.Hub(1), memory.Store(), memory.User()

        async def on_error(context: PartitionContext | None, error: Exception) -> None:
            if isinstance(error, OSError):
                await asyncio.Event().wait()
            raise RuntimeError("of the error handler")

        store.error = OSError("no store yet")
        async with user.processor(hub, store, on_error=on_error):
            await memory.passes(30)
            store.error = None
            await memory.until(lambda: hub.readers)
            hub.readers["0"].fail(ClientError("the network"))
            hub.send(0, "a")
            await memory.until(lambda: user.bodies)

    memory.turned(scene())


def test_processor_that_cannot_begin_says_why(memory: Kit) -> None:
    async def scene() -> None:
        hub, store, user = memory.Hub(1), memory.Store(), memory.User()
        hub.error = ClientNotFound("no such hub")
        with pytest.raises(ClientNotFound):
            await user.processor(hub, store).run()
        hub.error = ClientError("not yet")
        processor = user.processor(hub, store)
        async with processor:
            await memory.passes(20)
            hub.error = None
            hub.send(0, "a")
            await memory.until(lambda: user.bodies)
            with pytest.raises(ClientClosed):
                await processor.start()
        assert [str(error) for _, error in user.errors[:2]] == ["not yet"] * 2

    memory.turned(scene())


@pytest.mark.parametrize(
    "wrong",
    [
        {"load_balancing_interval_s": 0},
        {"ownership_expiration_s": 19},
        {"ownership_expiration_s": float("nan")},
        {"strategy": "clever"},
        {"max_batch_size": 0},
    ],
)
def test_arguments_are_checked(memory: Kit, wrong: dict[str, Any]) -> None:
    async def scene() -> None:
        with pytest.raises(ArgumentError):
            memory.User().processor(memory.Hub(1), memory.Store(), **wrong)

    memory.turned(scene())
