"""HTTP/1.1 listeners on the broker's own event loop.

uvicorn's protocol classes are used without its server: that one polls ten times a second and owns
the process's signals, which `service` does here.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from penstock.model import limits

_BACKLOG = 512
_KEEP_ALIVE_S = 75
_SCHEMES = ("http://", "https://", "ws://", "wss://")


class HttpDoor:
    """Listeners for one ASGI application."""

    def __init__(self, app: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._config = Config(
            app=_OriginForm(app),
            interface="asgi3",
            http=HttpToolsProtocol,
            ws="websockets-sansio",
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
        self._servers: list[asyncio.Server] = []

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        """Open a listener; the port it got."""
        server = await self._loop.create_server(
            lambda: _DeadlinedProtocol(self._config, self._state, {}, self._loop),
            host,
            port,
            ssl=tls,
            backlog=_BACKLOG,
            ssl_handshake_timeout=limits.TLS_DEADLINE_S if tls is not None else None,
        )
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    async def close(self, *, grace_s: float) -> None:
        """Take no new requests, let running ones end for a moment."""
        for server in self._servers:
            server.close()
        for connection in list(self._state.connections):
            connection.shutdown()
        if self._state.tasks:
            _, late = await asyncio.wait(set(self._state.tasks), timeout=grace_s)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late, timeout=grace_s)


class _DeadlinedProtocol(HttpToolsProtocol):
    """A connection whose request head is not complete in time is closed (slow-header attacks)."""

    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head_timer = self.loop.call_later(limits.HTTP_HEAD_DEADLINE_S, transport.abort)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._head_timer is None:  # the next request on a kept-alive connection
            deadline_s = limits.HTTP_HEAD_DEADLINE_S
            self._head_timer = self.loop.call_later(deadline_s, self.transport.abort)

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        if len(self.headers) > limits.HTTP_HEADERS_MAX:
            self.transport.abort()

    def on_headers_complete(self) -> None:
        self._disarm()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        super().connection_lost(exc)

    def _disarm(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


class _OriginForm:
    """Clients may send the target as an absolute URL (the Java SDK does, protocol.md 1.2)."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        path = scope.get("path", "")
        if path.startswith(_SCHEMES):
            rest = path.partition("://")[2]
            origin = "/" + rest.partition("/")[2]
            scope = {**scope, "path": origin, "raw_path": origin.encode()}
        await self._app(scope, receive, send)
