"""Links that sign in to the portal, once and within ten minutes.

The service issues a link to the holder of an admin token; the portal accepts it. Both have the
secret, so a link is not stored until it is used: then the portal stores its id (`revocations`).
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
    """The URL of the link."""
    link = SignInLink(
        id=secrets.token_urlsafe(_ID_BYTES), user=user[:64], role=role, issued_ms=now_ms
    )
    return f"{portal_url}/signin?{PARAMETER}={Signer(secret).sign(_PURPOSE, link)}"


def read_link(text: str, signer: Signer, *, now_ms: int) -> SignInLink | None:
    """None when it was not signed here or has expired. Does not check whether it was used."""
    link = signer.read(_PURPOSE, text, SignInLink)
    if link is None or not link.issued_ms <= now_ms < link.expires_ms:
        return None
    return link
