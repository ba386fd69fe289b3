"""Sessions in a signed cookie, the token against forged forms, and the wait after wrong guesses.

Pure but for the id: the time comes in. The key is derived from the admin token, so that sessions
outlive a restart of the portal and end when the service's secret is replaced.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from collections import OrderedDict

import msgspec

from penstock.portal.users import Role

IDLE_MS = 2 * 3_600_000
ENDED_MAX = 10_000
_COOKIE_BYTES_MAX = 4096
BACKOFF_AFTER = 5  # wrong guesses that cost nothing
BACKOFF_MS = (1_000, 300_000)
_PLACES_MAX = 10_000


class Session(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    user: str
    role: Role
    hubs: tuple[str, ...] = ()
    stamp: str = ""  # of the user in the file; empty for one who came with a token
    began_ms: int
    seen_ms: int


class Sessions:
    """Makes and reads cookies. A session that was ended is remembered until it would be over."""

    def __init__(self, secret: str, *, lifetime_ms: int) -> None:
        self._key = hashlib.sha256(b"penstock portal sessions\0" + secret.encode()).digest()
        self._lifetime_ms = lifetime_ms
        self._ended: OrderedDict[str, None] = OrderedDict()

    def begin(
        self, user: str, role: Role, *, now_ms: int, stamp: str = "", hubs: tuple[str, ...] = ()
    ) -> Session:
        """A new id each time: whoever planted one before has nothing."""
        return Session(
            id=secrets.token_urlsafe(24),
            user=user,
            role=role,
            hubs=hubs,
            stamp=stamp,
            began_ms=now_ms,
            seen_ms=now_ms,
        )

    def end(self, session: Session) -> None:
        self._ended[session.id] = None
        while len(self._ended) > ENDED_MAX:
            self._ended.popitem(last=False)

    def cookie(self, session: Session) -> str:
        body = base64.urlsafe_b64encode(msgspec.json.encode(session)).decode().rstrip("=")
        return f"{body}.{self._signature('cookie', body)}"

    def read(self, cookie: str, *, now_ms: int) -> Session | None:
        """None for one that was not made here, is over, or was ended."""
        if not cookie or len(cookie) > _COOKIE_BYTES_MAX or not cookie.isascii():
            return None
        body, _, signature = cookie.partition(".")
        if not hmac.compare_digest(signature, self._signature("cookie", body)):
            return None
        try:
            raw = base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))
            session = msgspec.json.decode(raw, type=Session)
        except (binascii.Error, msgspec.MsgspecError):
            return None
        over = now_ms - session.began_ms >= self._lifetime_ms
        if over or now_ms - session.seen_ms >= IDLE_MS or session.id in self._ended:
            return None
        return session

    def form_token(self, session: Session) -> str:
        """What every form of the session carries, and no other site can know."""
        return self._signature("form", session.id)

    def is_form_token(self, session: Session, given: str) -> bool:
        return given.isascii() and hmac.compare_digest(given, self.form_token(session))

    def _signature(self, purpose: str, text: str) -> str:
        digest = hmac.digest(self._key, f"{purpose}\0{text}".encode(), "sha256")
        return base64.urlsafe_b64encode(digest).decode().rstrip("=")


class Guesses:
    """Wrong guesses by place (an address, a name at an address): after a few, each doubles the
    wait. A right one clears the place. The place that was quiet for longest makes room."""

    def __init__(self) -> None:
        self._places: OrderedDict[str, tuple[int, int]] = OrderedDict()  # wrong ones, free again

    def wait_ms(self, place: str, *, now_ms: int) -> int:
        _, free_ms = self._places.get(place, (0, 0))
        return max(0, free_ms - now_ms)

    def wrong(self, place: str, *, now_ms: int) -> None:
        count = self._places.get(place, (0, 0))[0] + 1
        wait_ms = 0
        if count > BACKOFF_AFTER:
            wait_ms = min(BACKOFF_MS[0] << min(count - BACKOFF_AFTER - 1, 20), BACKOFF_MS[1])
        self._places[place] = (count, now_ms + wait_ms)
        self._places.move_to_end(place)
        while len(self._places) > _PLACES_MAX:
            self._places.popitem(last=False)

    def right(self, place: str) -> None:
        self._places.pop(place, None)
