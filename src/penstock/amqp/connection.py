"""The AMQP 1.0 engine: bytes and time in, events and bytes out; one engine, both roles.

    engine.receive_data(data, now_ms=...) -> events      what one read of the socket meant
    engine.bytes_to_send(now_ms=...)      -> bytes       what to write now
    engine.next_deadline_ms()             -> int | None  when to call on_time
    engine.on_time(now_ms=...)            -> events      heartbeats go out, silent peers are dropped

No socket, clock or task is in here. A peer's mistake ends the connection with ConnectionFailed and
never raises; a caller's mistake raises LocalError or an assertion.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec

from penstock.amqp.errors import AmqpError, FramingError, LocalError
from penstock.amqp.events import (
    CloseReceived,
    ConnectionFailed,
    EndReceived,
    Event,
    OpenReceived,
    SaslDone,
    SaslInitReceived,
    SaslOffered,
)
from penstock.amqp.frames import (
    AMQP_HEADER,
    EMPTY_FRAME,
    SASL_HEADER,
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
)
from penstock.amqp.scan import scan_transfers
from penstock.amqp.session import ResourceLimit, Session
from penstock.amqp.states import (
    CONNECTION,
    SASL,
    ConnectionInput,
    ConnectionState,
    IllegalState,
    SaslInput,
    SaslState,
)

_SASL_FRAME = 1
_IN_SESSION = (Transfer, Flow, Disposition, Attach, Detach)
_ENDED_CHANNELS_KEPT = 64
HEADER_SIZE = 8


class ConnectionTimedOut(AmqpError):
    """Nothing came from the peer for twice the advertised idle-time-out, or no open in time."""

    condition = "amqp:connection:forced"


class NotAllowed(AmqpError):
    condition = "amqp:not-allowed"


class ConnectionConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What we announce and what we bear. Defaults are the real service's (protocol.md 13)."""

    container_id: str
    hostname: str | None = None
    server: bool = True
    sasl: bool = True  # client: begin with SASL
    mechanisms: tuple[str, ...] = ("MSSBCBS", "PLAIN", "ANONYMOUS", "EXTERNAL")
    max_frame_size: int = 65536
    frame_bytes_max_before_open: int = 8192
    channel_max: int = 4999
    handle_max: int = 255
    incoming_window: int = 5000
    outgoing_window: int = 65536
    sessions_max: int = 512
    links_max: int = 1024
    idle_time_out_ms: int | None = 120_000
    header_deadline_ms: int = 5_000
    open_deadline_ms: int = 10_000
    properties: dict[str, object] | None = None


class Connection:
    """One AMQP connection's whole state. `open` is the peer's open once it came."""

    def __init__(self, config: ConnectionConfig, *, now_ms: int) -> None:
        self.config = config
        self.state = ConnectionState.START
        self.sasl_state = SaslState.START
        self.open: Open | None = None
        self.app: Any = None
        self.link_count = 0
        self.sessions: dict[int, Session] = {}  # by the peer's channel
        self._by_channel: dict[int, Session] = {}  # by ours
        self._ended_channels: deque[int] = deque(maxlen=_ENDED_CHANNELS_KEPT)
        self._sasl_open = False  # SASL frames are expected now
        self._sasl_used = False
        self._header_done = False
        self._pending = b""
        self._out: list[bytes] = []
        self._failed = False
        self._started_ms = now_ms
        self._received_ms = now_ms
        self._sent_ms = now_ms

    # --- the driver's face ----------------------------------------------------------------------

    @property
    def is_opened(self) -> bool:
        return self.state is ConnectionState.OPENED

    @property
    def is_over(self) -> bool:
        """Nothing more will be read; write what is queued and close the socket."""
        return self._failed or self.state is ConnectionState.END

    @property
    def frame_bytes_max_out(self) -> int:
        theirs = self.open.max_frame_size if self.open is not None else 512
        return min(theirs, self.config.max_frame_size)

    def receive_data(self, data: bytes, *, now_ms: int) -> list[Event]:
        """Everything the bytes meant, in order. Never raises for what a peer sends."""
        self._received_ms = now_ms
        events: list[Event] = []
        if self.is_over:
            return events
        buffer = self._pending + data if self._pending else data
        position = 0
        try:
            while not self.is_over:
                before = position
                position = self._step(buffer, position, events)
                if position == before:
                    break
        except AmqpError as error:
            self._fail(error, events)
        self._pending = b"" if self.is_over else buffer[position:]
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
        if not self._header_done:
            due.append(self._started_ms + self.config.header_deadline_ms)
        if self.open is None:
            due.append(self._started_ms + self.config.open_deadline_ms)
        elif self.config.idle_time_out_ms:
            due.append(self._received_ms + 2 * self.config.idle_time_out_ms)
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
    def _heartbeat_ms(self) -> int | None:
        """Half of what the peer announced (protocol.md 1.6), but never a busy loop."""
        if self.open is None or not self.open.idle_time_out or not self.is_opened:
            return None
        return max(100, self.open.idle_time_out // 2)

    def _lateness(self, now_ms: int) -> AmqpError | None:
        config = self.config
        waited = now_ms - self._started_ms
        if not self._header_done and waited >= config.header_deadline_ms:
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
            if now_ms - self._received_ms >= allowed:
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
        self.queue(encode_frame(0, encode_performative(init), frame_type=_SASL_FRAME))

    def answer_sasl(self, *, ok: bool) -> None:
        """Server: the outcome. The next receive_data (also with b"") parses on."""
        given = SaslInput.SEND_OK if ok else SaslInput.SEND_FAILURE
        self.sasl_state = SASL.after(self.sasl_state, given)
        outcome = SaslOutcome(code=0 if ok else 1, additional_data=b"Welcome!" if ok else None)
        self.queue(encode_frame(0, encode_performative(outcome), frame_type=_SASL_FRAME))
        self._sasl_open = False
        if not ok:
            self.state = CONNECTION.after(self.state, ConnectionInput.DISCONNECT)

    def send_open(self) -> None:
        config = self.config
        self.state = CONNECTION.after(self.state, ConnectionInput.SEND_OPEN)
        self._queue_performative(
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
        session = self._new_session()
        session.begin()
        return session

    def close(self, error: Error | None = None) -> None:
        """Say goodbye; harmless when that was said before."""
        given = ConnectionInput.SEND_CLOSE if error is None else ConnectionInput.SEND_CLOSE_ERROR
        if self.state is ConnectionState.CLOSE_RCVD:
            given = ConnectionInput.SEND_CLOSE
        if not CONNECTION.allows(self.state, given):
            return
        self.state = CONNECTION.after(self.state, given)
        self._queue_performative(0, Close(error=error))

    def queue(self, data: bytes) -> None:
        self._out.append(data)

    def forget_session(self, session: Session) -> None:
        if session.remote_channel is not None:
            self.sessions.pop(session.remote_channel, None)
            self._ended_channels.append(session.remote_channel)
        self._by_channel.pop(session.channel, None)
        for link in list(session.links.values()):
            session.forget_link(link)

    # --- parsing --------------------------------------------------------------------------------

    def _step(self, buffer: bytes, position: int, events: list[Event]) -> int:
        """Take one header, one frame or one run of transfers; the position behind it."""
        if self.sasl_state is SaslState.INIT_RECEIVED:
            return position  # judged first, see SaslInitReceived
        available = len(buffer) - position
        if self._expects_header:
            if available < HEADER_SIZE:
                self._check_header_prefix(buffer[position:])
                return position
            self._on_header(buffer[position : position + HEADER_SIZE])
            return position + HEADER_SIZE
        if available < HEADER_SIZE:
            return position
        if (
            buffer.startswith(b"\x00\x53\x14", position + 8)
            and self.state is ConnectionState.OPENED
        ):
            after = self._take_run(buffer, position, events)
            if after != position:
                return after
        limit = self._frame_bytes_max_in
        size, body, frame_type, channel = parse_frame_header(
            buffer, position, frame_bytes_max=limit
        )
        if available < size:
            return position
        self._on_frame(buffer, position, size, body, frame_type, channel, events)
        return position + size

    @property
    def _expects_header(self) -> bool:
        if self._sasl_open:
            return False
        return not self._header_done

    @property
    def _frame_bytes_max_in(self) -> int:
        if self.open is None:
            return self.config.frame_bytes_max_before_open
        return self.config.max_frame_size

    def _check_header_prefix(self, prefix: bytes) -> None:
        """Bytes that cannot become a header are refused at once, not at the deadline."""
        if not any(header.startswith(prefix) for header in (AMQP_HEADER, SASL_HEADER)):
            raise FramingError(f"The bytes {prefix.hex()} do not begin an AMQP 1.0 header.")

    def _on_header(self, header: bytes) -> None:
        if header == SASL_HEADER and not self._sasl_used:
            self._on_sasl_header()
            return
        if header != AMQP_HEADER:
            if self.config.server:
                # AMQP 2.2: answer with a header that we do support, then close.
                self.queue(AMQP_HEADER if self._sasl_used else SASL_HEADER)
            raise FramingError(f"The protocol header {header.hex()} is not supported: AMQP 1.0 is.")
        self.state = CONNECTION.after(self.state, ConnectionInput.RECV_HEADER)
        self._header_done = True
        if self.config.server:
            self._send_header()

    def _send_header(self) -> None:
        self.state = CONNECTION.after(self.state, ConnectionInput.SEND_HEADER)
        self.queue(AMQP_HEADER)

    def _on_sasl_header(self) -> None:
        self.sasl_state = SASL.after(self.sasl_state, SaslInput.RECV_HEADER)
        self._sasl_used = self._sasl_open = True
        if self.config.server:
            self.queue(SASL_HEADER)
            self.sasl_state = SASL.after(self.sasl_state, SaslInput.SEND_MECHANISMS)
            offer = SaslMechanisms(sasl_server_mechanisms=list(self.config.mechanisms))
            self.queue(encode_frame(0, encode_performative(offer), frame_type=_SASL_FRAME))

    def _take_run(self, buffer: bytes, position: int, events: list[Event]) -> int:
        run = scan_transfers(
            buffer, position, len(buffer), frame_bytes_max=self.config.max_frame_size
        )
        if run is None:
            return position
        session = self.sessions.get(run.channel)
        if session is None:
            raise IllegalState(
                f"A transfer arrived on channel {run.channel}, which has no session."
            )
        event = session.on_run(run, buffer)
        if event is not None:
            events.append(event)
        return run.next_position

    def _on_frame(
        self,
        buffer: bytes,
        position: int,
        size: int,
        body: int,
        frame_type: int,
        channel: int,
        events: list[Event],
    ) -> None:
        end = position + size
        if (frame_type == _SASL_FRAME) != self._sasl_open:
            raise FramingError(
                f"A frame of type {frame_type} arrived: type {int(self._sasl_open)} is expected."
            )
        if body == end:  # an empty frame is a heartbeat (AMQP 2.4.5)
            return
        performative, payload_start = decode_performative(buffer, body, end)
        payload = buffer[payload_start:end]
        event = self._dispatch(performative, payload, channel)
        if event is not None:
            events.append(event)

    def _dispatch(self, performative: Performative, payload: bytes, channel: int) -> Event | None:
        if self._sasl_open:
            return self._on_sasl(performative)
        if isinstance(performative, _IN_SESSION):
            return self._on_session_frame(performative, payload, channel)
        if payload:
            raise FramingError(f"{type(performative).__name__} carries a payload: none is allowed.")
        if isinstance(performative, Begin):
            return self._on_begin(performative, channel)
        if isinstance(performative, End):
            return self._on_end(performative, channel)
        if isinstance(performative, Open):
            return self._on_open(performative)
        if isinstance(performative, Close):
            return self._on_close(performative)
        raise NotAllowed(f"{type(performative).__name__} is not a performative of a frame.")

    def _on_sasl(self, performative: Performative) -> Event | None:
        if isinstance(performative, SaslInit):
            self.sasl_state = SASL.after(self.sasl_state, SaslInput.RECV_INIT)
            return SaslInitReceived(
                performative.mechanism,
                performative.initial_response or b"",
                performative.hostname,
            )
        if isinstance(performative, SaslMechanisms):
            self.sasl_state = SASL.after(self.sasl_state, SaslInput.RECV_MECHANISMS)
            return SaslOffered(performative.sasl_server_mechanisms)
        if isinstance(performative, SaslOutcome):
            ok = performative.code == 0
            given = SaslInput.RECV_OK if ok else SaslInput.RECV_FAILURE
            self.sasl_state = SASL.after(self.sasl_state, given)
            self._sasl_open = False
            if not ok:
                raise NotAllowed(f"SASL failed with outcome code {performative.code}.")
            self._send_header()
            return SaslDone(performative.additional_data or b"")
        raise IllegalState(f"{type(performative).__name__} has no place in this SASL exchange.")

    def _on_open(self, opened: Open) -> Event:
        self.state = CONNECTION.after(self.state, ConnectionInput.RECV_OPEN)
        if opened.max_frame_size < 512:
            raise FramingError(
                f"open announces max-frame-size {opened.max_frame_size}: at least 512 is needed."
            )
        self.open = opened
        if self.state is ConnectionState.OPEN_RCVD:
            self.send_open()
        return OpenReceived(opened)

    def _on_begin(self, begin: Begin, channel: int) -> Event:
        CONNECTION.after(self.state, ConnectionInput.RECV_FRAME)
        if begin.remote_channel is not None:  # the answer to ours
            session = self._by_channel.get(begin.remote_channel)
            if session is None:
                raise IllegalState(f"begin answers channel {begin.remote_channel}: not begun.")
        else:
            if channel > self.config.channel_max:
                raise FramingError(
                    f"The channel {channel} is above the announced {self.config.channel_max}."
                )
            if channel in self.sessions:
                raise IllegalState(f"The channel {channel} has a session already.")
            session = self._new_session()
        self.sessions[channel] = session
        event = session.on_begin(begin, channel)
        if begin.remote_channel is None:
            session.begin()
        return event

    def _new_session(self) -> Session:
        if len(self._by_channel) >= self.config.sessions_max:
            raise ResourceLimit(
                f"This connection has {len(self._by_channel)} sessions: "
                f"at most {self.config.sessions_max} are allowed."
            )
        channel = 0
        while channel in self._by_channel:
            channel += 1
        session = self._by_channel[channel] = Session(self, channel)
        return session

    def _on_end(self, end: End, channel: int) -> Event | None:
        CONNECTION.after(self.state, ConnectionInput.RECV_FRAME)
        session = self.sessions.get(channel)
        if session is None:
            if channel in self._ended_channels:
                return None
            raise IllegalState(f"end arrived on channel {channel}, which has no session.")
        event = session.on_end(end)
        assert event is None or isinstance(event, EndReceived)
        return event

    def _on_session_frame(
        self, performative: Performative, payload: bytes, channel: int
    ) -> Event | None:
        CONNECTION.after(self.state, ConnectionInput.RECV_FRAME)
        if self.state is not ConnectionState.OPENED:
            return None
        session = self.sessions.get(channel)
        if session is None:
            if channel in self._ended_channels:
                return None  # PY sends detach after end (E19)
            raise IllegalState(
                f"{type(performative).__name__} arrived on channel {channel}, which has no session."
            )
        if payload and not isinstance(performative, Transfer):
            raise FramingError(f"{type(performative).__name__} carries a payload: none is allowed.")
        return session.on_frame(performative, payload)

    def _on_close(self, close: Close) -> Event:
        self.state = CONNECTION.after(self.state, ConnectionInput.RECV_CLOSE)
        if self.state is ConnectionState.CLOSE_RCVD:
            self.close()
        return CloseReceived(close.error)

    def _queue_performative(self, channel: int, performative: Performative) -> None:
        self.queue(encode_frame(channel, encode_performative(performative)))

    def _fail(self, error: AmqpError, events: list[Event]) -> None:
        """Close with the reason where the peer can hear it (AMQP 2.4.3), then be over."""
        if isinstance(error, LocalError):
            raise error
        if self.state in (ConnectionState.HDR_EXCH, ConnectionState.OPEN_RCVD):
            # close may not come before open: introduce ourselves first.
            self.send_open()
        described = Error(condition=error.condition, description=str(error))
        if self.state in (ConnectionState.OPENED, ConnectionState.OPEN_SENT):
            self._queue_performative(0, Close(error=described))
        self._failed = True
        self.state = CONNECTION.after(self.state, ConnectionInput.DISCONNECT)
        events.append(ConnectionFailed(error))
