"""Who asks: the request's token, verified (protocol.md 2.5) and remembered for a while."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from penstock.auth import Authority, Grant, missing_claim_text, verify_sas_token
from penstock.catalog.api import CatalogChange
from penstock.gateway.http.routes import RequestTarget
from penstock.model import names
from penstock.model.clock import Clock
from penstock.model.entities import Right
from penstock.model.errors import ArgumentError, AuthFailed, Unauthorized

_HOST = re.compile(rb"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::[0-9]{1,5})?")

# A publisher sends the same token with every request: verifying it anew costs four signatures.
_KNOWN_MAX = 4096
_KNOWN_BYTES_MAX = 1024  # of a token; 4 MB of them at most


class TokenCache:
    """Grants by token, host and path. After `on_change` of rules or keys every token is verified
    again."""

    def __init__(self, authorities: Callable[[], Sequence[Authority]], clock: Clock) -> None:
        self._authorities = authorities
        self._clock = clock
        self._known: dict[tuple[bytes, bytes, RequestTarget, Right], Grant] = {}

    def on_change(self, change: CatalogChange) -> None:
        if change.affects_links:
            self._known.clear()

    def grant(self, headers: Mapping[bytes, bytes], target: RequestTarget, right: Right) -> Grant:
        """Raises AuthFailed, Unauthorized, and ArgumentError without a usable Host."""
        host, token = headers.get(b"host", b""), headers.get(b"authorization", b"")
        key = (host, token, target, right)
        known = self._known.get(key)
        now_ms = self._clock.now_ms()
        if known is not None and known.expires_ms is not None and now_ms < known.expires_ms:
            return known
        grant = self._verify(host, token, target, right, now_ms)
        if len(token) <= _KNOWN_BYTES_MAX:
            if len(self._known) >= _KNOWN_MAX:
                del self._known[next(iter(self._known))]
            self._known[key] = grant
        return grant

    def _verify(
        self, host: bytes, token: bytes, target: RequestTarget, right: Right, now_ms: int
    ) -> Grant:
        if _HOST.fullmatch(host) is None:
            raise ArgumentError("The request needs a Host header that names a host.")
        if not token:
            raise AuthFailed("MissingToken: The request has no Authorization header.")
        authority = host.decode()
        grant = verify_sas_token(
            token.decode("latin-1"),
            audience=f"//{authority}{target.uri}",
            authorities=self._authorities(),
            now_s=now_ms // 1000,
        )
        if not grant.allows(target.path, right):
            resource = names.quote_text(f"sb://{authority}{target.uri}", most=200)
            raise Unauthorized(missing_claim_text(right, resource))
        return grant
