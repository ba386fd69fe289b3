"""A connection from its first byte to its last: deadlines, heartbeats, quotas, every way to end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from penstock.amqp.frames import AMQP_HEADER, SASL_HEADER
from penstock.amqp.link import LinkRole
from penstock.amqp.performatives import (
    Attach,
    Begin,
    Close,
    Disposition,
    Open,
    SaslMechanisms,
    Source,
    Target,
    Transfer,
)
from penstock.gateway.amqp.lifecycle import Deadlines
from penstock.model import limits

if TYPE_CHECKING:
    from tests.unit.gateway.amqp.conftest import Peer, World

BEGIN = Begin(next_outgoing_id=0, incoming_window=1000, outgoing_window=1000)


def stamps(peer: Peer) -> str:
    error = peer.close_error
    assert error is not None
    return f"{error.condition}: {str(error.description).partition(' TrackingId:')[0]}"


def heartbeat(peer: Peer) -> None:
    peer.connection.data_received(bytes.fromhex("0000000802000000"))


# --- the beginning ------------------------------------------------------------------------------


def test_service_introduces_itself_as_recorded(peer: Peer) -> None:
    (offer,) = peer.said(SaslMechanisms)
    assert offer.sasl_server_mechanisms == ["MSSBCBS", "PLAIN", "ANONYMOUS", "EXTERNAL"]
    (opened,) = peer.said(Open)
    assert opened.container_id == peer.connection.id
    assert opened.container_id.endswith("_G0")
    assert (opened.hostname, opened.max_frame_size, opened.channel_max) == (None, 65536, 4999)
    assert opened.idle_time_out == 120_000
    (begun,) = peer.said(Begin)
    assert (begun.remote_channel, begun.handle_max) == (0, 255)
    assert (begun.incoming_window, begun.next_outgoing_id) == (5000, 1)


def test_everything_in_one_read_is_answered_in_one_write(world: World) -> None:
    """PY does not wait for our open (E19)."""
    peer = world.peer()
    attach = Attach(
        name="cbs",
        handle=0,
        role=False,
        source=Source(address="$cbs"),
        target=Target(address="$cbs"),
        initial_delivery_count=0,
    )
    heard = peer.say(AMQP_HEADER, Open(container_id="PY"), BEGIN, attach)
    assert [type(sent.body).__name__ for sent in heard] == ["Open", "Begin", "Attach", "Flow"]
    assert peer.socket.writes == 1


def test_silent_socket_is_closed_at_the_header_deadline(world: World) -> None:
    peer = world.peer()
    world.loop.advance(limits.HEADER_DEADLINE_MS - 1)
    assert not peer.socket.is_closed
    world.loop.advance(1)
    assert peer.socket.is_closed


def test_peer_that_stops_in_the_middle_of_sasl_is_closed_at_the_open_deadline(
    world: World,
) -> None:
    peer = world.peer()
    peer.say(SASL_HEADER)
    world.loop.advance(limits.OPEN_DEADLINE_MS)
    assert peer.socket.is_closed


@pytest.mark.parametrize(
    "garbage", [b"GET / HTTP/1.1\r\n", b"\x16\x03\x01\x02\x00", b"AMQP\x00\x00\x09\x01", b"\x00"]
)
def test_garbage_closes_at_once(world: World, garbage: bytes) -> None:
    peer = world.peer()
    peer.connection.data_received(garbage)
    assert peer.socket.is_closed
    assert bytes(peer.socket.sent) == SASL_HEADER  # AMQP 2.2: what we do speak


def test_frame_of_four_gigabytes_closes_at_its_header(world: World) -> None:
    peer = world.peer()
    peer.connection.data_received(SASL_HEADER + b"\xff\xff\xff\xff\x02\x01\x00\x00")
    assert peer.socket.is_closed
    assert peer.connection.engine.held_bytes == 0


def test_connection_above_the_quota_is_told_so_and_closed(world: World) -> None:
    world.context.connections_max = 2
    first, second = world.peer().authorised(), world.peer().authorised()
    third = world.peer().opened()
    assert stamps(third) == (
        "amqp:resource-limit-exceeded: The namespace has its 2 connections; close some before "
        "opening more."
    )
    assert third.socket.is_closed
    third.lose()
    second.lose()
    assert world.peer().authorised().sender().is_attached
    assert first.sender().is_attached


def test_links_that_come_with_an_open_above_the_quota_are_not_made(world: World) -> None:
    world.context.connections_max = 0
    peer = world.peer()
    attach = Attach(name="a", handle=0, role=True, source=Source(address="$cbs"))
    heard = peer.say(AMQP_HEADER, Open(container_id="PY"), BEGIN, attach)
    assert type(heard[-1].body) is Close
    assert peer.connection.links.handlers == {}


# --- heartbeats ---------------------------------------------------------------------------------


def test_empty_frame_goes_out_at_half_of_the_peers_idle_time_out(world: World) -> None:
    peer = world.peer(idle_time_out_ms=30_000).authorised()
    peer.hear()
    peer.heard.clear()
    world.loop.advance(14_999)
    assert peer.hear() == []
    world.loop.advance(1)
    assert [sent.body for sent in peer.hear()] == [None]
    for _ in range(4):
        heartbeat(peer)
        world.loop.advance(15_000)
    assert len(peer.hear()) == 4


def test_traffic_counts_as_heartbeat(world: World) -> None:
    peer = world.peer(idle_time_out_ms=30_000).authorised()
    link = peer.receiver(0, credit=100)
    for _ in range(6):
        world.loop.advance(10_000)
        world.fill([b"x"])
        assert [type(sent.body) for sent in peer.hear()] == [Transfer]
    assert link.is_attached


def test_peer_that_wants_none_gets_none(peer: Peer) -> None:
    peer.hear()
    peer.world.loop.advance(200_000)
    assert peer.hear() == []


def test_silent_peer_is_dropped_at_twice_our_time_out_with_the_recorded_text(
    world: World, peer: Peer
) -> None:
    peer.receiver(0, credit=1)
    world.loop.advance(2 * limits.IDLE_TIME_OUT_MS - 1)
    assert not peer.socket.is_closed
    world.loop.advance(1)
    peer.run()
    assert peer.socket.is_closed
    assert peer.close_error is not None
    assert peer.close_error.condition == "amqp:connection:forced"
    assert peer.close_error.description == (
        "The connection was inactive for more than the allowed 240000 milliseconds and is closed "
        f"by container '{peer.connection.id}'."
    )
    assert world.readers() == []  # at once, not when the socket is gone


def test_empty_frames_keep_a_peer_alive(world: World, peer: Peer) -> None:
    link = peer.receiver(0, credit=1)
    for _ in range(20):
        world.loop.advance(100_000)
        heartbeat(peer)
    world.fill([b"still"])
    peer.run()
    assert peer.bodies(link) == [b"still"]


# --- nobody uses it -----------------------------------------------------------------------------


def test_connection_without_a_token_is_closed_after_half_a_minute(world: World) -> None:
    peer = world.peer().opened()
    peer.node("$cbs")
    world.loop.advance(limits.TOKEN_DEADLINE_MS - 1)
    assert not peer.socket.sent
    world.loop.advance(1)
    peer.run()
    assert stamps(peer) == (
        "amqp:connection:forced: No valid token was put within 30000 milliseconds."
    )
    assert peer.socket.is_closed


@pytest.mark.parametrize("status", [401, 404])
def test_token_that_was_refused_does_not_count(world: World, status: int) -> None:
    peer = world.peer().opened()
    answer = peer.put_token("nothing") if status == 404 else peer.put_token(key="wrong")
    assert answer.status == status
    world.loop.advance(limits.TOKEN_DEADLINE_MS)
    peer.run()
    assert peer.close_error is not None


def test_management_token_counts_as_one(world: World) -> None:
    peer = world.peer().opened()
    asked = {"operation": "READ", "type": "com.microsoft:eventhub", "name": "eh1"}
    peer.request("$management", {**asked, "security_token": world.token("eh1")})
    world.loop.advance(limits.TOKEN_DEADLINE_MS)
    peer.run()
    assert peer.close_error is None


def test_connection_that_never_made_a_link_is_closed_after_a_minute(world: World) -> None:
    peer = world.peer()
    peer.mechanism, peer.response = "PLAIN", b"\0sender\0sender-key"
    peer.opened()
    world.loop.advance(limits.LINKLESS_FIRST_MS)
    peer.run()
    assert stamps(peer) == (
        "amqp:connection:forced: The connection was inactive for more than the allowed 60000 "
        "milliseconds and is closed by container 'LinkTracker'."
    )


def test_connection_whose_links_are_all_closed_is_closed_after_five_minutes(
    world: World,
) -> None:
    peer = world.peer()
    peer.mechanism, peer.response = "PLAIN", b"\0sender\0sender-key"
    peer.opened()
    link = peer.sender("eh1")
    for _ in range(4):
        world.loop.advance(100_000)
        heartbeat(peer)
    link.detach()
    peer.run()
    world.loop.advance(200_000)
    heartbeat(peer)
    world.loop.advance(99_999)
    assert not peer.socket.sent
    world.loop.advance(1)
    peer.run()
    assert "more than the allowed 300000 milliseconds" in stamps(peer)


def test_refused_attach_is_no_link(world: World) -> None:
    peer = world.peer()
    peer.mechanism, peer.response = "PLAIN", b"\0sender\0sender-key"
    peer.opened()
    world.loop.advance(30_000)
    peer.refusal("nothing", LinkRole.SENDER)
    world.loop.advance(30_000)
    peer.run()
    assert "60000" in stamps(peer)


# --- the end ------------------------------------------------------------------------------------


def test_peers_close_is_answered_and_frees_everything_at_once(world: World, peer: Peer) -> None:
    peer.receiver(0, credit=1)
    peer.engine.close()
    peer.run()
    assert type(peer.heard[-1].body) is Close
    assert peer.socket.is_closed
    assert world.readers() == []
    assert peer.connection.links.handlers == {}


def test_nothing_follows_our_close(world: World, peer: Peer) -> None:
    peer.receiver(0, credit=100)
    sender = peer.sender("eh1/Partitions/0")
    peer.publish(sender, *[world.event()] * 3)
    peer.hear()
    peer.connection.shut_down()
    world.fill([b"late"] * 3)
    heard = peer.hear()
    assert [type(sent.body) for sent in heard] == [Close]
    peer.say(world.event())  # whatever still comes
    assert peer.hear() == []


def test_peer_that_does_not_answer_our_close_is_hung_up_on(world: World, peer: Peer) -> None:
    peer.connection.shut_down()
    world.loop.advance(1_999)
    assert not peer.socket.is_closed
    world.loop.advance(1)
    assert peer.socket.is_closed
    assert not peer.socket.is_aborted
    world.loop.advance(2_000)
    assert peer.socket.is_aborted  # its buffer did not drain either


def test_socket_that_is_gone_is_not_aborted(world: World, peer: Peer) -> None:
    peer.connection.shut_down()
    peer.run()
    assert peer.socket.is_closed
    peer.lose()
    world.loop.advance(10_000)
    assert not peer.socket.is_aborted


def conversation(world: World, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """All that a client says that puts a token, reads and publishes."""
    peer = world.peer()
    spoken: list[bytes] = []
    hears = peer.connection.data_received

    def overheard(data: bytes) -> None:
        spoken.append(data)
        hears(data)

    monkeypatch.setattr(peer.connection, "data_received", overheard)
    peer.authorised()
    peer.receiver(0, credit=10)
    link = peer.sender("eh1/Partitions/0")
    peer.publish(link, *[world.event(b"x" * 40)] * 5)
    peer.lose()
    return b"".join(spoken)


@pytest.mark.parametrize("turns", [0, 1, 100])
def test_transport_lost_anywhere_frees_places_and_memory(
    world: World, monkeypatch: pytest.MonkeyPatch, turns: int
) -> None:
    """The same words in one read, cut off at every place; so many turns later the socket breaks."""
    script = conversation(world, monkeypatch)
    for cut in range(0, len(script) + 1, 7):
        peer = world.peer()
        peer.connection.data_received(script[:cut])
        for _ in range(turns):
            world.loop.step()
        peer.lose()
        assert world.readers() == []
        assert world.context.pending_bytes.total == 0
        assert world.door.connections == set()
        assert peer.connection.links.reply_bytes == 0
    assert len(world.stored(0)) > 5  # the cuts near the end did publish


def test_publications_under_way_are_accounted_for_after_the_socket_is_gone(
    world: World, peer: Peer
) -> None:
    link = peer.sender("eh1/Partitions/0")
    link.send(world.event(b"x" * 1000), settled=False)
    peer.connection.data_received(peer.engine.bytes_to_send(now_ms=0))
    assert world.context.pending_bytes.total > 1000
    peer.socket.is_closed = True
    peer.connection.connection_lost()
    assert world.context.pending_bytes.total > 1000  # the disk still has it in hand
    world.loop.settle()
    assert world.context.pending_bytes.total == 0
    assert world.stored(0) == [b"x" * 1000]


def test_lost_twice_is_lost_once(world: World, peer: Peer) -> None:
    peer.lose()
    peer.connection.connection_lost()
    peer.connection.data_received(b"late bytes of a buffer")
    assert world.door.connections == set()


def test_timers_end_with_the_connection(world: World, peer: Peer) -> None:
    peer.receiver(0)
    peer.lose()
    world.loop.advance(3_600_000)
    assert not peer.socket.sent


# --- the service stops --------------------------------------------------------------------------


async def test_stopping_acknowledges_what_was_taken_and_then_says_goodbye(
    world: World, peer: Peer
) -> None:
    link = peer.sender("eh1/Partitions/0")
    before = len(peer.heard)
    link.send(world.event(b"last"), settled=False)
    peer.connection.data_received(peer.engine.bytes_to_send(now_ms=0))
    closing = asyncio.create_task(world.door.close(grace_s=5))
    await asyncio.sleep(0)
    assert not peer.socket.is_reading
    assert not peer.socket.sent  # it is not on disk yet
    world.loop.settle()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert peer.socket.is_reading  # for the peer's own close
    peer.run()
    peer.lose()
    await closing
    said = [type(sent.body) for sent in peer.heard[before:]]
    assert said == [Disposition, Close]
    assert stamps(peer).startswith("amqp:connection:forced: The service is shutting down")
    assert world.stored(0) == [b"last"]


async def test_stopping_waits_for_nobody_for_ever(world: World) -> None:
    opened, silent = world.peer().authorised(), world.peer()
    opened.receiver(0, credit=1)
    await world.door.close(grace_s=0.01)
    assert silent.socket.is_closed  # it had not even begun
    assert opened.socket.is_aborted
    assert world.readers() == []


async def test_stopping_gives_up_on_a_disk_that_never_answers(world: World, peer: Peer) -> None:
    link = peer.sender("eh1/Partitions/0")
    link.send(world.event(), settled=False)
    peer.connection.data_received(peer.engine.bytes_to_send(now_ms=0))
    await world.door.close(grace_s=0.01)
    assert type(peer.hear()[-1].body) is Close


async def test_who_comes_while_the_service_stops_is_turned_away(world: World) -> None:
    await world.door.close(grace_s=0.01)
    late = world.peer()
    assert late.socket.is_closed


def test_deadlines_can_be_shortened(world: World) -> None:
    world.context.deadlines = Deadlines(header_ms=10)
    peer = world.peer()
    world.loop.advance(10)
    assert peer.socket.is_closed
