"""One end of a link (AMQP 2.6): credit, deliveries, settlement."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any

from penstock.amqp.errors import AmqpError, LocalError
from penstock.amqp.events import Event, TransferOversized, TransfersReceived
from penstock.amqp.performatives import (
    Accepted,
    Attach,
    Coordinator,
    Detach,
    Disposition,
    Error,
    Flow,
    Rejected,
    Source,
    Target,
    Transfer,
    encode_performative,
)
from penstock.amqp.scan import TransferRun
from penstock.amqp.serial import serial_add, serial_distance
from penstock.amqp.states import LINK, LinkInput, LinkState

if TYPE_CHECKING:
    from penstock.amqp.session import Session

UNLIMITED = 2**64 - 1
# Frame header plus the longest transfer performative that we write: 11 fields, tag <= 32 bytes.
TRANSFER_OVERHEAD = 8 + 96


class Role(IntEnum):
    """The value of `attach.role` (AMQP 2.8.1)."""

    SENDER = 0
    RECEIVER = 1


class RemoteLinkError(AmqpError):
    """The peer broke the rules of a link."""

    condition = "amqp:not-allowed"


class Link:
    """`attach` is what the peer sent (None until it has). `role` is ours."""

    def __init__(self, session: Session, name: str, role: Role, handle: int) -> None:
        self.session = session
        self.name = name
        self.role = role
        self.handle = handle
        self.remote_handle: int | None = None
        self.state = LinkState.DETACHED
        self.attach: Attach | None = None
        self.max_message_size = UNLIMITED
        self.app: Any = None  # the driver's own object for this link
        self.drain = False
        self.delivery_count = 0
        self.credit = 0
        self._partial: list[bytes] = []
        self._partial_size = 0
        self._partial_first: Transfer | None = None

    def __repr__(self) -> str:
        return f"<Link {self.name!r} {self.role.name} {self.state.name} credit={self.credit}>"

    @property
    def is_attached(self) -> bool:
        return self.state is LinkState.ATTACHED

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
        self._send_attach(
            Attach(
                name=self.name,
                handle=self.handle,
                role=bool(self.role),
                snd_settle_mode=snd_settle_mode,
                rcv_settle_mode=rcv_settle_mode,
                source=source,
                target=target,
                initial_delivery_count=0 if self.role is Role.SENDER else None,
                max_message_size=max_message_size,
                desired_capabilities=desired_capabilities,
                properties=properties,
            )
        )
        self.max_message_size = max_message_size or UNLIMITED

    def accept(
        self,
        *,
        source: Source | None,
        target: Target | Coordinator | None,
        max_message_size: int,
        properties: dict[str, object] | None = None,
        offered_capabilities: list[str] | None = None,
    ) -> None:
        """Server: grant the link. Settle modes are echoed when the client set them (E7)."""
        asked = self.attach
        assert asked is not None
        theirs = asked.max_message_size or UNLIMITED
        # The smaller of the two limits holds (protocol.md 4.2).
        self.max_message_size = min(max_message_size, theirs)
        self._send_attach(
            Attach(
                name=self.name,
                handle=self.handle,
                role=bool(self.role),
                snd_settle_mode=asked.snd_settle_mode,
                rcv_settle_mode=asked.rcv_settle_mode,
                source=source,
                target=target,
                initial_delivery_count=0 if self.role is Role.SENDER else None,  # E5
                max_message_size=max_message_size,  # E6
                offered_capabilities=offered_capabilities,
                properties=properties,
            )
        )

    def refuse(self, error: Error) -> None:
        """Server: attach reply without source and target and without flow, then detach (E15)."""
        asked = self.attach
        assert asked is not None
        self._send_attach(
            Attach(
                name=self.name,
                handle=self.handle,
                role=bool(self.role),
                snd_settle_mode=asked.snd_settle_mode,
                rcv_settle_mode=asked.rcv_settle_mode,
                initial_delivery_count=0 if self.role is Role.SENDER else None,
            )
        )
        self.detach(error)

    def detach(self, error: Error | None = None) -> None:
        """Close the link for good (E14: closed is always true)."""
        self.state = LINK.after(self.state, LinkInput.SEND_DETACH)
        self.session.send(Detach(handle=self.handle, closed=True, error=error))
        self._drop_partial()
        if self.state is LinkState.DETACHED:
            self.session.forget_link(self)

    def _send_attach(self, attach: Attach) -> None:
        self.state = LINK.after(self.state, LinkInput.SEND_ATTACH)
        self.session.send(attach)

    def on_attach(self, attach: Attach) -> None:
        self.state = LINK.after(self.state, LinkInput.RECV_ATTACH)
        self.attach = attach
        self.remote_handle = attach.handle
        if self.role is Role.RECEIVER:
            self.delivery_count = attach.initial_delivery_count or 0

    def on_detach(self) -> None:
        self.state = LINK.after(self.state, LinkInput.RECV_DETACH)
        self._drop_partial()
        if self.state is LinkState.DETACHED:
            self.session.forget_link(self)

    # --- as receiver ----------------------------------------------------------------------------

    def grant(self, credit: int) -> None:
        """Set the credit that the peer has from now on. The flow carries everything (E10)."""
        assert self.role is Role.RECEIVER
        if not LINK.allows(self.state, LinkInput.SEND_FLOW):
            return
        self.credit = credit
        self.session.send_flow(self)

    def replenish(self, credit: int) -> None:
        """Top up at half, not at each message, so that the return path stays quiet."""
        if self.credit * 2 <= credit:
            self.grant(credit)

    def settle(
        self, first: int, last: int, outcome: Accepted | Rejected, *, settled: bool = True
    ) -> None:
        """Tell the sender what became of deliveries first..last; always settled (E11)."""
        if self.session.is_mapped:
            self.session.send(
                Disposition(role=True, first=first, last=last, settled=settled, state=outcome)
            )

    def on_run(self, run: TransferRun, data: bytes) -> Event | None:
        """Several whole deliveries at once, found by the scan kernel."""
        if not self._may_receive() or self._partial_first is not None:
            raise _interleaved(self)
        self.delivery_count = serial_add(self.delivery_count, run.count)
        self.credit = max(0, self.credit - run.count)
        if self.state is not LinkState.ATTACHED:
            return None
        return TransfersReceived(
            self,
            data,
            run.bounds,
            run.first_delivery_id,
            run.count,
            run.settled,
            run.message_format,
        )

    def on_transfer(self, transfer: Transfer, payload: bytes) -> Event | None:
        """One frame: a whole delivery, or a piece of one (AMQP 2.6.14)."""
        if not self._may_receive():
            raise _interleaved(self)
        first = self._partial_first
        if first is None:
            if transfer.delivery_id is None:
                raise RemoteLinkError(
                    f"The first transfer on link {self.name!r} has no delivery-id."
                )
            first = self._partial_first = transfer
        elif transfer.delivery_id is not None and transfer.delivery_id != first.delivery_id:
            # Some clients repeat the id on every piece (E20), none may change it (AMQP 2.7.5).
            raise _interleaved(self)
        if transfer.aborted:
            self._drop_partial()
            return None
        self._partial_size += len(payload)
        if self._partial_size <= self.max_message_size:
            self._partial.append(payload)
        else:
            self._partial.clear()  # too large already: count on, keep nothing
        return None if transfer.more else self._complete(first, bool(transfer.settled))

    def _complete(self, first: Transfer, last_settled: bool) -> Event | None:
        data, size = b"".join(self._partial), self._partial_size
        self._drop_partial()
        self.delivery_count = serial_add(self.delivery_count, 1)
        self.credit = max(0, self.credit - 1)
        if self.state is not LinkState.ATTACHED:
            return None
        assert first.delivery_id is not None
        settled = bool(first.settled) or last_settled
        if size > self.max_message_size:
            return TransferOversized(self, first.delivery_id, size, settled)
        return TransfersReceived(
            self, data, [0, len(data)], first.delivery_id, 1, settled, first.message_format or 0
        )

    def _may_receive(self) -> bool:
        return self.role is Role.RECEIVER and LINK.allows(self.state, LinkInput.RECV_TRANSFER)

    def _drop_partial(self) -> None:
        self._partial = []
        self._partial_size = 0
        self._partial_first = None

    # --- as sender ------------------------------------------------------------------------------

    def on_flow(self, flow: Flow) -> None:
        """Credit is cumulative: delivery-count + link-credit (AMQP 2.6.7)."""
        self.state = LINK.after(self.state, LinkInput.RECV_FLOW)
        if self.role is not Role.SENDER:
            if flow.delivery_count is not None:  # the peer drained: it skipped ahead
                skipped = serial_distance(flow.delivery_count, self.delivery_count)
                if skipped > 0:
                    self.delivery_count = flow.delivery_count
                    self.credit = max(0, self.credit - skipped)
            return
        if flow.link_credit is not None:
            # A receiver that has not seen our attach sends no delivery-count: we count from 0.
            base = flow.delivery_count if flow.delivery_count is not None else 0
            limit = serial_add(base, flow.link_credit)
            self.credit = max(0, serial_distance(limit, self.delivery_count))
        self.drain = bool(flow.drain)

    @property
    def sendable_frames(self) -> int:
        """How many transfer frames the peer's session window takes now."""
        return self.session.sendable_frames

    def sent_frames(self, data: bytes, *, deliveries: int, frames: int) -> None:
        """Queue transfers that a kernel framed for this link, and account for them."""
        assert self.role is Role.SENDER
        assert deliveries <= self.credit
        self.delivery_count = serial_add(self.delivery_count, deliveries)
        self.credit -= deliveries
        self.session.sent_frames(data, deliveries=deliveries, frames=frames)

    def send(
        self,
        payload: bytes,
        *,
        settled: bool,
        message_format: int = 0,
        delivery_tag: bytes = b"",
    ) -> int | None:
        """Send one delivery; its delivery-id, or None if credit or window do not allow it now."""
        assert self.role is Role.SENDER
        if not LINK.allows(self.state, LinkInput.SEND_TRANSFER):
            raise LocalError(f"The link {self.name!r} is {self.state.name}: nothing can be sent.")
        session = self.session
        room = session.frame_bytes_max - TRANSFER_OVERHEAD
        pieces = max(1, -(-len(payload) // room))
        if self.credit < 1 or session.sendable_frames < pieces:
            return None
        delivery_id = session.next_delivery_id
        out = []
        for piece in range(pieces):
            transfer = Transfer(
                handle=self.handle,
                delivery_id=delivery_id,
                delivery_tag=delivery_tag,
                message_format=message_format,  # explicit, also when 0 (E8)
                settled=settled,
                more=piece + 1 < pieces,
                batchable=False,
            )
            chunk = payload if pieces == 1 else payload[piece * room : (piece + 1) * room]
            out.append(session.frame(encode_performative(transfer), chunk))
        self.sent_frames(b"".join(out), deliveries=1, frames=pieces)
        return delivery_id

    def drained(self) -> None:
        """Nothing more to send: use up the credit and say so (AMQP 2.6.7, protocol.md 5.5)."""
        assert self.role is Role.SENDER
        self.delivery_count = serial_add(self.delivery_count, self.credit)
        self.credit = 0
        self.session.send_flow(self, drain=True)
        self.drain = False


def _interleaved(link: Link) -> RemoteLinkError:
    return RemoteLinkError(
        f"A transfer arrived on link {link.name!r} (we are {link.role.name}, {link.state.name}) "
        "where none is allowed."
    )
