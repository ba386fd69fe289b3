"""One AMQP connection as a client: engine and socket, futures for the control path, callbacks for
the data path. Every wait has the deadline of the connection."""

from __future__ import annotations

import asyncio
import logging
import math
import ssl
import time
import uuid
from typing import Literal

from penstock.amqp.connection import ConnectionConfig
from penstock.amqp.connection import ConnectionEngine as Engine
from penstock.amqp.errors import LocalError
from penstock.amqp.events import (
    AttachReceived,
    BeginReceived,
    CloseReceived,
    ConnectionFailed,
    DetachReceived,
    DispositionReceived,
    EndReceived,
    Event,
    FlowReceived,
    OpenReceived,
    SaslMechanismsReceived,
    SaslOutcomeReceived,
    TransfersReceived,
)
from penstock.amqp.link import Link, LinkRole
from penstock.amqp.message import Message, ValueBody
from penstock.amqp.performatives import Accepted, Disposition, Error, Source, Target
from penstock.amqp.session import Session
from penstock.amqp.states import LINK, LinkInput
from penstock.amqp.types import Described, Long, Symbol
from penstock.auth.sas import sign
from penstock.client.errors import (
    ClientDenied,
    ClientError,
    ClientTimedOut,
    ClientUntrusted,
    condition_error,
)
from penstock.client.links import OnTransfers, Receiver, RequestResponseClient, Sender
from penstock.kernels import ReceiveBuffer
from penstock.model.connection_string import Endpoint

Transport = Literal["amqp", "websocket"]
_CBS = "$cbs"
_MANAGEMENT = "$management"
TOKEN_S = 3600.0
_RENEW_AT = 0.75  # of a token's lifetime; the remaining quarter leaves time for retries
_RENEW_AGAIN_S = 5.0
_READ_BYTES = 512 * 1024  # of one read: about 500 events of 1 KB
_WRITE_BUFFER_BYTES = 1024 * 1024  # a full credit of small events fits into one write
_SELECTOR = "apache.org:selector-filter:string"
_CLOSE_S = 2.0  # for the service to answer a close
_log = logging.getLogger(__name__)


async def connect(
    endpoint: Endpoint,
    *,
    tls: ssl.SSLContext | None = None,
    timeout_s: float = 10.0,
    transport: Transport = "amqp",
    token_s: float = TOKEN_S,
) -> Connection:
    """Open a connection: socket, TLS, SASL ANONYMOUS, open, one session, the links to `$cbs`.
    Raises ClientError, also for errors of the network."""
    if endpoint.tls and tls is None:
        tls = await asyncio.to_thread(ssl.create_default_context)
    connection = Connection(endpoint, timeout_s=timeout_s, token_s=token_s)
    address = f"{endpoint.host}:{endpoint.port}"
    tls = tls if endpoint.tls else None
    try:
        async with asyncio.timeout(timeout_s):
            if transport == "websocket":
                from penstock.client.websocket import open_websocket

                await open_websocket(connection, endpoint, tls)
            else:
                loop = asyncio.get_running_loop()
                await loop.create_connection(
                    lambda: connection, endpoint.host, endpoint.port, ssl=tls
                )
            await connection.opened
            await connection.cbs.attach()
    except TimeoutError:
        connection.abort()
        raise ClientTimedOut(f"{address} did not answer within {timeout_s} s.") from None
    except ssl.SSLCertVerificationError as error:
        raise ClientUntrusted(
            f"The certificate of {address} is not trusted: {error.verify_message}. "
            "Trust the authority that signed it: ca_file in the Python client, --ca-file on the "
            "command line, tls.caFile in Spark."
        ) from None
    except OSError as error:
        raise ClientError(f"{address} cannot be reached: {error}.") from None
    except BaseException:
        connection.abort()
        raise
    return connection


class Connection(asyncio.BufferedProtocol):
    """Created by `connect`. Closing it closes its links. Used on one event loop only.

    A `BufferedProtocol`: the socket writes into the engine's buffer, so large reads are not copied.
    """

    def __init__(self, endpoint: Endpoint, *, timeout_s: float, token_s: float = TOKEN_S) -> None:
        self.endpoint = endpoint
        self._timeout_s = timeout_s
        self._token_s = token_s
        self._loop = asyncio.get_running_loop()
        self.opened: asyncio.Future[None] = self._loop.create_future()
        self.product = ""  # the name that the service gives itself, after the open
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self._socket: asyncio.Transport | None = None
        self._session: Session | None = None
        self._attaching: dict[Link, asyncio.Future[None]] = {}
        self._ends: dict[Link, Sender | Receiver] = {}
        self.cbs = RequestResponseClient(self, _CBS)
        self._management = RequestResponseClient(self, _MANAGEMENT)
        self._attaching_management = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._renewals: dict[str, asyncio.Task[None]] = {}  # by path
        self._flush_scheduled = False
        self._error: ClientError | None = None
        self._reading_paused = False
        self._receive_buffer = ReceiveBuffer(_READ_BYTES)
        self.write_paused = False
        self.renewed = 0  # tokens that were renewed
        self.engine = Engine(
            ConnectionConfig(
                container_id=f"penstock-client-{uuid.uuid4().hex}",
                hostname=endpoint.host,
                server=False,
                idle_time_out_ms=60_000,
                incoming_window=65536,
            ),
            now_ms=_now_ms(),
        )

    # --- asyncio's side -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._socket = transport  # type: ignore[assignment]  # a stream transport
        assert self._socket is not None
        self._socket.set_write_buffer_limits(high=_WRITE_BUFFER_BYTES)
        self.engine.start()
        self.flush()
        self._arm()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._receive_buffer.room(self.engine.pending)

    def buffer_updated(self, nbytes: int) -> None:
        self.engine.pending = b""
        self.data_received(self._receive_buffer.take(nbytes))

    def data_received(self, data: bytes | memoryview) -> None:
        self._handle(self.engine.receive_data(data, now_ms=_now_ms()))
        self.flush()

    def pause_writing(self) -> None:
        self.write_paused = True

    def resume_writing(self) -> None:
        self.write_paused = False
        self._on_flow(None)
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._fail(ClientError(f"The connection was lost ({exc or 'closed by the service'})."))
        if not self.closed.done():
            self.closed.set_result(None)

    @property
    def is_usable(self) -> bool:
        """Whether new links can be attached."""
        return self._error is None and self._socket is not None and self.engine.is_opened

    def pause_reading(self) -> None:
        """Read nothing until `resume_reading`, so that TCP stops the service."""
        if not self._reading_paused and self._socket is not None and not self._socket.is_closing():
            self._reading_paused = True
            self._socket.pause_reading()

    def resume_reading(self) -> None:
        if self._reading_paused and self._socket is not None and not self._socket.is_closing():
            self._reading_paused = False
            self._socket.resume_reading()

    # --- control path ---------------------------------------------------------------------------

    async def authorise(self, path: str) -> None:
        """Put a token for `path` (such as "hub" or "hub/ConsumerGroups/g"), and renew it before it
        expires for as long as the connection is open; a signature in the connection string cannot
        be renewed. Raises ClientError."""
        await self._put_token(path)
        if self.endpoint.signature is None and path not in self._renewals:
            self._renewals[path] = self._loop.create_task(self._renew(path))

    async def _put_token(self, path: str) -> None:
        audience = self._audience(path)
        properties: dict[str, object] = {
            "operation": "put-token",
            "type": "servicebus.windows.net:sastoken",
            "name": audience,
        }
        body = ValueBody(self._token(audience))
        await self.cbs.request(properties, body, timeout_s=self._timeout_s)

    def _audience(self, path: str) -> str:
        return f"sb://{self.endpoint.host}/{path}"

    def _token(self, audience: str) -> str:
        endpoint = self.endpoint
        if endpoint.signature is not None:
            return endpoint.signature.reveal()
        if endpoint.key_name is None or endpoint.key is None:
            raise ClientDenied("The connection string has neither a key nor a signature.")
        expires_s = math.ceil(time.time() + self._token_s)
        return sign(audience, endpoint.key_name, endpoint.key, expires_s=expires_s)

    async def _renew(self, path: str) -> None:
        pause_s = self._token_s * _RENEW_AT
        while True:
            await asyncio.sleep(pause_s)
            try:
                await self._put_token(path)
            except ClientError as error:
                # The links stay until the old token expires; then the service detaches them.
                _log.warning("token not renewed: path=%s error=%s", path, error)
                pause_s = min(_RENEW_AGAIN_S, self._token_s * (1 - _RENEW_AT) / 4)
            else:
                self.renewed += 1
                pause_s = self._token_s * _RENEW_AT

    async def manage(self, properties: dict[str, object], *, hub: str) -> Message:
        """The response of `$management` to a request about `hub`. Raises ClientError."""
        async with self._attaching_management:
            if not self._management.is_usable:
                self._management = RequestResponseClient(self, _MANAGEMENT)
                await self._management.attach()
        properties = properties | {"security_token": self._token(self._audience(hub))}
        return await self._management.request(properties, None, timeout_s=self._timeout_s)

    async def sender(
        self,
        address: str,
        *,
        properties: dict[str, object] | None = None,
        desired_capabilities: list[str] | None = None,
    ) -> Sender:
        link = self._new_link(LinkRole.SENDER)
        sender = self._ends[link] = Sender(self, link)
        link.request(
            source=Source(address=link.name),
            target=Target(address=address),
            properties=properties,
            desired_capabilities=desired_capabilities,
        )
        await self._wait_attached(link, address)
        return sender

    async def receiver(
        self,
        address: str,
        *,
        credit: int | None,
        on_transfers: OnTransfers,
        selector: str | None = None,
        epoch: int | None = None,
        target: str | None = None,
        desired_capabilities: list[str] | None = None,
    ) -> Receiver:
        """With a `credit` of None the caller grants credit, by `receiver.link.grant`."""
        link = self._new_link(LinkRole.RECEIVER)
        receiver = self._ends[link] = Receiver(self, link, credit, on_transfers)
        filters: dict[str, object] | None = None
        if selector is not None:
            filters = {Symbol(_SELECTOR): Described(Symbol(_SELECTOR), selector)}
        properties: dict[str, object] | None = None
        if epoch is not None:
            properties = {Symbol("com.microsoft:epoch"): Long(epoch)}
        link.request(
            source=Source(address=address, filter=filters),
            target=Target(address=target or link.name),
            properties=properties,
            desired_capabilities=desired_capabilities,
        )
        await self._wait_attached(link, address)
        if credit is not None:
            link.grant(credit)
        self.flush()
        return receiver

    def drop(self, link_end: Sender | Receiver) -> None:
        """Detach a link without waiting for the service's detach."""
        self._ends.pop(link_end.link, None)
        if LINK.allows(link_end.link.state, LinkInput.SEND_DETACH):
            link_end.link.detach()
            self.schedule_flush()

    async def close(self) -> None:
        """Close in order: the service answers, or 2 seconds pass."""
        self._stop_renewing()
        if self._socket is None:
            return
        self.engine.close()
        self.flush()
        try:
            async with asyncio.timeout(_CLOSE_S):
                await asyncio.shield(self.closed)
        except TimeoutError:
            self._socket.abort()

    def abort(self) -> None:
        """Close the socket at once, without an AMQP close."""
        self._stop_renewing()
        if self._socket is not None:
            self._socket.abort()

    # --- inside ---------------------------------------------------------------------------------

    def flush(self) -> None:
        data = self.engine.bytes_to_send(now_ms=_now_ms())
        if data and self._socket is not None and not self._socket.is_closing():
            self._socket.write(data)
        if self.engine.is_over and self._socket is not None:
            self._socket.close()

    def schedule_flush(self) -> None:
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._scheduled_flush)

    def _scheduled_flush(self) -> None:
        self._flush_scheduled = False
        self.flush()

    def _new_link(self, role: LinkRole) -> Link:
        if self._error is not None:
            raise self._error
        assert self._session is not None
        try:
            return self._session.new_link(f"link-{uuid.uuid4().hex}", role)
        except LocalError as error:
            raise ClientError(str(error)) from None

    async def _wait_attached(self, link: Link, address: str) -> None:
        attached = self._attaching[link] = self._loop.create_future()
        self.flush()
        try:
            async with asyncio.timeout(self._timeout_s):
                await attached
        except BaseException as error:
            self._attaching.pop(link, None)
            if link in self._ends:
                self.drop(self._ends[link])
            if isinstance(error, TimeoutError):
                raise ClientTimedOut(
                    f"the attach to {address} did not come within {self._timeout_s} s."
                ) from None
            raise

    def _fail(self, error: ClientError) -> None:
        if self._error is None:
            self._error = error
        self._stop_renewing()
        for future in (self.opened, *self._attaching.values()):
            if not future.done():
                future.set_exception(error)
                future.exception()  # mark it as retrieved: its caller may have left
        self._attaching.clear()
        for link_end in list(self._ends.values()):
            link_end.on_detached(error)
        self._ends.clear()

    def _stop_renewing(self) -> None:
        for renewal in self._renewals.values():
            renewal.cancel()
        self._renewals.clear()

    def _arm(self) -> None:
        due = self.engine.next_deadline_ms()
        if due is not None:
            delay = max(0, due - _now_ms()) / 1000
            self._timer = self._loop.call_later(delay, self._on_timer)

    def _on_timer(self) -> None:
        if self._reading_paused:  # an unread connection looks silent: count this as traffic
            self.engine.receive_data(b"", now_ms=_now_ms())
        self._handle(self.engine.on_time(now_ms=_now_ms()))
        self.flush()
        self._arm()

    def _handle(self, events: list[Event]) -> None:
        for event in events:
            match event:
                case TransfersReceived(link=link):
                    receiver = self._ends.get(link)
                    if isinstance(receiver, Receiver):
                        receiver.on_received(event)
                case DispositionReceived(disposition=disposition):
                    self._on_disposition(disposition)
                case FlowReceived(link=link):
                    self._on_flow(link)
                case _:
                    self._on_control(event)

    def _on_control(self, event: Event) -> None:
        match event:
            case SaslMechanismsReceived():
                self.engine.init_sasl("ANONYMOUS", b"")
            case SaslOutcomeReceived():
                self.engine.send_open()
            case OpenReceived(open=open_frame):
                self.product = str((open_frame.properties or {}).get("product", ""))
                self._session = self.engine.begin()
            case BeginReceived() if not self.opened.done():
                self.opened.set_result(None)
            case AttachReceived(link=link):
                attached = None if _is_refused(link) else self._attaching.pop(link, None)
                if attached is not None and not attached.done():
                    attached.set_result(None)
            case DetachReceived(link=link, error=error):
                self._on_detach(link, error)
            case EndReceived(error=error):
                self._fail(_end_error("The service ended the session", error))
                self.engine.close()
            case CloseReceived(error=error):
                self._fail(_end_error("The service ended the connection", error))
            case ConnectionFailed(error=failure_text):
                self._fail(ClientError(str(failure_text)))
            case _:
                pass

    def _on_detach(self, link: Link, error: Error | None) -> None:
        detached = _end_error("The service ended the link", error)
        attached = self._attaching.pop(link, None)
        if attached is not None and not attached.done():
            attached.set_exception(detached)
        link_end = self._ends.pop(link, None)
        if link_end is not None:
            link_end.on_detached(detached)

    def _on_flow(self, link: Link | None) -> None:
        """A link has credit, or, without one, the session or the socket has room."""
        for sender in self._senders():
            if link in (None, sender.link):
                sender.on_room()

    def _senders(self) -> list[Sender]:
        return [link_end for link_end in self._ends.values() if isinstance(link_end, Sender)]

    def _on_disposition(self, disposition: Disposition) -> None:
        last = disposition.last if disposition.last is not None else disposition.first
        error = getattr(disposition.state, "error", None)
        if not isinstance(disposition.state, Accepted) and error is None:
            error = Error(condition="amqp:not-allowed", description="not accepted")
        for sender in self._senders():
            sender.on_disposition(disposition.first, last, error)


def _is_refused(link: Link) -> bool:
    """Whether the attach of the service names no node; a detach with the reason follows (E15)."""
    attach = link.attach
    if attach is None:
        return False
    return attach.target is None if link.role is LinkRole.SENDER else attach.source is None


def _end_error(what: str, error: Error | None) -> ClientError:
    if error is None:
        return ClientError(f"{what}.")
    return condition_error(f"{what}: {error.condition}: {error.description}", error)


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
