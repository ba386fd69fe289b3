"""Received bytes on their way into the engine, as fast as the connection's work budget allows."""

from __future__ import annotations

from collections.abc import Callable

from penstock.amqp.connection import ConnectionEngine
from penstock.amqp.events import Event
from penstock.gateway.amqp.turn import TurnRunner
from penstock.gateway.backpressure import PauseReason, ReadBackpressure
from penstock.gateway.guard import WorkBudget
from penstock.model import limits

FRAMES_AT_ONCE = 16  # without runs of transfers; then the work is measured
_BYTES_AT_ONCE = 4 * limits.KB  # without a budget; otherwise whole reads become whole batches


class InputBuffer:
    """Parses what was read, piece by piece, and charges each piece to the budget. While the
    connection waits for its turn in the work queue, its socket is not read."""

    def __init__(
        self,
        engine: ConnectionEngine,
        budget: WorkBudget,
        backpressure: ReadBackpressure,
        turns: TurnRunner,
        *,
        monotonic_ms: Callable[[], int],
        on_events: Callable[[list[Event]], None],
        may_wait: Callable[[], bool],
        on_waited: Callable[[int], None],
    ) -> None:
        """`may_wait` is called when the budget is exceeded; False drops the input instead.
        `on_waited` gets the milliseconds of each wait, which are no fault of the peer."""
        self.bytes = 0  # received in all
        self._engine = engine
        self._budget = budget
        self._backpressure = backpressure
        self._turns = turns
        self._monotonic_ms = monotonic_ms
        self._on_events = on_events
        self._may_wait = may_wait
        self._on_waited = on_waited
        self._unread = b""
        self.is_waiting = False  # for its turn in the work queue
        self._waiting_since_ms = 0

    def take(self, data: bytes) -> None:
        """The bytes of one read of the socket. Within a turn."""
        self.bytes += len(data)
        self._unread = self._unread + data if self._unread else data
        if not self.is_waiting:
            self._work()

    def drop(self) -> None:
        """Forget what was not parsed yet."""
        self._unread = b""

    def close(self) -> None:
        """The connection is over. Nothing refers to it any more (see TurnRunner.close). The budget
        belongs to the socket, which may not be closed yet: a WebSocket parses the peer's close."""
        self.drop()
        self._budget.cancel(self._resume)
        del self._on_events, self._may_wait, self._on_waited

    def _work(self) -> None:
        engine, budget = self._engine, self._budget
        now_ms = self._monotonic_ms()
        while self._unread or engine.has_more:
            if not budget.may_work():
                self._wait()
                return
            piece = b"" if engine.has_more else self._next_piece()
            started = budget.start()
            self._on_events(engine.receive_data(piece, now_ms=now_ms, frames_max=FRAMES_AT_ONCE))
            budget.stop(started)

    def _next_piece(self) -> bytes:
        size = len(self._unread) if self._budget.is_within else _BYTES_AT_ONCE
        piece, self._unread = self._unread[:size], self._unread[size:]
        return piece

    def _wait(self) -> None:
        if not self._may_wait():
            self.drop()
            return
        self.is_waiting = True
        self._waiting_since_ms = self._monotonic_ms()
        self._backpressure.pause(PauseReason.WORK)
        self._budget.wait(self._resume)

    def _resume(self) -> None:
        self.is_waiting = False
        self._on_waited(self._monotonic_ms() - self._waiting_since_ms)
        self._turns.run(self._work)
        if not self.is_waiting:
            self._backpressure.resume(PauseReason.WORK)
