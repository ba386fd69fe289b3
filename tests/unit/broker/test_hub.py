"""Where a publication goes, and what refuses it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.log.api import AppendDone
from penstock.log.memory import MemoryPartition
from penstock.model import limits
from penstock.model.errors import (
    ArgumentError,
    ArgumentOutOfRange,
    LogFailed,
    NotFound,
    PenstockError,
    ServerBusy,
)
from penstock.model.events import EventBatch, Receipt
from penstock.model.partitioner import partition_for_key

if TYPE_CHECKING:
    from tests.unit.broker.conftest import World


def last_sequences(world: World) -> list[int]:
    return [world.hub.status(index).last_sequence for index in range(4)]


def test_publication_to_a_partition_goes_there(world: World) -> None:
    (receipt,) = world.publish(b"a", b"b", partition=2)
    assert isinstance(receipt, Receipt)
    assert (receipt.first_sequence, receipt.last_sequence) == (0, 1)
    assert last_sequences(world) == [-1, -1, 1, -1]
    assert world.read(2).bodies() == [b"a", b"b"]


def test_publication_with_a_key_goes_where_the_key_hashes(world: World) -> None:
    for key in ("a", "key1", "日本語", ""):
        home = partition_for_key(key, 4)
        before = last_sequences(world)
        world.publish(b"x", key=key)
        before[home] += 1
        assert last_sequences(world) == before


def test_partition_wins_over_a_key(world: World) -> None:
    other = (partition_for_key("a", 4) + 1) % 4
    world.publish(b"x", partition=other, key="a")
    assert world.read(other).bodies() == [b"x"]


def test_publications_without_key_go_round(world: World) -> None:
    for _ in range(8):
        world.publish(b"x")
    assert last_sequences(world) == [1, 1, 1, 1]


def fail_partition(world: World, index: int) -> MemoryPartition:
    log = world.logs.partition(world.hub.entity.id, index)
    assert isinstance(log, MemoryPartition)
    log.fail(LogFailed("no more"))
    return log


def test_publications_without_key_avoid_a_failed_partition(world: World) -> None:
    fail_partition(world, 1)
    for _ in range(6):
        (outcome,) = world.publish(b"x")
        assert isinstance(outcome, Receipt)
    assert last_sequences(world)[1] == -1
    assert sum(last + 1 for last in last_sequences(world)) == 6
    assert world.hub.counters.successful_requests == 6  # metered once each


def test_failed_partition_is_passed_over_for_a_while_and_then_tried_again(world: World) -> None:
    log = fail_partition(world, 1)
    tries: list[int] = []
    take = log.append

    def append(batch: EventBatch, *, now_ms: int, done: AppendDone) -> None:
        tries.append(1)
        take(batch, now_ms=now_ms, done=done)

    log.append = append  # type: ignore[method-assign]  # counts what reaches the partition
    for _ in range(20):
        world.publish(b"x")
    assert len(tries) == 1
    world.clock.advance(1000)
    for _ in range(20):
        world.publish(b"x")
    assert len(tries) == 2


def test_publication_hears_why_when_every_partition_has_failed(world: World) -> None:
    for index in range(4):
        fail_partition(world, index)
    for _ in range(3):
        (outcome,) = world.publish(b"x")
        assert isinstance(outcome, LogFailed)


def test_publication_to_a_failed_partition_hears_why(world: World) -> None:
    fail_partition(world, 1)
    (outcome,) = world.publish(b"x", partition=1)
    assert isinstance(outcome, LogFailed)


@pytest.mark.parametrize("index", [-1, 4, 2**40])
def test_partition_index_out_of_range_is_refused(world: World, index: int) -> None:
    with pytest.raises(ArgumentOutOfRange, match="between 0 and 3"):
        world.publish(b"x", partition=index)
    with pytest.raises(ArgumentOutOfRange):
        world.hub.status(index)
    with pytest.raises(ArgumentOutOfRange):
        world.read(index)
    with pytest.raises(ArgumentOutOfRange):
        world.produce(partition=index)


@pytest.mark.parametrize(
    "text", ["XYZ", "-1", "1000", "-", "01", "+1", "4", "", " 1", "1 ", "٣", "²", "1_0", "0x1"]
)
def test_partition_id_that_is_none_is_refused_naming_the_range(world: World, text: str) -> None:
    with pytest.raises(ArgumentOutOfRange, match="It should be between 0 and 3"):
        world.hub.partition_index(text)


def test_partition_ids_are_their_own_index(world: World) -> None:
    assert [world.hub.partition_index(text) for text in world.hub.partition_ids] == [0, 1, 2, 3]


def test_group_is_found_under_every_spelling_and_named_as_created(world: World) -> None:
    world.put_group("Audit")
    assert world.hub.group("AUDIT") == "Audit"
    assert world.hub.group("$default") == "$Default"
    with pytest.raises(NotFound) as refusal:
        world.hub.group("nope")
    assert str(refusal.value) == (
        "The messaging entity 'sb://unit-test.example.net/events/ConsumerGroups/nope' could not be "
        "found. To know more visit https://aka.ms/sbResourceMgrExceptions."
    )


def test_partition_key_longer_than_allowed_is_refused(world: World) -> None:
    world.publish(b"x", key="k" * 128)
    with pytest.raises(ArgumentError, match="129 characters: at most 128"):
        world.publish(b"x", key="k" * 129)


@pytest.mark.parametrize("count", [0, -1, 65_537])
def test_batch_of_a_count_beyond_the_limits_is_refused(world: World, count: int) -> None:
    with pytest.raises(ArgumentError, match=r"1 to 65536 are allowed"):
        world.hub.publish(
            EventBatch(b"", count), size_bytes=0, partition=0, done=lambda outcome: None
        )


def test_units_refuse_what_is_beyond_them_and_do_not_store_it(world: World) -> None:
    world.set_units(1)
    for _ in range(250):
        world.publish(b"x", partition=0)
    with pytest.raises(ServerBusy, match="50002"):
        world.publish(b"x", partition=0)
    assert world.hub.status(0).last_sequence == 249
    world.clock.advance(1)
    world.publish(b"x", partition=0)
    assert world.hub.counters.throttled_requests == 1


def test_one_partition_takes_one_unit_of_many(world: World) -> None:
    world.set_units(20)
    for _ in range(250):
        world.publish(b"x", partition=0)
    with pytest.raises(ServerBusy):
        world.publish(b"x", partition=0)
    world.publish(b"x", partition=1)


def test_units_change_while_the_hub_is_at_work(world: World) -> None:
    hub = world.hub
    for _ in range(1000):
        world.publish(b"x", partition=0)
    world.set_units(1)
    assert world.hub is hub
    with pytest.raises(ServerBusy):
        for _ in range(251):
            world.publish(b"x", partition=0)
    world.set_units(None)
    world.publish(b"x", partition=0)


def publish_slowly(world: World, commit_ms: int) -> Receipt | PenstockError:
    outcomes: list[Receipt | PenstockError] = []
    batch = EventBatch(sections=b"\x00\x53\x75\xa0\x01x", count=1)
    world.hub.publish(batch, size_bytes=100, partition=0, done=outcomes.append)
    world.clock.advance(commit_ms)
    world.turn()
    return outcomes[0]


def test_slow_commit_is_logged(world: World, caplog: pytest.LogCaptureFixture) -> None:
    assert isinstance(publish_slowly(world, limits.SLOW_OPERATION_MS - 1), Receipt)
    assert not caplog.messages
    assert isinstance(publish_slowly(world, limits.SLOW_OPERATION_MS), Receipt)
    (message,) = caplog.messages
    assert message.startswith("slow operation: what=commit ms=1000 namespace=")
    assert message.endswith(" events=1 bytes=100")
