"""Publishing over HTTPS (protocol.md 7.1): a request becomes a publication, and is answered with
201 once its events are on disk. From the kernels on, an event takes the same path as over AMQP.
"""

from __future__ import annotations

import asyncio
from typing import Any

from penstock.broker import error_messages
from penstock.broker.hub import HubRuntime
from penstock.catalog.api import Catalog
from penstock.gateway.backpressure import PendingBytes
from penstock.gateway.http.endpoint import DataPlaneEndpoint, check_method
from penstock.gateway.http.message_encoder import (
    BatchEncoder,
    batch_too_large,
    data_section_header,
    is_batch,
    message_head,
    parse_broker_properties,
    user_headers,
)
from penstock.gateway.http.request import HttpRequest, RequestDeadline
from penstock.gateway.http.responses import HttpResponse
from penstock.gateway.http.revoked_publishers import METHODS, RevokedPublisherEndpoint
from penstock.gateway.http.routes import HttpOperation, RequestTarget, parse_target
from penstock.kernels import (
    KernelError,
    Publication,
    RefusedEvent,
    split_batch,
    split_singles,
)
from penstock.model import limits
from penstock.model.entities import Right
from penstock.model.errors import OperationTimedOut, PenstockError, ServerBusy
from penstock.model.events import EventBatch, Receipt

_MEMORY_BUSY = (
    "The server is busy: too much that was published waits for the disk. Please wait 4 seconds "
    "and try again."
)


class PublishEndpoint(DataPlaneEndpoint):
    """Publishes events, and lists, revokes and resumes publishers."""

    def __init__(self, *, catalog: Catalog, **options: Any) -> None:
        super().__init__(catalog=catalog, **options)
        self._revoked = RevokedPublisherEndpoint(catalog)
        self._pending = PendingBytes(limits.HTTP_HELD_BYTES_MAX)

    async def _answer(self, request: HttpRequest) -> HttpResponse:
        target = parse_target(request.raw_path)
        request.check_headers()
        if target.operation is HttpOperation.PUBLISH:
            check_method(request.method, ("POST",))
            return await self._publish(request, target)
        check_method(request.method, METHODS[target.operation])
        grant = self._authorize(request, target, Right.MANAGE)
        hub = self._broker.hub(grant.namespace, target.hub)
        return self._revoked.act(request.method, target, hub, self._clock.now_ms())

    async def _publish(self, request: HttpRequest, target: RequestTarget) -> HttpResponse:
        grant = self._authorize(request, target, Right.SEND)
        hub = self._broker.hub(grant.namespace, target.hub)
        try:
            await self._publish_to(hub, request, target)
        except _DurabilityTimedOut:
            raise  # counted once its outcome is known
        except PenstockError as error:
            if error.http_status < 500:  # others are counted where they happen
                hub.counters.user_errors += 1
            raise
        return HttpResponse(201)

    async def _publish_to(
        self, hub: HubRuntime, request: HttpRequest, target: RequestTarget
    ) -> None:
        partition = None if target.partition is None else hub.partition_index(target.partition)
        if target.publisher is not None:
            hub.check_publisher(target.publisher)
        batch = is_batch(request.headers.get(b"content-type", b""))
        bytes_max = hub.namespace.publication_bytes_max
        body_max = bytes_max * limits.HTTP_BATCH_FACTOR if batch else bytes_max
        size = request.check_length(body_max)
        deadline_s = request.deadline_s() or self._deadline_s
        try:
            hold = _PendingBody(self._pending, size)
        except ServerBusy:
            hub.counters.throttled_requests += 1
            raise
        deadline = RequestDeadline(deadline_s)
        try:
            body = await request.body(body_max)
            if batch:
                message = await self._batch(request, body, bytes_max)
            else:
                message = self._single(request, body, bytes_max)
            publication = _publication(message, target.publisher, batch=batch)
            # All clients of one address share what one sender gets of the units.
            sender = target.publisher or request.address
            outcome = await self._append(
                publication, len(message), hub, partition, target.publisher, sender, hold
            )
        except asyncio.CancelledError:
            if not deadline.has_passed:
                raise  # the service stops
            raise _timed_out_error(deadline_s, was_sent=hold.is_handed_over) from None
        finally:
            deadline.end()
            hold.end()
        if isinstance(outcome, PenstockError):
            raise outcome

    def _single(self, request: HttpRequest, body: bytes, bytes_max: int) -> bytes:
        headers = request.headers
        head = message_head(
            headers.get(b"content-type"),
            headers.get(b"content-encoding"),
            headers.get(b"brokerproperties"),
            user_headers(request.header_pairs()),
        )
        message = b"".join((head, data_section_header(len(body)), body))
        if len(message) > bytes_max:
            raise batch_too_large(len(message), bytes_max)
        return message

    async def _batch(self, request: HttpRequest, body: bytes, bytes_max: int) -> bytes:
        header = request.headers.get(b"brokerproperties")
        key = None if header is None else parse_broker_properties(header).partition_key
        encoder = BatchEncoder(body, key=key, bytes_max=bytes_max)
        for _ in encoder.steps():
            await asyncio.sleep(0)  # other tasks run in between
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
        """A future of the outcome: the events are as durable as the log promises, or refused."""
        stored: asyncio.Future[Receipt | PenstockError] = asyncio.get_running_loop().create_future()

        def done(outcome: Receipt | PenstockError) -> None:
            hold.release()
            if not stored.done():  # the request may have timed out
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


class _DurabilityTimedOut(OperationTimedOut):
    """The client is answered now, but the log may still store the events."""


class _PendingBody:
    """The bytes of a body, counted from before they are read until they are on disk or refused."""

    __slots__ = ("_pending", "_size", "is_handed_over")

    def __init__(self, pending: PendingBytes, size: int) -> None:
        """Raises ServerBusy if too many bytes wait."""
        if pending.total + size > pending.limit:
            raise ServerBusy(_MEMORY_BUSY)
        pending.add(size)
        self._pending = pending
        self._size = size
        self.is_handed_over = False  # the log's callback releases the bytes

    def release(self) -> None:
        self._pending.remove(self._size)
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


def _timed_out_error(deadline_s: float, *, was_sent: bool) -> OperationTimedOut:
    if was_sent:
        return _DurabilityTimedOut(
            f"The events were not on disk within {deadline_s:g} seconds; they may be later."
        )
    return OperationTimedOut(
        f"The request's body was not complete within {deadline_s:g} seconds; nothing was stored."
    )
