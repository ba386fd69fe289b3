"""The bytes that the engine sends, rule by rule (protocol.md E1-E15, 13).

The tests decode them by hand or with the decoder of Microsoft's Python SDK (PY), which supports
neither short lists nor long descriptors; never with ours alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from azure.eventhub._pyamqp._decode import decode_frame

from penstock.amqp.frames import AMQP_HEADER, SASL_HEADER
from penstock.amqp.link import Link
from penstock.amqp.performatives import (
    Accepted,
    Disposition,
    Error,
    Flow,
    Open,
    Rejected,
    SaslInit,
    Source,
    Target,
)

if TYPE_CHECKING:
    from tests.protocol.conftest import Kit, RawPeer

NewPeer = Callable[..., "RawPeer"]

OPEN, BEGIN, ATTACH, FLOW, TRANSFER, DISPOSITION, DETACH, END, CLOSE = range(0x10, 0x19)
# Every field is written, nulls too (E2).
FIELD_COUNTS = {
    OPEN: 10,
    BEGIN: 8,
    ATTACH: 14,
    FLOW: 11,
    TRANSFER: 11,
    DISPOSITION: 6,
    DETACH: 3,
    END: 1,
    CLOSE: 1,
}
NOT_FOUND = Error(condition="amqp:not-found", description="The messaging entity is not there.")

WIRE_NOT_FOUND = [b"amqp:not-found", b"The messaging entity is not there.", None]


class Written:
    """One frame as PY reads it: code, fields in order, payload."""

    def __init__(self, frame: bytes) -> None:
        self.size = len(frame)
        self.channel = int.from_bytes(frame[6:8], "big")
        self.kind = frame[5]
        self.body = frame[8:]
        self.code: int
        self.code, self.fields = decode_frame(memoryview(frame)[8:])
        self.payload = bytes(self.fields.pop()) if self.code == TRANSFER else b""

    def __repr__(self) -> str:
        return f"{self.code:#x} {self.fields}"


def frames(data: bytes) -> list[bytes]:
    cut = []
    while data:
        if data.startswith(b"AMQP"):
            data = data[8:]
            continue
        size = int.from_bytes(data[:4], "big")
        cut.append(data[:size])
        data = data[size:]
    return cut


def written(peer: RawPeer) -> list[Written]:
    return [Written(frame) for frame in frames(peer.hear_bytes())]


def give_credit(peer: RawPeer, credit: int = 100) -> None:
    peer.say(
        Flow(
            next_incoming_id=1,
            incoming_window=1000,
            next_outgoing_id=0,
            outgoing_window=1000,
            handle=0,
            delivery_count=0,
            link_credit=credit,
        )
    )


@pytest.fixture
def life(new_peer: NewPeer, kit: Kit) -> list[bytes]:
    """Everything that a server ever says, a frame each."""
    peer = new_peer()
    peer.say(AMQP_HEADER, Open(container_id="peer"))
    data = peer.hear_bytes()
    peer.say(kit.frame(kit.begin, channel=3))
    publisher = peer.asked(sender=True, channel=3, handle=7, snd_settle_mode=2, rcv_settle_mode=0)
    publisher.accept(
        source=Source(address="a"),
        target=Target(address="b"),
        max_message_size=262_144,
        properties={"com.microsoft:tracking-id": "x"},
    )
    publisher.grant(1000)
    publisher.settle(0, 9, Accepted())
    publisher.settle(10, 10, Rejected(error=NOT_FOUND))
    reader = peer.asked(sender=False, channel=3, handle=8)
    reader.accept(source=Source(address="a"), target=None, max_message_size=1000)
    peer.say(kit.frame(credit_of(8, 50), channel=3))
    reader.send(b"event", settled=True)
    reader.send(bytes(100_000), settled=False)
    reader.complete_drain()
    reader.session.send_flow()
    reader.session.send(Disposition(role=False, first=0, settled=True, state=Accepted()))
    reader.detach(NOT_FOUND)
    peer.asked(sender=False, channel=3, handle=9).refuse(NOT_FOUND)
    publisher.session.end(NOT_FOUND)
    peer.engine.close()
    data += peer.hear_bytes()
    return frames(data)


def credit_of(handle: int, credit: int) -> Flow:
    return Flow(
        next_incoming_id=1,
        incoming_window=1000,
        next_outgoing_id=0,
        outgoing_window=1000,
        handle=handle,
        delivery_count=0,
        link_credit=credit,
    )


# --- every frame --------------------------------------------------------------------------------


def test_e1_descriptors_are_three_bytes(life: list[bytes]) -> None:
    seen = set()
    for frame in life:
        assert frame[8:10] == b"\x00\x53"
        seen.add(frame[10])
    assert seen == set(FIELD_COUNTS)


def test_e2_e3_every_field_is_written_into_a_list_that_is_not_empty(life: list[bytes]) -> None:
    for frame in life:
        assert frame[11] in (0xC0, 0xD0)
        count = frame[13] if frame[11] == 0xC0 else int.from_bytes(frame[16:20], "big")
        assert count == FIELD_COUNTS[frame[10]]
        assert len(Written(frame).fields) == count


def test_frames_say_their_size_and_have_no_extended_header(life: list[bytes]) -> None:
    for frame in life:
        assert int.from_bytes(frame[:4], "big") == len(frame) <= 65_536
        assert frame[4] == 2
        assert frame[5] == 0


def test_frames_go_out_on_our_own_channel(life: list[bytes]) -> None:
    assert {Written(frame).channel for frame in life} == {0}  # the peer's is 3


def test_e12_every_error_has_three_fields(life: list[bytes]) -> None:
    errors = [
        error
        for each in map(Written, life)
        for error in (
            each.fields[2] if each.code == DETACH else None,
            each.fields[0] if each.code in (END, CLOSE) else None,
            each.fields[4].get("rejected", [None])[0] if each.code == DISPOSITION else None,
        )
        if error
    ]
    assert len(errors) == 4
    for error in errors:
        assert error == WIRE_NOT_FOUND


# --- connection and session ---------------------------------------------------------------------


def test_sasl_is_offered_in_the_services_order(peer: RawPeer) -> None:
    peer.say(SASL_HEADER)
    data = peer.hear_bytes()
    assert data.startswith(SASL_HEADER)
    (frame,) = frames(data)
    assert frame[5] == 1
    code, fields = decode_frame(memoryview(frame)[8:])
    assert code == 0x40
    assert fields == [[b"MSSBCBS", b"PLAIN", b"ANONYMOUS", b"EXTERNAL"]]


@pytest.mark.parametrize(("ok", "outcome"), [(True, [0, b"Welcome!"]), (False, [1, None])])
def test_sasl_outcome_is_the_services(peer: RawPeer, ok: bool, outcome: list[object]) -> None:
    peer.say(SASL_HEADER, SaslInit(mechanism="ANONYMOUS"))
    peer.hear_bytes()
    peer.engine.answer_sasl(ok=ok)
    (frame,) = frames(peer.hear_bytes())
    assert decode_frame(memoryview(frame)[8:]) == (0x44, outcome)
    assert peer.engine.is_over is not ok


def test_the_amqp_header_comes_before_open(peer: RawPeer) -> None:
    peer.say(AMQP_HEADER)
    assert peer.hear_bytes() == AMQP_HEADER
    peer.say(Open(container_id="peer"))
    assert peer.hear_bytes()[8:11] == b"\x00\x53\x10"


def test_e4_open_announces_what_the_service_does(peer: RawPeer) -> None:
    peer.say(AMQP_HEADER, Open(container_id="peer", hostname="contoso", max_frame_size=4096))
    (opened,) = written(peer)
    # Our own limit, not a mirror of the peer's.
    assert opened.fields == [b"server_G0", None, 65_536, 4999, 120_000] + [None] * 5


def test_e4_begin_announces_what_the_service_does(peer: RawPeer, kit: Kit) -> None:
    peer.opened()
    peer.say(kit.frame(kit.begin, channel=7))
    (begun,) = written(peer)
    assert begun.channel == 0
    assert begun.fields == [7, 1, 5000, 65_536, 255, None, None, None]


def test_sessions_are_answered_on_channels_of_our_own(peer: RawPeer, kit: Kit) -> None:
    peer.opened()
    for theirs in (9, 4, 6):
        peer.say(kit.frame(kit.begin, channel=theirs))
    assert [(each.channel, each.fields[0]) for each in written(peer)] == [(0, 9), (1, 4), (2, 6)]


# --- links --------------------------------------------------------------------------------------


def answered(peer: RawPeer, *, sender: bool, **fields: Any) -> tuple[Link, Written]:
    peer.opened()
    peer.begun()
    link = peer.asked(sender=sender, **fields)
    link.accept(source=Source(address="s"), target=Target(address="t"), max_message_size=262_144)
    (reply,) = written(peer)
    assert reply.code == ATTACH
    return link, reply


@pytest.mark.parametrize("sender", [True, False])
def test_attach_is_answered_with_its_name_and_the_other_role(peer: RawPeer, sender: bool) -> None:
    _, reply = answered(peer, sender=sender, name="näme", handle=200)
    name, handle, role = reply.fields[:3]
    assert name == "näme".encode()
    assert handle == 0  # ours
    assert role is sender  # true means receiver: the peer's opposite


def test_e5_a_sender_says_its_initial_delivery_count(peer: RawPeer) -> None:
    _, reply = answered(peer, sender=False)
    assert reply.fields[9] == 0


def test_a_receiver_says_no_initial_delivery_count(peer: RawPeer) -> None:
    _, reply = answered(peer, sender=True)
    assert reply.fields[9] is None


def test_e6_the_size_limit_is_announced_where_the_client_sends(peer: RawPeer) -> None:
    _, reply = answered(peer, sender=True, max_message_size=100)
    assert reply.fields[10] == 262_144


@pytest.mark.parametrize(
    ("snd", "rcv"), [(None, None), (0, 0), (0, 1), (1, None), (2, 0), (None, 1)]
)
@pytest.mark.parametrize("sender", [True, False])
def test_e7_settle_modes_are_echoed_when_they_were_set(
    peer: RawPeer, sender: bool, snd: int | None, rcv: int | None
) -> None:
    _, reply = answered(peer, sender=sender, snd_settle_mode=snd, rcv_settle_mode=rcv)
    assert reply.fields[3:5] == [snd, rcv]


def test_the_terminus_is_echoed_as_given(peer: RawPeer) -> None:
    _, reply = answered(peer, sender=True)
    assert reply.fields[5][0] == b"s"
    assert reply.fields[6][0] == b"t"
    assert len(reply.fields[5]) == 11
    assert len(reply.fields[6]) == 7


def test_e10_credit_carries_everything_a_client_needs(peer: RawPeer, kit: Kit) -> None:
    peer.opened()
    peer.begun(next_outgoing_id=40)
    link = peer.attached(sender=True, initial_delivery_count=5)
    peer.say(kit.piece(0, b"x"), kit.piece(1, b"y"))
    link.grant(1000)
    (flow,) = written(peer)
    assert flow.code == FLOW
    next_incoming, incoming, next_outgoing, outgoing, handle, count, credit = flow.fields[:7]
    assert (next_incoming, incoming, next_outgoing, outgoing) == (42, 5000, 1, 65_536)
    assert (handle, count, credit) == (link.handle, 7, 1000)
    assert flow.fields[7:] == [None, False, False, None]


def test_credit_is_topped_up_at_half(peer: RawPeer, kit: Kit) -> None:
    link = peer.sender()
    link.grant(10)
    peer.hear_bytes()
    for i in range(4):
        peer.say(kit.piece(i, b"x"))
        link.replenish(10)
        assert peer.hear_bytes() == b""
    peer.say(kit.piece(4, b"x"))
    link.replenish(10)
    (flow,) = written(peer)
    assert flow.fields[5:7] == [5, 10]


def test_e11_deliveries_are_settled_by_a_receiver(peer: RawPeer) -> None:
    link = peer.sender()
    link.settle(3, 9, Accepted())
    (accepted,) = written(peer)
    assert accepted.fields == [True, 3, 9, True, {"accepted": []}, False]
    assert accepted.body[6:].startswith(b"\x41\x52\x03\x52\x09\x41\x00\x53\x24\x45")


def test_e12_a_rejection_names_its_error(peer: RawPeer) -> None:
    link = peer.sender()
    link.settle(3, 3, Rejected(error=NOT_FOUND))
    (rejected,) = written(peer)
    assert rejected.fields[:4] == [True, 3, 3, True]
    assert rejected.fields[4] == {"rejected": [WIRE_NOT_FOUND]}


def test_e14_a_detach_of_ours_closes(peer: RawPeer) -> None:
    peer.sender().detach()
    (detach,) = written(peer)
    assert (detach.code, detach.fields) == (DETACH, [0, True, None])


@pytest.mark.parametrize("sender", [True, False])
def test_e15_a_refusal_is_an_empty_attach_and_a_closing_detach(peer: RawPeer, sender: bool) -> None:
    peer.opened()
    peer.begun()
    link = peer.asked(sender=sender, snd_settle_mode=0, rcv_settle_mode=1)
    link.refuse(NOT_FOUND)
    link.grant(100) if sender else None
    attach, detach = written(peer)
    count = None if sender else 0
    assert attach.fields == [b"link", 0, sender, 0, 1, None, None, None, False, count] + [None] * 4
    assert detach.fields == [0, True, WIRE_NOT_FOUND]


# --- deliveries ---------------------------------------------------------------------------------


def test_e8_the_message_format_is_spelled_out(peer: RawPeer) -> None:
    link = peer.receiver()
    give_credit(peer)
    link.send(b"event", settled=True)
    (transfer,) = written(peer)
    handle, number, tag, message_format, settled, more = transfer.fields[:6]
    assert (handle, number, tag, message_format, settled, more) == (0, 0, b"", 0, True, False)
    assert transfer.payload == b"event"


def test_e9_delivery_ids_have_no_gaps_over_all_links_of_a_session(peer: RawPeer) -> None:
    first = peer.receiver()
    second = peer.attached(sender=False, name="second", handle=1)
    give_credit(peer)
    peer.say(credit_of(1, 10))
    for link in (first, second, second, first):
        link.send(b"x", settled=True)
    assert [each.fields[1] for each in written(peer)] == [0, 1, 2, 3]


@pytest.mark.parametrize("frame_size", [512, 4096, 65_536, 1_000_000])
def test_a_long_delivery_is_cut_to_what_the_peer_takes(new_peer: NewPeer, frame_size: int) -> None:
    peer = new_peer().opened(max_frame_size=frame_size)
    peer.begun()
    link = peer.attached(sender=False)
    give_credit(peer)
    payload = bytes(range(256)) * 400
    assert link.send(payload, settled=False) == 0
    pieces = written(peer)
    limit = min(frame_size, 65_536)
    assert all(each.size <= limit for each in pieces)
    assert len(pieces) == -(-len(payload) // (limit - 104))
    assert b"".join(each.payload for each in pieces) == payload
    assert [each.fields[5] for each in pieces] == [True] * (len(pieces) - 1) + [False]
    # Each repeats id, tag, format and settlement (E20).
    assert {tuple(each.fields[:5]) for each in pieces} == {(0, 0, b"\x00\x00\x00\x00", 0, False)}
    assert link.delivery_count == 1


@pytest.mark.parametrize("surplus", [-1, 0, 1])
def test_a_delivery_is_cut_exactly_where_it_must_be(peer: RawPeer, surplus: int) -> None:
    peer.opened(max_frame_size=512)
    peer.begun()
    link = peer.attached(sender=False)
    give_credit(peer)
    room = 512 - 104
    link.send(bytes(room + surplus), settled=True)
    assert [len(each.payload) for each in written(peer)] == (
        [room, 1] if surplus > 0 else [room + surplus]
    )


def test_an_empty_delivery_is_one_frame(peer: RawPeer) -> None:
    link = peer.receiver()
    give_credit(peer)
    link.send(b"", settled=True)
    (transfer,) = written(peer)
    assert transfer.payload == b""


def test_batches_keep_their_format(peer: RawPeer) -> None:
    link = peer.receiver()
    give_credit(peer)
    link.send(b"x", settled=False, message_format=0x80013700, delivery_tag=b"mine")
    (transfer,) = written(peer)
    assert transfer.fields[2] == b"mine"
    assert transfer.fields[3] & 0xFFFFFFFF == 0x80013700  # PY reads uint as signed


def test_drained_says_what_was_not_used(peer: RawPeer) -> None:
    link = peer.receiver()
    give_credit(peer, 5)
    link.send(b"x", settled=True)
    link.complete_drain()
    flow = written(peer)[-1]
    assert flow.code == FLOW
    assert flow.fields[4:] == [0, 5, 0, None, True, False, None]


def test_an_echo_is_answered_without_asking_back(peer: RawPeer) -> None:
    peer.receiver()
    asked = credit_of(0, 3)
    asked.echo = True
    peer.say(asked)
    (flow,) = written(peer)
    assert flow.fields == [0, 5000, 1, 65_536, 0, 0, 3, None, False, False, None]
