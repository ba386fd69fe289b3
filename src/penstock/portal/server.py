"""The portal's HTTP/1.1 server: uvicorn's, with deadlines and a number of connections per address.

A connection that is not busy with a request (half a head, half a body, idle) can always be closed
in favor of a new one. So connections that are held open keep no visitor out, not even behind the
same address. Above the limits a connection is still answered on `/alive`, by which the service
watches the portal, and with 503 on everything else.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import ssl
from collections import defaultdict

import uvicorn
from uvicorn.protocols.http.flow_control import service_unavailable

from penstock.io.http_protocol import BoundedHttpProtocol
from penstock.portal.address_limits import limit_key

ALIVE = b"/alive"
CONNECTIONS_MAX = 500
CONNECTIONS_PER_ADDRESS_MAX = 100
SURPLUS_MAX = 32  # above the limits, for `/alive`
TLS_DEADLINE_S = 10.0


class Connection:
    """One accepted socket, as the limits see it. It becomes busy with a whole request."""

    def __init__(self, transport: asyncio.Transport) -> None:
        peer = transport.get_extra_info("peername")
        self.key = limit_key(str(peer[0])) if peer else "?"
        self.is_busy = False
        self._transport = transport

    def abort(self) -> None:
        self._transport.abort()


class ConnectionLimits:
    """Connections by address, the oldest first. Used on the event loop."""

    def __init__(self, *, per_address: int = CONNECTIONS_PER_ADDRESS_MAX) -> None:
        self._per_address = per_address
        self._connections: defaultdict[str, dict[Connection, None]] = defaultdict(dict)
        self._surplus: dict[Connection, None] = {}
        self._count = 0

    def admit(self, connection: Connection) -> bool:
        """False: it is above the limits, and only `/alive` is answered."""
        own = self._connections[connection.key]
        if len(own) >= self._per_address:
            admitted = self._close_one(own)
        elif self._count >= CONNECTIONS_MAX:
            admitted = self._close_one(max(self._connections.values(), key=len))
        else:
            admitted = True
        if admitted:
            self._connections[connection.key][connection] = None
            self._count += 1
            return True
        if not own:
            del self._connections[connection.key]
        self._surplus[connection] = None
        if len(self._surplus) > SURPLUS_MAX:
            oldest = next(iter(self._surplus))
            del self._surplus[oldest]
            oldest.abort()
        return False

    def leave(self, connection: Connection) -> None:
        self._surplus.pop(connection, None)
        own = self._connections.get(connection.key)
        if own is None or connection not in own:
            return
        del own[connection]
        self._count -= 1
        if not own:
            del self._connections[connection.key]

    def _close_one(self, among: dict[Connection, None]) -> bool:
        """Close the oldest one that is not busy."""
        for connection in among:
            if not connection.is_busy:
                self.leave(connection)
                connection.abort()
                return True
        return False


class PortalProtocol(BoundedHttpProtocol):
    """Connections are counted by address."""

    limits: ConnectionLimits  # of the server, set by `PortalServer`
    connection: Connection | None = None  # made by the TLS handshake, else here
    is_surplus = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self.connection is None:
            self.connection = Connection(transport)
            self.is_surplus = not self.limits.admit(self.connection)

    def on_headers_complete(self) -> None:
        if self.is_surplus and self.url.partition(b"?")[0] != ALIVE:
            self.app = service_unavailable
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        if self.connection is not None:
            # An answer may be complete before its request: 413 to a body that is too large.
            self.connection.is_busy = not self.cycle.response_complete
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.connection is not None:
            self.connection.is_busy = bool(self.pipeline)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.connection is not None:
            self.limits.leave(self.connection)
        super().connection_lost(exc)


class _TlsHandshake(asyncio.Protocol):
    """Counts a connection before its handshake, then hands it to `protocol`. Receives what comes
    with the handshake's last bytes, before `protocol` has its transport."""

    def __init__(self, protocol: PortalProtocol, context: ssl.SSLContext) -> None:
        self._protocol = protocol
        self._context = context
        self._early = bytearray()
        self._is_lost = False
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.pause_reading()  # nothing is read before the handshake has begun
        connection = self._protocol.connection = Connection(transport)
        self._protocol.is_surplus = not self._protocol.limits.admit(connection)
        self._task = asyncio.create_task(self._shake_hands(transport, connection))

    def data_received(self, data: bytes) -> None:
        self._early += data

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True

    async def _shake_hands(self, transport: asyncio.Transport, connection: Connection) -> None:
        secure: asyncio.Transport | None = None
        try:
            secure = await asyncio.get_running_loop().start_tls(
                transport,
                self,
                self._context,
                server_side=True,
                ssl_handshake_timeout=TLS_DEADLINE_S,
            )
        except OSError:
            transport.abort()
        if secure is None or self._is_lost:
            self._protocol.limits.leave(connection)
            return
        secure.set_protocol(self._protocol)
        self._protocol.connection_made(secure)
        if self._early:
            self._protocol.data_received(bytes(self._early))


class PortalServer(uvicorn.Server):
    """Serves until SIGTERM. `limits` count every connection of every socket."""

    def __init__(self, config: uvicorn.Config, limits: ConnectionLimits) -> None:
        super().__init__(config)
        self._limits = limits

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        loop = asyncio.get_running_loop()
        for wanted in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(wanted, self.stop)
        await self._serve(sockets)

    def stop(self) -> None:
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        loop = asyncio.get_running_loop()
        self.servers = [
            await loop.create_server(self._accept, sock=each, backlog=self.config.backlog)
            for each in sockets or ()
        ]
        self.started = True

    def _accept(self) -> asyncio.Protocol:
        protocol = PortalProtocol(self.config, self.server_state, {})
        protocol.limits = self._limits
        context = self.config.ssl
        return protocol if context is None else _TlsHandshake(protocol, context)
