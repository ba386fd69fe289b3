"""One connection's bytes on their way into the engine: how many, how fast, from whom."""

from __future__ import annotations

from asyncio import TimerHandle
from typing import TYPE_CHECKING

from penstock.gateway.effort import ATTACH, BYTES_AT_ONCE, FRAMES_AT_ONCE, Effort
from penstock.model import limits
from penstock.model.errors import QuotaExceeded

if TYPE_CHECKING:
    from penstock.gateway.amqp.driver import AmqpConnection


class Reading:
    """`effort` is what the peer has left of work that nothing comes of; when it is used up, the
    socket is not read for a while. A peer that nobody knows has a budget of bytes and links."""

    def __init__(self, connection: AmqpConnection, now_ms: int) -> None:
        self.effort = Effort(
            connection.context.admission.resting,
            now_ms,
            is_blamed=connection.is_of_blamed,
            on_give_up=self._give_up,
        )
        self.bytes = 0
        self._connection = connection
        self._attaches = 0
        self._unread = b""  # by the engine, of what came; the socket is not read meanwhile
        self._timer: TimerHandle | None = None

    def take(self, data: bytes) -> None:
        """What one read of the socket brought, a few frames at a time: a peer that only makes
        work is stopped in the middle of it."""
        connection, effort = self._connection, self.effort
        engine, now_ms = connection.engine, connection.context.clock.monotonic_ms()
        self.bytes += len(data)
        self._unread = self._unread + data if self._unread else data
        while (self._unread or engine.has_more) and not effort.is_resting:
            piece = b"" if engine.has_more else self._next_piece()
            before = engine.frames_received
            connection.handle(engine.receive_data(piece, now_ms=now_ms, frames_max=FRAMES_AT_ONCE))
            effort.spend(engine.frames_received - before)
            self._rest_if_overdrawn(now_ms)
        if not connection.authenticated and self.bytes > limits.UNAUTHENTICATED_BYTES_MAX:
            connection.fail(
                QuotaExceeded(
                    f"{self.bytes} bytes came before a valid token: at most "
                    f"{limits.UNAUTHENTICATED_BYTES_MAX} are read."
                )
            )

    def attach(self) -> bool:
        """The peer asks for a link; False when that was one too many."""
        self.effort.spend(ATTACH)
        self._attaches += 1
        if self._connection.authenticated or self._attaches <= limits.UNAUTHENTICATED_LINKS_MAX:
            return True
        self._connection.fail(
            QuotaExceeded(
                f"{self._attaches} links were asked for before a valid token: at most "
                f"{limits.UNAUTHENTICATED_LINKS_MAX} may be."
            )
        )
        return False

    def close(self) -> None:
        """The connection is over."""
        self._unread = b""
        self._stop_resting()

    def _stop_resting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.effort.rested(self._connection.context.clock.monotonic_ms())

    def _next_piece(self) -> bytes:
        size = len(self._unread) if self.effort.is_trusted else BYTES_AT_ONCE
        piece, self._unread = self._unread[:size], self._unread[size:]
        return piece

    def _rest_if_overdrawn(self, now_ms: int) -> None:
        connection = self._connection
        rest_ms = self.effort.rest_ms(now_ms)
        if rest_ms:
            connection.misbehaved()
            connection.intake.rest()
            self._timer = connection.context.loop.call_later(rest_ms / 1000, self._rested)
            if connection.is_ending and not connection.engine.is_over:
                connection.hang_up()  # no more patience with one that was told to go

    def _give_up(self) -> None:
        """Nobody can tell whether the peer is still there, and nothing comes of it if it is."""
        connection = self._connection
        self._unread = b""
        connection.fail(QuotaExceeded("Frames that nothing comes of: the connection is ended."))
        connection.hang_up()

    def _rested(self) -> None:
        self._stop_resting()
        self._connection.intake.rested()
        self._connection.turn(lambda: self.take(b""))
