"""Peers for the engine: one written with raw frames, and a pair of engines joined by a wire.

Tests take these from fixtures; annotations may name the classes under TYPE_CHECKING.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import pytest
from tests.support.amqp_frames import Sent, frame, read_frames

from penstock.amqp.connection import ConnectionConfig, ConnectionEngine
from penstock.amqp.events import (
    AttachReceived,
    BeginReceived,
    ConnectionFailed,
    Event,
    SaslInitReceived,
    SaslMechanismsReceived,
    TransfersReceived,
)
from penstock.amqp.frames import AMQP_HEADER, SASL_HEADER
from penstock.amqp.link import UNLIMITED, Link
from penstock.amqp.performatives import (
    Attach,
    Begin,
    Open,
    Performative,
    SaslInit,
    Source,
    Target,
    Transfer,
)
from penstock.amqp.serial import serial_add
from penstock.amqp.session import Session

E = TypeVar("E")
P = TypeVar("P")

CONTAINER = "server_G0"


def only(kind: type[E], events: Sequence[object]) -> E:
    """The one event of a kind."""
    found = [event for event in events if isinstance(event, kind)]
    assert len(found) == 1, events
    return found[0]


class RawPeer:
    """Says whatever a test wants to a server's engine, and hears all it answers."""

    def __init__(self, engine: ConnectionEngine, *, now_ms: int = 0) -> None:
        self.engine = engine
        self.now_ms = now_ms

    # --- bytes and frames

    def say(self, *spoken: bytes | Performative | None) -> list[Event]:
        """All in one read of the socket; None is an empty frame."""
        data = b"".join(each if isinstance(each, bytes) else frame(each) for each in spoken)
        return self.engine.receive_data(data, now_ms=self.now_ms)

    def hear_bytes(self) -> bytes:
        return self.engine.bytes_to_send(now_ms=self.now_ms)

    def hear(self) -> list[Sent]:
        return read_frames(self.hear_bytes())

    def hear_one(self, kind: type[P]) -> P:
        return only(kind, [sent.body for sent in self.hear()])

    def failure(self, *spoken: bytes | Performative) -> str:
        """The condition that these bytes end the connection with; nothing may raise."""
        failed = only(ConnectionFailed, self.say(*spoken))
        assert self.engine.is_over
        assert self.engine.held_bytes == 0
        return failed.error.condition

    # --- the usual beginning

    def opened(self, **fields: Any) -> RawPeer:
        """Header and open, without SASL, without a word read."""
        self.say(AMQP_HEADER, Open(**{"container_id": "peer", **fields}))
        self.hear_bytes()
        assert self.engine.is_opened
        return self

    def begun(self, channel: int = 0, **fields: Any) -> Session:
        fields = {
            "next_outgoing_id": 0,
            "incoming_window": 1000,
            "outgoing_window": 1000,
            **fields,
        }
        events = self.say(frame(Begin(**fields), channel=channel))
        self.hear_bytes()
        return only(BeginReceived, events).session

    def attached(self, *, sender: bool, channel: int = 0, **fields: Any) -> Link:
        """A link that the server accepted; `sender` says what the peer is."""
        link = self.asked(sender=sender, channel=channel, **fields)
        link.accept(source=Source(), target=Target(), max_message_size=fields.get("limit", 2**20))
        self.hear_bytes()
        assert link.is_attached
        return link

    def asked(self, *, sender: bool, channel: int = 0, **fields: Any) -> Link:
        fields.pop("limit", None)
        events = self.say(frame(attach(sender=sender, **fields), channel=channel))
        return only(AttachReceived, events).link

    def sender(self, **fields: Any) -> Link:
        """Open, begin and attach a link on which the peer sends."""
        self.opened()
        self.begun()
        return self.attached(sender=True, **fields)

    def receiver(self, **fields: Any) -> Link:
        self.opened()
        self.begun()
        return self.attached(sender=False, **fields)


def attach(*, sender: bool, **fields: Any) -> Attach:
    """What a peer asks for, short of the fields that a test names."""
    fields = {
        "name": "link",
        "handle": 0,
        "role": not sender,
        "source": Source(address="source"),
        "target": Target(address="target"),
        "initial_delivery_count": 0 if sender else None,
        **fields,
    }
    return Attach(**fields)


def piece(delivery_id: int | None, payload: bytes = b"", **fields: Any) -> bytes:
    """A transfer frame, of a whole delivery unless `more` is given."""
    channel = fields.pop("channel", 0)
    fields = {"handle": 0, "delivery_tag": b"tag", "message_format": 0, **fields}
    return frame(Transfer(delivery_id=delivery_id, **fields), payload, channel=channel)


def payloads(events: Sequence[object]) -> list[bytes]:
    """What the deliveries carried, however they were grouped."""
    return [each.payload for each in deliveries(events)]


class Delivery(NamedTuple):
    link: str
    delivery_id: int
    payload: bytes
    settled: bool
    message_format: int


def deliveries(events: Sequence[object]) -> list[Delivery]:
    found = []
    for event in events:
        if isinstance(event, TransfersReceived):
            assert len(event.bounds) == 2 * event.count
            for i in range(event.count):
                start, stop = event.bounds[2 * i : 2 * i + 2]
                number = serial_add(event.first_delivery_id, i)
                found.append(
                    Delivery(
                        event.link.name,
                        number,
                        event.data[start:stop],
                        event.settled,
                        event.message_format,
                    )
                )
    return found


def server_config(**fields: Any) -> ConnectionConfig:
    return ConnectionConfig(**{"container_id": CONTAINER, **fields})


def client_config(**fields: Any) -> ConnectionConfig:
    return ConnectionConfig(
        **{"container_id": "client", "hostname": "contoso", "server": False, **fields}
    )


class Wire:
    """A client's and a server's engine, joined; bytes travel when `run` says so.

    Both applications are minimal: SASL is accepted, every attach is, with `max_message_size`.
    """

    def __init__(self, client: ConnectionConfig, server: ConnectionConfig) -> None:
        self.now_ms = 0
        self.client = ConnectionEngine(client, now_ms=0)
        self.server = ConnectionEngine(server, now_ms=0)
        self.to_server = b""
        self.to_client = b""
        self.client_events: list[Event] = []
        self.server_events: list[Event] = []
        self.mechanism = "ANONYMOUS"
        self.response: bytes | None = None
        self.max_message_size = UNLIMITED
        self.server_answers = self.accept

    def collect(self) -> None:
        self.to_server += self.client.bytes_to_send(now_ms=self.now_ms)
        self.to_client += self.server.bytes_to_send(now_ms=self.now_ms)

    def carry_to_server(self, count: int) -> None:
        data, self.to_server = self.to_server[:count], self.to_server[count:]
        self._server_reads(data)

    def carry_to_client(self, count: int) -> None:
        data, self.to_client = self.to_client[:count], self.to_client[count:]
        for event in self.client.receive_data(data, now_ms=self.now_ms):
            self.client_events.append(event)
            if isinstance(event, SaslMechanismsReceived):
                self.client.init_sasl(self.mechanism, self.response)

    def run(self, chunk: int | None = None) -> None:
        """Until nothing is under way; `chunk` bytes at a time each way."""
        self.collect()
        while self.to_server or self.to_client:
            self.carry_to_server(chunk or len(self.to_server))
            self.collect()
            self.carry_to_client(chunk or len(self.to_client))
            self.collect()

    def _server_reads(self, data: bytes) -> None:
        for event in self.server.receive_data(data, now_ms=self.now_ms):
            self.server_events.append(event)
            if isinstance(event, SaslInitReceived):
                self.server.answer_sasl(ok=event.initial_response != b"wrong")
                self._server_reads(b"")
            elif isinstance(event, AttachReceived):
                self.server_answers(event.link)

    def accept(self, link: Link) -> None:
        asked = link.attach
        assert asked is not None
        link.accept(
            source=asked.source, target=asked.target, max_message_size=self.max_message_size
        )

    def opened(self) -> Wire:
        """Through SASL and open; the events so far are forgotten."""
        self.client.start()
        self.run()
        self.client.send_open()
        self.run()
        assert self.client.is_opened
        assert self.server.is_opened
        self.client_events.clear()
        self.server_events.clear()
        return self


@pytest.fixture
def new_peer() -> Callable[..., RawPeer]:
    """`new_peer(**config)`: a raw peer facing a fresh server's engine."""

    def make(**fields: Any) -> RawPeer:
        return RawPeer(ConnectionEngine(server_config(**fields), now_ms=0))

    return make


@pytest.fixture
def peer(new_peer: Callable[..., RawPeer]) -> RawPeer:
    return new_peer()


@pytest.fixture
def new_client() -> Callable[..., RawPeer]:
    """A raw peer that plays the server to a client's engine."""

    def make(**fields: Any) -> RawPeer:
        return RawPeer(ConnectionEngine(client_config(**fields), now_ms=0))

    return make


@pytest.fixture
def new_wire() -> Callable[..., Wire]:
    def make(client: dict[str, Any] | None = None, server: dict[str, Any] | None = None) -> Wire:
        return Wire(client_config(**(client or {})), server_config(**(server or {})))

    return make


@pytest.fixture
def wire(new_wire: Callable[..., Wire]) -> Wire:
    return new_wire()


class Kit(NamedTuple):
    """The functions above, for tests (which cannot import this file)."""

    frame: Callable[..., bytes]
    piece: Callable[..., bytes]
    attach: Callable[..., Attach]
    only: Callable[..., Any]
    payloads: Callable[..., list[bytes]]
    deliveries: Callable[..., list[Delivery]]
    read_frames: Callable[[bytes], list[Sent]]
    sasl_start: bytes
    begin: Begin


@pytest.fixture(scope="session")
def kit() -> Kit:
    start = SASL_HEADER + frame(SaslInit(mechanism="ANONYMOUS", initial_response=b""))
    begin = Begin(next_outgoing_id=0, incoming_window=1000, outgoing_window=1000)
    return Kit(frame, piece, attach, only, payloads, deliveries, read_frames, start, begin)
