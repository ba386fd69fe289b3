"""Nodes that answer requests: `$cbs` and `$management` (protocol.md 2, 3)."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING, Any

from penstock.amqp.errors import AmqpDecodeError
from penstock.amqp.events import TransfersReceived
from penstock.amqp.message import Body, Message, Properties, decode_message, encode_message
from penstock.client.errors import ClientError, ClientTimedOut, refusal
from penstock.client.links import Receiver, Sender

if TYPE_CHECKING:
    from penstock.client.connection import Connection

_CREDIT = 100


class RequestResponseClient:
    """A pair of links to one node; answers find their requests by correlation-id. Several requests
    may be under way."""

    def __init__(self, connection: Connection, address: str) -> None:
        self._connection = connection
        self._address = address
        self._reply_to = f"{address.strip('$')}-reply-{uuid.uuid4().hex}"
        self._waiting: dict[str, asyncio.Future[Message]] = {}
        self._links: tuple[Sender, Receiver] | None = None

    async def attach(self) -> None:
        """The receiver first, then the sender, as the official Python SDK does."""
        receiver = await self._connection.receiver(
            self._address, credit=_CREDIT, on_transfers=self._on_answers, target=self._reply_to
        )
        self._links = (await self._connection.sender(self._address), receiver)

    @property
    def is_usable(self) -> bool:
        return self._links is not None and all(link.error is None for link in self._links)

    async def request(
        self, properties: dict[str, object], body: Body | None, *, timeout_s: float
    ) -> Message:
        """The answer, when its status says success; else the ClientError that it means."""
        assert self._links is not None
        sender, receiver = self._links
        number = uuid.uuid4()
        request = Message(
            properties=Properties(message_id=number, reply_to=self._reply_to),
            application_properties=properties,
            body=body,
        )
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._waiting[str(number)] = answer
        what = f"{properties['operation']} on {self._address}"
        try:
            async with asyncio.timeout(timeout_s):
                await sender.has_credit()
                sender.send(encode_message(request), message_format=0)
                self._connection.flush()
                awaited: list[asyncio.Future[Any]] = [answer, receiver.ended]
                await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            raise ClientTimedOut(f"No answer to {what} came within {timeout_s} s.") from None
        finally:
            del self._waiting[str(number)]
        if not answer.done():
            raise receiver.error or ClientError(f"The service ended the link during {what}.")
        return _check_status(answer.result(), what)

    def _on_answers(self, event: TransfersReceived) -> None:
        for i in range(0, len(event.bounds), 2):
            try:
                answer = decode_message(event.data[event.bounds[i] : event.bounds[i + 1]])
            except AmqpDecodeError:
                continue  # whoever waits for it hears of the deadline
            number = answer.properties.correlation_id if answer.properties is not None else None
            waiting = self._waiting.get(str(number))
            if waiting is not None and not waiting.done():
                waiting.set_result(answer)


def _check_status(answer: Message, what: str) -> Message:
    told = answer.application_properties or {}
    status = told.get("status-code", told.get("statusCode"))
    if isinstance(status, int) and 200 <= status < 300:
        return answer
    text = told.get("status-description", told.get("statusDescription", ""))
    condition = told.get("error-condition", told.get("errorCondition"))
    code = status if isinstance(status, int) else 500
    raise refusal(
        code,
        f"{what} was refused with status {status}: {text}",
        None if condition is None else str(condition),
    )
