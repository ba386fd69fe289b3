"""The listeners: plain TCP and TLS sockets, each accepted one driven by an AmqpConnection."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from typing import cast

from penstock.gateway.amqp.connection import AmqpConnection, Transport
from penstock.gateway.amqp.context import AmqpContext
from penstock.gateway.amqp.turn_queue import TurnQueue
from penstock.gateway.guard import ConnectionSlot
from penstock.gateway.listener import Listeners
from penstock.gateway.transport import ClosingTransport
from penstock.model import limits


class AmqpServer:
    """Every AMQP connection of the process, whatever socket it came by."""

    def __init__(self, context: AmqpContext) -> None:
        self.context = context
        self.connections: set[AmqpConnection] = set()
        self.opened = 0  # connections ever accepted
        self._listeners = Listeners(
            context.loop, context.guard, lambda slot: SocketTransport(self, slot)
        )
        self._rejudging = TurnQueue(context.loop)
        self._closing = False
        self._empty = asyncio.Event()
        self._empty.set()

    def connect(self, transport: Transport, slot: ConnectionSlot | None = None) -> AmqpConnection:
        """A peer has come in by `transport`; the door forgets it when it is over. The
        transport releases `slot`."""
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
        if self._closing:  # its TLS handshake was under way when the listeners were closed
            connection.shut_down()
        return connection

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        """Open a listener; the port it got."""
        return await self._listeners.open(host, port, tls)

    def rejudge(self) -> None:
        """Rules or keys changed: every connection judges its links again, a bounded number of links
        per event-loop turn. A call while an earlier one is under way begins again."""
        self._rejudging.clear()
        self._rejudging.run_each(
            (connection.revalidate_grants, 1 + len(connection.apps))
            for connection in list(self.connections)
        )

    async def close(self, *, grace_s: float) -> None:
        """Take nobody new, say goodbye to everybody, wait for their answers for a moment."""
        self._closing = True
        await self._listeners.close()
        for connection in list(self.connections):
            connection.intake.stop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await self.context.held.nothing.wait()
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


class SocketTransport(asyncio.Protocol):
    """asyncio's protocol on one side, the driver's Transport on the other."""

    def __init__(self, door: AmqpServer, slot: ConnectionSlot) -> None:
        self._door = door
        self._slot = slot
        self._socket: ClosingTransport | None = None
        self._connection: AmqpConnection | None = None
        self.peer = "-"

    # asyncio calls these

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it
        self._socket = ClosingTransport(stream, self._slot, self._door.context.loop)
        self._slot.accepted(stream)
        self.peer = _peer_text(transport.get_extra_info("peername"))
        stream.set_write_buffer_limits(high=limits.OUTBOUND_BUFFER_BYTES)
        self._connection = self._door.connect(self, self._slot)

    def data_received(self, data: bytes) -> None:
        assert self._connection is not None
        self._connection.data_received(data)

    def pause_writing(self) -> None:
        assert self._connection is not None
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        assert self._connection is not None
        self._connection.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._connection is not None:
            self._connection.connection_lost()
            self._connection = None  # it refers to this transport
        self._slot.release()
        if self._socket is not None:
            self._socket.forget()

    # the driver calls these

    def write(self, data: bytes) -> None:
        assert self._socket is not None
        if not self._socket.is_closing():
            self._socket.write(data)

    def close(self) -> None:
        assert self._socket is not None
        self._socket.close()

    def abort(self) -> None:
        assert self._socket is not None
        self._socket.abort()

    def pause_reading(self) -> None:
        assert self._socket is not None
        self._socket.pause_reading()

    def resume_reading(self) -> None:
        assert self._socket is not None
        self._socket.resume_reading()


def _peer_text(peername: object) -> str:
    if isinstance(peername, tuple) and len(peername) >= 2:
        host = f"[{peername[0]}]" if ":" in str(peername[0]) else peername[0]
        return f"{host}:{peername[1]}"
    return "-"
