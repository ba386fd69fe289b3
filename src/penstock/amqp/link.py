"""One end of a link (AMQP 2.6): attach, credit, deliveries, settlement.

Flow control has two independent limits, and a sender must respect both. Link credit counts
deliveries (AMQP 2.6.7); the session window counts transfer frames (2.5.6, see `session`).

    sender    credit = receiver's delivery-count + link-credit - own delivery-count
    receiver  grants credit with a flow, which sets the credit and does not add to it

The two ends exchange flows and transfers without waiting for each other, so a flow always describes
the past. Its delivery-count says which past: the sender subtracts what it has sent since then.
Delivery counts wrap at 2**32; only `serial` may add or compare them.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Protocol, TypeAlias, TypeVar

import msgspec

from penstock.amqp.config import ConnectionConfig, PeerAllowance
from penstock.amqp.errors import LocalError, RemoteLinkError, quote_peer_text
from penstock.amqp.incoming_deliveries import IncomingDelivery
from penstock.amqp.performatives import (
    Accepted,
    Attach,
    Coordinator,
    Detach,
    Disposition,
    Error,
    Flow,
    Performative,
    Rejected,
    Source,
    Target,
    Transfer,
    encode_performative,
)
from penstock.amqp.serial import serial_add, serial_distance
from penstock.amqp.states import LINK, LinkInput, LinkState
from penstock.amqp.transfer_run import TransferRun

UNLIMITED = 2**64 - 1
DELIVERY_TAG_BYTES_MAX = 32  # AMQP 2.8.7
# Frame header plus the longest transfer performative that we write: 11 fields and the tag.
TRANSFER_OVERHEAD = 8 + 96


class LinkRole(IntEnum):
    """The value of `attach.role` (AMQP 2.8.1)."""

    SENDER = 0
    RECEIVER = 1


class TransfersReceived(msgspec.Struct):
    """Consecutive whole deliveries on one link: payload i is data[bounds[2i]:bounds[2i+1]] and its
    delivery id is first_delivery_id + i (serial arithmetic)."""

    link: Link
    data: bytes
    bounds: list[int]
    first_delivery_id: int
    count: int
    settled: bool
    message_format: int


class TransferOversized(msgspec.Struct):
    """A delivery above the link's max-message-size. The engine discarded its bytes on arrival."""

    link: Link
    delivery_id: int
    size: int
    settled: bool


TransferEvent: TypeAlias = TransfersReceived | TransferOversized
E_contra = TypeVar("E_contra", contravariant=True)


class EventSink(Protocol[E_contra]):
    """The list to which each level of the engine appends its own kinds of events."""

    def append(self, event: E_contra, /) -> None: ...


class LinkConnection(Protocol):
    """What a link uses of its connection."""

    config: ConnectionConfig
    allowance: PeerAllowance
    received_ms: int


class LinkSession(Protocol):
    """What a link, and the application that has the link, use of the session."""

    channel: int
    next_delivery_id: int

    @property
    def connection(self) -> LinkConnection: ...
    @property
    def is_mapped(self) -> bool: ...
    @property
    def frame_bytes_max(self) -> int: ...
    @property
    def sendable_frames(self) -> int: ...

    def frame(self, body: bytes, payload: bytes = b"") -> bytes: ...
    def send(self, performative: Performative) -> None: ...
    def send_frame(self, frame: bytes) -> None: ...
    def send_flow(
        self, link: Link | None = None, *, drain: bool = False, echo: bool = False
    ) -> None: ...
    def send_transfers(self, data: bytes, *, deliveries: int, frames: int) -> None: ...
    def forget_link(self, link: Link) -> None: ...
    def end(self, error: Error | None = None) -> None: ...


class Link:
    """`role` is ours. `attach` is the peer's attach: None before it arrives, and reduced to names
    and addresses once a server has accepted it."""

    __slots__ = (
        "_answer_closed",
        "_partial",
        "attach",
        "credit",
        "delivery_count",
        "drain",
        "handle",
        "max_message_size",
        "name",
        "remote_handle",
        "role",
        "session",
        "state",
        "text_size",
    )

    def __init__(self, session: LinkSession, name: str, role: LinkRole, handle: int) -> None:
        self.session = session
        self.name = name
        self.role = role
        self.handle = handle
        self.remote_handle: int | None = None
        self.state = LinkState.DETACHED
        self.attach: Attach | None = None
        # A peer may send deliveries before the application answers its attach. Until `accept` sets
        # the limit, one may be as long as a frame.
        self.max_message_size = session.connection.config.max_frame_size
        self.drain = False  # sender: the peer wants its credit used up now
        self.delivery_count = 0  # wraps at 2**32
        self.credit = 0  # deliveries that the sender may still send, whichever end that is
        self.text_size = 0  # characters of the peer's names and addresses, counted by the allowance
        self._partial: IncomingDelivery | None = None  # registered with the allowance
        self._answer_closed = True  # `closed` of the detach that answers the peer's

    def __repr__(self) -> str:
        return (
            f"<Link {quote_peer_text(self.name)} {self.role.name} {self.state.name} "
            f"credit={self.credit}>"
        )

    @property
    def is_attached(self) -> bool:
        return self.state is LinkState.ATTACHED

    @property
    def has_partial_delivery(self) -> bool:
        return self._partial is not None

    # --- attach and detach ----------------------------------------------------------------------

    def request(
        self,
        *,
        source: Source | None,
        target: Target | None,
        snd_settle_mode: int | None = None,
        rcv_settle_mode: int | None = None,
        properties: dict[str, object] | None = None,
        desired_capabilities: list[str] | None = None,
        max_message_size: int = 0,
    ) -> None:
        """Client: send attach. `max_message_size` 0 means no limit."""
        self.state = LINK.after(self.state, LinkInput.SEND_ATTACH)
        self.max_message_size = max_message_size or UNLIMITED
        self.session.send(
            Attach(
                name=self.name,
                handle=self.handle,
                role=bool(self.role),
                snd_settle_mode=snd_settle_mode,
                rcv_settle_mode=rcv_settle_mode,
                source=source,
                target=target,
                initial_delivery_count=0 if self.role is LinkRole.SENDER else None,
                max_message_size=max_message_size,
                desired_capabilities=desired_capabilities,
                properties=properties,
            )
        )

    def accept(
        self,
        *,
        source: Source | None,
        target: Target | Coordinator | None,
        max_message_size: int,
        properties: dict[str, object] | None = None,
        offered_capabilities: list[str] | None = None,
    ) -> None:
        """Server: answer the peer's attach. Refuses the link if the answer exceeds its frame size.

        Does nothing if the session has ended in the meantime.
        """
        if self.state is LinkState.CLOSED:
            return
        request = self.attach
        assert request is not None
        reply = self._build_reply(request)
        reply.source = source
        reply.target = target
        reply.max_message_size = max_message_size  # E6
        reply.offered_capabilities = offered_capabilities
        reply.properties = properties
        frame = self.session.frame(encode_performative(reply))
        if len(frame) > self.session.frame_bytes_max:
            self.refuse(_frame_too_small_error(len(frame), self.session.frame_bytes_max))
            return
        # The smaller of the two limits holds (protocol.md 4.2).
        self.max_message_size = min(max_message_size, request.max_message_size or UNLIMITED)
        self._send_attach(frame)
        _strip_attach(request)
        if self.state is LinkState.DETACH_RECEIVED:
            self._send_detach(None)
        elif self.drain and self.credit == 0:
            self.complete_drain()

    def refuse(self, error: Error) -> None:
        """Server: attach reply without source and target and without flow, then detach (E15)."""
        if self.state is LinkState.CLOSED:
            return
        assert self.attach is not None
        reply = self._build_reply(self.attach)
        self._send_attach(self.session.frame(encode_performative(reply)))
        self.attach = None
        self.detach(error)

    def detach(self, error: Error | None = None) -> None:
        """Close the link for good (E14: closed is always true)."""
        self._answer_closed = True
        self._send_detach(error)

    def _build_reply(self, request: Attach) -> Attach:
        return Attach(
            name=self.name,
            handle=self.handle,
            role=bool(self.role),
            snd_settle_mode=request.snd_settle_mode,  # echoed, None if the client set none (E7)
            rcv_settle_mode=request.rcv_settle_mode,
            initial_delivery_count=0 if self.role is LinkRole.SENDER else None,  # E5
        )

    def _send_attach(self, frame: bytes) -> None:
        self.state = LINK.after(self.state, LinkInput.SEND_ATTACH)
        self.session.send_frame(frame)

    def _send_detach(self, error: Error | None) -> None:
        self.state = LINK.after(self.state, LinkInput.SEND_DETACH)
        self.session.send(Detach(handle=self.handle, closed=self._answer_closed, error=error))
        self._on_detached()

    def on_attach(self, attach: Attach) -> None:
        self.state = LINK.after(self.state, LinkInput.RECV_ATTACH)
        self.attach = attach
        self.remote_handle = attach.handle
        if self.role is LinkRole.RECEIVER:
            self.delivery_count = attach.initial_delivery_count or 0
        if self.state is LinkState.ATTACH_RECEIVED and attach.max_message_size:
            self.max_message_size = min(self.max_message_size, attach.max_message_size)

    def on_detach(self, detach: Detach) -> None:
        self.state = LINK.after(self.state, LinkInput.RECV_DETACH)
        # AMQP 2.6.6: the answer has the same `closed`. A peer that only detached and gets a closing
        # answer would have to attach once more in order to close.
        self._answer_closed = detach.closed
        if self.state is LinkState.DETACH_RECEIVED:
            self._send_detach(None)
        else:
            self._on_detached()

    def on_session_end(self) -> None:
        self.state = LINK.after(self.state, LinkInput.SESSION_ENDED)
        self._on_detached()

    def _on_detached(self) -> None:
        self.drop_partial_delivery()
        self.credit = 0
        if self.state is LinkState.CLOSED:
            self.session.forget_link(self)

    # --- as receiver ----------------------------------------------------------------------------

    def grant(self, credit: int, *, drain: bool = False, echo: bool = False) -> None:
        """Set the credit that the peer has from now on, whatever it had before (E10).

        Does nothing if the link is not attached.
        """
        assert self.role is LinkRole.RECEIVER
        if LINK.allows(self.state, LinkInput.SEND_FLOW):
            self.credit = credit
            self.session.send_flow(self, drain=drain, echo=echo)

    def replenish(self, credit: int) -> None:
        """Grant `credit` again once half of it is used: one flow serves many deliveries, and the
        sender still has the other half while the flow is on its way."""
        if self.credit * 2 <= credit:
            self.grant(credit)

    def settle(
        self, first: int, last: int, outcome: Accepted | Rejected, *, settled: bool = True
    ) -> None:
        """Send the outcome of deliveries first..last in one disposition (E11)."""
        self.session.send(
            Disposition(role=True, first=first, last=last, settled=settled, state=outcome)
        )

    def on_run(self, run: TransferRun, data: bytes, events: EventSink[TransferEvent]) -> None:
        """Receive a run of whole deliveries. The session has checked that none is partial."""
        assert self._partial is None
        if not self._can_receive:
            raise self._unexpected_transfer_error()
        if self.state is LinkState.DETACH_SENT:
            return
        self._count(run.count)
        # Usually no single frame can exceed the link's limit, and the run stays in one piece.
        if self.max_message_size < self.session.connection.config.max_frame_size:
            self._split_run(run, data, events)
        else:
            events.append(self._transfers_event(run, data, 0, run.count))

    def _split_run(self, run: TransferRun, data: bytes, events: EventSink[TransferEvent]) -> None:
        """Report the deliveries in order: one event per oversized one, one per stretch between."""
        first = 0  # of those that no event covers yet
        for i in range(run.count):
            size = run.bounds[2 * i + 1] - run.bounds[2 * i]
            if size > self.max_message_size:
                if i > first:
                    events.append(self._transfers_event(run, data, first, i))
                delivery_id = serial_add(run.first_delivery_id, i)
                events.append(TransferOversized(self, delivery_id, size, run.settled))
                first = i + 1
        if first < run.count:
            events.append(self._transfers_event(run, data, first, run.count))

    def _transfers_event(
        self, run: TransferRun, data: bytes, first: int, stop: int
    ) -> TransferEvent:
        is_whole = stop - first == run.count
        return TransfersReceived(
            self,
            data,
            run.bounds if is_whole else run.bounds[2 * first : 2 * stop],
            serial_add(run.first_delivery_id, first),
            stop - first,
            run.settled,
            run.message_format,
        )

    def on_transfer(
        self, transfer: Transfer, payload: bytes, events: EventSink[TransferEvent]
    ) -> None:
        """Receive one frame: a whole delivery, or a part of one (AMQP 2.6.14)."""
        if not self._can_receive:
            raise self._unexpected_transfer_error()
        if self.state is LinkState.DETACH_SENT:
            return  # sent before the peer saw our detach
        delivery = self._partial
        if delivery is None:
            delivery = IncomingDelivery(transfer, self.name)
        delivery.count_frame(transfer, payload, size_max=self.max_message_size, link_name=self.name)
        if transfer.aborted:
            self._abort()
        elif transfer.more:
            # Assigned before the allowance is charged: if `hold` raises, the connection's end drops
            # this delivery and gives the bytes back.
            self._partial = delivery
            connection = self.session.connection
            connection.allowance.hold(self, delivery.keep(payload), connection.received_ms)
        else:
            self._complete(delivery, payload, events)

    def _complete(
        self, delivery: IncomingDelivery, payload: bytes, events: EventSink[TransferEvent]
    ) -> None:
        self._count(1)
        data = delivery.join(payload)
        self.drop_partial_delivery()
        delivery_id, settled = delivery.delivery_id, delivery.settled
        if delivery.is_oversized:
            events.append(TransferOversized(self, delivery_id, delivery.size, settled))
        else:
            bounds = [0, len(data)]
            events.append(
                TransfersReceived(
                    self, data, bounds, delivery_id, 1, settled, delivery.message_format
                )
            )

    def _abort(self) -> None:
        """Drop an aborted delivery (AMQP 2.7.5). Its sender counted it against its credit: return
        that credit, or a sender that aborts often would run out of it."""
        self.drop_partial_delivery()
        self.delivery_count = serial_add(self.delivery_count, 1)
        if self.is_attached:
            self.session.send_flow(self)

    def _count(self, deliveries: int) -> None:
        self.delivery_count = serial_add(self.delivery_count, deliveries)
        # Credit is not enforced: some clients send without any (E19). It must not become negative.
        self.credit = max(0, self.credit - deliveries)

    @property
    def _can_receive(self) -> bool:
        return self.role is LinkRole.RECEIVER and LINK.allows(self.state, LinkInput.RECV_TRANSFER)

    def _unexpected_transfer_error(self) -> RemoteLinkError:
        return RemoteLinkError(
            f"A transfer arrived on link {quote_peer_text(self.name)} (we are {self.role.name}, "
            f"{self.state.name}) where none is allowed."
        )

    def drop_partial_delivery(self) -> None:
        """Free the frames of a partial delivery, if there is one."""
        if self._partial is not None:
            self.session.connection.allowance.release(self, self._partial.kept_bytes)
            self._partial = None

    # --- as sender ------------------------------------------------------------------------------

    def on_flow(self, flow: Flow) -> None:
        self.state = LINK.after(self.state, LinkInput.RECV_FLOW)
        if self.state is LinkState.DETACH_SENT:
            return
        if self.role is LinkRole.RECEIVER:
            self._on_sender_flow(flow)
            return
        if flow.link_credit is not None:
            # AMQP 2.6.7: deliveries that the peer had not seen when it wrote the flow have used
            # part of this credit. A receiver that has not seen our attach sends no delivery-count:
            # it counts from 0, as we do. The distance is negative if the peer claims to have seen
            # more than we sent; that must not create credit.
            seen = flow.delivery_count or 0
            unseen = max(0, serial_distance(self.delivery_count, seen))
            self.credit = max(0, flow.link_credit - unseen)
        self.drain = flow.drain
        if self.drain and self.credit == 0:
            self.complete_drain()

    def _on_sender_flow(self, flow: Flow) -> None:
        """Follow the sender's delivery-count: a drained sender skips the credit that it left."""
        if flow.delivery_count is not None:
            skipped = serial_distance(flow.delivery_count, self.delivery_count)
            if skipped > 0:
                self._count(skipped)

    @property
    def sendable_frames(self) -> int:
        """How many transfer frames the peer's session window permits now."""
        return self.session.sendable_frames

    def send_transfers(self, data: bytes, *, deliveries: int, frames: int) -> None:
        """Queue transfers that a kernel framed for this link, and account for them.

        The caller has kept them within `credit` and `sendable_frames`.
        """
        assert self.role is LinkRole.SENDER
        assert deliveries <= self.credit
        self.delivery_count = serial_add(self.delivery_count, deliveries)
        self.credit -= deliveries
        self.session.send_transfers(data, deliveries=deliveries, frames=frames)
        if self.drain and self.credit == 0:
            self.complete_drain()

    def send(
        self,
        payload: bytes,
        *,
        settled: bool,
        message_format: int = 0,
        delivery_tag: bytes = b"",
    ) -> int | None:
        """Send one delivery; its delivery-id, or None if credit or window do not permit it now.

        An unsettled delivery without a tag gets its delivery-id for one. Raises LocalError if the
        link is not attached or the tag is too long.
        """
        assert self.role is LinkRole.SENDER
        if not LINK.allows(self.state, LinkInput.SEND_TRANSFER):
            raise LocalError(f"The link is {self.state.name}: nothing can be sent.")
        if len(delivery_tag) > DELIVERY_TAG_BYTES_MAX:
            raise LocalError(
                f"A delivery tag has {len(delivery_tag)} bytes: "
                f"at most {DELIVERY_TAG_BYTES_MAX} are allowed."
            )
        session = self.session
        payload_max = session.frame_bytes_max - TRANSFER_OVERHEAD
        frame_count = max(1, -(-len(payload) // payload_max))
        # All frames or none: a delivery that stops halfway would block the session's other links,
        # because some clients do not accept interleaved deliveries (E9).
        if self.credit < 1 or session.sendable_frames < frame_count:
            return None
        delivery_id = session.next_delivery_id
        if not delivery_tag and not settled:
            delivery_tag = delivery_id.to_bytes(4, "big")
        frames = []
        for i in range(frame_count):
            transfer = Transfer(
                handle=self.handle,
                delivery_id=delivery_id,
                delivery_tag=delivery_tag,
                message_format=message_format,  # explicit, also when 0 (E8)
                settled=settled,
                more=i + 1 < frame_count,
            )
            start = i * payload_max
            chunk = payload[start : start + payload_max]  # no copy if it is all of it
            frames.append(session.frame(encode_performative(transfer), chunk))
        self.send_transfers(b"".join(frames), deliveries=1, frames=frame_count)
        return delivery_id

    def complete_drain(self) -> None:
        """There is nothing more to send: use up the credit and report that in a flow (AMQP 2.6.7,
        protocol.md 5.5). The receiver waits for this answer to its drain."""
        assert self.role is LinkRole.SENDER
        if not LINK.allows(self.state, LinkInput.SEND_FLOW):
            return
        self.delivery_count = serial_add(self.delivery_count, self.credit)
        self.credit = 0
        self.drain = False
        self.session.send_flow(self, drain=True)


def _strip_attach(attach: Attach) -> None:
    """Drop what is not needed after the answer: a peer may keep a thousand links."""
    attach.unsettled = attach.properties = None
    attach.offered_capabilities = attach.desired_capabilities = None
    attach.source = Source(address=attach.source.address) if attach.source is not None else None
    if isinstance(attach.target, Target):
        attach.target = Target(address=attach.target.address)


def _frame_too_small_error(needed: int, allowed: int) -> Error:
    return Error(
        condition="amqp:frame-size-too-small",
        description=f"The attach takes a frame of {needed} bytes: the peer takes {allowed}.",
    )
