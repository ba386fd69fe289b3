"""Frames cut at every byte, both ways, give the same events as whole ones.

Conversations are played once between two engines and recorded, turn by turn. Then each side hears
the other's recorded bytes again, cut at one position (every one there is), byte by byte, and in
pieces that Hypothesis chooses, and must be told the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.amqp_frames import frame

from penstock.amqp.config import ConnectionConfig
from penstock.amqp.connection import ConnectionEngine
from penstock.amqp.events import (
    AttachReceived,
    ConnectionFailed,
    DispositionReceived,
    Event,
    FlowReceived,
    SaslInitReceived,
    SaslMechanismsReceived,
    TransferOversized,
    TransfersReceived,
)
from penstock.amqp.frames import EMPTY_FRAME
from penstock.amqp.link import Link, LinkRole
from penstock.amqp.performatives import (
    Accepted,
    Attach,
    Begin,
    Close,
    Detach,
    End,
    Error,
    Flow,
    Open,
    Rejected,
    SaslInit,
    Source,
    Target,
    Transfer,
)
from penstock.amqp.serial import serial_add

GONE = Error(condition="amqp:link:stolen", description="taken over")


class Side:
    """An engine and an application that answers at once; `told` is what it was told, in order."""

    def __init__(self, server: bool) -> None:
        self.server = server
        config = ConnectionConfig(
            container_id="server" if server else "client",
            server=server,
            max_frame_size=512,
            incoming_window=8,
        )
        self.engine = ConnectionEngine(config, now_ms=0)
        self.links: dict[str, Link] = {}
        self.told: list[tuple[object, ...]] = []

    def hear(self, data: bytes) -> None:
        for event in self.engine.receive_data(data, now_ms=0):
            self.told += described(event)
            self.answer(event)

    def answer(self, event: Event) -> None:
        if isinstance(event, SaslMechanismsReceived):
            self.engine.init_sasl("PLAIN", b"\0policy\0key")
        elif isinstance(event, SaslInitReceived):
            self.engine.answer_sasl(ok=event.initial_response != b"wrong")
            self.hear(b"")
        elif isinstance(event, AttachReceived):
            link = self.links[event.link.name] = event.link
            if self.server and event.link.name == "refused":
                link.refuse(GONE)
            elif self.server:
                link.accept(source=Source(), target=Target(), max_message_size=420)

    def ask(self, name: str, role: LinkRole, channel: int = 0) -> Link:
        session = self.engine._by_channel[channel]
        link = self.links[name] = session.new_link(name, role)
        link.request(source=Source(address=name), target=Target())
        return link


def described(event: Event) -> Iterator[tuple[object, ...]]:
    """An event without its objects; a run of deliveries one by one."""
    name = type(event).__name__
    if isinstance(event, TransfersReceived):
        for i in range(event.count):
            start, stop = event.bounds[2 * i : 2 * i + 2]
            number = serial_add(event.first_delivery_id, i)
            data = event.data[start:stop]
            yield name, event.link.name, number, data, event.settled, event.message_format
    elif isinstance(event, FlowReceived):
        yield name, event.link.name if event.link is not None else None
    elif isinstance(event, DispositionReceived):
        yield name, event.session.channel, event.disposition
    elif isinstance(event, ConnectionFailed):
        yield name, event.error.condition, str(event.error)
    elif isinstance(event, TransferOversized):
        yield name, event.link.name, event.delivery_id, event.size, event.settled
    else:
        yield name, *(_plain(getattr(event, field)) for field in event.__struct_fields__)


def _plain(value: object) -> object:
    if isinstance(value, Link):
        return value.name
    return value.__class__.__name__ if value.__class__.__name__ == "Session" else value


# --- what is said -------------------------------------------------------------------------------

Step = Callable[[Side], object]


def _ask_all(side: Side) -> None:
    side.engine.begin()
    side.ask("up", LinkRole.SENDER)
    side.ask("down", LinkRole.RECEIVER).grant(20)
    side.ask("refused", LinkRole.SENDER)


def _send(name: str, *sizes: int, settled: bool = True) -> Step:
    def send(side: Side) -> None:
        for size in sizes:
            assert side.links[name].send(b"%d" % (size % 10) * size, settled=settled) is not None

    return send


# (does the client act?, what it does): after each step all bytes travel until nobody speaks.
LIFE: list[tuple[bool, Step]] = [
    (True, lambda side: side.engine.start()),
    (True, lambda side: side.engine.send_open()),
    (True, _ask_all),
    (False, lambda side: side.links["up"].grant(20)),
    (True, _send("up", 3, 0, 410, 5, settled=False)),
    (True, _send("up", 421)),
    (False, lambda side: side.links["up"].settle(0, 2, Accepted())),
    (False, lambda side: side.links["up"].settle(3, 3, Rejected(error=GONE))),
    (False, _send("down", 1, 2, 409)),
    (True, lambda side: side.links["down"].grant(5, drain=True)),
    (False, lambda side: side.links["down"].complete_drain()),
    (True, lambda side: side.links["up"].session.send_flow(side.links["up"], echo=True)),
    (True, lambda side: side.engine.queue(EMPTY_FRAME)),
    (False, lambda side: side.links["down"].detach(GONE)),
    (True, lambda side: side.links["up"].detach()),
    (True, lambda side: side.links["up"].session.end()),
    (False, lambda side: side.engine.close(GONE)),
]


class Turn(NamedTuple):
    """What one side heard (or, without data, did) next."""

    data: bytes
    act: Step | None


class Recording(NamedTuple):
    server: bool
    turns: list[Turn]
    told: list[tuple[object, ...]]

    @property
    def size(self) -> int:
        return sum(len(turn.data) for turn in self.turns)


@cache
def recorded(server: bool) -> Recording:
    sides = {True: Side(server=False), False: Side(server=True)}  # by: is it the client
    turns: dict[bool, list[Turn]] = {True: [], False: []}
    for client, act in LIFE:
        act(sides[client])
        turns[client].append(Turn(b"", act))
        spoke = True
        while spoke:
            spoke = False
            for speaker in (True, False):
                data = sides[speaker].engine.bytes_to_send(now_ms=0)
                if data:
                    spoke = True
                    turns[not speaker].append(Turn(data, None))
                    sides[not speaker].hear(data)
    assert sides[True].engine.is_over
    assert sides[False].engine.is_over
    return Recording(server, turns[not server], sides[not server].told)


def play(recording: Recording, pieces: Callable[[bytes], list[bytes]]) -> Side:
    """The same life again; `pieces(data)` says how a turn's bytes are cut."""
    side = Side(recording.server)
    for turn in recording.turns:
        if turn.act is not None:
            turn.act(side)
        for each in pieces(turn.data):
            side.hear(each)
            side.engine.bytes_to_send(now_ms=0)
    return side


BOTH = pytest.mark.parametrize("server", [True, False], ids=["to the server", "to the client"])


@BOTH
def test_the_recorded_life_has_everything_in_it(server: bool) -> None:
    names = {str(each[0]) for each in recorded(server).told}
    common = {
        "OpenReceived", "BeginReceived", "AttachReceived", "FlowReceived", "TransfersReceived",
        "DetachReceived", "EndReceived", "CloseReceived",
    }  # fmt: skip
    own = {"SaslInitReceived", "TransferOversized"} if server else {
        "SaslMechanismsReceived", "SaslOutcomeReceived", "DispositionReceived",
    }  # fmt: skip
    assert names == common | own
    assert 500 < recorded(server).size < 6000


def _in_two(cut: int, data: bytes) -> list[bytes]:
    return [data[:cut], data[cut:]]


@BOTH
def test_a_life_cut_at_any_byte_is_the_same(server: bool) -> None:
    """Each turn in two pieces, at each of its bytes."""
    recording = recorded(server)
    for cut in range(1, max(len(turn.data) for turn in recording.turns)):
        side = play(recording, partial(_in_two, cut))
        assert side.told == recording.told, f"cut at byte {cut} of a turn"
        assert side.engine.is_over


@BOTH
def test_a_life_heard_byte_by_byte_is_the_same(server: bool) -> None:
    recording = recorded(server)
    side = play(recording, lambda data: [data[i : i + 1] for i in range(len(data))])
    assert side.told == recording.told
    assert side.engine.held_bytes == 0


@settings(max_examples=60, deadline=None)
@given(server=st.booleans(), sizes=st.lists(st.integers(1, 700), min_size=1, max_size=20))
def test_a_life_cut_into_any_pieces_is_the_same(server: bool, sizes: list[int]) -> None:
    recording = recorded(server)

    def pieces(data: bytes) -> list[bytes]:
        cut, i = [], 0
        while data:
            size = sizes[i % len(sizes)]
            cut.append(data[:size])
            data, i = data[size:], i + 1
        return cut

    assert play(recording, pieces).told == recording.told


# --- what real clients write at once ------------------------------------------------------------


def transfer(number: int | None, payload: bytes, **fields: Any) -> bytes:
    fields = {"handle": 1, "delivery_tag": b"t", "message_format": 0, **fields}
    return frame(Transfer(delivery_id=number, **fields), payload)


OPEN = frame(Open(container_id="peer"))
BEGIN = frame(Begin(next_outgoing_id=0, incoming_window=100, outgoing_window=100))
ATTACH = frame(Attach(name="up", handle=1, role=False, target=Target(address="hub")))
CREDIT = frame(
    Flow(
        next_incoming_id=None, incoming_window=9, next_outgoing_id=0, outgoing_window=9,
        handle=2, link_credit=100,
    )
)  # fmt: skip
SASL = b"AMQP\x03\x01\x00\x00" + frame(SaslInit(mechanism="ANONYMOUS"))
HEADER = b"AMQP\x00\x01\x00\x00"
STREAMS = {
    "PY pipelines to its attach, sends, ends, then detaches": b"".join((
        SASL, HEADER, OPEN, BEGIN, ATTACH, transfer(0, b"one"), transfer(1, b"two"),
        transfer(2, b"3", more=True), transfer(2, b"33"), frame(End()), frame(Detach(handle=1)),
        frame(Close()),
    )),
    "rhea sends credit with its attach": b"".join((
        HEADER, OPEN, BEGIN,
        frame(Attach(name="down", handle=2, role=True, source=Source(address="hub"))), CREDIT,
        frame(Detach(handle=2, closed=True)), frame(End()), frame(Close()),
    )),
    "GO leaves the id out of later pieces": b"".join((
        HEADER, OPEN, BEGIN, ATTACH, transfer(0, b"a", more=True),
        transfer(None, b"b", more=True, delivery_tag=None, message_format=None), EMPTY_FRAME,
        transfer(None, b"c", delivery_tag=None, message_format=None), transfer(1, b"d"),
    )),
    "an aborted and an oversized delivery": b"".join((
        HEADER, OPEN, BEGIN, ATTACH, transfer(0, b"a", more=True), transfer(0, b"", aborted=True),
        transfer(1, bytes(400), more=True), transfer(1, bytes(400), more=True),
        transfer(1, bytes(400)), transfer(2, b"good", settled=True),
    )),
    "a broken frame behind good ones": b"".join((
        HEADER, OPEN, BEGIN, ATTACH, transfer(0, b"a"), b"\x00\x00\x00\x07\x02\x00\x00\x00", OPEN,
    )),
    "a frame that is too long": HEADER + OPEN + b"\x00\x00\x02\x01\x02\x00\x00\x00" + bytes(505),
    "another protocol": b"GET / HTTP/1.1\r\n\r\n",
    "another version": b"AMQP\x00\x00\x09\x01" + OPEN,
    "a second SASL header": SASL + b"AMQP\x03\x01\x00\x00",
}  # fmt: skip


def heard(*pieces: bytes) -> tuple[Side, bytes]:
    side, said = Side(server=True), b""
    for each in pieces:
        side.hear(each)
        said += side.engine.bytes_to_send(now_ms=0)
    return side, said


@pytest.mark.parametrize("name", STREAMS)
def test_a_clients_stream_cut_anywhere_means_the_same(name: str) -> None:
    stream = STREAMS[name]
    whole, _ = heard(stream)
    assert whole.told
    for cut in range(1, len(stream)):
        side, _ = heard(stream[:cut], stream[cut:])
        assert side.told == whole.told, f"cut at byte {cut}"
        assert side.engine.is_over == whole.engine.is_over
    side, _ = heard(*(stream[i : i + 1] for i in range(len(stream))))
    assert side.told == whole.told


@pytest.mark.parametrize(
    "name",
    [
        "GO leaves the id out of later pieces",
        "an aborted and an oversized delivery",
        "a frame that is too long",
        "another protocol",
        "another version",
        "a second SASL header",
    ],
)
def test_what_is_answered_does_not_depend_on_the_cuts(name: str) -> None:
    """While the peer has not said goodbye; then some answers are not worth a frame any more. The
    window is opened once per read, not per frame: flows are left out."""
    stream = STREAMS[name]
    _, whole = heard(stream)
    for size in (1, 7, 100):
        pieces = [stream[i : i + size] for i in range(0, len(stream), size)]
        _, piecewise = heard(*pieces)
        assert _without_flows(piecewise) == _without_flows(whole)


def _without_flows(data: bytes) -> list[bytes]:
    frames = []
    while data:
        size = 8 if data.startswith(b"AMQP") else int.from_bytes(data[:4], "big")
        if data[8:11] != b"\x00\x53\x13":
            frames.append(data[:size])
        data = data[size:]
    return frames
