"""Links on which a client reads: events are pushed as they are committed (protocol.md 5)."""

from __future__ import annotations

from asyncio import Future
from functools import partial
from typing import TYPE_CHECKING

from penstock.amqp.codec import encode
from penstock.amqp.link import Link
from penstock.amqp.types import Described, Long, Symbol, Timestamp, Ulong
from penstock.auth import missing_claim_text
from penstock.broker import Reader, ReadState
from penstock.gateway.amqp.addresses import Address
from penstock.gateway.amqp.context import log
from penstock.gateway.amqp.links import LinkApp
from penstock.kernels import KernelError, frame_events
from penstock.model import limits
from penstock.model.entities import Right
from penstock.model.errors import InternalError, LogCorrupt, PenstockError, Unauthorized

if TYPE_CHECKING:
    from penstock.broker.reader import Fetched
    from penstock.gateway.amqp.driver import AmqpConnection

_TURN_BYTES = 256 * limits.KB  # then other connections get their turn
_DELIVERY_ANNOTATIONS = 0x71
_NEVER_MS = -62_135_596_800_000  # year 1, as the service says "never" (protocol.md 3.2)


class ReaderLink(LinkApp):
    """`reader` decides what comes next; this link frames it within credit and window."""

    def __init__(
        self,
        connection: AmqpConnection,
        link: Link,
        *,
        address: Address,
        runtime_metrics: bool,
        tracker: str,
        expires_ms: int | None,
    ) -> None:
        super().__init__(connection, link)
        self.expires_ms = expires_ms
        self.reader: Reader | None = None  # set as soon as the broker admitted it
        self._address = address
        self._runtime_metrics = runtime_metrics
        self._tracker = tracker
        self._fetching = False
        self._turn_scheduled = False

    def on_flow(self) -> None:
        self.pump()

    def ready(self) -> None:
        """The broker committed something that this reader waits for."""
        self.connection.turn(self.pump)

    def pump(self) -> None:
        """Send what credit, window and socket take now; at most one turn's worth."""
        reader, link = self.reader, self.link
        if reader is None or self._fetching or not link.is_attached:
            return
        budget = _TURN_BYTES
        while not self.connection.write_paused:
            state = reader.state()
            if state is ReadState.NEEDS_DISK:
                if link.credit > 0:
                    self._fetch(reader)
                return
            if state is ReadState.AT_END:
                if link.drain:
                    link.drained()
                return
            if link.credit < 1 or link.sendable_frames < 1:
                return
            if budget <= 0:
                self._schedule_turn()
                return
            sent = self._send(reader, budget)
            if sent == 0:
                return
            budget -= sent

    def _send(self, reader: Reader, bytes_max: int) -> int:
        """Frame a run of one stored batch; the bytes queued, 0 when the window is too small."""
        link, session, batch = self.link, self.link.session, reader.batch
        try:
            framed = frame_events(
                batch.sections,
                reader.position,
                events_max=min(link.credit, reader.remaining),
                frames_max=link.sendable_frames,
                bytes_max=bytes_max,
                channel=session.channel,
                handle=link.handle,
                delivery_id=session.next_delivery_id,
                frame_bytes_max=session.frame_bytes_max,
                sequence=reader.sequence,
                base_offset=batch.base_offset,
                enqueued_ms=batch.enqueued_ms,
                runtime=self._runtime(reader),
            )
        except KernelError as error:
            log.error("stored events cannot be delivered: %s: %s", self._tracker, error)
            self._end_soon(LogCorrupt("The stored events cannot be read; the operator was told."))
            return 0
        if framed.events == 0:
            return 0
        link.sent_frames(framed.data, deliveries=framed.events, frames=framed.frames)
        reader.advance(framed.events, framed.position)
        self.connection.events_out += framed.events
        return len(framed.data)

    def _runtime(self, reader: Reader) -> bytes:
        """The four keys that clients ask for with enable-receiver-runtime-metric (5.4)."""
        if not self._runtime_metrics:
            return b""
        status = reader.runtime()
        written = status.last_sequence >= 0
        values = {
            Symbol("last_enqueued_sequence_number"): Long(status.last_sequence),
            Symbol("last_enqueued_offset"): str(status.last_offset),
            Symbol("last_enqueued_time_utc"): Timestamp(
                status.last_enqueued_ms if written else _NEVER_MS
            ),
            Symbol("runtime_info_retrieval_time_utc"): Timestamp(
                self.connection.context.clock.now_ms()
            ),
        }
        return encode(Described(Ulong(_DELIVERY_ANNOTATIONS), values))

    def _fetch(self, reader: Reader) -> None:
        """Disk reads happen off the loop; one at a time per reader."""
        self._fetching = True
        context = self.connection.context
        future = context.loop.run_in_executor(context.reads, reader.fetch)
        future.add_done_callback(self._fetched)

    def _fetched(self, future: Future[Fetched]) -> None:
        self._fetching = False
        reader = self.reader
        if reader is None or future.cancelled():
            return
        error = future.exception()
        if error is None:
            reader.fetched(future.result())
            self.connection.turn(self.pump)
        elif isinstance(error, PenstockError):
            self.end(error)
        else:
            log.error("reading failed: %s", self._tracker, exc_info=error)
            self.end(InternalError("The service could not read the partition."))

    def _schedule_turn(self) -> None:
        if not self._turn_scheduled:
            self._turn_scheduled = True
            self.connection.context.loop.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._turn_scheduled = False
        self.connection.turn(self.pump)

    def _end_soon(self, error: PenstockError) -> None:
        self.connection.context.loop.call_soon(self.end, error)

    def renew(self, now_ms: int) -> PenstockError | None:
        grant = self.connection.grants.find(self._address.path, Right.LISTEN, now_ms=now_ms)
        if grant is None:
            return Unauthorized(missing_claim_text(Right.LISTEN, "/".join(self._address.path)))
        self.expires_ms = grant.expires_ms
        return None

    def end(self, error: PenstockError) -> None:
        """The broker ended this link: stolen, hub deleted or changed, position out of range."""
        if self.reader is not None:
            detach = partial(self.connection.detach, self.link, error, self._tracker)
            self.connection.turn(detach)

    def close(self) -> None:
        if self.reader is not None:
            self.reader.close()
            self.reader = None
