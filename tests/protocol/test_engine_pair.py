"""Two engines, a client's and a server's, joined by a wire: whole lives, by hand and by chance."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from penstock.amqp.config import ConnectionConfig
from penstock.amqp.connection import ConnectionEngine
from penstock.amqp.events import (
    AttachReceived,
    CloseReceived,
    ConnectionFailed,
    DetachReceived,
    DispositionReceived,
    EndReceived,
    Event,
    FlowReceived,
    OpenReceived,
    SaslInitReceived,
    SaslMechanismsReceived,
    SaslOutcomeReceived,
    TransferOversized,
    TransfersReceived,
)
from penstock.amqp.link import Link, LinkRole
from penstock.amqp.performatives import Accepted, Error, Rejected, Source, Target
from penstock.amqp.serial import serial_distance
from penstock.amqp.session import Session

if TYPE_CHECKING:
    from tests.protocol.conftest import Kit, Wire

NewWire = Callable[..., "Wire"]
GONE = Error(condition="amqp:link:detach-forced", description="gone")


def linked(wire: Wire, role: LinkRole, name: str = "n") -> tuple[Link, Link]:
    """A link in a session of its own: the client's end, the server's end."""
    session = wire.client.begin()
    ours = session.new_link(name, role)
    ours.request(source=Source(address="a"), target=Target(address="b"))
    wire.run()
    theirs = [event.link for event in wire.server_events if isinstance(event, AttachReceived)][-1]
    assert ours.is_attached
    assert theirs.is_attached
    return ours, theirs


# --- SASL and open ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mechanism", "response"),
    [
        ("ANONYMOUS", None),
        ("ANONYMOUS", b"\0policy"),
        ("MSSBCBS", None),
        ("EXTERNAL", b""),
        ("PLAIN", b"\0policy\0key"),
    ],
)
@pytest.mark.parametrize("chunk", [None, 1])
def test_every_mechanism_leads_to_an_open_connection(
    wire: Wire, kit: Kit, mechanism: str, response: bytes | None, chunk: int | None
) -> None:
    wire.mechanism, wire.response = mechanism, response
    wire.client.start()
    wire.run(chunk)
    offered = kit.only(SaslMechanismsReceived, wire.client_events)
    assert offered.mechanisms == ["MSSBCBS", "PLAIN", "ANONYMOUS", "EXTERNAL"]
    init = kit.only(SaslInitReceived, wire.server_events)
    assert (init.mechanism, init.initial_response) == (mechanism, response or b"")
    assert init.hostname == "contoso"
    assert kit.only(SaslOutcomeReceived, wire.client_events).additional_data == b"Welcome!"
    wire.client.send_open()
    wire.run(chunk)
    assert kit.only(OpenReceived, wire.server_events).open.container_id == "client"
    assert kit.only(OpenReceived, wire.client_events).open.container_id == "server_G0"
    assert wire.client.is_opened
    assert wire.server.is_opened


@pytest.mark.parametrize("chunk", [None, 1])
def test_a_wrong_key_ends_both_sides(wire: Wire, kit: Kit, chunk: int | None) -> None:
    wire.mechanism, wire.response = "PLAIN", b"wrong"
    wire.client.start()
    wire.run(chunk)
    failed = kit.only(ConnectionFailed, wire.client_events)
    assert failed.error.condition == "amqp:unauthorized-access"
    assert wire.client.is_over
    assert wire.server.is_over


def test_without_sasl_two_engines_open_too(new_wire: NewWire) -> None:
    wire = new_wire({"sasl": False})
    wire.client.start()
    wire.client.send_open()
    wire.run()
    assert wire.client.is_opened
    assert wire.server.is_opened


# --- one life by hand ---------------------------------------------------------------------------


def test_events_go_up_and_are_settled(wire: Wire, kit: Kit) -> None:
    wire.opened()
    ours, theirs = linked(wire, LinkRole.SENDER)
    theirs.grant(10)
    wire.run()
    assert ours.credit == 10
    ids = [ours.send(b"event %d" % i, settled=False) for i in range(5)]
    assert ids == [0, 1, 2, 3, 4]
    wire.run()
    assert kit.payloads(wire.server_events) == [b"event %d" % i for i in range(5)]
    theirs.settle(0, 3, Accepted())
    theirs.settle(4, 4, Rejected(error=GONE))
    theirs.replenish(10)
    wire.run()
    told = [e.disposition for e in wire.client_events if isinstance(e, DispositionReceived)]
    assert [(each.first, each.last, each.settled) for each in told] == [(0, 3, True), (4, 4, True)]
    assert told[0].state == Accepted()
    assert told[1].state == Rejected(error=GONE)
    assert ours.credit == theirs.credit == 10


def test_events_come_down_within_credit(wire: Wire, kit: Kit) -> None:
    wire.opened()
    ours, theirs = linked(wire, LinkRole.RECEIVER)
    assert theirs.send(b"too early", settled=True) is None
    ours.grant(3)
    wire.run()
    assert [theirs.send(b"x", settled=True) for _ in range(4)] == [0, 1, 2, None]
    wire.run()
    assert kit.payloads(wire.client_events) == [b"x"] * 3
    assert ours.credit == theirs.credit == 0


@pytest.mark.parametrize("role", [LinkRole.SENDER, LinkRole.RECEIVER])
@pytest.mark.parametrize("frame_size", [512, 4096, 65_536])
def test_long_deliveries_arrive_whole_both_ways(
    new_wire: NewWire, kit: Kit, role: LinkRole, frame_size: int
) -> None:
    wire = new_wire({"max_frame_size": frame_size}).opened()
    ends = linked(wire, role)
    sender = next(end for end in ends if end.role is LinkRole.SENDER)
    receiver = next(end for end in ends if end.role is LinkRole.RECEIVER)
    receiver.grant(10)
    wire.run()
    sent = [bytes(range(256)) * 700, b"", b"short", bytes(70_000)]
    for payload in sent:
        assert sender.send(payload, settled=True, message_format=7) is not None
    wire.run()
    events = wire.server_events if role is LinkRole.SENDER else wire.client_events
    assert kit.payloads(events) == sent
    assert {each.message_format for each in kit.deliveries(events)} == {7}
    assert sender.delivery_count == receiver.delivery_count == 4


def test_too_long_a_delivery_is_told_and_the_next_one_arrives(wire: Wire, kit: Kit) -> None:
    wire.max_message_size = 1000
    wire.opened()
    ours, theirs = linked(wire, LinkRole.SENDER)
    assert ours.attach is not None
    assert ours.attach.max_message_size == 1000
    theirs.grant(10)
    wire.run()
    ours.send(bytes(200_000), settled=False)
    ours.send(bytes(1001), settled=False)
    ours.send(b"good", settled=False)
    wire.run()
    too_long = [e for e in wire.server_events if isinstance(e, TransferOversized)]
    assert [(each.delivery_id, each.size) for each in too_long] == [(0, 200_000), (1, 1001)]
    assert kit.payloads(wire.server_events) == [b"good"]
    assert ours.credit == theirs.credit == 7


def test_drain_brings_credit_to_nothing_on_both_sides(wire: Wire) -> None:
    wire.opened()
    ours, theirs = linked(wire, LinkRole.RECEIVER)
    ours.grant(10, drain=True)
    wire.run()
    assert theirs.drain
    theirs.send(b"last", settled=True)
    theirs.complete_drain()
    wire.run()
    assert ours.credit == theirs.credit == 0
    assert ours.delivery_count == theirs.delivery_count == 10


def test_echo_brings_back_the_other_sides_state(wire: Wire) -> None:
    wire.opened()
    ours, theirs = linked(wire, LinkRole.SENDER)
    theirs.grant(10)
    wire.run()
    before = len(wire.client_events)
    ours.session.send_flow(ours, echo=True)
    wire.run()
    (event,) = wire.client_events[before:]
    assert isinstance(event, FlowReceived)
    assert event.link is ours
    assert ours.credit == 10


@pytest.mark.parametrize("by_client", [True, False])
def test_links_sessions_and_connections_end_by_either_side(wire: Wire, by_client: bool) -> None:
    wire.opened()
    ours, theirs = linked(wire, LinkRole.SENDER)
    events = wire.server_events if by_client else wire.client_events
    (ours if by_client else theirs).detach(GONE)
    wire.run()
    detached = events[-1]
    assert isinstance(detached, DetachReceived)
    assert detached.error == GONE
    (ours if by_client else theirs).session.end(GONE)
    wire.run()
    ended = events[-1]
    assert isinstance(ended, EndReceived)
    assert ended.error == GONE
    (wire.client if by_client else wire.server).close(GONE)
    wire.run()
    closed = events[-1]
    assert isinstance(closed, CloseReceived)
    assert closed.error == GONE
    assert wire.client.is_over
    assert wire.server.is_over


def test_both_sides_may_say_everything_at_once(wire: Wire) -> None:
    wire.opened()
    ours, theirs = linked(wire, LinkRole.SENDER)
    for engine, link in ((wire.client, ours), (wire.server, theirs)):
        link.detach()
        link.session.end()
        engine.close()
    wire.run()
    assert wire.client.is_over
    assert wire.server.is_over
    failures = [e for e in wire.client_events + wire.server_events if type(e) is ConnectionFailed]
    assert failures == []


def test_many_sessions_and_links_live_beside_each_other(wire: Wire, kit: Kit) -> None:
    wire.opened()
    ends = [linked(wire, LinkRole.SENDER, f"link {i}") for i in range(30)]
    for _, theirs in ends:
        theirs.grant(5)
    wire.run()
    for ours, _ in ends:
        ours.send(ours.name.encode(), settled=True)
    wire.run()
    found = {(each.link, each.payload.decode()) for each in kit.deliveries(wire.server_events)}
    assert found == {(f"link {i}", f"link {i}") for i in range(30)}
    for ours, _ in ends[::2]:
        ours.session.end()
    wire.run()
    assert len(wire.server.sessions) == len(wire.client.sessions) == 15


# --- lives by chance ----------------------------------------------------------------------------

SIZES = st.sampled_from([0, 1, 50, 400, 409, 1000, 3000])


class End:
    """One side's link and what it sent and got."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.sent: list[bytes] = []
        self.got: list[bytes] = []


class Lives(RuleBasedStateMachine):
    """Anything that two honest applications do, over a wire that cuts and delays.

    Always: nobody fails. Whenever the wire is empty: what was sent arrived, in order; both sides
    agree on credit and count; nothing is left behind of what ended.
    """

    def __init__(self) -> None:
        super().__init__()
        small: dict[str, Any] = {"max_frame_size": 512, "incoming_window": 20}
        self.client = ConnectionEngine(
            ConnectionConfig(container_id="client", server=False, sasl=False, **small), now_ms=0
        )
        self.server = ConnectionEngine(ConnectionConfig(container_id="server", **small), now_ms=0)
        self.way = {self.client: b"", self.server: b""}  # bytes on the way to
        self.sessions: list[Session] = []
        self.ends: dict[str, dict[ConnectionEngine, End]] = {}
        self.closing = False

    @initialize()
    def open(self) -> None:
        self.client.start()
        self.client.send_open()
        self.settle()
        assert self.client.is_opened
        assert self.server.is_opened

    # --- the wire

    def collect(self) -> None:
        self.way[self.server] += self.client.bytes_to_send(now_ms=0)
        self.way[self.client] += self.server.bytes_to_send(now_ms=0)

    def carry(self, to: ConnectionEngine, count: int) -> None:
        self.collect()
        data, self.way[to] = self.way[to][:count], self.way[to][count:]
        for event in to.receive_data(data, now_ms=0):
            self.told(to, event)
        self.collect()

    def told(self, by: ConnectionEngine, event: Event) -> None:
        assert not isinstance(event, ConnectionFailed), event.error
        assert not isinstance(event, TransferOversized)
        if isinstance(event, AttachReceived):
            link = event.link
            if by is self.server:
                link.accept(source=Source(), target=Target(), max_message_size=10_000)
            self.ends[link.name][by] = End(link)
        elif isinstance(event, TransfersReceived):
            end = self.ends[event.link.name][by]
            for i in range(0, len(event.bounds), 2):
                end.got.append(event.data[event.bounds[i] : event.bounds[i + 1]])
        elif isinstance(event, FlowReceived) and event.link is not None and event.link.drain:
            event.link.complete_drain()

    def settle(self) -> None:
        self.collect()
        while any(self.way.values()):
            self.carry(self.server, 10**6)
            self.carry(self.client, 10**6)

    def live(self, role: LinkRole | None = None) -> list[End]:
        return [
            end
            for ends in self.ends.values()
            for end in ends.values()
            if end.link.is_attached and role in (None, end.link.role)
        ]

    # --- what may happen

    @rule(server=st.booleans(), count=st.integers(1, 400))
    def some_bytes_travel(self, server: bool, count: int) -> None:
        self.carry(self.server if server else self.client, count)

    @rule()
    def everything_travels(self) -> None:
        self.settle()

    @precondition(lambda self: not self.closing and len(self.sessions) < 6)
    @rule()
    def client_begins(self) -> None:
        self.sessions.append(self.client.begin())

    @precondition(lambda self: not self.closing and self.sessions)
    @rule(role=st.sampled_from(LinkRole), which=st.integers(0, 5), credit=st.integers(0, 30))
    def client_attaches(self, role: LinkRole, which: int, credit: int) -> None:
        session = self.sessions[which % len(self.sessions)]
        if session.state.name not in ("MAPPED", "BEGIN_SENT"):
            return
        name = f"link {len(self.ends)}"
        self.ends[name] = {}
        link = session.new_link(name, role)
        link.request(source=Source(), target=Target())
        if role is LinkRole.RECEIVER and credit:
            link.grant(credit)  # pipelined

    @rule(which=st.integers(0, 50), size=SIZES, settled=st.booleans())
    def somebody_sends(self, which: int, size: int, settled: bool) -> None:
        ends = self.live(LinkRole.SENDER)
        if ends and not self.closing:
            end = ends[which % len(ends)]
            payload = bytes([len(end.sent) % 256]) * size
            if end.link.send(payload, settled=settled) is not None:
                end.sent.append(payload)

    @rule(which=st.integers(0, 50), credit=st.integers(0, 40), drain=st.booleans())
    def somebody_grants(self, which: int, credit: int, drain: bool) -> None:
        ends = self.live(LinkRole.RECEIVER)
        if ends:
            ends[which % len(ends)].link.grant(credit, drain=drain, echo=drain)

    @rule(which=st.integers(0, 50))
    def somebody_settles(self, which: int) -> None:
        ends = self.live(LinkRole.RECEIVER)
        if ends:
            ends[which % len(ends)].link.settle(0, 2**32 - 1, Accepted())

    @rule(which=st.integers(0, 50))
    def somebody_detaches(self, which: int) -> None:
        ends = self.live()
        if ends and which % 3 == 0:
            ends[which % len(ends)].link.detach(GONE)

    @precondition(lambda self: self.sessions)
    @rule(which=st.integers(0, 20), server=st.booleans())
    def somebody_ends(self, which: int, server: bool) -> None:
        if which % 4:
            return
        session = self.sessions[which % len(self.sessions)]
        if server:
            session = self.server.sessions.get(session.channel, session)
        if session.is_mapped:
            session.end(GONE if which % 8 else None)

    @rule(which=st.integers(0, 30), server=st.booleans())
    def somebody_closes(self, which: int, server: bool) -> None:
        if which == 7:
            self.closing = True
            (self.server if server else self.client).close()

    # --- what must hold

    @invariant()
    def nothing_grows(self) -> None:
        for engine in (self.client, self.server):
            assert engine.held_bytes < 20_000

    @invariant()
    def an_empty_wire_means_agreement(self) -> None:
        self.collect()
        if any(self.way.values()):
            return
        if self.closing:
            assert self.client.is_over
            assert self.server.is_over
            return
        assert self.client.allowance.link_count == self.server.allowance.link_count
        assert len(self.client.sessions) == len(self.server.sessions)
        for ends in self.ends.values():
            if len(ends) == 2 and all(end.link.is_attached for end in ends.values()):
                self.agree(*sorted(ends.values(), key=lambda end: end.link.role))

    def agree(self, sender: End, receiver: End) -> None:
        assert receiver.got == sender.sent
        assert sender.link.credit == receiver.link.credit
        assert serial_distance(sender.link.delivery_count, receiver.link.delivery_count) == 0

    def teardown(self) -> None:
        self.settle()
        self.an_empty_wire_means_agreement()


Lives.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
test_two_honest_sides_agree_whatever_they_do_and_whatever_the_wire_does = Lives.TestCase
