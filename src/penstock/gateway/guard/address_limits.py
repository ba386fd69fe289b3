"""Connections per address, authenticated or not, and penalties for connections that failed.

An unauthenticated connection above the limit takes the slot of the oldest one: an honest client is
unauthenticated for milliseconds. A connection that ends without authentication, or that broke the
protocol, is a penalty for its address. An address with too many penalties has its next
connections held, unread and before TLS, for up to two seconds, and refused when too many are held.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections.abc import Callable
from functools import lru_cache

from penstock.gateway.guard.work_budget import WorkBudget
from penstock.model import limits

log = logging.getLogger("penstock.gateway")

_HOSTS_CACHED = 1024
_V6_PREFIX = 64  # a customer has a whole network: its single addresses cost nothing


class ConnectionSlot:
    """The slot of one socket, from accept to close. `evict` ends the socket at any stage. Its owner
    calls `accepted` when the socket has a protocol, and `release` when it is closed (idempotent).
    All protocols on the socket share `budget`."""

    budget: WorkBudget

    def __init__(self, addresses: AddressLimits, record: _AddressRecord, hold_ms: int) -> None:
        self.address = record.address
        self.hold_ms = hold_ms  # how long the socket waits before it is read
        self.is_accepted = False
        self.is_authenticated = False
        self.refused_requests = 0  # HTTP: answers 4xx
        self.evict: Callable[[], object] = _nothing
        self._addresses = addresses
        self._record = record
        self._is_held = hold_ms > 0
        self._is_penalized = False
        self._is_released = False

    @property
    def is_suspect(self) -> bool:
        """Whether the end of the connection is a penalty for its address."""
        return not self.is_authenticated or self._is_penalized

    def accepted(self, transport: asyncio.BaseTransport) -> None:
        """The socket has its protocol, which is notified of its end."""
        self.is_accepted = True
        self._end_hold()
        self.evict = transport.abort  # type: ignore[attr-defined]  # every transport has it

    def authenticate(self) -> None:
        """A token or key of the peer was verified on this connection."""
        if not self.is_authenticated and not self._is_released:
            self.is_authenticated = True
            self.budget.authenticate()
            self._addresses.forget_unauthenticated(self, self._record)

    def penalize(self) -> None:
        """The peer broke the protocol or exceeded its budget: a penalty at once, and once only."""
        if not self._is_penalized and not self._is_released:
            self._addresses.penalize(self._record, limits.MISBEHAVED_CONNECTION_MS)
        self._is_penalized = True

    def drop(self) -> None:
        """The peer has exceeded its work budget for good."""
        self.penalize()
        self.evict()

    def release(self) -> None:
        if not self._is_released:
            self._is_released = True
            self.evict = _nothing  # keeps nothing of the socket
            self.budget.close()
            self._end_hold()
            if not self.is_authenticated and not self._is_penalized:
                self._addresses.penalize(self._record, limits.FAILED_CONNECTION_MS)
            self._addresses.forget(self, self._record)

    def _end_hold(self) -> None:
        if self._is_held:
            self._is_held = False
            self._record.held -= 1


class _AddressRecord:
    """Connections and penalties of one address. Forgotten once its penalties have expired."""

    __slots__ = ("address", "count", "has_warned", "held", "owed_ms", "since_ms", "unauthenticated")

    def __init__(self, address: str, now_ms: int) -> None:
        self.address = address
        self.count = 0
        self.held = 0
        self.has_warned = False
        self.unauthenticated: dict[ConnectionSlot, None] = {}  # oldest first
        self.owed_ms = 0  # penalties; time pays them off
        self.since_ms = now_ms

    def settle(self, now_ms: int) -> int:
        self.owed_ms = max(0, self.owed_ms - max(0, now_ms - self.since_ms))
        self.since_ms = now_ms
        return self.owed_ms


class AddressLimits:
    """`monotonic_ms` is the clock. Tests lower the limits."""

    connections_max = limits.CONNECTIONS_PER_ADDRESS_MAX
    unauthenticated_max = limits.UNAUTHENTICATED_PER_ADDRESS_MAX
    unauthenticated_total_max = limits.UNAUTHENTICATED_MAX
    held_max = limits.HELD_PER_ADDRESS_MAX
    addresses_max = limits.ADDRESSES_REMEMBERED_MAX

    def __init__(self, monotonic_ms: Callable[[], int]) -> None:
        self.unauthenticated: dict[ConnectionSlot, None] = {}  # oldest first
        self._monotonic_ms = monotonic_ms
        self._records: dict[str, _AddressRecord] = {}

    def admit(self, host: str) -> ConnectionSlot | None:
        """None if the address has as many connections, or held ones, as it may have."""
        now_ms = self._monotonic_ms()
        record = self._record(network_of(host), now_ms)
        if record.count >= self.connections_max:
            self._refuse(record, f"{record.count} connections, the most allowed")
            return None
        hold_ms = max(0, record.settle(now_ms) - limits.PENALTIES_FREE_MS)
        if hold_ms and record.held >= self.held_max:
            self._refuse(record, "connections that fail or break the protocol")
            return None
        record.held += hold_ms > 0
        if len(record.unauthenticated) >= self.unauthenticated_max:
            self._evict(next(iter(record.unauthenticated)))
        if len(self.unauthenticated) >= self.unauthenticated_total_max:
            self.evict_oldest()
        slot = ConnectionSlot(self, record, hold_ms)
        record.count += 1
        record.unauthenticated[slot] = None
        self.unauthenticated[slot] = None
        return slot

    def detached_slot(self, host: str) -> ConnectionSlot:
        record = _AddressRecord(network_of(host), self._monotonic_ms())
        record.count = 1
        return ConnectionSlot(self, record, 0)

    def evict_oldest(self) -> None:
        """End the oldest unauthenticated connection, if there is one."""
        for slot in self.unauthenticated:
            self._evict(slot)
            return

    def forget_unauthenticated(self, slot: ConnectionSlot, record: _AddressRecord) -> None:
        self.unauthenticated.pop(slot, None)
        record.unauthenticated.pop(slot, None)

    def penalize(self, record: _AddressRecord, cost_ms: int) -> None:
        most = limits.PENALTIES_FREE_MS + limits.HOLD_MS_MAX
        record.owed_ms = min(record.settle(self._monotonic_ms()) + cost_ms, most)

    def forget(self, slot: ConnectionSlot, record: _AddressRecord) -> None:
        self.forget_unauthenticated(slot, record)
        record.count -= 1
        assert record.count >= 0

    def _refuse(self, record: _AddressRecord, reason: str) -> None:
        if not record.has_warned:  # there may be thousands a second
            record.has_warned = True
            log.warning("connections refused address=%s reason=%r", record.address, reason)

    def _evict(self, slot: ConnectionSlot) -> None:
        log.warning("connection evicted address=%s reason='no token yet'", slot.address)
        slot.evict()
        slot.release()

    def _record(self, address: str, now_ms: int) -> _AddressRecord:
        record = self._records.get(address)
        if record is None:
            if len(self._records) >= self.addresses_max:
                self._forget_addresses(now_ms)
            record = self._records[address] = _AddressRecord(address, now_ms)
        return record

    def _forget_addresses(self, now_ms: int) -> None:
        """Forget addresses without connections, the smallest penalties first, until half of the
        table is free, so that this does not happen for every new address."""
        idle = [record for record in self._records.values() if record.count == 0]
        idle.sort(key=lambda record: record.settle(now_ms))
        kept_max = self.addresses_max // 2
        for number, record in enumerate(idle):
            if record.owed_ms > 0 and len(idle) - number <= kept_max:
                return
            del self._records[record.address]


@lru_cache(maxsize=_HOSTS_CACHED)
def network_of(host: str) -> str:
    """The unit of the limits: an IPv4 address, or the /64 network of an IPv6 address."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, _V6_PREFIX), strict=False).network_address)


def _nothing() -> None:
    """The socket is gone, or has no protocol yet."""
