"""One session (AMQP 2.5): channels, windows, the table of its links."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.amqp.errors import AmqpError
from penstock.amqp.events import (
    AttachReceived,
    BeginReceived,
    DetachReceived,
    DispositionReceived,
    EndReceived,
    Event,
    FlowReceived,
)
from penstock.amqp.frames import encode_frame
from penstock.amqp.link import Link, Role
from penstock.amqp.performatives import (
    Attach,
    Begin,
    Detach,
    Disposition,
    End,
    Error,
    Flow,
    Performative,
    Transfer,
    encode_performative,
)
from penstock.amqp.scan import TransferRun
from penstock.amqp.serial import serial_add, serial_distance
from penstock.amqp.states import SESSION, SessionInput, SessionState

if TYPE_CHECKING:
    from penstock.amqp.connection import Connection


class RemoteSessionError(AmqpError):
    """The peer named a handle that is not attached (AMQP 2.8.17)."""

    condition = "amqp:session:unattached-handle"


class HandleInUse(AmqpError):
    condition = "amqp:session:handle-in-use"


class ResourceLimit(AmqpError):
    """More sessions or links than one connection may have."""

    condition = "amqp:resource-limit-exceeded"


class Session:
    """`channel` is ours; the peer's own is `remote_channel`."""

    def __init__(self, connection: Connection, channel: int) -> None:
        config = connection.config
        self.connection = connection
        self.channel = channel
        self.remote_channel: int | None = None
        self.state = SessionState.UNMAPPED
        self.app: Any = None
        self.links: dict[int, Link] = {}  # by the peer's handle
        self._by_handle: dict[int, Link] = {}  # by ours
        self.next_delivery_id = 0
        self._next_outgoing_id = 1  # as the real service (protocol.md 13)
        self._next_incoming_id = 0
        self._remote_window = 0
        self._remote_handle_max = 2**32 - 1
        self._incoming_window = config.incoming_window
        self._frames_since_flow = 0

    def __repr__(self) -> str:
        return f"<Session {self.channel}/{self.remote_channel} {self.state.name}>"

    @property
    def is_mapped(self) -> bool:
        return self.state is SessionState.MAPPED

    @property
    def frame_bytes_max(self) -> int:
        return self.connection.frame_bytes_max_out

    @property
    def sendable_frames(self) -> int:
        return self._remote_window

    # --- sending --------------------------------------------------------------------------------

    def frame(self, body: bytes, payload: bytes = b"") -> bytes:
        return encode_frame(self.channel, body, payload)

    def send(self, performative: Performative) -> None:
        self.connection.queue(self.frame(encode_performative(performative)))

    def sent_frames(self, data: bytes, *, deliveries: int, frames: int) -> None:
        assert frames <= self._remote_window
        self.next_delivery_id = serial_add(self.next_delivery_id, deliveries)
        self._next_outgoing_id = serial_add(self._next_outgoing_id, frames)
        self._remote_window -= frames
        self.connection.queue(data)

    def send_flow(
        self, link: Link | None = None, *, drain: bool = False, echo: bool = False
    ) -> None:
        self._frames_since_flow = 0
        begun = self.remote_channel is not None
        flow = Flow(
            next_incoming_id=self._next_incoming_id if begun else None,
            incoming_window=self._incoming_window,
            next_outgoing_id=self._next_outgoing_id,
            outgoing_window=self.connection.config.outgoing_window,
            echo=echo,
        )
        if link is not None:
            flow.handle = link.handle
            flow.delivery_count = link.delivery_count
            flow.link_credit = link.credit
            flow.drain = drain
        self.send(flow)

    def begin(self) -> None:
        """Send begin: the client's first word, or the server's answer."""
        config = self.connection.config
        self.state = SESSION.after(self.state, SessionInput.SEND_BEGIN)
        self.send(
            Begin(
                remote_channel=self.remote_channel,
                next_outgoing_id=self._next_outgoing_id,
                incoming_window=self._incoming_window,
                outgoing_window=config.outgoing_window,
                handle_max=config.handle_max,  # E4
            )
        )

    def end(self, error: Error | None = None) -> None:
        given = SessionInput.SEND_END_ERROR if error is not None else SessionInput.SEND_END
        if self.state is SessionState.END_RCVD:
            given = SessionInput.SEND_END
        self.state = SESSION.after(self.state, given)
        self.send(End(error=error))
        if self.state is SessionState.UNMAPPED:
            self.connection.forget_session(self)

    def new_link(self, name: str, role: Role) -> Link:
        """Client: a link that `request` will ask for."""
        handle = self._free_handle()
        link = Link(self, name, role, handle)
        self._by_handle[handle] = link
        return link

    def forget_link(self, link: Link) -> None:
        if link.remote_handle is not None and self.links.get(link.remote_handle) is link:
            del self.links[link.remote_handle]
        if self._by_handle.pop(link.handle, None) is link:
            self.connection.link_count -= 1

    def _free_handle(self) -> int:
        config = self.connection.config
        if self.connection.link_count >= config.links_max:
            raise ResourceLimit(
                f"This connection has {self.connection.link_count} links: "
                f"at most {config.links_max} are allowed."
            )
        handle = 0
        while handle in self._by_handle:
            handle += 1
        if handle > self._remote_handle_max:
            raise ResourceLimit(
                f"The peer takes handles up to {self._remote_handle_max}; none is free below."
            )
        self.connection.link_count += 1
        return handle

    # --- receiving ------------------------------------------------------------------------------

    def on_begin(self, begin: Begin, remote_channel: int) -> Event:
        self.state = SESSION.after(self.state, SessionInput.RECV_BEGIN)
        self.remote_channel = remote_channel
        self._next_incoming_id = begin.next_outgoing_id
        self._remote_window = begin.incoming_window
        self._remote_handle_max = begin.handle_max
        return BeginReceived(self)

    def on_frame(self, performative: Performative, payload: bytes) -> Event | None:
        """Anything inside the session. Frames that left the peer before our end are ignored."""
        self.state = SESSION.after(self.state, SessionInput.RECV_FRAME)
        if self.state is not SessionState.MAPPED:
            return None
        if isinstance(performative, Transfer):
            return self._on_transfer(performative, payload)
        if isinstance(performative, Flow):
            return self._on_flow(performative)
        if isinstance(performative, Disposition):
            return DispositionReceived(self, performative)
        if isinstance(performative, Attach):
            return self._on_attach(performative)
        assert isinstance(performative, Detach)
        return self._on_detach(performative)

    def on_run(self, run: TransferRun, data: bytes) -> Event | None:
        self.state = SESSION.after(self.state, SessionInput.RECV_FRAME)
        self._received(run.count)
        if self.state is not SessionState.MAPPED:
            return None
        return self._attached(run.handle).on_run(run, data)

    def on_end(self, end: End) -> Event | None:
        self.state = SESSION.after(self.state, SessionInput.RECV_END)
        if self.state is SessionState.END_RCVD:
            self.end()
        else:
            self.connection.forget_session(self)
        return EndReceived(self, end.error)

    def _received(self, frames: int) -> None:
        # The peer's window is not enforced (E20), only kept open: our flow says how far we read.
        self._next_incoming_id = serial_add(self._next_incoming_id, frames)
        self._frames_since_flow += frames
        if self._frames_since_flow * 2 >= self._incoming_window and self.is_mapped:
            self.send_flow()

    def _on_transfer(self, transfer: Transfer, payload: bytes) -> Event | None:
        self._received(1)
        return self._attached(transfer.handle).on_transfer(transfer, payload)

    def _on_flow(self, flow: Flow) -> Event | None:
        # AMQP 2.5.6: what the peer can take = its next-incoming-id + window - our next-outgoing-id;
        # a peer that has not seen our begin counts from our first id.
        first = flow.next_incoming_id if flow.next_incoming_id is not None else 1
        limit = serial_add(first, flow.incoming_window)
        self._remote_window = max(0, serial_distance(limit, self._next_outgoing_id))
        if flow.incoming_window >= 2**31:  # beyond what serial distance can say: take it as it is
            self._remote_window = 2**31 - 1
        link = None
        if flow.handle is not None:
            link = self.links.get(flow.handle)
            if link is None:
                raise _unattached(self, flow.handle)
            link.on_flow(flow)
        if flow.echo:  # AMQP 2.7.4: the peer asks for our state
            self.send_flow(link)
        return FlowReceived(self, link)

    def _on_attach(self, attach: Attach) -> Event | None:
        handle_max = self.connection.config.handle_max
        if attach.handle > handle_max:
            raise ResourceLimit(
                f"The handle {attach.handle} is above the {handle_max} that begin announced."
            )
        role = Role.SENDER if attach.role else Role.RECEIVER
        link = self._pending_link(attach.name, role)
        if link is None:
            if attach.handle in self.links:
                raise HandleInUse(f"The handle {attach.handle} is attached already.")
            handle = self._free_handle()
            link = Link(self, attach.name, role, handle)
            self._by_handle[handle] = link
        self.links[attach.handle] = link
        link.on_attach(attach)
        return AttachReceived(link) if link.state.name != "DETACH_SENT" else None

    def _pending_link(self, name: str, role: Role) -> Link | None:
        """Client: our own link that waits for this answer."""
        for link in self._by_handle.values():
            if link.name == name and link.role is role and link.attach is None:
                return link
        return None

    def _on_detach(self, detach: Detach) -> Event | None:
        link = self.links.get(detach.handle)
        if link is None:
            raise _unattached(self, detach.handle)
        was_ours = link.state.name == "DETACH_SENT"
        link.on_detach()
        if not was_ours:
            link.detach()  # AMQP 2.6.6: a detach is answered
        return DetachReceived(link, detach.error)

    def _attached(self, handle: int) -> Link:
        link = self.links.get(handle)
        if link is None:
            raise _unattached(self, handle)
        return link


def _unattached(session: Session, handle: int) -> RemoteSessionError:
    return RemoteSessionError(
        f"The handle {handle} is not attached on channel {session.remote_channel}."
    )
