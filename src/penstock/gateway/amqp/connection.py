"""One AMQP connection: the engine, its socket, its timer and its links.

Everything runs on the event loop, in turns: the bytes of one read -> engine -> all events handled
-> acknowledgements and what links may send -> one write. Nothing in a turn awaits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from penstock.amqp.connection import ConnectionConfig, ConnectionEngine
from penstock.amqp.events import (
    AttachReceived,
    CloseReceived,
    ConnectionFailed,
    Event,
    OpenReceived,
    SaslInitReceived,
)
from penstock.amqp.types import Symbol
from penstock.gateway.amqp import attach
from penstock.gateway.amqp.authentication import check_sasl_init, policy_name_in_sasl
from penstock.gateway.amqp.context import AmqpContext, log
from penstock.gateway.amqp.input_buffer import FRAMES_AT_ONCE, InputBuffer
from penstock.gateway.amqp.lifecycle import ConnectionLife
from penstock.gateway.amqp.links import EVENT_HANDLERS, LinkHost
from penstock.gateway.amqp.turn import TurnRunner
from penstock.gateway.backpressure import PauseReason, ReadBackpressure
from penstock.gateway.guard import ConnectionSlot
from penstock.gateway.transport import Transport
from penstock.model import limits, names
from penstock.model.errors import (
    AuthFailed,
    ConnectionForced,
    InternalError,
    PenstockError,
    QuotaExceeded,
)

# Lets a client tell Penstock from Azure, whose clients ignore it.
ABOUT: dict[str, object] = {Symbol("product"): names.PRODUCT}
_TURN_BYTES = 256 * limits.KB  # deliveries of one turn; then other connections get theirs
_REASON_MAX = 400  # characters of a reason in a log line


class AmqpConnection:
    """Connects the parts of one connection: `life` (states, closing), `turns`, `links`, `input` and
    `backpressure`. The parts have no reference to the connection, only to callables of it, which
    they drop when the socket is gone."""

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
        self.id = f"{context.new_id()}_G0"
        self.opened_ms = context.clock.now_ms()
        self.bytes_out = 0
        self._on_over = on_over
        self._is_over_quota = connection_count > context.connections_max
        self._attaches = 0
        self._timer: asyncio.TimerHandle | None = None
        host = transport.peer.rpartition(":")[0].strip("[]")
        self.slot = slot or context.guard.detached_slot(host)
        self.slot.budget.on_drop = self._drop
        self.engine = ConnectionEngine(
            _engine_config(context, self.id), now_ms=context.clock.monotonic_ms()
        )
        self.life = ConnectionLife(transport, context.loop)
        self.backpressure = ReadBackpressure(transport, context.pending_bytes)
        self.turns = TurnRunner(
            self.life,
            context.broker.rounds,
            acknowledge=self._acknowledge,
            finish=self._finish_turn,
            on_crash=self._on_crash,
        )
        self.links = LinkHost(
            context=context,
            id=self.id,
            peer=transport.peer,
            slot=self.slot,
            backpressure=self.backpressure,
            turns=self.turns,
            fail=self.fail,
        )
        self.input = InputBuffer(
            self.engine,
            self.slot.budget,
            self.backpressure,
            self.turns,
            monotonic_ms=context.clock.monotonic_ms,
            on_events=self._on_input_events,
            may_wait=self._may_wait,
            on_waited=self._on_waited,
        )
        self._arm()

    def __repr__(self) -> str:
        return f"<AmqpConnection {self.transport.peer} {self.engine.state.name}>"

    # --- called by the transport ----------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """One turn."""
        self.turns.run(partial(self._receive, data))

    def pause_writing(self) -> None:
        """The peer does not read: nothing more is delivered to it or read from it."""
        self.backpressure.pause(PauseReason.PEER)

    def resume_writing(self) -> None:
        self.backpressure.resume(PauseReason.PEER)
        self.turns.run_soon()

    def connection_lost(self) -> None:
        if not self.life.lose():
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.input.close()
        self.slot.budget.on_drop = self.slot.drop
        self.engine.disconnect()
        self.context.unfinished.update(self, 0)
        self.links.close()
        log.log(
            self._end_log_level(),
            "connection ended id=%s peer=%s container=%s namespace=%s seconds=%.1f bytes_in=%d "
            "bytes_out=%d events_in=%d events_out=%d reason=%s",
            self.id,
            self.transport.peer,
            names.quote_text(self.engine.open.container_id) if self.engine.open else "-",
            self.links.namespace or "-",
            (self.context.clock.monotonic_ms() - self.links.started_ms) / 1000,
            self.input.bytes,
            self.bytes_out,
            self.links.events_in,
            self.links.events_out,
            names.quote_text(self.life.reason, most=_REASON_MAX),
        )
        self.links.forget_connection()
        self.turns.close()
        self._on_over(self)

    def _end_log_level(self) -> int:
        """Repeated warnings are filtered: there may be any number of unauthenticated peers. A peer
        that sends nothing only checks whether the port is open."""
        if self.links.is_authenticated:
            return logging.INFO
        return logging.WARNING if self.input.bytes else logging.DEBUG

    # --- called by the server -------------------------------------------------------------------

    def revalidate_grants(self) -> None:
        """Policies changed: links whose grant is gone end now (a rotated key ends them)."""
        self.turns.run(self.links.revalidate_grants)

    def shut_down(self) -> None:
        """The service stops: acknowledge what is on disk and close."""
        self.fail(ConnectionForced("The service is shutting down; reconnect in a moment."))

    def fail(self, error: PenstockError) -> None:
        """Close the connection with an error, unless it is closing already."""
        if self.life.close(str(error)):
            self.context.broker.rounds.run_completions()
            self.links.flush()
            self._send_close(error)

    def drop_partial_deliveries(self, error: PenstockError) -> None:
        """See PartialDeliveryHolder."""
        self.fail(error)
        self.life.hang_up()
        self.engine.allowance.drop_partial_deliveries()

    # --- input ----------------------------------------------------------------------------------

    def _receive(self, data: bytes) -> None:
        self.input.take(data)
        most = limits.UNAUTHENTICATED_BYTES_MAX
        if not self.links.is_authenticated and self.input.bytes > most:
            self.input.drop()
            self.fail(
                QuotaExceeded(
                    f"{self.input.bytes} bytes came before a valid token: at most {most} are read."
                )
            )

    def _on_input_events(self, events: list[Event]) -> None:
        self._handle(events)
        self.context.unfinished.update(self, self.engine.allowance.partial_bytes)

    def _may_wait(self) -> bool:
        """The work budget is exceeded: whether the input may wait for its turn."""
        if not self.life.is_open and not self.engine.is_over:
            self.life.hang_up()  # our close was sent, and the peer still makes work
            return False
        if self.links.is_authenticated:
            self.slot.penalize()
        return True

    def _on_waited(self, waited_ms: int) -> None:
        self.engine.extend_handshake(waited_ms)
        self.links.token_since_ms += waited_ms

    def _drop(self) -> None:
        """The work budget is exceeded for good."""
        self.input.drop()
        self.slot.penalize()
        self.fail(QuotaExceeded("Too many frames without useful work; the connection is closed."))
        self.life.hang_up()

    # --- events of the engine -------------------------------------------------------------------

    def _handle(self, events: list[Event]) -> None:
        for event in events:
            kind = type(event)
            if not self.life.is_open and kind not in (CloseReceived, ConnectionFailed):
                continue
            on_link_event = EVENT_HANDLERS.get(kind)
            if on_link_event is not None:
                on_link_event(self.links, event)
            elif kind in _EVENT_HANDLERS:
                _EVENT_HANDLERS[kind](self, event)

    def on_sasl_init(self, event: SaslInitReceived) -> None:
        try:
            check_sasl_init(self.links, event)
        except AuthFailed as error:
            policy = policy_name_in_sasl(event)
            self.life.reason = str(error)
            self.links.log_refusal("sasl", error, policy=policy)
            delay_ms = self.links.fail_token(policy)
            if delay_ms:
                self.links.answer_later(delay_ms, self._refuse_sasl)
            else:
                self._refuse_sasl()
            return
        self.engine.answer_sasl(ok=True)
        now_ms = self.context.clock.monotonic_ms()
        self._handle(self.engine.receive_data(b"", now_ms=now_ms, frames_max=FRAMES_AT_ONCE))

    def _refuse_sasl(self) -> None:
        if self.life.is_open:
            self.engine.answer_sasl(ok=False)

    def on_open(self, event: OpenReceived) -> None:
        self.links.hostname = event.open.hostname or ""
        self.links.must_arm = True
        if self._is_over_quota:
            self.fail(
                QuotaExceeded(
                    f"The namespace has its {self.context.connections_max} connections; "
                    "close some before opening more."
                )
            )

    def on_attach(self, event: AttachReceived) -> None:
        self._attaches += 1
        most = limits.UNAUTHENTICATED_LINKS_MAX
        if not self.links.is_authenticated and self._attaches > most:
            self.fail(
                QuotaExceeded(
                    f"{self._attaches} links were asked for before a valid token: at most {most} "
                    "may be."
                )
            )
        else:
            self.links.attach(event.link, attach.decide_attach)

    def on_close(self, event: CloseReceived) -> None:
        error = event.error
        self.life.close(None if error is None else f"closed by the peer: {error.condition}")
        self.links.close()

    def on_failed(self, event: ConnectionFailed) -> None:
        self.life.close()
        self.life.reason = str(event.error)
        self.slot.penalize()
        log.warning(
            "protocol error id=%s peer=%s condition=%s text=%s",
            self.id,
            self.transport.peer,
            event.error.condition,
            names.quote_text(str(event.error), most=_REASON_MAX),
        )
        self.links.close()

    # --- time -----------------------------------------------------------------------------------

    def _arm(self) -> None:
        """One timer per connection, at its earliest deadline. Deadlines that have moved to a later
        time are noticed when it fires."""
        self.links.must_arm = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due_ms = self._next_deadline_ms()
        if due_ms is not None and not self.life.is_over:
            delay_ms = max(0, due_ms - self.context.clock.monotonic_ms())
            self._timer = self.context.loop.call_later(delay_ms / 1000, self._on_timer)

    def _next_deadline_ms(self) -> int | None:
        engine_ms = self.engine.next_deadline_ms()
        due_ms = [] if engine_ms is None else [engine_ms]
        if self.engine.is_opened:
            due_ms += [deadline_ms for deadline_ms, _ in self.links.unused_deadlines()]
            if self.links.handlers:
                due_ms.append(self.context.clock.monotonic_ms() + self.links.next_check_ms())
        return min(due_ms, default=None)

    def _on_timer(self) -> None:
        self._timer = None
        self.links.must_arm = True
        if self.input.is_waiting and not self.links.is_authenticated:
            return  # for its turn: the peer may have met the deadline. The turn sets the timer.
        self.turns.run(self._check_deadlines)

    def _check_deadlines(self) -> None:
        now_ms = self.context.clock.monotonic_ms()
        self._handle(self.engine.on_time(now_ms=now_ms))
        if self.engine.is_opened:
            for deadline_ms, text in self.links.unused_deadlines():
                if deadline_ms <= now_ms:
                    self.fail(ConnectionForced(text))
        if self.life.is_open:
            self.links.on_check_due()

    # --- the end of a turn ----------------------------------------------------------------------

    def _finish_turn(self) -> None:
        self.links.flush()
        if self.life.is_open and PauseReason.PEER not in self.backpressure.reasons:
            self.links.scheduler.run(_TURN_BYTES)
            if self.links.scheduler:
                self.turns.run_soon()
        self._write()
        if self.links.must_arm:
            self._arm()

    def _acknowledge(self) -> None:
        self.links.flush()
        self._write()

    def _write(self) -> None:
        data = self.engine.bytes_to_send(now_ms=self.context.clock.monotonic_ms())
        if data and self.life.can_write:
            self.bytes_out += len(data)
            self.transport.write(data)
        if self.engine.is_over:
            self.life.hang_up()

    # --- the end of the connection --------------------------------------------------------------

    def _send_close(self, error: PenstockError) -> None:
        """The peer may answer our close for a short time."""
        self.links.close()
        was_opened = self.engine.is_opened
        self.engine.close(self.links.wire_error(error))
        self._write()
        if was_opened:
            self.backpressure.end()
            self.life.await_peer_close()
        else:
            self.life.hang_up()

    def _on_crash(self) -> None:
        """Within an exception handler: a turn raised."""
        log.exception("internal error id=%s peer=%s", self.id, self.transport.peer)
        self.life.close()
        self.life.reason = "internal error"
        try:
            self._send_close(
                InternalError(
                    "The service met an internal error; the operator finds it by the tracking id."
                )
            )
        except Exception:  # noqa: BLE001 - the bug may be anywhere; the socket is closed anyway
            log.exception("closing failed too id=%s peer=%s", self.id, self.transport.peer)
            self.transport.abort()


def _engine_config(context: AmqpContext, container_id: str) -> ConnectionConfig:
    deadlines = context.deadlines
    return ConnectionConfig(
        container_id=container_id,
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
    )


_EVENT_HANDLERS: dict[type, Callable[[AmqpConnection, Any], None]] = {
    SaslInitReceived: AmqpConnection.on_sasl_init,
    OpenReceived: AmqpConnection.on_open,
    AttachReceived: AmqpConnection.on_attach,
    CloseReceived: AmqpConnection.on_close,
    ConnectionFailed: AmqpConnection.on_failed,
}
