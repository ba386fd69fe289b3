"""What real clients do beyond the plain case: pipelining, repeats, late frames (E19, E20).

Tests name the client that is known for a behavior: rhea and Proton send attach and flow together,
the Python SDK (PY) repeats the delivery-id on every frame and detaches after end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from penstock.amqp.events import (
    AttachReceived,
    BeginReceived,
    CloseReceived,
    DetachReceived,
    EndReceived,
    FlowReceived,
    OpenReceived,
    SaslInitReceived,
    TransferOversized,
    TransfersReceived,
)
from penstock.amqp.frames import AMQP_HEADER, SASL_HEADER
from penstock.amqp.link import Link
from penstock.amqp.performatives import (
    Accepted,
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Error,
    Flow,
    Open,
    SaslInit,
    Source,
    Target,
)

if TYPE_CHECKING:
    from tests.protocol.conftest import Kit, RawPeer

BEGIN = Begin(next_outgoing_id=0, incoming_window=1000, outgoing_window=1000)
STOLEN = Error(condition="amqp:link:stolen", description="taken over")


def credit(link_credit: int, *, delivery_count: int | None = 0, handle: int = 0) -> Flow:
    return Flow(
        next_incoming_id=1,
        incoming_window=1000,
        next_outgoing_id=0,
        outgoing_window=1000,
        handle=handle,
        delivery_count=delivery_count,
        link_credit=link_credit,
    )


def accept(link: Link) -> None:
    link.accept(source=Source(), target=Target(), max_message_size=1000)


def kinds(events: list[object]) -> list[type]:
    return [type(event) for event in events]


# --- all at once --------------------------------------------------------------------------------


def test_header_open_begin_and_attach_arrive_in_one_read(peer: RawPeer, kit: Kit) -> None:
    events = peer.say(AMQP_HEADER, Open(container_id="PY"), BEGIN, kit.attach(sender=True))
    assert kinds([*events]) == [OpenReceived, BeginReceived, AttachReceived]
    accept(kit.only(AttachReceived, events).link)
    assert kinds([sent.body for sent in peer.hear()]) == [Open, Begin, Attach]


def test_a_whole_life_in_one_read_is_answered_in_order(peer: RawPeer, kit: Kit) -> None:
    events = peer.say(
        AMQP_HEADER, Open(container_id="hasty"), BEGIN, kit.attach(sender=True),
        kit.piece(0, b"event", settled=True), Detach(handle=0, closed=True), End(), Close(),
    )  # fmt: skip
    assert kinds([*events]) == [
        OpenReceived, BeginReceived, AttachReceived, TransfersReceived, DetachReceived,
        EndReceived, CloseReceived,
    ]  # fmt: skip
    accept(kit.only(AttachReceived, events).link)  # too late: the peer is gone
    assert kinds([sent.body for sent in peer.hear()]) == [Open, Begin, End, Close]
    assert peer.engine.is_over


def test_everything_behind_sasl_init_waits_for_its_judgement(peer: RawPeer, kit: Kit) -> None:
    events = peer.say(kit.sasl_start, AMQP_HEADER, Open(container_id="Proton"), BEGIN)
    assert kinds([*events]) == [SaslInitReceived]
    peer.engine.answer_sasl(ok=True)
    assert kinds([*peer.say()]) == [OpenReceived, BeginReceived]


def test_sasl_header_and_init_may_come_before_the_mechanisms_are_seen(peer: RawPeer) -> None:
    init = SaslInit(mechanism="MSSBCBS")
    (event,) = peer.say(SASL_HEADER, init)
    assert isinstance(event, SaslInitReceived)
    assert (event.mechanism, event.initial_response, event.hostname) == ("MSSBCBS", b"", None)


def test_a_client_without_sasl_is_let_in_as_nobody(peer: RawPeer) -> None:
    peer.say(AMQP_HEADER, Open(container_id="rhea"))
    assert peer.hear_bytes().startswith(AMQP_HEADER)
    assert peer.engine.is_opened


# --- links before they are answered -------------------------------------------------------------


def test_credit_sent_together_with_attach_counts(peer: RawPeer, kit: Kit) -> None:
    """rhea and Proton write both at once; nothing was read in between."""
    peer.opened()
    peer.begun()
    events = peer.say(kit.attach(sender=False), credit(300, delivery_count=None))
    assert kinds([*events]) == [AttachReceived, FlowReceived]
    link = kit.only(AttachReceived, events).link
    accept(link)
    assert link.credit == 300
    assert link.send(b"event", settled=True) == 0


def test_drain_sent_together_with_attach_is_answered_after_it(peer: RawPeer, kit: Kit) -> None:
    peer.opened()
    peer.begun()
    flow = credit(0, delivery_count=None)
    flow.drain = True
    events = peer.say(kit.attach(sender=False), flow)
    assert peer.hear() == []
    accept(kit.only(AttachReceived, events).link)
    assert kinds([sent.body for sent in peer.hear()]) == [Attach, Flow]


def test_transfers_sent_together_with_attach_are_delivered(peer: RawPeer, kit: Kit) -> None:
    peer.opened()
    peer.begun()
    events = peer.say(kit.attach(sender=True), kit.piece(0, b"a"), kit.piece(1, b"b"))
    assert kit.payloads(events) == [b"a", b"b"]
    link = kit.only(AttachReceived, events).link
    accept(link)
    link.grant(10)
    flow = [sent.body for sent in peer.hear()][-1]
    assert (flow.delivery_count, flow.link_credit) == (2, 10)


def test_detach_sent_together_with_attach_is_answered_after_the_attach(
    peer: RawPeer, kit: Kit
) -> None:
    peer.opened()
    session = peer.begun()
    events = peer.say(kit.attach(sender=True), Detach(handle=0, closed=True))
    assert kinds([*events]) == [AttachReceived, DetachReceived]
    assert peer.hear() == []
    link = kit.only(AttachReceived, events).link
    accept(link)
    link.grant(100)  # as every application does next
    assert kinds([sent.body for sent in peer.hear()]) == [Attach, Detach]
    assert not link.is_attached
    assert session.links == {}


def test_a_refusal_is_heard_although_the_peer_detached_meanwhile(peer: RawPeer, kit: Kit) -> None:
    peer.opened()
    peer.begun()
    events = peer.say(kit.attach(sender=True), Detach(handle=0, closed=True))
    kit.only(AttachReceived, events).link.refuse(STOLEN)
    attach, detach = (sent.body for sent in peer.hear())
    assert (attach.source, attach.target) == (None, None)
    assert detach.error == STOLEN


def test_a_link_whose_session_ended_meanwhile_is_not_answered(peer: RawPeer, kit: Kit) -> None:
    peer.opened()
    peer.begun()
    events = peer.say(kit.attach(sender=True), End())
    link = kit.only(AttachReceived, events).link
    accept(link)
    link.refuse(STOLEN)
    link.grant(100)
    link.settle(0, 0, Accepted())
    assert kinds([sent.body for sent in peer.hear()]) == [End]
    assert not link.is_attached


# --- deliveries ---------------------------------------------------------------------------------


@pytest.mark.parametrize("repeat", [True, False], ids=["PY and JS repeat the id", "GO does not"])
def test_a_delivery_of_several_frames_is_put_together(
    peer: RawPeer, kit: Kit, repeat: bool
) -> None:
    peer.sender()
    again = {} if repeat else {"delivery_tag": None, "message_format": None}
    later = 7 if repeat else None
    events = peer.say(
        kit.piece(7, b"one ", more=True, message_format=0x80013700),
        kit.piece(later, b"two ", more=True, **again),
        kit.piece(later, b"three", **again),
    )
    assert kit.deliveries(events) == [("link", 7, b"one two three", False, 0x80013700)]


def test_whole_deliveries_behind_a_long_one_are_all_found(peer: RawPeer, kit: Kit) -> None:
    peer.sender()
    events = peer.say(
        kit.piece(0, b"a", more=True), kit.piece(0, b"A"), kit.piece(1, b"b"), kit.piece(2, b"c")
    )
    assert kit.payloads(events) == [b"aA", b"b", b"c"]
    assert [each.delivery_id for each in kit.deliveries(events)] == [0, 1, 2]


def test_deliveries_of_two_links_may_be_interleaved(peer: RawPeer, kit: Kit) -> None:
    peer.sender()
    peer.attached(sender=True, name="other", handle=1)
    events = peer.say(
        kit.piece(0, b"a", more=True),
        kit.piece(1, b"b", more=True, handle=1),
        kit.piece(0, b"A"),
        kit.piece(1, b"B", handle=1),
    )
    assert [each[:3] for each in kit.deliveries(events)] == [
        ("link", 0, b"aA"),
        ("other", 1, b"bB"),
    ]


@pytest.mark.parametrize("position", [0, 1, 2])
def test_a_delivery_is_settled_when_any_of_its_frames_says_so(
    peer: RawPeer, kit: Kit, position: int
) -> None:
    peer.sender()
    settled = [None, None, None, None]
    frames = [
        kit.piece(0, b"x", more=i < 2, settled=True if i == position else settled[i])
        for i in range(3)
    ]
    (delivery,) = kit.deliveries(peer.say(*frames))
    assert delivery.settled


def test_an_aborted_delivery_leaves_nothing_and_costs_no_credit(peer: RawPeer, kit: Kit) -> None:
    link = peer.sender()
    link.grant(10)
    peer.hear()
    events = peer.say(kit.piece(0, b"half", more=True), kit.piece(0, aborted=True))
    assert events == []
    assert peer.engine.held_bytes == 0
    # The sender counted it (AMQP 2.6.7), so the limit must move on for it to have 10 again.
    flow = peer.hear_one(Flow)
    assert (flow.delivery_count, flow.link_credit) == (1, 10)
    assert kit.payloads(peer.say(kit.piece(1, b"whole"))) == [b"whole"]


def test_an_aborted_delivery_of_one_frame_is_none(peer: RawPeer, kit: Kit) -> None:
    peer.sender()
    assert peer.say(kit.piece(0, b"x", aborted=True)) == []
    assert kit.payloads(peer.say(kit.piece(1, b"y"))) == [b"y"]


def test_transfers_before_any_credit_are_taken(peer: RawPeer, kit: Kit) -> None:
    """PY starts with a credit of its own making (E19)."""
    link = peer.sender()
    assert link.credit == 0
    events = peer.say(*(kit.piece(i, b"event") for i in range(50)))
    assert len(kit.payloads(events)) == 50
    assert link.credit == 0
    link.replenish(1000)
    flow = peer.hear_one(Flow)
    assert (flow.delivery_count, flow.link_credit) == (50, 1000)


def test_pieces_are_not_counted_against_the_window(
    new_peer: Callable[..., RawPeer], kit: Kit
) -> None:
    """PY counts a delivery of many frames as one (E20)."""
    peer = new_peer(incoming_window=4)
    peer.sender()
    frames = [kit.piece(0, b"x", more=True) for _ in range(20)]
    assert kit.payloads(peer.say(*frames, kit.piece(0, b"!"))) == [b"x" * 20 + b"!"]
    windows = [sent.body.incoming_window for sent in peer.hear()]
    assert windows
    assert set(windows) == {4}


def test_oversize_is_told_once_for_a_delivery_of_many_frames(peer: RawPeer, kit: Kit) -> None:
    link = peer.sender(limit=100)
    assert link.max_message_size == 100
    frames = [kit.piece(0, bytes(60), more=i < 3) for i in range(4)]
    (event,) = peer.say(*frames)
    assert isinstance(event, TransferOversized)
    assert (event.delivery_id, event.size, event.settled) == (0, 240, False)


def test_oversize_is_told_for_single_frames_among_good_ones(peer: RawPeer, kit: Kit) -> None:
    peer.sender(limit=100)
    sizes = [100, 101, 5, 6, 200, 300, 7]
    events = peer.say(*(kit.piece(i, bytes(size)) for i, size in enumerate(sizes)))
    good = [(each.delivery_id, len(each.payload)) for each in kit.deliveries(events)]
    assert good == [(0, 100), (2, 5), (3, 6), (6, 7)]
    bad = [(e.delivery_id, e.size) for e in events if isinstance(e, TransferOversized)]
    assert bad == [(1, 101), (4, 200), (5, 300)]


def test_a_delivery_that_began_too_large_before_the_answer_stays_so(
    new_peer: Callable[..., RawPeer], kit: Kit
) -> None:
    """Its first bytes were thrown away: the larger limit of the answer comes too late for it."""
    peer = new_peer(max_frame_size=1000).opened()
    peer.begun()
    pieces = [kit.piece(0, bytes(600), more=True) for _ in range(2)]
    events = peer.say(kit.attach(sender=True), *pieces)
    kit.only(AttachReceived, events).link.accept(
        source=Source(), target=Target(), max_message_size=10_000
    )
    (event,) = peer.say(kit.piece(0, b"end"))
    assert isinstance(event, TransferOversized)
    assert event.size == 1203


def test_the_smaller_of_both_limits_holds(peer: RawPeer, kit: Kit) -> None:
    """A client that attaches with its own max-message-size means it (protocol.md 4.2)."""
    link = peer.sender(limit=1000, max_message_size=10)
    assert link.max_message_size == 10
    assert kinds([*peer.say(kit.piece(0, bytes(11)))]) == [TransferOversized]


def test_the_clients_own_limit_holds_before_the_answer_too(peer: RawPeer, kit: Kit) -> None:
    peer.opened()
    peer.begun()
    events = peer.say(kit.attach(sender=True, max_message_size=10), kit.piece(0, bytes(11)))
    assert kinds([*events]) == [AttachReceived, TransferOversized]


@pytest.mark.parametrize("asked", [None, 0])
def test_no_limit_of_the_clients_leaves_ours(peer: RawPeer, asked: int | None) -> None:
    assert peer.sender(limit=1000, max_message_size=asked).max_message_size == 1000


# --- goodbyes -----------------------------------------------------------------------------------


def test_frames_after_end_are_ignored(peer: RawPeer, kit: Kit) -> None:
    """PY detaches its links after it ended their session (E19)."""
    peer.sender()
    (event,) = peer.say(End(), Detach(handle=0), kit.piece(0, b"late"), credit(5), End())
    assert isinstance(event, EndReceived)
    assert kinds([sent.body for sent in peer.hear()]) == [End]


def test_a_channel_may_be_begun_again_after_its_end(peer: RawPeer, kit: Kit) -> None:
    old = peer.sender()
    peer.say(End(), Detach(handle=0))
    peer.hear()
    session = peer.begun()
    link = peer.attached(sender=True)
    assert session is not old.session
    assert kit.payloads(peer.say(kit.piece(0, b"new"))) == [b"new"]
    assert not old.is_attached
    assert link.is_attached


def test_the_channels_that_ended_last_are_remembered(peer: RawPeer, kit: Kit) -> None:
    """GO begins and ends a session for every token; late frames may come on the latest ones."""
    peer.opened()
    for channel in (0, *range(1, 64), 0, 64):
        peer.begun(channel=channel)
        peer.say(kit.frame(End(), channel=channel))
    assert peer.say(Detach(handle=0), kit.frame(Detach(handle=0), channel=64)) == []
    assert peer.engine.is_opened


def test_an_ended_session_says_nothing_more(peer: RawPeer, kit: Kit) -> None:
    """rhea throws at a frame on a channel that it ended."""
    link = peer.sender()
    peer.say(kit.piece(0, b"x"), End())
    peer.hear()
    link.settle(0, 0, Accepted())
    link.replenish(1000)
    link.grant(1000)
    link.session.send_flow()
    link.session.send(Disposition(role=False, first=0))
    assert peer.hear() == []


@pytest.mark.parametrize("closed", [True, False])
def test_a_detach_is_answered_in_kind(peer: RawPeer, closed: bool) -> None:
    """AMQP 2.6.6: a closing answer would make a peer that only detached attach again."""
    link = peer.sender()
    (event,) = peer.say(Detach(handle=0, closed=closed, error=STOLEN))
    assert isinstance(event, DetachReceived)
    assert event.error == STOLEN
    detach = peer.hear_one(Detach)
    assert (detach.handle, detach.closed, detach.error) == (link.handle, closed, None)


def test_a_second_detach_is_ignored(peer: RawPeer) -> None:
    peer.sender()
    assert len(peer.say(Detach(handle=0, closed=True), Detach(handle=0, closed=True))) == 1
    assert peer.engine.is_opened


def test_a_name_and_a_handle_are_free_again_after_detach(peer: RawPeer, kit: Kit) -> None:
    first = peer.sender()
    peer.say(Detach(handle=0, closed=True))
    peer.hear()
    second = peer.attached(sender=True)
    assert second is not first
    assert second.handle == first.handle
    first.session.forget_link(first)  # a late word about the old one must not hurt the new one
    assert peer.engine.sessions[0].links == {0: second}
    assert kit.payloads(peer.say(kit.piece(0, b"x"))) == [b"x"]


def test_detaches_may_cross(peer: RawPeer, kit: Kit) -> None:
    link = peer.sender()
    link.detach(STOLEN)
    (event,) = peer.say(kit.piece(0, b"on its way"), credit(5), Detach(handle=0, closed=True))[-1:]
    assert isinstance(event, DetachReceived)
    assert kinds([sent.body for sent in peer.hear()]) == [Detach]
    assert peer.engine.allowance.link_count == 0


def test_what_was_on_its_way_to_a_detached_link_is_thrown_away(peer: RawPeer, kit: Kit) -> None:
    link = peer.sender()
    peer.say(kit.piece(0, b"half", more=True))
    link.detach(STOLEN)
    peer.hear()
    events = peer.say(
        kit.piece(0, b"other half"), kit.piece(1, b"x"), kit.piece(2, b"y", more=True)
    )
    assert events == []
    assert peer.hear() == []
    assert peer.engine.held_bytes == 0


def test_a_refused_link_that_is_never_detached_stays_quiet(peer: RawPeer, kit: Kit) -> None:
    """PY does not answer the detach of a refused link; it ends the session instead."""
    peer.opened()
    peer.begun()
    peer.asked(sender=True).refuse(STOLEN)
    peer.hear()
    assert kinds([*peer.say(End(), Close())]) == [EndReceived, CloseReceived]
    assert kinds([sent.body for sent in peer.hear()]) == [End, Close]


def test_ends_may_cross(peer: RawPeer) -> None:
    link = peer.sender()
    link.session.end(STOLEN)
    (event,) = peer.say(credit(5), Detach(handle=0), End())
    assert isinstance(event, EndReceived)
    assert kinds([sent.body for sent in peer.hear()]) == [End]
    assert peer.engine.sessions == {}


def test_closes_may_cross(peer: RawPeer, kit: Kit) -> None:
    peer.sender()
    peer.engine.close(STOLEN)
    events = peer.say(
        kit.piece(0, b"x"), Begin(next_outgoing_id=0, incoming_window=1, outgoing_window=1),
        kit.attach(sender=True, handle=5), credit(1), End(), Close(),
    )  # fmt: skip
    assert kinds([*events]) == [CloseReceived]
    assert kinds([sent.body for sent in peer.hear()]) == [Close]
    assert peer.engine.is_over


def test_nothing_follows_our_close(peer: RawPeer) -> None:
    link = peer.sender()
    peer.engine.close()
    link.grant(10)
    link.settle(0, 0, Accepted())
    link.session.end()
    peer.engine.close()
    peer.engine.on_time(now_ms=1000)
    assert kinds([sent.body for sent in peer.hear()]) == [Close]


def test_close_is_answered_at_once(peer: RawPeer) -> None:
    peer.opened()
    (event,) = peer.say(Close(error=STOLEN))
    assert isinstance(event, CloseReceived)
    assert event.error == STOLEN
    assert peer.hear_one(Close).error is None
    assert peer.engine.is_over


# --- flow ---------------------------------------------------------------------------------------


def test_echo_of_a_link_is_answered_with_its_state(peer: RawPeer) -> None:
    link = peer.receiver()
    flow = credit(7)
    flow.echo = True
    peer.say(flow)
    answer = peer.hear_one(Flow)
    assert (answer.handle, answer.link_credit, answer.echo) == (link.handle, 7, False)


def test_echo_of_a_session_is_answered_without_a_link(peer: RawPeer) -> None:
    peer.receiver()
    asked = Flow(incoming_window=9, next_outgoing_id=0, outgoing_window=9, echo=True)
    peer.say(asked)
    answer = peer.hear_one(Flow)
    assert (answer.handle, answer.delivery_count, answer.link_credit) == (None, None, None)


@pytest.mark.parametrize("detached", [True, False], ids=["detached", "not answered"])
def test_echo_of_a_link_that_is_not_attached_speaks_of_the_session(
    peer: RawPeer, kit: Kit, detached: bool
) -> None:
    """A flow for a handle that the peer does not know would end the connection on its side."""
    peer.opened()
    peer.begun()
    flow = credit(7)
    flow.echo = True
    if detached:
        peer.attached(sender=False).detach(STOLEN)
        peer.hear()
        peer.say(flow)
    else:
        peer.say(kit.attach(sender=False), flow)
    assert peer.hear_one(Flow).handle is None


def test_drain_is_answered_when_nothing_is_left_to_send(peer: RawPeer) -> None:
    link = peer.receiver()
    flow = credit(5)
    flow.drain = True
    peer.say(flow)
    assert link.drain
    assert peer.hear() == []  # the application may have something yet
    assert link.send(b"x", settled=True) == 0
    link.complete_drain()
    answer = peer.hear()[-1].body
    assert (answer.delivery_count, answer.link_credit, answer.drain) == (5, 0, True)
    assert not link.drain


def test_drain_is_answered_when_deliveries_used_up_the_credit(peer: RawPeer) -> None:
    """GO waits for the flow even then."""
    link = peer.receiver()
    flow = credit(2)
    flow.drain = True
    peer.say(flow)
    link.send(b"x", settled=True)
    link.send(b"y", settled=True)
    answer = peer.hear()[-1].body
    assert isinstance(answer, Flow)
    assert (answer.delivery_count, answer.link_credit, answer.drain) == (2, 0, True)
    assert not link.drain


def test_drain_without_credit_is_answered_at_once(peer: RawPeer) -> None:
    peer.receiver()
    flow = credit(0)
    flow.drain = True
    peer.say(flow)
    answer = peer.hear_one(Flow)
    assert (answer.delivery_count, answer.link_credit, answer.drain) == (0, 0, True)


def test_a_sender_that_skipped_ahead_has_used_its_credit(peer: RawPeer) -> None:
    """The peer was drained: its delivery-count says so (AMQP 2.6.7)."""
    link = peer.sender()
    link.grant(100)
    peer.say(credit(0, delivery_count=100))
    assert (link.delivery_count, link.credit) == (100, 0)
    link.replenish(100)
    assert [sent.body.delivery_count for sent in peer.hear()] == [0, 100]


def test_a_sender_that_speaks_of_its_own_credit_changes_nothing(peer: RawPeer) -> None:
    """PY's senders send flows with a link-credit of their own."""
    link = peer.sender()
    link.grant(100)
    peer.say(credit(10_000, delivery_count=0))
    assert (link.delivery_count, link.credit) == (0, 100)


def test_heartbeats_may_come_at_any_time(peer: RawPeer, kit: Kit) -> None:
    peer.say(AMQP_HEADER, None, Open(container_id="beating"), None, None)
    peer.begun()
    peer.attached(sender=True)
    events = peer.say(kit.piece(0, b"x"), None, kit.piece(1, b"y"), kit.frame(None, channel=77))
    assert kit.payloads(events) == [b"x", b"y"]
