"""Credit and windows against plain arithmetic, where ids wrap at 2**32 (AMQP 2.5.6, 2.6.7)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.amqp_frames import frame

from penstock.amqp.connection import ConnectionConfig, ConnectionEngine
from penstock.amqp.events import AttachReceived
from penstock.amqp.frames import AMQP_HEADER
from penstock.amqp.link import Link
from penstock.amqp.performatives import (
    Attach,
    Begin,
    Flow,
    Open,
    Source,
    Target,
)

if TYPE_CHECKING:
    from tests.protocol.conftest import Kit, RawPeer

WRAP = 2**32
NewPeer = Callable[..., "RawPeer"]


def flow(**fields: int | None) -> Flow:
    whole: dict[str, int | None] = {
        "next_incoming_id": 1,
        "incoming_window": 1000,
        "next_outgoing_id": 0,
        "outgoing_window": 1000,
        **fields,
    }
    return Flow(**whole)  # type: ignore[arg-type]  # windows are never None here


# --- what we may send ---------------------------------------------------------------------------


def test_begin_says_how_much_the_peer_takes(peer: RawPeer) -> None:
    peer.opened()
    assert peer.begun(incoming_window=17).sendable_frames == 17


def test_each_frame_takes_one_of_the_window(peer: RawPeer) -> None:
    peer.opened(max_frame_size=512)
    session = peer.begun(incoming_window=10)
    link = peer.attached(sender=False)
    peer.say(flow(handle=0, delivery_count=0, link_credit=100, incoming_window=10))
    link.send(bytes(1000), settled=True)
    assert session.sendable_frames == 7
    link.send(b"", settled=True)
    assert session.sendable_frames == 6


def test_a_delivery_waits_until_all_its_frames_fit(peer: RawPeer) -> None:
    """Nothing of it goes out before: a half would block the link for others."""
    peer.opened(max_frame_size=512)
    peer.begun(incoming_window=2)
    link = peer.attached(sender=False)
    peer.say(flow(handle=0, delivery_count=0, link_credit=100, incoming_window=2))
    assert link.send(bytes(1000), settled=True) is None
    assert link.credit == 100
    assert peer.hear_bytes() == b""
    peer.say(flow(incoming_window=3))
    assert link.send(bytes(1000), settled=True) == 0


@pytest.mark.parametrize(("credit", "window"), [(0, 5), (5, 0), (0, 0)])
def test_nothing_goes_without_credit_and_window(peer: RawPeer, credit: int, window: int) -> None:
    link = peer.receiver()
    peer.say(flow(handle=0, delivery_count=0, link_credit=credit, incoming_window=window))
    assert link.send(b"x", settled=True) is None
    assert link.session.next_delivery_id == 0
    assert peer.hear_bytes() == b""


def test_a_flow_on_the_way_does_not_give_the_same_window_twice(peer: RawPeer) -> None:
    link = peer.receiver()
    peer.say(flow(handle=0, delivery_count=0, link_credit=10, incoming_window=10))
    for _ in range(4):
        link.send(b"x", settled=True)
    # The peer has seen two of the four when it writes this.
    peer.say(
        flow(next_incoming_id=3, incoming_window=10, handle=0, delivery_count=2, link_credit=10)
    )
    assert link.sendable_frames == 8
    assert link.credit == 8


def test_a_peer_that_has_not_seen_our_begin_counts_from_our_first(peer: RawPeer) -> None:
    link = peer.receiver()
    peer.say(flow(handle=0, delivery_count=None, link_credit=10, incoming_window=10))
    link.send(b"x", settled=True)
    peer.say(
        flow(
            next_incoming_id=None, incoming_window=10, handle=0, delivery_count=None, link_credit=10
        )
    )
    assert link.sendable_frames == 9
    assert link.credit == 9


def test_credit_is_taken_back_by_a_smaller_flow(peer: RawPeer) -> None:
    link = peer.receiver()
    peer.say(flow(handle=0, delivery_count=0, link_credit=10))
    peer.say(flow(handle=0, delivery_count=0, link_credit=3))
    assert link.credit == 3
    peer.say(flow(handle=0, delivery_count=0, link_credit=0))
    assert link.credit == 0


def test_a_flow_of_the_session_leaves_credit_alone(peer: RawPeer) -> None:
    link = peer.receiver()
    peer.say(flow(handle=0, delivery_count=0, link_credit=10))
    peer.say(flow(incoming_window=3))
    assert (link.credit, link.sendable_frames) == (10, 3)


def test_a_flow_of_a_link_without_credit_leaves_it_alone(peer: RawPeer) -> None:
    link = peer.receiver()
    peer.say(flow(handle=0, delivery_count=0, link_credit=10))
    peer.say(flow(handle=0, delivery_count=0, link_credit=None))
    assert link.credit == 10


@pytest.mark.parametrize("credit", [2**31 - 1, 2**31, WRAP - 1])
def test_the_largest_credits_and_windows_count_as_what_they_are(peer: RawPeer, credit: int) -> None:
    link = peer.receiver()
    peer.say(flow(handle=0, delivery_count=0, link_credit=credit, incoming_window=credit))
    assert link.credit == link.sendable_frames == credit
    link.send(b"x", settled=True)
    assert link.credit == link.sendable_frames == credit - 1
    peer.say(flow(handle=0, delivery_count=0, link_credit=credit, incoming_window=credit))
    assert link.credit == link.sendable_frames == credit - 1


def attach_reader() -> tuple[ConnectionEngine, Link]:
    """An engine with a link on which it sends. No fixture: Hypothesis needs one per example."""
    engine = ConnectionEngine(ConnectionConfig(container_id="c"), now_ms=0)
    spoken = AMQP_HEADER + frame(Open(container_id="peer"))
    spoken += frame(Begin(next_outgoing_id=0, incoming_window=0, outgoing_window=0))
    spoken += frame(Attach(name="n", handle=0, role=True, source=Source(), target=Target()))
    event = engine.receive_data(spoken, now_ms=0)[-1]
    assert isinstance(event, AttachReceived)
    event.link.accept(source=Source(), target=Target(), max_message_size=1000)
    return engine, event.link


STARTS = st.sampled_from([0, 1, 5, 2**31 - 2, 2**31, WRAP - 3, WRAP - 1])
STEPS = st.lists(
    st.tuples(
        st.integers(0, 5),  # deliveries to try
        st.integers(0, 6),  # how many of them the peer has not seen when it writes
        st.sampled_from([0, 1, 3, 10, 2**31 - 1, 2**31, WRAP - 1]),  # its window
        st.sampled_from([0, 1, 3, 10, 2**31 - 1, 2**31, WRAP - 1]),  # its credit
    ),
    max_size=12,
)


@settings(max_examples=200, deadline=None)
@given(first_id=STARTS, first_count=STARTS, steps=STEPS)
def test_windows_and_credit_are_those_of_plain_arithmetic(
    first_id: int, first_count: int, steps: list[tuple[int, int, int, int]]
) -> None:
    engine, link = attach_reader()
    session = engine.sessions[0]
    session._next_outgoing_id = first_id
    link.delivery_count = first_count
    sent = 0  # one frame each, so this counts frames and deliveries
    window = credit = 0
    for tries, unseen, peers_window, peers_credit in steps:
        for _ in range(tries):
            went = link.send(b"x", settled=True) is not None
            assert went == (window > 0 and credit > 0)
            if went:
                sent, window, credit = sent + 1, window - 1, credit - 1
        seen = max(0, sent - unseen)
        written = Flow(
            next_incoming_id=(first_id + seen) % WRAP,
            incoming_window=peers_window,
            next_outgoing_id=0,
            outgoing_window=0,
            handle=0,
            delivery_count=(first_count + seen) % WRAP,
            link_credit=peers_credit,
        )
        engine.receive_data(frame(written), now_ms=0)
        window = max(0, seen + peers_window - sent)
        credit = max(0, seen + peers_credit - sent)
        assert (link.sendable_frames, link.credit) == (window, credit)
    assert link.delivery_count == (first_count + sent) % WRAP
    assert session.next_delivery_id == sent


def test_delivery_ids_wrap(peer: RawPeer) -> None:
    link = peer.receiver()
    peer.engine.sessions[0].next_delivery_id = WRAP - 2
    peer.say(flow(handle=0, delivery_count=0, link_credit=10))
    assert [link.send(b"x", settled=True) for _ in range(4)] == [WRAP - 2, WRAP - 1, 0, 1]
    assert [sent.body.delivery_id for sent in peer.hear()] == [WRAP - 2, WRAP - 1, 0, 1]


def test_an_unsettled_delivery_without_a_tag_is_tagged_by_its_id(peer: RawPeer) -> None:
    link = peer.receiver()
    peer.engine.sessions[0].next_delivery_id = WRAP - 1
    peer.say(flow(handle=0, delivery_count=0, link_credit=10))
    link.send(b"x", settled=False)
    link.send(b"y", settled=False)
    tags = [sent.body.delivery_tag for sent in peer.hear()]
    assert tags == [b"\xff\xff\xff\xff", b"\x00\x00\x00\x00"]


# --- what the peer may send ---------------------------------------------------------------------


def test_our_flow_follows_the_peers_ids_over_the_wrap(peer: RawPeer, kit: Kit) -> None:
    peer.opened()
    peer.begun(next_outgoing_id=WRAP - 1)
    link = peer.attached(sender=True, initial_delivery_count=WRAP - 2)
    events = peer.say(*(kit.piece((WRAP - 2 + i) % WRAP, b"x") for i in range(4)))
    assert [each.delivery_id for each in kit.deliveries(events)] == [WRAP - 2, WRAP - 1, 0, 1]
    link.grant(50)
    ours = peer.hear_one(Flow)
    assert (ours.next_incoming_id, ours.delivery_count, ours.link_credit) == (3, 2, 50)


def test_the_window_is_opened_again_at_half(new_peer: NewPeer, kit: Kit) -> None:
    peer = new_peer(incoming_window=10)
    peer.sender()
    for i in range(4):
        peer.say(kit.piece(i, b"x"))
        assert peer.hear() == []
    peer.say(kit.piece(4, b"x"))
    ours = peer.hear_one(Flow)
    assert (ours.next_incoming_id, ours.incoming_window, ours.handle) == (5, 10, None)


def test_one_flow_opens_the_window_for_a_whole_run(new_peer: NewPeer, kit: Kit) -> None:
    peer = new_peer(incoming_window=10)
    peer.sender()
    peer.say(*(kit.piece(i, b"x") for i in range(1000)))
    assert [sent.body.next_incoming_id for sent in peer.hear()] == [1000]


def test_any_flow_of_ours_puts_the_next_one_off(new_peer: NewPeer, kit: Kit) -> None:
    peer = new_peer(incoming_window=10)
    link = peer.sender()
    peer.say(*(kit.piece(i, b"x") for i in range(4)))
    link.grant(5)
    peer.hear()
    peer.say(*(kit.piece(i, b"x") for i in range(4, 8)))
    assert peer.hear() == []


def test_a_sender_that_skips_over_the_wrap_has_used_its_credit(peer: RawPeer) -> None:
    link = peer.sender(initial_delivery_count=WRAP - 3)
    link.grant(10)
    peer.say(flow(handle=0, delivery_count=2, link_credit=5))
    assert (link.delivery_count, link.credit) == (2, 5)


def test_a_senders_older_count_is_ignored(peer: RawPeer, kit: Kit) -> None:
    link = peer.sender()
    link.grant(10)
    peer.say(*(kit.piece(i, b"x") for i in range(3)))
    peer.say(flow(handle=0, delivery_count=1, link_credit=9))
    assert (link.delivery_count, link.credit) == (3, 7)
