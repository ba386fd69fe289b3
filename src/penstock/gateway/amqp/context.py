"""What every AMQP connection shares, passed in by the composition root."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Protocol

from penstock.auth.sas import Authority
from penstock.broker import error_messages
from penstock.broker.broker import Broker
from penstock.gateway.amqp.lifecycle import Deadlines
from penstock.gateway.amqp.turn_queue import TurnQueue
from penstock.gateway.backpressure import PendingBytes
from penstock.gateway.guard import Guard
from penstock.gateway.refusal_log import RefusalLog
from penstock.model import limits
from penstock.model.clock import Clock
from penstock.model.entities import Namespace, Tier
from penstock.model.errors import PenstockError, QuotaExceeded
from penstock.model.names import fold_name

log = logging.getLogger("penstock.amqp")

_MANAGEMENT_CALL_MS = 1000 // limits.MANAGEMENT_CALLS_PER_S
_MANAGEMENT_BURST_MS = 1000  # the calls of one second may come at once


class PartialDeliveryHolder(Protocol):
    def drop_partial_deliveries(self, error: PenstockError) -> None:
        """Close the connection with the error and free the partial deliveries at once."""


class UnfinishedBytes:
    """Bytes of partial deliveries over all connections.

    One connection may hold 16 MB of them. Above the limit the connection that holds the most is
    closed: a sender that finishes its deliveries holds little at any time."""

    def __init__(self, limit: int = limits.UNFINISHED_BYTES_MAX) -> None:
        self.limit = limit
        self.total = 0
        self._sizes: dict[PartialDeliveryHolder, int] = {}

    def update(self, holder: PartialDeliveryHolder, size: int) -> None:
        """`holder` has `size` bytes now."""
        before = self._sizes.get(holder, 0)
        if size == before:
            return
        self._set(holder, size)
        if size > before:
            while self.total > self.limit:
                largest = max(self._sizes, key=self._sizes.__getitem__)
                largest_size = self._sizes[largest]
                self._set(largest, 0)
                largest.drop_partial_deliveries(
                    QuotaExceeded(
                        f"Unfinished deliveries of all connections have more than {self.limit} "
                        f"bytes, {largest_size} of them on this connection: send the last frames "
                        "first."
                    )
                )

    def _set(self, holder: PartialDeliveryHolder, size: int) -> None:
        self.total += size - self._sizes.pop(holder, 0)
        if size:
            self._sizes[holder] = size


class ManagementRateLimit:
    """`$management` answers 50 requests a second of one namespace (protocol.md 3.3). Times are
    monotonic milliseconds. A refused request costs nothing."""

    def __init__(self) -> None:
        self._paid_ms: dict[str, int] = {}  # until when the requests so far use up the rate

    def admit(self, namespace: Namespace, now_ms: int) -> None:
        """Count a request, or raise ServerBusy. No limit where units are not enforced."""
        if namespace.throughput_units is None or namespace.tier is Tier.DEDICATED:
            return
        name = fold_name(namespace.name)
        paid_ms = max(self._paid_ms.get(name, now_ms), now_ms) + _MANAGEMENT_CALL_MS
        if paid_ms > now_ms + _MANAGEMENT_BURST_MS:
            raise error_messages.server_busy_error()
        self._paid_ms[name] = paid_ms


@dataclass(kw_only=True, eq=False)
class AmqpContext:
    """`new_id` returns random hex text, `authorities` the namespaces as they are now."""

    broker: Broker
    clock: Clock
    authorities: Callable[[], Sequence[Authority]]
    reads: Executor
    new_id: Callable[[], str]
    loop: asyncio.AbstractEventLoop
    guard: Guard
    deadlines: Deadlines = field(default_factory=Deadlines)
    connections_max: int = limits.CONNECTIONS_PER_NAMESPACE_MAX
    expiry_grace_ms: int = 1000 * limits.EXPIRY_GRACE_S  # how long a link outlives its token

    def __post_init__(self) -> None:
        self.pending_bytes = PendingBytes()
        self.unfinished = UnfinishedBytes()
        # Links that the broker ends: their hub was deleted, disabled or changed.
        self.ended_links = TurnQueue(self.loop)
        self.management_rate = ManagementRateLimit()
        self.refusal_log = RefusalLog(self.clock.monotonic_ms)
