"""Links on which a client reads: events are pushed as they are committed (protocol.md 5)."""

from __future__ import annotations

from asyncio import Future
from functools import partial
from typing import TYPE_CHECKING

from penstock.amqp.encoder import encode
from penstock.amqp.link import Link
from penstock.amqp.types import Described, Long, Symbol, Timestamp, Ulong
from penstock.auth import Grant
from penstock.broker import HubCounters, Reader, ReadState
from penstock.gateway.amqp.addresses import LinkAddress
from penstock.gateway.amqp.context import log
from penstock.gateway.amqp.links import EntityLinkHandler
from penstock.kernels import FramedDeliveries, KernelError, frame_run
from penstock.model.entities import Right
from penstock.model.errors import InternalError, LogCorrupt, PenstockError
from penstock.model.events import StoredBatch

if TYPE_CHECKING:
    from penstock.broker.reader import FetchResult
    from penstock.gateway.amqp.connection import AmqpConnection

_DELIVERY_ANNOTATIONS = 0x71
_NEVER_MS = -62_135_596_800_000  # year 1, as the service says "never" (protocol.md 3.2)
_ANY_FRAMES = 2**32


class ReadLink(EntityLinkHandler):
    """`reader` decides what comes next; this link frames it within credit and window."""

    def __init__(
        self,
        connection: AmqpConnection,
        link: Link,
        *,
        address: LinkAddress,
        grant: Grant,
        right: Right,
        tracker: str,
        runtime_metrics: bool,
    ) -> None:
        super().__init__(
            connection, link, address=address, grant=grant, right=right, tracker=tracker
        )
        self.reader: Reader | None = None  # set as soon as the broker admitted it
        self.counters = HubCounters()  # the hub's own from then on
        self._runtime_metrics = runtime_metrics
        self._fetching = False
        self._moved = False  # something was sent since the last rest()
        self._rest = b""  # frames of an event whose first ones are on their way
        self._rest_position = 0

    def ready(self) -> None:
        """The broker committed something that this reader waits for."""
        self.connection.run_turn(partial(self.connection.outbox.add, self))

    def send_pending(self, bytes_max: int) -> int:
        reader, link = self.reader, self.link
        if reader is None or self._fetching or not link.is_attached:
            return 0
        if self.connection.outbox.must_wait(self):
            return 0
        sent = 0
        while sent < bytes_max:
            if self._rest:
                more = self._send_rest()
            elif self._has_event(reader):
                more = self._send(reader, bytes_max - sent)
            else:
                return sent
            if more == 0:
                return sent
            self._moved = True
            sent += more
        self.connection.outbox.add(self)
        return sent

    def _has_event(self, reader: Reader) -> bool:
        """Whether there is one that may go out now; if not, what is to be done about it."""
        link = self.link
        state = reader.state()
        if state is ReadState.NEEDS_DISK:
            if link.credit > 0:
                self._fetch(reader)
            return False
        if state is ReadState.AT_END:
            if link.drain:
                link.complete_drain()
            return False
        if link.credit > 0 and link.sendable_frames < 1:
            self.connection.outbox.wait_for_window(self)
        return link.credit > 0 and link.sendable_frames > 0

    def _send(self, reader: Reader, bytes_max: int) -> int:
        """Frame a run of stored batches; the bytes queued."""
        link = self.link
        bytes_max = reader.allowance(bytes_max)
        if bytes_max == 0:
            return 0  # egress beyond the units is slowed (protocol.md 10.4): ready() goes on
        try:
            framed = self._frame_next_run(reader, bytes_max)
            if framed.events == 0:
                # One event takes more frames than the peer's window has: it goes in pieces.
                framed = self._frame_run(reader, [reader.batch], 1, _ANY_FRAMES, 1)
        except KernelError as error:
            log.error("stored events cannot be delivered: %s: %s", self.tracker, error)
            self.connection.detach(
                link, LogCorrupt("The stored events cannot be read; the operator was told.")
            )
            return 0
        self.connection.events_out += framed.events
        self.connection.slot.budget.pay(framed.events, len(framed.data))
        self.counters.outgoing_messages += framed.events
        self.counters.outgoing_bytes += len(framed.data)
        reader.advance(framed.events, framed.position)
        if framed.frames > link.sendable_frames:
            return self._begin_rest(framed)
        link.send_transfers(framed.data, deliveries=framed.events, frames=framed.frames)
        return len(framed.data)

    def _frame_next_run(self, reader: Reader, bytes_max: int) -> FramedDeliveries:
        link = self.link
        batches = reader.batches
        try:
            return self._frame_run(reader, batches, link.credit, link.sendable_frames, bytes_max)
        except KernelError:
            if len(batches) == 1:
                raise
            # A damaged batch keeps back none of those before it.
            return self._frame_run(
                reader, batches[:1], link.credit, link.sendable_frames, bytes_max
            )

    def _frame_run(
        self, reader: Reader, batches: list[StoredBatch], events: int, frames: int, bytes_max: int
    ) -> FramedDeliveries:
        link, session = self.link, self.link.session
        return frame_run(
            batches,
            reader.position,
            events_max=events,
            frames_max=frames,
            bytes_max=bytes_max,
            channel=session.channel,
            handle=link.handle,
            delivery_id=session.next_delivery_id,
            frame_bytes_max=session.frame_bytes_max,
            sequence=reader.sequence,
            runtime=self._runtime(reader),
        )

    # --- an event larger than the window --------------------------------------------------------

    def _begin_rest(self, framed: FramedDeliveries) -> int:
        """Until its last frame is out no other link of the session may send: clients that follow
        delivery-ids take frames of two deliveries in turns for an error (E9)."""
        assert framed.events == 1
        self._rest, self._rest_position = framed.data, 0
        self.connection.outbox.begin_delivery(self)
        return self._send_rest(deliveries=1)

    def _send_rest(self, *, deliveries: int = 0) -> int:
        start = position = self._rest_position
        frames = 0
        while frames < self.link.sendable_frames and position < len(self._rest):
            position += int.from_bytes(self._rest[position : position + 4], "big")
            frames += 1
        if frames == 0:
            self.connection.outbox.wait_for_window(self)
            return 0
        self.link.send_transfers(self._rest[start:position], deliveries=deliveries, frames=frames)
        self._rest_position = position
        if position == len(self._rest):
            self._rest = b""
            self.connection.outbox.end_delivery(self)
        return position - start

    # --- the disk -------------------------------------------------------------------------------

    def _fetch(self, reader: Reader) -> None:
        """Disk reads happen off the loop; one at a time per reader."""
        self._fetching = True
        context = self.connection.context
        future = context.loop.run_in_executor(context.reads, reader.fetch)
        future.add_done_callback(self._on_fetched)

    def _on_fetched(self, future: Future[FetchResult]) -> None:
        self._fetching = False
        if not future.cancelled():
            error = future.exception()  # asked for even if nobody waits: asyncio would complain
            if self.reader is not None:
                self.connection.run_turn(partial(self._take, future, error))

    def _take(self, future: Future[FetchResult], error: BaseException | None) -> None:
        assert self.reader is not None
        if error is None:
            self.reader.accept_fetch(future.result())
            self.connection.outbox.add(self)
        elif isinstance(error, PenstockError):
            self.connection.detach(self.link, error)
        else:
            log.error("reading failed: %s", self.tracker, exc_info=error)
            self.connection.detach(
                self.link, InternalError("The service could not read the partition.")
            )

    def release_memory(self) -> None:
        """A reader without credit keeps nothing read ahead for long: there may be thousands."""
        if not self._moved and not self._fetching and self.reader is not None:
            self.reader.release_memory()
        self._moved = False

    def close(self) -> None:
        if self.reader is not None:
            self.reader.close()
            self.reader = None

    def _runtime(self, reader: Reader) -> bytes:
        """The four keys that enable-receiver-runtime-metric asks for (protocol.md 5.4)."""
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
