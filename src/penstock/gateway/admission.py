"""Who may come in: every socket has a place, from being accepted to being closed.

Three bounds: places of one address, places of peers that have not shown who they are (strangers)
of one address, and strangers in all. A stranger that comes when there are too many takes the place
of the oldest one: an honest client is a stranger for milliseconds, one that dawdles is not missed.

Connections that end as strangers, or misbehave, are counted against their address. One that
goes on like that finds its next connections held for up to two seconds before anybody reads them,
one behind the other, and refused when a thousand wait: whoever connects in a loop waits, and costs
next to nothing meanwhile. Other addresses do not wait behind it; an honest client at the same one
does, until it is in.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections.abc import Callable
from functools import lru_cache

import msgspec

from penstock.gateway.effort import Resting
from penstock.model import limits

log = logging.getLogger("penstock.gateway")

PLACE = "penstock.place"  # in the state of an ASGI scope: the place of the socket beneath

_HOSTS_CACHED = 1024
_V6_PREFIX = 64  # one customer's network: single addresses of it are free to have


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """How many; tests take less."""

    of_address: int = limits.CONNECTIONS_PER_ADDRESS_MAX
    strangers_of_address: int = limits.UNAUTHENTICATED_PER_ADDRESS_MAX
    young_strangers_of_address: int = limits.UNAUTHENTICATED_YOUNG_PER_ADDRESS_MAX
    strangers: int = limits.UNAUTHENTICATED_MAX
    held_of_address: int = limits.HELD_PER_ADDRESS_MAX
    patience_ms: int = limits.UNAUTHENTICATED_PATIENCE_MS
    addresses: int = limits.ADDRESSES_REMEMBERED_MAX


class Place:
    """One socket's. `evict` ends it, whatever stage it is in; its owner says `came_in` when a
    protocol has it, and `leave` when it has ended, once or more often."""

    __slots__ = (
        "_admission",
        "_is_held",
        "_left",
        "_misbehaved",
        "_record",
        "address",
        "entered_ms",
        "evict",
        "hold_ms",
        "is_in",
        "is_stranger",
        "refusals",
    )

    def __init__(self, admission: Admission, record: _Record, now_ms: int, hold_ms: int) -> None:
        self.address = record.address
        self.entered_ms = now_ms
        self.hold_ms = hold_ms  # how long it is to wait until it is read
        self.is_in = False
        self.is_stranger = True
        self.refusals = 0  # for whoever counts them
        self.evict: Callable[[], object] = _nothing
        self._admission = admission
        self._record = record
        self._is_held = hold_ms > 0
        self._misbehaved = False
        self._left = False

    @property
    def is_blamed(self) -> bool:
        """Whether its end will count against its address, as things stand."""
        return self.is_stranger or self._misbehaved

    @property
    def is_of_blamed(self) -> bool:
        """Whether too many of its address came to nothing before it."""
        return self.hold_ms > 0

    def came_in(self, transport: asyncio.BaseTransport) -> None:
        """The socket has its protocol, which hears of its end."""
        self.is_in = True
        self._let_go()
        self.evict = transport.abort  # type: ignore[attr-defined]  # every one has it

    def known(self) -> None:
        """The peer has shown who it is."""
        if self.is_stranger and not self._left:
            self.is_stranger = False
            self._admission.forget_stranger(self, self._record)

    def misbehaved(self) -> None:
        """Known or not, this connection counts against its address: at once, since it may rest
        for long before anybody notices that its peer has gone."""
        if not self._misbehaved and not self._left:
            self._admission.blame(self._record, limits.MISBEHAVED_CONNECTION_MS)
        self._misbehaved = True

    def leave(self) -> None:
        if not self._left:
            self._left = True
            self.evict = _nothing  # nothing of the socket is kept
            self._let_go()
            if self.is_stranger and not self._misbehaved:
                self._admission.blame(self._record, limits.FAILED_CONNECTION_MS)
            self._admission.forget(self, self._record)

    def _let_go(self) -> None:
        if self._is_held:
            self._is_held = False
            self._record.held -= 1


class _Record:
    """What is known of one address. It is forgotten when nothing is owed any more."""

    __slots__ = ("address", "count", "held", "is_told", "owed_ms", "since_ms", "strangers")

    def __init__(self, address: str, now_ms: int) -> None:
        self.address = address
        self.count = 0
        self.held = 0  # places that wait to be read
        self.is_told = False  # the log has it that some are refused
        self.strangers: dict[Place, None] = {}  # oldest first
        self.owed_ms = 0  # for connections that failed; time pays it off
        self.since_ms = now_ms

    def settle(self, now_ms: int) -> int:
        self.owed_ms = max(0, self.owed_ms - max(0, now_ms - self.since_ms))
        self.since_ms = now_ms
        return self.owed_ms

    def fail(self, cost_ms: int, now_ms: int) -> None:
        most = limits.FAILED_CONNECTIONS_ALLOWANCE_MS + limits.FAILED_CONNECTIONS_HOLD_MS_MAX
        self.owed_ms = min(self.settle(now_ms) + cost_ms, most)


class Admission:
    """`monotonic_ms` is the clock. Everything happens on the owner's thread."""

    def __init__(self, monotonic_ms: Callable[[], int], bounds: Bounds | None = None) -> None:
        self._monotonic_ms = monotonic_ms
        self._bounds = bounds or Bounds()
        self._records: dict[str, _Record] = {}
        self._strangers: dict[Place, None] = {}  # oldest first
        self.resting = Resting()
        self.refused = 0  # since the start
        self.evicted = 0

    @property
    def stranger_count(self) -> int:
        return len(self._strangers)

    def enter(self, host: str) -> Place | None:
        """A socket was accepted; None when its address has all the places that it may have, or
        too many of them are held back."""
        now_ms = self._monotonic_ms()
        record = self._record(network_of(host), now_ms)
        if record.count >= self._bounds.of_address:
            self.refused += 1
            log.warning(
                "connection refused: address=%s has %d connections, the most allowed",
                record.address,
                record.count,
            )
            return None
        hold_ms = max(0, record.settle(now_ms) - limits.FAILED_CONNECTIONS_ALLOWANCE_MS)
        if hold_ms:
            if record.held >= self._bounds.held_of_address:
                self.refused += 1
                if not record.is_told:  # there may be thousands in a second
                    record.is_told = True
                    log.warning("connections refused: address=%s misbehaves", record.address)
                return None
            queue_ms = record.held * limits.HELD_CONNECTION_MS
            hold_ms += min(queue_ms, limits.HELD_CONNECTIONS_MS_MAX)
            record.held += 1
        self._make_room(record, now_ms)
        place = Place(self, record, now_ms, hold_ms)
        record.count += 1
        record.strangers[place] = None
        self._strangers[place] = None
        return place

    def evict_oldest(self) -> bool:
        """End the oldest stranger; False when there is none."""
        place = next(iter(self._strangers), None)
        if place is not None:
            self._evict(place)
        return place is not None

    def forget_stranger(self, place: Place, record: _Record) -> None:
        self._strangers.pop(place, None)
        record.strangers.pop(place, None)

    def blame(self, record: _Record, cost_ms: int) -> None:
        record.fail(cost_ms, self._monotonic_ms())

    def forget(self, place: Place, record: _Record) -> None:
        self.forget_stranger(place, record)
        record.count -= 1
        assert record.count >= 0

    def _make_room(self, record: _Record, now_ms: int) -> None:
        bounds, count = self._bounds, len(record.strangers)
        oldest = next(iter(record.strangers), None)
        if oldest is not None and (
            count >= bounds.young_strangers_of_address
            or (
                count >= bounds.strangers_of_address
                and now_ms - oldest.entered_ms >= bounds.patience_ms
            )
        ):
            self._evict(oldest)
        if len(self._strangers) >= bounds.strangers:
            self.evict_oldest()

    def _evict(self, place: Place) -> None:
        self.evicted += 1
        log.warning("connection ended to make room: address=%s, no token yet", place.address)
        place.evict()
        place.leave()

    def _record(self, address: str, now_ms: int) -> _Record:
        record = self._records.get(address)
        if record is None:
            if len(self._records) >= self._bounds.addresses:
                self._tidy(now_ms)
            record = self._records[address] = _Record(address, now_ms)
        return record

    def _tidy(self, now_ms: int) -> None:
        """Forget who is gone and owes nothing, then whoever is gone, until half of the room is
        free: this must not be done for every newcomer. Who has a place is never forgotten."""
        gone = [each for each in self._records.values() if each.count == 0]
        gone.sort(key=lambda record: record.settle(now_ms))
        spared = self._bounds.addresses // 2
        for number, each in enumerate(gone):
            if each.owed_ms > 0 and len(gone) - number <= spared:
                return
            del self._records[each.address]


@lru_cache(maxsize=_HOSTS_CACHED)
def network_of(host: str) -> str:
    """Who counts as one: an IPv4 address, or the network of an IPv6 one."""
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
    """Nobody to be told."""
