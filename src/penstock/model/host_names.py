"""Which `Host` headers a server answers for.

A web page can point a name of its own at 127.0.0.1 and then read a local server's answers (DNS
rebinding). Its requests carry that name: a server that answers only for names it knows is safe.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_address


class HostNames:
    """Loopback names and addresses, and the given names, without ports and in any case."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(_normal(name) for name in names)

    def allows(self, header: str, *, server: str | None = None) -> bool:
        """`header` is a request's `Host`, `server` the local address that it came in by: as an
        address, that is never another's name."""
        host = _normal(_without_port(header))
        if host == "localhost" or host in self._names:
            return True
        try:
            address = ip_address(host)
            return address.is_loopback or (
                server is not None and address == ip_address(server.partition("%")[0])
            )
        except ValueError:
            return False


def _without_port(header: str) -> str:
    if header.startswith("["):  # [::1]:5300
        return header[1:].partition("]")[0]
    return header.partition(":")[0] if header.count(":") == 1 else header


def _normal(name: str) -> str:
    return name.strip().rstrip(".").strip("[]").casefold()
