"""The AMQP 1.0 engine: bytes and time in, events and bytes out; one engine, both roles.

    engine.receive_data(data, now_ms=...) -> events      what one read of the socket meant
    engine.bytes_to_send(now_ms=...)      -> bytes       what to write now
    engine.next_deadline_ms()             -> int | None  when to call on_time
    engine.on_time(now_ms=...)            -> events      heartbeats go out, silent peers are dropped

No socket, clock or task is in here. A peer's mistake ends the connection with ConnectionFailed and
never raises; a caller's mistake raises LocalError or an assertion. What a caller sends on a link,
session or connection that is over meanwhile is dropped: events are told after the whole read was
parsed, so the peer may have said goodbye already.
"""

from __future__ import annotations

from heapq import heappop, heappush

from penstock.amqp.config import ConnectionConfig, PeerAllowance, ResourceLimitExceeded
from penstock.amqp.decoder import SMALL
from penstock.amqp.errors import (
    AmqpError,
    AmqpNotAllowed,
    ConnectionTimedOut,
    FramingError,
    LocalError,
    SaslFailed,
)
from penstock.amqp.events import (
    CloseReceived,
    ConnectionFailed,
    Event,
    OpenReceived,
    SaslInitReceived,
    SaslMechanismsReceived,
    SaslOutcomeReceived,
)
from penstock.amqp.frames import (
    AMQP_HEADER,
    EMPTY_FRAME,
    SASL_FRAME,
    SASL_HEADER,
    encode_fitting_frame,
    encode_frame,
    parse_frame_header,
)
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
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    Transfer,
    decode_performative,
    encode_performative,
    trimmed_open,
)
from penstock.amqp.session import Session
from penstock.amqp.states import (
    CONNECTION,
    SASL,
    ConnectionInput,
    ConnectionState,
    IllegalState,
    SaslInput,
    SaslState,
)
from penstock.amqp.transfer_scanner import scan_transfers

__all__ = [
    "AmqpNotAllowed",
    "ConnectionConfig",
    "ConnectionEngine",
    "ConnectionTimedOut",
    "SaslFailed",
]

HEADER_SIZE = 8
FRAME_BYTES_MIN = 512  # AMQP 2.8.11: every peer takes frames of this size
_TRANSFER = b"\x00\x53\x14"
_IN_SESSION = (Transfer, Flow, Disposition, Attach, Detach)
_ENDED_CHANNELS_KEPT = 64
_HEARTBEAT_MS_MIN = 100  # a peer that wants more is not worth a busy loop


class ConnectionEngine:
    """One AMQP connection's whole state. `open` is what is kept of the peer's open once it came."""

    __slots__ = (
        "_by_channel",
        "_ended_channels",
        "_free_channels",
        "_header_done",
        "_out",
        "_sasl_open",
        "_sasl_used",
        "_sent_ms",
        "_silent",
        "_started_ms",
        "allowance",
        "config",
        "frames_received",
        "has_more",
        "open",
        "pending",
        "received_ms",
        "sasl_state",
        "sessions",
        "state",
    )

    def __init__(self, config: ConnectionConfig, *, now_ms: int) -> None:
        self.config = config
        self.state = ConnectionState.START
        self.sasl_state = SaslState.START
        self.open: Open | None = None
        self.allowance = PeerAllowance(config)
        self.sessions: dict[int, Session] = {}  # by the peer's channel
        self._by_channel: dict[int, Session] = {}  # by ours
        self._free_channels: list[int] = []  # a heap: below the highest in use
        self._ended_channels: dict[int, None] = {}  # the peer's, oldest first
        self._sasl_open = False  # SASL frames are expected now
        self._sasl_used = False
        self._header_done = False
        self._silent = False  # our close is out: nothing follows it
        self.pending = b""  # read, of a frame whose end did not come yet
        self._out: list[bytes] = []
        self._started_ms = now_ms
        self.received_ms = now_ms
        self._sent_ms = now_ms
        self.frames_received = 0  # beside runs of transfers: what a peer can make work with
        self.has_more = False

    def __repr__(self) -> str:
        return f"<Connection {self.config.container_id!r} {self.state.name}>"

    # --- the driver's face ----------------------------------------------------------------------

    @property
    def is_opened(self) -> bool:
        return self.state is ConnectionState.OPENED

    @property
    def is_over(self) -> bool:
        """Nothing more will be read; write what is queued and close the socket."""
        return self.state is ConnectionState.END

    @property
    def frame_bytes_max_out(self) -> int:
        theirs = self.open.max_frame_size if self.open is not None else FRAME_BYTES_MIN
        return min(theirs, self.config.max_frame_size)

    @property
    def held_bytes(self) -> int:
        """What the peer makes us keep: part of a frame, parts of deliveries."""
        return len(self.pending) + self.allowance.unfinished_bytes

    def receive_data(
        self, data: bytes | memoryview, *, now_ms: int, frames_max: int | None = None
    ) -> list[Event]:
        """Everything the bytes meant, in order. Never raises for what a peer sends. A memoryview is
        copied before this returns: a socket's buffer may be filled again.

        With `frames_max` it stops behind so many frames, runs of transfers not counted; `has_more`
        then says that the next call, also with b"", goes on."""
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
            self._check_patience(len(buffer))
            while not self.is_over:
                if self.frames_received == stop:
                    self.has_more = position < len(buffer)
                    break
                before = position
                position = self._step(buffer, position, events)
                if position == before:
                    break
        except LocalError:
            raise
        except AmqpError as error:
            self._fail(error, events)
        self.pending = b"" if self.is_over else buffer[position:]
        return events

    def bytes_to_send(self, *, now_ms: int) -> bytes:
        if not self._out:
            return b""
        data = self._out[0] if len(self._out) == 1 else b"".join(self._out)
        self._out.clear()
        self._sent_ms = now_ms
        return data

    def next_deadline_ms(self) -> int | None:
        """When `on_time` must be called at the latest; None when nothing is awaited."""
        if self.is_over:
            return None
        due = []
        if self._is_mute:
            due.append(self._started_ms + self.config.header_deadline_ms)
        if self.open is None:
            due.append(self._started_ms + self.config.open_deadline_ms)
        elif self.config.idle_time_out_ms:
            due.append(self.received_ms + 2 * self.config.idle_time_out_ms)
        oldest_ms = self.allowance.oldest_unfinished_ms()
        if oldest_ms is not None:
            due.append(oldest_ms + self.config.delivery_deadline_ms)
        if self._heartbeat_ms is not None:
            due.append(self._sent_ms + self._heartbeat_ms)
        return min(due) if due else None

    def on_time(self, *, now_ms: int) -> list[Event]:
        events: list[Event] = []
        if self.is_over:
            return events
        late = self._lateness(now_ms)
        if late is not None:
            self._fail(late, events)
        elif self._heartbeat_ms is not None and now_ms >= self._sent_ms + self._heartbeat_ms:
            self.queue(EMPTY_FRAME)
        return events

    @property
    def _is_mute(self) -> bool:
        """Not even a protocol header came; SASL's counts as well as AMQP's."""
        return not self._header_done and not self._sasl_used

    @property
    def _heartbeat_ms(self) -> int | None:
        """Half of what the peer announced (protocol.md 1.6), but never a busy loop."""
        if self.open is None or not self.open.idle_time_out or not self.is_opened:
            return None
        return max(_HEARTBEAT_MS_MIN, self.open.idle_time_out // 2)

    def _lateness(self, now_ms: int) -> AmqpError | None:
        config = self.config
        oldest_ms = self.allowance.oldest_unfinished_ms()
        if oldest_ms is not None and now_ms - oldest_ms >= config.delivery_deadline_ms:
            return ConnectionTimedOut(
                f"A delivery got no frame for {config.delivery_deadline_ms} milliseconds."
            )
        waited = now_ms - self._started_ms
        if self._is_mute and waited >= config.header_deadline_ms:
            return ConnectionTimedOut(
                f"No protocol header came within {config.header_deadline_ms} milliseconds."
            )
        if self.open is None:
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

    # --- what the application may do ------------------------------------------------------------

    def start(self) -> None:
        """Client: send the first header."""
        assert not self.config.server
        if self.config.sasl:
            self.sasl_state = SASL.after(self.sasl_state, SaslInput.SEND_HEADER)
            self.queue(SASL_HEADER)
        else:
            self._send_header()

    def init_sasl(self, mechanism: str, response: bytes | None) -> None:
        """Client: choose a mechanism once the server offered it."""
        self.sasl_state = SASL.after(self.sasl_state, SaslInput.SEND_INIT)
        init = SaslInit(
            mechanism=mechanism, initial_response=response, hostname=self.config.hostname
        )
        self._send_sasl(init)

    def answer_sasl(self, *, ok: bool) -> None:
        """Server: the outcome. The next receive_data (also with b"") parses on."""
        given = SaslInput.SEND_OK if ok else SaslInput.SEND_FAILURE
        self.sasl_state = SASL.after(self.sasl_state, given)
        self._send_sasl(
            SaslOutcome(code=0 if ok else 1, additional_data=b"Welcome!" if ok else None)
        )
        self._sasl_open = False
        if not ok:
            self._disconnect()

    def send_open(self) -> None:
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
        """Client: a new session."""
        CONNECTION.after(self.state, ConnectionInput.SEND_FRAME)
        try:
            session = self._new_session()
        except ResourceLimitExceeded as error:
            raise LocalError(str(error)) from None
        session.begin()
        return session

    def close(self, error: Error | None = None) -> None:
        """Say goodbye; harmless when that was said before, or before there was an open."""
        given = ConnectionInput.SEND_CLOSE
        if error is not None and self.is_opened:
            given = ConnectionInput.SEND_CLOSE_ERROR
        if CONNECTION.allows(self.state, given):
            self.send(0, Close(error=error))
            self.state = CONNECTION.after(self.state, given)
            self._silent = True

    # --- what sessions and links use ------------------------------------------------------------

    def queue(self, data: bytes) -> None:
        """For the next bytes_to_send; nothing follows our close (AMQP 2.4.6)."""
        if not self._silent:
            self._out.append(data)

    def send(self, channel: int, performative: Performative) -> None:
        limit = self.frame_bytes_max_out
        self.queue(encode_fitting_frame(channel, performative, frame_bytes_max=limit))

    def forget_session(self, session: Session) -> None:
        assert session.remote_channel is not None
        del self.sessions[session.remote_channel]
        del self._by_channel[session.channel]
        heappush(self._free_channels, session.channel)
        self._ended_channels[session.remote_channel] = None
        if len(self._ended_channels) > _ENDED_CHANNELS_KEPT:
            del self._ended_channels[next(iter(self._ended_channels))]

    # --- parsing --------------------------------------------------------------------------------

    def _check_patience(self, size: int) -> None:
        """What comes behind sasl-init waits for its judgement, but not without bound."""
        if self.sasl_state is SaslState.INIT_RECEIVED and size > self.config.max_frame_size:
            raise ResourceLimitExceeded(
                f"{size} bytes came before SASL was over: at most {self.config.max_frame_size} "
                "are kept."
            )

    def _step(self, buffer: bytes, position: int, events: list[Event]) -> int:
        """Take one header, one frame or one run of transfers; the position behind it."""
        if self.sasl_state is SaslState.INIT_RECEIVED:
            return position  # judged first, see SaslInitReceived
        if not self._header_done and not self._sasl_open:
            return self._take_header(buffer, position)
        available = len(buffer) - position
        if available < HEADER_SIZE:
            return position
        if buffer.startswith(_TRANSFER, position + HEADER_SIZE) and self.is_opened:
            after = self._take_run(buffer, position, events)
            if after != position:
                return after
        size, body, frame_type, channel = parse_frame_header(
            buffer, position, frame_bytes_max=self._frame_bytes_max_in
        )
        end = position + size
        if available < size:
            return position
        self.frames_received += 1
        if (frame_type == SASL_FRAME) != self._sasl_open:
            raise FramingError(
                f"A frame of type {frame_type} arrived: type {int(self._sasl_open)} is expected."
            )
        if body < end:
            self._take_frame(buffer, body, end, channel, events)
        elif self._sasl_open:  # AMQP 5.3.1; elsewhere an empty frame is a heartbeat (2.4.5)
            raise FramingError("An empty SASL frame arrived.")
        return end

    @property
    def _frame_bytes_max_in(self) -> int:
        if self.open is None:
            return self.config.frame_bytes_max_before_open
        return self.config.max_frame_size

    def _take_header(self, buffer: bytes, position: int) -> int:
        """Bytes that cannot become a header are refused at once, not at the deadline."""
        header = buffer[position : position + HEADER_SIZE]
        known = self._headers_known()
        for count in range(1, len(header) + 1):
            if not any(each.startswith(header[:count]) for each in known):
                self._refuse_header(header[:count])
        if len(header) < HEADER_SIZE:
            return position
        if header == SASL_HEADER:
            self._on_sasl_header()
        else:
            self.state = CONNECTION.after(self.state, ConnectionInput.RECV_HEADER)
            self._header_done = True
            if self.config.server:
                self._send_header()
        return position + HEADER_SIZE

    def _headers_known(self) -> tuple[bytes, ...]:
        if self._sasl_used:
            return (AMQP_HEADER,)
        if self.config.server:
            return (SASL_HEADER, AMQP_HEADER)  # without SASL the peer is nobody (protocol.md 1.3)
        return (SASL_HEADER,) if self.config.sasl else (AMQP_HEADER,)

    def _refuse_header(self, seen: bytes) -> None:
        if self.config.server:
            # AMQP 2.2: answer with a header that we do support, then close.
            self.queue(self._headers_known()[0])
        raise FramingError(f"The bytes {seen.hex()} begin no protocol header that is supported.")

    def _send_header(self) -> None:
        self.state = CONNECTION.after(self.state, ConnectionInput.SEND_HEADER)
        self.queue(AMQP_HEADER)

    def _on_sasl_header(self) -> None:
        self.sasl_state = SASL.after(self.sasl_state, SaslInput.RECV_HEADER)
        self._sasl_used = self._sasl_open = True
        if self.config.server:
            self.queue(SASL_HEADER)
            self.sasl_state = SASL.after(self.sasl_state, SaslInput.SEND_MECHANISMS)
            self._send_sasl(SaslMechanisms(sasl_server_mechanisms=list(self.config.mechanisms)))

    def _send_sasl(self, performative: Performative) -> None:
        self.queue(encode_frame(0, encode_performative(performative), frame_type=SASL_FRAME))

    def _take_run(self, buffer: bytes, position: int, events: list[Event]) -> int:
        run = scan_transfers(
            buffer, position, len(buffer), frame_bytes_max=self.config.max_frame_size
        )
        if run is None:
            return position
        session = self._session(run.channel)
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
        if self._sasl_open:
            events.append(self._on_sasl(performative))
        elif kind in _IN_SESSION:
            self.state = CONNECTION.after(self.state, ConnectionInput.RECV_FRAME)
            session = self._session(channel) if self.is_opened else None
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

    def _on_sasl(self, performative: Performative) -> Event:
        if isinstance(performative, SaslInit):
            self.sasl_state = SASL.after(self.sasl_state, SaslInput.RECV_INIT)
            return SaslInitReceived(
                performative.mechanism,
                performative.initial_response or b"",
                performative.hostname,
            )
        if isinstance(performative, SaslMechanisms):
            self.sasl_state = SASL.after(self.sasl_state, SaslInput.RECV_MECHANISMS)
            return SaslMechanismsReceived(performative.sasl_server_mechanisms)
        if isinstance(performative, SaslOutcome):
            ok = performative.code == 0
            given = SaslInput.RECV_OK if ok else SaslInput.RECV_FAILURE
            self.sasl_state = SASL.after(self.sasl_state, given)
            self._sasl_open = False
            if not ok:
                raise SaslFailed(f"The server refused us: SASL outcome code {performative.code}.")
            self._send_header()
            return SaslOutcomeReceived(performative.additional_data or b"")
        raise IllegalState(f"{type(performative).__name__} has no place in this SASL exchange.")

    def _on_open(self, opened: Open, events: list[Event]) -> None:
        self.state = CONNECTION.after(self.state, ConnectionInput.RECV_OPEN)
        if opened.max_frame_size < FRAME_BYTES_MIN:
            raise FramingError(
                f"open announces max-frame-size {opened.max_frame_size}: "
                f"at least {FRAME_BYTES_MIN} is needed."
            )
        self.open = trimmed_open(opened)
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
            asked = self._by_channel.get(begin.remote_channel)
            if asked is None:
                raise IllegalState(f"begin answers channel {begin.remote_channel}: not begun.")
            session = asked
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
        # Channels in use and freed ones fill 0..n-1 without a gap.
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
        session = self._session(channel) if self.is_opened else None
        if session is not None:
            events.append(session.on_end(end))

    def _session(self, channel: int) -> Session | None:
        """The session on the peer's channel; None if it ended: PY sends detach after end (E19)."""
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
        """Close with the reason where the peer can hear it (AMQP 2.4.3), then be over."""
        if self.state in (ConnectionState.HDR_EXCH, ConnectionState.OPEN_RCVD):
            self.send_open()  # close may not come before open: introduce ourselves first
        self.close(Error(condition=error.condition, description=str(error)))
        self._disconnect()
        events.append(ConnectionFailed(error))

    def disconnect(self) -> None:
        """The socket is closed."""
        if not self.is_over:
            self._disconnect()

    def _disconnect(self) -> None:
        """Nothing more is read or sent; links and sessions are gone with the connection."""
        self.state = CONNECTION.after(self.state, ConnectionInput.DISCONNECT)
        self._silent = True
        self.pending = b""
        for session in self._by_channel.values():
            session.close_links()
        self.sessions.clear()
        self._by_channel.clear()
