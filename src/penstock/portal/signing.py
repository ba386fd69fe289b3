"""Records as signed text, for cookies and links: a holder can read them, but not forge them.

A sign-in link signs in to the portal, once and within ten minutes. The service issues it to the
holder of an admin token; the portal accepts it. Both have the secret, so a link is not stored until
it is used: then the portal stores its id (`revocations`).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from typing import TypeVar

import msgspec

from penstock.management.permissions import AdminRole

T = TypeVar("T", bound=msgspec.Struct)
_TEXT_MAX = 4096
LINK_LIFETIME_MS = 10 * 60_000
LINK_PARAMETER = "once"  # of `/signin?once=...`; a query is in no log of the portal
_LINK_PURPOSE = "sign-in link"


class Signer:
    """Signs with one secret. A signature is valid for one purpose: a link is never a cookie."""

    def __init__(self, secret: str) -> None:
        self._key = hashlib.sha256(b"penstock portal sessions\0" + secret.encode()).digest()

    def sign(self, purpose: str, record: msgspec.Struct) -> str:
        """Letters, digits, `-`, `_` and one dot: fit for a cookie and for a URL's query."""
        body = base64.urlsafe_b64encode(msgspec.json.encode(record)).decode().rstrip("=")
        return f"{body}.{self.signature(purpose, body)}"

    def read(self, purpose: str, text: str, kind: type[T]) -> T | None:
        """None for text that was not signed here for this purpose."""
        if not text or len(text) > _TEXT_MAX or not text.isascii():
            return None
        body, _, signature = text.partition(".")
        if not hmac.compare_digest(signature, self.signature(purpose, body)):
            return None
        try:
            raw = base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))
            return msgspec.json.decode(raw, type=kind)
        except (binascii.Error, msgspec.MsgspecError):
            return None

    def signature(self, purpose: str, text: str) -> str:
        digest = hmac.digest(self._key, f"{purpose}\0{text}".encode(), "sha256")
        return base64.urlsafe_b64encode(digest).decode().rstrip("=")


class SignInLink(msgspec.Struct, frozen=True, array_like=True):  # as a list: links stay short
    id: str
    user: str
    role: AdminRole
    issued_ms: int

    @property
    def expires_ms(self) -> int:
        return self.issued_ms + LINK_LIFETIME_MS


def issue_link(portal_url: str, secret: str, user: str, role: AdminRole, *, now_ms: int) -> str:
    """The URL of the link."""
    link = SignInLink(secrets.token_urlsafe(18), user[:64], role, now_ms)
    return f"{portal_url}/signin?{LINK_PARAMETER}={Signer(secret).sign(_LINK_PURPOSE, link)}"


def read_link(text: str, signer: Signer, *, now_ms: int) -> SignInLink | None:
    """None when it was not signed here or has expired. Does not check whether it was used."""
    link = signer.read(_LINK_PURPOSE, text, SignInLink)
    if link is None or not link.issued_ms <= now_ms < link.expires_ms:
        return None
    return link
