"""The engine as a client: what it asks, and what a strange server can answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from penstock.amqp.errors import LocalError
from penstock.amqp.events import (
    AttachReceived,
    BeginReceived,
    CloseReceived,
    ConnectionFailed,
    DetachReceived,
    EndReceived,
    FlowReceived,
    OpenReceived,
    SaslMechanismsReceived,
    SaslOutcomeReceived,
)
from penstock.amqp.frames import AMQP_HEADER, SASL_HEADER
from penstock.amqp.link import Link, LinkRole
from penstock.amqp.performatives import (
    Attach,
    Begin,
    Close,
    Detach,
    End,
    Error,
    Flow,
    Open,
    SaslChallenge,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    Source,
    Target,
)

if TYPE_CHECKING:
    from tests.protocol.conftest import Kit, RawPeer

NewClient = Callable[..., "RawPeer"]

OFFER = SaslMechanisms(sasl_server_mechanisms=["MSSBCBS", "PLAIN", "ANONYMOUS"])
REFUSED = Error(condition="amqp:not-found", description="no such hub", info=None)


def answer(**fields: Any) -> Begin:
    whole = {
        "remote_channel": 0,
        "next_outgoing_id": 1,
        "incoming_window": 10,
        "outgoing_window": 9,
    }
    return Begin(**{**whole, **fields})


@pytest.fixture
def server(new_client: NewClient) -> RawPeer:
    """A raw server that a client has opened a connection to."""
    server = new_client(sasl=False)
    server.engine.start()
    server.engine.send_open()
    server.say(AMQP_HEADER, Open(container_id="server", channel_max=3))
    server.hear()
    assert server.engine.is_opened
    return server


def asked(server: RawPeer, role: LinkRole, name: str = "n") -> Link:
    """A link that the client asked for in a session that the server began."""
    session = server.engine.begin()
    server.say(answer())
    link = session.new_link(name, role)
    link.request(source=Source(address="a"), target=Target(address="b"))
    server.hear()
    return link


# --- the first words ----------------------------------------------------------------------------


def test_sasl_goes_from_header_to_open(new_client: NewClient) -> None:
    server = new_client()
    engine = server.engine
    engine.start()
    assert server.hear_bytes() == SASL_HEADER
    (offered,) = server.say(SASL_HEADER, OFFER)
    assert isinstance(offered, SaslMechanismsReceived)
    assert offered.mechanisms == ["MSSBCBS", "PLAIN", "ANONYMOUS"]
    engine.init_sasl("PLAIN", b"\0user\0key")
    init = server.hear_one(SaslInit)
    assert (init.mechanism, init.initial_response, init.hostname) == (
        "PLAIN", b"\0user\0key", "contoso",
    )  # fmt: skip
    (done,) = server.say(SaslOutcome(code=0, additional_data=b"Welcome!"))
    assert isinstance(done, SaslOutcomeReceived)
    assert done.additional_data == b"Welcome!"
    engine.send_open()
    data = server.hear_bytes()
    assert data.startswith(AMQP_HEADER)
    (opened,) = server.say(AMQP_HEADER, Open(container_id="server"))
    assert isinstance(opened, OpenReceived)
    assert engine.is_opened


def test_without_sasl_the_amqp_header_comes_first(new_client: NewClient) -> None:
    server = new_client(sasl=False)
    server.engine.start()
    assert server.hear_bytes() == AMQP_HEADER


def test_a_client_names_the_host_that_it_wants(new_client: NewClient) -> None:
    server = new_client(sasl=False, properties={"product": "penstock"})
    server.engine.start()
    server.engine.send_open()
    opened = server.hear_one(Open)
    assert (opened.container_id, opened.hostname) == ("client", "contoso")
    assert opened.properties == {"product": "penstock"}


@pytest.mark.parametrize("code", [1, 2, 3, 4])
def test_a_refused_client_is_told_so(new_client: NewClient, code: int) -> None:
    server = new_client()
    server.engine.start()
    server.say(SASL_HEADER, OFFER)
    server.engine.init_sasl("ANONYMOUS", None)
    server.hear()
    (event,) = server.say(SaslOutcome(code=code))
    assert isinstance(event, ConnectionFailed)
    assert event.error.condition == "amqp:unauthorized-access"
    assert str(code) in str(event.error)
    assert server.engine.is_over
    assert server.hear_bytes() == b""


@pytest.mark.parametrize(("sasl", "header"), [(True, AMQP_HEADER), (False, SASL_HEADER)])
def test_a_server_that_wants_it_otherwise_is_left(
    new_client: NewClient, sasl: bool, header: bytes
) -> None:
    """The header it answers with is what it speaks (AMQP 2.2); we do not change our mind."""
    server = new_client(sasl=sasl)
    server.engine.start()
    server.hear_bytes()
    assert server.failure(header) == "amqp:connection:framing-error"
    assert server.hear_bytes() == b""


def test_an_http_server_is_left(new_client: NewClient) -> None:
    server = new_client()
    server.engine.start()
    server.hear_bytes()
    assert server.failure(b"HTTP/1.1 400 Bad Request\r\n") == "amqp:connection:framing-error"


def test_a_challenge_is_more_than_we_can_do(new_client: NewClient) -> None:
    server = new_client()
    server.engine.start()
    server.say(SASL_HEADER, OFFER)
    server.engine.init_sasl("ANONYMOUS", None)
    assert server.failure(SaslChallenge(challenge=b"?")) == "amqp:illegal-state"


@pytest.mark.parametrize("spoken", [SaslInit(mechanism="PLAIN"), SaslOutcome(code=0)])
def test_sasl_out_of_order_is_refused(new_client: NewClient, spoken: Any) -> None:
    server = new_client()
    server.engine.start()
    assert server.failure(SASL_HEADER, spoken) == "amqp:illegal-state"


def test_a_server_that_does_not_answer_is_given_up(new_client: NewClient) -> None:
    engine = new_client().engine
    engine.start()
    assert engine.next_deadline_ms() == 5000
    (event,) = engine.on_time(now_ms=5000)
    assert isinstance(event, ConnectionFailed)


# --- pipelining ---------------------------------------------------------------------------------


def test_a_client_may_say_all_before_it_hears_anything(new_client: NewClient, kit: Kit) -> None:
    server = new_client(sasl=False)
    engine = server.engine
    engine.start()
    engine.send_open()
    session = engine.begin()
    link = session.new_link("n", LinkRole.RECEIVER)
    link.request(source=Source(address="a"), target=None)
    link.grant(300)
    flow = [sent.body for sent in server.hear()][-1]
    assert isinstance(flow, Flow)
    # AMQP 2.7.4: what is not known yet is not said.
    assert (flow.next_incoming_id, flow.delivery_count, flow.link_credit) == (None, None, 300)
    attach = kit.attach(sender=True, name="n", handle=4, initial_delivery_count=7)
    events = server.say(
        AMQP_HEADER, Open(container_id="server"), answer(), attach, kit.piece(0, b"event", handle=4)
    )
    kinds = [type(event) for event in events[:3]]
    assert kinds == [OpenReceived, BeginReceived, AttachReceived]
    assert kit.payloads(events) == [b"event"]
    assert (link.delivery_count, link.credit) == (8, 299)


def test_nothing_is_sent_before_the_server_gave_a_window(new_client: NewClient) -> None:
    server = new_client(sasl=False)
    server.engine.start()
    server.engine.send_open()
    link = server.engine.begin().new_link("n", LinkRole.SENDER)
    link.request(source=None, target=Target(address="b"))
    assert link.sendable_frames == 0
    assert link.send(b"x", settled=True) is None


def test_frames_before_the_servers_open_are_small(new_client: NewClient) -> None:
    assert new_client().engine.frame_bytes_max_out == 512


@pytest.mark.parametrize("opened", [False, True])
def test_a_client_may_close_before_it_is_answered(new_client: NewClient, opened: bool) -> None:
    server = new_client(sasl=False)
    server.engine.start()
    server.engine.send_open()
    if opened:
        server.say(AMQP_HEADER)
    server.engine.close(REFUSED)
    assert server.hear()[-1].body == Close(error=REFUSED)
    events = server.say(*([] if opened else [AMQP_HEADER]), Open(container_id="server"), Close())
    assert [type(event) for event in events] == [OpenReceived, CloseReceived]
    assert server.engine.is_over
    assert server.hear() == []


# --- links --------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", [LinkRole.SENDER, LinkRole.RECEIVER])
def test_a_link_is_asked_for_by_name(server: RawPeer, kit: Kit, role: LinkRole) -> None:
    link = asked(server, role, "mine")
    assert not link.is_attached
    (event,) = server.say(kit.attach(sender=role is LinkRole.RECEIVER, name="mine", handle=9))
    assert isinstance(event, AttachReceived)
    assert event.link is link
    assert link.is_attached
    assert link.remote_handle == 9
    assert link.attach is not None
    assert link.attach.source == Source(address="source")


def test_request_says_what_the_client_wants(server: RawPeer) -> None:
    session = server.engine.begin()
    session.new_link("n", LinkRole.RECEIVER).request(
        source=Source(address="a"),
        target=Target(address="b"),
        snd_settle_mode=1,
        rcv_settle_mode=0,
        properties={"com.microsoft:epoch": 3},
        desired_capabilities=["com.microsoft:georeplication"],
        max_message_size=1000,
    )
    attach = [sent.body for sent in server.hear()][-1]
    assert isinstance(attach, Attach)
    assert (attach.role, attach.snd_settle_mode, attach.rcv_settle_mode) == (True, 1, 0)
    assert attach.properties == {"com.microsoft:epoch": 3}
    assert attach.desired_capabilities == ["com.microsoft:georeplication"]
    assert attach.max_message_size == 1000


def test_a_refusal_is_an_attach_and_a_detach(server: RawPeer, kit: Kit) -> None:
    link = asked(server, LinkRole.SENDER)
    refusal = Attach(name="n", handle=0, role=True)
    events = server.say(refusal, Detach(handle=0, closed=True, error=REFUSED))
    assert [type(event) for event in events] == [AttachReceived, DetachReceived]
    detached = kit.only(DetachReceived, events)
    assert (detached.link, detached.error) == (link, REFUSED)
    assert server.hear_one(Detach).closed
    assert server.engine.allowance.link_count == 0


def test_a_detach_may_overtake_the_servers_answer(server: RawPeer, kit: Kit) -> None:
    link = asked(server, LinkRole.RECEIVER)
    link.detach()
    events = server.say(
        kit.attach(sender=True, name="n"), kit.piece(0, b"late"), Detach(handle=0, closed=True)
    )
    assert [type(event) for event in events] == [DetachReceived]
    assert server.engine.allowance.link_count == 0
    assert asked(server, LinkRole.RECEIVER, "n").handle == 0


def test_two_links_of_one_name_and_direction_are_told_apart_by_time(
    server: RawPeer, kit: Kit
) -> None:
    first = asked(server, LinkRole.SENDER)
    session = server.engine.sessions[0]
    with pytest.raises(LocalError, match="already"):
        session.new_link("n", LinkRole.SENDER)
    other = session.new_link("n", LinkRole.RECEIVER)  # the other direction is another link
    assert other is not first
    server.say(kit.attach(sender=False, name="n", handle=0))
    second = session.new_link("n", LinkRole.SENDER)
    second.request(source=None, target=None)
    server.say(kit.attach(sender=False, name="n", handle=1))
    assert first.is_attached
    assert second.is_attached


def test_an_answer_on_a_handle_in_use_is_refused(server: RawPeer, kit: Kit) -> None:
    asked(server, LinkRole.SENDER)
    server.say(kit.attach(sender=False, name="n", handle=0))
    server.engine.sessions[0].new_link("m", LinkRole.SENDER).request(source=None, target=None)
    attach = kit.attach(sender=False, name="m", handle=0)
    assert server.failure(attach) == "amqp:session:handle-in-use"


def test_a_link_of_the_servers_own_can_be_refused(server: RawPeer, kit: Kit) -> None:
    asked(server, LinkRole.SENDER)
    (event,) = server.say(kit.attach(sender=True, name="uninvited", handle=5))
    assert isinstance(event, AttachReceived)
    event.link.refuse(REFUSED)
    assert [type(sent.body) for sent in server.hear()] == [Attach, Detach]


def test_the_end_of_a_session_ends_links_that_were_never_answered(server: RawPeer) -> None:
    link = asked(server, LinkRole.SENDER)
    (event,) = server.say(End(error=REFUSED))
    assert isinstance(event, EndReceived)
    assert event.error == REFUSED
    assert server.engine.allowance.link_count == 0
    with pytest.raises(LocalError):
        link.send(b"x", settled=True)


def test_drain_and_echo_can_be_asked_for(server: RawPeer, kit: Kit) -> None:
    link = asked(server, LinkRole.RECEIVER)
    server.say(kit.attach(sender=True, name="n"))
    link.grant(10, drain=True, echo=True)
    flow = server.hear_one(Flow)
    assert (flow.link_credit, flow.drain, flow.echo) == (10, True, True)
    drained = Flow(
        next_incoming_id=1, incoming_window=10, next_outgoing_id=1, outgoing_window=9,
        handle=0, delivery_count=10, link_credit=0, drain=True,
    )  # fmt: skip
    (event,) = server.say(drained)
    assert isinstance(event, FlowReceived)
    assert (link.delivery_count, link.credit) == (10, 0)


# --- sessions -----------------------------------------------------------------------------------


def test_a_session_ends_when_both_said_so(server: RawPeer) -> None:
    session = server.engine.begin()
    server.say(answer())
    session.end()
    assert [type(sent.body) for sent in server.hear()] == [Begin, End]
    (event,) = server.say(End())
    assert isinstance(event, EndReceived)
    assert server.engine.sessions == {}
    assert server.engine.begin().channel == session.channel


def test_a_begin_that_answers_nothing_is_refused(server: RawPeer) -> None:
    assert server.failure(answer(remote_channel=2)) == "amqp:illegal-state"


def test_a_begin_is_answered_once(server: RawPeer, kit: Kit) -> None:
    server.engine.begin()
    server.say(answer())
    assert server.failure(kit.frame(answer(), channel=1)) == "amqp:illegal-state"


def test_two_sessions_are_not_answered_on_one_channel(server: RawPeer) -> None:
    server.engine.begin()
    server.engine.begin()
    server.say(answer())
    assert server.failure(answer(remote_channel=1)) == "amqp:illegal-state"


# --- our own caller's mistakes ------------------------------------------------------------------


def test_more_sessions_than_the_server_takes_are_our_own_fault(server: RawPeer) -> None:
    for _ in range(4):
        server.engine.begin()
    with pytest.raises(LocalError, match="channels up to 3"):
        server.engine.begin()
    assert server.engine.is_opened


def test_more_links_than_the_server_takes_are_our_own_fault(server: RawPeer) -> None:
    session = server.engine.begin()
    server.say(answer(handle_max=0))
    session.new_link("a", LinkRole.SENDER)
    with pytest.raises(LocalError, match="handles up to 0"):
        session.new_link("b", LinkRole.SENDER)
    assert server.engine.allowance.link_count == 1


def test_more_links_than_we_allow_are_our_own_fault(new_client: NewClient) -> None:
    server = new_client(sasl=False, links_max=1)
    server.engine.start()
    server.engine.send_open()
    session = server.engine.begin()
    session.new_link("a", LinkRole.SENDER)
    with pytest.raises(LocalError, match="at most 1"):
        session.new_link("b", LinkRole.SENDER)


@pytest.mark.parametrize(
    "mistake",
    [
        lambda link: link.session.connection.send_open(),
        lambda link: link.session.connection.answer_sasl(ok=True),
        lambda link: link.session.connection.init_sasl("PLAIN", b""),
        lambda link: link.session.begin(),
        lambda link: link.request(source=None, target=None),
        lambda link: (link.detach(), link.detach()),
        lambda link: (link.detach(), link.send(b"", settled=True)),
        lambda link: (link.session.end(), link.session.end()),
        lambda link: (link.session.end(), link.detach()),
        lambda link: link.send(b"", settled=True, delivery_tag=b"t" * 33),
        lambda link: (link.session.connection.close(), link.session.connection.begin()),
    ],
)
def test_a_callers_mistake_raises_and_says_nothing_to_the_peer(
    server: RawPeer, kit: Kit, mistake: Callable[[Link], object]
) -> None:
    link = asked(server, LinkRole.SENDER)
    server.say(kit.attach(sender=False, name="n"))
    assert link.is_attached
    with pytest.raises(LocalError):
        mistake(link)
    assert len(server.hear()) <= 1  # the first half of the double ones


def test_our_own_mistake_is_not_blamed_on_the_peer(new_client: NewClient) -> None:
    server = new_client(server=True, properties={"what": object()})
    with pytest.raises(LocalError):
        server.say(AMQP_HEADER, Open(container_id="innocent"))


@pytest.mark.skipif(not __debug__, reason="an assertion of ours, off with -O")
def test_credit_that_was_not_given_cannot_be_spent(server: RawPeer, kit: Kit) -> None:
    link = asked(server, LinkRole.SENDER)
    server.say(kit.attach(sender=False, name="n"))
    with pytest.raises(AssertionError):
        link.send_transfers(b"frame", deliveries=1, frames=1)


def test_reprs_are_short_and_plain(server: RawPeer) -> None:
    link = asked(server, LinkRole.SENDER, "ü" * 1000)
    assert repr(server.engine) == "<Connection 'client' OPENED>"
    assert repr(link.session) == "<Session 0/0 MAPPED>"
    assert repr(link).isascii()
    assert len(repr(link)) < 400
    assert "SENDER ATTACH_SENT credit=0" in repr(link)
