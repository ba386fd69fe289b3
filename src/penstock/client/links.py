"""The client's ends of links: callbacks for the data path, futures to wait for; and requests to
`$cbs` and `$management` over a pair of links (protocol.md 2, 3)."""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from penstock.amqp.errors import AmqpDecodeError
from penstock.amqp.events import TransfersReceived
from penstock.amqp.link import Link
from penstock.amqp.message import Body, Message, Properties, decode_message, encode_message
from penstock.amqp.performatives import Error
from penstock.amqp.serial import serial_distance
from penstock.client.errors import ClientError, ClientTimedOut, status_error
from penstock.client.transfer_frames import TransferFraming

_REQUEST_CREDIT = 100

OnSettled = Callable[[Error | None], None]
"""Called once per delivery: with None when it is stored, else with the reason."""

OnRange = Callable[[int, int, Error | None], None]
"""Called per disposition with the first and the last delivery-id that it names."""

OnTransfers = Callable[[TransfersReceived], None]


class LinkConnection(Protocol):
    """What a link end needs of its connection."""

    write_paused: bool

    def flush(self) -> None: ...
    def schedule_flush(self) -> None: ...
    def abort(self) -> None: ...
    def drop(self, link_end: Sender | Receiver) -> None: ...
    async def sender(self, address: str) -> Sender: ...
    async def receiver(
        self, address: str, *, credit: int | None, on_transfers: OnTransfers, target: str | None
    ) -> Receiver: ...


class Sender:
    """`send` queues one delivery; the connection's flush writes all queued ones at once."""

    def __init__(self, connection: LinkConnection, link: Link) -> None:
        self.connection = connection
        self.link = link
        self.error: ClientError | None = None  # set when the link is lost
        self.on_room_callback: Callable[[], None] | None = None
        self.on_range: OnRange | None = None  # for a caller that builds frames itself
        self._unsettled: dict[int, OnSettled] = {}  # by delivery id, in order of sending
        self._waiting: deque[asyncio.Future[None]] = deque()  # for room
        self._framings: dict[int, TransferFraming] = {}  # by message format

    @property
    def max_message_size(self) -> int | None:
        """The size limit that the service stated; None where it stated none."""
        attach = self.link.attach
        return None if attach is None or not attach.max_message_size else attach.max_message_size

    @property
    def attach_properties(self) -> dict[str, object]:
        """The properties of the service's attach frame."""
        attach = self.link.attach
        return {} if attach is None or attach.properties is None else dict(attach.properties)

    async def wait_for_credit(self) -> None:
        """Raises ClientError when the link is lost."""
        while self.link.credit < 1:
            await self._wait_for_room()

    async def deliver(self, payload: bytes, *, message_format: int) -> Error | None:
        """Send one delivery and return its outcome: None when it is stored, else the reason.
        Raises ClientError when the link is lost before. The caller sets the deadline."""
        outcome: asyncio.Future[Error | None] = asyncio.get_running_loop().create_future()

        def on_settled(error: Error | None) -> None:
            if not outcome.done():
                outcome.set_result(error)

        while not self.send(payload, message_format=message_format, on_settled=on_settled):
            await self._wait_for_room()
        self.connection.schedule_flush()
        error = await outcome
        if self.error is not None and error is not None:
            raise self.error  # the service did not refuse: the link was lost
        return error

    async def _wait_for_room(self) -> None:
        """Wait until credit, window or socket may have room again."""
        if self.error is not None:
            raise self.error
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        await waiting

    def send(
        self, payload: bytes, *, message_format: int, on_settled: OnSettled | None = None
    ) -> bool:
        """Send one delivery. False when credit, window or socket are full: wait for
        `on_room_callback`. Without `on_settled` the delivery is sent settled, and its outcome stays
        unknown. Raises ClientError when the link is lost."""
        if self.error is not None:
            raise self.error
        link = self.link
        if self.connection.write_paused or not link.is_attached or link.credit < 1:
            return False  # where the link is detached, `on_detached` follows with the reason
        framing = self._framings.get(message_format)
        if framing is None:
            framing = TransferFraming(link, message_format)
            self._framings[message_format] = framing
        frames = framing.pieces(len(payload))
        if link.sendable_frames < frames:
            return False
        delivery_id = link.session.next_delivery_id
        data = framing.delivery(payload, delivery_id, is_settled=on_settled is None)
        link.send_transfers(data, deliveries=1, frames=frames)
        if on_settled is not None:
            self._unsettled[delivery_id] = on_settled
        return True

    def on_disposition(self, first: int, last: int, error: Error | None) -> None:
        """Walks the outstanding deliveries, not the range: a peer may send an absurd range."""
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
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(None)
        if self.on_room_callback is not None:
            self.on_room_callback()

    def on_detached(self, error: ClientError) -> None:
        self.error = error
        for on_settled in self._unsettled.values():
            on_settled(error.error or Error(condition="amqp:link:detach-forced"))
        self._unsettled.clear()
        self.on_room()  # the waiting callers raise the error


class Receiver:
    """Passes runs of transfers to a callback. It keeps the credit at `credit`; with None the
    caller grants it."""

    def __init__(
        self,
        connection: LinkConnection,
        link: Link,
        credit: int | None,
        on_transfers: OnTransfers,
    ) -> None:
        self.connection = connection
        self.link = link
        self.error: ClientError | None = None  # set when the link is lost
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._credit = credit
        self._on_transfers = on_transfers

    def on_received(self, event: TransfersReceived) -> None:
        self._on_transfers(event)
        if self._credit is not None:
            self.link.replenish(self._credit)

    def on_detached(self, error: ClientError) -> None:
        self.error = error
        if not self.ended.done():
            self.ended.set_result(None)


class RequestResponseClient:
    """A pair of links to one node. A response names its request by the correlation-id, so several
    requests may be under way."""

    def __init__(self, connection: LinkConnection, address: str) -> None:
        self._connection = connection
        self._address = address
        self._reply_to = f"{address.strip('$')}-reply-{uuid.uuid4().hex}"
        self._waiting: dict[str, asyncio.Future[Message]] = {}  # by the request's message-id
        self._links: tuple[Sender, Receiver] | None = None

    async def attach(self) -> None:
        """Attach the receiver first, as the official Python SDK does."""
        receiver = await self._connection.receiver(
            self._address,
            credit=_REQUEST_CREDIT,
            on_transfers=self._on_responses,
            target=self._reply_to,
        )
        self._links = (await self._connection.sender(self._address), receiver)

    @property
    def is_usable(self) -> bool:
        return self._links is not None and all(link.error is None for link in self._links)

    async def request(
        self, properties: dict[str, object], body: Body | None, *, timeout_s: float
    ) -> Message:
        """The response. Raises ClientError where its status is not a success."""
        assert self._links is not None
        sender, receiver = self._links
        message_id = uuid.uuid4()
        request = Message(
            properties=Properties(message_id=message_id, reply_to=self._reply_to),
            application_properties=properties,
            body=body,
        )
        response: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._waiting[str(message_id)] = response
        what = f"{properties['operation']} on {self._address}"
        try:
            async with asyncio.timeout(timeout_s):
                await sender.wait_for_credit()
                sender.send(encode_message(request), message_format=0)
                self._connection.flush()
                awaited: list[asyncio.Future[Any]] = [response, receiver.ended]
                await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            raise ClientTimedOut(f"No answer to {what} came within {timeout_s} s.") from None
        finally:
            del self._waiting[str(message_id)]
        if not response.done():
            raise receiver.error or ClientError(f"The service ended the link during {what}.")
        return _check_status(response.result(), what)

    def _on_responses(self, event: TransfersReceived) -> None:
        for i in range(0, len(event.bounds), 2):
            try:
                response = decode_message(event.data[event.bounds[i] : event.bounds[i + 1]])
            except AmqpDecodeError:
                continue  # its request ends at the deadline
            request_id = response.properties.correlation_id if response.properties else None
            waiting = self._waiting.get(str(request_id))
            if waiting is not None and not waiting.done():
                waiting.set_result(response)


def _check_status(response: Message, what: str) -> Message:
    properties = response.application_properties or {}
    status = properties.get("status-code", properties.get("statusCode"))
    if isinstance(status, int) and 200 <= status < 300:
        return response
    text = properties.get("status-description", properties.get("statusDescription", ""))
    condition = properties.get("error-condition", properties.get("errorCondition"))
    raise status_error(
        status if isinstance(status, int) else 500,
        f"{what} was refused with status {status}: {text}",
        None if condition is None else str(condition),
    )
