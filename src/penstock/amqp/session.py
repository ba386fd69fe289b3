"""One session (AMQP 2.5): channels, windows, the table of its links.

The session window counts transfer frames, of all links together (AMQP 2.5.6). Each side keeps two
numbers of it:

    outgoing   _remote_window: transfers that we may still send. A flow of the peer sets it again:
               next-incoming-id + incoming-window - _next_outgoing_id
    incoming   _next_incoming_id: the transfer that we expect next. Our flows carry it and always
               the same incoming window, so each one opens the window again

Transfer ids, like delivery ids, wrap at 2**32: only `serial` may add or compare them.

AMQP would let us end only the session when a peer breaks its rules. A peer that names an unknown
handle has lost its own state, so the engine closes the connection: every client recovers from that.
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

FIRST_OUTGOING_ID = 1  # as Azure Event Hubs (protocol.md 13)


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
    """One session. We send on `channel`; the peer sends on `remote_channel`."""

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
        # Each side numbers its handles itself. Frames carry the sender's number.
        self.links: dict[int, Link] = {}  # by the peer's handle
        self._by_handle: dict[int, Link] = {}  # by ours
        self._free_handles: list[int] = []  # heap of our handles below the highest used so far
        # Client: links whose attach is not answered. The answer has their name, not our handle.
        self._requested: dict[tuple[str, bool], Link] = {}
        self.next_delivery_id = 0  # of all our sending links; wraps at 2**32
        self._next_outgoing_id = FIRST_OUTGOING_ID  # of our transfer frames; wraps at 2**32
        self._next_incoming_id = 0  # of the peer's transfer frames; wraps at 2**32
        self._remote_window = 0  # transfer frames that the peer permits; never negative
        self._remote_handle_max = 2**32 - 1
        self._frames_since_flow = 0  # transfer frames received since our last flow

    def __repr__(self) -> str:
        return f"<Session {self.channel}/{self.remote_channel} {self.state.name}>"

    @property
    def is_mapped(self) -> bool:
        return self.state is SessionState.MAPPED

    @property
    def has_live_link(self) -> bool:
        """Whether a link is attached or being attached, and we have not detached it."""
        return any(
            link.state not in (LinkState.DETACH_SENT, LinkState.CLOSED)
            for link in self._by_handle.values()
        )

    @property
    def frame_bytes_max(self) -> int:
        return self.connection.frame_bytes_max_out

    @property
    def sendable_frames(self) -> int:
        """How many transfer frames the peer's window permits now."""
        return self._remote_window

    # --- sending --------------------------------------------------------------------------------

    def frame(self, body: bytes, payload: bytes = b"") -> bytes:
        return encode_frame(self.channel, body, payload)

    def send(self, performative: Performative) -> None:
        """Queue a frame, or drop it if the session has ended."""
        if SESSION.allows(self.state, SessionInput.SEND_FRAME):
            self.connection.send(self.channel, performative)

    def send_frame(self, frame: bytes) -> None:
        """Like `send`, for encoded frames."""
        if SESSION.allows(self.state, SessionInput.SEND_FRAME):
            self.connection.queue(frame)

    def send_transfers(self, data: bytes, *, deliveries: int, frames: int) -> None:
        """Queue encoded transfers and count them against the peer's window."""
        assert frames <= self._remote_window
        self.next_delivery_id = serial_add(self.next_delivery_id, deliveries)
        self._next_outgoing_id = serial_add(self._next_outgoing_id, frames)
        self._remote_window -= frames
        self.send_frame(data)

    def send_flow(
        self, link: Link | None = None, *, drain: bool = False, echo: bool = False
    ) -> None:
        """Send the state of the session's windows and, if given, of a link's credit.

        Every flow carries everything (E10): a peer sets its own state from it.
        """
        config = self.connection.config
        self._frames_since_flow = 0
        has_begin = self.remote_channel is not None
        flow = Flow(
            # AMQP 2.7.4: set if the peer's begin has arrived, and only then.
            next_incoming_id=self._next_incoming_id if has_begin else None,
            incoming_window=config.incoming_window,
            next_outgoing_id=self._next_outgoing_id,
            outgoing_window=config.outgoing_window,
            echo=echo,
        )
        if link is not None:
            flow.handle = link.handle
            # A receiver does not know the sender's count before the sender's attach.
            if link.role is LinkRole.SENDER or link.attach is not None:
                flow.delivery_count = link.delivery_count
            flow.link_credit = link.credit
            flow.drain = drain
        self.send(flow)

    def begin(self) -> None:
        """Send begin, as a request or as the answer to the peer's."""
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
        """End the session and its links. `EndReceived` follows when the peer has ended it too."""
        end = SessionInput.SEND_END if error is None else SessionInput.SEND_END_ERROR
        self.state = SESSION.after(self.state, end)
        self.connection.send(self.channel, End(error=error))
        self.close_links()

    def new_link(self, name: str, role: LinkRole) -> Link:
        """Client: create a link; its `request` sends the attach.

        Raises LocalError if a link of this name and role waits for its answer, or at a limit.
        """
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
        """The link is detached on both sides: free its handles. Safe to call twice, also when a new
        link already has the handle."""
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
        # Used and freed handles together are 0..n-1 without a gap: if none is freed, the number of
        # links is the next unused handle.
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
        """Handle a frame of the session. Those that the peer sent before our end are ignored."""
        self.state = SESSION.after(self.state, SessionInput.RECV_FRAME)
        if self.state is not SessionState.MAPPED:
            return
        if isinstance(performative, Transfer):
            self._on_transfer(performative, payload, events)
        elif isinstance(performative, Flow):
            self._on_flow(performative, events)
        elif isinstance(performative, Disposition):
            # A peer may name a range of 2**31 deliveries: nothing here may iterate over it.
            events.append(DispositionReceived(self, performative))
        elif isinstance(performative, Attach):
            self._on_attach(performative, events)
        else:
            assert isinstance(performative, Detach)
            self._on_detach(performative, events)

    def on_run(self, run: TransferRun, data: bytes, events: EventSink[SessionEvent]) -> bool:
        """Handle a run of whole deliveries. Returns False if the caller must decode the first frame
        by itself: with a partial delivery on the link, that frame is its last one (E20)."""
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
        # Our window is announced and not enforced (E20). A flow at half of it opens it again before
        # the peer has used it up, so that a sender never waits for a round trip.
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
        # AMQP 2.5.6: transfers that the peer had not seen when it wrote the flow use part of the
        # window. A peer that has not seen our begin sends no id: it has seen nothing. The distance
        # is negative if the peer claims to have seen more than we sent; that must not widen the
        # window.
        seen = FIRST_OUTGOING_ID if flow.next_incoming_id is None else flow.next_incoming_id
        unseen = max(0, serial_distance(self._next_outgoing_id, seen))
        self._remote_window = max(0, flow.incoming_window - unseen)
        link = None
        if flow.handle is not None:
            link = self._find_attached_link(flow.handle)
            link.on_flow(flow)
        if flow.echo:  # AMQP 2.7.4: the peer asks for our state
            has_link = link is not None and LINK.allows(link.state, LinkInput.SEND_FLOW)
            self.send_flow(link if has_link else None)
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
        # Assigned before it is counted: if `add_text` raises, forget_link takes it back.
        link.text_size = _count_text(attach)
        self.connection.allowance.add_text(link.text_size)
        link.on_attach(attach)
        if link.state is not LinkState.DETACH_SENT:
            events.append(AttachReceived(link))

    def _on_detach(self, detach: Detach, events: EventSink[SessionEvent]) -> None:
        link = self.links.get(detach.handle)
        if link is not None:  # None: a second detach, which is harmless
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
    """Characters of the texts that the link keeps as long as it exists."""
    source = attach.source.address if attach.source is not None else None
    target = attach.target.address if isinstance(attach.target, Target) else None
    return len(attach.name) + len(source or "") + len(target or "")
