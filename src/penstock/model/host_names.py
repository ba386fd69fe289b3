"""Allowed `Host` headers of a server.

A web page can resolve a name of its own to 127.0.0.1 and then read the responses of a local server
(DNS rebinding). Its requests have that name in `Host`, so a server that accepts only configured
names is safe.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, ip_address


class HostNames:
    """Loopback names and addresses, and the given names, without ports and in any case."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(_normalize(name) for name in names)

    def allows(self, header: str, *, server: str | None = None) -> bool:
        """`header` is the `Host` of a request, `server` the local address of its connection: an
        address cannot be a name of another site."""
        host = _normalize(_without_port(header))
        if host == "localhost" or host in self._names:
            return True
        address = parse_address(host)
        if address is None:
            return False
        return address.is_loopback or address == parse_address((server or "").partition("%")[0])


def parse_address(text: str) -> IPv4Address | IPv6Address | None:
    """None where the text is not an IP address."""
    try:
        return ip_address(text)
    except ValueError:
        return None


def _without_port(header: str) -> str:
    if header.startswith("["):  # [::1]:5300
        return header[1:].partition("]")[0]
    return header.partition(":")[0] if header.count(":") == 1 else header


def _normalize(name: str) -> str:
    return name.strip().rstrip(".").strip("[]").casefold()
