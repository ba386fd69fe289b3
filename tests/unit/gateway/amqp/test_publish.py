"""Links on which a client publishes: what is stored, what is refused, what is said of it when."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penstock.amqp.frames import encode_frame
from penstock.amqp.link import Link, LinkRole
from penstock.amqp.performatives import (
    Accepted,
    Detach,
    Disposition,
    Flow,
    Rejected,
    Transfer,
    encode_performative,
)
from penstock.amqp.types import Int, Long, Short, Symbol
from penstock.gateway.amqp.publish_link import PublishLink
from penstock.gateway.amqp.turn_queue import ITEMS_PER_TURN
from penstock.model import limits
from penstock.model.entities import HubStatus
from penstock.model.errors import LogFailed

if TYPE_CHECKING:
    from tests.unit.gateway.amqp.conftest import Peer, World

BATCH = 0x80013700
IDEMPOTENT = ["com.microsoft:idempotent-producer"]


def told(peer: Peer, since: int = 0) -> list[tuple[int, int, str]]:
    """(first, last, outcome) of what a publisher heard; each is settled, by the receiver (E11)."""
    heard = []
    for one in peer.outcomes()[since:]:
        assert one.settled
        assert one.role
        if isinstance(one.state, Rejected):
            assert one.state.error is not None
            outcome = one.state.error.condition
        else:
            assert isinstance(one.state, Accepted)
            outcome = "accepted"
        heard.append((one.first, one.first if one.last is None else one.last, outcome))
    return heard


def rejection(peer: Peer) -> str:
    """The text of the last one."""
    errors = [o.state.error for o in peer.outcomes() if isinstance(o.state, Rejected)]
    assert errors[-1] is not None
    return str(errors[-1].description)


@pytest.fixture
def link(peer: Peer) -> Link:
    """A sender to partition 0; delivery 0 was the token."""
    return peer.sender("eh1/Partitions/0")


# --- what is stored -----------------------------------------------------------------------------


def test_singles_of_one_read_are_acknowledged_as_one_range(
    world: World, peer: Peer, link: Link
) -> None:
    peer.publish(link, *[world.event(b"%d" % n) for n in range(5)])
    assert told(peer, 1) == [(1, 5, "accepted")]
    assert world.stored(0) == [b"0", b"1", b"2", b"3", b"4"]


def test_batch_is_stored_whole_and_in_order(world: World, peer: Peer, link: Link) -> None:
    payload = world.batch(*[world.event(b"%d" % n) for n in range(3)])
    peer.publish(link, payload, message_format=BATCH)
    assert told(peer, 1) == [(1, 1, "accepted")]
    assert world.stored(0) == [b"0", b"1", b"2"]


def test_nothing_is_acknowledged_before_it_is_on_disk(world: World, peer: Peer, link: Link) -> None:
    link.send(world.event(), settled=False)
    peer.connection.data_received(peer.engine.bytes_to_send(now_ms=0))
    assert not peer.socket.sent
    assert world.stored(0) == []
    peer.run()
    assert told(peer, 1) == [(1, 1, "accepted")]


def test_settled_deliveries_are_stored_without_a_word(world: World, peer: Peer, link: Link) -> None:
    before = len(peer.heard)
    peer.publish(link, world.event(b"a"), world.event(b"b"), settled=True)
    assert world.stored(0) == [b"a", b"b"]
    assert peer.said(Disposition, since=before) == []


def test_settled_deliveries_that_are_refused_are_dropped_without_a_word(
    world: World, peer: Peer, link: Link
) -> None:
    before = len(peer.heard)
    peer.publish(link, b"no message", world.event(b"x" * 300_000), settled=True)
    peer.publish(link, world.event(), settled=True, message_format=7)
    assert world.stored(0) == []
    assert peer.said(Disposition, since=before) == []
    assert link.is_attached


def test_dispositions_of_several_partitions_are_merged_into_one_range(
    world: World, peer: Peer
) -> None:
    """Neighbours that go to different partitions are separate publications; one answer does."""
    link = peer.sender("eh1")
    keys = [f"key-{n}" for n in range(16)]
    peer.publish(link, *[world.event(b"x", key=key) for key in keys])
    assert len(world.stored(0)) > 0
    assert len(world.stored(1)) > 0
    assert len(world.stored(0)) + len(world.stored(1)) == 16
    assert told(peer, 1) == [(1, 16, "accepted")]


def test_hub_link_uses_all_partitions_in_turn(world: World, peer: Peer) -> None:
    link = peer.sender("eh1")
    for _ in range(4):
        peer.publish(link, world.event())
    assert (len(world.stored(0)), len(world.stored(1))) == (2, 2)


def test_partition_link_keeps_a_key_that_does_not_route(
    world: World, peer: Peer, link: Link
) -> None:
    peer.publish(link, *[world.event(b"x", key=f"key-{n}") for n in range(8)])
    assert len(world.stored(0)) == 8
    reader = peer.receiver(0, credit=1)
    assert b"x-opt-partition-key\xa1\x05key-0" in peer.received(reader)[0]


def test_publisher_link_takes_its_name_for_the_key(world: World, peer: Peer) -> None:
    link = peer.sender("eh1/Publishers/device-1")
    for _ in range(4):
        peer.publish(link, world.event())
    homes = [partition for partition in (0, 1) if world.stored(partition)]
    assert len(homes) == 1
    reader = peer.receiver(homes[0], credit=1)
    (payload,) = peer.received(reader)
    assert b"x-opt-partition-key\xa1\x08device-1" in payload
    assert b"x-opt-publisher\xa1\x08device-1" in payload


# --- what is refused ----------------------------------------------------------------------------


def test_refusals_among_good_ones_are_told_in_their_place(
    world: World, peer: Peer, link: Link
) -> None:
    good, bad = world.event(), b"\x00\x53\x75\xff"
    peer.publish(link, good, good, bad, bad, good, bad)
    outcomes = told(peer, 1)
    accepted = [each for each in outcomes if each[2] == "accepted"]
    rejected = [each for each in outcomes if each[2] != "accepted"]
    assert accepted == [(1, 2, "accepted"), (5, 5, "accepted")]
    assert [each[:2] for each in rejected] in ([(3, 4), (6, 6)], [(3, 3), (4, 4), (6, 6)])
    assert {each[2] for each in rejected} == {"amqp:decode-error"}
    assert len(world.stored(0)) == 3


def test_neighbours_refused_for_one_reason_share_a_disposition(
    world: World, peer: Peer, link: Link
) -> None:
    payload = world.batch(world.event())
    world.logs.partition("id-of-eh1", 0).fail(LogFailed("The disk is gone."))
    peer.publish(link, *[payload] * 100, message_format=BATCH)
    assert told(peer, 1) == [(1, 100, "amqp:internal-error")]


def test_publication_above_the_limit_is_rejected_and_the_link_lives(
    world: World, peer: Peer, link: Link
) -> None:
    payload = world.event(b"x" * limits.PUBLICATION_BYTES_STANDARD)
    peer.publish(link, payload)
    assert told(peer, 1) == [(1, 1, "amqp:link:message-size-exceeded")]
    assert rejection(peer).startswith(
        f"The received message (delivery-id:1, size:{len(payload)} bytes) exceeds the limit "
        f"({limits.PUBLICATION_BYTES_STANDARD} bytes) currently allowed on the link. TrackingId:"
    )
    peer.publish(link, world.event(b"next"))
    assert world.stored(0) == [b"next"]


def test_smaller_limit_of_the_client_holds_for_each_delivery(world: World, peer: Peer) -> None:
    link = peer.sender("eh1/Partitions/0", max_message_size=50)
    small, large = world.event(b"s"), world.event(b"l" * 50)
    peer.publish(link, small, large, small, large)
    outcomes = told(peer, 1)
    assert [each for each in outcomes if each[2] != "accepted"] == [
        (2, 2, "amqp:link:message-size-exceeded"),
        (4, 4, "amqp:link:message-size-exceeded"),
    ]
    assert world.stored(0) == [b"s", b"s"]
    assert "exceeds the limit (50 bytes)" in rejection(peer)


def test_delivery_of_many_frames_up_to_the_limit_is_stored(
    world: World, peer: Peer, link: Link
) -> None:
    body = b"x" * (limits.PUBLICATION_BYTES_STANDARD - 100)
    peer.publish(link, world.event(body))
    assert told(peer, 1) == [(1, 1, "accepted")]
    assert world.stored(0) == [body]


def test_unknown_message_format_is_rejected(world: World, peer: Peer, link: Link) -> None:
    peer.publish(link, world.event(), world.event(), message_format=0x80013701)
    assert told(peer, 1) == [(1, 2, "amqp:not-implemented")]
    assert "0x80013701" in rejection(peer)


@pytest.mark.parametrize("payload", [b"", b"\x00\x53\x75\xa0\x01x"])
def test_batch_without_a_whole_event_is_rejected(peer: Peer, link: Link, payload: bytes) -> None:
    peer.publish(link, payload, message_format=BATCH)
    assert told(peer, 1) == [(1, 1, "amqp:decode-error")]


def test_one_bad_event_keeps_the_whole_batch_out(world: World, peer: Peer, link: Link) -> None:
    payload = world.batch(world.event(), b"\xff\xff", world.event())
    peer.publish(link, payload, message_format=BATCH)
    assert told(peer, 1) == [(1, 1, "amqp:decode-error")]
    assert world.stored(0) == []


@pytest.mark.parametrize("is_batch", [False, True])
def test_properties_field_of_a_wrong_type_is_rejected_by_name(
    world: World, peer: Peer, link: Link, is_batch: bool
) -> None:
    """go-amqp and proton-j stop reading at such an event."""
    event = b"\x00\x53\x73\xc0\x05\x02\x40\xa1\x01u" + world.event()
    payload = world.batch(event) if is_batch else event
    peer.publish(link, payload, message_format=BATCH if is_batch else 0)
    assert told(peer, 1) == [(1, 1, "amqp:decode-error")]
    assert "the field user-id of properties" in rejection(peer)
    assert "is of type string (0xa1): binary or null is allowed" in rejection(peer)
    assert world.stored(0) == []


def test_nested_bomb_is_rejected_and_not_stored(world: World, peer: Peer, link: Link) -> None:
    """What would stop every reader is refused (docs/explanation/security.md)."""
    bomb = b"\x00\x53\x77" + b"\xc0\xff\x01" * 5000
    peer.publish(link, bomb)
    assert told(peer, 1) == [(1, 1, "amqp:decode-error")]
    assert world.stored(0) == []


def test_key_other_than_the_publisher_is_not_allowed(world: World, peer: Peer) -> None:
    link = peer.sender("eh1/Publishers/device-1")
    peer.publish(link, world.event(b"x", key="device-2"))
    assert told(peer, 1) == [(1, 1, "amqp:not-allowed")]
    peer.publish(link, world.event(b"x", key="device-1"))
    assert told(peer, 2) == [(2, 2, "accepted")]


def test_throttled_publication_is_rejected_at_once_in_the_services_words(world: World) -> None:
    world.put_namespace(throughput_units=1)
    peer = world.peer().authorised()
    link = peer.sender("eh1/Partitions/0")
    payload = world.batch(*[world.event()] * 600)
    peer.publish(link, payload, message_format=BATCH)
    peer.publish(link, payload, message_format=BATCH)
    assert told(peer, 1) == [(1, 1, "accepted"), (2, 2, "com.microsoft:server-busy")]
    text, _, tracker = rejection(peer).partition(" TrackingId:")
    assert text == (
        "The request was terminated because the entity is being throttled. Error code : 50002. "
        "Please wait 4 seconds and try again."
    )
    assert "SystemTracker:contoso:eventhub:eh1~16383," in tracker


# --- the link's life ----------------------------------------------------------------------------


def test_credit_is_topped_up_at_half(world: World, peer: Peer, link: Link) -> None:
    half = limits.SENDER_CREDIT // 2
    before = len(peer.heard)
    peer.publish(link, *[world.event()] * (half - 1))
    assert peer.said(Flow, since=before) == []
    peer.publish(link, world.event())
    flows = [flow for flow in peer.said(Flow, since=before) if flow.handle is not None]
    assert [flow.link_credit for flow in flows] == [limits.SENDER_CREDIT]
    assert link.credit == limits.SENDER_CREDIT


def test_transfers_without_credit_are_taken(world: World, peer: Peer, link: Link) -> None:
    """PY counts with a credit of its own (E19)."""
    for n in range(1, limits.SENDER_CREDIT + 11):
        transfer = Transfer(handle=link.handle, delivery_id=n, delivery_tag=b"t", message_format=0)
        peer.say(encode_frame(0, encode_performative(transfer), world.event(b"%d" % n)))
    assert len(world.stored(0)) == limits.SENDER_CREDIT + 10
    assert [each.last for each in peer.said(Disposition)][-1] == limits.SENDER_CREDIT + 10


def test_hub_that_is_disabled_ends_its_senders(world: World, peer: Peer, link: Link) -> None:
    world.change_hub(status=HubStatus.SEND_DISABLED)
    peer.run()
    error = peer.detach_error(link)
    assert error is not None
    assert error.condition == "com.microsoft:entity-disabled"


def test_hub_that_is_deleted_ends_its_senders(world: World, peer: Peer, link: Link) -> None:
    world.catalog.delete_hub("contoso", "eh1")
    peer.run()
    error = peer.detach_error(link)
    assert error is not None
    assert error.condition == "amqp:not-found"
    assert "The messaging entity 'sb://contoso.example.net/eh1' could not be found" in str(
        error.description
    )


def test_hub_with_many_links_ends_a_bounded_number_of_them_per_turn(world: World) -> None:
    peers = [world.peer().authorised() for _ in range(100)]
    for peer in peers:
        peer.sender("eh1")

    def attached() -> int:
        links = [app for peer in peers for app in peer.connection.links.handlers.values()]
        return sum(isinstance(app, PublishLink) for app in links)

    world.loop.settle()
    count = attached()
    assert count == 100
    world.change_hub(status=HubStatus.SEND_DISABLED)
    while count:
        assert 0 < count - attached() <= ITEMS_PER_TURN
        count = attached()
        world.loop.step()


def test_what_is_on_disk_is_acknowledged_before_the_link_is_detached(
    world: World, peer: Peer, link: Link
) -> None:
    before = len(peer.heard)
    link.send(world.event(), settled=False)
    peer.connection.data_received(peer.engine.bytes_to_send(now_ms=0))
    world.loop.step()  # the commit; its answer waits for the next turn
    world.change_hub(status=HubStatus.SEND_DISABLED)
    peer.run()
    said = [type(sent.body) for sent in peer.heard[before:]]
    assert said == [Disposition, Detach]


def test_answers_to_a_link_that_is_gone_are_not_written(
    world: World, peer: Peer, link: Link
) -> None:
    link.send(world.event(b"last"), settled=False)
    link.detach()
    before = len(peer.heard)
    peer.run()
    assert world.stored(0) == [b"last"]
    assert peer.said(Disposition, since=before) == []
    assert peer.connection.backpressure.bytes == 0


# --- idempotent producers -----------------------------------------------------------------------


def stamped(world: World, number: int, *, producer: int = 1000, epoch: int = 0) -> bytes:
    return world.event(
        b"%d" % number,
        **{
            "com.microsoft:producer-id": Long(producer),
            "com.microsoft:producer-epoch": Short(epoch),
            "com.microsoft:producer-sequence-number": Int(number),
        },
    )


def producer(peer: Peer, **numbers: Any) -> Link:
    given = {Symbol(f"com.microsoft:producer-{name}"): value for name, value in numbers.items()}
    return peer.sender(
        "eh1/Partitions/0", desired_capabilities=IDEMPOTENT, properties=given or None
    )


def test_duplicates_are_acknowledged_without_storing(world: World, peer: Peer) -> None:
    link = producer(peer)
    for numbers in ((1, 2, 3), (2, 3), (4,)):
        peer.publish(link, *[stamped(world, n) for n in numbers])
    assert world.stored(0) == [b"1", b"2", b"3", b"4"]
    assert {outcome for _, _, outcome in told(peer, 1)} == {"accepted"}


def test_gap_is_rejected_and_the_missing_number_still_taken(world: World, peer: Peer) -> None:
    link = producer(peer)
    peer.publish(link, stamped(world, 1))
    peer.publish(link, stamped(world, 3))
    assert told(peer)[-1] == (2, 2, "com.microsoft:out-of-order-sequence")
    peer.publish(link, stamped(world, 2))
    peer.publish(link, stamped(world, 3))
    assert world.stored(0) == [b"1", b"2", b"3"]


def test_event_without_numbers_is_an_argument_error_on_a_producers_link(
    world: World, peer: Peer
) -> None:
    link = producer(peer)
    peer.publish(link, world.event())
    assert told(peer)[-1] == (1, 1, "com.microsoft:argument-error")
    assert world.stored(0) == []


def test_producer_of_a_higher_epoch_takes_over(world: World, peer: Peer) -> None:
    old = producer(peer)
    peer.publish(old, stamped(world, 1))
    other = world.peer().authorised()
    new = producer(other, id=Long(1000), epoch=Short(1), **{"sequence-number": Int(1)})
    peer.run()
    error = peer.detach_error(old)
    assert error is not None
    assert error.condition == "com.microsoft:producer-epoch-stolen"
    other.publish(new, stamped(world, 2, epoch=1))
    assert world.stored(0) == [b"1", b"2"]


def test_producer_of_a_lower_epoch_is_refused(world: World, peer: Peer) -> None:
    producer(peer, id=Long(5), epoch=Short(3), **{"sequence-number": Int(0)})
    link = peer.attach(
        "eh1/Partitions/0",
        LinkRole.SENDER,
        desired_capabilities=IDEMPOTENT,
        properties={
            Symbol("com.microsoft:producer-id"): Long(5),
            Symbol("com.microsoft:producer-epoch"): Short(2),
            Symbol("com.microsoft:producer-sequence-number"): None,
        },
    )
    error = peer.detach_error(link)
    assert error is not None
    assert error.condition == "com.microsoft:producer-epoch-stolen"
