"""HTTP/1.1 listeners on the broker's own event loop.

uvicorn's protocol classes are used without its server, which polls ten times a second and takes
over the signals of the process; here `service` handles them.
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
# A body may take as long as any request and a little longer: the application must answer first.
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
        """The protocol of a new connection. After an upgrade the WebSocket uses the same slot."""
        state: dict[str, Any] = {SLOT: slot or self._guard.detached_slot("-")}
        return _GuardedProtocol(self._config, self._state, state, self._loop)

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        """Open a listener; return its port. Raises OSError."""
        return await self._listeners.open(host, port, tls)

    async def close(self, *, grace_s: float) -> None:
        """Accept no requests; running ones have `grace_s` to end."""
        await self._listeners.close()
        for connection in list(self._state.connections):
            with contextlib.suppress(InvalidState):  # the WebSocket is closing already
                connection.shutdown()
        if self._state.tasks:
            _, late = await asyncio.wait(set(self._state.tasks), timeout=grace_s)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late, timeout=grace_s)


class _GuardedProtocol(BoundedHttpProtocol):
    """The number of connections is limited. Header names are kept as the client wrote them, besides
    ASGI's lower-case ones: they become names of event properties (protocol.md 7.1).

    Each request gets one response, in order. After a request that cannot be parsed nothing more is
    read, because the start of the next one is unknown."""

    _slot: ConnectionSlot
    _pipeline_bytes = 0  # of the heads of pipelined requests
    _names: list[bytes]
    _running: RequestResponseCycle | None = None  # the newest request that the application handles
    _is_unfinished = False  # `cycle` belongs to the request that is being read
    _is_deaf = False  # nothing more is parsed

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._slot = self.app_state[SLOT]
        closing = ClosingTransport(transport, self._slot, self.loop)
        self._slot.accepted(transport)
        self._slot.budget.on_drop = self._drop
        super().connection_made(closing)  # type: ignore[arg-type]  # has its methods
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
        # Requests of an unauthenticated peer wait for their turn and must not fill the memory.
        if not self._slot.is_authenticated and self._pipeline_bytes > limits.HTTP_HEAD_BYTES_MAX:
            self.refuse_pipeline()
        self._check_head()
        super().on_headers_complete()
        self._is_unfinished = True

    def _check_head(self) -> None:
        """Refuse ambiguous requests that the parser accepts. Raises ValueError: 400."""
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
        """The parser failed. Complete requests before the failure are answered, and the last
        response closes the connection. Without such a request this is the response."""
        self._is_deaf = True
        self.stage = RequestStage.NOTHING
        self.watch_stage()
        if self.transport.is_closing():
            return
        broken, running = self.cycle if self._is_unfinished else None, self._running
        if self._is_answering and running is not broken:
            if broken is not None:
                self.pipeline.popleft()  # the newest one is first
            last = self.pipeline[0][0] if self.pipeline else running
            assert last is not None
            last.keep_alive = False
            return
        if broken is not None:
            broken.disconnected = True  # the application sees a disconnect
            broken.message_event.set()
            if broken.response_started:
                self.transport.close()
                return
        super().send_400_response(msg)

    def _drop(self) -> None:
        """The work budget is exceeded for good. A response that has started is completed: it may be
        `/metrics` of thousands of hubs, for a scraper that needs no token."""
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
        """By now the token in the head is verified: an authenticated client has more time."""
        if self.stage is RequestStage.BODY and self._slot.is_authenticated:
            self.extend_body_deadline(_CLIENT_BODY_DEADLINE_S)
        else:
            super().on_read_deadline()


class PublicApplication:
    """The application of the HTTPS port: WebSockets go to `websocket`, paths that begin with one of
    `prefixes` (such as `/subscriptions/`) to its application, all others to `publishing`."""

    def __init__(
        self,
        *,
        publishing: ASGIApp,
        websocket: ASGIApp,
        prefixes: Mapping[str, ASGIApp] | None = None,
    ) -> None:
        self._publishing = publishing
        self._websocket = websocket
        self._prefixes = tuple((prefixes or {}).items())

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] != "http":
            return self._websocket(_with_origin_path(scope), receive, send)
        for prefix, app in self._prefixes:
            if scope["path"].lower().startswith(prefix):
                return app(scope, receive, send)
        return self._publishing(scope, receive, send)


def _with_origin_path(scope: Scope) -> Scope:
    """Clients may send the target of a WebSocket as an absolute URL (Java SDK, protocol.md 1.2). In
    other requests the parser handles that."""
    path: str = scope.get("path", "")
    if not path.startswith(_SCHEMES):
        return scope
    origin = "/" + path.partition("://")[2].partition("/")[2]
    return {**scope, "path": origin, "raw_path": origin.encode()}
