"""An attach whose decision comes in a later turn, as of a registration in another process."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from penstock.amqp.link import Link, LinkRole
from penstock.amqp.performatives import Attach, Detach
from penstock.gateway.amqp import attach
from penstock.gateway.amqp.links import LinkHost, OnDecided
from penstock.gateway.backpressure import PauseReason

if TYPE_CHECKING:
    from tests.unit.gateway.amqp.conftest import Peer, World

READER = "eh1/ConsumerGroups/$Default/Partitions/0"


@pytest.fixture
def late(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """Decisions that wait. `peer` has its token already."""
    waiting: list[Callable[[], None]] = []
    decide = attach.decide_attach

    def decide_later(host: LinkHost, link: Link, on_decided: OnDecided) -> None:
        waiting.append(lambda: decide(host, link, on_decided))

    monkeypatch.setattr(attach, "decide_attach", decide_later)
    return waiting


def test_link_is_attached_when_it_is_decided(
    world: World, peer: Peer, late: list[Callable[[], None]]
) -> None:
    world.logs.partition("id-of-eh1", 0)
    before = len(peer.heard)
    link = peer.attach(READER, LinkRole.RECEIVER)
    link.grant(5)
    peer.run()
    assert peer.said(Attach, since=before) == []
    late.pop()()
    peer.run()
    assert link.is_attached
    assert len(world.readers()) == 1


def test_refusal_may_come_later(peer: Peer, late: list[Callable[[], None]]) -> None:
    link = peer.attach("nothing", LinkRole.SENDER)
    assert peer.detach_error(link) is None
    late.pop()()
    peer.run()
    error = peer.detach_error(link)
    assert error is not None
    assert error.condition == "amqp:not-found"


def test_deliveries_wait_for_the_decision_and_pause_reading(
    world: World, peer: Peer, late: list[Callable[[], None]]
) -> None:
    link = peer.attach("eh1/Partitions/0", LinkRole.SENDER)
    link.credit = 10  # some clients send without any (E19)
    peer.publish(link, world.event(b"a"), world.event(b"b"))
    assert world.stored(0) == []
    assert peer.connection.backpressure.reasons == {PauseReason.ATTACH}
    assert not peer.socket.is_reading
    late.pop()()
    peer.run()
    assert world.stored(0) == [b"a", b"b"]
    assert peer.socket.is_reading
    assert [(each.first, each.last) for each in peer.outcomes()[-1:]] != []


def test_link_that_the_peer_has_detached_meanwhile_keeps_no_registration(
    world: World, peer: Peer, late: list[Callable[[], None]]
) -> None:
    before = len(peer.heard)
    link = peer.attach(READER, LinkRole.RECEIVER)
    link.detach()
    peer.run()
    late.pop()()
    peer.run()
    assert world.readers() == []
    assert [type(sent.body) for sent in peer.heard[before:]] == [Attach, Detach]
    assert peer.close_error is None


def test_session_that_has_ended_meanwhile_keeps_no_registration(
    world: World, peer: Peer, late: list[Callable[[], None]]
) -> None:
    session = peer.engine.begin()
    peer.run()
    peer.attach(READER, LinkRole.RECEIVER, session=session)
    session.end()
    peer.run()
    late.pop()()
    peer.run()
    assert world.readers() == []
    assert peer.close_error is None


@pytest.mark.parametrize("is_lost", [False, True])
def test_connection_that_has_ended_meanwhile_keeps_no_registration(
    world: World, peer: Peer, late: list[Callable[[], None]], is_lost: bool
) -> None:
    peer.attach(READER, LinkRole.RECEIVER)
    if is_lost:
        peer.lose()
    else:
        peer.connection.shut_down()
    late.pop()()
    world.loop.settle()
    assert world.readers() == []
