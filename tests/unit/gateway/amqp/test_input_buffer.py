"""Unauthenticated peers, and peers that only make work: their budgets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from penstock.amqp.frames import AMQP_HEADER, EMPTY_FRAME, SASL_HEADER
from penstock.amqp.link import LinkRole
from penstock.amqp.performatives import (
    Attach,
    Begin,
    Close,
    Flow,
    Open,
    SaslInit,
    Source,
    Target,
)
from penstock.amqp.types import Symbol
from penstock.model import limits

if TYPE_CHECKING:
    from tests.unit.gateway.amqp.conftest import Peer, World

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
    begin = msgspec.structs.replace(BEGIN, properties={Symbol("x"): "y" * 5_000})
    for channel in range(1, 7):
        peer.say(begin, channel=channel)
        assert peer.said(Close) == []
    peer.say(begin, channel=7)
    text = closed_with(peer)
    assert text.startswith("3")
    assert f"at most {limits.UNAUTHENTICATED_BYTES_MAX} are read." in text


def test_token_in_time_lifts_the_budget(world: World) -> None:
    peer = world.peer().authorised()
    link = peer.sender("eh1")
    for _ in range(20):
        peer.publish(link, world.event(b"x" * 30_000))
    assert peer.connection.input.bytes > limits.UNAUTHENTICATED_BYTES_MAX
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
    assert peer.connection.links.is_authenticated
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


# --- authentication -----------------------------------------------------------------------------


def test_a_verified_token_authenticates_the_slot(world: World) -> None:
    peer = world.peer().opened()
    slot = peer.connection.slot
    assert not slot.is_authenticated
    peer.put_token(key="wrong")
    assert not slot.is_authenticated
    peer.put_token()
    assert slot.is_authenticated
    assert not slot.is_suspect


def test_a_verified_key_authenticates_the_slot(world: World) -> None:
    peer = world.peer()
    peer.mechanism, peer.response = "PLAIN", b"\0sender\0sender-key"
    peer.opened()
    assert peer.connection.slot.is_authenticated


def test_a_verified_management_token_authenticates_the_slot(world: World) -> None:
    peer = world.peer().opened()
    asked = {
        "operation": "READ",
        "type": "com.microsoft:eventhub",
        "name": "eh1",
        "security_token": world.token("eh1"),
    }
    assert peer.request("$management", asked).status == 200
    assert peer.connection.slot.is_authenticated


def test_breaking_the_protocol_is_a_penalty(world: World) -> None:
    peer = world.peer().authorised()
    assert not peer.connection.slot.is_suspect
    peer.say(b"\0\0\0\1\0\0\0\0")
    assert peer.connection.slot.is_suspect


# --- measured work ------------------------------------------------------------------------------


@pytest.fixture
def slow(world: World, peer: Peer) -> Peer:
    """An authenticated client; each 16 frames take 5 ms from here on: a burst of 20 times 16."""
    peer.sender("eh1")
    world.clock.step_us = 5000
    return peer


FLOWS = [FLOW] * 16 * 40  # twice the burst, with what the queue does at once


def test_client_that_only_makes_work_waits_for_its_turns(world: World, slow: Peer) -> None:
    slow.say(*FLOWS)
    assert not slow.socket.is_reading
    assert world.context.guard.work.waiting == 1
    assert slow.connection.slot.is_suspect
    world.loop.advance(2000)
    assert slow.socket.is_reading
    assert slow.connection.engine.frames_received > len(FLOWS)
    assert world.context.guard.work.waiting == 0


def test_what_comes_after_the_work_is_done_in_its_order(world: World, slow: Peer) -> None:
    slow.say(*FLOWS, attach(77), attach(78))
    slow.say(attach(79))  # a transport may be slow to stop
    assert "link-77" not in [link.name for link in slow.said(Attach)]
    world.loop.advance(2000)
    slow.hear()
    names = [link.name for link in slow.said(Attach)]
    assert names[-3:] == ["link-77", "link-78", "link-79"]


def test_unauthenticated_peers_share_the_queue(world: World) -> None:
    first, second = world.peer().opened(), world.peer().opened()
    world.clock.step_us = 5000
    first.say(*[FLOW] * 16 * 5)
    assert not first.socket.is_reading  # the queue's burst is used up
    second.say(FLOW)
    assert not second.socket.is_reading
    world.loop.advance(1000)
    assert first.socket.is_reading
    assert second.socket.is_reading


def test_wait_for_the_queue_does_not_count_against_the_peers_deadlines(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine a client whose header waited for its turn was cut off without a word."""
    monkeypatch.setattr(limits, "WORK_QUEUE_DEBT_US_MAX", 10**9)
    world.context.guard.work.spend(limits.HEADER_DEADLINE_MS * 2 * 1000)  # for its first 50 s
    peer = world.peer()
    peer.say(SASL_HEADER)
    world.loop.advance(limits.TOKEN_DEADLINE_MS)
    assert world.context.guard.work.waiting == 1
    assert not peer.socket.is_closed
    world.loop.advance(limits.TOKEN_DEADLINE_MS)
    assert world.context.guard.work.waiting == 0
    assert peer.socket.sent.startswith(SASL_HEADER)


def test_authenticated_client_does_not_wait_for_unauthenticated_ones(
    world: World, peer: Peer
) -> None:
    """A client within its budget is served at once, whatever others do."""
    link = peer.sender("eh1/Partitions/0")
    world.clock.step_us = 5000
    for _ in range(10):
        world.peer().say(SASL_HEADER, *[EMPTY_FRAME] * 16)
    world.clock.step_us = 100
    for _ in range(100):
        peer.publish(link, world.event())
        assert peer.socket.is_reading
    assert len(world.stored(0)) == 100


def test_peer_that_makes_too_much_work_before_its_token_is_dropped(world: World) -> None:
    peer = world.peer().opened()
    world.clock.step_us = 30_000
    peer.say(*[FLOW] * 16 * 20)
    world.loop.advance(10_000)
    assert "Too many frames without useful work" in closed_with(peer)
    assert peer.socket.is_closed


def test_client_that_goes_on_making_work_is_dropped(world: World, peer: Peer) -> None:
    world.clock.step_us = 200_000
    peer.say(*FLOWS)
    world.loop.advance(100_000)
    assert "Too many frames without useful work" in closed_with(peer)
    assert peer.socket.is_closed
    assert world.context.guard.work.waiting == 0


def test_thousands_of_small_sends_never_wait(world: World, peer: Peer) -> None:
    """120 us for a read with one event is more than what was measured."""
    link = peer.sender("eh1/Partitions/0")
    world.clock.step_us = 120
    for _ in range(2000):
        peer.publish(link, world.event())
        peer.say(FLOW)
        assert peer.socket.is_reading
    assert len(world.stored(0)) == 2000


def test_costly_events_use_up_the_budget(world: World, peer: Peer) -> None:
    """One event whose check takes 50 ms pays for one event."""
    link = peer.sender("eh1/Partitions/0")
    world.clock.step_us = 50_000
    for _ in range(5):
        link.send(world.event(), settled=True)
        peer.connection.data_received(peer.engine.bytes_to_send(now_ms=0))
    assert not peer.socket.is_reading


def test_reader_that_answers_each_event_never_waits(world: World, peer: Peer) -> None:
    world.fill([b"x"] * 3000)
    link = peer.receiver(0, start="amqp.annotation.x-opt-offset > '-1'")
    world.clock.step_us = 200
    for _ in range(30):
        peer.grant(link, 100)
        peer.say(*[FLOW] * 200)
        assert peer.socket.is_reading
    assert len(peer.received(link)) == 3000


def test_opening_all_partitions_never_waits(world: World, peer: Peer) -> None:
    """32 senders and 32 readers at once, 500 us for each attach."""
    world.clock.step_us = 500
    for _ in range(32):
        peer.sender("eh1")
        peer.attach("$management", LinkRole.RECEIVER)
        assert peer.socket.is_reading


def test_connection_that_ends_while_it_waits_leaves_nothing_behind(
    world: World, slow: Peer
) -> None:
    slow.say(*FLOWS)
    assert world.context.guard.work.waiting == 1
    slow.lose()
    assert world.context.guard.work.waiting == 0
    world.loop.advance(60_000)


def test_peer_that_was_asked_to_go_and_only_makes_work_is_cut_off(world: World, slow: Peer) -> None:
    slow.connection.shut_down()
    assert not slow.socket.is_closed
    slow.say(*FLOWS)
    assert slow.socket.is_closed


def test_whole_reads_of_a_publisher_become_whole_batches(world: World, peer: Peer) -> None:
    link = peer.sender("eh1/Partitions/0")
    peer.publish(link, *[world.event(b"x" * 100)] * 500)
    assert len(world.logs.partition("id-of-eh1", 0).read(0, bytes_max=2**40)) == 1


@pytest.mark.parametrize("is_waiting", [False, True])
def test_the_end_of_the_connection_leaves_the_budget_to_the_socket(
    world: World, slow: Peer, is_waiting: bool
) -> None:
    """A WebSocket below the connection still parses the peer's close frame."""
    slot = slow.connection.slot
    if is_waiting:
        slow.say(*FLOWS)
        assert world.context.guard.work.waiting == 1
    slow.lose()
    assert world.context.guard.work.waiting == 0
    world.loop.advance(2000)
    assert slot.budget.may_work()
    dropped: list[bool] = []
    slot.evict = lambda: dropped.append(True)
    slot.budget.drop()
    assert dropped == [True]
