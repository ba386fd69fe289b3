"""`frames_max`: parsing a read a few frames at a time gives the same events as all at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.amqp.events import FlowReceived, SaslInitReceived, TransfersReceived
from penstock.amqp.frames import EMPTY_FRAME
from penstock.amqp.performatives import Close, Flow

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.protocol.conftest import Kit, RawPeer

FLOW = Flow(next_incoming_id=1, incoming_window=100, next_outgoing_id=0, outgoing_window=100)


@pytest.mark.parametrize("frames_max", [1, 2, 3, 7, 100])
def test_events_are_the_same_however_few_frames_are_taken_at_once(
    new_peer: Callable[..., RawPeer], kit: Kit, frames_max: int
) -> None:
    def play(most: int | None) -> tuple[list[str], int]:
        peer = new_peer()
        link = peer.sender()
        pieces = [
            kit.frame(FLOW),
            EMPTY_FRAME,
            kit.piece(0, b"a"),
            kit.piece(1, b"b", more=True),
            kit.piece(1, b"c"),
            kit.frame(FLOW),
            kit.frame(Close()),
        ]
        assert link.is_attached
        before = peer.engine.frames_received
        told = peer.engine.receive_data(b"".join(pieces), now_ms=0, frames_max=most)
        for _ in range(100):
            if not peer.engine.has_more:
                break
            told += peer.engine.receive_data(b"", now_ms=0, frames_max=most)
        assert not peer.engine.has_more
        payloads = [str(payload) for payload in kit.payloads(told)]
        return [type(event).__name__ for event in told] + payloads, (
            peer.engine.frames_received - before
        )

    assert "b'bc'" in play(None)[0]
    assert play(frames_max) == play(None)


def test_so_many_frames_are_taken_and_no_more(new_peer: Callable[..., RawPeer], kit: Kit) -> None:
    peer = new_peer().opened()
    peer.begun()
    engine, before = peer.engine, peer.engine.frames_received
    told = engine.receive_data(kit.frame(FLOW) * 10, now_ms=0, frames_max=4)
    assert [type(event) for event in told] == [FlowReceived] * 4
    assert engine.has_more
    assert engine.frames_received - before == 4
    assert engine.held_bytes == 6 * len(kit.frame(FLOW))
    assert engine.receive_data(b"", now_ms=0, frames_max=0) == []
    assert engine.has_more
    assert len(engine.receive_data(b"", now_ms=0)) == 6
    assert not engine.has_more


def test_runs_of_transfers_are_not_counted(new_peer: Callable[..., RawPeer], kit: Kit) -> None:
    peer = new_peer()
    peer.sender()
    run = b"".join(kit.piece(number, b"x") for number in range(100))
    before = peer.engine.frames_received
    told = peer.engine.receive_data(run, now_ms=0, frames_max=1)
    assert sum(event.count for event in told if isinstance(event, TransfersReceived)) == 100
    assert peer.engine.frames_received == before
    assert not peer.engine.has_more


def test_half_a_frame_is_not_more(new_peer: Callable[..., RawPeer], kit: Kit) -> None:
    peer = new_peer().opened()
    peer.begun()
    peer.engine.receive_data(kit.frame(FLOW)[:-1], now_ms=0, frames_max=4)
    assert not peer.engine.has_more


def test_what_comes_behind_sasl_init_waits_for_its_judgement(
    new_peer: Callable[..., RawPeer], kit: Kit
) -> None:
    peer = new_peer()
    told = peer.engine.receive_data(kit.sasl_start + b"AMQP", now_ms=0, frames_max=1)
    assert [type(event) for event in told] == [SaslInitReceived]
    peer.engine.answer_sasl(ok=True)
    assert peer.engine.receive_data(b"\x00\x01\x00\x00", now_ms=0, frames_max=1) == []
    assert peer.hear_bytes().endswith(b"AMQP\x00\x01\x00\x00")
