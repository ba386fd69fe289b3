"""Links that sign their holder in to the portal, once and for a few minutes.

The service makes them for a holder of an admin token; the portal takes them. Both know the secret,
so a link needs no storage until it is used: then the portal remembers its id (`revocations`).
"""

from __future__ import annotations

import secrets

import msgspec

from penstock.portal.signing import Signer
from penstock.portal.users import PortalRole

LIFETIME_MS = 10 * 60_000
PARAMETER = "once"  # of `/signin?once=...`; a query is in no log of the portal
_PURPOSE = "sign-in link"
_ID_BYTES = 18


class SignInLink(msgspec.Struct, frozen=True, array_like=True):  # as a list: links stay short
    id: str
    user: str
    role: PortalRole
    issued_ms: int

    @property
    def expires_ms(self) -> int:
        return self.issued_ms + LIFETIME_MS


def issue_link(portal_url: str, secret: str, user: str, role: PortalRole, *, now_ms: int) -> str:
    """The whole address."""
    link = SignInLink(
        id=secrets.token_urlsafe(_ID_BYTES), user=user[:64], role=role, issued_ms=now_ms
    )
    return f"{portal_url}/signin?{PARAMETER}={Signer(secret).sign(_PURPOSE, link)}"


def read_link(text: str, signer: Signer, *, now_ms: int) -> SignInLink | None:
    """None when it was not made here or has expired. Whether it was used is not looked at."""
    link = signer.read(_PURPOSE, text, SignInLink)
    if link is None or not link.issued_ms <= now_ms < link.expires_ms:
        return None
    return link
