"""Tokens that failed on one connection: counted, written down, their answers slowed."""

from __future__ import annotations

import itertools
from asyncio import TimerHandle
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.gateway.amqp.context import log
from penstock.gateway.effort import FAILED_TOKEN
from penstock.model import limits, names
from penstock.model.errors import AuthFailed, QuotaExceeded

if TYPE_CHECKING:
    from penstock.gateway.amqp.driver import AmqpConnection


class Refusals:
    """Good tokens do not come here: they are answered at once, whatever failed before them."""

    def __init__(self, connection: AmqpConnection) -> None:
        self._connection = connection
        self._count = 0
        self._numbers = itertools.count()
        self._timers: dict[int, TimerHandle] = {}

    def failed(self, policy: str, error: AuthFailed) -> int:
        """The milliseconds that the answer is to wait. Too many failures end the connection."""
        connection, context = self._connection, self._connection.context
        delay_ms = context.backoff.failed(
            policy, connection.address, now_ms=context.clock.monotonic_ms()
        )
        self._count += 1
        connection.effort.spend(FAILED_TOKEN)
        log.warning(
            "token refused: peer=%s policy=%s reason=%s failures=%d wait_ms=%d",
            connection.transport.peer,
            names.shown(policy) or "-",
            str(error).partition(":")[0],
            self._count,
            delay_ms,
        )
        if self._count >= limits.FAILED_TOKENS_PER_CONNECTION_MAX:
            connection.fail(
                QuotaExceeded(
                    f"{self._count} tokens have failed on this connection: at most "
                    f"{limits.FAILED_TOKENS_PER_CONNECTION_MAX} may."
                )
            )
        return delay_ms

    def later(self, delay_ms: int, answer: Callable[[], None]) -> None:
        """Give the answer then, in a turn of its own; never, if the connection ends before."""
        connection, backoff = self._connection, self._connection.context.backoff
        if not backoff.wait():
            connection.fail(QuotaExceeded("Too many answers to tokens that failed are waiting."))
            return
        number = next(self._numbers)

        def give() -> None:
            del self._timers[number]
            backoff.waited()
            connection.turn(answer)

        self._timers[number] = connection.context.loop.call_later(delay_ms / 1000, give)

    def close(self) -> None:
        while self._timers:
            _, timer = self._timers.popitem()
            timer.cancel()
            self._connection.context.backoff.waited()
