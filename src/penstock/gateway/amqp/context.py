"""What every connection of the AMQP door shares, handed in by the composition root."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor

import msgspec

from penstock.auth import Authority
from penstock.auth.backoff import Backoff
from penstock.broker import Broker
from penstock.gateway.admission import Admission
from penstock.gateway.amqp.calls import CallMeter
from penstock.model import limits
from penstock.model.clock import Clock

log = logging.getLogger("penstock.amqp")


class Deadlines(msgspec.Struct, frozen=True, kw_only=True):
    """How long a peer may take; tests shorten them."""

    header_ms: int = limits.HEADER_DEADLINE_MS
    open_ms: int = limits.OPEN_DEADLINE_MS
    token_ms: int = limits.TOKEN_DEADLINE_MS
    linkless_first_ms: int = limits.LINKLESS_FIRST_MS
    linkless_later_ms: int = limits.LINKLESS_LATER_MS
    idle_time_out_ms: int = limits.IDLE_TIME_OUT_MS


class Held:
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


class Context:
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
        admission: Admission | None = None,
        backoff: Backoff | None = None,
    ) -> None:
        self.broker = broker
        self.clock = clock
        self.authorities = authorities
        self.reads = reads
        self.new_id = new_id
        self.loop = loop
        self.deadlines = deadlines or Deadlines()
        self.connections_max = connections_max
        self.held = Held()
        self.admission = admission or Admission(clock.monotonic_ms)
        self.backoff = Backoff() if backoff is None else backoff  # an empty one is false
        self.calls = CallMeter()
