"""Sizes, orders and types that no honest client sends.

Each ends the connection with the condition that names it, or is borne as the documents say. Nothing
raises, and what the engine keeps stays bounded.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from penstock.amqp.events import (
    AttachReceived,
    ConnectionFailed,
    EndReceived,
    SaslInitReceived,
)
from penstock.amqp.frames import AMQP_HEADER, EMPTY_FRAME, SASL_HEADER, TLS_HEADER, encode_frame
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
    Rejected,
    SaslChallenge,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    SaslResponse,
    Source,
    Target,
    Transfer,
    encode_performative,
)

if TYPE_CHECKING:
    from tests.protocol.conftest import Kit, RawPeer

NewPeer = Callable[..., "RawPeer"]

FRAMING = "amqp:connection:framing-error"
ILLEGAL = "amqp:illegal-state"
DECODE = "amqp:decode-error"
NOT_ALLOWED = "amqp:not-allowed"
LIMIT = "amqp:resource-limit-exceeded"
UNATTACHED = "amqp:session:unattached-handle"
IN_USE = "amqp:session:handle-in-use"

BEGIN = Begin(next_outgoing_id=0, incoming_window=10, outgoing_window=10)
FLOW = Flow(incoming_window=10, next_outgoing_id=0, outgoing_window=10)
OPEN = Open(container_id="peer")
FLOW_FIELDS: dict[str, Any] = {
    "next_incoming_id": 1,
    "incoming_window": 1000,
    "next_outgoing_id": 0,
    "outgoing_window": 1000,
}


def sized(size: int, *, doff: int = 2, kind: int = 0, channel: int = 0) -> bytes:
    """A frame header alone."""
    return size.to_bytes(4, "big") + bytes((doff, kind)) + channel.to_bytes(2, "big")


# --- headers ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "header",
    [
        b"AMQP\x00\x00\x09\x01",  # AMQP 0-9-1
        b"AMQP\x01\x01\x00\x0a",  # AMQP 0-10
        b"AMQP\x00\x01\x00\x01",  # a revision that does not exist
        b"AMQP\x01\x01\x00\x00",
        TLS_HEADER,
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS on the plain port
        b"\x00\x00\x00\x08\x02\x00\x00\x00",  # a frame, without any header
        b"amqp\x00\x01\x00\x00",
    ],
)
def test_another_protocol_is_refused_with_a_header_that_we_speak(
    new_peer: NewPeer, header: bytes
) -> None:
    peer = new_peer()
    assert peer.failure(header) == FRAMING
    assert peer.hear_bytes() == SASL_HEADER  # AMQP 2.2: then the socket is closed
    for cut in range(1, len(header)):
        other = new_peer()
        events = [*other.say(header[:cut]), *other.say(header[cut:])]
        assert [type(event) for event in events] == [ConnectionFailed]
        assert other.hear_bytes() == SASL_HEADER


def test_the_first_wrong_byte_is_enough(peer: RawPeer) -> None:
    assert peer.say(b"AMQ") == []
    assert peer.failure(b"R") == FRAMING


def test_a_second_sasl_header_is_refused(peer: RawPeer, kit: Kit) -> None:
    peer.say(kit.sasl_start)
    peer.engine.answer_sasl(ok=True)
    peer.hear()
    assert peer.failure(SASL_HEADER) == FRAMING
    assert peer.hear_bytes() == AMQP_HEADER


@pytest.mark.parametrize("header", [SASL_HEADER, AMQP_HEADER])
def test_a_header_where_frames_must_be_is_refused(peer: RawPeer, header: bytes) -> None:
    """Its first four letters read as a frame of a gigabyte."""
    peer.say(AMQP_HEADER)
    assert peer.failure(header) == FRAMING


# --- SASL ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "spoken",
    [
        SaslMechanisms(sasl_server_mechanisms=["PLAIN"]),
        SaslChallenge(challenge=b"who are you"),
        SaslResponse(response=b"nobody"),
        SaslOutcome(code=0),
        SaslOutcome(code=1),
    ],
    ids=lambda spoken: type(spoken).__name__,
)
def test_a_servers_sasl_takes_nothing_but_init(peer: RawPeer, spoken: Any) -> None:
    peer.say(SASL_HEADER)
    assert peer.failure(spoken) == ILLEGAL


@pytest.mark.parametrize(
    "spoken", [OPEN, BEGIN, Close(), EMPTY_FRAME], ids=["open", "begin", "close", "empty"]
)
def test_amqp_frames_have_no_place_before_sasl_is_over(peer: RawPeer, spoken: Any) -> None:
    peer.say(SASL_HEADER)
    assert peer.failure(spoken) == FRAMING
    assert not peer.engine.is_opened


def test_an_open_in_a_sasl_frame_opens_nothing(peer: RawPeer) -> None:
    peer.say(SASL_HEADER)
    assert peer.failure(encode_frame(0, encode_performative(OPEN), frame_type=1)) == ILLEGAL


def test_an_empty_sasl_frame_is_refused(peer: RawPeer) -> None:
    peer.say(SASL_HEADER)
    assert peer.failure(sized(8, kind=1)) == FRAMING


def test_a_sasl_frame_with_more_than_its_performative_is_refused(peer: RawPeer) -> None:
    peer.say(SASL_HEADER)
    init = encode_performative(SaslInit(mechanism="ANONYMOUS"))
    assert peer.failure(encode_frame(0, init, b"more", frame_type=1)) == FRAMING


def test_a_second_init_is_refused(peer: RawPeer, kit: Kit) -> None:
    init = SaslInit(mechanism="ANONYMOUS")
    peer.say(SASL_HEADER, init, init)
    peer.engine.answer_sasl(ok=True)
    assert peer.failure() == FRAMING  # a header must be there


def test_sasl_frames_have_no_place_after_it(peer: RawPeer, kit: Kit) -> None:
    peer.opened()
    assert peer.failure(SaslInit(mechanism="ANONYMOUS")) == FRAMING


def test_a_sasl_performative_in_an_amqp_frame_is_refused(peer: RawPeer) -> None:
    peer.opened()
    init = encode_performative(SaslInit(mechanism="ANONYMOUS"))
    assert peer.failure(encode_frame(0, init)) == NOT_ALLOWED


def test_a_peer_that_failed_sasl_is_heard_no_more(peer: RawPeer, kit: Kit) -> None:
    peer.say(kit.sasl_start, AMQP_HEADER, OPEN, BEGIN)
    peer.engine.answer_sasl(ok=False)
    assert peer.engine.is_over
    assert peer.engine.held_bytes == 0
    assert peer.say() == []
    assert peer.say(AMQP_HEADER, OPEN) == []
    assert [sent.body for sent in peer.hear()][-1].code == 1


def test_what_waits_behind_init_is_bounded(new_peer: NewPeer, kit: Kit) -> None:
    peer = new_peer(max_frame_size=4096)
    peer.say(kit.sasl_start)
    for _ in range(4):
        assert peer.say(bytes(1000)) == []
    assert peer.engine.held_bytes == 4000
    assert peer.failure(bytes(1000)) == LIMIT


def test_a_password_is_not_shown(peer: RawPeer) -> None:
    init = SaslInit(mechanism="PLAIN", initial_response=b"\0root\0secret-key")
    (event,) = peer.say(SASL_HEADER, init)
    assert isinstance(event, SaslInitReceived)
    assert event.initial_response == b"\0root\0secret-key"
    assert "secret" not in repr(event)
    assert "root" not in repr(event)


# --- frame sizes --------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 7])
def test_a_frame_smaller_than_its_header_is_refused(peer: RawPeer, size: int) -> None:
    peer.opened()
    assert peer.failure(sized(size)) == FRAMING


@pytest.mark.parametrize("doff", [0, 1, 3, 255])
def test_a_data_offset_outside_of_the_frame_is_refused(peer: RawPeer, doff: int) -> None:
    peer.opened()
    assert peer.failure(sized(8, doff=doff)) == FRAMING


@pytest.mark.parametrize("kind", [2, 255])
def test_an_unknown_frame_type_is_refused(peer: RawPeer, kind: int) -> None:
    peer.opened()
    assert peer.failure(sized(8, kind=kind)) == FRAMING


@pytest.mark.parametrize("size", [8193, 65_536, 2**31, 2**32 - 1])
@pytest.mark.parametrize("header", [SASL_HEADER, AMQP_HEADER], ids=["SASL", "AMQP"])
def test_before_open_frames_are_small_from_the_first_byte(
    peer: RawPeer, header: bytes, size: int
) -> None:
    peer.say(header)
    kind = int(header == SASL_HEADER)
    assert peer.failure(sized(size, kind=kind)) == FRAMING
    assert peer.engine.held_bytes == 0


def test_before_open_a_frame_of_8_kb_is_waited_for(peer: RawPeer) -> None:
    peer.say(AMQP_HEADER)
    assert peer.say(sized(8192) + bytes(8000)) == []
    assert peer.engine.held_bytes == 8008


@pytest.mark.parametrize("size", [65_537, 2**24, 2**32 - 1])
def test_after_open_frames_above_the_announced_size_are_refused(peer: RawPeer, size: int) -> None:
    peer.opened(max_frame_size=2**32 - 1)  # what the peer takes is no excuse for what it sends
    assert peer.failure(sized(size)) == FRAMING


def test_a_transfer_above_the_announced_size_is_refused(peer: RawPeer, kit: Kit) -> None:
    peer.sender()
    whole = kit.piece(0, bytes(65_536))
    assert peer.failure(whole) == FRAMING


def test_after_open_a_frame_of_64_kb_is_taken(peer: RawPeer, kit: Kit) -> None:
    peer.sender()
    overhead = len(kit.piece(0))
    events = peer.say(kit.piece(0, bytes(65_536 - overhead)))
    assert [len(each) for each in kit.payloads(events)] == [65_536 - overhead]


def test_only_part_of_one_frame_is_ever_kept(peer: RawPeer, kit: Kit) -> None:
    peer.sender()
    stream = b"".join(kit.piece(i, bytes(20_000)) for i in range(20))
    for start in range(0, len(stream), 7001):
        peer.say(stream[start : start + 7001])
        assert peer.engine.held_bytes < 65_536


@pytest.mark.parametrize("size", [0, 1, 511])
def test_a_max_frame_size_below_512_is_refused(peer: RawPeer, size: int) -> None:
    """Or one delivery would become a storm of frames."""
    peer.say(AMQP_HEADER)
    assert peer.failure(Open(container_id="tiny", max_frame_size=size)) == FRAMING
    assert [type(sent.body) for sent in peer.hear()] == [Open, Close]


def test_frames_to_a_peer_of_512_bytes_fit(peer: RawPeer, kit: Kit) -> None:
    peer.opened(max_frame_size=512)
    peer.begun()
    long = Error(condition="amqp:link:stolen", description="ü" * 5000)
    link = peer.asked(sender=True)
    link.refuse(long)
    other = peer.asked(sender=False, name="other", handle=1)
    other.accept(source=Source(), target=Target(), max_message_size=10)
    other.detach(long)
    link.settle(0, 0, Rejected(error=long))
    link.settle(0, 0, Accepted())
    other.session.end(long)
    peer.engine.close(long)
    data = peer.hear_bytes()
    sizes = []
    while data:
        size = int.from_bytes(data[:4], "big")
        sizes.append(size)
        data = data[size:]
    assert len(sizes) == 8
    assert max(sizes) <= 512
    assert long.description == "ü" * 5000  # the caller's own is left alone


def test_an_attach_reply_that_the_peer_cannot_take_refuses_the_link(peer: RawPeer) -> None:
    peer.opened(max_frame_size=512)
    peer.begun()
    link = peer.asked(sender=True)
    link.accept(source=Source(address="x" * 600), target=Target(), max_message_size=100)
    attach, detach = (sent.body for sent in peer.hear())
    assert (attach.source, attach.target) == (None, None)
    assert detach.error.condition == "amqp:frame-size-too-small"
    assert not link.is_attached


def test_deliveries_to_a_peer_of_512_bytes_are_cut(peer: RawPeer) -> None:
    peer.opened(max_frame_size=512)
    peer.begun()
    link = peer.attached(sender=False)
    peer.say(Flow(**FLOW_FIELDS, handle=0, delivery_count=0, link_credit=5))
    assert link.send(bytes(2000), settled=False, delivery_tag=b"t" * 32) == 0
    data = peer.hear_bytes()
    while data:
        size = int.from_bytes(data[:4], "big")
        assert size <= 512
        data = data[size:]


# --- bytes that are no performative -------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        b"\x00",
        b"\x00\x53",
        b"\x00\x53\x10",
        b"\x40",
        b"\x00\x53\x19\x45",  # behind close: no performative
        b"\x00\x53\x24\x45",  # accepted is none
        b"\x00\x53\x70\x45",  # nor is a message section
        b"\x00\xa3\x0fcom.example:list\x45",
        b"\x00\x53\x12\xc0\xff\x0e",  # a list longer than the frame
        b"\x00\x53\x12\xd0\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\x00\x53\x12\x45",  # an attach without its mandatory fields
        b"\x00\x53\x11\xc0\x03\x02\x40\x40",
        b"\x00\x53\x15\xc0\x02\x02\x41",
        b"\x00\x53\x13\xc0\x05\x04\xa1\x01a\x43",  # text for a window
        b"\x00" * 40,
    ],
)
def test_bytes_that_are_no_performative_are_refused(peer: RawPeer, body: bytes) -> None:
    peer.opened()
    assert peer.failure(encode_frame(0, body)) == DECODE
    assert peer.hear_one(Close).error is not None


def test_nesting_bombs_are_refused(peer: RawPeer) -> None:
    peer.opened()
    peer.begun()
    bomb = b"\x45"
    for _ in range(40):
        bomb = b"\xc0" + bytes((len(bomb) + 1, 1)) + bomb
    name = b"\xa1\x01n\x43\x41" + b"\x40" * 8
    fields = name + b"\xc1" + bytes((len(bomb) + 5, 2)) + b"\xa3\x01k" + bomb
    body = b"\x00\x53\x12\xc0" + bytes((len(fields) + 1, 14)) + fields
    assert peer.failure(encode_frame(0, body)) == DECODE


@pytest.mark.parametrize("count", [11, 4000, 5000, 2**20, 2**32 - 1])
def test_count_bombs_are_refused_before_anything_is_made(peer: RawPeer, count: int) -> None:
    """An array of zero-width elements costs its sender nothing."""
    peer.opened()
    array = b"\xf0" + (5).to_bytes(4, "big") + count.to_bytes(4, "big") + b"\x40"
    fields = b"\xa1\x01c" + b"\x40" * 8 + array
    body = b"\x00\x53\x10\xc0" + bytes((len(fields) + 1, 10)) + fields
    tracemalloc.start()
    assert peer.failure(encode_frame(0, body)) == DECODE
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 200_000


def test_a_performative_of_thousands_of_elements_is_refused(peer: RawPeer, kit: Kit) -> None:
    """Well-formed and within the frame, but each byte would cost us forty."""
    peer.opened()
    peer.begun()
    heavy: dict[str, object] = {f"{i:x}": None for i in range(257)}
    assert peer.failure(kit.attach(sender=True, properties=heavy)) == DECODE


def test_a_flow_with_arrays_of_zero_width_elements_is_refused(peer: RawPeer) -> None:
    """59 bytes took 2.4 ms to decode before."""
    peer.opened()
    peer.begun()
    array = b"\xf0" + (5).to_bytes(4, "big") + (4000).to_bytes(4, "big") + b"\x45"
    properties = b"\xc1" + bytes((1 + 2 * (3 + len(array)), 4))
    properties += b"\xa3\x01a" + array + b"\xa3\x01b" + array
    fields = b"\x43\x52\x64\x43\x52\x64" + b"\x40" * 6 + properties
    body = b"\x00\x53\x13\xc0" + bytes((len(fields) + 1, 11)) + fields
    assert peer.failure(encode_frame(0, body)) == DECODE


@pytest.mark.parametrize(
    "spoken",
    [BEGIN, End(), Close(), FLOW, Detach(handle=0), Disposition(role=False, first=0)],
    ids=lambda spoken: type(spoken).__name__,
)
def test_only_a_transfer_carries_a_payload(peer: RawPeer, kit: Kit, spoken: Any) -> None:
    peer.sender()
    assert peer.failure(kit.frame(spoken, b"payload")) == FRAMING


# --- orders -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "spoken",
    [BEGIN, End(), FLOW, Detach(handle=0), Transfer(handle=0, delivery_id=0), Close()],
    ids=lambda spoken: type(spoken).__name__,
)
def test_nothing_comes_before_open(peer: RawPeer, spoken: Any) -> None:
    peer.say(AMQP_HEADER)
    assert peer.failure(spoken) == ILLEGAL
    answer = [sent.body for sent in peer.hear()]
    assert [type(body) for body in answer] == [Open, Close]  # close may not come before open
    assert answer[1].error.condition == ILLEGAL


def test_a_second_open_is_refused(peer: RawPeer) -> None:
    peer.opened()
    assert peer.failure(OPEN) == ILLEGAL
    assert peer.hear_one(Close).error is not None


def test_nothing_is_heard_after_close(peer: RawPeer) -> None:
    peer.opened()
    peer.say(Close(), OPEN, BEGIN, b"\xff" * 100)
    assert peer.engine.is_over
    assert peer.say(BEGIN) == []
    assert [type(sent.body) for sent in peer.hear()] == [Close]


@pytest.mark.parametrize(
    "spoken",
    [FLOW, Detach(handle=0), Transfer(handle=0, delivery_id=0), End(),
     Transfer(handle=0, delivery_id=0, delivery_tag=b"t", message_format=0),
     Disposition(role=True, first=0), Attach(name="n", handle=0, role=True)],
)  # fmt: skip
def test_frames_on_a_channel_without_session_are_refused(
    peer: RawPeer, kit: Kit, spoken: Any
) -> None:
    peer.opened()
    peer.begun()
    assert peer.failure(kit.frame(spoken, channel=1)) == ILLEGAL


def test_a_channel_with_a_link_is_begun_once(peer: RawPeer) -> None:
    peer.sender()
    assert peer.failure(BEGIN) == ILLEGAL


def test_a_channel_whose_attach_is_not_answered_is_begun_once(peer: RawPeer) -> None:
    peer.opened()
    peer.begun()
    peer.asked(sender=True)
    assert peer.failure(BEGIN) == ILLEGAL


@pytest.mark.parametrize("remote", [0, 1, 65_535])
def test_an_answer_to_a_begin_that_we_never_sent_is_refused(peer: RawPeer, remote: int) -> None:
    peer.opened()
    peer.begun()
    answer = Begin(remote_channel=remote, next_outgoing_id=0, incoming_window=1, outgoing_window=1)
    frame = encode_frame(1, encode_performative(answer))
    assert peer.failure(frame) == ILLEGAL


@pytest.mark.parametrize(
    "spoken",
    [
        Transfer(handle=7, delivery_id=0),
        Transfer(handle=7, delivery_id=0, delivery_tag=b"t", message_format=0),
        Flow(**FLOW_FIELDS, handle=7, link_credit=1),
    ],
)
def test_a_handle_that_is_not_attached_is_refused(peer: RawPeer, spoken: Any) -> None:
    peer.sender()
    assert peer.failure(spoken) == UNATTACHED


def test_a_handle_is_attached_once(peer: RawPeer, kit: Kit) -> None:
    peer.sender()
    assert peer.failure(kit.attach(sender=True, name="another")) == IN_USE


def test_a_transfer_to_a_link_on_which_we_send_is_refused(peer: RawPeer, kit: Kit) -> None:
    peer.receiver()
    assert peer.failure(kit.piece(0, b"x")) == NOT_ALLOWED


def test_a_transfer_after_detach_on_an_unanswered_link_is_refused(peer: RawPeer, kit: Kit) -> None:
    peer.opened()
    peer.begun()
    spoken = (kit.attach(sender=True), Detach(handle=0), kit.piece(0, b"x"))
    events = peer.say(*spoken)
    assert isinstance(events[-1], ConnectionFailed)
    kit.only(AttachReceived, events).link.accept(source=None, target=None, max_message_size=9)
    assert [type(sent.body) for sent in peer.hear()] == [Close]


@pytest.mark.parametrize("fields", [{"more": True}, {}, {"message_format": None}])
def test_a_delivery_must_begin_with_its_id(peer: RawPeer, kit: Kit, fields: Any) -> None:
    peer.sender()
    assert peer.failure(kit.piece(None, b"x", **fields)) == NOT_ALLOWED


@pytest.mark.parametrize("more", [True, False])
def test_a_delivery_must_be_complete_before_the_next(peer: RawPeer, kit: Kit, more: bool) -> None:
    peer.sender()
    peer.say(kit.piece(0, b"half", more=True))
    assert peer.failure(kit.piece(1, b"other", more=more)) == NOT_ALLOWED


# --- after we said goodbye ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "spoken",
    [b"\x00" * 8, sized(2**31), BEGIN, OPEN, encode_frame(9, b"\x00\x53\x99\x45")],
    ids=["short", "long", "begin", "open", "unknown"],
)
def test_garbage_after_our_close_is_not_answered(peer: RawPeer, spoken: Any) -> None:
    peer.sender()
    peer.engine.close(Error(condition="amqp:connection:forced"))
    peer.hear()
    peer.say(spoken)
    assert peer.hear_bytes() == b""


def test_a_session_that_we_ended_takes_no_deliveries(peer: RawPeer, kit: Kit) -> None:
    link = peer.sender()
    link.session.end(Error(condition="amqp:internal-error"))
    peer.hear()
    events = peer.say(
        kit.piece(0, b"x"), kit.attach(sender=True, handle=9), FLOW, kit.piece(1, b"y")
    )
    assert events == []
    assert peer.hear() == []
    (event,) = peer.say(End())
    assert isinstance(event, EndReceived)
