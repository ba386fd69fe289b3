"""The portal's HTTP/1.1 server: uvicorn's, with deadlines and a number of connections per address.

A connection that is not busy with a request (half a head, half a body, idle) can always be closed
in favor of a new one. So connections that are held open keep no visitor out, not even behind the
same address. Above the limits a connection is still answered on `/alive`, by which the service
watches the portal, and with 503 on everything else.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import ssl
from collections import defaultdict

import uvicorn
from uvicorn.protocols.http.flow_control import service_unavailable

from penstock.io.http_protocol import BoundedHttpProtocol
from penstock.model.clock import SystemClock
from penstock.portal.address_limits import limit_key
from penstock.portal.application import PortalApplication
from penstock.portal.settings import PortalSettings

ALIVE = b"/alive"
CONNECTIONS_MAX = 500
CONNECTIONS_PER_ADDRESS_MAX = 100
SURPLUS_MAX = 32  # above the limits, for `/alive`
TLS_DEADLINE_S = 10.0
_KEEP_ALIVE_S = 30
_GRACE_S = 2


class ConnectionLimits:
    """Connections by address, the oldest first. Used on the event loop."""

    def __init__(self, *, per_address: int = CONNECTIONS_PER_ADDRESS_MAX) -> None:
        self._per_address = per_address
        self._connections: defaultdict[str, dict[PortalProtocol, None]] = defaultdict(dict)
        self._surplus: dict[PortalProtocol, None] = {}
        self._count = 0

    def admit(self, connection: PortalProtocol) -> bool:
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

    def leave(self, connection: PortalProtocol) -> None:
        self._surplus.pop(connection, None)
        own = self._connections.get(connection.key)
        if own is None or connection not in own:
            return
        del own[connection]
        self._count -= 1
        if not own:
            del self._connections[connection.key]

    def _close_one(self, among: dict[PortalProtocol, None]) -> bool:
        """Close the oldest one that is not busy."""
        for connection in among:
            if not connection.is_busy:
                self.leave(connection)
                connection.abort()
                return True
        return False


class PortalProtocol(BoundedHttpProtocol):
    """A connection that the limits count, before its TLS handshake if it has one. It is busy with
    a whole request."""

    limits: ConnectionLimits  # of the server, set by `PortalServer`
    key = ""  # by which the limits count
    is_busy = False
    is_surplus = False
    _socket: asyncio.Transport  # without TLS

    def count(self, transport: asyncio.Transport) -> None:
        peer = transport.get_extra_info("peername")
        self.key = limit_key(str(peer[0])) if peer else "?"
        self._socket = transport
        self.is_surplus = not self.limits.admit(self)

    def abort(self) -> None:
        self._socket.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if not self.key:
            self.count(transport)

    def on_headers_complete(self) -> None:
        if self.is_surplus and self.url.partition(b"?")[0] != ALIVE:
            self.app = service_unavailable
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        # An answer may be complete before its request: 413 to a body that is too large.
        self.is_busy = not self.cycle.response_complete
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self.is_busy = bool(self.pipeline)

    def connection_lost(self, exc: Exception | None) -> None:
        self.limits.leave(self)
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
        self._protocol.count(transport)
        self._task = asyncio.create_task(self._shake_hands(transport))

    def data_received(self, data: bytes) -> None:
        self._early += data

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True

    async def _shake_hands(self, transport: asyncio.Transport) -> None:
        loop, secure = asyncio.get_running_loop(), None
        try:
            secure = await loop.start_tls(
                transport,
                self,
                self._context,
                server_side=True,
                ssl_handshake_timeout=TLS_DEADLINE_S,
            )
        except OSError:
            transport.abort()
        if secure is None or self._is_lost:
            self._protocol.limits.leave(self._protocol)
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


async def serve(settings: PortalSettings) -> None:
    """Serve until SIGTERM."""
    application = PortalApplication(settings, SystemClock())
    # A proxy's one address is many visitors.
    per_address = CONNECTIONS_MAX if settings.trusted_proxies else CONNECTIONS_PER_ADDRESS_MAX
    server = PortalServer(_config(application, settings), ConnectionLimits(per_address=per_address))
    sockets = [socket.socket(fileno=each) for each in settings.sockets]
    try:
        await server.serve(sockets=sockets)
    finally:
        application.close()


def _config(application: PortalApplication, settings: PortalSettings) -> uvicorn.Config:
    config = uvicorn.Config(
        application,
        log_config=None,
        access_log=False,  # a query may hold a sign-in link
        lifespan="off",
        server_header=False,
        date_header=True,
        proxy_headers=False,  # `portal_trusted_proxies` says whom to believe
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_GRACE_S,
        ws="none",
        ssl_certfile=settings.certificate_file,
        ssl_keyfile=settings.key_file,
    )
    config.load()
    if config.ssl is not None:
        config.ssl.minimum_version = ssl.TLSVersion.TLSv1_2
    return config


def set_up_logs(level: int = logging.INFO) -> None:
    """Log to standard error, which the service reads with the level of each line."""
    logging.basicConfig(level=level, format="%(levelname)s %(name)s %(message)s", force=True)
    for chatty in ("uvicorn", "uvicorn.error", "asyncio", "httptools"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
