"""AMQP over WebSocket (protocol.md 1.2): an asyncio transport over the messages of a WebSocket."""

from __future__ import annotations

import asyncio
import ssl
from typing import Protocol

from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as connect_websocket
from websockets.exceptions import ConnectionClosed, InvalidHandshake, WebSocketException
from websockets.typing import Subprotocol

from penstock.client.errors import BY_STATUS, ClientError
from penstock.model.connection_string import Endpoint

_PATH = "/$servicebus/websocket"
_SUBPROTOCOL = Subprotocol("AMQPWSB10")
_MESSAGE_BYTES_MAX = 4 * 1024 * 1024  # the service sends one message per socket write
_HTTPS_PORT, _HTTP_PORT = 443, 80
_DEFAULT_PORTS = {5671: _HTTPS_PORT, 5672: _HTTP_PORT}  # for AMQP's default ports


class StreamProtocol(Protocol):
    """What the transport calls of a connection."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None: ...
    def data_received(self, data: bytes) -> None: ...
    def connection_lost(self, exc: Exception | None) -> None: ...
    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...


async def open_websocket(
    connection: StreamProtocol, endpoint: Endpoint, tls: ssl.SSLContext | None
) -> None:
    """Open a WebSocket and connect `connection` to it. The endpoint's port is the HTTPS port, 443
    by default. Raises ClientError, OSError."""
    port = _DEFAULT_PORTS.get(endpoint.port, endpoint.port)
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    uri = f"{'ws' if tls is None else 'wss'}://{host}:{port}{_PATH}"
    try:
        socket = await connect_websocket(
            uri,
            ssl=tls,
            subprotocols=[_SUBPROTOCOL],
            compression=None,
            max_size=_MESSAGE_BYTES_MAX,
            ping_interval=None,  # AMQP has its own heartbeats
            open_timeout=None,  # the caller sets the deadline
            proxy=None,
        )
    except InvalidHandshake as error:
        response = getattr(error, "response", None)
        kind = BY_STATUS.get(getattr(response, "status_code", 0), ClientError)
        raise kind(f"The WebSocket to {host}:{port} was refused: {error}") from None
    connection.connection_made(ClientWebSocketTransport(socket, connection))


class ClientWebSocketTransport(asyncio.Transport):
    """The part of a transport that `Connection` uses. One task reads, another one writes the
    queued data."""

    def __init__(self, socket: ClientConnection, connection: StreamProtocol) -> None:
        super().__init__()
        self._socket = socket
        self._connection = connection
        self._queued: list[bytes] = []
        self._queued_bytes = 0
        self._high = self._low = 0
        self._is_full = False
        self._is_closing = False
        self._has_queued = asyncio.Event()
        self._may_read = asyncio.Event()
        self._may_read.set()
        loop = asyncio.get_running_loop()
        self._reading = loop.create_task(self._read())
        self._writing = loop.create_task(self._write())

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = high or 0
        self._low = self._high // 4 if low is None else low

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._is_closing:
            return
        self._queued.append(bytes(data))
        self._queued_bytes += len(data)
        self._has_queued.set()
        if self._queued_bytes > self._high and not self._is_full:
            self._is_full = True
            self._connection.pause_writing()

    def is_closing(self) -> bool:
        return self._is_closing

    def pause_reading(self) -> None:
        self._may_read.clear()

    def resume_reading(self) -> None:
        self._may_read.set()

    def close(self) -> None:
        """Write the queued data, then close."""
        self._is_closing = True
        self._has_queued.set()

    def abort(self) -> None:
        self._is_closing = True
        self._queued.clear()
        self._socket.transport.abort()

    async def _read(self) -> None:
        lost: Exception | None = None
        try:
            while True:
                await self._may_read.wait()
                message = await self._socket.recv(decode=False)
                assert isinstance(message, bytes)
                self._connection.data_received(message)
        except ConnectionClosed as error:
            lost = None if error.rcvd is not None else error
        except (OSError, WebSocketException) as error:
            lost = error
        finally:
            self._is_closing = True
            self._writing.cancel()
            self._connection.connection_lost(lost)

    async def _write(self) -> None:
        try:
            while not (self._is_closing and not self._queued):
                await self._has_queued.wait()
                self._has_queued.clear()
                await self._write_queued()
            await self._socket.close()
        except (OSError, WebSocketException):
            self._socket.transport.abort()  # the reading task reports the loss

    async def _write_queued(self) -> None:
        data = b"".join(self._queued)
        self._queued.clear()
        if data:
            await self._socket.send(data)
        self._queued_bytes -= len(data)
        if self._is_full and self._queued_bytes <= self._low:
            self._is_full = False
            self._connection.resume_writing()
