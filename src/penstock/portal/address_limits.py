"""The client address of a request, and the request rate of addresses without a session.

Behind reverse proxies the peer's address is the proxy's. With N trusted proxies the client is the
Nth entry from the right of `X-Forwarded-For`: each of them appended the address that it saw, and
whatever is further left was written by the client itself.
"""

from __future__ import annotations

from collections import OrderedDict
from ipaddress import IPv6Address, ip_address, ip_network

from starlette.requests import Request

REQUESTS_PER_S = 20  # of one address that has not signed in, sustained
REQUESTS_BURST = 200
_ADDRESSES_MAX = 10_000


def client_address(request: Request, *, trusted_proxies: int) -> str:
    """An IP address as text, or `?` when there is none."""
    peer = request.client.host if request.client is not None else "?"
    if not trusted_proxies:
        return peer
    entries = ",".join(request.headers.getlist("x-forwarded-for")).split(",")
    entry = entries[-min(trusted_proxies, len(entries))].strip()
    if entry.startswith("["):  # [2001:db8::1]:4711
        entry = entry[1:].partition("]")[0]
    elif entry.count(":") == 1:  # 192.0.2.7:4711
        entry = entry.partition(":")[0]
    try:
        return str(ip_address(entry))
    except ValueError:
        return peer


def limit_key(address: str) -> str:
    """What limits count by: one IPv6 client has a whole /64."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        if not found.is_loopback:
            return str(ip_network((found, 64), strict=False))
    return str(found)


class RequestRate:
    """A token bucket per address. When the table is full, the address that was quiet for the
    longest time is forgotten."""

    def __init__(self) -> None:
        self._buckets: OrderedDict[str, tuple[float, int]] = OrderedDict()  # tokens, filled at

    def take(self, key: str, *, now_ms: int) -> bool:
        """False when the address has to wait."""
        tokens, filled_ms = self._buckets.get(key, (float(REQUESTS_BURST), now_ms))
        tokens = min(REQUESTS_BURST, tokens + (now_ms - filled_ms) * REQUESTS_PER_S / 1000)
        allowed = tokens >= 1
        self._buckets[key] = (tokens - 1 if allowed else tokens, now_ms)
        self._buckets.move_to_end(key)
        while len(self._buckets) > _ADDRESSES_MAX:
            self._buckets.popitem(last=False)
        return allowed
