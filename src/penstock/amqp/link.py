"""One end of a link (AMQP 2.6): credit, deliveries, settlement."""

from __future__ import annotations

from enum import IntEnum
from typing import Protocol, TypeAlias, TypeVar

import msgspec

from penstock.amqp.config import ConnectionConfig, PeerAllowance
from penstock.amqp.errors import AmqpError, LocalError
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
_NAME_SHOWN_MAX = 64


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

    @property
    def config(self) -> ConnectionConfig: ...
    @property
    def allowance(self) -> PeerAllowance: ...
    @property
    def received_ms(self) -> int: ...


class LinkSession(Protocol):
    """What a link, and the application that has the link, use of the session."""

    @property
    def connection(self) -> LinkConnection: ...
    @property
    def channel(self) -> int: ...
    @property
    def is_mapped(self) -> bool: ...
    @property
    def frame_bytes_max(self) -> int: ...
    @property
    def sendable_frames(self) -> int: ...
    @property
    def next_delivery_id(self) -> int: ...

    def frame(self, body: bytes, payload: bytes = b"") -> bytes: ...
    def send(self, performative: Performative) -> None: ...
    def send_frame(self, frame: bytes) -> None: ...
    def send_flow(
        self, link: Link | None = None, *, drain: bool = False, echo: bool = False
    ) -> None: ...
    def sent_frames(self, data: bytes, *, deliveries: int, frames: int) -> None: ...
    def forget_link(self, link: Link) -> None: ...
    def end(self, error: Error | None = None) -> None: ...


class RemoteLinkError(AmqpError):
    """The peer broke the rules of a link."""

    condition = "amqp:not-allowed"


class _PartialDelivery:
    """A delivery of which some frames are still to come."""

    __slots__ = ("data", "delivery_id", "message_format", "settled", "size", "too_large")

    def __init__(self, delivery_id: int, message_format: int) -> None:
        self.delivery_id = delivery_id
        self.message_format = message_format
        self.settled = False
        self.data = bytearray()  # empty once it is too large: then only `size` goes on
        self.size = 0
        self.too_large = False


class Link:
    """`role` is ours. `attach` is what the peer sent: None until it has; a server keeps only names
    and addresses of it once it has answered."""

    __slots__ = (
        "_answer_closed",
        "_unfinished",
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
        "weight",
    )

    def __init__(self, session: LinkSession, name: str, role: LinkRole, handle: int) -> None:
        self.session = session
        self.name = name
        self.role = role
        self.handle = handle
        self.remote_handle: int | None = None
        self.state = LinkState.DETACHED
        self.attach: Attach | None = None
        # What arrives before the application answered is bounded too: by one frame's worth.
        self.max_message_size = session.connection.config.max_frame_size
        self.drain = False
        self.delivery_count = 0
        self.credit = 0
        self.weight = 0  # bytes of text that the peer makes us keep
        self._unfinished: _PartialDelivery | None = None
        self._answer_closed = True  # how the peer's detach is to be answered

    def __repr__(self) -> str:
        return (
            f"<Link {quote_peer_text(self.name)} {self.role.name} {self.state.name} "
            f"credit={self.credit}>"
        )

    @property
    def is_attached(self) -> bool:
        return self.state is LinkState.ATTACHED

    @property
    def has_unfinished(self) -> bool:
        """Some frames of a delivery came, others are to come."""
        return self._unfinished is not None

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
        """Client: ask for this link."""
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
        """Server: grant the link. Settle modes are echoed when the client set them (E7).

        Nothing happens when the session ended meanwhile: nobody waits for the answer any more.
        """
        if self.state is LinkState.CLOSED:
            return
        asked = self.attach
        assert asked is not None
        reply = Attach(
            name=self.name,
            handle=self.handle,
            role=bool(self.role),
            snd_settle_mode=asked.snd_settle_mode,
            rcv_settle_mode=asked.rcv_settle_mode,
            source=source,
            target=target,
            initial_delivery_count=0 if self.role is LinkRole.SENDER else None,  # E5
            max_message_size=max_message_size,  # E6
            offered_capabilities=offered_capabilities,
            properties=properties,
        )
        frame = self.session.frame(encode_performative(reply))
        if len(frame) > self.session.frame_bytes_max:
            self.refuse(_frame_too_small_error(len(frame), self.session.frame_bytes_max))
            return
        # The smaller of the two limits holds (protocol.md 4.2).
        self.max_message_size = min(max_message_size, asked.max_message_size or UNLIMITED)
        self._answer(frame)
        _strip_attach(asked)
        if self.state is LinkState.DETACH_RECEIVED:
            self._send_detach(None)
        elif self.drain and self.credit == 0:
            self.complete_drain()

    def refuse(self, error: Error) -> None:
        """Server: attach reply without source and target and without flow, then detach (E15)."""
        if self.state is LinkState.CLOSED:
            return
        asked = self.attach
        assert asked is not None
        reply = Attach(
            name=self.name,
            handle=self.handle,
            role=bool(self.role),
            snd_settle_mode=asked.snd_settle_mode,
            rcv_settle_mode=asked.rcv_settle_mode,
            initial_delivery_count=0 if self.role is LinkRole.SENDER else None,
        )
        self._answer(self.session.frame(encode_performative(reply)))
        self.attach = None
        self.detach(error)

    def detach(self, error: Error | None = None) -> None:
        """Close the link for good (E14: closed is always true)."""
        self._answer_closed = True
        self._send_detach(error)

    def _answer(self, frame: bytes) -> None:
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
        # AMQP 2.6.6: answered in kind. To a peer that only detached, a closing answer means that it
        # must attach once more in order to close.
        self._answer_closed = detach.closed
        if self.state is LinkState.DETACH_RECEIVED:
            self._send_detach(None)
        else:
            self._on_detached()

    def session_over(self) -> None:
        """The session ended, and this link with it."""
        self.state = LINK.after(self.state, LinkInput.SESSION_OVER)
        self._on_detached()

    def _on_detached(self) -> None:
        self.drop_unfinished()
        self.credit = 0
        if self.state is LinkState.CLOSED:
            self.session.forget_link(self)

    # --- as receiver ----------------------------------------------------------------------------

    def grant(self, credit: int, *, drain: bool = False, echo: bool = False) -> None:
        """Set the credit that the peer has from now on. The flow carries everything (E10)."""
        assert self.role is LinkRole.RECEIVER
        if LINK.allows(self.state, LinkInput.SEND_FLOW):
            self.credit = credit
            self.session.send_flow(self, drain=drain, echo=echo)

    def replenish(self, credit: int) -> None:
        """Top up at half, not at each message, so that the return path stays quiet."""
        if self.credit * 2 <= credit:
            self.grant(credit)

    def settle(
        self, first: int, last: int, outcome: Accepted | Rejected, *, settled: bool = True
    ) -> None:
        """Tell the sender what became of deliveries first..last; always settled (E11)."""
        self.session.send(
            Disposition(role=True, first=first, last=last, settled=settled, state=outcome)
        )

    def on_run(self, run: TransferRun, data: bytes, events: EventSink[TransferEvent]) -> None:
        """Several whole deliveries at once, found by the scan kernel."""
        assert self._unfinished is None
        self._check_may_receive()
        if self.state is LinkState.DETACH_SENT:
            return
        self._count(run.count)
        if self.max_message_size < self.session.connection.config.max_frame_size:
            self._judge_sizes(run, data, events)
        else:
            events.append(self._transfers_event(run, data, 0, run.count))

    def _judge_sizes(self, run: TransferRun, data: bytes, events: EventSink[TransferEvent]) -> None:
        """One frame can be too large for this link: part the run at those that are."""
        first = 0  # of the good ones that were not told yet
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
        whole = stop - first == run.count
        return TransfersReceived(
            self,
            data,
            run.bounds if whole else run.bounds[2 * first : 2 * stop],
            serial_add(run.first_delivery_id, first),
            stop - first,
            run.settled,
            run.message_format,
        )

    def on_transfer(
        self, transfer: Transfer, payload: bytes, events: EventSink[TransferEvent]
    ) -> None:
        """One frame: a whole delivery, or a piece of one (AMQP 2.6.14)."""
        self._check_may_receive()
        if self.state is LinkState.DETACH_SENT:
            return  # on its way before the peer saw our detach, perhaps the rest of a delivery
        unfinished = self._unfinished
        if unfinished is None:
            if transfer.delivery_id is None:
                raise RemoteLinkError(
                    f"The first transfer of a delivery on link {quote_peer_text(self.name)} has no "
                    "delivery-id."
                )
            unfinished = _PartialDelivery(transfer.delivery_id, transfer.message_format or 0)
        elif transfer.delivery_id not in (None, unfinished.delivery_id):
            # Some clients repeat the id on every piece (E20), none may change it (AMQP 2.7.5).
            raise RemoteLinkError(
                f"Delivery {transfer.delivery_id} arrived on link "
                f"{quote_peer_text(self.name)} before "
                f"delivery {unfinished.delivery_id} was complete."
            )
        unfinished.size += len(payload)
        unfinished.too_large |= unfinished.size > self.max_message_size
        unfinished.settled |= bool(transfer.settled)  # AMQP 2.7.5: on any of the frames
        if transfer.aborted:
            self._abort()
        elif transfer.more:
            self._keep(unfinished, payload)
        else:
            self._complete(unfinished, payload, events)

    def _keep(self, unfinished: _PartialDelivery, payload: bytes) -> None:
        self._unfinished = unfinished
        if unfinished.too_large:
            self._discard(unfinished)  # count on, keep nothing
            payload = b""
        unfinished.data += payload
        connection = self.session.connection
        connection.allowance.hold(self, len(payload), connection.received_ms)

    def _complete(
        self, unfinished: _PartialDelivery, payload: bytes, events: EventSink[TransferEvent]
    ) -> None:
        self._count(1)
        data = payload
        if self._unfinished is not None:
            data = b"".join((unfinished.data, payload)) if unfinished.data else payload
            self.drop_unfinished()
        delivery_id, size, settled = unfinished.delivery_id, unfinished.size, unfinished.settled
        if unfinished.too_large:
            events.append(TransferOversized(self, delivery_id, size, settled))
            return
        bounds = [0, len(data)]
        message_format = unfinished.message_format
        events.append(
            TransfersReceived(self, data, bounds, delivery_id, 1, settled, message_format)
        )

    def _abort(self) -> None:
        """AMQP 2.7.5: the delivery never was, but its sender has counted it: give the credit back,
        or enough of them would leave the sender without any."""
        self.drop_unfinished()
        self.delivery_count = serial_add(self.delivery_count, 1)
        if self.is_attached:
            self.session.send_flow(self)

    def _count(self, deliveries: int) -> None:
        self.delivery_count = serial_add(self.delivery_count, deliveries)
        self.credit = max(0, self.credit - deliveries)  # some send without credit (E19)

    def _check_may_receive(self) -> None:
        if self.role is not LinkRole.RECEIVER or not LINK.allows(
            self.state, LinkInput.RECV_TRANSFER
        ):
            raise RemoteLinkError(
                f"A transfer arrived on link {quote_peer_text(self.name)} (we are "
                f"{self.role.name}, "
                f"{self.state.name}) where none is allowed."
            )

    def drop_unfinished(self) -> None:
        """Keep nothing of a delivery whose other frames are not waited for any more."""
        if self._unfinished is not None:
            self._discard(self._unfinished)
            self._unfinished = None
            self.session.connection.allowance.unfinished.pop(self, None)

    def _discard(self, unfinished: _PartialDelivery) -> None:
        self.session.connection.allowance.release(len(unfinished.data))
        unfinished.data = bytearray()

    # --- as sender ------------------------------------------------------------------------------

    def on_flow(self, flow: Flow) -> None:
        self.state = LINK.after(self.state, LinkInput.RECV_FLOW)
        if self.state is LinkState.DETACH_SENT:
            return
        if self.role is LinkRole.RECEIVER:
            self._on_senders_flow(flow)
            return
        if flow.link_credit is not None:
            # AMQP 2.6.7: what the peer had not seen when it wrote this is used up already. A
            # receiver that has not seen our attach sends no delivery-count: we count from 0.
            seen = flow.delivery_count or 0
            unseen = max(0, serial_distance(self.delivery_count, seen))
            self.credit = max(0, flow.link_credit - unseen)
        self.drain = flow.drain
        if self.drain and self.credit == 0:
            self.complete_drain()

    def _on_senders_flow(self, flow: Flow) -> None:
        """Only its delivery-count matters to us: a sender that was drained skipped ahead."""
        if flow.delivery_count is not None:
            skipped = serial_distance(flow.delivery_count, self.delivery_count)
            if skipped > 0:
                self._count(skipped)

    @property
    def sendable_frames(self) -> int:
        """How many transfer frames the peer's session window takes now."""
        return self.session.sendable_frames

    def sent_frames(self, data: bytes, *, deliveries: int, frames: int) -> None:
        """Queue transfers that a kernel framed for this link, and account for them."""
        assert self.role is LinkRole.SENDER
        assert deliveries <= self.credit
        self.delivery_count = serial_add(self.delivery_count, deliveries)
        self.credit -= deliveries
        self.session.sent_frames(data, deliveries=deliveries, frames=frames)
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
        """Send one delivery; its delivery-id, or None if credit or window do not allow it now.

        An unsettled delivery without a tag gets its delivery-id for one.
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
        room = session.frame_bytes_max - TRANSFER_OVERHEAD
        pieces = max(1, -(-len(payload) // room))
        if self.credit < 1 or session.sendable_frames < pieces:
            return None
        delivery_id = session.next_delivery_id
        if not delivery_tag and not settled:
            delivery_tag = delivery_id.to_bytes(4, "big")
        out = []
        for piece in range(pieces):
            transfer = Transfer(
                handle=self.handle,
                delivery_id=delivery_id,
                delivery_tag=delivery_tag,
                message_format=message_format,  # explicit, also when 0 (E8)
                settled=settled,
                more=piece + 1 < pieces,
            )
            chunk = payload if pieces == 1 else payload[piece * room : (piece + 1) * room]
            out.append(session.frame(encode_performative(transfer), chunk))
        self.sent_frames(b"".join(out), deliveries=1, frames=pieces)
        return delivery_id

    def complete_drain(self) -> None:
        """Nothing more to send: use up the credit and say so (AMQP 2.6.7, protocol.md 5.5)."""
        assert self.role is LinkRole.SENDER
        if not LINK.allows(self.state, LinkInput.SEND_FLOW):
            return
        self.delivery_count = serial_add(self.delivery_count, self.credit)
        self.credit = 0
        self.drain = False
        self.session.send_flow(self, drain=True)


def quote_peer_text(name: str) -> str:
    """A peer's text in our own: short and plain, so that every frame can carry it."""
    return ascii(name if len(name) <= _NAME_SHOWN_MAX else name[:_NAME_SHOWN_MAX] + "...")


def _strip_attach(attach: Attach) -> None:
    """Forget what was only for the moment: peers may keep thousands of links."""
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
