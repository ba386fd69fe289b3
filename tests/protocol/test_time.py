"""Deadlines, heartbeats and silence, with a clock turned by hand (protocol.md 1.6, 13)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from penstock.amqp.errors import ConnectionTimedOut
from penstock.amqp.events import ConnectionFailed
from penstock.amqp.frames import AMQP_HEADER, EMPTY_FRAME, SASL_HEADER
from penstock.amqp.performatives import Close, Open

if TYPE_CHECKING:
    from tests.protocol.conftest import Kit, RawPeer, Wire

NewPeer = Callable[..., "RawPeer"]


def turn(peer: RawPeer, now_ms: int) -> list[object]:
    peer.now_ms = now_ms
    return [*peer.engine.on_time(now_ms=now_ms)]


def timed_out(events: list[object]) -> str:
    (event,) = events
    assert isinstance(event, ConnectionFailed)
    assert isinstance(event.error, ConnectionTimedOut)
    assert event.error.condition == "amqp:connection:forced"
    return str(event.error)


# --- the first seconds --------------------------------------------------------------------------


def test_a_peer_that_says_nothing_is_dropped_at_the_header_deadline(new_peer: NewPeer) -> None:
    peer = new_peer(header_deadline_ms=5000, open_deadline_ms=10_000)
    assert peer.engine.next_deadline_ms() == 5000
    assert turn(peer, 4999) == []
    assert "5000" in timed_out(turn(peer, 5000))
    assert peer.hear_bytes() == b""
    assert peer.engine.is_over


def test_half_a_header_does_not_move_the_deadline(new_peer: NewPeer) -> None:
    peer = new_peer(header_deadline_ms=5000)
    peer.now_ms = 4000
    peer.say(SASL_HEADER[:7])
    assert peer.engine.next_deadline_ms() == 5000
    timed_out(turn(peer, 5000))


@pytest.mark.parametrize("header", [SASL_HEADER, AMQP_HEADER], ids=["SASL", "AMQP"])
def test_after_either_header_the_open_deadline_counts(new_peer: NewPeer, header: bytes) -> None:
    peer = new_peer(header_deadline_ms=5000, open_deadline_ms=10_000)
    peer.say(header)
    assert peer.engine.next_deadline_ms() == 10_000
    assert turn(peer, 9999) == []
    assert "10000" in timed_out(turn(peer, 10_000))


def test_an_unfinished_sasl_exchange_ends_at_the_open_deadline(new_peer: NewPeer, kit: Kit) -> None:
    peer = new_peer()
    peer.say(kit.sasl_start)
    peer.engine.answer_sasl(ok=True)
    assert peer.engine.next_deadline_ms() == 10_000
    timed_out(turn(peer, 10_000))


def test_a_late_open_is_told_why_after_our_own(new_peer: NewPeer) -> None:
    peer = new_peer()
    peer.say(AMQP_HEADER)
    turn(peer, 10_000)
    ours, close = (sent.body for sent in peer.hear())
    assert isinstance(ours, Open)  # close may not come before open
    assert isinstance(close, Close)
    assert close.error is not None
    assert close.error.condition == "amqp:connection:forced"


# --- silence ------------------------------------------------------------------------------------


def test_a_silent_peer_is_closed_at_twice_the_idle_time_out(peer: RawPeer) -> None:
    peer.opened()
    assert peer.engine.next_deadline_ms() == 240_000
    assert turn(peer, 239_999) == []
    text = timed_out(turn(peer, 240_000))
    # As recorded from the real service (protocol.md 13).
    assert text == (
        "The connection was inactive for more than the allowed 240000 milliseconds and is closed "
        "by container 'server_G0'."
    )
    close = peer.hear_one(Close)
    assert close.error is not None
    assert (close.error.condition, close.error.description) == ("amqp:connection:forced", text)
    assert peer.engine.is_over
    assert peer.engine.next_deadline_ms() is None
    assert turn(peer, 999_999) == []


@pytest.mark.parametrize("spoken", [EMPTY_FRAME, b"\x00"], ids=["heartbeat", "a single byte"])
def test_any_byte_is_a_sign_of_life(peer: RawPeer, spoken: bytes) -> None:
    peer.opened()
    peer.now_ms = 200_000
    peer.say(spoken)
    assert peer.engine.next_deadline_ms() == 440_000
    assert turn(peer, 439_999) == []
    timed_out(turn(peer, 440_000))


def test_without_an_idle_time_out_silence_is_allowed(new_peer: NewPeer) -> None:
    peer = new_peer(idle_time_out_ms=None).opened()
    assert peer.engine.next_deadline_ms() is None
    assert turn(peer, 10**9) == []
    assert peer.engine.is_opened


def test_a_peer_that_does_not_answer_our_close_is_given_up(peer: RawPeer) -> None:
    peer.opened()
    peer.engine.close()
    peer.hear()
    timed_out(turn(peer, 240_000))
    assert peer.hear_bytes() == b""  # close was said already


# --- heartbeats ---------------------------------------------------------------------------------


def test_an_empty_frame_goes_out_every_half_of_the_peers_time(peer: RawPeer) -> None:
    peer.opened(idle_time_out=60_000)
    assert peer.engine.next_deadline_ms() == 30_000
    for now_ms in (30_000, 60_000, 90_000):
        assert turn(peer, now_ms - 1) == []
        assert peer.hear_bytes() == b""
        assert turn(peer, now_ms) == []
        assert peer.hear_bytes() == EMPTY_FRAME
        peer.say(EMPTY_FRAME)


def test_anything_sent_puts_the_heartbeat_off(peer: RawPeer) -> None:
    peer.opened(idle_time_out=60_000)
    session = peer.begun()
    peer.now_ms = 20_000
    session.send_flow()
    assert peer.hear_bytes()
    assert peer.engine.next_deadline_ms() == 50_000
    assert turn(peer, 49_999) == []
    assert peer.hear_bytes() == b""
    turn(peer, 50_000)
    assert peer.hear_bytes() == EMPTY_FRAME


@pytest.mark.parametrize("announced", [None, 0])
def test_no_heartbeat_for_a_peer_that_wants_none(peer: RawPeer, announced: int | None) -> None:
    peer.opened(idle_time_out=announced)
    assert turn(peer, 200_000) == []
    assert peer.hear_bytes() == b""


@pytest.mark.parametrize("announced", [1, 2, 199])
def test_a_tiny_time_out_makes_no_busy_loop(peer: RawPeer, announced: int) -> None:
    peer.opened(idle_time_out=announced)
    assert peer.engine.next_deadline_ms() == 100


def test_no_heartbeat_after_our_close(peer: RawPeer) -> None:
    peer.opened(idle_time_out=1000)
    peer.engine.close()
    peer.hear()
    assert turn(peer, 100_000) == []
    assert peer.hear_bytes() == b""


def test_two_idle_engines_keep_each_other_alive(new_wire: Callable[..., Wire]) -> None:
    wire = new_wire({"idle_time_out_ms": 10_000}, {"idle_time_out_ms": 8000}).opened()
    beats = 0
    while wire.now_ms < 100_000:
        due = [wire.client.next_deadline_ms(), wire.server.next_deadline_ms()]
        wire.now_ms = min(each for each in due if each is not None)
        assert wire.client.on_time(now_ms=wire.now_ms) == []
        assert wire.server.on_time(now_ms=wire.now_ms) == []
        wire.collect()
        beats += (len(wire.to_server) + len(wire.to_client)) // len(EMPTY_FRAME)
        wire.run()
    assert wire.client.is_opened
    assert wire.server.is_opened
    assert beats == 100_000 // 5000 + 100_000 // 4000


def test_a_client_notices_a_silent_server(new_wire: Callable[..., Wire]) -> None:
    wire = new_wire({"idle_time_out_ms": 1000}).opened()
    assert wire.client.on_time(now_ms=1999) == []
    (event,) = wire.client.on_time(now_ms=2000)
    assert isinstance(event, ConnectionFailed)
    assert wire.client.is_over
