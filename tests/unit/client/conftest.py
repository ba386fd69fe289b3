"""An Event Hubs of few words, in this process and over a real socket: it keeps what it is sent, and
answers as the test says. What the real one does is for tests/system."""

from __future__ import annotations

import asyncio
import copy
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from penstock.amqp.connection import ConnectionConfig, ConnectionEngine
from penstock.amqp.events import (
    AttachReceived,
    Event,
    FlowReceived,
    SaslInitReceived,
    TransfersReceived,
)
from penstock.amqp.link import Link, LinkRole
from penstock.amqp.message import (
    DataBody,
    Message,
    Properties,
    ValueBody,
    decode_message,
    encode_message,
)
from penstock.amqp.performatives import Accepted, Attach, Error, Rejected, Source, Target
from penstock.amqp.types import Array, Int, Long, Symbol, Timestamp

DEADLINE_S = 30.0
MESSAGE_BYTES_MAX = 64 * 1024
CREDIT = 100
SILENCE, DROP, DETACH = "silence", "drop", "detach"
Verdict = Error | str | None


def delivered(number: int, body: bytes = b"x", **annotations: object) -> bytes:
    """An event as the service delivers it."""
    place: dict[Any, object] = {
        Symbol("x-opt-sequence-number-epoch"): Int(-1),
        Symbol("x-opt-sequence-number"): Long(number),
        Symbol("x-opt-offset"): str(number * 100),
        Symbol("x-opt-enqueued-time"): Timestamp(1_700_000_000_000 + number),
    }
    return encode_message(Message(message_annotations=place | annotations, body=DataBody([body])))


class Peer:
    """What it heard, and what it is to say."""

    def __init__(self) -> None:
        self.connections: list[PeerConnection] = []
        self.tokens: list[str] = []  # audiences of put-token
        self.token_status = 202
        self.attached: list[Attach] = []
        self.refusals: deque[Error | None] = deque()  # of attaches to entities, in turn
        self.verdicts: deque[Verdict] = deque()  # on publications, in turn; then all are taken
        self.published: list[bytes] = []
        self.events: list[bytes] = []  # what readers get, in order
        self.credits: list[int] = []  # that readers gave
        self.producer: dict[str, object] | None = None  # told to idempotent producers
        self.management: dict[str, object] = {}
        self.management_errors: deque[tuple[int, str]] = deque()
        self.changed = asyncio.Event()
        self.port = 0

    @property
    def connection_string(self) -> str:
        return (
            f"Endpoint=sb://127.0.0.1:{self.port};SharedAccessKeyName=root;SharedAccessKey=key;"
            "EntityPath=hub;UseDevelopmentEmulator=true"
        )

    async def until(self, true: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not true():
                self.changed.clear()
                await self.changed.wait()

    def selectors(self) -> list[str]:
        """Where readers asked to start."""
        found = []
        for attach in self.attached:
            if attach.source is not None and attach.source.filter:
                (described,) = attach.source.filter.values()
                found.append(described.value)  # type: ignore[attr-defined]  # Described
        return found


class PeerConnection(asyncio.Protocol):
    """One client's connection."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.engine = ConnectionEngine(
            ConnectionConfig(container_id="peer", idle_time_out_ms=None), now_ms=0
        )
        self.nodes: dict[Link, str] = {}  # the address of each link
        self.next_event: dict[Link, int] = {}
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.peer.connections.append(self)

    def data_received(self, data: bytes) -> None:
        for event in self.engine.receive_data(data, now_ms=0):
            self.on_event(event)
        self.flush()
        self.peer.changed.set()

    def flush(self) -> None:
        assert self.transport is not None
        self.transport.write(self.engine.bytes_to_send(now_ms=0))
        if self.engine.is_over:
            self.transport.close()

    def on_event(self, event: Event) -> None:
        match event:
            case SaslInitReceived():
                self.engine.answer_sasl(ok=True)
                self.data_received(b"")
            case AttachReceived(link=link):
                self.on_attach(link)
            case FlowReceived(link=link) if link is not None and link.role is LinkRole.SENDER:
                self.on_credit(link)
            case TransfersReceived():
                self.on_transfers(event)
            case _:
                pass  # the engine answers open, begin, detach, end and close itself

    def on_attach(self, link: Link) -> None:
        asked = link.attach
        assert asked is not None
        node = self.nodes[link] = _node(asked)
        is_entity = not node.startswith("$")
        if is_entity:
            self.peer.attached.append(copy.copy(asked))  # the engine keeps less of it
            refusal = self.peer.refusals.popleft() if self.peer.refusals else None
            if refusal is not None:
                link.refuse(refusal)
                return
        properties = None
        if asked.desired_capabilities and "com.microsoft:idempotent-producer" in (
            asked.desired_capabilities
        ):
            properties = self.peer.producer
        self.next_event[link] = 0
        link.accept(
            source=asked.source,
            target=asked.target,
            max_message_size=MESSAGE_BYTES_MAX,
            properties=properties,
        )
        if link.role is LinkRole.RECEIVER:
            link.grant(CREDIT)

    def on_credit(self, link: Link) -> None:
        if not self.nodes[link].startswith("$"):
            self.peer.credits.append(link.credit)
            self.feed(link)

    def feed(self, link: Link) -> None:
        while link.credit > 0 and self.next_event[link] < len(self.peer.events):
            link.send(self.peer.events[self.next_event[link]], settled=True)
            self.next_event[link] += 1

    def on_transfers(self, event: TransfersReceived) -> None:
        for i in range(event.count):
            payload = event.data[event.bounds[2 * i] : event.bounds[2 * i + 1]]
            if self.nodes[event.link].startswith("$"):
                self.answer(event.link, payload)
            else:
                self.judge(event.link, payload, event.first_delivery_id + i)
        event.link.replenish(CREDIT)

    def judge(self, link: Link, payload: bytes, delivery_id: int) -> None:
        verdict = self.peer.verdicts.popleft() if self.peer.verdicts else None
        if verdict is None:
            self.peer.published.append(payload)
            link.settle(delivery_id, delivery_id, Accepted())
        elif isinstance(verdict, Error):
            link.settle(delivery_id, delivery_id, Rejected(error=verdict))
        elif verdict == DROP:
            self.peer.published.append(payload)  # stored, and nobody hears of it
            self.drop()
        elif verdict == DETACH:
            link.detach(Error(condition="amqp:link:detach-forced", description="moved"))

    def drop(self) -> None:
        assert self.transport is not None
        self.transport.abort()

    def answer(self, link: Link, payload: bytes) -> None:
        request = decode_message(payload)
        assert request.properties is not None
        asked = request.application_properties or {}
        told: dict[str, object] = {"status-description": "said"}
        body = None
        if self.nodes[link] == "$cbs":
            self.peer.tokens.append(str(asked["name"]))
            told["status-code"] = Int(self.peer.token_status)
        elif self.peer.management_errors:
            status, condition = self.peer.management_errors.popleft()
            told |= {"status-code": Int(status), "error-condition": Symbol(condition)}
        else:
            told["status-code"] = Int(200)
            body = ValueBody(self.peer.management)
        answer = Message(
            properties=Properties(correlation_id=request.properties.message_id),
            application_properties=told,
            body=body,
        )
        for reply in self.next_event:
            if (
                self.nodes[reply] == self.nodes[link]
                and reply.role is LinkRole.SENDER
                and reply.is_attached
            ):
                reply.send(encode_message(answer), settled=True)

    def readers(self) -> list[Link]:
        return [
            link
            for link in self.next_event
            if link.role is LinkRole.SENDER
            and not self.nodes[link].startswith("$")
            and link.is_attached
        ]

    def detach_readers(self, error: Error) -> None:
        for link in self.readers():
            link.detach(error)
        self.flush()


def _node(attach: Attach) -> str:
    terminus = attach.source if attach.role else attach.target
    assert isinstance(terminus, Source | Target)
    return terminus.address or ""


HUB: dict[str, object] = {
    "name": "hub",
    "type": "com.microsoft:eventhub",
    "created_at": Timestamp(1_700_000_000_000),
    "partition_count": Int(2),
    "partition_ids": Array(["0", "1"]),
    "georeplication_factor": Int(1),
}


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    peer = Peer()
    peer.management = HUB
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: PeerConnection(peer), "127.0.0.1", 0)
    peer.port = server.sockets[0].getsockname()[1]
    yield peer
    server.close()
    for connection in peer.connections:
        connection.drop()
    await server.wait_closed()


@pytest.fixture
def make_delivered() -> Callable[..., bytes]:
    return delivered
