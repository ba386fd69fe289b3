"""Peers that nobody knows, and peers that only make work: their budgets, and who pays for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from penstock.amqp.frames import AMQP_HEADER, EMPTY_FRAME, SASL_HEADER
from penstock.amqp.performatives import (
    Attach,
    Begin,
    Close,
    Flow,
    Open,
    SaslInit,
    Source,
    Target,
    Transfer,
)
from penstock.amqp.types import Symbol
from penstock.gateway.admission import Admission, Place
from penstock.model import limits
from penstock.model.clock import ManualClock

if TYPE_CHECKING:
    from tests.unit.gateway.conftest import Peer, World

FLOW = Flow(next_incoming_id=1, incoming_window=100, next_outgoing_id=0, outgoing_window=100)
BEGIN = Begin(next_outgoing_id=0, incoming_window=100, outgoing_window=100)


def closed_with(peer: Peer) -> str:
    peer.hear()
    (close,) = peer.said(Close)
    assert close.error is not None
    assert close.error.condition == "amqp:resource-limit-exceeded"
    return str(close.error.description)


def attach(handle: int, address: str = "eh1") -> Attach:
    return Attach(
        name=f"link-{handle}",
        handle=handle,
        role=False,
        source=Source(),
        target=Target(address=address),
        initial_delivery_count=0,
    )


# --- bytes and links ----------------------------------------------------------------------------


def test_stranger_has_a_budget_of_bytes(world: World) -> None:
    peer = world.peer().opened()
    begin = msgspec.structs.replace(BEGIN, properties={Symbol("x"): "y" * 50_000})
    for channel in range(1, 6):
        peer.say(begin, channel=channel)
        assert peer.said(Close) == []
    peer.say(begin, channel=6)
    text = closed_with(peer)
    assert text.startswith("30")
    assert f"at most {limits.UNAUTHENTICATED_BYTES_MAX} are read." in text


def test_token_in_time_lifts_the_budget(world: World) -> None:
    peer = world.peer().authorised()
    link = peer.sender("eh1")
    for _ in range(20):
        peer.publish(link, world.event(b"x" * 30_000))
    assert peer.connection.reading.bytes > limits.UNAUTHENTICATED_BYTES_MAX
    assert peer.close_error is None


def test_token_that_comes_with_the_byte_too_many_still_counts(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Budgets are looked at behind what came, not before."""
    monkeypatch.setattr(limits, "UNAUTHENTICATED_BYTES_MAX", 10)
    peer = world.peer()
    peer.say(
        SASL_HEADER,
        SaslInit(mechanism="PLAIN", initial_response=b"\0sender\0sender-key"),
        AMQP_HEADER,
        Open(container_id="x"),
    )
    assert peer.connection.authenticated
    assert peer.said(Close) == []


def test_stranger_may_ask_for_so_many_links(world: World) -> None:
    peer = world.peer().opened()
    for handle in range(limits.UNAUTHENTICATED_LINKS_MAX):
        peer.say(attach(handle))
        world.loop.advance(100)
    assert peer.said(Close) == []
    peer.say(attach(200))
    assert closed_with(peer).startswith("33 links were asked for before a valid token: at most 32")


def test_client_may_have_more_links_than_a_stranger(world: World, peer: Peer) -> None:
    for _ in range(limits.UNAUTHENTICATED_LINKS_MAX + 10):
        peer.sender("eh1")
    assert peer.close_error is None


def test_budget_before_open_ends_the_connection_without_a_word(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "UNAUTHENTICATED_BYTES_MAX", 10)
    peer = world.peer()
    peer.say(SASL_HEADER, b"\0\0\0")
    assert peer.socket.is_closed


# --- places -------------------------------------------------------------------------------------


@pytest.fixture
def admission() -> Admission:
    return Admission(ManualClock().monotonic_ms)


def placed(world: World, admission: Admission) -> tuple[Peer, Place]:
    place = admission.enter("192.0.2.1")
    assert place is not None
    peer = world.peer()
    peer.connection._place = place
    return peer, place


def test_token_makes_the_place_a_clients(world: World, admission: Admission) -> None:
    peer, place = placed(world, admission)
    peer.opened()
    assert place.is_stranger
    peer.put_token(key="wrong")
    assert place.is_stranger
    peer.put_token()
    assert not place.is_blamed


def test_plain_makes_the_place_a_clients(world: World, admission: Admission) -> None:
    peer, place = placed(world, admission)
    peer.mechanism, peer.response = "PLAIN", b"\0sender\0sender-key"
    peer.opened()
    assert not place.is_stranger


def test_management_token_makes_the_place_a_clients(world: World, admission: Admission) -> None:
    peer, place = placed(world, admission)
    peer.opened()
    asked = {
        "operation": "READ",
        "type": "com.microsoft:eventhub",
        "name": "eh1",
        "security_token": world.token("eh1"),
    }
    assert peer.request("$management", asked).status == 200
    assert not place.is_stranger


def test_breaking_the_protocol_is_remembered(world: World, admission: Admission) -> None:
    peer, place = placed(world, admission)
    peer.authorised()
    peer.say(b"\0\0\0\1\0\0\0\0")
    assert place.is_blamed


# --- work that nothing comes of -----------------------------------------------------------------


def test_client_that_only_makes_work_is_not_read_for_a_while(world: World, peer: Peer) -> None:
    peer.say(*[FLOW] * (limits.EFFORT_UNITS_MAX + 500))
    assert not peer.socket.is_reading
    assert peer.connection.engine.frames_received < limits.EFFORT_UNITS_MAX + 100
    world.loop.advance(10_000)
    assert peer.socket.is_reading
    assert peer.connection.engine.frames_received > limits.EFFORT_UNITS_MAX + 500  # all of them
    assert world.context.admission.resting.count == 0


def test_what_came_behind_the_work_is_done_in_its_time_and_order(world: World, peer: Peer) -> None:
    peer.say(*[FLOW] * (limits.EFFORT_UNITS_MAX + 500), attach(77), attach(78))
    assert peer.said(Attach)[2:] == []
    for _ in range(100):
        world.loop.advance(100)
    peer.hear()
    assert [link.name for link in peer.said(Attach)[2:]] == ["link-77", "link-78"]


def test_data_that_comes_during_the_rest_is_kept(world: World, peer: Peer) -> None:
    peer.say(*[FLOW] * (limits.EFFORT_UNITS_MAX + 100))
    assert not peer.socket.is_reading
    peer.say(attach(77))  # a transport may be slow to stop
    assert peer.said(Attach)[2:] == []
    world.loop.advance(10_000)
    peer.hear()
    assert [link.name for link in peer.said(Attach)[2:]] == ["link-77"]


def test_stranger_rests_sooner_than_a_client(world: World) -> None:
    peer = world.peer().opened()
    peer.say(*[FLOW] * limits.EFFORT_UNITS_STRANGER)
    assert not peer.socket.is_reading


@pytest.mark.parametrize("spoken", [EMPTY_FRAME, FLOW])
def test_each_kind_of_frame_is_counted(world: World, peer: Peer, spoken: bytes | Flow) -> None:
    peer.say(*[spoken] * (limits.EFFORT_UNITS_MAX + 100))
    assert not peer.socket.is_reading


def test_pieces_of_an_event_that_never_ends_are_counted(world: World, peer: Peer) -> None:
    link = peer.sender("eh1")
    piece = Transfer(handle=link.handle, delivery_id=0, delivery_tag=b"1", more=True)
    peer.say(*[piece] * (limits.EFFORT_UNITS_MAX + 100))
    assert not peer.socket.is_reading


def test_refused_publications_are_counted(world: World, peer: Peer) -> None:
    link = peer.sender("eh1")
    for _ in range(limits.EFFORT_UNITS_MAX + 100):
        link.send(b"\x00\x53\x99\x45", settled=True)
        peer.connection.data_received(peer.engine.bytes_to_send(now_ms=0))
    assert not peer.socket.is_reading


def test_publisher_never_rests(world: World, peer: Peer) -> None:
    """Whatever it says beside its events."""
    link = peer.sender("eh1/Partitions/0")
    for _ in range(50):
        peer.publish(link, *[world.event()] * 100)
        peer.say(*[FLOW] * 150)
        assert peer.socket.is_reading
    assert len(world.stored(0)) == 5000


def test_reader_that_answers_each_event_never_rests(world: World, peer: Peer) -> None:
    world.fill([b"x"] * 3000)
    link = peer.receiver(0, start="amqp.annotation.x-opt-offset > '-1'")
    for _ in range(30):
        peer.grant(link, 100)
        peer.say(*[FLOW] * 200)
        assert peer.socket.is_reading
    assert len(peer.received(link)) == 3000


def test_connection_that_ends_while_it_rests_leaves_nothing_behind(
    world: World, peer: Peer
) -> None:
    peer.say(*[FLOW] * (limits.EFFORT_UNITS_MAX + 500))
    assert world.context.admission.resting.count == 1
    peer.lose()
    assert world.context.admission.resting.count == 0
    world.loop.advance(60_000)


def test_peer_that_was_told_to_go_and_only_makes_work_is_cut_off(world: World, peer: Peer) -> None:
    peer.connection.shut_down()
    assert not peer.socket.is_closed
    peer.say(*[FLOW] * (limits.EFFORT_UNITS_MAX + 500))
    assert peer.socket.is_closed


def test_peer_that_breaks_the_rules_with_its_last_unit_still_hears_so(
    world: World, peer: Peer
) -> None:
    peer.connection.effort.spend(limits.EFFORT_UNITS_MAX - 1)
    peer.say(FLOW, FLOW, FLOW, b"\0\0\0\1\0\0\0\0")
    (close,) = peer.said(Close)
    assert close.error is not None
    assert close.error.condition == "amqp:connection:framing-error"
    assert peer.socket.is_closed


def test_strangers_bytes_reach_the_engine_in_small_pieces_and_a_publishers_whole(
    world: World, peer: Peer
) -> None:
    """Whole reads become whole batches."""
    link = peer.sender("eh1/Partitions/0")
    peer.publish(link, *[world.event()] * 200)
    before = len(world.logs.partition("id-of-eh1", 0).read(0, bytes_max=2**40))
    peer.publish(link, *[world.event(b"x" * 100)] * 500)
    batches = world.logs.partition("id-of-eh1", 0).read(0, bytes_max=2**40)[before:]
    assert len(batches) == 1


def test_attach_and_token_cost_more_than_a_frame(world: World) -> None:
    peer = world.peer().opened()
    for handle in range(8):
        peer.say(attach(handle))
    assert not peer.socket.is_reading
    world.loop.advance(10_000)
    other = world.peer().authorised()
    for _ in range(limits.EFFORT_UNITS_MAX // 10 + 1):
        sender, _ = other.node("$cbs")
        other.publish(sender, b"", settled=True)
    assert not other.socket.is_reading
