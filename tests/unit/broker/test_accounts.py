"""A namespace's account at work: units shared by its hubs, egress paced, usage counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
import pytest

from penstock.broker.accounts import Account
from penstock.broker.broker import Broker
from penstock.broker.reader import ReadState
from penstock.model.entities import Tier
from penstock.model.errors import LogFailed, ServerBusy
from penstock.model.events import ProducerStamp
from penstock.model.limits import KB, MB
from penstock.model.positions import EARLIEST
from penstock.model.usage import HOUR_MS, Usage

if TYPE_CHECKING:
    from tests.unit.broker.conftest import Probe, World

NAMESPACE = "unit-test"


def usage(world: World) -> Usage:
    account = world.broker.accounts.find(NAMESPACE)
    assert account is not None
    return account.meter.counts()[-1]


def paced(world: World) -> list[tuple[int, Callable[[], None]]]:
    """A broker that slows readers down; the timers that it sets."""
    timers: list[tuple[int, Callable[[], None]]] = []
    world.broker.close()
    world.broker = Broker(
        world.catalog,
        world.logs,
        world.clock,
        producer_ids=world.producer_ids.__next__,
        later=lambda delay_ms, work: timers.append((delay_ms, work)),
    )
    return timers


def with_namespace(world: World, **changes: object) -> None:
    namespace = world.catalog.namespace(NAMESPACE)
    assert namespace is not None
    world.catalog.put_namespace(msgspec.structs.replace(namespace, **changes))


def test_acknowledged_publications_are_metered(world: World) -> None:
    world.publish(b"a", b"b" * 100)
    world.publish(b"c", partition=1)
    counted = usage(world)
    assert (counted.ingress_messages, counted.ingress_events) == (3, 3)
    assert counted.ingress_bytes == 6 + 105 + 6


def test_large_event_is_metered_in_steps(world: World) -> None:
    world.publish(b"x" * (130 * KB))
    assert (usage(world).ingress_messages, usage(world).ingress_events) == (1, 3)


def test_publication_is_metered_when_it_is_acknowledged_and_not_before(world: World) -> None:
    batch = world.batch(b"a")
    world.hub.publish(batch, size_bytes=6, partition=0, done=lambda outcome: None)
    assert usage(world).ingress_messages == 0
    world.clock.advance(HOUR_MS)
    world.turn()
    assert usage(world).ingress_messages == 1
    assert usage(world).hour_ms == world.clock.now_ms() // HOUR_MS * HOUR_MS


def test_refused_publication_is_not_metered(world: World) -> None:
    world.set_units(1)
    world.publish(*[b"a"] * 250)
    with pytest.raises(ServerBusy):
        world.publish(b"b")
    assert usage(world).ingress_messages == 250


def test_publication_that_the_disk_refused_is_not_metered(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = world.hub._partitions[0].log

    def append(batch: object, *, now_ms: int, done: Callable[[object], None]) -> None:
        done(LogFailed("gone"))

    monkeypatch.setattr(log, "append", append)
    world.hub.publish(world.batch(b"a"), size_bytes=6, partition=0, done=lambda outcome: None)
    assert usage(world).ingress_messages == 0


def test_duplicate_of_an_idempotent_producer_is_metered_once(world: World) -> None:
    link = world.produce()
    stamped = world.batch(b"a", producer=ProducerStamp(link.id, link.epoch, 1, 1))
    for _ in range(3):
        link.publish(stamped, size_bytes=6, done=lambda outcome: None)
        world.turn()
    assert usage(world).ingress_messages == 1


def test_delivered_events_are_metered_by_their_stored_bytes(world: World) -> None:
    world.publish(b"a" * 95, b"b" * 45, partition=0)
    reader = world.read()
    assert len(reader.take()) == 2
    assert usage(world).egress_bytes == 150


def test_reads_for_capture_are_neither_counted_nor_slowed(world: World, probe: Probe) -> None:
    timers = paced(world)
    with_namespace(world, throughput_units=1)
    with_namespace(world, throughput_units=None)
    for _ in range(8):
        world.publish(b"x" * (250 * KB), partition=0)
    with_namespace(world, throughput_units=1)
    probe.reader = world.hub.open_reader(
        group="$Default",
        partition=0,
        position=EARLIEST,
        epoch=None,
        name=None,
        on_end=probe.on_end,
        on_ready=probe.on_ready,
        is_metered=False,
    )
    assert probe.reader.allowance(7 * MB) == 7 * MB
    assert len(probe.take()) == 8
    assert usage(world).egress_bytes == 0
    assert timers == []


def test_reader_beyond_the_units_waits_and_is_woken(world: World) -> None:
    timers = paced(world)
    for _ in range(8):
        world.publish(b"x" * (250 * KB), partition=0)
    world.set_units(1)
    probe = world.read()
    sent = 0
    while True:
        if probe.reader.state() is ReadState.NEEDS_DISK:
            probe.reader.accept_fetch(probe.reader.fetch())
        if probe.reader.allowance(256 * KB) == 0:
            break
        sent += len(probe.take(1))
    assert sent == 3  # a quarter of a second is half a megabyte; the last one goes beyond
    assert probe.ended == []
    (delay_ms, due) = timers.pop()
    assert probe.woken == 0
    world.clock.advance(delay_ms)
    due()
    assert probe.woken == 1
    assert probe.reader.allowance(256 * KB) > 0


def test_reader_that_closes_while_it_waits_is_not_woken(world: World) -> None:
    timers = paced(world)
    world.publish(b"x" * (250 * KB), b"y" * (250 * KB), b"z" * (250 * KB), partition=0)
    world.set_units(1)
    probe = world.read()
    while probe.reader.allowance(256 * KB):
        probe.take(1)
    probe.reader.close()
    probe.reader.resume()
    world.clock.advance(10_000)
    timers.pop()[1]()
    assert probe.woken == 0


def test_hubs_of_a_namespace_share_its_units_and_its_meter(world: World) -> None:
    world.catalog.put_hub(world.hub_entity("other", "hub1"))
    world.set_units(1)
    world.publish(*[b"a"] * 250, partition=0)
    batch = world.batch(b"b")
    with pytest.raises(ServerBusy):
        world.broker.hub(NAMESPACE, "other").publish(
            batch, size_bytes=6, partition=0, done=lambda outcome: None
        )
    assert usage(world).ingress_messages == 250


def test_units_changed_in_the_catalog_hold_at_once_and_are_metered(world: World) -> None:
    world.set_units(1)
    world.publish(*[b"a"] * 250, partition=0)
    with pytest.raises(ServerBusy):
        world.publish(b"b", partition=1)
    world.set_units(4)
    world.clock.advance(1)
    world.publish(b"b", partition=1)
    world.set_units(2)
    assert usage(world).units == 4


def test_dedicated_namespace_has_no_units_at_all(world: World) -> None:
    with_namespace(world, tier=Tier.DEDICATED, throughput_units=1)
    world.clock.advance(HOUR_MS)
    world.publish(*[b"a"] * 5000)
    assert (usage(world).units, usage(world).ingress_messages) == (0, 5000)


def test_two_links_share_the_units_of_a_partition_alike(world: World) -> None:
    world.set_units(1)
    links = [world.hub.open_sender(on_end=lambda error: None) for _ in range(2)]
    sent = dict.fromkeys(links, 0)
    batch = world.batch(*[b"a"] * 10)
    for _ in range(5_000):
        for link in links:
            for _ in range(3):
                try:
                    world.hub.publish(
                        batch, size_bytes=60, partition=0, done=lambda _: None, sender=link
                    )
                except ServerBusy:
                    break
                sent[link] += 1
        world.clock.advance(1)
        world.turn()
    assert sum(sent.values()) == pytest.approx(525, rel=0.02)
    assert sent[links[0]] == pytest.approx(sent[links[1]], rel=0.10)


def test_link_that_closes_leaves_what_it_saved(world: World) -> None:
    world.set_units(1)
    stays, goes = (world.hub.open_sender(on_end=lambda error: None) for _ in range(2))

    def publish(link: object, events: int) -> None:
        batch = world.batch(*[b"a"] * events)
        world.hub.publish(batch, size_bytes=6, partition=0, done=lambda _: None, sender=link)

    publish(stays, 250)
    with pytest.raises(ServerBusy):
        publish(goes, 100)
    world.clock.advance(100)
    with pytest.raises(ServerBusy):
        publish(stays, 50)
    goes.close()
    publish(stays, 50)


# --- auto-inflate asks --------------------------------------------------------------------------


@pytest.fixture
def asked(world: World) -> list[Account]:
    found: list[Account] = []
    world.broker.accounts.on_short = found.append
    return found


def test_namespace_asks_for_more_units_once_until_it_is_answered(
    world: World, asked: list[Account]
) -> None:
    with_namespace(world, throughput_units=1, maximum_throughput_units=3)
    world.publish(*[b"a"] * 250, partition=0)
    for _ in range(5):
        with pytest.raises(ServerBusy):
            world.publish(b"b", partition=1)
    assert [account.namespace for account in asked] == [NAMESPACE]
    asked[0].end_request()
    with pytest.raises(ServerBusy):
        world.publish(b"b", partition=1)
    assert len(asked) == 2


def test_partition_that_is_full_asks_for_nothing(world: World, asked: list[Account]) -> None:
    """More units would not help it: one unit's worth is all that a partition takes."""
    with_namespace(world, throughput_units=4, maximum_throughput_units=8)
    world.publish(*[b"a"] * 250, partition=0)
    with pytest.raises(ServerBusy):
        world.publish(b"b", partition=0)
    assert asked == []


@pytest.mark.parametrize("most", [None, 1])
def test_namespace_without_room_to_inflate_asks_for_nothing(
    world: World, asked: list[Account], most: int | None
) -> None:
    with_namespace(world, throughput_units=1, maximum_throughput_units=most)
    world.publish(*[b"a"] * 250, partition=0)
    with pytest.raises(ServerBusy):
        world.publish(b"b", partition=1)
    assert asked == []


def test_reader_that_must_wait_asks_for_more_units(world: World) -> None:
    paced(world)
    asked: list[Account] = []
    world.broker.accounts.on_short = asked.append
    world.publish(*[b"x" * (250 * KB)] * 3, partition=0)
    with_namespace(world, throughput_units=1, maximum_throughput_units=3)
    probe = world.read()
    while probe.reader.allowance(256 * KB):
        probe.take(1)
    assert [account.namespace for account in asked] == [NAMESPACE]


# --- the ledger's side --------------------------------------------------------------------------


def test_deleted_namespace_is_counted_until_it_is_written(world: World) -> None:
    world.publish(b"a")
    accounts = world.broker.accounts
    world.catalog.delete_namespace(NAMESPACE)
    assert accounts.find(NAMESPACE) is None
    counts = accounts.counts()
    assert [usages[-1].ingress_messages for _, usages in counts] == [1]
    accounts.retain_unwritten(counts)
    assert accounts.counts() == counts
    accounts.confirm_written(counts)
    assert accounts.counts() == []


def test_namespace_made_again_is_counted_anew(world: World) -> None:
    namespace = world.catalog.namespace(NAMESPACE)
    assert namespace is not None
    world.publish(b"a")
    world.catalog.delete_namespace(NAMESPACE)
    world.catalog.put_namespace(namespace)
    world.catalog.put_hub(world.hub_entity("events", "hub9"))
    world.publish(b"b", b"c")
    counts = [usages for _, usages in world.broker.accounts.counts()]
    assert sorted(usages[-1].ingress_messages for usages in counts) == [1, 2]
    assert len({usages[-1].run for usages in counts}) == 2


def test_new_hour_begins_for_every_namespace(world: World) -> None:
    accounts = world.broker.accounts
    accounts.confirm_written(accounts.counts())
    assert accounts.counts() == []
    accounts.pass_to(world.clock.now_ms() + HOUR_MS)
    ((_, usages),) = accounts.counts()
    assert len(usages) == 2


def test_somebody_hears_that_there_is_something_to_write(world: World) -> None:
    told: list[int] = []
    accounts = world.broker.accounts
    accounts.on_change = lambda: told.append(1)
    accounts.confirm_written(accounts.counts())
    world.publish(b"a")
    world.publish(b"b")
    assert told == [1]
