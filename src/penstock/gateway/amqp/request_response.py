"""Request and response over two links: `$cbs` and `$management` (protocol.md 2.1, 3.1)."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from penstock.amqp.decoder import SMALL
from penstock.amqp.errors import AmqpError
from penstock.amqp.events import TransferOversized, TransfersReceived
from penstock.amqp.link import Link
from penstock.amqp.message import Message, Properties, ValueBody, decode_message, encode_message
from penstock.amqp.performatives import Accepted
from penstock.amqp.serial import serial_add
from penstock.amqp.types import Int, Symbol
from penstock.gateway.amqp.addresses import NodeKind
from penstock.gateway.amqp.links import LinkHandler
from penstock.model import limits, names
from penstock.model.errors import PenstockError, QuotaExceeded

if TYPE_CHECKING:
    from penstock.gateway.amqp.connection import AmqpConnection

_REPLIES_WAITING_MAX = 100  # on one link
_REPLY_BYTES_MAX = 1 * limits.MB  # on one connection: replies echo ids of the peer's choosing
_ACCEPTED = Accepted()


class NodeResponse:
    """A response: status, its text, and an error condition or a body."""

    def __init__(
        self,
        status: int,
        description: str,
        *,
        condition: str | None = None,
        properties: dict[str, object] | None = None,
        body: dict[str, object] | None = None,
        delay_ms: int = 0,
    ) -> None:
        self.status = status
        self.description = description
        self.condition = condition
        self.properties = properties or {}
        self.body = body
        self.delay_ms = delay_ms  # how long it is kept back

    @staticmethod
    def from_error(error: PenstockError, description: str, *, delay_ms: int = 0) -> NodeResponse:
        return NodeResponse(
            error.http_status, description, condition=error.condition, delay_ms=delay_ms
        )


class RequestLink(LinkHandler):
    """The client's sender to a node; subclasses answer one request."""

    kind: NodeKind

    def start(self) -> None:
        self.link.grant(limits.NODE_CREDIT)  # E10

    def on_transfers(self, event: TransfersReceived) -> None:
        # Accepted first, whatever the request says: a rejected put-token hangs PY (E13).
        if not event.settled:
            last = serial_add(event.first_delivery_id, event.count - 1)
            self.link.settle(event.first_delivery_id, last, _ACCEPTED)
        for i in range(0, len(event.bounds), 2):
            if self.connection.is_ending:  # over one of them; a read may bring thousands
                return
            self._request(event.data[event.bounds[i] : event.bounds[i + 1]])
        self.link.replenish(limits.NODE_CREDIT)

    def on_oversized(self, event: TransferOversized) -> None:
        if not event.settled:
            self.link.settle(event.delivery_id, event.delivery_id, _ACCEPTED)
        self.link.replenish(limits.NODE_CREDIT)

    def _request(self, data: bytes) -> None:
        try:
            request = decode_message(data, limits=SMALL)
        except AmqpError as error:
            self._reply(None, NodeResponse(400, str(error), condition=error.condition))
            return
        self._reply(request, self.answer(request))

    def answer(self, request: Message) -> NodeResponse:
        raise NotImplementedError

    def _reply(self, request: Message | None, answer: NodeResponse) -> None:
        properties = request.properties if request is not None else None
        reply_to = properties.reply_to if properties is not None else None
        link = self._reply_link(reply_to)
        if link is not None:
            link.reply(encode_message(_response(request, answer)), delay_ms=answer.delay_ms)

    def _reply_link(self, reply_to: object) -> ReplyLink | None:
        """The receiver of the same session and node; reply-to chooses (protocol.md 2.1)."""
        candidates = [
            app
            for link, app in self.connection.apps.items()
            if isinstance(app, ReplyLink)
            and app.kind is self.kind
            and link.session is self.link.session
        ]
        for wanted in (_target_address, _link_name):
            for app in candidates:
                if reply_to is not None and wanted(app.link) == reply_to:
                    return app
        return candidates[-1] if candidates else None


class ReplyLink(LinkHandler):
    """The client's receiver of responses. They wait here for credit, up to a bound."""

    def __init__(self, connection: AmqpConnection, link: Link, kind: NodeKind) -> None:
        super().__init__(connection, link)
        self.kind = kind
        self._waiting: deque[bytes] = deque()
        self._delayed_bytes = 0
        self._is_closed = False

    def reply(self, message: bytes, *, delay_ms: int = 0) -> None:
        connection = self.connection
        if (
            len(self._waiting) >= _REPLIES_WAITING_MAX
            or connection.reply_bytes + len(message) > _REPLY_BYTES_MAX
        ):
            connection.fail(
                QuotaExceeded(
                    f"{len(self._waiting)} replies wait on link "
                    f"'{names.quote_text(self.link.name)}': "
                    "grant credit and read before asking for more."
                )
            )
            return
        connection.reply_bytes += len(message)
        if delay_ms:
            self._delayed_bytes += len(message)
            connection.delayed_answers.later(delay_ms, partial(self._was_delayed, message))
        else:
            self._queue(message)

    def _was_delayed(self, message: bytes) -> None:
        if not self._is_closed:
            self._delayed_bytes -= len(message)
            self._queue(message)

    def _queue(self, message: bytes) -> None:
        self._waiting.append(message)
        self.connection.outbox.add(self)

    def send_pending(self, bytes_max: int) -> int:
        if not self.link.is_attached or self.connection.outbox.must_wait(self):
            return 0
        sent = 0
        while self._waiting and sent < bytes_max:
            message = self._waiting[0]
            if self.link.send(message, settled=True) is None:
                if self.link.credit > 0:
                    self.connection.outbox.wait_for_window(self)
                return sent
            self._forget(self._waiting.popleft())
            sent += len(message)
        if self._waiting:
            self.connection.outbox.add(self)
        elif self.link.drain:
            self.link.complete_drain()
        return sent

    def close(self) -> None:
        self._is_closed = True
        self.connection.reply_bytes -= self._delayed_bytes
        while self._waiting:
            self._forget(self._waiting.pop())

    def _forget(self, message: bytes) -> None:
        self.connection.reply_bytes -= len(message)


def _response(request: Message | None, answer: NodeResponse) -> Message:
    asked = request.properties if request is not None else None
    properties = Properties(
        # The same AMQP type as the request's message-id (E16).
        correlation_id=asked.message_id if asked is not None else None,
        to=asked.reply_to if asked is not None else None,
    )
    application = dict(answer.properties)
    application["status-code"] = Int(answer.status)  # E17
    application["status-description"] = answer.description
    if answer.condition is not None:
        application["error-condition"] = Symbol(answer.condition)
    return Message(
        properties=properties,
        application_properties=application,
        body=ValueBody(answer.body),
    )


def _target_address(link: Link) -> object:
    target = link.attach.target if link.attach is not None else None
    return getattr(target, "address", None)


def _link_name(link: Link) -> object:
    return link.name
