"""A gateway without sockets: a loop turned by hand, a clock that stands still, engines as peers.

Tests take `world` (and what it makes) from fixtures. Behind the door is the real broker in memory.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any, NamedTuple, TypeVar, cast

import msgspec
import pytest
from tests.support.amqp_frames import Sent, frame, read_frames
from tests.unit.gateway.hand_loop import HandLoop, Socket

from penstock.amqp.connection import ConnectionConfig, ConnectionEngine
from penstock.amqp.events import (
    CloseReceived,
    DetachReceived,
    DispositionReceived,
    Event,
    SaslMechanismsReceived,
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
from penstock.amqp.performatives import (
    Disposition,
    Error,
    Performative,
    Source,
    Target,
)
from penstock.amqp.session import Session
from penstock.amqp.types import Described, Symbol
from penstock.auth.sas import Authority, sign
from penstock.broker.broker import Broker
from penstock.broker.hub import ReaderView
from penstock.catalog.api import Catalog, CatalogChange
from penstock.gateway.amqp.context import AmqpContext
from penstock.gateway.amqp.server import AmqpServer
from penstock.gateway.guard import Guard
from penstock.log.append import Wake
from penstock.log.memory import MemoryLogStore
from penstock.model.clock import ManualClock
from penstock.model.entities import AuthorizationRule, Hub, Namespace, Right, Secret
from penstock.model.names import HubName, NamespaceName, RuleName

E = TypeVar("E")

NAMESPACE = NamespaceName("contoso")
HOST = "contoso.example.net"
HUB = HubName("eh1")
ROOT = "RootManageSharedAccessKey"
ROOT_KEY = "root-key"
BATCH_FORMAT = 0x80013700
SELECTOR = "apache.org:selector-filter:string"
_KEYS = {ROOT: ROOT_KEY, "sender": "sender-key", "listener": "listener-key"}


class Peer:
    """A client: the engine in its other role, what it was told, and raw bytes where it must be."""

    def __init__(self, world: World, **config: Any) -> None:
        self.world = world
        self.socket = Socket()
        self.heard: list[Sent] = []  # every frame that the gateway wrote
        self.connection = world.door.connect(self.socket)
        self.events: list[Event] = []
        self.mechanism = "ANONYMOUS"
        self.response: bytes | None = None
        usual = {"container_id": "client", "hostname": HOST, "idle_time_out_ms": None}
        self.engine = ConnectionEngine(
            ConnectionConfig(server=False, **{**usual, **config}),
            now_ms=world.clock.monotonic_ms(),
        )
        self.session: Session | None = None
        self._names = itertools.count()
        self._nodes: dict[str, tuple[Link, Link]] = {}

    # --- bytes

    def say(self, *spoken: bytes | Performative | None, channel: int = 0) -> list[Sent]:
        """All in one read of the socket; the frames that it brought."""
        data = b"".join(
            each if isinstance(each, bytes) else frame(each, channel=channel) for each in spoken
        )
        self.connection.data_received(data)
        self.world.loop.settle()
        return self.hear()

    def hear(self) -> list[Sent]:
        """The frames since the last call."""
        frames = read_frames(self._take())
        self.heard += frames
        return frames

    def _take(self) -> bytes:
        data = bytes(self.socket.sent)
        self.socket.sent.clear()
        return data

    def lose(self) -> None:
        """The socket breaks."""
        self.socket.is_closed = True
        self.connection.connection_lost()
        self.world.loop.settle()

    def said(self, kind: type[E], *, since: int = 0) -> list[E]:
        """All performatives of a kind that the gateway wrote."""
        return [sent.body for sent in self.heard[since:] if isinstance(sent.body, kind)]

    def run(self) -> None:
        """Until neither side has anything to say."""
        for _ in range(10_000):
            self.world.loop.settle()
            if not self._exchange():
                return
        raise AssertionError("the two never stop talking")

    def _exchange(self) -> bool:
        now_ms = self.world.clock.monotonic_ms()
        outgoing = b""
        if self.socket.is_reading:
            outgoing = self.engine.bytes_to_send(now_ms=now_ms)
        if outgoing:
            self.connection.data_received(outgoing)
        incoming = self._take()
        if incoming:
            self.heard += read_frames(incoming)
            for event in self.engine.receive_data(incoming, now_ms=now_ms):
                self.events.append(event)
                if isinstance(event, SaslMechanismsReceived):
                    self.engine.init_sasl(self.mechanism, self.response)
        return bool(outgoing or incoming)

    # --- the usual beginning

    def opened(self) -> Peer:
        """SASL, open, one session."""
        self.engine.start()
        self.run()
        self.engine.send_open()
        self.session = self.engine.begin()
        self.run()
        return self

    def authorised(self, **token: Any) -> Peer:
        """Opened, and a token put: the root policy's for the whole namespace unless told."""
        self.opened()
        answer = self.put_token(**token)
        assert answer.status == 202, answer
        return self

    # --- links

    def attach(
        self,
        address: str | None,
        role: LinkRole,
        *,
        session: Session | None = None,
        name: str | None = None,
        other: str | None = "client",
        start: str | None = None,
        **fields: Any,
    ) -> Link:
        """Ask for a link, whatever becomes of it. `start` is a filter expression."""
        session = session or self.session
        assert session is not None
        link = session.new_link(name or f"link-{next(self._names)}", role)
        selector: dict[str, object] | None = None
        if start is not None:
            selector = {Symbol(SELECTOR): Described(Symbol(SELECTOR), start)}
        if role is LinkRole.SENDER:
            source, target = Source(address=other), Target(address=address)
        else:
            source, target = Source(address=address, filter=selector), Target(address=other)
        link.request(source=source, target=target, **fields)
        self.run()
        return link

    def sender(self, address: str = HUB, **fields: Any) -> Link:
        link = self.attach(address, LinkRole.SENDER, **fields)
        assert link.is_attached, self.detach_error(link)
        return link

    def receiver(
        self, partition: int = 0, *, group: str = "$Default", credit: int = 0, **fields: Any
    ) -> Link:
        address = f"{HUB}/ConsumerGroups/{group}/Partitions/{partition}"
        link = self.attach(address, LinkRole.RECEIVER, **fields)
        assert link.is_attached, self.detach_error(link)
        if credit:
            self.grant(link, credit)
        return link

    def grant(self, link: Link, credit: int, *, drain: bool = False) -> None:
        link.grant(credit, drain=drain)
        self.run()

    def detach_error(self, link: Link) -> Error | None:
        """What the gateway ended the link with; None when it has not."""
        for event in self.events:
            if isinstance(event, DetachReceived) and event.link is link:
                return event.error
        return None

    def refusal(self, address: str | None, role: LinkRole, **fields: Any) -> Error:
        """Attach and be refused."""
        error = self.detach_error(self.attach(address, role, **fields))
        assert error is not None
        return error

    @property
    def close_error(self) -> Error | None:
        """What the gateway closed the connection with."""
        for event in self.events:
            if isinstance(event, CloseReceived):
                return event.error
        return None

    # --- events

    def publish(self, link: Link, *payloads: bytes, **fields: Any) -> list[int | None]:
        """One delivery each, in one read; the ids (None: no credit)."""
        sent = [link.send(payload, **{"settled": False, **fields}) for payload in payloads]
        self.run()
        return sent

    def outcomes(self) -> list[Disposition]:
        """Dispositions so far, in their order."""
        return [e.disposition for e in self.events if isinstance(e, DispositionReceived)]

    def received(self, link: Link) -> list[bytes]:
        """Payloads delivered on the link so far."""
        return [
            event.data[event.bounds[i] : event.bounds[i + 1]]
            for event in self.events
            if isinstance(event, TransfersReceived) and event.link is link
            for i in range(0, len(event.bounds), 2)
        ]

    def bodies(self, link: Link) -> list[bytes]:
        return [body_of(payload) for payload in self.received(link)]

    # --- requests

    def node(self, address: str) -> tuple[Link, Link]:
        """The sender and receiver of a request/response node, made once."""
        if address not in self._nodes:
            receiver = self.attach(address, LinkRole.RECEIVER, other="reply-here")
            sender = self.attach(address, LinkRole.SENDER)
            self.grant(receiver, 1000)
            self._nodes[address] = sender, receiver
        return self._nodes[address]

    def request(
        self, address: str, properties: dict[str, Any], *, body: Any = None, message_id: Any = "1"
    ) -> Answer:
        sender, receiver = self.node(address)
        before = len(self.received(receiver))
        message = Message(
            properties=Properties(message_id=message_id, reply_to="reply-here"),
            application_properties=properties,
            body=body,
        )
        self.publish(sender, encode_message(message))
        (payload,) = self.received(receiver)[before:]
        return Answer.of(payload)

    def put_token(
        self, audience: str = "", *, token: str | None = None, message_id: Any = "1", **signed: Any
    ) -> Answer:
        """`audience` is a path below the host; the token is signed for it unless given."""
        return self.request(
            "$cbs",
            {
                "operation": "put-token",
                "type": "servicebus.windows.net:sastoken",
                "name": f"sb://{HOST}/{audience}",
            },
            body=ValueBody(token or self.world.token(audience, **signed)),
            message_id=message_id,
        )


class Answer(NamedTuple):
    """A response of `$cbs` or `$management`."""

    status: int
    text: str
    condition: str | None
    message: Message

    @classmethod
    def of(cls, payload: bytes) -> Answer:
        message = decode_message(payload)
        given = cast(dict[str, Any], message.application_properties)
        status, text = given["status-code"], given["status-description"]
        return cls(status, text, given.get("error-condition"), message)


def body_of(payload: bytes) -> bytes:
    body = decode_message(payload).body
    assert isinstance(body, DataBody)
    return b"".join(body.chunks)


class World:
    """One namespace, one hub of two partitions, its broker over memory, and the AMQP door."""

    def __init__(self, new_logs: Callable[[Wake], Any] = MemoryLogStore) -> None:
        self.clock = ManualClock()
        self.loop = HandLoop(self.clock)
        self.catalog = Catalog()
        self.logs = new_logs(self.loop.call_soon)
        self.put_namespace()
        self.put_hub(HUB)
        for name, rights in ((ROOT, Right.ALL), ("sender", Right.SEND), ("listener", Right.LISTEN)):
            self.put_rule(name, rights, _KEYS[name])
        producers, ids = itertools.count(1000), itertools.count(1)
        self.broker = Broker(
            self.catalog,
            self.logs,
            self.clock,
            producer_ids=producers.__next__,
            run_soon=self.loop.call_soon,
        )
        loop = cast(asyncio.AbstractEventLoop, self.loop)
        self.context = AmqpContext(
            broker=self.broker,
            clock=self.clock,
            authorities=self._authorities,
            reads=cast(Executor, None),
            new_id=lambda: f"{next(ids):032x}",
            loop=loop,
            guard=Guard(loop, clock=self.clock),
        )
        self.door = AmqpServer(self.context)
        self.catalog.subscribe(self._on_change)

    def _on_change(self, change: CatalogChange) -> None:
        if change.affects_links:
            self.door.revalidate_grants()

    # --- what exists

    def put_namespace(self, **fields: Any) -> None:
        self.catalog.put_namespace(
            Namespace(name=NAMESPACE, created_ms=1, updated_ms=1, hosts=(HOST,), **fields)
        )

    def put_hub(self, name: str, **fields: Any) -> None:
        fields = {"id": f"id-of-{name}", "partition_count": 2, **fields}
        self.catalog.put_hub(
            Hub(namespace=NAMESPACE, name=HubName(name), created_ms=1, updated_ms=1, **fields)
        )

    def change_hub(self, **fields: Any) -> None:
        hub = self.catalog.hub(NAMESPACE, HUB)
        assert hub is not None
        self.catalog.put_hub(msgspec.structs.replace(hub, **fields))

    def put_rule(self, name: str, rights: Right, key: str) -> None:
        self.catalog.put_rule(
            AuthorizationRule(
                namespace=NAMESPACE,
                hub=None,
                name=RuleName(name),
                rights=rights,
                primary_key=Secret(key),
                secondary_key=Secret(f"{key}-2"),
                created_ms=1,
                updated_ms=1,
            )
        )

    def token(
        self, path: str = "", *, rule: str = ROOT, key: str | None = None, lasts_s: int = 3600
    ) -> str:
        expires_s = self.clock.now_ms() // 1000 + lasts_s
        secret = Secret(_KEYS.get(rule, "") if key is None else key)
        return sign(f"sb://{HOST}/{path}", rule, secret, expires_s=expires_s)

    def _authorities(self) -> Sequence[Authority]:
        def hub(name: str) -> HubName | None:
            found = self.catalog.hub(NAMESPACE, name)
            return None if found is None else found.name

        return [
            Authority(
                namespace=NAMESPACE,
                hosts=frozenset({HOST}),
                rule=lambda hub, name: self.catalog.rule(NAMESPACE, hub, name),
                hub=hub,
                hubs=lambda: [found.name for found in self.catalog.hubs(NAMESPACE)],
            )
        ]

    @staticmethod
    def event(body: bytes = b"x", **annotations: object) -> bytes:
        """One event as a client writes it; `key` is short for its partition key."""
        if "key" in annotations:
            annotations["x-opt-partition-key"] = annotations.pop("key")
        named = {Symbol(name): value for name, value in annotations.items()}
        return encode_message(Message(message_annotations=named or None, body=DataBody([body])))

    @staticmethod
    def batch(*events: bytes) -> bytes:
        """A publication of format 0x80013700."""
        return encode_message(Message(body=DataBody(list(events))))

    # --- who comes

    def peer(self, **config: Any) -> Peer:
        return Peer(self, **config)

    # --- what is stored

    def readers(self) -> list[ReaderView]:
        return [view for hub in self.broker.hubs() for view in hub.readers()]

    def stored(self, partition: int = 0) -> list[bytes]:
        """Bodies of the partition's committed events."""
        log = self.logs.partition(f"id-of-{HUB}", partition)
        return [
            body_of(chunk)
            for batch in log.read(0, bytes_max=2**40)
            for chunk in cast(DataBody, decode_message(batch.sections).body).chunks
        ]

    def fill(self, bodies: Sequence[bytes], partition: int = 0) -> None:
        """Events that are there before a reader comes."""
        peer = self.peer().authorised()
        link = peer.sender(f"{HUB}/Partitions/{partition}")
        for body in bodies:
            peer.publish(link, self.event(body), settled=True)
        assert self.stored(partition)[-len(bodies) :] == list(bodies)
        peer.lose()


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def peer(world: World) -> Peer:
    """A client with the root policy's token."""
    return world.peer().authorised()
