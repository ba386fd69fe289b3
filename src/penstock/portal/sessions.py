"""Sessions in a signed cookie, the token of forms, and the delay after failed sign-ins.

The caller passes the time. The signer's secret survives restarts of the portal and of the service;
replacing the service's `admin.secret` ends every session.
"""

from __future__ import annotations

import hmac
import secrets
from collections import OrderedDict
from urllib.parse import quote

import msgspec

from penstock.management.permissions import AdminRole
from penstock.portal.revocations import Revocations
from penstock.portal.signing import Signer

IDLE_MS = 2 * 3_600_000
BACKOFF_AFTER = 5  # failed sign-ins without a delay
BACKOFF_MS = (1_000, 300_000)
_PLACES_MAX = 10_000
_COOKIE = "cookie"


def new_session_id() -> str:
    return secrets.token_urlsafe(24)


class PortalSession(msgspec.Struct, frozen=True, kw_only=True):
    """Has a new id unless it is decoded: an id that an attacker has planted is useless."""

    id: str = msgspec.field(default_factory=new_session_id)
    user: str
    role: AdminRole
    hubs: tuple[str, ...] = ()
    stamp: str = ""  # `User.stamp`; empty for a session that began with a token or a link
    began_ms: int
    seen_ms: int

    @property
    def on_behalf_of(self) -> str:
        """`ManagementClient.on_behalf_of` for this user."""
        return f"{self.role.name.lower()} {quote(self.user, safe='')}"


class SessionCookies:
    """Creates and reads cookies. An ended session stays ended after a restart."""

    def __init__(self, signer: Signer, revocations: Revocations, *, lifetime_ms: int) -> None:
        self._signer = signer
        self._revocations = revocations
        self._lifetime_ms = lifetime_ms

    def end(self, session: PortalSession, *, now_ms: int) -> None:
        self._revocations.revoke(
            session.id,
            issued_ms=session.began_ms,
            expires_ms=session.began_ms + self._lifetime_ms,
            now_ms=now_ms,
        )

    def cookie(self, session: PortalSession) -> str:
        return self._signer.sign(_COOKIE, session)

    def read(self, cookie: str, *, now_ms: int) -> PortalSession | None:
        """None for a cookie that was not signed here, has expired, or was ended."""
        session = self._signer.read(_COOKIE, cookie, PortalSession)
        if session is None or now_ms - session.seen_ms >= IDLE_MS:
            return None
        is_over = now_ms - session.began_ms >= self._lifetime_ms
        if is_over or self._revocations.is_revoked(session.id, issued_ms=session.began_ms):
            return None
        return session

    def form_token(self, session: PortalSession) -> str:
        """Part of every form of the session; no other site can know it."""
        return self._signer.signature("form", session.id)

    def is_form_token(self, session: PortalSession, given: str) -> bool:
        return given.isascii() and hmac.compare_digest(given, self.form_token(session))


class FailedSignIns:
    """Wrong guesses by place (an address, a name at an address): after a few, each doubles the
    wait. A right one clears the place. When the table is full, the place that was quiet for the
    longest time is forgotten.

    A guess is counted before it is checked: guesses made in parallel see each other."""

    def __init__(self) -> None:
        self._places: OrderedDict[str, tuple[int, int]] = OrderedDict()  # guesses, free again

    def begin(self, *places: str, now_ms: int) -> int:
        """Count one guess at each of the places. Returns 0, or how long to wait when one of them
        may not guess yet: then nothing is counted, and the guess is not to be checked."""
        wait_ms = max(self.wait_ms(place, now_ms=now_ms) for place in places)
        if not wait_ms:
            for place in places:
                self._count(place, now_ms)
        return wait_ms

    def wait_ms(self, place: str, *, now_ms: int) -> int:
        _, free_ms = self._places.get(place, (0, 0))
        return max(0, free_ms - now_ms)

    def _count(self, place: str, now_ms: int) -> None:
        count = self._places.get(place, (0, 0))[0] + 1
        wait_ms = 0
        if count > BACKOFF_AFTER:
            wait_ms = min(BACKOFF_MS[0] << min(count - BACKOFF_AFTER - 1, 20), BACKOFF_MS[1])
        self._places[place] = (count, now_ms + wait_ms)
        self._places.move_to_end(place)
        while len(self._places) > _PLACES_MAX:
            self._places.popitem(last=False)

    def right(self, *places: str) -> None:
        for place in places:
            self._places.pop(place, None)
