"""Records as signed text, for cookies and links: a holder can read them, but not forge them."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from typing import TypeVar

import msgspec

T = TypeVar("T", bound=msgspec.Struct)
_TEXT_MAX = 4096


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
