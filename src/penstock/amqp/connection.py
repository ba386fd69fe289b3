"""The AMQP 1.0 protocol engine: bytes and time in, events and bytes out; one engine, both roles.

    engine.receive_data(data, now_ms=...) -> events      what one read of the socket meant
    engine.bytes_to_send(now_ms=...)      -> bytes       what to write now
    engine.next_deadline_ms()             -> int | None  when to call on_time
    engine.on_time(now_ms=...)            -> events      sends heartbeats, drops silent peers

The engine has no socket, clock or task. One thread at a time may use it. A peer's mistake ends the
connection with ConnectionFailed and never raises; a caller's mistake raises LocalError or fails an
assertion. The engine drops what a caller sends on a link, session or connection that has ended:
`receive_data` returns its events after it has parsed the whole read, so when a caller handles an
event, the peer may already have closed.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import ClassVar, Final, TypeAlias

from penstock.amqp.config import ConnectionConfig, PeerAllowance, ResourceLimitExceeded
from penstock.amqp.decoder import SMALL
from penstock.amqp.errors import (
    AmqpError,
    AmqpNotAllowed,
    ConnectionTimedOut,
    FramingError,
    LocalError,
)
from penstock.amqp.events import (
    CloseReceived,
    ConnectionFailed,
    Event,
    OpenReceived,
)
from penstock.amqp.frames import (
    AMQP_FRAME,
    AMQP_HEADER,
    EMPTY_FRAME,
    FRAME_HEADER_BYTES,
    PROTOCOL_HEADER_BYTES,
    SASL_HEADER,
    encode_fitting_frame,
    parse_frame_header,
)
from penstock.amqp.handshake import Handshake
from penstock.amqp.performatives import (
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Error,
    Flow,
    Open,
    Performative,
    Transfer,
    decode_performative,
    trim_open,
)
from penstock.amqp.session import Session
from penstock.amqp.states import (
    CONNECTION,
    ConnectionInput,
    ConnectionState,
    IllegalState,
    SaslState,
)
from penstock.amqp.transfer_scanner import scan_transfers

__all__ = ["ConnectionConfig", "ConnectionEngine"]

FRAME_BYTES_MIN: Final = 512  # AMQP 2.8.11: every peer accepts frames of this size
_TRANSFER: Final = b"\x00\x53\x14"
_IN_SESSION: Final = (Transfer, Flow, Disposition, Attach, Detach)
_ENDED_CHANNELS_MAX: Final = 64
_HEARTBEAT_MS_MIN: Final = 100  # a peer that asks for more must not cause a busy loop
_HEADER_STATES: Final = (  # in which the peer's AMQP header has not arrived
    ConnectionState.START,
    ConnectionState.HDR_SENT,
    ConnectionState.OPEN_PIPE,
    ConnectionState.OC_PIPE,
)
_Parser: TypeAlias = "Callable[[ConnectionEngine, bytes, int, list[Event]], int]"


class ConnectionEngine:
    """The state of one AMQP connection. `open` is the peer's open, reduced by `trim_open`."""

    __slots__ = (
        "_by_channel",
        "_ended_channels",
        "_free_channels",
        "_handshake",
        "_is_output_closed",
        "_out",
        "_sent_ms",
        "_started_ms",
        "allowance",
        "config",
        "frames_received",
        "has_more",
        "open",
        "pending",
        "received_ms",
        "sessions",
        "state",
    )

    def __init__(self, config: ConnectionConfig, *, now_ms: int) -> None:
        self.config = config
        self.state = ConnectionState.START
        self._handshake = Handshake(config)
        self.open: Open | None = None
        self.allowance = PeerAllowance(config)
        # Each side numbers its channels itself. Frames carry the sender's number.
        self.sessions: dict[int, Session] = {}  # by the peer's channel
        self._by_channel: dict[int, Session] = {}  # by ours
        self._free_channels: list[int] = []  # heap of our channels below the highest used so far
        self._ended_channels: dict[int, None] = {}  # the peer's, oldest first; bounded
        self._is_output_closed = False  # our close is queued: nothing may follow it
        # Unparsed bytes: an incomplete frame, or what `frames_max` left. A caller that reads the
        # socket into a buffer after a copy of these bytes clears them and passes in the whole.
        self.pending = b""
        self._out: list[bytes] = []
        self._started_ms = now_ms
        self.received_ms = now_ms
        self._sent_ms = now_ms
        self.frames_received = 0  # without runs of transfers: a measure of the work for the peer
        self.has_more = False  # the last receive_data stopped at frames_max

    def __repr__(self) -> str:
        return f"<Connection {self.config.container_id!r} {self.state.name}>"

    # --- for the caller -------------------------------------------------------------------------

    @property
    def is_opened(self) -> bool:
        return self.state is ConnectionState.OPENED

    @property
    def is_over(self) -> bool:
        """Whether the connection has ended: write what is queued and close the socket."""
        return self.state is ConnectionState.END

    @property
    def sasl_state(self) -> SaslState:
        return self._handshake.state

    @property
    def frame_bytes_max_out(self) -> int:
        """The largest frame that may be sent now."""
        peer_max = self.open.max_frame_size if self.open is not None else FRAME_BYTES_MIN
        return min(peer_max, self.config.max_frame_size)

    @property
    def held_bytes(self) -> int:
        """Bytes that the peer makes the engine keep: part of a frame, partial deliveries."""
        return len(self.pending) + self.allowance.partial_bytes

    def receive_data(
        self, data: bytes | memoryview, *, now_ms: int, frames_max: int | None = None
    ) -> list[Event]:
        """Parse received bytes; returns their events in order. Never raises for a peer's mistake.

        A memoryview is copied before this returns, so the caller may reuse the socket's buffer.
        With `frames_max` parsing stops after that many frames, not counting runs of transfers;
        `has_more` is then True and the next call, also with b"", continues.
        """
        self.received_ms = now_ms
        self.has_more = False
        stop = None if frames_max is None else self.frames_received + frames_max
        events: list[Event] = []
        if self.is_over:
            return events
        is_whole = isinstance(data, bytes) and not self.pending
        buffer = bytes(data) if is_whole else self.pending + data
        position = 0
        try:
            if self._handshake.state is SaslState.INIT_RECEIVED:
                self._check_early_bytes(len(buffer))
            while not self.is_over:
                if self.frames_received == stop:
                    self.has_more = position < len(buffer)
                    break
                before = position
                position = self._PARSERS[self.state](self, buffer, position, events)
                if position == before:
                    break
        except LocalError:  # our own mistake, not the peer's
            raise
        except AmqpError as error:
            self._fail(error, events)
        self.pending = b"" if self.is_over else buffer[position:]
        return events

    def _check_early_bytes(self, size: int) -> None:
        """Bound what a client sends before its SASL outcome: the engine keeps it unparsed."""
        if size > self.config.max_frame_size:
            raise ResourceLimitExceeded(
                f"{size} bytes came before SASL was over: at most {self.config.max_frame_size} "
                "are kept."
            )

    def bytes_to_send(self, *, now_ms: int) -> bytes:
        """What was queued since the last call. The caller must write all of it."""
        if not self._out:
            return b""
        data = self._out[0] if len(self._out) == 1 else b"".join(self._out)
        self._out.clear()
        self._sent_ms = now_ms
        return data

    def extend_handshake(self, waited_ms: int) -> None:
        """Give the peer more time for its header and open: its bytes waited for the caller."""
        self._started_ms += waited_ms

    def next_deadline_ms(self) -> int | None:
        """When `on_time` must be called at the latest; None if there is no deadline."""
        if self.is_over:
            return None
        due = []
        if self.open is None:
            due.append(self._started_ms + self.config.open_deadline_ms)
            if self._lacks_header:
                due.append(self._started_ms + self.config.header_deadline_ms)
        elif self.config.idle_time_out_ms:
            due.append(self.received_ms + 2 * self.config.idle_time_out_ms)
        oldest_ms = self.allowance.oldest_partial_ms()
        if oldest_ms is not None:
            due.append(oldest_ms + self.config.delivery_deadline_ms)
        if self._heartbeat_ms is not None:
            due.append(self._sent_ms + self._heartbeat_ms)
        return min(due) if due else None

    def on_time(self, *, now_ms: int) -> list[Event]:
        """Check the deadlines: end the connection if the peer missed one, else send heartbeats."""
        events: list[Event] = []
        if self.is_over:
            return events
        error = self._timeout_error(now_ms)
        if error is not None:
            self._fail(error, events)
        elif self._heartbeat_ms is not None and now_ms >= self._sent_ms + self._heartbeat_ms:
            self.queue(EMPTY_FRAME)
        return events

    @property
    def _lacks_header(self) -> bool:
        """Whether no protocol header arrived yet, neither SASL's nor AMQP's."""
        return self.state in _HEADER_STATES and not self._handshake.has_sasl_header

    @property
    def _heartbeat_ms(self) -> int | None:
        """Half of the idle-time-out that the peer announced (protocol.md 1.6)."""
        if self.open is None or not self.open.idle_time_out or not self.is_opened:
            return None
        return max(_HEARTBEAT_MS_MIN, self.open.idle_time_out // 2)

    def _timeout_error(self, now_ms: int) -> AmqpError | None:
        config = self.config
        oldest_ms = self.allowance.oldest_partial_ms()
        if oldest_ms is not None and now_ms - oldest_ms >= config.delivery_deadline_ms:
            return ConnectionTimedOut(
                f"A delivery got no frame for {config.delivery_deadline_ms} milliseconds."
            )
        if self.open is None:
            waited = now_ms - self._started_ms
            if self._lacks_header and waited >= config.header_deadline_ms:
                return ConnectionTimedOut(
                    f"No protocol header came within {config.header_deadline_ms} milliseconds."
                )
            if waited >= config.open_deadline_ms:
                return ConnectionTimedOut(
                    f"No open came within {config.open_deadline_ms} milliseconds."
                )
        elif config.idle_time_out_ms:
            allowed = 2 * config.idle_time_out_ms
            if now_ms - self.received_ms >= allowed:
                return ConnectionTimedOut(
                    f"The connection was inactive for more than the allowed {allowed} milliseconds "
                    f"and is closed by container '{config.container_id}'."
                )
        return None

    # --- for the application --------------------------------------------------------------------

    def start(self) -> None:
        """Client: send the first protocol header."""
        assert not self.config.server
        if self.config.sasl:
            self.queue(self._handshake.start())
        else:
            self._send_header()

    def init_sasl(self, mechanism: str, response: bytes | None) -> None:
        """Client: answer SaslMechanismsReceived with one of the mechanisms."""
        self.queue(self._handshake.init(mechanism, response))

    def answer_sasl(self, *, ok: bool) -> None:
        """Server: answer SaslInitReceived. Call receive_data again, if only with b"": the bytes
        after sasl-init have not been parsed yet."""
        self.queue(self._handshake.answer(ok=ok))
        if not ok:
            self._disconnect()

    def send_open(self) -> None:
        """Client: announce our limits. A server answers the peer's open by itself."""
        config = self.config
        self.state = CONNECTION.after(self.state, ConnectionInput.SEND_OPEN)
        self.send(
            0,
            Open(
                container_id=config.container_id,
                hostname=None if config.server else config.hostname,
                max_frame_size=config.max_frame_size,  # E4
                channel_max=config.channel_max,
                idle_time_out=config.idle_time_out_ms,
                properties=config.properties,
            ),
        )

    def begin(self) -> Session:
        """Client: begin a session. Raises LocalError if no further one is allowed."""
        CONNECTION.after(self.state, ConnectionInput.SEND_FRAME)
        try:
            session = self._new_session()
        except ResourceLimitExceeded as error:
            raise LocalError(str(error)) from None
        session.begin()
        return session

    def close(self, error: Error | None = None) -> None:
        """Send close. Does nothing if that was sent before, or if open was not."""
        close = ConnectionInput.SEND_CLOSE
        if error is not None and self.is_opened:
            close = ConnectionInput.SEND_CLOSE_ERROR
        if CONNECTION.allows(self.state, close):
            self.send(0, Close(error=error))
            self.state = CONNECTION.after(self.state, close)
            self._is_output_closed = True

    # --- for sessions and links -----------------------------------------------------------------

    def queue(self, data: bytes) -> None:
        """Add bytes to the next bytes_to_send. Nothing may follow our close (AMQP 2.4.6)."""
        if not self._is_output_closed:
            self._out.append(data)

    def send(self, channel: int, performative: Performative) -> None:
        """Queue a performative as a frame within the peer's limit."""
        limit = self.frame_bytes_max_out
        self.queue(encode_fitting_frame(channel, performative, frame_bytes_max=limit))

    def forget_session(self, session: Session) -> None:
        """Both sides ended the session: its channels are free."""
        assert session.remote_channel is not None
        del self.sessions[session.remote_channel]
        del self._by_channel[session.channel]
        heappush(self._free_channels, session.channel)
        # See `_find_session`. The peer could end any number of sessions, so the oldest is dropped.
        self._ended_channels[session.remote_channel] = None
        if len(self._ended_channels) > _ENDED_CHANNELS_MAX:
            del self._ended_channels[next(iter(self._ended_channels))]

    # --- parsing --------------------------------------------------------------------------------
    #
    # Each parser takes one protocol header, one frame or one run of transfers. It returns the
    # position after that, or `position` if more bytes are needed. The tables below select it.

    def _parse_before_header(self, buffer: bytes, position: int, events: list[Event]) -> int:
        return self._SASL_PARSERS[self._handshake.state](self, buffer, position, events)

    def _wait_for_outcome(self, buffer: bytes, position: int, events: list[Event]) -> int:
        return position  # the caller answers SaslInitReceived first

    def _parse_header(self, buffer: bytes, position: int, events: list[Event]) -> int:
        header = buffer[position : position + PROTOCOL_HEADER_BYTES]
        try:
            self._handshake.check_header(header)
        except FramingError:
            if self.config.server:
                # AMQP 2.2: answer with a header that we support, then close.
                self.queue(self._handshake.expected_headers[0])
            raise
        if len(header) < PROTOCOL_HEADER_BYTES:
            return position
        if header == SASL_HEADER:
            answer = self._handshake.on_sasl_header()
            if answer:
                self.queue(answer)
        else:
            self.state = CONNECTION.after(self.state, ConnectionInput.RECV_HEADER)
            if self.config.server:
                self._send_header()
        return position + PROTOCOL_HEADER_BYTES

    def _send_header(self) -> None:
        self.state = CONNECTION.after(self.state, ConnectionInput.SEND_HEADER)
        self.queue(AMQP_HEADER)

    def _parse_sasl_frame(self, buffer: bytes, position: int, events: list[Event]) -> int:
        frame = self._handshake.read_frame(buffer, position)
        if frame is None:
            return position
        performative, end = frame
        self.frames_received += 1
        events.append(self._handshake.on_frame(performative))
        if self._handshake.state is SaslState.DONE:  # client; a server is done in answer_sasl
            self._send_header()
        return end

    def _parse_frame(self, buffer: bytes, position: int, events: list[Event]) -> int:
        available = len(buffer) - position
        if available < FRAME_HEADER_BYTES:
            return position
        # The hot path: thousands of small transfers in one step, without a decoded object each.
        if buffer.startswith(_TRANSFER, position + FRAME_HEADER_BYTES) and self.is_opened:
            after = self._take_run(buffer, position, events)
            if after != position:
                return after
        # The size is checked before the engine waits for the frame: what it keeps of an incomplete
        # one is bounded.
        size, body, frame_type, channel = parse_frame_header(
            buffer, position, frame_bytes_max=self._frame_bytes_max_in
        )
        end = position + size
        if available < size:
            return position
        self.frames_received += 1
        if frame_type != AMQP_FRAME:
            raise FramingError(
                f"A frame of type {frame_type} arrived: type {AMQP_FRAME} is expected."
            )
        if body < end:  # an empty frame is a heartbeat (AMQP 2.4.5)
            self._take_frame(buffer, body, end, channel, events)
        return end

    # The parser of each state; lists, because enums hash slowly. While the connection is START, the
    # SASL exchange decides. A client may send open and close before it has the peer's header.
    _PARSERS: ClassVar[list[_Parser]] = [_parse_frame] * len(ConnectionState)
    _PARSERS[ConnectionState.START] = _parse_before_header
    _PARSERS[ConnectionState.HDR_SENT] = _parse_header
    _PARSERS[ConnectionState.OPEN_PIPE] = _parse_header
    _PARSERS[ConnectionState.OC_PIPE] = _parse_header
    _SASL_PARSERS: ClassVar[list[_Parser]] = [_parse_sasl_frame] * len(SaslState)
    _SASL_PARSERS[SaslState.START] = _parse_header
    _SASL_PARSERS[SaslState.HEADER_SENT] = _parse_header
    _SASL_PARSERS[SaslState.INIT_RECEIVED] = _wait_for_outcome
    _SASL_PARSERS[SaslState.DONE] = _parse_header

    @property
    def _frame_bytes_max_in(self) -> int:
        if self.open is None:
            return self.config.frame_bytes_max_before_open
        return self.config.max_frame_size

    def _take_run(self, buffer: bytes, position: int, events: list[Event]) -> int:
        run = scan_transfers(
            buffer, position, len(buffer), frame_bytes_max=self.config.max_frame_size
        )
        if run is None:
            return position
        session = self._find_session(run.channel)
        if session is None or session.on_run(run, buffer, events):
            return run.next_position
        return position

    def _take_frame(
        self, buffer: bytes, body: int, end: int, channel: int, events: list[Event]
    ) -> None:
        performative, payload_start = decode_performative(buffer, body, end, limits=SMALL)
        kind = type(performative)
        if payload_start < end and kind is not Transfer:
            raise FramingError(f"{kind.__name__} carries a payload: none is allowed.")
        if kind in _IN_SESSION:
            self.state = CONNECTION.after(self.state, ConnectionInput.RECV_FRAME)
            session = self._find_session(channel) if self.is_opened else None
            if session is not None:
                session.on_frame(performative, buffer[payload_start:end], events)
        elif isinstance(performative, Open):
            self._on_open(performative, events)
        elif isinstance(performative, Begin):
            self._on_begin(performative, channel, events)
        elif isinstance(performative, End):
            self._on_end(performative, channel, events)
        elif isinstance(performative, Close):
            self._on_close(performative, events)
        else:
            raise AmqpNotAllowed(f"{kind.__name__} has no place outside SASL.")

    def _on_open(self, opened: Open, events: list[Event]) -> None:
        self.state = CONNECTION.after(self.state, ConnectionInput.RECV_OPEN)
        if opened.max_frame_size < FRAME_BYTES_MIN:
            raise FramingError(
                f"open announces max-frame-size {opened.max_frame_size}: "
                f"at least {FRAME_BYTES_MIN} is needed."
            )
        self.open = trim_open(opened)
        if self.state is ConnectionState.OPEN_RCVD:
            self.send_open()
        events.append(OpenReceived(self.open))

    def _on_begin(self, begin: Begin, channel: int, events: list[Event]) -> None:
        self.state = CONNECTION.after(self.state, ConnectionInput.RECV_FRAME)
        if not self.is_opened:
            return
        if channel > self.config.channel_max:  # AMQP 2.7.1
            raise FramingError(
                f"The channel {channel} is above the announced {self.config.channel_max}."
            )
        current = self.sessions.get(channel)
        if current is not None:
            if begin.remote_channel is not None or current.has_live_link:
                raise IllegalState(f"The channel {channel} has a session already.")
            # Older .NET clients abandon the session of a refused link without `end` and begin the
            # next one on its channel. Closing the connection would cost its other links.
            events.append(current.on_end(End()))
        if begin.remote_channel is None:
            session = self._new_session()
        else:  # the answer to ours
            begun = self._by_channel.get(begin.remote_channel)
            if begun is None:
                raise IllegalState(f"begin answers channel {begin.remote_channel}: not begun.")
            session = begun
        self._ended_channels.pop(channel, None)
        self.sessions[channel] = session
        events.append(session.on_begin(begin, channel))
        if begin.remote_channel is None:
            session.begin()

    def _new_session(self) -> Session:
        if len(self._by_channel) >= self.config.sessions_max:
            raise ResourceLimitExceeded(
                f"This connection has {len(self._by_channel)} sessions: "
                f"at most {self.config.sessions_max} are allowed."
            )
        # Used and freed channels together are 0..n-1 without a gap: if none is freed, the number of
        # sessions is the next unused channel.
        channel = self._free_channels[0] if self._free_channels else len(self._by_channel)
        if self.open is not None and channel > self.open.channel_max:
            raise ResourceLimitExceeded(
                f"The peer takes channels up to {self.open.channel_max}: none is free."
            )
        if self._free_channels:
            heappop(self._free_channels)
        session = self._by_channel[channel] = Session(self, channel)
        return session

    def _on_end(self, end: End, channel: int, events: list[Event]) -> None:
        self.state = CONNECTION.after(self.state, ConnectionInput.RECV_FRAME)
        session = self._find_session(channel) if self.is_opened else None
        if session is not None:
            events.append(session.on_end(end))

    def _find_session(self, channel: int) -> Session | None:
        """The session on the peer's channel; None if it ended, because the Python SDK sends detach
        after end (E19). Raises IllegalState if there never was one."""
        session = self.sessions.get(channel)
        if session is None and channel not in self._ended_channels:
            raise IllegalState(f"A frame arrived on channel {channel}, which has no session.")
        return session

    def _on_close(self, close: Close, events: list[Event]) -> None:
        self.state = CONNECTION.after(self.state, ConnectionInput.RECV_CLOSE)
        self.close()
        self._disconnect()
        events.append(CloseReceived(close.error))

    def _fail(self, error: AmqpError, events: list[Event]) -> None:
        """End the connection; send the error if the peer can receive it (AMQP 2.4.3)."""
        if self.state in (ConnectionState.HDR_EXCH, ConnectionState.OPEN_RCVD):
            self.send_open()  # close may not come before open
        self.close(Error(condition=error.condition, description=str(error)))
        self._disconnect()
        events.append(ConnectionFailed(error))

    def disconnect(self) -> None:
        """The caller closed the socket, or found it closed."""
        if not self.is_over:
            self._disconnect()

    def _disconnect(self) -> None:
        """Accept no further input or output. Sessions and links refer to the engine: drop them, so
        that reference counting frees the memory at once."""
        self.state = CONNECTION.after(self.state, ConnectionInput.DISCONNECT)
        self._is_output_closed = True
        self.pending = b""
        for session in self._by_channel.values():
            session.close_links()
        self.sessions.clear()
        self._by_channel.clear()
