"""One session (AMQP 2.5): channels, windows, the table of its links.

AMQP would let us end only the session when a peer breaks its rules. A peer that names a handle that
is not there has lost track of itself, so the connection is closed, which every client survives.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Protocol, TypeAlias

import msgspec

from penstock.amqp.config import ResourceLimitExceeded
from penstock.amqp.errors import (
    FramingError,
    HandleInUse,
    LocalError,
    RemoteSessionError,
    quote_peer_text,
)
from penstock.amqp.frames import encode_frame
from penstock.amqp.link import (
    EventSink,
    Link,
    LinkConnection,
    LinkRole,
    TransferEvent,
)
from penstock.amqp.performatives import (
    Attach,
    Begin,
    Detach,
    Disposition,
    End,
    Error,
    Flow,
    Performative,
    Target,
    Transfer,
)
from penstock.amqp.serial import serial_add, serial_distance
from penstock.amqp.states import LINK, SESSION, LinkInput, LinkState, SessionInput, SessionState
from penstock.amqp.transfer_run import TransferRun

FIRST_OUTGOING_ID = 1  # as the real service (protocol.md 13)


class BeginReceived(msgspec.Struct):
    session: Session


class AttachReceived(msgspec.Struct):
    """Server: call `link.accept` or `link.refuse`. Client: the answer to our attach."""

    link: Link


class FlowReceived(msgspec.Struct):
    """Credit or window changed. `link` is None for a flow of the whole session."""

    session: Session
    link: Link | None


class DispositionReceived(msgspec.Struct):
    session: Session
    disposition: Disposition


class DetachReceived(msgspec.Struct):
    link: Link
    error: Error | None


class EndReceived(msgspec.Struct):
    session: Session
    error: Error | None


SessionEvent: TypeAlias = (
    BeginReceived
    | AttachReceived
    | FlowReceived
    | TransferEvent
    | DispositionReceived
    | DetachReceived
    | EndReceived
)


class SessionConnection(LinkConnection, Protocol):
    """What a session uses of its connection."""

    @property
    def frame_bytes_max_out(self) -> int: ...

    def send(self, channel: int, performative: Performative) -> None: ...
    def queue(self, data: bytes) -> None: ...
    def forget_session(self, session: Session) -> None: ...


class Session:
    """`channel` is ours; the peer's own is `remote_channel`."""

    __slots__ = (
        "_by_handle",
        "_frames_since_flow",
        "_free_handles",
        "_next_incoming_id",
        "_next_outgoing_id",
        "_remote_handle_max",
        "_remote_window",
        "_requested",
        "channel",
        "connection",
        "links",
        "next_delivery_id",
        "remote_channel",
        "state",
    )

    def __init__(self, connection: SessionConnection, channel: int) -> None:
        self.connection = connection
        self.channel = channel
        self.remote_channel: int | None = None
        self.state = SessionState.UNMAPPED
        self.links: dict[int, Link] = {}  # by the peer's handle
        self._by_handle: dict[int, Link] = {}  # by ours
        self._free_handles: list[int] = []  # a heap: below the highest in use
        self._requested: dict[tuple[str, bool], Link] = {}  # client: not answered yet
        self.next_delivery_id = 0
        self._next_outgoing_id = FIRST_OUTGOING_ID
        self._next_incoming_id = 0
        self._remote_window = 0
        self._remote_handle_max = 2**32 - 1
        self._frames_since_flow = 0

    def __repr__(self) -> str:
        return f"<Session {self.channel}/{self.remote_channel} {self.state.name}>"

    @property
    def is_mapped(self) -> bool:
        return self.state is SessionState.MAPPED

    @property
    def has_live_link(self) -> bool:
        """Whether a link is attached or being attached; one that we detached is not."""
        return any(
            link.state not in (LinkState.DETACH_SENT, LinkState.CLOSED)
            for link in self._by_handle.values()
        )

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
        """Queue a frame; dropped when the session is over, as nobody listens any more."""
        if SESSION.allows(self.state, SessionInput.SEND_FRAME):
            self.connection.send(self.channel, performative)

    def send_frame(self, frame: bytes) -> None:
        if SESSION.allows(self.state, SessionInput.SEND_FRAME):
            self.connection.queue(frame)

    def sent_frames(self, data: bytes, *, deliveries: int, frames: int) -> None:
        assert frames <= self._remote_window
        self.next_delivery_id = serial_add(self.next_delivery_id, deliveries)
        self._next_outgoing_id = serial_add(self._next_outgoing_id, frames)
        self._remote_window -= frames
        self.send_frame(data)

    def send_flow(
        self, link: Link | None = None, *, drain: bool = False, echo: bool = False
    ) -> None:
        config = self.connection.config
        self._frames_since_flow = 0
        begun = self.remote_channel is not None
        flow = Flow(
            # AMQP 2.7.4: set as soon as the peer's begin came, and not before (E10).
            next_incoming_id=self._next_incoming_id if begun else None,
            incoming_window=config.incoming_window,
            next_outgoing_id=self._next_outgoing_id,
            outgoing_window=config.outgoing_window,
            echo=echo,
        )
        if link is not None:
            flow.handle = link.handle
            if link.role is LinkRole.SENDER or link.attach is not None:
                flow.delivery_count = link.delivery_count
            flow.link_credit = link.credit
            flow.drain = drain
        self.send(flow)

    def begin(self) -> None:
        """Send begin: the client's first word, or the server's answer."""
        config = self.connection.config
        self.state = SESSION.after(self.state, SessionInput.SEND_BEGIN)
        self.connection.send(
            self.channel,
            Begin(
                remote_channel=self.remote_channel,
                next_outgoing_id=self._next_outgoing_id,
                incoming_window=config.incoming_window,
                outgoing_window=config.outgoing_window,
                handle_max=config.handle_max,  # E4
            ),
        )

    def end(self, error: Error | None = None) -> None:
        """End the session and all its links; `EndReceived` tells when the peer agreed."""
        given = SessionInput.SEND_END if error is None else SessionInput.SEND_END_ERROR
        self.state = SESSION.after(self.state, given)
        self.connection.send(self.channel, End(error=error))
        self.close_links()

    def new_link(self, name: str, role: LinkRole) -> Link:
        """Client: a link that `request` will ask for."""
        key = (name, bool(role))
        if key in self._requested:
            raise LocalError(f"A link {quote_peer_text(name)} is being attached already.")
        try:
            link = self._add_link(name, role)
        except ResourceLimitExceeded as error:
            raise LocalError(str(error)) from None
        self._requested[key] = link
        return link

    def forget_link(self, link: Link) -> None:
        """It is detached on both sides: its handles are free. Said twice, nothing happens."""
        if self._by_handle.get(link.handle) is not link:
            return
        del self._by_handle[link.handle]
        heappush(self._free_handles, link.handle)
        if link.remote_handle is not None:
            del self.links[link.remote_handle]
        key = (link.name, bool(link.role))
        if self._requested.get(key) is link:
            del self._requested[key]
        self.connection.allowance.drop_link(link.text_size)

    def close_links(self) -> None:
        for link in list(self._by_handle.values()):
            link.on_session_end()

    def _add_link(self, name: str, role: LinkRole) -> Link:
        # Handles in use and freed ones fill 0..n-1 without a gap.
        handle = self._free_handles[0] if self._free_handles else len(self._by_handle)
        if handle > self._remote_handle_max:
            raise ResourceLimitExceeded(
                f"The peer takes handles up to {self._remote_handle_max}: none is free."
            )
        self.connection.allowance.add_link()
        if self._free_handles:
            heappop(self._free_handles)
        link = self._by_handle[handle] = Link(self, name, role, handle)
        return link

    # --- receiving ------------------------------------------------------------------------------

    def on_begin(self, begin: Begin, remote_channel: int) -> SessionEvent:
        self.state = SESSION.after(self.state, SessionInput.RECV_BEGIN)
        self.remote_channel = remote_channel
        self._next_incoming_id = begin.next_outgoing_id
        self._remote_window = begin.incoming_window
        self._remote_handle_max = begin.handle_max
        return BeginReceived(self)

    def on_frame(
        self, performative: Performative, payload: bytes, events: EventSink[SessionEvent]
    ) -> None:
        """Anything inside the session. Frames that left the peer before our end are ignored."""
        self.state = SESSION.after(self.state, SessionInput.RECV_FRAME)
        if self.state is not SessionState.MAPPED:
            return
        if isinstance(performative, Transfer):
            self._on_transfer(performative, payload, events)
        elif isinstance(performative, Flow):
            self._on_flow(performative, events)
        elif isinstance(performative, Disposition):
            # The range is not walked, however absurd it is (expectations.md H.1).
            events.append(DispositionReceived(self, performative))
        elif isinstance(performative, Attach):
            self._on_attach(performative, events)
        else:
            assert isinstance(performative, Detach)
            self._on_detach(performative, events)

    def on_run(self, run: TransferRun, data: bytes, events: EventSink[SessionEvent]) -> bool:
        """A run of whole deliveries. False: decode the first frame by itself.

        That one ends a delivery whose other frames came before: it looks the same (E20).
        """
        self.state = SESSION.after(self.state, SessionInput.RECV_FRAME)
        if self.state is SessionState.MAPPED:
            link = self._find_attached_link(run.handle)
            if link.has_partial_delivery:
                return False
            self._count_received_frames(run.count)
            link.on_run(run, data, events)
        return True

    def on_end(self, end: End) -> SessionEvent:
        self.state = SESSION.after(self.state, SessionInput.RECV_END)
        if self.state is SessionState.END_RCVD:
            self.end()
        self.connection.forget_session(self)
        return EndReceived(self, end.error)

    def _count_received_frames(self, frames: int) -> None:
        # The peer's window is not enforced (E20), only kept open: our flow says how far we read.
        self._next_incoming_id = serial_add(self._next_incoming_id, frames)
        self._frames_since_flow += frames
        if self._frames_since_flow * 2 >= self.connection.config.incoming_window:
            self.send_flow()

    def _on_transfer(
        self, transfer: Transfer, payload: bytes, events: EventSink[SessionEvent]
    ) -> None:
        link = self._find_attached_link(transfer.handle)
        self._count_received_frames(1)
        link.on_transfer(transfer, payload, events)

    def _on_flow(self, flow: Flow, events: EventSink[SessionEvent]) -> None:
        # AMQP 2.5.6: what the peer had not seen when it wrote this takes room in its window; one
        # that has not seen our begin counts from our first id.
        seen = FIRST_OUTGOING_ID if flow.next_incoming_id is None else flow.next_incoming_id
        unseen = max(0, serial_distance(self._next_outgoing_id, seen))
        self._remote_window = max(0, flow.incoming_window - unseen)
        link = None
        if flow.handle is not None:
            link = self._find_attached_link(flow.handle)
            link.on_flow(flow)
        if flow.echo:  # AMQP 2.7.4: the peer asks for our state
            known = link is not None and LINK.allows(link.state, LinkInput.SEND_FLOW)
            self.send_flow(link if known else None)
        events.append(FlowReceived(self, link))

    def _on_attach(self, attach: Attach, events: EventSink[SessionEvent]) -> None:
        handle_max = self.connection.config.handle_max
        if attach.handle > handle_max:  # AMQP 2.7.2
            raise FramingError(
                f"The handle {attach.handle} is above the {handle_max} that begin announced."
            )
        if attach.handle in self.links:
            raise HandleInUse(f"The handle {attach.handle} is attached already.")
        role = LinkRole.SENDER if attach.role else LinkRole.RECEIVER
        link = self._requested.pop((attach.name, bool(role)), None)
        if link is None:
            link = self._add_link(attach.name, role)
        self.links[attach.handle] = link
        link.text_size = _count_text(attach)
        self.connection.allowance.add_text(link.text_size)
        link.on_attach(attach)
        if link.state is not LinkState.DETACH_SENT:
            events.append(AttachReceived(link))

    def _on_detach(self, detach: Detach, events: EventSink[SessionEvent]) -> None:
        link = self.links.get(detach.handle)
        if link is not None:  # a second detach does no harm
            link.on_detach(detach)
            events.append(DetachReceived(link, detach.error))

    def _find_attached_link(self, handle: int) -> Link:
        link = self.links.get(handle)
        if link is None:
            raise RemoteSessionError(
                f"The handle {handle} is not attached on channel {self.remote_channel}."
            )
        return link


def _count_text(attach: Attach) -> int:
    """Characters of the texts that live as long as the link."""
    source = attach.source.address if attach.source is not None else None
    target = attach.target.address if isinstance(attach.target, Target) else None
    return len(attach.name) + len(source or "") + len(target or "")
