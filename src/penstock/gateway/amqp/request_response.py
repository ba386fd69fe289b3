"""Request and response over two links: `$cbs` and `$management` (protocol.md 2.1, 3.1)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

import msgspec

from penstock.amqp.decoder import SMALL
from penstock.amqp.errors import AmqpError
from penstock.amqp.events import TransferOversized, TransfersReceived
from penstock.amqp.link import Link
from penstock.amqp.message import Message, Properties, ValueBody, decode_message, encode_message
from penstock.amqp.performatives import Accepted
from penstock.amqp.serial import serial_add
from penstock.amqp.types import Int, Symbol
from penstock.gateway.amqp.addresses import NodeKind
from penstock.gateway.amqp.links import LinkHandler, LinkHost
from penstock.model import limits, names
from penstock.model.errors import (
    AuthFailed,
    MessageTooLarge,
    PenstockError,
    QuotaExceeded,
    UnsupportedTokenType,
)

_REPLIES_WAITING_MAX = 100  # on one link; also requests that are not answered yet
_REPLY_BYTES_MAX = 1 * limits.MB  # on one connection: replies echo ids of the peer's choosing
_ACCEPTED = Accepted()


class NodeResponse(msgspec.Struct, frozen=True, kw_only=True):
    """Status and its text, and an error condition or a body."""

    status: int
    description: str
    condition: str | None = None
    properties: dict[str, object] = {}
    body: dict[str, object] | None = None
    delay_ms: int = 0  # before it is sent


Respond: TypeAlias = Callable[[NodeResponse], None]
"""Answers a request, at once or in a later turn; exactly once."""


class RequestLink(LinkHandler):
    """The client's sender to a node; subclasses answer requests."""

    kind: NodeKind

    def __init__(self, host: LinkHost, link: Link) -> None:
        super().__init__(host, link)
        self._unanswered = 0

    def answer(self, request: Message, respond: Respond) -> None:
        raise NotImplementedError

    def refuse(
        self, operation: str, error: PenstockError, path: Sequence[str], policy: str
    ) -> NodeResponse:
        """Log the refusal and return its response, which is delayed after a failed token. A token
        of an unsupported type is not a guess at a key: DefaultAzureCredential sends a JWT first."""
        is_guess = isinstance(error, AuthFailed) and not isinstance(error, UnsupportedTokenType)
        delay_ms = self.host.fail_token(policy) if is_guess else 0
        self.host.log_refusal(operation, error, path, policy)
        return NodeResponse(
            status=error.http_status,
            description=self.host.error_text(error),
            condition=error.condition,
            delay_ms=delay_ms,
        )

    def start(self) -> None:
        # The attach announced no limit, as Azure does. A request is decoded before the client is
        # authenticated, so its size is bounded.
        self.link.max_message_size = limits.NODE_MESSAGE_BYTES_MAX
        self.link.grant(limits.NODE_CREDIT)  # E10

    def on_transfers(self, event: TransfersReceived) -> None:
        # Accepted first, whatever the request contains: a rejected put-token hangs PY (E13).
        if not event.settled:
            last = serial_add(event.first_delivery_id, event.count - 1)
            self.link.settle(event.first_delivery_id, last, _ACCEPTED)
        for i in range(0, len(event.bounds), 2):
            if self.host.is_closed:  # by one of them; a read may bring thousands
                return
            self._request(event.data[event.bounds[i] : event.bounds[i + 1]])
        self.link.replenish(limits.NODE_CREDIT)

    def on_oversized(self, event: TransferOversized) -> None:
        """Such a request cannot be answered, because its message-id is unknown: the link ends (AMQP
        2.8.18)."""
        self.host.detach(
            self.link,
            MessageTooLarge(
                f"The received message (delivery-id:{event.delivery_id}, size:{event.size} bytes) "
                f"exceeds the limit ({limits.NODE_MESSAGE_BYTES_MAX} bytes) of this node."
            ),
        )

    def _request(self, data: bytes) -> None:
        if self._unanswered >= _REPLIES_WAITING_MAX:
            self.host.fail(QuotaExceeded(f"{self._unanswered} requests wait for their replies."))
            return
        self._unanswered += 1
        try:
            request = decode_message(data, limits=SMALL)
        except AmqpError as error:
            response = NodeResponse(status=400, description=str(error), condition=error.condition)
            self._respond(None, response)
        else:
            self.answer(request, partial(self._respond, request.properties))

    def _respond(self, request: Properties | None, response: NodeResponse) -> None:
        self._unanswered -= 1
        self.host.turns.run(partial(self._reply, request or Properties(), response))

    def _reply(self, request: Properties, response: NodeResponse) -> None:
        reply_link = self._find_reply_link(request.reply_to)
        if reply_link is not None:
            message = encode_message(_build_reply(request, response))
            reply_link.reply(message, delay_ms=response.delay_ms)

    def _find_reply_link(self, reply_to: object) -> ReplyLink | None:
        """The receiver of the same session and node; reply-to chooses one by target address or by
        link name (protocol.md 2.1)."""
        candidates = [
            handler
            for link, handler in self.host.handlers.items()
            if isinstance(handler, ReplyLink)
            and handler.kind is self.kind
            and link.session is self.link.session
        ]
        if reply_to is not None:
            for name_of in (_target_address, _link_name):
                for handler in candidates:
                    if name_of(handler.link) == reply_to:
                        return handler
        return candidates[-1] if candidates else None


class ReplyLink(LinkHandler):
    """The client's receiver of responses. They wait here for credit, up to a bound."""

    def __init__(self, host: LinkHost, link: Link, kind: NodeKind) -> None:
        super().__init__(host, link)
        self.kind = kind
        self._waiting: deque[bytes] = deque()
        self._delayed_bytes = 0
        self._is_closed = False

    def reply(self, message: bytes, *, delay_ms: int = 0) -> None:
        host = self.host
        if (
            len(self._waiting) >= _REPLIES_WAITING_MAX
            or host.reply_bytes + len(message) > _REPLY_BYTES_MAX
        ):
            host.fail(
                QuotaExceeded(
                    f"{len(self._waiting)} replies wait on link "
                    f"'{names.quote_text(self.link.name)}': "
                    "grant credit and read before asking for more."
                )
            )
            return
        host.reply_bytes += len(message)
        if delay_ms:
            self._delayed_bytes += len(message)
            host.answer_later(delay_ms, partial(self._queue_delayed, message))
        else:
            self._queue(message)

    def _queue_delayed(self, message: bytes) -> None:
        if not self._is_closed:
            self._delayed_bytes -= len(message)
            self._queue(message)

    def _queue(self, message: bytes) -> None:
        self._waiting.append(message)
        self.host.scheduler.add(self)

    def send_pending(self, bytes_max: int) -> int:
        if not self.link.is_attached or self.host.scheduler.must_wait(self):
            return 0
        sent = 0
        while self._waiting and sent < bytes_max:
            message = self._waiting[0]
            if self.link.send(message, settled=True) is None:
                if self.link.credit > 0:
                    self.host.scheduler.wait_for_window(self)
                return sent
            self._waiting.popleft()
            self.host.reply_bytes -= len(message)
            sent += len(message)
        if self._waiting:
            self.host.scheduler.add(self)
        elif self.link.drain:
            self.link.complete_drain()
        return sent

    def close(self) -> None:
        self._is_closed = True
        self.host.reply_bytes -= self._delayed_bytes + sum(map(len, self._waiting))
        self._waiting.clear()


def _build_reply(request: Properties, response: NodeResponse) -> Message:
    application = dict(response.properties)
    application["status-code"] = Int(response.status)  # E17
    application["status-description"] = response.description
    if response.condition is not None:
        application["error-condition"] = Symbol(response.condition)
    return Message(
        # The same AMQP type as the request's message-id (E16).
        properties=Properties(correlation_id=request.message_id, to=request.reply_to),
        application_properties=application,
        body=ValueBody(response.body),
    )


def _target_address(link: Link) -> object:
    target = link.attach.target if link.attach is not None else None
    return getattr(target, "address", None)


def _link_name(link: Link) -> object:
    return link.name
