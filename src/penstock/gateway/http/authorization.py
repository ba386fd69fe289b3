"""Verify the token of a request (protocol.md 2.5) and cache the grant that it gives."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from penstock.auth.grant import Grant, missing_claim_text
from penstock.auth.sas import Authority, verify_sas_token
from penstock.catalog.api import CatalogChange
from penstock.gateway.http.routes import RequestTarget
from penstock.model import names
from penstock.model.clock import Clock
from penstock.model.entities import Right
from penstock.model.errors import ArgumentError, AuthFailed, Unauthorized

_HOST = re.compile(rb"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::[0-9]{1,5})?")

# A producer sends the same token with every request, and verifying it again costs four signatures.
CACHED_GRANTS_MAX = 4096
_TOKEN_BYTES_MAX = 1024  # larger tokens are verified each time: the cache has at most 4 MB of them
CACHE_GENERATION_MS = 60_000

_Key = tuple[bytes, bytes, RequestTarget, Right]


class TokenCache:
    """Grants by token, host and path. After `on_change` of rules or keys every token is verified
    again.

    Grants are cached in two generations. Each minute the newer one becomes the older one, and a
    grant that was not used in a whole generation is forgotten: clients that sign a token for each
    request would otherwise fill the cache with tokens that are used once.
    """

    def __init__(self, authorities: Callable[[], Sequence[Authority]], clock: Clock) -> None:
        self._authorities = authorities
        self._clock = clock
        self._newer: dict[_Key, Grant] = {}
        self._older: dict[_Key, Grant] = {}
        self._next_generation_ms = 0  # on the monotonic clock

    def on_change(self, change: CatalogChange) -> None:
        if change.affects_links:
            self._newer.clear()
            self._older.clear()

    def grant(self, headers: Mapping[bytes, bytes], target: RequestTarget, right: Right) -> Grant:
        """Raises AuthFailed, Unauthorized, and ArgumentError without a usable Host."""
        host, token = headers.get(b"host", b""), headers.get(b"authorization", b"")
        key = (host, token, target, right)
        now_ms = self._clock.now_ms()
        monotonic_ms = self._clock.monotonic_ms()
        if monotonic_ms >= self._next_generation_ms or len(self._newer) >= CACHED_GRANTS_MAX // 2:
            self._older, self._newer = self._newer, {}
            self._next_generation_ms = monotonic_ms + CACHE_GENERATION_MS
        grant = self._newer.get(key)
        if grant is None and (grant := self._older.pop(key, None)) is not None:
            self._newer[key] = grant
        if grant is not None and grant.expires_ms is not None and now_ms < grant.expires_ms:
            return grant
        grant = self._verify(host, token, target, right, now_ms)
        if len(token) <= _TOKEN_BYTES_MAX:
            self._newer[key] = grant
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
