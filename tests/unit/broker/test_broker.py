"""Hubs that come, change and go, and what those attached to them hear."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
import pytest

from penstock.broker.broker import PARTITIONS_PER_TURN, Broker
from penstock.broker.hub import HubRuntime
from penstock.log.memory import MemoryLogStore, MemoryPartition
from penstock.model.entities import Hub, HubStatus, Namespace, Tier
from penstock.model.errors import (
    EntityDisabled,
    EntityUpdated,
    LogFailed,
    NotFound,
    OperationCancelled,
    PenstockError,
)
from penstock.model.positions import LATEST

if TYPE_CHECKING:
    from tests.unit.broker.conftest import World

HOUR_MS = 3_600_000


def test_hub_is_the_same_object_under_every_spelling(world: World) -> None:
    assert world.broker.hub("UNIT-test", "EVENTS") is world.broker.hub("unit-test", "events")


def test_unknown_hub_is_refused_in_the_services_words(world: World) -> None:
    with pytest.raises(NotFound) as refusal:
        world.broker.hub("unit-test", "nope")
    assert str(refusal.value) == (
        "The messaging entity 'sb://unit-test.example.net/nope' could not be found. "
        "To know more visit https://aka.ms/sbResourceMgrExceptions."
    )


def test_unknown_namespace_is_refused_by_its_name(world: World) -> None:
    with pytest.raises(NotFound, match="'sb://elsewhere/events' could not be found"):
        world.broker.hub("elsewhere", "events")


def test_hub_created_later_is_found(world: World) -> None:
    world.catalog.put_hub(world.hub_entity("later", "hub1"))
    assert world.broker.hub("unit-test", "later").partition_ids == ("0", "1", "2", "3")


def test_deleted_hub_ends_everybody_attached_and_drops_its_log(world: World) -> None:
    heard: list[PenstockError] = []
    probe = world.read()
    world.hub.open_sender(on_end=heard.append)
    world.produce(on_end=heard.append)
    runtime = world.hub
    outcomes: list[object] = []
    runtime.publish(world.batch(b"x"), size_bytes=1, partition=0, done=outcomes.append)

    world.catalog.delete_hub("unit-test", "events")
    world.turn()

    assert [type(error) for error in heard + probe.ended] == [NotFound] * 3
    assert "The messaging entity 'sb://unit-test.example.net/events'" in str(probe.ended[0])
    assert [type(outcome) for outcome in outcomes] == [OperationCancelled]
    with pytest.raises(NotFound):
        runtime.publish(world.batch(b"x"), size_bytes=1, partition=0, done=outcomes.append)
    with pytest.raises(NotFound):
        runtime.open_sender(on_end=heard.append)
    with pytest.raises(NotFound):
        runtime.group("$Default")
    with pytest.raises(NotFound):
        world.broker.hub("unit-test", "events")


def test_hub_made_again_starts_empty_with_a_runtime_of_its_own(world: World) -> None:
    world.publish(b"old", partition=0)
    old = world.hub
    world.catalog.delete_hub("unit-test", "events")
    world.catalog.put_hub(world.hub_entity("events", "hub1"))
    assert world.hub is not old
    assert world.hub.status(0).last_sequence == -1


def test_log_of_a_deleted_hub_is_dropped_even_if_nobody_used_the_hub(world: World) -> None:
    partition = world.logs.partition("hub0", 0)
    world.catalog.delete_hub("unit-test", "events")
    assert world.logs.partition("hub0", 0) is not partition


def test_deleted_namespace_ends_its_hubs(world: World) -> None:
    probe = world.read()
    world.catalog.delete_namespace("unit-test")
    assert [type(error) for error in probe.ended] == [NotFound]


@pytest.mark.parametrize(
    ("status", "sender_hears", "reader_hears"),
    [
        (HubStatus.DISABLED, EntityDisabled, EntityDisabled),
        (HubStatus.SEND_DISABLED, EntityDisabled, EntityUpdated),
        (HubStatus.RECEIVE_DISABLED, EntityUpdated, EntityDisabled),
    ],
)
def test_change_of_status_ends_links_with_the_reason_that_applies(
    world: World,
    status: HubStatus,
    sender_hears: type[PenstockError],
    reader_hears: type[PenstockError],
) -> None:
    heard: list[PenstockError] = []
    world.hub.open_sender(on_end=heard.append)
    link = world.produce(on_end=heard.append)
    probe = world.read()
    world.set_status(status)
    assert [type(error) for error in heard] == [sender_hears] * 2
    assert [type(error) for error in probe.ended] == [reader_hears]
    with pytest.raises(sender_hears):
        link.publish(world.batch(b"x"), 1, lambda outcome: None)


@pytest.mark.parametrize("status", list(HubStatus))
def test_disabled_hub_refuses_what_its_status_says(world: World, status: HubStatus) -> None:
    world.set_status(status)
    if status in (HubStatus.DISABLED, HubStatus.SEND_DISABLED):
        with pytest.raises(EntityDisabled, match=f"its status is '{status.value}'"):
            world.publish(b"x")
        with pytest.raises(EntityDisabled):
            world.produce()
        with pytest.raises(EntityDisabled):
            world.hub.open_sender(on_end=lambda error: None)
    else:
        assert len(world.publish(b"x")) == 1
        world.produce()
    if status in (HubStatus.DISABLED, HubStatus.RECEIVE_DISABLED):
        with pytest.raises(EntityDisabled, match=f"its status is '{status.value}'"):
            world.read()
    else:
        world.read()


def test_hub_enabled_again_takes_events_again(world: World) -> None:
    runtime = world.hub
    world.set_status(HubStatus.DISABLED)
    world.set_status(HubStatus.ACTIVE)
    assert world.hub is runtime
    assert len(world.publish(b"x")) == 1


def test_change_of_retention_or_metadata_disturbs_nobody(world: World) -> None:
    probe = world.read()
    entity = msgspec.structs.replace(world.hub.entity, retention_hours=7, user_metadata="m")
    world.catalog.put_hub(entity)
    assert probe.ended == []
    assert world.hub.entity.retention_hours == 7


def test_another_partition_count_ends_everybody_and_the_runtime(world: World) -> None:
    heard: list[PenstockError] = []
    runtime = world.hub
    runtime.open_sender(on_end=heard.append)
    probe = world.read()
    runtime.update_entity(
        runtime.namespace, msgspec.structs.replace(runtime.entity, partition_count=8)
    )
    assert [type(error) for error in heard + probe.ended] == [EntityUpdated] * 2
    with pytest.raises(EntityUpdated):
        runtime.publish(world.batch(b"x"), size_bytes=1, partition=0, done=lambda outcome: None)


def test_deleted_group_ends_its_readers_only(world: World) -> None:
    world.put_group("spare")
    spare, default = world.read(group="SPARE"), world.read()
    world.catalog.delete_group("unit-test", "events", "spare")
    assert [type(error) for error in spare.ended] == [NotFound]
    assert "'sb://unit-test.example.net/events/ConsumerGroups/spare'" in str(spare.ended[0])
    assert default.ended == []
    with pytest.raises(NotFound):
        world.read(group="spare")


def test_link_that_is_told_may_ask_for_the_hub_again(world: World) -> None:
    """A door may answer EntityUpdated by attaching anew at once."""
    again: list[object] = []
    world.hub.open_sender(on_end=lambda error: again.append(world.hub))
    world.set_status(HubStatus.RECEIVE_DISABLED)
    assert again == [world.hub]


def test_closed_links_hear_nothing(world: World) -> None:
    heard: list[PenstockError] = []
    sender = world.hub.open_sender(on_end=heard.append)
    producer = world.produce(on_end=heard.append)
    probe = world.read()
    for link in (sender, producer, probe.reader):
        link.close()
        link.close()
    world.catalog.delete_hub("unit-test", "events")
    assert heard + probe.ended == []


def test_broker_that_is_closed_follows_the_catalog_no_more(world: World) -> None:
    probe = world.read()
    world.broker.close()
    world.catalog.delete_hub("unit-test", "events")
    assert probe.ended == []


def test_enforce_retention_drops_what_is_older_than_each_hubs_own(world: World) -> None:
    world.publish(b"old", partition=0)
    world.clock.advance(24 * HOUR_MS + 1)
    world.publish(b"new", partition=0)
    assert world.broker.enforce_retention() > 0
    assert world.read().bodies() == [b"new"]
    assert world.broker.enforce_retention() == 0


def test_failed_partitions_are_named_with_the_reason(world: World) -> None:
    assert world.hub.failed_partitions() == []
    log = world.logs.partition(world.hub.entity.id, 2)
    assert isinstance(log, MemoryPartition)
    log.fail(LogFailed("the disk is gone"))
    assert world.hub.failed_partitions() == [(2, "the disk is gone")]


def test_readers_are_listed_with_their_lag(world: World) -> None:
    world.publish(b"a", b"b", b"c", partition=1)
    reader = world.read(1, epoch=4, name="me")
    reader.take(1)
    world.read(0, LATEST)
    views = {view.partition: view for view in world.readers()}
    assert (views[1].group, views[1].name, views[1].epoch) == ("$Default", "me", 4)
    assert (views[1].sequence, views[1].lag_events) == (1, 2)
    assert (views[0].epoch, views[0].lag_events) == (None, 0)
    reader.reader.close()
    assert [view.partition for view in world.readers()] == [0]


def test_dedicated_namespace_has_no_meter(world: World) -> None:
    namespace = msgspec.structs.replace(
        world.hub.namespace, throughput_units=1, tier=Tier.DEDICATED
    )
    world.catalog.put_namespace(namespace)
    for _ in range(1000):
        world.publish(b"a", b"b", partition=0)
    assert world.hub.counters.throttled_requests == 0


def test_change_of_one_hub_touches_no_other(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each report of Capture's progress visited every open hub before."""
    for number in range(20):
        world.catalog.put_hub(world.hub_entity(f"hub-{number}", f"id{number}"))
        world.broker.hub("unit-test", f"hub-{number}")
    touched: list[str] = []
    changed = HubRuntime.update_entity

    def note(runtime: HubRuntime, namespace: Namespace, entity: Hub) -> None:
        touched.append(entity.name)
        changed(runtime, namespace, entity)

    monkeypatch.setattr(HubRuntime, "update_entity", note)
    hub = world.hub_entity("hub-7", "id7")
    world.catalog.put_hub(msgspec.structs.replace(hub, metadata={"captureRuns": []}))
    assert touched == ["hub-7"]
    assert world.broker.hub("unit-test", "hub-7").entity.metadata == {"captureRuns": []}


def test_deletion_of_a_namespace_visits_a_bounded_number_of_partitions_per_turn(
    world: World,
) -> None:
    turns: list[Callable[[], None]] = []
    dropped: list[str] = []

    class Logs(MemoryLogStore):
        def drop(self, hub_id: str) -> None:
            dropped.append(hub_id)
            super().drop(hub_id)

    for number in range(200):
        world.catalog.put_hub(world.hub_entity(f"hub-{number}", f"id{number}"))
    count = len(world.catalog.hubs("unit-test"))
    broker = Broker(
        world.catalog,
        Logs(lambda work: None),
        world.clock,
        producer_ids=lambda: 1,
        later=lambda delay_ms, work: turns.append(work),
    )
    hubs = [broker.hub("unit-test", f"hub-{number}") for number in range(100)]  # others not open
    world.catalog.delete_namespace("unit-test")
    with pytest.raises(NotFound):
        broker.hub("unit-test", "hub-199")
    assert 0 < len(dropped) <= PARTITIONS_PER_TURN
    while turns:
        before = len(dropped)
        turns.pop(0)()
        assert 0 < len(dropped) - before <= PARTITIONS_PER_TURN
        was_open = {hub.entity.id for hub in hubs}.intersection(dropped[before:])
        assert len(was_open) * 4 <= PARTITIONS_PER_TURN
    assert len(dropped) == len(set(dropped)) == count
    assert broker.hubs() == []
    for hub in hubs:
        with pytest.raises(NotFound):
            hub.publish(world.batch(b"a"), size_bytes=10, partition=0, done=lambda outcome: None)


def test_change_of_a_namespace_visits_a_bounded_number_of_partitions_per_turn(
    world: World,
) -> None:
    """Auto-inflate changes the namespace under load."""
    turns: list[Callable[[], None]] = []
    broker = Broker(
        world.catalog,
        MemoryLogStore(lambda work: None),
        world.clock,
        producer_ids=lambda: 1,
        later=lambda delay_ms, work: turns.append(work),
    )
    hubs = []
    for number in range(200):
        world.catalog.put_hub(world.hub_entity(f"hub-{number}", f"id{number}"))
        hubs.append(broker.hub("unit-test", f"hub-{number}"))
    namespace = world.catalog.namespace("unit-test")
    assert namespace is not None
    world.catalog.put_namespace(msgspec.structs.replace(namespace, throughput_units=3))
    updated = [hub for hub in hubs if hub.namespace.throughput_units == 3]
    assert 0 < len(updated) * 4 <= PARTITIONS_PER_TURN
    last = broker.hub("unit-test", "hub-199")  # it is asked for: now, and not in its turn
    assert last.namespace.throughput_units == 3
    count = 0
    while turns:
        before = sum(hub.namespace.throughput_units == 3 for hub in hubs)
        turns.pop(0)()
        after = sum(hub.namespace.throughput_units == 3 for hub in hubs)
        assert 0 < (after - before) * 4 <= PARTITIONS_PER_TURN
        count += 1
    assert count >= 200 * 4 // PARTITIONS_PER_TURN
    assert all(hub.namespace.throughput_units == 3 for hub in hubs)
