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
    """One ASGI websocket -> one AmqpConnection."""

    def __init__(self, door: AmqpServer) -> None:
        self._door = door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        websocket = WebSocket(scope, receive, send)
        offered = websocket.scope.get("subprotocols", [])
        chosen = next((name for name in offered if name.lower() in _KNOWN), None)
        if offered and chosen is None:
            await websocket.close(code=1002)
            return
        await websocket.accept(subprotocol=chosen)  # the one offered is echoed
        transport = ServerWebSocketTransport(websocket)
        transport.connection = self._door.connect(transport, scope.get("state", {}).get(SLOT))
        await transport.run()


_KNOWN = frozenset(name.lower() for name in SUBPROTOCOLS)


class ServerWebSocketTransport:
    """The driver's Transport over a websocket: writes gather while the last one is on its way."""

    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket
        client = websocket.client
        self.peer = f"{client.host}:{client.port}" if client is not None else "-"
        self.connection: AmqpConnection | None = None
        self._waiting = bytearray()
        self._something_to_do = asyncio.Event()
        self._may_read = asyncio.Event()
        self._may_read.set()
        self._aborted = asyncio.Event()
        self._closing = False
        self._paused = False

    async def run(self) -> None:
        """Read and write until either side is done; all tasks end with this call."""
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
            assert self.connection is not None
            self.connection.connection_lost()

    async def _read(self) -> None:
        assert self.connection is not None
        try:
            while True:
                await self._may_read.wait()
                message = await self._websocket.receive()
                if message["type"] != "websocket.receive":
                    return
                data = message.get("bytes")
                if data is None:  # text, where AMQP is binary
                    await self._websocket.close(code=_UNSUPPORTED_DATA)
                    return
                self.connection.data_received(data)
        except (WebSocketDisconnect, RuntimeError):
            return

    async def _write(self) -> None:
        try:
            while True:
                await self._something_to_do.wait()
                self._something_to_do.clear()
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
            assert self.connection is not None
            self.connection.resume_writing()

    # the driver calls these

    def write(self, data: bytes) -> None:
        if self._closing:
            return
        self._waiting += data
        self._something_to_do.set()
        if not self._paused and len(self._waiting) > limits.OUTBOUND_BUFFER_BYTES:
            self._paused = True
            assert self.connection is not None
            self.connection.pause_writing()

    def close(self) -> None:
        self._closing = True
        self._something_to_do.set()

    def abort(self) -> None:
        self._aborted.set()

    def pause_reading(self) -> None:
        self._may_read.clear()

    def resume_reading(self) -> None:
        self._may_read.set()
