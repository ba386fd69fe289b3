"""The AMQP listeners: plain TCP and TLS sockets, one AmqpConnection for each accepted one."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from typing import cast

from penstock.gateway.amqp.connection import AmqpConnection
from penstock.gateway.amqp.context import AmqpContext
from penstock.gateway.amqp.turn_queue import TurnQueue
from penstock.gateway.backpressure import PauseReason
from penstock.gateway.guard import ConnectionSlot
from penstock.gateway.listener import Listeners
from penstock.gateway.transport import ClosingTransport, Transport
from penstock.model import limits


class AmqpServer:
    """Every AMQP connection of the process, over sockets and WebSockets."""

    def __init__(self, context: AmqpContext) -> None:
        self.context = context
        self.connections: set[AmqpConnection] = set()
        self.opened = 0  # connections ever accepted
        self._listeners = Listeners(
            context.loop, context.guard, lambda slot: SocketProtocol(self, slot)
        )
        self._revalidations = TurnQueue(context.loop)
        self._is_closing = False
        self._empty = asyncio.Event()
        self._empty.set()

    def connect(self, transport: Transport, slot: ConnectionSlot | None = None) -> AmqpConnection:
        """Start a connection over `transport`, which calls its `connection_lost` and releases
        `slot` at the end."""
        connection = AmqpConnection(
            self.context,
            transport,
            on_over=self._forget,
            slot=slot,
            connection_count=len(self.connections) + 1,
        )
        self.connections.add(connection)
        self.opened += 1
        self._empty.clear()
        if self._is_closing:  # its TLS handshake was in progress when the listeners were closed
            connection.shut_down()
        return connection

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        """Open a listener; return its port. Raises OSError."""
        return await self._listeners.open(host, port, tls)

    def revalidate_grants(self) -> None:
        """Rules or keys changed: every connection checks its links again, a bounded number of links
        per event-loop iteration. A call replaces an earlier one that is still in progress."""
        self._revalidations.clear()
        self._revalidations.run_each(
            (connection.revalidate_grants, 1 + len(connection.links.handlers))
            for connection in list(self.connections)
        )

    async def close(self, *, grace_s: float) -> None:
        """Accept no connection, finish pending publications, close all connections and wait up to
        `grace_s` for the peers' answers."""
        self._is_closing = True
        await self._listeners.close()
        for connection in list(self.connections):
            connection.backpressure.pause(PauseReason.SHUTDOWN)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await self.context.pending_bytes.nothing.wait()
        for connection in list(self.connections):
            connection.shut_down()
        try:
            async with asyncio.timeout(grace_s):
                await self._empty.wait()
        except TimeoutError:
            for connection in list(self.connections):
                connection.transport.abort()

    def _forget(self, connection: AmqpConnection) -> None:
        self.connections.discard(connection)
        if not self.connections:
            self._empty.set()


class SocketProtocol(asyncio.Protocol):
    """Passes what asyncio reports of one socket to its AmqpConnection."""

    _connection: AmqpConnection

    def __init__(self, server: AmqpServer, slot: ConnectionSlot) -> None:
        self._server = server
        self._slot = slot
        self._transport: ClosingTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it
        self._transport = ClosingTransport(stream, self._slot, self._server.context.loop)
        self._slot.accepted(stream)
        stream.set_write_buffer_limits(high=limits.OUTBOUND_BUFFER_BYTES)
        self._connection = self._server.connect(self._transport, self._slot)

    def data_received(self, data: bytes) -> None:
        self._connection.data_received(data)

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is not None:
            self._connection.connection_lost()
            del self._connection  # it refers to the transport, which refers to this protocol
            self._transport.forget()
        self._slot.release()
