"""Clients that begin a session on a channel whose last session they never ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.amqp.events import BeginReceived, EndReceived
from penstock.amqp.performatives import Begin, End, Error
from penstock.amqp.states import LinkState

if TYPE_CHECKING:
    from tests.protocol.conftest import Kit, RawPeer

BEGIN = Begin(next_outgoing_id=0, incoming_window=1000, outgoing_window=1000)
STOLEN = Error(condition="amqp:link:stolen", description="taken over")


def test_a_begin_replaces_a_session_whose_links_were_all_refused(peer: RawPeer, kit: Kit) -> None:
    """Microsoft.Azure.EventHubs leaves the session of a refused link without `end`."""
    owner = peer.sender()
    abandoned = peer.begun(channel=1)
    for _ in range(3):
        refused = peer.asked(sender=True, channel=1)
        refused.refuse(STOLEN)
        peer.hear()
        ended, begun = peer.say(kit.frame(BEGIN, channel=1))
        assert isinstance(ended, EndReceived)
        assert ended.session is abandoned
        assert isinstance(begun, BeginReceived)
        assert [(sent.channel, type(sent.body)) for sent in peer.hear()] == [(1, End), (1, Begin)]
        assert refused.state is LinkState.CLOSED
        abandoned = begun.session
    link = peer.attached(sender=True, channel=1)
    assert kit.payloads(peer.say(kit.piece(0, b"new", channel=1))) == [b"new"]
    assert link.is_attached
    assert owner.is_attached
    assert kit.payloads(peer.say(kit.piece(0, b"owner"))) == [b"owner"]


def test_a_begin_replaces_a_session_without_links(peer: RawPeer) -> None:
    peer.opened()
    old = peer.begun()
    ended, begun = peer.say(BEGIN)
    assert isinstance(ended, EndReceived)
    assert isinstance(begun, BeginReceived)
    assert ended.session is old
    assert begun.session is not old
    assert peer.engine.is_opened
