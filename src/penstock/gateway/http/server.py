"""HTTP/1.1 listeners on the broker's own event loop.

uvicorn's protocol classes are used without its server: that one polls ten times a second and owns
the process's signals, which `service` does here.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Mapping
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState
from websockets.exceptions import InvalidState

from penstock.gateway.guard import SLOT, ConnectionSlot, Guard
from penstock.gateway.http.guarded import GuardedApplication
from penstock.gateway.http.request import ORIGINAL_NAMES
from penstock.gateway.http.websocket_protocol import LimitedWebSocketProtocol
from penstock.gateway.listener import Listeners
from penstock.gateway.transport import ClosingTransport
from penstock.io.http_protocol import BoundedHttpProtocol, RequestStage
from penstock.model import limits

_KEEP_ALIVE_S = 75
# A client's body may take as long as any request; a little more, so that the application answers
# first.
_CLIENT_BODY_DEADLINE_S = limits.HTTP_REQUEST_DEADLINE_S_MAX + 5
_SCHEMES = ("http://", "https://", "ws://", "wss://")


class HttpServer:
    """Listeners for one ASGI application."""

    def __init__(
        self,
        app: ASGIApp,
        loop: asyncio.AbstractEventLoop,
        *,
        guard: Guard | None = None,
    ) -> None:
        self._loop = loop
        self._guard = guard or Guard(loop)
        self._config = Config(
            app=GuardedApplication(app, self._guard),
            interface="asgi3",
            http=HttpToolsProtocol,
            ws=LimitedWebSocketProtocol,
            ws_max_size=limits.WEBSOCKET_MESSAGE_BYTES_MAX,
            ws_per_message_deflate=False,  # declined: no decompression bombs
            ws_ping_interval=None,  # AMQP has its own heartbeats
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
        )
        self._config.load()
        self._state = ServerState()
        self._listeners = Listeners(loop, self._guard, self.connection)

    def connection(self, slot: ConnectionSlot | None = None) -> asyncio.Protocol:
        """The protocol of one new connection. A WebSocket that it is upgraded to has its slot."""
        state: dict[str, Any] = {SLOT: slot or self._guard.detached_slot("-")}
        return _GuardedProtocol(self._config, self._state, state, self._loop)

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        """Open a listener; the port it got."""
        return await self._listeners.open(host, port, tls)

    async def close(self, *, grace_s: float) -> None:
        """Take no new requests, let running ones end for a moment."""
        await self._listeners.close()
        for connection in list(self._state.connections):
            with contextlib.suppress(InvalidState):  # a WebSocket that is closing already
                connection.shutdown()
        if self._state.tasks:
            _, late = await asyncio.wait(set(self._state.tasks), timeout=grace_s)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late, timeout=grace_s)


class _GuardedProtocol(BoundedHttpProtocol):
    """A listener has a limited number of connections. Header names are kept as the client wrote
    them, beside ASGI's lower-case ones: they become names of an event's properties (protocol.md
    7.1).

    Each request has one answer, in the order they came, and nothing behind one that cannot be
    understood is read: where it begins cannot be told."""

    _slot: ConnectionSlot
    _pipeline_bytes = 0  # of the heads of requests that wait to be answered
    _names: list[bytes]
    _running: RequestResponseCycle | None = None  # the last one that was begun
    _is_unfinished = False  # `cycle` is that of the request that is being read
    _is_deaf = False  # what came could not be understood

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._slot = self.app_state[SLOT]
        gentle = ClosingTransport(transport, self._slot, self.loop)
        self._slot.accepted(transport)
        self._slot.budget.on_drop = self._drop
        super().connection_made(gentle)  # type: ignore[arg-type]  # as good as one
        self._names = []
        if len(self.connections) > limits.HTTP_CONNECTIONS_MAX:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._is_deaf:
            return
        if self._slot.is_authenticated:
            super().data_received(data)
        else:
            budget = self._slot.budget
            started = budget.start()
            super().data_received(data)
            budget.stop(started)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._names = []
        self._is_unfinished = False
        self.scope[ORIGINAL_NAMES] = self._names  # type: ignore[literal-required]  # an extension

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        if self.stage is RequestStage.HEAD:
            self._names.append(name)

    def on_headers_complete(self) -> None:
        self._pipeline_bytes = self.head_bytes + (self._pipeline_bytes if self.pipeline else 0)
        # Requests of an unauthenticated peer wait for their turn: they must not fill the memory.
        if not self._slot.is_authenticated and self._pipeline_bytes > limits.HTTP_HEAD_BYTES_MAX:
            self.refuse_pipeline()
        self._check_head()
        super().on_headers_complete()
        self._is_unfinished = True

    def _check_head(self) -> None:
        """What would have two meanings, as the parser lets it pass. Raises ValueError: 400."""
        names = [name for name, _ in self.headers]
        if names.count(b"host") != 1 and self.parser.get_http_version() == "1.1":
            raise ValueError("a request has one Host")  # RFC 9112 3.2
        if self.parser.should_upgrade() and self._should_upgrade():
            if b"content-length" in names or b"transfer-encoding" in names:
                raise ValueError("a WebSocket's request has no body")
            if self._is_answering:
                raise ValueError("a WebSocket's request comes when all others are answered")

    @property
    def _is_answering(self) -> bool:
        return self._running is not None and not self._running.response_complete

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def on_message_complete(self) -> None:
        self._is_unfinished = False
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """The parser gave up. Whole requests that came before are answered, and the last answer
        ends the connection; otherwise this is the answer, whatever the application may say."""
        self._is_deaf = True
        self.stage = RequestStage.NOTHING
        self.watch_stage()
        if self.transport.is_closing():
            return
        broken, running = self.cycle if self._is_unfinished else None, self._running
        if self._is_answering and running is not broken:
            if broken is not None:
                self.pipeline.popleft()  # where the latest is
            last = self.pipeline[0][0] if self.pipeline else running
            assert last is not None
            last.keep_alive = False
            return
        if broken is not None:
            broken.disconnected = True  # the application hears that the client has gone
            broken.message_event.set()
            if broken.response_started:
                self.transport.close()
                return
        super().send_400_response(msg)

    def _drop(self) -> None:
        """The peer has exceeded its budget. An answer that has begun is finished: it may be
        `/metrics` of thousands of hubs, to a scraper that needs no token."""
        self._slot.penalize()
        running = self._running
        if running is None or not running.response_started or running.response_complete:
            self.transport.abort()
            return
        self._is_deaf = True
        running.keep_alive = False

    def connection_lost(self, exc: Exception | None) -> None:
        self._slot.release()
        super().connection_lost(exc)
        if isinstance(self.transport, ClosingTransport):
            self.transport.forget()

    def on_read_deadline(self) -> None:
        """By now the token that came with the head is verified."""
        if self.stage is RequestStage.BODY and self._slot.is_authenticated:
            self.extend_body_deadline(_CLIENT_BODY_DEADLINE_S)
        else:
            super().on_read_deadline()


class PublicApplication:
    """What the HTTPS port serves: WebSockets by one application, paths that begin with one of
    `prefixes` (such as `/subscriptions/`) by theirs, and all others by `publishing`."""

    def __init__(
        self,
        *,
        publishing: ASGIApp,
        websocket: ASGIApp,
        prefixes: Mapping[str, ASGIApp] | None = None,
    ) -> None:
        self._publishing = publishing
        self._websocket = _OriginForm(websocket)
        self._prefixes = tuple((prefixes or {}).items())

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] != "http":
            return self._websocket(scope, receive, send)
        for prefix, app in self._prefixes:
            if scope["path"].lower().startswith(prefix):
                return app(scope, receive, send)
        return self._publishing(scope, receive, send)


class _OriginForm:
    """Clients may send a WebSocket's target as an absolute URL (the Java SDK, protocol.md 1.2).
    In other requests the parser sees to that."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if path.startswith(_SCHEMES):
            rest = path.partition("://")[2]
            origin = "/" + rest.partition("/")[2]
            scope = {**scope, "path": origin, "raw_path": origin.encode()}
        await self._app(scope, receive, send)
