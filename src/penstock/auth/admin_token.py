"""The administrator's token: a signed JWT (RFC 7519, HS256) with a tenant and roles.

Pure: the secret and the time come in. Only one algorithm exists here, so a token cannot choose
a weaker one, and the header is compared as bytes instead of being believed.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import uuid

import msgspec

from penstock.model import limits
from penstock.model.errors import AuthFailed

ISSUER = "penstock"
AUDIENCE = "penstock-administration"
# Of the token that `serve` prints, which is kept in scripts and variables. It ends earlier when it
# is revoked or admin.secret is removed.
LIFETIME_S = 10 * 365 * 86_400


class AdminClaims(msgspec.Struct, frozen=True, kw_only=True):
    """What a verified token says."""

    subject: str = msgspec.field(name="sub")
    tenant_id: str = msgspec.field(name="tid")
    roles: tuple[str, ...]
    expires_s: int = msgspec.field(name="exp")
    token_id: str = msgspec.field(name="jti", default="")  # tokens of version 0.1 have none
    issuer: str = msgspec.field(name="iss", default="")
    audience: str = msgspec.field(name="aud", default="")
    issued_s: int = msgspec.field(name="iat", default=0)


class AdminTokens:
    """Issues and verifies under one secret."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        # The tenant belongs to the secret: the same over restarts, different elsewhere.
        digest = hashlib.sha256(b"penstock tenant " + secret).digest()
        self.tenant_id = str(uuid.UUID(bytes=digest[:16], version=4))

    def issue(
        self,
        *,
        now_ms: int,
        token_id: str,
        subject: str = "admin",
        roles: tuple[str, ...] = ("Owner",),
        lifetime_s: int = LIFETIME_S,
    ) -> str:
        """Sign a token. `token_id` is unique; a token is revoked by it."""
        now_s = now_ms // 1000
        claims = AdminClaims(
            subject=subject,
            tenant_id=self.tenant_id,
            roles=roles,
            expires_s=now_s + lifetime_s,
            token_id=token_id,
            issuer=ISSUER,
            audience=AUDIENCE,
            issued_s=now_s,
        )
        signed = f"{_HEADER}.{_encode(msgspec.json.encode(claims))}"
        return f"{signed}.{self._signature(signed)}"

    def verify(self, token: str, *, now_ms: int) -> AdminClaims:
        """Raises AuthFailed; the message never holds the token."""
        if len(token) > limits.SAS_TOKEN_BYTES_MAX or not token.isascii():
            raise AuthFailed(
                f"The token has {len(token)} characters: "
                f"at most {limits.SAS_TOKEN_BYTES_MAX} of ASCII are allowed."
            )
        signed, _, signature = token.rpartition(".")
        header, _, body = signed.partition(".")
        if header != _HEADER or not hmac.compare_digest(signature, self._signature(signed)):
            raise AuthFailed("The token was not signed by this service.")
        try:
            claims = msgspec.json.decode(_decode(body), type=AdminClaims)
        except msgspec.MsgspecError:  # signed by us, but not as a token of an administrator
            raise AuthFailed("The token was issued for another purpose.") from None
        if (claims.issuer, claims.audience) != (ISSUER, AUDIENCE):
            raise AuthFailed("The token was issued for another purpose.")
        if claims.expires_s * 1000 <= now_ms:
            raise AuthFailed("The token is expired.")
        return claims

    def derive_secret(self, purpose: str) -> str:
        """A secret of its own for `purpose`, the same over restarts; it verifies no token."""
        return _encode(hmac.digest(self._secret, f"penstock {purpose}".encode(), "sha256"))

    def __repr__(self) -> str:
        return f"AdminTokens(tenant_id={self.tenant_id!r})"

    def _signature(self, signed: str) -> str:
        return _encode(hmac.digest(self._secret, signed.encode(), "sha256"))


def _encode(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except binascii.Error as error:
        raise AuthFailed("The token is not well formed.") from error


_HEADER = _encode(b'{"alg":"HS256","typ":"JWT"}')
