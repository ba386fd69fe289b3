"""One AMQP connection: the engine, its socket, its timers, and what its links do.

The driver runs on the event loop. A turn is: bytes of one read -> engine -> all events handled ->
what links may send -> one write. Nothing in a turn awaits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Protocol

from penstock.amqp.connection import ConnectionConfig, ConnectionEngine
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
from penstock.amqp.types import Symbol
from penstock.gateway.amqp import attach
from penstock.gateway.amqp.authorization import ConnectionGrants
from penstock.gateway.amqp.context import AmqpContext, log
from penstock.gateway.amqp.errors import amqp_error, log_refusal
from penstock.gateway.amqp.input_buffer import FRAMES_AT_ONCE, InputBuffer
from penstock.gateway.amqp.links import EntityLinkHandler, LinkHandler
from penstock.gateway.amqp.sasl import check_sasl_init, policy_name_in_sasl
from penstock.gateway.amqp.send_scheduler import SendScheduler
from penstock.gateway.backpressure import ReadBackpressure
from penstock.gateway.guard import ConnectionSlot, DelayedAnswers
from penstock.model import limits, names
from penstock.model.errors import (
    AuthFailed,
    ConnectionForced,
    InternalError,
    PenstockError,
    QuotaExceeded,
)

# Who asks can tell Penstock from Azure's own service, whose clients do not look at it.
ABOUT: dict[str, object] = {Symbol("product"): names.PRODUCT}
_TURN_BYTES = 256 * limits.KB  # deliveries of one turn; then other connections get theirs
_CHECK_MS = 15_000  # the wall clock may be set, readers may stall: look at least this often
_REASON_MAX = 400  # characters of a reason in the log
_CLOSE_GRACE_S = 2.0  # for the peer to answer our close, then for the socket to drain


class Transport(Protocol):
    """What the driver needs of a socket; TCP, TLS and WebSocket all give it. `close` writes what
    is queued first, however long the peer takes; `abort` does not."""

    peer: str

    def write(self, data: bytes) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


class AmqpConnection:
    """The gateway's whole knowledge of one peer."""

    def __init__(
        self,
        context: AmqpContext,
        transport: Transport,
        *,
        on_over: Callable[[AmqpConnection], None],
        connection_count: int,
        slot: ConnectionSlot | None = None,
    ) -> None:
        self.context = context
        self.transport = transport
        self.grants = ConnectionGrants()
        self.intake = ReadBackpressure(transport, context.held)
        self.outbox = SendScheduler()
        host = transport.peer.rpartition(":")[0].strip("[]")
        self.slot = slot or context.guard.detached_slot(host)
        self.delayed_answers = DelayedAnswers(
            context.guard.auth_delay,
            address=self.slot.address,
            loop=context.loop,
            monotonic_ms=context.clock.monotonic_ms,
            run=self.run_turn,
            close=self.fail,
        )
        self.namespace = ""
        self.id = f"{context.new_id()}_G0"
        self.authenticated = False
        self.apps: dict[Link, LinkHandler] = {}
        self.events_in = self.events_out = 0
        self.reply_bytes = 0  # of all reply links, waiting for credit
        self._on_over = on_over
        self._over_quota = connection_count > context.connections_max
        self.bytes_out = 0
        self._write_paused = False
        self._in_turn = False
        self._turn_scheduled = False
        self._dirty: dict[LinkHandler, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._end_timer: asyncio.TimerHandle | None = None  # our close is out
        self._must_arm = True
        self._ending = False  # our close is out, or nothing can be said any more
        self._hung_up = False
        self._over = False
        self._reason = "closed by the peer"
        self.opened_ms = context.clock.now_ms()
        self._started_ms = self._linkless_since_ms = context.clock.monotonic_ms()
        self._had_link = False
        self.input = InputBuffer(self)
        deadlines = context.deadlines
        self.engine = ConnectionEngine(
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
                delivery_deadline_ms=deadlines.delivery_ms,
                properties=ABOUT,
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
        self.run_turn(lambda: self.input.take(data))

    def pause_writing(self) -> None:
        """The peer does not read: nothing more is delivered, and nothing more of it is read."""
        self._write_paused = True
        self.intake.peer_stopped_reading()

    def resume_writing(self) -> None:
        self._write_paused = False
        self.intake.peer_reads_again()
        self.run_turn(_do_nothing)

    def connection_lost(self) -> None:
        if self._over:
            return
        self._over = True
        for timer in (self._timer, self._end_timer):
            if timer is not None:
                timer.cancel()
        self._timer = self._end_timer = None
        self.input.close()
        self.engine.disconnect()
        self.context.unfinished.update(self, 0)
        self._close_apps()
        log.log(
            self._level_of_the_end(),
            "connection ended id=%s peer=%s container=%s namespace=%s seconds=%.1f bytes_in=%d "
            "bytes_out=%d events_in=%d events_out=%d reason=%s",
            self.id,
            self.transport.peer,
            names.quote_text(self.engine.open.container_id) if self.engine.open else "-",
            self.namespace or "-",
            (self.context.clock.monotonic_ms() - self._started_ms) / 1000,
            self.input.bytes,
            self.bytes_out,
            self.events_in,
            self.events_out,
            names.quote_text(self._reason, most=_REASON_MAX),
        )
        self._on_over(self)

    def _level_of_the_end(self) -> int:
        """Of strangers there may be any number, and warnings are thinned out. Who says nothing at
        all has only looked whether the port is open."""
        if self.authenticated:
            return logging.INFO
        return logging.WARNING if self.input.bytes else logging.DEBUG

    # --- what the door uses ---------------------------------------------------------------------

    def revalidate_grants(self) -> None:
        """Policies changed: links whose grant is gone end now (a rotated key cuts them off)."""
        self.run_turn(self._rejudge)

    def shut_down(self) -> None:
        """The service stops: settle what is on disk, say so, let the peer answer for a moment."""
        self.fail(ConnectionForced("The service is shutting down; reconnect in a moment."))

    # --- what links use -------------------------------------------------------------------------

    @property
    def is_ending(self) -> bool:
        """Our close is out, or nothing can be said any more."""
        return self._ending

    @property
    def host(self) -> str:
        """How the peer calls the namespace."""
        given = self.engine.open.hostname if self.engine.open is not None else None
        return given or self.namespace or "namespace"

    def wire_error(self, error: PenstockError, tracker: str = "") -> Error:
        return amqp_error(
            error,
            tracking_id=self.id,
            tracker=tracker or self.namespace or "-",
            now_ms=self.context.clock.now_ms(),
        )

    def fail(self, error: PenstockError) -> None:
        """Close the connection with a reason."""
        if self._over or self._ending:
            return
        self._reason = str(error)
        self._settle()
        self._end(error)

    def detach(self, link: Link, error: PenstockError) -> None:
        """End one link from our side; its application object is closed too."""
        app = self.apps.get(link)
        if app is None:
            return
        app.flush()  # what is on disk is acknowledged before the link is gone
        if isinstance(app, EntityLinkHandler):
            log_refusal(self, "detach", error, app.address.path)
        self._forget(link)
        if link.is_attached and self.engine.is_opened and link.session.is_mapped:
            tracker = app.tracker if isinstance(app, EntityLinkHandler) else ""
            link.detach(self.wire_error(error, tracker))
        self._schedule_turn()

    def mark_dirty(self, app: LinkHandler) -> None:
        """The link has dispositions to send; once per turn is enough."""
        self._dirty[app] = None
        self._schedule_turn()

    def on_token_put(self) -> None:
        """A token or key was verified; links may live longer now."""
        self.authenticated = True
        self._must_arm = True
        self.slot.authenticate()

    def run_turn(self, work: Callable[[], None]) -> None:
        """Run what a timer, the socket, the log or another connection called for, then write. A bug
        costs this connection only, never the caller. A turn within a turn leaves the writing to
        the outer one."""
        if self._over:
            return
        outermost, self._in_turn = not self._in_turn, True
        try:
            work()
            if outermost:
                self._finish_turn()
        except Exception:  # noqa: BLE001 - as said
            self._close_after_crash()
        finally:
            if outermost:
                self._in_turn = False

    # --- events ---------------------------------------------------------------------------------

    def handle(self, events: list[Event]) -> None:
        """What the engine made of the bytes of this turn."""
        for event in events:
            if not self._ending or isinstance(event, CloseReceived | ConnectionFailed):
                _HANDLERS[type(event)](self, event)

    def on_sasl(self, event: SaslInitReceived) -> None:
        try:
            check_sasl_init(self, event)
        except AuthFailed as error:
            self._reason = str(error)
            log_refusal(self, "sasl", error, policy=policy_name_in_sasl(event))
            delay_ms = self.delayed_answers.fail(policy_name_in_sasl(event))
            if delay_ms:
                self.delayed_answers.later(delay_ms, self._refuse_sasl)
            else:
                self._refuse_sasl()
            return
        self.engine.answer_sasl(ok=True)
        now_ms = self.context.clock.monotonic_ms()
        self.handle(self.engine.receive_data(b"", now_ms=now_ms, frames_max=FRAMES_AT_ONCE))

    def _refuse_sasl(self) -> None:
        if not self._ending:
            self.engine.answer_sasl(ok=False)

    def on_open(self, event: OpenReceived) -> None:
        self._must_arm = True
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
        if not self.input.count_attach():
            return
        app = attach.answer_attach(self, event.link)
        if app is not None:
            self.apps[event.link] = app
            self._had_link = self._must_arm = True
            app.start()
            self.outbox.add(app)  # credit may have come with the attach

    def on_flow(self, event: FlowReceived) -> None:
        app = self.apps.get(event.link) if event.link is not None else None
        if app is not None:
            self.outbox.add(app)
        self.outbox.window_changed(event.session)

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
        self._forget(event.link)

    def on_end(self, event: EndReceived) -> None:
        for link in [link for link in self.apps if link.session is event.session]:
            self._forget(link)
        self.outbox.forget(event.session)

    def on_close(self, event: CloseReceived) -> None:
        if event.error is not None and not self._ending:
            self._reason = f"closed by the peer: {event.error.condition}"
        self._ending = True
        self._close_apps()

    def on_failed(self, event: ConnectionFailed) -> None:
        self._reason = str(event.error)
        self.slot.penalize()
        log.warning(
            "protocol error id=%s peer=%s condition=%s text=%s",
            self.id,
            self.transport.peer,
            event.error.condition,
            names.quote_text(str(event.error), most=_REASON_MAX),
        )
        self._ending = True
        self._close_apps()

    # --- time -----------------------------------------------------------------------------------

    def _arm(self) -> None:
        """One timer per connection, at the earliest thing that may become due. What has become
        later meanwhile is noticed when it fires."""
        self._must_arm = False
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
            else:
                due.append(self.context.clock.monotonic_ms() + self._next_check_ms())
        known = [at for at in due if at is not None]
        return min(known) if known else None

    def _next_check_ms(self) -> int:
        """Until the first link ends with its grant, by the wall clock."""
        now_ms = self.context.clock.now_ms()
        ends = (app.ends_ms for app in self.apps.values() if app.ends_ms is not None)
        return min(max(min(ends, default=now_ms + _CHECK_MS) - now_ms, 0), _CHECK_MS)

    @property
    def _linkless_allowed_ms(self) -> int:
        deadlines = self.context.deadlines
        return deadlines.linkless_later_ms if self._had_link else deadlines.linkless_first_ms

    def _on_timer(self) -> None:
        self._timer = None
        self._must_arm = True
        self.run_turn(self._due)

    def _due(self) -> None:
        now_ms = self.context.clock.monotonic_ms()
        self.handle(self.engine.on_time(now_ms=now_ms))
        if self.engine.is_opened:
            self._check_presence(now_ms)
        if self.engine.is_opened:
            self._check_expiry()
            for app in self.apps.values():
                app.release_memory()

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
        self.grants.drop_expired(now_ms=now_ms - self.context.expiry_grace_ms)
        for link, app in list(self.apps.items()):
            if app.ends_ms is not None and app.ends_ms <= now_ms:
                self._renew(link, app, now_ms)

    def _rejudge(self) -> None:
        self.grants.renew(self.context.authorities())
        now_ms = self.context.clock.now_ms()
        for link, app in list(self.apps.items()):
            self._renew(link, app, now_ms)

    def _renew(self, link: Link, app: LinkHandler, now_ms: int) -> None:
        error = app.renew(now_ms)
        if error is not None:
            self.detach(link, error)

    # --- turns ----------------------------------------------------------------------------------

    def _finish_turn(self) -> None:
        if not self._ending and not self._write_paused:
            self.outbox.run(_TURN_BYTES)
            if self.outbox:
                self._schedule_turn()
        self._settle()
        self._write()
        if self._must_arm:
            self._arm()

    def _schedule_turn(self) -> None:
        if not self._turn_scheduled and not self._over:
            self._turn_scheduled = True
            self.context.loop.call_soon(self._scheduled_turn)

    def _scheduled_turn(self) -> None:
        self._turn_scheduled = False
        self.run_turn(_do_nothing)

    def _settle(self) -> None:
        while self._dirty:
            app, _ = self._dirty.popitem()
            app.flush()

    def _write(self) -> None:
        """One write per turn."""
        data = self.engine.bytes_to_send(now_ms=self.context.clock.monotonic_ms())
        if data and not self._hung_up:
            self.bytes_out += len(data)
            self.transport.write(data)
        if self.engine.is_over:
            self.hang_up()

    # --- the end --------------------------------------------------------------------------------

    def _forget(self, link: Link) -> None:
        """The link is gone: its place, its memory, its turn."""
        app = self.apps.pop(link, None)
        if app is None:
            return
        self.outbox.remove(app)
        app.close()
        if not self.apps:
            self._linkless_since_ms = self.context.clock.monotonic_ms()
            self._must_arm = True

    def _close_apps(self) -> None:
        """Places are free at once, not when the socket is gone. One fault keeps no other taken."""
        apps = list(self.apps.values())
        self.apps.clear()
        self.outbox.clear()
        self._dirty.clear()
        self.delayed_answers.close()
        for app in apps:
            try:
                app.close()
            except Exception:  # noqa: BLE001 - whatever it is, the others are closed
                log.exception("closing a link failed id=%s peer=%s", self.id, self.transport.peer)

    def _end(self, error: PenstockError) -> None:
        """Our last word; the peer may answer it for a moment."""
        self._ending = True
        self._close_apps()
        opened = self.engine.is_opened
        self.engine.close(self.wire_error(error))
        self._write()
        if opened:
            self.intake.end()
            self._end_timer = self.context.loop.call_later(_CLOSE_GRACE_S, self.hang_up)
        else:
            self.hang_up()

    def hang_up(self) -> None:
        """Close the socket; one that does not drain (the peer does not read) is cut off."""
        if not self._hung_up and not self._over:
            self._hung_up = True
            self.transport.close()
            if self._end_timer is not None:
                self._end_timer.cancel()
            self._end_timer = self.context.loop.call_later(_CLOSE_GRACE_S, self._cut_off)

    def _cut_off(self) -> None:
        if not self._over:
            self.transport.abort()

    def _close_after_crash(self) -> None:
        log.exception("internal error id=%s peer=%s", self.id, self.transport.peer)
        self._reason = "internal error"
        try:
            self._end(
                InternalError(
                    "The service met an internal error; the operator finds it by the tracking id."
                )
            )
        except Exception:  # noqa: BLE001 - the bug may be anywhere; the socket goes in any case
            log.exception("closing failed too id=%s peer=%s", self.id, self.transport.peer)
            self.transport.abort()


def _do_nothing() -> None:
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
