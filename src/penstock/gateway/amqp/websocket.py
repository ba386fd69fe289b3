"""AMQP over WebSocket at `/$servicebus/websocket` (protocol.md 1.2), as an ASGI endpoint."""

from __future__ import annotations

import asyncio

from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from penstock.gateway.amqp.connection import AmqpConnection
from penstock.gateway.amqp.server import AmqpServer
from penstock.gateway.guard import SLOT
from penstock.model import limits

PATHS = ("/$servicebus/websocket", "/$servicebus/websocket/")
SUBPROTOCOLS = ("AMQPWSB10", "amqp")
_UNSUPPORTED_DATA = 1003  # RFC 6455 7.4.1


class WebSocketEndpoint:
    """Runs one AmqpConnection for each ASGI websocket."""

    def __init__(self, server: AmqpServer) -> None:
        self._server = server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        websocket = WebSocket(scope, receive, send)
        offered = websocket.scope.get("subprotocols", [])
        chosen = next((name for name in offered if name.lower() in _KNOWN), None)
        if offered and chosen is None:
            await websocket.close(code=1002)
            return
        await websocket.accept(subprotocol=chosen)
        transport = ServerWebSocketTransport(websocket)
        transport.connection = self._server.connect(transport, scope.get("state", {}).get(SLOT))
        await transport.run()


_KNOWN = frozenset(name.lower() for name in SUBPROTOCOLS)


class ServerWebSocketTransport:
    """A Transport over a websocket. Writes accumulate while the previous one is being sent."""

    connection: AmqpConnection  # set before `run`

    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket
        client = websocket.client
        self.peer = f"{client.host}:{client.port}" if client is not None else "-"
        self._waiting = bytearray()
        self._has_work = asyncio.Event()
        self._may_read = asyncio.Event()
        self._may_read.set()
        self._aborted = asyncio.Event()
        self._closing = False
        self._paused = False

    async def run(self) -> None:
        """Read and write until either side closes; all tasks end with this call."""
        tasks = {
            asyncio.create_task(work)
            for work in (self._read(), self._write(), self._aborted.wait())
        }
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.connection.connection_lost()

    async def _read(self) -> None:
        try:
            while True:
                await self._may_read.wait()
                message = await self._websocket.receive()
                if message["type"] != "websocket.receive":
                    return
                data = message.get("bytes")
                if data is None:  # a text message; AMQP is binary
                    await self._websocket.close(code=_UNSUPPORTED_DATA)
                    return
                self.connection.data_received(data)
        except (WebSocketDisconnect, RuntimeError):
            return

    async def _write(self) -> None:
        try:
            while True:
                await self._has_work.wait()
                self._has_work.clear()
                if self._waiting:
                    data = bytes(self._waiting)
                    self._waiting.clear()
                    await self._websocket.send_bytes(data)
                    self._resume_if_drained()
                if self._closing and not self._waiting:
                    await self._websocket.close()
                    return
        except (WebSocketDisconnect, RuntimeError):
            return

    def _resume_if_drained(self) -> None:
        if self._paused and len(self._waiting) * 2 < limits.OUTBOUND_BUFFER_BYTES:
            self._paused = False
            self.connection.resume_writing()

    # the connection calls these

    def is_closing(self) -> bool:
        return self._closing

    def write(self, data: bytes) -> None:
        self._waiting += data
        self._has_work.set()
        if not self._paused and len(self._waiting) > limits.OUTBOUND_BUFFER_BYTES:
            self._paused = True
            self.connection.pause_writing()

    def close(self) -> None:
        self._closing = True
        self._has_work.set()

    def abort(self) -> None:
        self._aborted.set()

    def pause_reading(self) -> None:
        self._may_read.clear()

    def resume_reading(self) -> None:
        self._may_read.set()
