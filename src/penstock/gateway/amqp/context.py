"""What every connection of the AMQP door shares, handed in by the composition root."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING

import msgspec

from penstock.auth import Authority
from penstock.broker import Broker
from penstock.gateway.amqp.calls import ManagementRateLimit
from penstock.gateway.amqp.turn_queue import TurnQueue
from penstock.gateway.guard import Guard
from penstock.gateway.refusal_log import RefusalLog
from penstock.model import limits
from penstock.model.clock import Clock
from penstock.model.errors import QuotaExceeded

if TYPE_CHECKING:
    from penstock.gateway.amqp.connection import AmqpConnection

log = logging.getLogger("penstock.amqp")


class Deadlines(msgspec.Struct, frozen=True, kw_only=True):
    """How long a peer may take; tests shorten them."""

    header_ms: int = limits.HEADER_DEADLINE_MS
    open_ms: int = limits.OPEN_DEADLINE_MS
    token_ms: int = limits.TOKEN_DEADLINE_MS
    linkless_first_ms: int = limits.LINKLESS_FIRST_MS
    linkless_later_ms: int = limits.LINKLESS_LATER_MS
    idle_time_out_ms: int = limits.IDLE_TIME_OUT_MS
    delivery_ms: int = limits.DELIVERY_DEADLINE_MS


class PendingBytes:
    """Bytes of all connections that wait for the disk. One slow disk must not fill the memory,
    and a stopping service waits until nothing is held."""

    def __init__(self, limit: int = limits.UNSETTLED_BYTES_MAX) -> None:
        self.limit = limit
        self.total = 0
        self.nothing = asyncio.Event()
        self.nothing.set()

    @property
    def is_full(self) -> bool:
        return self.total > self.limit

    def add(self, size: int) -> None:
        self.total += size
        self.nothing.clear()

    def remove(self, size: int) -> None:
        self.total -= size
        assert self.total >= 0
        if self.total == 0:
            self.nothing.set()


class UnfinishedBytes:
    """Bytes of deliveries whose last frame has not come, over all connections.

    One connection may hold 16 MB of them. Above the limit the connection that holds the most is
    closed: a sender that finishes its deliveries holds little at any time."""

    def __init__(self, limit: int = limits.UNFINISHED_BYTES_MAX) -> None:
        self.limit = limit
        self.total = 0
        self._held: dict[AmqpConnection, int] = {}

    def update(self, connection: AmqpConnection, size: int) -> None:
        """`connection` holds `size` bytes now."""
        before = self._held.get(connection, 0)
        if size == before:
            return
        self._set(connection, size)
        if size > before:
            while self.total > self.limit:
                largest = max(self._held, key=self._held.__getitem__)
                held = self._held[largest]
                self._set(largest, 0)
                largest.fail(
                    QuotaExceeded(
                        f"Unfinished deliveries of all connections have more than {self.limit} "
                        f"bytes, {held} of them on this connection: send the last frames first."
                    )
                )
                largest.hang_up()
                largest.engine.allowance.drop_partial_deliveries()

    def _set(self, connection: AmqpConnection, size: int) -> None:
        self.total += size - self._held.pop(connection, 0)
        if size:
            self._held[connection] = size


class AmqpContext:
    """`new_id` gives random hex text; `authorities` the namespaces as they are now."""

    def __init__(
        self,
        *,
        broker: Broker,
        clock: Clock,
        authorities: Callable[[], Sequence[Authority]],
        reads: Executor,
        new_id: Callable[[], str],
        loop: asyncio.AbstractEventLoop,
        deadlines: Deadlines | None = None,
        connections_max: int = limits.CONNECTIONS_PER_NAMESPACE_MAX,
        guard: Guard | None = None,
        expiry_grace_ms: int = 1000 * limits.EXPIRY_GRACE_S,
        refusal_log: RefusalLog | None = None,
    ) -> None:
        self.broker = broker
        self.clock = clock
        self.authorities = authorities
        self.reads = reads
        self.new_id = new_id
        self.loop = loop
        self.deadlines = deadlines or Deadlines()
        self.connections_max = connections_max
        self.held = PendingBytes()
        self.unfinished = UnfinishedBytes()
        self.ended_links = TurnQueue(loop)  # by the broker: the hub was deleted, disabled, changed
        self.guard = guard or Guard(loop)
        self.calls = ManagementRateLimit()
        self.refusal_log = refusal_log or RefusalLog(clock.monotonic_ms)
        self.expiry_grace_ms = expiry_grace_ms  # how long a link outlives its token
