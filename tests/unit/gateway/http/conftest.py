"""The HTTPS door in this process: an ASGI caller, the real broker over memory, a clock that stands.

Tests take `world` from the fixture; annotations may name the classes under TYPE_CHECKING.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from xml.etree import ElementTree

import msgspec
import pytest

from penstock.amqp.message import DataBody, Message, decode_message
from penstock.auth.sas import Authority, sign
from penstock.broker.broker import Broker
from penstock.catalog.api import Catalog
from penstock.gateway.http.publish import PublishEndpoint
from penstock.log.api import AppendDone, PartitionLog
from penstock.log.memory import MemoryLogStore
from penstock.model.clock import ManualClock
from penstock.model.entities import (
    AuthorizationRule,
    Hub,
    Namespace,
    RevokedPublisher,
    Right,
    Secret,
)
from penstock.model.errors import PenstockError
from penstock.model.events import EventBatch
from penstock.model.names import HubName, NamespaceName, PublisherName, RuleName

NAMESPACE = NamespaceName("contoso")
HOST = "contoso.example.net"
HUBS = {"events": "hub0", "plant/line": "hub1"}
KEYS = {"Root": "root-key", "Sender": "send-key", "Listener": "listen-key", "HubSend": "hub-key"}
BATCH = "application/vnd.microsoft.servicebus.json"


class Response(NamedTuple):
    """What a client got."""

    status: int
    headers: dict[str, str]
    body: bytes
    messages: list[dict[str, Any]]

    @property
    def detail(self) -> str:
        """The text of an error, which must be well-formed XML with the status in it."""
        assert self.headers["content-type"] == "application/xml; charset=utf-8"
        error = ElementTree.fromstring(self.body)
        assert error.tag == "Error"
        assert [child.tag for child in error] == ["Code", "Detail"]
        assert error[0].text == str(self.status)
        return error[1].text or ""


class Stored(NamedTuple):
    """An event as a reader gets it, before the service's own annotations."""

    partition: int
    message: Message
    raw: bytes

    @property
    def body(self) -> bytes:
        assert isinstance(self.message.body, DataBody)
        (chunk,) = self.message.body.chunks
        return chunk


class ScriptedLogs(MemoryLogStore):
    """Logs whose appends can be made to fail, or to take for ever."""

    def __init__(self, wake: Callable[[Callable[[], None]], None]) -> None:
        super().__init__(wake)
        self.outcome: PenstockError | None = None
        self.stands_still = False
        self.waiting: list[Callable[[], None]] = []

    def partition(self, hub_id: str, index: int) -> Any:
        return _ScriptedPartition(self, super().partition(hub_id, index))


class _ScriptedPartition:
    def __init__(self, logs: ScriptedLogs, inner: PartitionLog) -> None:
        self._logs = logs
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def append(self, batch: EventBatch, *, now_ms: int, done: AppendDone) -> None:
        failing = self._logs.outcome
        if self._logs.stands_still:
            self._logs.waiting.append(lambda: self._inner.append(batch, now_ms=now_ms, done=done))
        elif failing is not None:
            asyncio.get_running_loop().call_soon(done, failing)
        else:
            self._inner.append(batch, now_ms=now_ms, done=done)


class World:
    """One namespace, two hubs of four partitions, policies of every right."""

    def __init__(self, **options: Any) -> None:
        self.clock = ManualClock()
        self.catalog = Catalog()
        self.logs = ScriptedLogs(_soon)
        self.catalog.put_namespace(
            Namespace(name=NAMESPACE, created_ms=0, updated_ms=0, hosts=(HOST, "localhost"))
        )
        for name, hub_id in HUBS.items():
            self.catalog.put_hub(
                Hub(
                    id=hub_id,
                    namespace=NAMESPACE,
                    name=HubName(name),
                    partition_count=4,
                    created_ms=0,
                    updated_ms=0,
                )
            )
        self.put_rule("Root", Right.ALL)
        self.put_rule("Sender", Right.SEND)
        self.put_rule("Listener", Right.LISTEN)
        self.put_rule("HubSend", Right.SEND, hub="events")
        self.broker = Broker(self.catalog, self.logs, self.clock, producer_ids=lambda: 1)
        ids = itertools.count(1)
        self.verified = 0
        self.app = PublishEndpoint(
            broker=self.broker,
            catalog=self.catalog,
            clock=self.clock,
            authorities=self._authorities,
            new_id=lambda: f"{next(ids):032x}",
            **options,
        )

    def _authorities(self) -> Sequence[Authority]:
        self.verified += 1

        def hub(name: str) -> HubName | None:
            found = self.catalog.hub(NAMESPACE, name)
            return None if found is None else found.name

        return [
            Authority(
                namespace=NAMESPACE,
                hosts=frozenset({HOST, "localhost", "127.0.0.1", "::1"}),
                rule=lambda level, name: self.catalog.rule(NAMESPACE, level, name),
                hub=hub,
                hubs=lambda: [each.name for each in self.catalog.hubs(NAMESPACE)],
            )
        ]

    def put_rule(
        self, name: str, rights: Right, *, hub: str | None = None, key: str | None = None
    ) -> None:
        self.catalog.put_rule(
            AuthorizationRule(
                namespace=NAMESPACE,
                hub=None if hub is None else HubName(hub),
                name=RuleName(name),
                rights=rights,
                primary_key=Secret(key or KEYS[name]),
                secondary_key=Secret("second-" + (key or KEYS[name])),
                created_ms=0,
                updated_ms=0,
            )
        )

    def change_namespace(self, **changes: Any) -> None:
        namespace = self.catalog.namespace(NAMESPACE)
        assert namespace is not None
        self.catalog.put_namespace(msgspec.structs.replace(namespace, **changes))

    def change_hub(self, **changes: Any) -> None:
        hub = self.catalog.hub(NAMESPACE, "events")
        assert hub is not None
        self.catalog.put_hub(msgspec.structs.replace(hub, **changes))

    def revoke(self, publisher: str) -> None:
        self.catalog.put_revoked_publisher(
            RevokedPublisher(
                namespace=NAMESPACE,
                hub=HubName("events"),
                name=PublisherName(publisher),
                revoked_ms=self.clock.now_ms(),
            )
        )

    def token(
        self,
        resource: str = f"https://{HOST}/events",
        policy: str = "Root",
        *,
        key: str | None = None,
        lasts_s: int = 3600,
    ) -> str:
        expires_s = self.clock.now_ms() // 1000 + lasts_s
        return sign(resource, policy, Secret(key or KEYS[policy]), expires_s=expires_s)

    async def call(
        self,
        path: str = "/events/messages",
        body: bytes | Sequence[bytes] = b"hello",
        *,
        method: str = "POST",
        token: str | None = "",
        host: str | None = HOST,
        headers: dict[str, str] | Sequence[tuple[bytes, bytes]] = (),
        length: str | None = "",
        query: str = "",
        names: bool = True,
        never_ends: bool = False,
        leaves: bool = False,
        meanwhile: Callable[[], None] | None = None,
    ) -> Response:
        """One request. `token` "" is a good one, `length` "" the body's own; a body in pieces is
        sent in chunks; `never_ends` and `leaves` say what comes after them, `meanwhile` is called
        when the body is first asked for."""
        pieces = [body] if isinstance(body, bytes) else list(body)
        given: Any = headers.items() if isinstance(headers, dict) else headers
        pairs = [(_bytes(name), _bytes(value)) for name, value in given]
        if host is not None:
            pairs.insert(0, (b"Host", host.encode()))
        if token is not None:
            pairs.append((b"Authorization", (token or self.token()).encode()))
        if not isinstance(body, bytes):
            pairs.append((b"Transfer-Encoding", b"chunked"))
        elif length is not None:
            pairs.append((b"Content-Length", (length or str(len(body))).encode()))
        scope: dict[str, Any] = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [(name.lower(), value) for name, value in pairs],
            "client": ("127.0.0.1", 4711),
        }
        if names:
            scope["penstock.header_names"] = [name for name, _ in pairs]
        caller = Caller(pieces, never_ends=never_ends, leaves=leaves, meanwhile=meanwhile)
        await asyncio.wait_for(self.app(scope, caller.receive, caller.send), 30)
        return caller.response()

    async def batch(self, *entries: Any, **options: Any) -> Response:
        headers = {"Content-Type": BATCH} | options.pop("headers", {})
        return await self.call(body=json.dumps(entries).encode(), headers=headers, **options)

    def stored(self, hub_id: str = "hub0") -> list[Stored]:
        """Every event, partition by partition."""
        found = []
        for index in range(4):
            log = MemoryLogStore.partition(self.logs, hub_id, index)
            for batch in log.read(0, bytes_max=2**31):
                for raw in _messages(batch.sections):
                    found.append(Stored(index, decode_message(raw), raw))
        return found

    def one(self) -> Stored:
        (event,) = self.stored()
        return event

    def release(self) -> None:
        """The disk moves again."""
        waiting, self.logs.waiting = self.logs.waiting, []
        self.logs.stands_still = False
        for append in waiting:
            append()


class Caller:
    """The ASGI server's side of one request. `asked` counts how often the body was asked for."""

    def __init__(
        self,
        pieces: list[bytes],
        *,
        never_ends: bool,
        leaves: bool,
        meanwhile: Callable[[], None] | None,
    ) -> None:
        self._pieces = pieces
        self._meanwhile = meanwhile
        self._never_ends = never_ends
        self._leaves = leaves
        self.messages: list[dict[str, Any]] = []
        self.asked = 0

    async def receive(self) -> dict[str, Any]:
        self.asked += 1
        if self._meanwhile is not None:
            self._meanwhile()
            self._meanwhile = None
        if self._pieces:
            more = len(self._pieces) > 1 or self._never_ends or self._leaves
            return {"type": "http.request", "body": self._pieces.pop(0), "more_body": more}
        if self._never_ends:
            await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.messages.append(dict(message, asked=self.asked))

    def response(self) -> Response:
        if not self.messages:
            return Response(0, {}, b"", [])
        start, *rest = self.messages
        assert start["type"] == "http.response.start"
        assert not rest[-1].get("more_body", False)
        body = b"".join(message["body"] for message in rest)
        headers = {name.decode(): value.decode() for name, value in start["headers"]}
        assert int(headers["content-length"]) == len(body)
        assert headers["server"] == "Penstock"
        assert headers["date"].endswith(" GMT")
        return Response(start["status"], headers, body, self.messages)


def _soon(work: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_soon(work)


def _bytes(text: str | bytes) -> bytes:
    return text.encode("latin-1") if isinstance(text, str) else text


def _messages(sections: bytes) -> list[bytes]:
    found, position = [], 0
    while position < len(sections):
        size, start = sections[position + 4], position + 5
        if sections[position + 3] == 0xB0:
            size, start = int.from_bytes(sections[position + 4 : position + 8], "big"), position + 8
        found.append(sections[start : start + size])
        position = start + size
    return found


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def make_world() -> Callable[..., World]:
    return World
