"""The two ends of a link as a client drives them: callbacks for the data path, futures to wait."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.amqp.events import TransfersReceived
from penstock.amqp.link import Link
from penstock.amqp.performatives import Error
from penstock.amqp.serial import serial_distance
from penstock.client.errors import ClientError
from penstock.client.transfer_frames import TransferFraming

if TYPE_CHECKING:
    from penstock.client.connection import Connection

OnSettled = Callable[[Error | None], None]
"""Called once per delivery: None when it is stored, else why it is not."""

OnRange = Callable[[int, int, Error | None], None]
"""Called per disposition with the first and the last delivery-id it names."""


class Sender:
    """`send` queues one delivery; the connection's flush writes everything queued at once."""

    def __init__(self, connection: Connection, link: Link) -> None:
        self.connection = connection
        self.link = link
        self.error: ClientError | None = None
        self.on_room_callback: Callable[[], None] | None = None
        self.on_range: OnRange | None = None  # of one who frames by himself, and counts so too
        self._unsettled: dict[int, OnSettled] = {}  # by delivery id, in order of sending
        self._waiting: deque[asyncio.Future[None]] = deque()  # for room
        self._framings: dict[int, TransferFraming] = {}  # by message format
        self._tag = 0

    @property
    def max_message_size(self) -> int | None:
        """What the service said that it takes; None when it said nothing."""
        attach = self.link.attach
        return None if attach is None or not attach.max_message_size else attach.max_message_size

    @property
    def attach_properties(self) -> dict[str, object]:
        """What the service told of this link when it was attached."""
        attach = self.link.attach
        return {} if attach is None or attach.properties is None else dict(attach.properties)

    async def has_credit(self) -> None:
        while self.link.credit < 1:
            await self._room()

    async def deliver(self, payload: bytes, *, message_format: int) -> Error | None:
        """Send one delivery and wait for its outcome: None when it is stored, else why it is not.
        Raises ClientError when the link is lost before. The caller sets the deadline."""
        outcome: asyncio.Future[Error | None] = asyncio.get_running_loop().create_future()

        def settled(error: Error | None) -> None:
            if not outcome.done():
                outcome.set_result(error)

        while not self._deliver(payload, message_format, settled):
            await self._room()
        self.connection.schedule_flush()
        error = await outcome
        if self.error is not None and error is not None:
            raise self.error  # it was not refused: the link went away under it
        return error

    async def _room(self) -> None:
        """Until credit, window or socket may have room again."""
        if self.error is not None:
            raise self.error
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        await waiting

    def _deliver(self, payload: bytes, message_format: int, on_settled: OnSettled) -> bool:
        """Like `send`, with frames that cost next to nothing to make."""
        if self.error is not None:
            raise self.error
        link = self.link
        if self.connection.write_paused or not link.is_attached or link.credit < 1:
            return False
        framing = self._framings.get(message_format)
        if framing is None:
            session = link.session
            framing = self._framings[message_format] = TransferFraming(
                channel=session.channel,
                handle=link.handle,
                message_format=message_format,
                frame_bytes_max=session.frame_bytes_max,
            )
        frames = framing.pieces(len(payload))
        if link.sendable_frames < frames:
            return False
        delivery_id = link.session.next_delivery_id
        data = framing.delivery(payload, delivery_id)
        link.send_transfers(data, deliveries=1, frames=frames)
        self._unsettled[delivery_id] = on_settled
        return True

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
        self.on_room()  # those who wait find the error


class Receiver:
    """Hands runs of transfers to a callback. With a `credit` it keeps that up; with None whoever
    takes the events grants it."""

    def __init__(
        self,
        connection: Connection,
        link: Link,
        credit: int | None,
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
        if self._credit is not None:
            self.link.replenish(self._credit)

    def on_room(self) -> None:
        pass

    def on_detached(self, error: ClientError) -> None:
        self.error = error
        if not self.ended.done():
            self.ended.set_result(None)
