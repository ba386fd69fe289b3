"""Links on which a client reads: events are pushed as they are committed (protocol.md 5)."""

from __future__ import annotations

from asyncio import Future
from functools import partial

from penstock.amqp.encoder import encode
from penstock.amqp.types import Described, Long, Symbol, Timestamp, Ulong
from penstock.broker.reader import FetchResult, Reader, ReadState
from penstock.broker.usage_meter import HubCounters
from penstock.gateway.amqp.context import log
from penstock.gateway.amqp.links import EntityLink, EntityLinkHandler
from penstock.kernels import FramedDeliveries, KernelError, frame_run
from penstock.model.errors import InternalError, LogCorrupt, PenstockError
from penstock.model.events import StoredBatch

_DELIVERY_ANNOTATIONS = 0x71
_NEVER_MS = -62_135_596_800_000  # 0001-01-01, the service's "never" (protocol.md 3.2)
_ANY_FRAMES = 2**32


class ReadLink(EntityLinkHandler):
    """`reader` decides what comes next; this link frames it within credit and session window."""

    def __init__(self, entity: EntityLink, counters: HubCounters, *, runtime_metrics: bool) -> None:
        super().__init__(entity)
        self.reader: Reader | None = None  # set by attach, once the broker registered it
        self._counters = counters
        self._runtime_metrics = runtime_metrics
        self._is_fetching = False
        self._has_sent = False  # since the last release_memory()
        # Frames of one event that is larger than the window, and how much of them was sent.
        self._unsent = b""
        self._unsent_position = 0

    def on_ready(self) -> None:
        """The reader has events or egress units again. Runs the turn at once: the limiter grants
        egress units only during this call."""
        self.host.turns.run(partial(self.host.scheduler.add, self))

    def send_pending(self, bytes_max: int) -> int:
        reader, link = self.reader, self.link
        if reader is None or self._is_fetching or not link.is_attached:
            return 0
        if self.host.scheduler.must_wait(self):
            return 0
        sent = 0
        while sent < bytes_max:
            if self._unsent:
                more = self._send_unsent()
            elif self._has_event(reader):
                more = self._send(reader, bytes_max - sent)
            else:
                return sent
            if more == 0:
                return sent
            self._has_sent = True
            sent += more
        self.host.scheduler.add(self)
        return sent

    def _has_event(self, reader: Reader) -> bool:
        """Whether an event may be sent now. If not, arrange what makes it possible later."""
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
            self.host.scheduler.wait_for_window(self)
        return link.credit > 0 and link.sendable_frames > 0

    def _send(self, reader: Reader, bytes_max: int) -> int:
        """Frame a run of stored batches; return the bytes that were queued."""
        link = self.link
        bytes_max = reader.allowance(bytes_max)
        if bytes_max == 0:
            return 0  # egress beyond the units is slowed (protocol.md 10.4): on_ready() continues
        try:
            framed = self._frame_next_run(reader, bytes_max)
            if framed.events == 0:
                # One event takes more frames than the peer's window allows: send it in parts.
                framed = self._frame_run(reader, [reader.batch], 1, _ANY_FRAMES, 1)
        except KernelError as error:
            log.error("delivery failed entity=%s error=%s", self.tracker, error)
            self.host.detach(
                link, LogCorrupt("The stored events cannot be read; the operator was told.")
            )
            return 0
        self.host.events_out += framed.events
        self.host.slot.budget.pay(framed.events, len(framed.data))
        self._counters.outgoing_messages += framed.events
        self._counters.outgoing_bytes += len(framed.data)
        reader.advance(framed.events, framed.position)
        if framed.frames > link.sendable_frames:
            return self._begin_unsent(framed)
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
            # A damaged batch must not hold back the batches before it.
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

    # --- an event larger than the session window --------------------------------------------------

    def _begin_unsent(self, framed: FramedDeliveries) -> int:
        """Until its last frame is sent, no other link of the session may send (see
        `SendScheduler.must_wait`)."""
        assert framed.events == 1
        self._unsent, self._unsent_position = framed.data, 0
        self.host.scheduler.begin_delivery(self)
        return self._send_unsent(deliveries=1)

    def _send_unsent(self, *, deliveries: int = 0) -> int:
        start = position = self._unsent_position
        frames = 0
        while frames < self.link.sendable_frames and position < len(self._unsent):
            position += int.from_bytes(self._unsent[position : position + 4], "big")
            frames += 1
        if frames == 0:
            self.host.scheduler.wait_for_window(self)
            return 0
        self.link.send_transfers(self._unsent[start:position], deliveries=deliveries, frames=frames)
        self._unsent_position = position
        if position == len(self._unsent):
            self._unsent = b""
            self.host.scheduler.end_delivery(self)
        return position - start

    # --- the disk -------------------------------------------------------------------------------

    def _fetch(self, reader: Reader) -> None:
        """Read from disk on another thread; one read at a time."""
        self._is_fetching = True
        context = self.host.context
        future = context.loop.run_in_executor(context.reads, reader.fetch)
        future.add_done_callback(self._on_fetched)

    def _on_fetched(self, future: Future[FetchResult]) -> None:
        self._is_fetching = False
        if not future.cancelled():
            error = future.exception()  # retrieved in any case, or asyncio would log it
            if self.reader is not None:
                self.host.turns.run(partial(self._accept_fetch, future, error))

    def _accept_fetch(self, future: Future[FetchResult], error: BaseException | None) -> None:
        assert self.reader is not None
        if error is None:
            self.reader.accept_fetch(future.result())
            self.host.scheduler.add(self)
        elif isinstance(error, PenstockError):
            self.host.detach(self.link, error)
        else:
            log.error("read failed entity=%s", self.tracker, exc_info=error)
            self.host.detach(self.link, InternalError("The service could not read the partition."))

    def release_memory(self) -> None:
        """Drop what was read ahead for a reader without credit: there may be thousands of them."""
        if not self._has_sent and not self._is_fetching and self.reader is not None:
            self.reader.release_memory()
        self._has_sent = False

    def close(self) -> None:
        if self.reader is not None:
            self.reader.close()
            self.reader = None

    def _runtime(self, reader: Reader) -> bytes:
        """The delivery annotations of enable-receiver-runtime-metric (protocol.md 5.4)."""
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
            Symbol("runtime_info_retrieval_time_utc"): Timestamp(self.host.context.clock.now_ms()),
        }
        return encode(Described(Ulong(_DELIVERY_ANNOTATIONS), values))
