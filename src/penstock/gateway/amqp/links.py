"""The links of a connection: what every link handler does, and what it may ask of its connection.

`LinkHost` is all that a handler knows of its connection. It holds no reference to the connection,
only to the parts that links use and to the callables that it was given.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import msgspec

from penstock.amqp.events import (
    DetachReceived,
    DispositionReceived,
    EndReceived,
    FlowReceived,
    TransferOversized,
    TransfersReceived,
)
from penstock.amqp.link import Link
from penstock.amqp.performatives import Accepted, Disposition, Error
from penstock.auth.grant import Grant, missing_claim_text
from penstock.gateway.amqp.addresses import LinkAddress
from penstock.gateway.amqp.authorization import ConnectionGrants
from penstock.gateway.amqp.context import AmqpContext, log
from penstock.gateway.amqp.errors import add_tracking
from penstock.gateway.amqp.send_scheduler import SendScheduler
from penstock.gateway.amqp.turn import TurnRunner
from penstock.gateway.backpressure import PauseReason, ReadBackpressure
from penstock.gateway.guard import ConnectionSlot
from penstock.model import limits, names, slow_operations
from penstock.model.entities import Right
from penstock.model.errors import PenstockError, QuotaExceeded, Unauthorized

_SERVER_FAULT = 500  # and above: logged where it happens, not as a refusal
_CHECK_MS = 15_000  # the wall clock may be set, readers may stall: check at least this often


class LinkHandler:
    """One attached link. The defaults are for calls that a kind of link does not need."""

    ends_ms: int | None = None  # when the link ends unless another grant is found for it
    path: Sequence[str] = ()  # of the entity, for log lines
    tracker = ""  # SystemTracker of the link's errors

    def __init__(self, host: LinkHost, link: Link) -> None:
        self.host = host
        self.link = link

    def start(self) -> None:
        """The attach reply was sent: grant credit, begin to deliver."""

    def on_transfers(self, event: TransfersReceived) -> None:
        raise AssertionError(f"{type(self).__name__} receives no transfers")

    def on_oversized(self, event: TransferOversized) -> None:
        raise AssertionError(f"{type(self).__name__} receives no transfers")

    def send_pending(self, bytes_max: int) -> int:
        """See `SendingLink`."""
        return 0

    def flush(self) -> None:
        """Send the dispositions and the credit that have accumulated."""

    def release_memory(self) -> None:
        """Called now and then: a link that has not sent since the last call drops its buffers."""

    def renew(self, now_ms: int) -> PenstockError | None:
        """The grant may have ended: find another one, or return why the link must end."""
        return None

    def close(self) -> None:
        """The link is gone, whichever side ended it. Called once."""


class EntityLink(msgspec.Struct, frozen=True):
    """A link to an entity, the right that the attach needs, and a grant of that right. `tracker` is
    the SystemTracker of errors."""

    host: LinkHost
    link: Link
    address: LinkAddress
    right: Right
    grant: Grant
    tracker: str


class EntityLinkHandler(LinkHandler):
    """A link to a hub or a part of it. It lives while the connection has a grant for `right`."""

    def __init__(self, entity: EntityLink) -> None:
        super().__init__(entity.host, entity.link)
        self.address = entity.address
        self.path = entity.address.path
        self.right = entity.right
        self.tracker = entity.tracker
        self._set_end(entity.grant)

    def renew(self, now_ms: int) -> PenstockError | None:
        # An expired token opens no link, but a link that was opened with it lives on for the grace
        # period, so that a late renewal does not end the link.
        grace_ms = self.host.context.expiry_grace_ms
        grant = self.host.grants.find(self.address.path, self.right, now_ms=now_ms - grace_ms)
        if grant is None:
            return self.host.unauthorized_error(self.path, self.right)
        self._set_end(grant)
        return None

    def _set_end(self, grant: Grant) -> None:
        grace_ms = self.host.context.expiry_grace_ms
        self.ends_ms = None if grant.expires_ms is None else grant.expires_ms + grace_ms

    def end(self, error: PenstockError) -> None:
        """The broker ended this link: its hub was deleted or changed, or another reader displaced
        it. A hub may have thousands of links: a bounded number is detached per loop iteration."""
        self.host.context.ended_links.run(
            partial(self.host.turns.run, partial(self.host.detach, self.link, error))
        )


class AcceptedAttach(msgspec.Struct, frozen=True):
    handler: LinkHandler
    max_message_size: int
    properties: dict[str, object] | None = None


class RefusedAttach(msgspec.Struct, frozen=True):
    """`path` and `policy` are for the log line, `tracker` for the error."""

    error: PenstockError
    path: Sequence[str]
    policy: str
    tracker: str


OnDecided: TypeAlias = Callable[[AcceptedAttach | RefusedAttach], None]
"""Reports the decision about an attach, at once or in a later turn; exactly once."""


@dataclass(kw_only=True, eq=False)
class LinkHost:
    """The links of one connection and what they share. Event loop only. `fail` closes the
    connection with an error."""

    context: AmqpContext
    id: str  # of the connection
    peer: str
    slot: ConnectionSlot
    backpressure: ReadBackpressure
    turns: TurnRunner
    fail: Callable[[PenstockError], None]

    def __post_init__(self) -> None:
        self.grants = ConnectionGrants()
        self.scheduler = SendScheduler()
        self.handlers: dict[Link, LinkHandler] = {}
        self.hostname = ""  # by which the peer names the namespace
        self.namespace = ""
        self.is_authenticated = False
        self.is_closed = False
        self.must_arm = True  # a deadline may be earlier than the connection's timer
        self.events_in = self.events_out = 0
        self.reply_bytes = 0  # of all reply links, waiting for credit
        self.started_ms = self._linkless_since_ms = self.context.clock.monotonic_ms()
        self.token_since_ms = self.started_ms  # without the time that input waited for its turn
        self._had_link = False
        self._failed_tokens = 0
        self._delayed_answers: dict[object, asyncio.TimerHandle] = {}
        self._dirty: dict[LinkHandler, None] = {}  # with dispositions to send
        # Links whose attach is not decided, with the deliveries that arrived on them meanwhile.
        self._undecided: dict[Link, list[TransfersReceived | TransferOversized]] = {}

    # --- for handlers ---------------------------------------------------------------------------

    def authenticate(self, namespace: str) -> None:
        """A token or key for the namespace was verified; links may live longer now."""
        self.namespace = namespace
        self.is_authenticated = True
        self.must_arm = True
        self.slot.authenticate()

    def mark_dirty(self, handler: LinkHandler) -> None:
        """The link has dispositions to send. They are written once per turn or commit round."""
        if self.is_closed:
            return
        if not self._dirty:
            self.turns.acknowledge_soon()
        self._dirty[handler] = None

    def detach(self, link: Link, error: PenstockError) -> None:
        """End one link from our side. Within a turn."""
        handler = self.handlers.get(link)
        if handler is None:
            return
        self.context.broker.rounds.run_completions()
        handler.flush()  # stored events are acknowledged before the link is gone
        self.log_refusal("detach", error, handler.path)
        self._remove(link)
        if link.is_attached and link.session.is_mapped:
            link.detach(self.wire_error(error, handler.tracker))
        self.turns.run_soon()

    def wire_error(self, error: PenstockError, tracker: str = "") -> Error:
        return Error(condition=error.condition, description=self.error_text(error, tracker))

    def error_text(self, error: PenstockError, tracker: str = "") -> str:
        return add_tracking(
            str(error),
            tracking_id=self.id,
            tracker=tracker or self.namespace or "-",
            now_ms=self.context.clock.now_ms(),
        )

    def unauthorized_error(self, path: Sequence[str], right: Right) -> Unauthorized:
        """The same text whether the entity exists or not, so that a client without a grant learns
        nothing."""
        resource = f"sb://{self.hostname or self.namespace or 'namespace'}/{'/'.join(path)}"
        return Unauthorized(missing_claim_text(right, names.quote_text(resource, most=200)))

    def log_refusal(
        self, operation: str, error: PenstockError, path: Sequence[str] = (), policy: str = ""
    ) -> None:
        """Write one log line with the id that the client sees. Without `policy` it names those of
        the tokens that the connection holds."""
        if error.http_status < _SERVER_FAULT:
            self.context.refusal_log.record(
                operation,
                error,
                address=self.slot.address,
                peer=self.peer,
                tracking_id=self.id,
                policy=policy or self.grants.policy_names(),
                path=path,
            )

    # --- failed tokens --------------------------------------------------------------------------

    def fail_token(self, policy: str) -> int:
        """Count a failed token; return the delay of its answer in milliseconds. Too many failures
        close the connection."""
        delay_ms = self.context.guard.auth_delay.fail(
            policy, self.slot.address, now_ms=self.context.clock.monotonic_ms()
        )
        self._failed_tokens += 1
        most = limits.FAILED_TOKENS_PER_CONNECTION_MAX
        if self._failed_tokens >= most:
            self.fail(
                QuotaExceeded(
                    f"{self._failed_tokens} tokens have failed on this connection: "
                    f"at most {most} may."
                )
            )
        return delay_ms

    def answer_later(self, delay_ms: int, answer: Callable[[], None]) -> None:
        """Run `answer` in a turn after the delay, unless the connection ends before."""
        if self.is_closed:
            return
        if not self.context.guard.auth_delay.start_waiting():
            self.fail(QuotaExceeded("Too many answers to tokens that failed are waiting."))
            return
        key = object()
        send = partial(self._answer_delayed, key, answer)
        self._delayed_answers[key] = self.context.loop.call_later(delay_ms / 1000, send)

    def _answer_delayed(self, key: object, answer: Callable[[], None]) -> None:
        del self._delayed_answers[key]
        self.context.guard.auth_delay.stop_waiting()
        self.turns.run(answer)

    # --- attach ---------------------------------------------------------------------------------

    def attach(self, link: Link, decide: Callable[[LinkHost, Link, OnDecided], None]) -> None:
        """Let `decide` accept or refuse the link. It reports at once or later; until then the link
        stays ATTACH_RECEIVED, and deliveries on it wait here."""
        self._undecided[link] = []
        began_ms = self.context.clock.monotonic_ms()

        def on_decided(decision: AcceptedAttach | RefusedAttach) -> None:
            took_ms = self.context.clock.monotonic_ms() - began_ms
            slow_operations.warn_if_slow("attach", took_ms, peer=self.peer)
            if not self.is_closed:
                self.turns.run(partial(self._finish_attach, link, decision))
            elif isinstance(decision, AcceptedAttach):
                decision.handler.close()  # its registration must not stay

        decide(self, link, on_decided)

    def _finish_attach(self, link: Link, decision: AcceptedAttach | RefusedAttach) -> None:
        deliveries = self._undecided.pop(link, [])
        if isinstance(decision, RefusedAttach):
            self.log_refusal("attach", decision.error, decision.path, decision.policy)
            link.refuse(self.wire_error(decision.error, decision.tracker))
        else:
            self._accept(link, decision)
        for event in deliveries:
            EVENT_HANDLERS[type(event)](self, event)
        if not any(self._undecided.values()):
            self.backpressure.resume(PauseReason.ATTACH)

    def _accept(self, link: Link, decision: AcceptedAttach) -> None:
        handler, request = decision.handler, link.attach
        assert request is not None
        try:
            link.accept(
                source=request.source,
                target=request.target,
                max_message_size=decision.max_message_size,
                properties=decision.properties,
            )
        except BaseException:
            handler.close()
            raise
        if not link.is_attached:
            # The peer has detached the link or ended its session, or the reply does not fit into
            # the peer's frames.
            handler.close()
            return
        self.handlers[link] = handler
        self._had_link = self.must_arm = True
        handler.start()
        self.scheduler.add(handler)  # credit may have arrived with the attach

    # --- events of the engine -------------------------------------------------------------------

    def on_transfers(self, event: TransfersReceived) -> None:
        handler = self.handlers.get(event.link)
        if handler is not None:
            handler.on_transfers(event)
        else:
            self._keep_delivery(event)

    def on_oversized(self, event: TransferOversized) -> None:
        handler = self.handlers.get(event.link)
        if handler is not None:
            handler.on_oversized(event)
        else:
            self._keep_delivery(event)

    def _keep_delivery(self, event: TransfersReceived | TransferOversized) -> None:
        deliveries = self._undecided.get(event.link)
        if deliveries is not None:
            deliveries.append(event)
            self.backpressure.pause(PauseReason.ATTACH)

    def on_flow(self, event: FlowReceived) -> None:
        handler = self.handlers.get(event.link) if event.link is not None else None
        if handler is not None:
            self.scheduler.add(handler)
        self.scheduler.window_changed(event.session)

    def on_disposition(self, event: DispositionReceived) -> None:
        # Deliveries were sent settled, so nothing is remembered (E21). A receiver in mode "second"
        # that still asks gets its answer (protocol.md 5.5), without a loop over the range.
        disposition = event.disposition
        if disposition.role and not disposition.settled:
            event.session.send(
                Disposition(
                    role=False,
                    first=disposition.first,
                    last=disposition.last,
                    settled=True,
                    state=Accepted(),
                )
            )

    def on_detach(self, event: DetachReceived) -> None:
        self._remove(event.link)

    def on_end(self, event: EndReceived) -> None:
        for link in [link for link in self.handlers if link.session is event.session]:
            self._remove(link)
        self.scheduler.forget(event.session)

    # --- for the connection ---------------------------------------------------------------------

    def flush(self) -> None:
        """Queue the dispositions of all links in the engine."""
        while self._dirty:
            handler, _ = self._dirty.popitem()
            handler.flush()

    def unused_deadlines(self) -> Iterator[tuple[int, str]]:
        """When the connection must be closed because it has no token or no link, by the monotonic
        clock, with the text of the error in Azure's words (protocol.md 1.6)."""
        deadlines = self.context.deadlines
        if not self.is_authenticated:
            most_ms = deadlines.token_ms
            yield (
                self.token_since_ms + most_ms,
                f"No valid token was put within {most_ms} milliseconds.",
            )
        if not self.handlers:
            most_ms = deadlines.linkless_first_ms
            if self._had_link:
                most_ms = deadlines.linkless_later_ms
            yield (
                self._linkless_since_ms + most_ms,
                f"The connection was inactive for more than the allowed {most_ms} milliseconds and "
                "is closed by container 'LinkTracker'.",
            )

    def next_check_ms(self) -> int:
        """Milliseconds until the first link ends with its grant, by the wall clock."""
        now_ms = self.context.clock.now_ms()
        ends = (handler.ends_ms for handler in self.handlers.values())
        first_ms = min((end_ms for end_ms in ends if end_ms is not None), default=None)
        return _CHECK_MS if first_ms is None else min(max(first_ms - now_ms, 0), _CHECK_MS)

    def on_check_due(self) -> None:
        """End links whose tokens have expired, and release memory that idle links hold."""
        now_ms = self.context.clock.now_ms()
        self.grants.drop_expired(now_ms=now_ms - self.context.expiry_grace_ms)
        for link, handler in list(self.handlers.items()):
            if handler.ends_ms is not None and handler.ends_ms <= now_ms:
                self._renew(link, handler, now_ms)
        for handler in self.handlers.values():
            handler.release_memory()

    def revalidate_grants(self) -> None:
        """Policies changed: links whose grant is gone end now."""
        self.grants.renew(self.context.authorities())
        now_ms = self.context.clock.now_ms()
        for link, handler in list(self.handlers.items()):
            self._renew(link, handler, now_ms)

    def close(self) -> None:
        """End all links, so that registrations are free before the socket is gone. An exception in
        one handler must not prevent the others from closing."""
        self.is_closed = True
        handlers = list(self.handlers.values())
        self.handlers.clear()
        self.scheduler.clear()
        self._dirty.clear()
        self._undecided.clear()
        while self._delayed_answers:
            _, timer = self._delayed_answers.popitem()
            timer.cancel()
            self.context.guard.auth_delay.stop_waiting()
        for handler in handlers:
            try:
                handler.close()
            except Exception:  # noqa: BLE001 - see the docstring
                log.exception("closing a link failed id=%s peer=%s", self.id, self.peer)

    def forget_connection(self) -> None:
        """The socket is gone (see TurnRunner.close)."""
        self.fail = _ignore_failure

    def _renew(self, link: Link, handler: LinkHandler, now_ms: int) -> None:
        error = handler.renew(now_ms)
        if error is not None:
            self.detach(link, error)

    def _remove(self, link: Link) -> None:
        handler = self.handlers.pop(link, None)
        if handler is None:
            return
        self.scheduler.remove(handler)
        handler.close()
        if not self.handlers:
            self._linkless_since_ms = self.context.clock.monotonic_ms()
            self.must_arm = True


EVENT_HANDLERS: dict[type, Callable[[LinkHost, Any], None]] = {
    FlowReceived: LinkHost.on_flow,
    TransfersReceived: LinkHost.on_transfers,
    TransferOversized: LinkHost.on_oversized,
    DispositionReceived: LinkHost.on_disposition,
    DetachReceived: LinkHost.on_detach,
    EndReceived: LinkHost.on_end,
}


def _ignore_failure(_: PenstockError) -> None:
    """The connection is over."""
