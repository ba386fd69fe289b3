"""Bytes of one connection on their way into the engine, as fast as its work budget allows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.model import limits
from penstock.model.errors import QuotaExceeded

if TYPE_CHECKING:
    from penstock.gateway.amqp.connection import AmqpConnection

FRAMES_AT_ONCE = 16  # runs of transfers are not counted; then the work is measured
_BYTES_AT_ONCE = 4 * limits.KB  # without a budget; whole reads become whole batches


class InputBuffer:
    """Parses what was read, piece by piece, and charges each piece to the connection's budget.
    While the connection waits for its turn, its socket is not read."""

    def __init__(self, connection: AmqpConnection) -> None:
        self.bytes = 0  # received in all
        self._connection = connection
        self._budget = connection.slot.budget
        self._budget.on_drop = self._drop
        self._attaches = 0
        self._unread = b""
        self._is_waiting = False

    def take(self, data: bytes) -> None:
        """The bytes of one read of the socket."""
        connection = self._connection
        self.bytes += len(data)
        self._unread = self._unread + data if self._unread else data
        if not self._is_waiting:
            self._work()
        if not connection.authenticated and self.bytes > limits.UNAUTHENTICATED_BYTES_MAX:
            connection.fail(
                QuotaExceeded(
                    f"{self.bytes} bytes came before a valid token: at most "
                    f"{limits.UNAUTHENTICATED_BYTES_MAX} are read."
                )
            )
            self._unread = b""

    def count_attach(self) -> bool:
        """The peer asks for a link; False when it may not before a valid token."""
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
        """The connection is over. It is not referred to any more: a cycle would keep both until a
        garbage collection."""
        self._unread = b""
        self._budget.close()
        del self._connection

    def _work(self) -> None:
        connection, budget = self._connection, self._budget
        engine, now_ms = connection.engine, connection.context.clock.monotonic_ms()
        while self._unread or engine.has_more:
            if not budget.may_work():
                self._wait()
                return
            piece = b"" if engine.has_more else self._next_piece()
            started = budget.start()
            connection.handle(engine.receive_data(piece, now_ms=now_ms, frames_max=FRAMES_AT_ONCE))
            budget.stop(started)
            connection.context.unfinished.update(connection, engine.allowance.partial_bytes)

    def _next_piece(self) -> bytes:
        size = len(self._unread) if self._budget.is_within else _BYTES_AT_ONCE
        piece, self._unread = self._unread[:size], self._unread[size:]
        return piece

    def _wait(self) -> None:
        connection = self._connection
        if connection.is_ending and not connection.engine.is_over:
            self._unread = b""
            connection.hang_up()  # it was asked to go, and still makes work
            return
        if connection.authenticated:
            connection.slot.penalize()  # beyond its budget
        self._is_waiting = True
        connection.intake.pause_for_work()
        self._budget.wait(self._resume)

    def _resume(self) -> None:
        self._is_waiting = False
        self._connection.run_turn(self._work)
        if not self._is_waiting:
            self._connection.intake.resume_work()

    def _drop(self) -> None:
        connection = self._connection
        self._unread = b""
        connection.slot.penalize()
        connection.fail(
            QuotaExceeded("Too many frames without useful work; the connection is closed.")
        )
        connection.hang_up()
