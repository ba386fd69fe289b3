"""One AMQP connection: the engine, its socket, its timers, and what its links do.

The driver runs on the event loop. A turn is: bytes of one read -> engine -> all events handled ->
one write. Nothing in a turn awaits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from penstock.amqp.connection import Connection, ConnectionConfig
from penstock.amqp.events import (
    AttachReceived,
    BeginReceived,
    CloseReceived,
    ConnectionFailed,
    DetachReceived,
    DispositionReceived,
    EndReceived,
    Event,
    FlowReceived,
    OpenReceived,
    SaslInitReceived,
    TransferOversized,
    TransfersReceived,
)
from penstock.amqp.link import Link
from penstock.amqp.performatives import Accepted, Disposition, Error
from penstock.amqp.session import Session
from penstock.gateway.amqp import attach
from penstock.gateway.amqp.context import Context, log
from penstock.gateway.amqp.faults import amqp_error, tracked
from penstock.gateway.amqp.grants import Grants
from penstock.gateway.amqp.links import LinkApp
from penstock.gateway.amqp.sasl import judge
from penstock.model import limits, names
from penstock.model.errors import (
    AuthFailed,
    ConnectionForced,
    InternalError,
    PenstockError,
    QuotaExceeded,
)

_EXPIRY_CHECK_MS = 15_000  # the wall clock may be set: look again at least this often
_REASON_MAX = 400  # characters of a reason in the log
_CLOSE_GRACE_S = 2.0  # a peer that does not answer our close is cut off after this


class Transport(Protocol):
    """What the driver needs of a socket; TCP, TLS and WebSocket all give it."""

    peer: str

    def write(self, data: bytes) -> None: ...
    def close(self) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


class AmqpConnection:
    """The gateway's whole knowledge of one peer."""

    def __init__(
        self,
        context: Context,
        transport: Transport,
        *,
        on_over: Callable[[AmqpConnection], None],
        connection_count: int,
    ) -> None:
        self.context = context
        self.transport = transport
        self.grants = Grants()
        self.namespace = ""
        self.id = f"{context.new_id()}_G0"
        self.authenticated = False
        self.write_paused = False
        self.apps: dict[Link, LinkApp] = {}
        self.events_in = self.events_out = 0
        self._on_over = on_over
        self._over_quota = connection_count > context.connections_max
        self._bytes_in = self._bytes_out = 0
        self._unsettled_bytes = 0
        self._read_paused = False
        self._stopping = False
        self._flush_scheduled = False
        self._dirty: dict[LinkApp, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._over = False
        self._reason = "closed by the peer"
        self._started_ms = self._linkless_since_ms = context.clock.monotonic_ms()
        self._had_link = False
        self._hostname = ""
        deadlines = context.deadlines
        self.engine = Connection(
            ConnectionConfig(
                container_id=self.id,
                max_frame_size=limits.FRAME_BYTES_MAX,
                frame_bytes_max_before_open=limits.FRAME_BYTES_MAX_BEFORE_OPEN,
                channel_max=limits.CHANNEL_MAX,
                handle_max=limits.HANDLE_MAX,
                incoming_window=limits.INCOMING_WINDOW,
                outgoing_window=limits.OUTGOING_WINDOW,
                sessions_max=limits.SESSIONS_PER_CONNECTION_MAX,
                links_max=limits.LINKS_PER_CONNECTION_MAX,
                idle_time_out_ms=deadlines.idle_time_out_ms,
                header_deadline_ms=deadlines.header_ms,
                open_deadline_ms=deadlines.open_ms,
            ),
            now_ms=self._started_ms,
        )
        self._arm()

    def __repr__(self) -> str:
        return f"<AmqpConnection {self.transport.peer} {self.engine.state.name}>"

    # --- the socket's side ----------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """One turn."""
        if self._over:
            return
        self._bytes_in += len(data)
        now_ms = self.context.clock.monotonic_ms()
        self.turn(lambda: self._handle(self.engine.receive_data(data, now_ms=now_ms)))

    def pause_writing(self) -> None:
        self.write_paused = True

    def resume_writing(self) -> None:
        self.write_paused = False
        self.turn(self._pump_all)

    def connection_lost(self) -> None:
        if self._over:
            return
        self._over = True
        if self._timer is not None:
            self._timer.cancel()
        for app in list(self.apps.values()):
            app.close()
        self.apps.clear()
        log.info(
            "connection ended: peer=%s container=%s namespace=%s seconds=%.1f bytes_in=%d "
            "bytes_out=%d events_in=%d events_out=%d reason=%s",
            self.transport.peer,
            names.shown(self.engine.open.container_id) if self.engine.open else "-",
            self.namespace or "-",
            (self.context.clock.monotonic_ms() - self._started_ms) / 1000,
            self._bytes_in,
            self._bytes_out,
            self.events_in,
            self.events_out,
            names.shown(self._reason, most=_REASON_MAX),
        )
        self._on_over(self)

    def shut_down(self) -> None:
        """The service stops: say so, and let the peer answer for a moment."""
        self.fail(ConnectionForced("The service is shutting down; reconnect in a moment."))
        self.transport.resume_reading()  # for the peer's own close; anything else is discarded

    # --- what links use -------------------------------------------------------------------------

    def wire_error(self, error: PenstockError, tracker: str = "") -> Error:
        return amqp_error(
            error,
            tracking_id=self.id,
            tracker=tracker or self.namespace or "-",
            now_ms=self.context.clock.now_ms(),
        )

    def fail(self, error: PenstockError) -> None:
        """Close the connection with a reason."""
        if self._over:
            return
        self._reason = str(error)
        self.engine.close(self.wire_error(error))
        self.flush()
        self.context.loop.call_later(_CLOSE_GRACE_S, self.transport.close)

    def detach(self, link: Link, error: PenstockError, tracker: str = "") -> None:
        """End one link from our side; its application object is closed too."""
        app = self.apps.pop(link, None)
        if app is not None:
            app.close()
        if link.is_attached and self.engine.is_opened and link.session.is_mapped:
            link.detach(self.wire_error(error, tracker))
        self._links_changed()
        self.schedule_flush()

    def dirty(self, app: LinkApp) -> None:
        """The link has dispositions to send; once per turn is enough."""
        self._dirty[app] = None
        self.schedule_flush()

    def schedule_flush(self) -> None:
        if not self._flush_scheduled and not self._over:
            self._flush_scheduled = True
            self.context.loop.call_soon(self._scheduled_flush)

    def hold(self, size: int) -> None:
        """Bytes that wait for the disk; reading pauses above the limits (bounded memory)."""
        self._unsettled_bytes += size
        held = self.context.held
        held.add(size)
        if not self._read_paused and (
            held.is_full or self._unsettled_bytes > limits.UNSETTLED_BYTES_PER_CONNECTION_MAX
        ):
            self._read_paused = True
            self.transport.pause_reading()

    def release(self, size: int) -> None:
        self._unsettled_bytes -= size
        assert self._unsettled_bytes >= 0
        self.context.held.remove(size)
        limit = limits.UNSETTLED_BYTES_PER_CONNECTION_MAX
        if self._read_paused and self._unsettled_bytes * 2 <= limit and not self._stopping:
            self._read_paused = False
            self.transport.resume_reading()

    def stop_reading(self) -> None:
        """The service stops: nothing new is taken, what was taken is still acknowledged."""
        self._stopping = self._read_paused = True
        self.transport.pause_reading()

    def token_was_put(self) -> None:
        """Somebody known is there; links may live longer now."""
        self.authenticated = True
        self._arm()

    def rejudge(self) -> None:
        """Policies changed: links whose grant is gone end now (a rotated key cuts them off)."""
        self.grants.renew(self.context.authorities())
        self.turn(self._end_unauthorised)

    def flush(self) -> None:
        """Settle what was committed, then one write."""
        if self._over:
            return
        while self._dirty:
            app, _ = self._dirty.popitem()
            app.flush()
        data = self.engine.bytes_to_send(now_ms=self.context.clock.monotonic_ms())
        if data:
            self._bytes_out += len(data)
            self.transport.write(data)
        if self.engine.is_over:
            self.transport.close()

    # --- events ---------------------------------------------------------------------------------

    def _handle(self, events: list[Event]) -> None:
        for event in events:
            _HANDLERS[type(event)](self, event)

    def on_sasl(self, event: SaslInitReceived) -> None:
        try:
            judge(self, event)
        except AuthFailed as error:
            self._reason = str(error)
            self.engine.answer_sasl(ok=False)
            return
        self.engine.answer_sasl(ok=True)
        self._handle(self.engine.receive_data(b"", now_ms=self.context.clock.monotonic_ms()))

    def on_open(self, event: OpenReceived) -> None:
        self._hostname = (event.open.hostname or "").casefold()
        self._arm()
        if self._over_quota:
            self.fail(
                QuotaExceeded(
                    f"The namespace has its {self.context.connections_max} connections; "
                    "close some before opening more."
                )
            )

    def on_begin(self, event: BeginReceived) -> None:
        pass  # the engine has answered

    def on_attach(self, event: AttachReceived) -> None:
        link = event.link
        try:
            app = attach.attach(self, link)
        except PenstockError as error:
            link.refuse(self.wire_error(error))
            return
        self.apps[link] = app
        self._had_link = True
        app.start()
        self._arm()

    def on_flow(self, event: FlowReceived) -> None:
        if event.link is not None and event.link in self.apps:
            self.apps[event.link].on_flow()
        if event.link is None or event.session.sendable_frames:
            self._pump_session(event.session)

    def on_transfers(self, event: TransfersReceived) -> None:
        app = self.apps.get(event.link)
        if app is not None:
            app.on_transfers(event)

    def on_oversized(self, event: TransferOversized) -> None:
        app = self.apps.get(event.link)
        if app is not None:
            app.on_oversized(event)

    def on_disposition(self, event: DispositionReceived) -> None:
        # Deliveries went out settled, so nothing is remembered (E21); a receiver in mode "second"
        # that still asks gets its answer (protocol.md 5.5). The range is never walked.
        given = event.disposition
        if given.role and not given.settled:
            event.session.send(
                Disposition(
                    role=False, first=given.first, last=given.last, settled=True, state=Accepted()
                )
            )

    def on_detach(self, event: DetachReceived) -> None:
        app = self.apps.pop(event.link, None)
        if app is not None:
            app.close()
        self._links_changed()

    def on_end(self, event: EndReceived) -> None:
        for link in [link for link in self.apps if link.session is event.session]:
            self.apps.pop(link).close()
        self._links_changed()

    def on_close(self, event: CloseReceived) -> None:
        if event.error is not None:
            self._reason = f"closed by the peer: {event.error.condition}"

    def on_failed(self, event: ConnectionFailed) -> None:
        self._reason = str(event.error)
        log.warning(
            "protocol error: peer=%s condition=%s text=%s",
            self.transport.peer,
            event.error.condition,
            names.shown(str(event.error), most=_REASON_MAX),
        )

    # --- time -----------------------------------------------------------------------------------

    def _arm(self) -> None:
        """One timer per connection, at the earliest thing that may become due."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self._next_deadline_ms()
        if due is not None and not self._over:
            delay = max(0, due - self.context.clock.monotonic_ms()) / 1000
            self._timer = self.context.loop.call_later(delay, self._on_timer)

    def _next_deadline_ms(self) -> int | None:
        deadlines = self.context.deadlines
        due = [self.engine.next_deadline_ms()]
        if self.engine.is_opened:
            if not self.authenticated:
                due.append(self._started_ms + deadlines.token_ms)
            if not self.apps:
                due.append(self._linkless_since_ms + self._linkless_allowed_ms)
            expiries = [app.expires_ms for app in self.apps.values() if app.expires_ms is not None]
            if expiries:
                left = min(expiries) - self.context.clock.now_ms()
                now_ms = self.context.clock.monotonic_ms()
                due.append(now_ms + min(max(left, 0), _EXPIRY_CHECK_MS))
        known = [at for at in due if at is not None]
        return min(known) if known else None

    @property
    def _linkless_allowed_ms(self) -> int:
        deadlines = self.context.deadlines
        return deadlines.linkless_later_ms if self._had_link else deadlines.linkless_first_ms

    def _on_timer(self) -> None:
        self._timer = None
        if self._over:
            return
        self.turn(self._due)
        self._arm()

    def _due(self) -> None:
        now_ms = self.context.clock.monotonic_ms()
        self._handle(self.engine.on_time(now_ms=now_ms))
        if self.engine.is_opened:
            self._check_presence(now_ms)
            self._check_expiry()

    def _check_presence(self, now_ms: int) -> None:
        """Connections that nobody uses are closed in the service's own words (protocol.md 1.6)."""
        deadlines = self.context.deadlines
        if not self.authenticated and now_ms >= self._started_ms + deadlines.token_ms:
            self.fail(
                ConnectionForced(
                    f"No valid token was put within {deadlines.token_ms} milliseconds."
                )
            )
        elif not self.apps and now_ms >= self._linkless_since_ms + self._linkless_allowed_ms:
            self.fail(
                ConnectionForced(
                    "The connection was inactive for more than the allowed "
                    f"{self._linkless_allowed_ms} milliseconds and is closed by container "
                    "'LinkTracker'."
                )
            )

    def _check_expiry(self) -> None:
        now_ms = self.context.clock.now_ms()
        self.grants.drop_expired(now_ms=now_ms)
        for link, app in list(self.apps.items()):
            if app.expires_ms is not None and app.expires_ms <= now_ms:
                self._renew(link, app, now_ms)

    def _end_unauthorised(self) -> None:
        now_ms = self.context.clock.now_ms()
        for link, app in list(self.apps.items()):
            self._renew(link, app, now_ms)

    def _renew(self, link: Link, app: LinkApp, now_ms: int) -> None:
        error = app.renew(now_ms)
        if error is not None:
            self.detach(link, error)

    # --- inside ---------------------------------------------------------------------------------

    def _links_changed(self) -> None:
        if not self.apps:
            self._linkless_since_ms = self.context.clock.monotonic_ms()
            self._arm()

    def _pump_session(self, session: Session) -> None:
        for link, app in list(self.apps.items()):
            if link.session is session:
                app.pump()

    def _pump_all(self) -> None:
        for app in list(self.apps.values()):
            app.pump()

    def _scheduled_flush(self) -> None:
        self._flush_scheduled = False
        self.turn(_nothing)

    def turn(self, work: Callable[[], None]) -> None:
        """Run what a timer, the socket, the log or another connection called for, then write. A bug
        costs this connection only, never the caller."""
        if self._over:
            return
        try:
            work()
            self.flush()
        except Exception:  # noqa: BLE001 - as said
            self._crashed()

    def _crashed(self) -> None:
        log.exception("internal error: peer=%s tracking_id=%s", self.transport.peer, self.id)
        self._dirty.clear()
        text = tracked(
            "The service met an internal error; the operator finds it by the tracking id.",
            tracking_id=self.id,
            tracker=self.namespace or "-",
            now_ms=self.context.clock.now_ms(),
        )
        self._reason = "internal error"
        self.engine.close(Error(condition=InternalError.condition, description=text))
        self.transport.write(self.engine.bytes_to_send(now_ms=self.context.clock.monotonic_ms()))
        self.context.loop.call_later(_CLOSE_GRACE_S, self.transport.close)


def _nothing() -> None:
    """A turn that only writes what has gathered."""


_HANDLERS: dict[type, Callable[[AmqpConnection, Any], None]] = {
    SaslInitReceived: AmqpConnection.on_sasl,
    OpenReceived: AmqpConnection.on_open,
    BeginReceived: AmqpConnection.on_begin,
    AttachReceived: AmqpConnection.on_attach,
    FlowReceived: AmqpConnection.on_flow,
    TransfersReceived: AmqpConnection.on_transfers,
    TransferOversized: AmqpConnection.on_oversized,
    DispositionReceived: AmqpConnection.on_disposition,
    DetachReceived: AmqpConnection.on_detach,
    EndReceived: AmqpConnection.on_end,
    CloseReceived: AmqpConnection.on_close,
    ConnectionFailed: AmqpConnection.on_failed,
}
