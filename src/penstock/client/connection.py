"""One AMQP connection as a client: engine plus socket, futures for the control path, callbacks for
the data path. Every wait has the connection's deadline."""

from __future__ import annotations

import asyncio
import ssl
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from penstock.amqp.connection import Connection as Engine
from penstock.amqp.connection import ConnectionConfig
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
    SaslDone,
    SaslOffered,
    TransfersReceived,
)
from penstock.amqp.link import Link, Role
from penstock.amqp.message import Message, Properties, ValueBody, decode_message, encode_message
from penstock.amqp.performatives import Accepted, Disposition, Error, Source, Target
from penstock.amqp.serial import serial_distance
from penstock.amqp.session import Session
from penstock.amqp.types import Described, Long, Symbol
from penstock.auth import sign
from penstock.client.endpoint import Endpoint
from penstock.client.errors import (
    ClientDenied,
    ClientError,
    ClientNotFound,
    ClientThrottled,
    ClientTimedOut,
    failure,
    refusal,
)

__all__ = [
    "ClientDenied",
    "ClientError",
    "ClientNotFound",
    "ClientThrottled",
    "ClientTimedOut",
    "Connection",
    "OnRange",
    "OnSettled",
    "Receiver",
    "Sender",
    "connect",
    "failure",
]

T = TypeVar("T")
_CBS = "$cbs"
_TOKEN_S = 3600
_WRITE_BUFFER_BYTES = 1024 * 1024  # a full credit of small events goes in one write
_SELECTOR = "apache.org:selector-filter:string"

OnSettled = Callable[[Error | None], None]
"""Called once per delivery: None when it is stored, else why it is not."""

OnRange = Callable[[int, int, Error | None], None]
"""Called per disposition with the first and the last delivery-id it names."""


async def connect(
    endpoint: Endpoint, *, tls: ssl.SSLContext | None = None, timeout_s: float = 10.0
) -> Connection:
    """Open a connection: socket, TLS, SASL anonymous, open, one session, the `$cbs` pair."""
    loop = asyncio.get_running_loop()
    if endpoint.tls and tls is None:
        tls = ssl.create_default_context()
    async with asyncio.timeout(timeout_s):
        _, connection = await loop.create_connection(
            lambda: Connection(endpoint, timeout_s=timeout_s),
            endpoint.host,
            endpoint.port,
            ssl=tls if endpoint.tls else None,
        )
        await connection.opened
        await connection.attach_cbs()
    return connection


class Connection(asyncio.Protocol):
    """Made by `connect`. Closing it ends its links."""

    def __init__(self, endpoint: Endpoint, *, timeout_s: float) -> None:
        self.endpoint = endpoint
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self.opened: asyncio.Future[None] = self._loop.create_future()
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self._socket: asyncio.Transport | None = None
        self._session: Session | None = None
        self._waiting: dict[object, asyncio.Future[Any]] = {}
        self._apps: dict[Link, Sender | Receiver] = {}
        self._cbs: tuple[Sender, Receiver] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._flush_scheduled = False
        self.write_paused = False
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

    def data_received(self, data: bytes) -> None:
        self._handle(self.engine.receive_data(data, now_ms=_now_ms()))
        self.flush()

    def pause_writing(self) -> None:
        self.write_paused = True

    def resume_writing(self) -> None:
        self.write_paused = False
        for app in list(self._apps.values()):
            app.on_room()
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._fail(ClientError(f"The connection was lost ({exc or 'closed by the service'})."))
        if not self.closed.done():
            self.closed.set_result(None)

    # --- control path ---------------------------------------------------------------------------

    async def attach_cbs(self) -> None:
        """The receiver first, then the sender, as the official Python SDK does."""
        receiver = await self.receiver(_CBS, credit=100, on_transfers=self._on_cbs)
        sender = await self.sender(_CBS)
        self._cbs = (sender, receiver)

    async def authorise(self, path: str) -> None:
        """put-token for `path` (such as "hub" or "hub/ConsumerGroups/g"); raises ClientError."""
        assert self._cbs is not None
        audience = f"sb://{self.endpoint.host}/{path}"
        request = Message(
            properties=Properties(message_id=uuid.uuid4(), reply_to=_CBS),
            application_properties={
                "operation": "put-token",
                "type": "servicebus.windows.net:sastoken",
                "name": audience,
            },
            body=ValueBody(self._token(audience)),
        )
        assert request.properties is not None
        answer = self._expect(str(request.properties.message_id))
        sender = self._cbs[0]
        await self._within(sender.has_credit(), "credit on $cbs")
        sender.send(encode_message(request), message_format=0)
        self.flush()
        status, text = await self._within(answer, "the answer to put-token")
        if not 200 <= status < 300:
            text = f"put-token was refused with status {status}: {text}"
            raise refusal(status, text, None)

    def _token(self, audience: str) -> str:
        endpoint = self.endpoint
        if endpoint.signature is not None:
            return endpoint.signature.reveal()
        if endpoint.key_name is None or endpoint.key is None:
            raise ClientError("The connection string has neither a key nor a signature.")
        expires_s = int(time.time()) + _TOKEN_S
        return sign(audience, endpoint.key_name, endpoint.key, expires_s=expires_s)

    async def sender(self, address: str) -> Sender:
        link = self._new_link(Role.SENDER)
        sender = self._apps[link] = Sender(self, link)
        link.request(source=Source(address=link.name), target=Target(address=address))
        await self._attached(link, address)
        return sender

    async def receiver(
        self,
        address: str,
        *,
        credit: int,
        on_transfers: Callable[[TransfersReceived], None],
        selector: str | None = None,
        epoch: int | None = None,
    ) -> Receiver:
        link = self._new_link(Role.RECEIVER)
        receiver = self._apps[link] = Receiver(self, link, credit, on_transfers)
        filters: dict[str, object] | None = None
        if selector is not None:
            filters = {Symbol(_SELECTOR): Described(Symbol(_SELECTOR), selector)}
        properties: dict[str, object] | None = None
        if epoch is not None:
            properties = {Symbol("com.microsoft:epoch"): Long(epoch)}
        link.request(
            source=Source(address=address, filter=filters),
            target=Target(address=link.name),
            properties=properties,
        )
        await self._attached(link, address)
        link.grant(credit)
        self.flush()
        return receiver

    async def close(self) -> None:
        self.engine.close()
        self.flush()
        try:
            async with asyncio.timeout(2.0):
                await asyncio.shield(self.closed)
        except TimeoutError:
            assert self._socket is not None
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

    def _new_link(self, role: Role) -> Link:
        assert self._session is not None
        return self._session.new_link(f"link-{uuid.uuid4().hex}", role)

    async def _attached(self, link: Link, address: str) -> None:
        answer = self._expect(link)
        self.flush()
        await self._within(answer, f"the attach to {address}")

    def _expect(self, key: object) -> asyncio.Future[Any]:
        future = self._waiting[key] = self._loop.create_future()
        return future

    async def _within(self, awaited: Awaitable[T], what: str) -> T:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await awaited
        except TimeoutError:
            raise ClientTimedOut(f"{what} did not come within {self._timeout_s} s.") from None

    def _resolve(self, key: object, result: object) -> None:
        future = self._waiting.pop(key, None)
        if future is not None and not future.done():
            if isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(result)

    def _fail(self, error: ClientError) -> None:
        for future in (self.opened, *self._waiting.values()):
            if not future.done():
                future.set_exception(error)
        self._waiting.clear()
        for app in list(self._apps.values()):
            app.on_detached(error)
        self._apps.clear()

    def _arm(self) -> None:
        due = self.engine.next_deadline_ms()
        if due is not None:
            delay = max(0, due - _now_ms()) / 1000
            self._timer = self._loop.call_later(delay, self._on_timer)

    def _on_timer(self) -> None:
        self._handle(self.engine.on_time(now_ms=_now_ms()))
        self.flush()
        self._arm()

    def _handle(self, events: list[Event]) -> None:
        for event in events:
            match event:
                case TransfersReceived(link=link):
                    receiver = self._apps.get(link)
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
            case SaslOffered():
                self.engine.init_sasl("ANONYMOUS", b"")
            case SaslDone():
                self.engine.send_open()
            case OpenReceived():
                self._session = self.engine.begin()
            case BeginReceived() if not self.opened.done():
                self.opened.set_result(None)
            case AttachReceived(link=link):
                refused = link.attach is not None and link.attach.target is None
                if not refused or link.role is Role.RECEIVER:
                    self._resolve(link, None)
            case DetachReceived(link=link, error=error):
                self._on_detach(link, error)
            case EndReceived(error=error) | CloseReceived(error=error):
                self._fail(_ended("The service ended the connection", error))
            case ConnectionFailed(error=failure):
                self._fail(ClientError(str(failure)))
            case _:
                pass

    def _on_detach(self, link: Link, error: Error | None) -> None:
        ended = _ended("The service ended the link", error)
        self._resolve(link, ended)
        app = self._apps.pop(link, None)
        if app is not None:
            app.on_detached(ended)

    def _on_flow(self, link: Link | None) -> None:
        apps = list(self._apps.values()) if link is None else [self._apps.get(link)]
        for app in apps:
            if app is not None:
                app.on_room()

    def _on_disposition(self, disposition: Disposition) -> None:
        last = disposition.last if disposition.last is not None else disposition.first
        error = getattr(disposition.state, "error", None)
        if not isinstance(disposition.state, Accepted) and error is None:
            error = Error(condition="amqp:not-allowed", description="not accepted")
        for app in list(self._apps.values()):
            if isinstance(app, Sender):
                app.on_disposition(disposition.first, last, error)

    def _on_cbs(self, event: TransfersReceived) -> None:
        for i in range(0, len(event.bounds), 2):
            answer = decode_message(event.data[event.bounds[i] : event.bounds[i + 1]])
            told = answer.application_properties or {}
            key = str(answer.properties.correlation_id) if answer.properties else ""
            self._resolve(key, (told.get("status-code", 500), told.get("status-description", "")))


class Sender:
    """`send` queues one delivery; the connection's flush writes everything queued at once."""

    def __init__(self, connection: Connection, link: Link) -> None:
        self.connection = connection
        self.link = link
        self.error: ClientError | None = None
        self.on_room_callback: Callable[[], None] | None = None
        self.on_range: OnRange | None = None  # of one who frames by himself, and counts so too
        self._unsettled: dict[int, OnSettled] = {}  # by delivery id, in order of sending
        self._credit: asyncio.Future[None] | None = None
        self._tag = 0

    async def has_credit(self) -> None:
        if self.link.credit < 1:
            self._credit = asyncio.get_running_loop().create_future()
            await self._credit

    def send(
        self, payload: bytes, *, message_format: int, on_settled: OnSettled | None = None
    ) -> bool:
        """False when credit, window or socket are full: wait for `on_room_callback`. Without
        `on_settled` the delivery is sent settled: nobody will hear what became of it."""
        if self.error is not None:
            raise self.error
        if self.connection.write_paused or not self.link.is_attached:
            return False  # detached: `on_detached` follows with the reason
        self._tag = (self._tag + 1) % 2**32
        delivery_id = self.link.send(
            payload,
            settled=on_settled is None,
            message_format=message_format,
            delivery_tag=self._tag.to_bytes(4, "big"),
        )
        if delivery_id is None:
            return False
        if on_settled is not None:
            self._unsettled[delivery_id] = on_settled
        return True

    def on_disposition(self, first: int, last: int, error: Error | None) -> None:
        """The range is compared with what is outstanding, never walked (it may be absurd)."""
        if self.on_range is not None:
            self.on_range(first, last, error)
        settled = []
        for delivery_id in self._unsettled:
            if serial_distance(delivery_id, last) > 0:
                break
            if serial_distance(delivery_id, first) >= 0:
                settled.append(delivery_id)
        for delivery_id in settled:
            self._unsettled.pop(delivery_id)(error)

    def on_room(self) -> None:
        if self._credit is not None and self.link.credit > 0 and not self._credit.done():
            self._credit.set_result(None)
        if self.on_room_callback is not None:
            self.on_room_callback()

    def on_detached(self, error: ClientError) -> None:
        self.error = error
        for on_settled in self._unsettled.values():
            on_settled(error.error or Error(condition="amqp:link:detach-forced"))
        self._unsettled.clear()
        if self._credit is not None and not self._credit.done():
            self._credit.set_exception(error)
        if self.on_room_callback is not None:
            self.on_room_callback()


class Receiver:
    """Hands runs of transfers to a callback and keeps the credit up."""

    def __init__(
        self,
        connection: Connection,
        link: Link,
        credit: int,
        on_transfers: Callable[[TransfersReceived], None],
    ) -> None:
        self.connection = connection
        self.link = link
        self.error: ClientError | None = None
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._credit = credit
        self._on_transfers = on_transfers

    def on_received(self, event: TransfersReceived) -> None:
        self._on_transfers(event)
        self.link.replenish(self._credit)

    def on_room(self) -> None:
        pass

    def on_detached(self, error: ClientError) -> None:
        self.error = error
        if not self.ended.done():
            self.ended.set_result(None)


def _ended(what: str, error: Error | None) -> ClientError:
    if error is None:
        return ClientError(f"{what}.")
    return failure(f"{what}: {error.condition}: {error.description}", error)


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
