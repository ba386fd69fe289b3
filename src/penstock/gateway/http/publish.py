"""Publishing over HTTPS (protocol.md 7.1): requests in, publications to the broker, 201 once they
are on disk.

One raw ASGI callable: routing tables and request objects would cost more than all the rest of a
small publication. From the kernels on, an event walks as one that came by AMQP does.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence

from starlette.types import Receive, Scope, Send

from penstock.auth import Authority
from penstock.broker import Broker, HubRuntime, error_messages
from penstock.catalog.api import Catalog
from penstock.gateway.http import responses
from penstock.gateway.http.authorization import TokenCache
from penstock.gateway.http.message_encoder import (
    BatchEncoder,
    batch_too_large,
    data_section_header,
    is_batch,
)
from penstock.gateway.http.properties import message_head, parse_broker_properties, user_headers
from penstock.gateway.http.request import (
    ClientDisconnected,
    HttpRequest,
    RequestDeadline,
    body_too_large,
)
from penstock.gateway.http.responses import HttpResponse, MethodNotAllowed
from penstock.gateway.http.revoked_publishers import METHODS, RevokedPublisherEndpoint
from penstock.gateway.http.routes import HttpOperation, RequestTarget, parse_target
from penstock.gateway.refusal_log import RefusalLog
from penstock.kernels import (
    KernelError,
    Publication,
    RefusedEvent,
    split_batch,
    split_singles,
)
from penstock.model import limits, names
from penstock.model.clock import Clock
from penstock.model.entities import Right
from penstock.model.errors import (
    InternalError,
    OperationTimedOut,
    PenstockError,
    ServerBusy,
)
from penstock.model.events import EventBatch, Receipt

log = logging.getLogger("penstock.http")

_INTERNAL = (
    "The service was unable to process the request; please retry the operation. "
    "The operator finds the reason in the log."
)
_MEMORY_BUSY = (
    "The server is busy: too much that was published waits for the disk. Please wait 4 seconds "
    "and try again."
)


class PublishEndpoint:
    """An ASGI application for the paths of `targets`. `authorities` gives the namespaces as they
    are now, `new_id` random hex text."""

    def __init__(
        self,
        *,
        broker: Broker,
        catalog: Catalog,
        clock: Clock,
        authorities: Callable[[], Sequence[Authority]],
        new_id: Callable[[], str],
        refusal_log: RefusalLog | None = None,
        deadline_s: float = limits.HTTP_REQUEST_DEADLINE_S,
    ) -> None:
        self._broker = broker
        self._clock = clock
        self._new_id = new_id
        self._refusal_log = refusal_log or RefusalLog(clock.monotonic_ms)
        self._deadline_s = deadline_s
        self._tokens = TokenCache(authorities, clock)
        self._revoked = RevokedPublisherEndpoint(catalog)
        self._unsubscribe = catalog.subscribe(self._tokens.on_change)
        self._held_bytes = 0
        self.answered: Counter[int] = Counter()  # requests, by the status of their answer
        self._date = (0, b"")
        self._complained_s = -1
        self._unsaid = 0  # complaints that are counted but not logged

    def close(self) -> None:
        """Stop following the catalog; running requests are the server's to end."""
        self._unsubscribe()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = HttpRequest(scope, receive, send)
        try:
            answer = await self._answer(exchange)
        except ClientDisconnected:
            return
        except PenstockError as error:
            answer = self._refusal(exchange, error)
        except Exception:  # noqa: BLE001 - one request's fault, whatever it is
            answer = self._refusal(exchange, InternalError(_INTERNAL), unexpected=True)
        self.answered[answer.status] += 1
        await exchange.answer(answer)

    async def _answer(self, exchange: HttpRequest) -> HttpResponse:
        """The order matters: form, then the token, then existence, and only then the body."""
        target = parse_target(exchange.raw_path)
        exchange.check_headers()
        if target.operation is HttpOperation.PUBLISH:
            _check_method(exchange.method, ("POST",))
            return await self._publish(exchange, target)
        _check_method(exchange.method, METHODS[target.operation])
        grant = self._tokens.grant(exchange.headers, target, Right.MANAGE)
        exchange.authenticate()
        hub = self._broker.hub(grant.namespace, target.hub)
        now_ms = self._clock.now_ms()
        return self._revoked.act(exchange.method, target, hub, now_ms, self._http_date(now_ms))

    async def _publish(self, exchange: HttpRequest, target: RequestTarget) -> HttpResponse:
        grant = self._tokens.grant(exchange.headers, target, Right.SEND)
        exchange.authenticate()
        hub = self._broker.hub(grant.namespace, target.hub)
        try:
            await self._publish_to(hub, exchange, target)
        except _DurabilityTimedOut:
            raise  # counted when it is known what became of it
        except PenstockError as error:
            if error.http_status < 500:  # others are counted where they happen
                hub.counters.user_errors += 1
            raise
        return responses.empty_response(201, self._http_date(self._clock.now_ms()))

    async def _publish_to(
        self, hub: HubRuntime, exchange: HttpRequest, target: RequestTarget
    ) -> None:
        partition = None if target.partition is None else hub.partition_index(target.partition)
        if target.publisher is not None:
            hub.check_publisher(target.publisher)
        batch = is_batch(exchange.headers.get(b"content-type", b""))
        bytes_max = hub.namespace.publication_bytes_max
        body_max = bytes_max * limits.HTTP_BATCH_FACTOR if batch else bytes_max
        declared = exchange.declared_length()
        if declared is not None and declared > body_max:
            raise body_too_large(declared, body_max)
        deadline_s = exchange.deadline_s() or self._deadline_s
        try:
            hold = _PendingBody(self, body_max if declared is None else declared)
        except ServerBusy:
            hub.counters.throttled_requests += 1
            raise
        deadline = RequestDeadline(deadline_s)
        try:
            body = await exchange.body(body_max)
            if batch:
                message = await self._batch(exchange, body, bytes_max)
            else:
                message = self._single(exchange, body, bytes_max)
            publication = _publication(message, target.publisher, batch=batch)
            # Who comes from one address is one sender where units are short.
            sender = target.publisher or exchange.address
            outcome = await self._append(
                publication, len(message), hub, partition, target.publisher, sender, hold
            )
        except asyncio.CancelledError:
            if not deadline.has_passed:
                raise  # the service stops
            raise _timed_out(deadline_s, was_sent=hold.is_handed_over) from None
        finally:
            deadline.end()
            hold.end()
        if isinstance(outcome, PenstockError):
            raise outcome

    def _single(self, exchange: HttpRequest, body: bytes, bytes_max: int) -> bytes:
        headers = exchange.headers
        head = message_head(
            headers.get(b"content-type"),
            headers.get(b"content-encoding"),
            headers.get(b"brokerproperties"),
            user_headers(exchange.header_pairs()),
        )
        message = b"".join((head, data_section_header(len(body)), body))
        if len(message) > bytes_max:
            raise batch_too_large(len(message), bytes_max)
        return message

    async def _batch(self, exchange: HttpRequest, body: bytes, bytes_max: int) -> bytes:
        given = exchange.headers.get(b"brokerproperties")
        key = None if given is None else parse_broker_properties(given).partition_key
        encoder = BatchEncoder(body, key=key, bytes_max=bytes_max)
        for _ in encoder.steps():
            await asyncio.sleep(0)  # others have their turn
        return encoder.message()

    def _append(
        self,
        publication: Publication,
        size: int,
        hub: HubRuntime,
        partition: int | None,
        publisher: str | None,
        sender: str,
        hold: _PendingBody,
    ) -> asyncio.Future[Receipt | PenstockError]:
        """Done when the events are as durable as the log promises, or will not be."""
        stored: asyncio.Future[Receipt | PenstockError] = asyncio.get_running_loop().create_future()

        def done(outcome: Receipt | PenstockError) -> None:
            hold.release()
            if not stored.done():  # else nobody waits any more
                stored.set_result(outcome)

        hub.publish(
            EventBatch(publication.sections, publication.count, publication.partition_key),
            size_bytes=size,
            partition=partition,
            done=done,
            publisher=publisher,
            sender=sender,
        )
        hold.is_handed_over = True
        return stored

    def hold(self, size: int) -> None:
        if self._held_bytes + size > limits.HTTP_HELD_BYTES_MAX:
            raise ServerBusy(_MEMORY_BUSY)
        self._held_bytes += size

    def release(self, size: int) -> None:
        self._held_bytes -= size
        assert self._held_bytes >= 0

    def _refusal(
        self, exchange: HttpRequest, error: PenstockError, *, unexpected: bool = False
    ) -> HttpResponse:
        now_ms = self._clock.now_ms()
        tracking_id = self._new_id()
        tracker = _tracker(exchange)
        if error.http_status == 500:
            self._complain(exchange, error, tracking_id, now_ms // 1000, unexpected=unexpected)
        exchange.log_refusal(self._refusal_log, error, tracking_id)
        return responses.error_response(
            error,
            tracking_id=tracking_id,
            tracker=tracker,
            now_ms=now_ms,
            date=self._http_date(now_ms),
        )

    def _complain(
        self,
        exchange: HttpRequest,
        error: PenstockError,
        tracking_id: str,
        second: int,
        *,
        unexpected: bool,
    ) -> None:
        """One line a second: a disk that fails would fill what is left of it with them."""
        if second == self._complained_s:
            self._unsaid += 1
            return
        log.error(
            "request failed id=%s peer=%s resource=%s left_out=%d text=%s",
            tracking_id,
            exchange.peer,
            _tracker(exchange),
            self._unsaid,
            error,
            exc_info=unexpected,
        )
        self._complained_s, self._unsaid = second, 0

    def _http_date(self, now_ms: int) -> bytes:
        second = now_ms // 1000
        if self._date[0] != second:
            self._date = (second, responses.http_date(now_ms))
        return self._date[1]


class _DurabilityTimedOut(OperationTimedOut):
    """Nobody waits any longer, but the log may still take it."""


class _PendingBody:
    """A body's bytes, counted from before they are read until they are on disk or given up."""

    __slots__ = ("_owner", "_size", "is_handed_over")

    def __init__(self, owner: PublishEndpoint, size: int) -> None:
        owner.hold(size)
        self._owner = owner
        self._size = size
        self.is_handed_over = False  # the log has them: its `done` releases them

    def release(self) -> None:
        self._owner.release(self._size)
        self._size = 0

    def end(self) -> None:
        if not self.is_handed_over:
            self.release()


def _publication(message: bytes, publisher: str | None, *, batch: bool) -> Publication:
    try:
        if batch:
            return split_batch(message, 0, len(message), publisher=publisher)
        (single,) = split_singles(message, [0, len(message)], publisher=publisher)
        if isinstance(single, RefusedEvent):
            raise single.error
    except KernelError as error:
        raise error_messages.translate_kernel_error(error) from None
    return single


def _check_method(method: str, allowed: tuple[str, ...]) -> None:
    if method not in allowed:
        methods = ", ".join(allowed)
        raise MethodNotAllowed(
            f"The method {names.quote_text(method)} is not supported here: {methods} is.",
            methods.encode(),
        )


def _timed_out(deadline_s: float, *, was_sent: bool) -> OperationTimedOut:
    if was_sent:
        return _DurabilityTimedOut(
            f"The events were not on disk within {deadline_s:g} seconds; they may be later."
        )
    return OperationTimedOut(
        f"The request's body was not complete within {deadline_s:g} seconds; nothing was stored."
    )


def _tracker(exchange: HttpRequest) -> str:
    host = exchange.headers.get(b"host", b"").decode("latin-1")
    path = exchange.raw_path.decode("latin-1").removeprefix("/")
    return names.quote_text(f"{host}:{path}", most=200)
