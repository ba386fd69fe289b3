"""What a hostile peer makes us count and keep: sessions, links, texts, deliveries, numbers."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from penstock.amqp.events import (
    AttachReceived,
    ConnectionFailed,
    DispositionReceived,
    FlowReceived,
    TransferOversized,
)
from penstock.amqp.performatives import (
    Begin,
    Detach,
    Disposition,
    End,
    Error,
    Flow,
    Open,
    Source,
    Target,
)

if TYPE_CHECKING:
    from tests.protocol.conftest import Kit, RawPeer

NewPeer = Callable[..., "RawPeer"]

FRAMING = "amqp:connection:framing-error"
LIMIT = "amqp:resource-limit-exceeded"

BEGIN = Begin(next_outgoing_id=0, incoming_window=10, outgoing_window=10)
FLOW_FIELDS: dict[str, Any] = {
    "next_incoming_id": 1,
    "incoming_window": 1000,
    "next_outgoing_id": 0,
    "outgoing_window": 1000,
}


def test_a_channel_above_the_announced_maximum_is_refused(peer: RawPeer, kit: Kit) -> None:
    peer.opened()
    peer.begun(channel=4999)
    assert peer.failure(kit.frame(BEGIN, channel=5000)) == FRAMING


def test_sessions_are_counted(new_peer: NewPeer, kit: Kit) -> None:
    peer = new_peer(sessions_max=3).opened()
    for channel in range(3):
        peer.begun(channel=channel)
    assert peer.failure(kit.frame(BEGIN, channel=3)) == LIMIT


def test_ended_sessions_are_not_counted(new_peer: NewPeer, kit: Kit) -> None:
    peer = new_peer(sessions_max=2).opened()
    for channel in range(1000):
        peer.say(kit.frame(BEGIN, channel=channel), kit.frame(End(), channel=channel))
        peer.hear_bytes()
    assert peer.engine.is_opened
    assert len(peer.engine._ended_channels) <= 64
    assert len(peer.engine._free_channels) == 1


def test_our_channels_stay_below_what_the_peer_takes(peer: RawPeer, kit: Kit) -> None:
    peer.opened(channel_max=1)
    peer.begun(channel=10)
    peer.begun(channel=20)
    assert peer.failure(kit.frame(BEGIN, channel=30)) == LIMIT


def test_our_handles_stay_below_what_the_peer_takes(peer: RawPeer, kit: Kit) -> None:
    peer.opened()
    peer.begun(handle_max=1)
    peer.attached(sender=True, handle=10)
    peer.attached(sender=True, handle=11)
    assert peer.failure(kit.attach(sender=True, handle=12)) == LIMIT


def test_a_handle_above_the_announced_maximum_is_refused(peer: RawPeer, kit: Kit) -> None:
    peer.sender(handle=255)
    assert peer.failure(kit.attach(sender=True, name="b", handle=256)) == FRAMING  # AMQP 2.7.2


def test_links_are_counted_over_all_sessions(new_peer: NewPeer, kit: Kit) -> None:
    peer = new_peer(links_max=3).opened()
    peer.begun(channel=0)
    peer.begun(channel=1)
    peer.asked(sender=True, channel=0, handle=0)
    peer.asked(sender=True, channel=1, handle=0)
    peer.asked(sender=True, channel=0, handle=1)
    assert peer.failure(kit.frame(kit.attach(sender=True, handle=1), channel=1)) == LIMIT


def test_detached_and_ended_links_are_not_counted(new_peer: NewPeer, kit: Kit) -> None:
    peer = new_peer(links_max=2, link_text_max=100).opened()
    for _ in range(50):
        peer.begun()
        peer.attached(sender=True, handle=0)
        peer.attached(sender=False, handle=1)
        peer.say(Detach(handle=0, closed=True))
        peer.say(End())
    assert peer.engine.allowance.link_count == 0
    assert peer.engine.allowance.link_text == 0


def test_texts_that_links_make_us_keep_are_counted(new_peer: NewPeer, kit: Kit) -> None:
    peer = new_peer(link_text_max=100_000).opened()
    peer.begun()
    attach: dict[str, Any] = {
        "sender": True,
        "source": Source(address="s" * 10_000),
        "target": None,
    }
    for handle in range(4):
        peer.asked(**attach, handle=handle, name="n" * 10_000).refuse(Error(condition="c"))
    peer.asked(**attach, handle=4, name="n" * 10_000)
    assert peer.failure(kit.attach(**attach, handle=5, name="n" * 10_000)) == LIMIT


def test_what_an_attach_said_is_forgotten_once_it_was_answered(peer: RawPeer, kit: Kit) -> None:
    heavy: dict[str, object] = {str(i): "x" * 200 for i in range(120)}
    peer.opened()
    peer.begun()
    events = peer.say(
        kit.attach(sender=True, properties=heavy, source=Source(address="here", filter=heavy))
    )
    link = kit.only(AttachReceived, events).link
    assert link.attach.properties == heavy
    link.accept(source=link.attach.source, target=link.attach.target, max_message_size=100)
    assert link.attach.properties is None
    assert link.attach.source == Source(address="here")
    assert link.attach.target == Target(address="target")
    assert len(peer.hear_bytes()) > 20_000  # the answer still echoed it


def test_only_what_is_used_of_an_open_is_kept(peer: RawPeer) -> None:
    """102 bytes kept 524 KB until the connection ended before."""
    heavy: dict[str, object] = {f"{i:x}": [[]] * 2 for i in range(100)}
    tracemalloc.start()
    peer.opened(
        container_id="c" * 1000,
        hostname="h" * 1000,
        idle_time_out=60_000,
        offered_capabilities=["o" * 100] * 10,
        desired_capabilities=["d" * 100] * 10,
        properties={"Product": "p" * 300, "VERSION": "1.2", "user-agent": ["no text"], **heavy},
    )
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size < 30_000
    assert peer.engine.open == Open(
        container_id="c" * 256,
        hostname="h" * 256,
        idle_time_out=60_000,
        properties={"Product": "p" * 256, "VERSION": "1.2"},
    )


def test_a_delivery_that_gets_no_frame_for_a_minute_ends_the_connection(
    peer: RawPeer, kit: Kit
) -> None:
    """Heartbeats and frames of other deliveries do not keep it alive (protocol.md 1.6)."""
    peer.sender()
    peer.attached(sender=True, handle=1)
    peer.say(kit.piece(0, b"x", handle=0, more=True))
    for _ in range(59):
        peer.now_ms += 1000
        peer.say(kit.piece(1, b"y", handle=1, more=True))
    assert peer.engine.next_deadline_ms() == peer.now_ms + 1000
    assert peer.engine.on_time(now_ms=peer.now_ms) == []
    (failed,) = peer.engine.on_time(now_ms=peer.now_ms + 1000)
    assert isinstance(failed, ConnectionFailed)
    assert "A delivery got no frame for 60000 milliseconds." in str(failed.error)


def test_a_finished_delivery_has_no_deadline(peer: RawPeer, kit: Kit) -> None:
    peer.sender()
    peer.say(kit.piece(0, b"x", more=True))
    peer.say(kit.piece(0, b"x", more=False))
    assert peer.engine.allowance.oldest_partial_ms() is None
    assert peer.engine.on_time(now_ms=peer.now_ms + 100_000) == []


def test_deliveries_without_end_are_bounded_over_all_links(new_peer: NewPeer, kit: Kit) -> None:
    peer = new_peer(partial_bytes_max=100_000).opened()
    peer.begun()
    for handle in range(10):
        peer.attached(sender=True, handle=handle)
        events = peer.say(kit.piece(handle, bytes(10_000), handle=handle, more=True))
        assert events == []
    assert peer.engine.held_bytes == 100_000
    assert peer.failure(kit.piece(0, b"x", more=True)) == LIMIT


def test_a_delivery_of_empty_frames_without_end_costs_nothing(peer: RawPeer, kit: Kit) -> None:
    peer.sender()
    frames = kit.piece(0, more=True) * 500
    peer.say(frames)
    tracemalloc.start()
    for _ in range(6):
        assert peer.say(frames) == []
        peer.hear_bytes()
    current, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert current < 10_000
    assert peer.engine.held_bytes == 0
    assert kit.payloads(peer.say(kit.piece(0, b"end"))) == [b"end"]


def test_a_delivery_of_tiny_frames_costs_no_more_than_its_bytes(peer: RawPeer, kit: Kit) -> None:
    peer.sender()
    frames = kit.piece(0, b"x", more=True) * 500
    tracemalloc.start()
    for _ in range(10):
        peer.say(frames)
        peer.hear_bytes()
    current, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peer.engine.held_bytes == 5000
    assert current < 15_000  # as objects, one each, they would take 200 000


def test_bytes_above_the_limit_are_thrown_away_as_they_come(peer: RawPeer, kit: Kit) -> None:
    peer.sender(limit=100_000)
    for i in range(100):
        assert peer.say(kit.piece(0, bytes(60_000), more=True)) == []
        assert peer.engine.held_bytes == (60_000 if i == 0 else 0)
    (event,) = peer.say(kit.piece(0, b"end"))
    assert isinstance(event, TransferOversized)
    assert event.size == 100 * 60_000 + 3


def test_before_an_answer_only_one_frames_worth_is_kept(new_peer: NewPeer, kit: Kit) -> None:
    peer = new_peer(max_frame_size=1000).opened()
    peer.begun()
    pieces = [kit.piece(0, bytes(600), more=i < 9) for i in range(10)]
    events = peer.say(kit.attach(sender=True), *pieces)
    oversized = kit.only(TransferOversized, events)
    assert oversized.size == 6000


def test_many_links_are_attached_without_a_search(new_peer: NewPeer, kit: Kit) -> None:
    """Handles come back in order, the lowest first, so that none runs past handle-max."""
    peer = new_peer(handle_max=5000, links_max=5000).opened()
    peer.begun()
    links = [peer.attached(sender=True, handle=i) for i in range(300)]
    assert [link.handle for link in links] == list(range(300))
    for i in (7, 3, 250):
        peer.say(Detach(handle=i, closed=True))
    assert [peer.attached(sender=True, handle=1000 + i).handle for i in range(4)] == [
        3,
        7,
        250,
        300,
    ]


# --- numbers ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("first", "last"), [(0, 2**32 - 1), (2**32 - 1, 0), (5, 1), (9, None)])
def test_absurd_dispositions_cost_nothing(peer: RawPeer, first: int, last: int | None) -> None:
    peer.receiver()
    (event,) = peer.say(Disposition(role=True, first=first, last=last, settled=True))
    assert isinstance(event, DispositionReceived)
    assert (event.disposition.first, event.disposition.last) == (first, last)
    assert peer.hear() == []


@pytest.mark.parametrize("window", [0, 1, 2**31 - 1, 2**31, 2**32 - 1])
@pytest.mark.parametrize("seen", [None, 0, 1, 2, 2**31, 2**32 - 1])
def test_absurd_windows_are_borne(peer: RawPeer, window: int, seen: int | None) -> None:
    link = peer.receiver()
    (event,) = peer.say(
        Flow(next_incoming_id=seen, incoming_window=window, next_outgoing_id=0, outgoing_window=0)
    )
    assert isinstance(event, FlowReceived)
    assert 0 <= link.sendable_frames <= window


@pytest.mark.parametrize("credit", [0, 1, 2**31 - 1, 2**31, 2**32 - 1])
@pytest.mark.parametrize("count", [None, 0, 1, 2**31, 2**32 - 1])
def test_absurd_credit_is_borne(peer: RawPeer, credit: int, count: int | None) -> None:
    link = peer.receiver()
    peer.say(Flow(**FLOW_FIELDS, handle=0, delivery_count=count, link_credit=credit))
    assert 0 <= link.credit <= credit


@pytest.mark.parametrize("count", [2**31 - 1, 2**31, 2**32 - 1])
def test_a_sender_that_claims_an_absurd_count_hurts_only_itself(
    peer: RawPeer, kit: Kit, count: int
) -> None:
    link = peer.sender()
    link.grant(100)
    peer.say(Flow(**FLOW_FIELDS, handle=0, delivery_count=count, link_credit=0))
    assert 0 <= link.credit <= 100
    assert kit.payloads(peer.say(kit.piece(0, b"x"))) == [b"x"]


def test_delivery_ids_that_jump_are_borne(peer: RawPeer, kit: Kit) -> None:
    peer.sender()
    ids = [5, 5, 2**32 - 1, 0, 77]
    events = peer.say(*(kit.piece(i, b"x") for i in ids))
    assert [each.delivery_id for each in kit.deliveries(events)] == ids


def test_a_delivery_tag_longer_than_32_bytes_is_borne(peer: RawPeer, kit: Kit) -> None:
    peer.sender()
    assert kit.payloads(peer.say(kit.piece(0, b"x", delivery_tag=b"t" * 1000))) == [b"x"]


def test_a_long_name_does_not_make_a_long_error(peer: RawPeer, kit: Kit) -> None:
    peer.sender(name="\u2028" * 5000)
    peer.failure(kit.piece(None, b"x"))
    assert len(peer.hear_bytes()) < 512
