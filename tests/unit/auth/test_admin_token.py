"""The administrator's token: a JWT that only this service can have signed."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import uuid

import pytest

from penstock.auth.admin_token import LIFETIME_S, AdminTokens
from penstock.model.errors import AuthFailed

NOW_MS = 1_790_000_000_000
TOKENS = AdminTokens(b"secret")


def part(content: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(content).encode()).rstrip(b"=").decode()


def unpacked(text: str) -> object:
    return json.loads(base64.urlsafe_b64decode(text + "=="))


def test_token_is_a_jwt_with_tenant_and_roles() -> None:
    header, body, signature = TOKENS.issue(now_ms=NOW_MS, token_id="an-id").split(".")
    assert unpacked(header) == {"alg": "HS256", "typ": "JWT"}
    assert unpacked(body) == {
        "jti": "an-id",
        "iss": "penstock",
        "aud": "penstock-administration",
        "sub": "admin",
        "tid": TOKENS.tenant_id,
        "roles": ["Owner"],
        "iat": NOW_MS // 1000,
        "exp": NOW_MS // 1000 + LIFETIME_S,
    }
    expected = hmac.new(b"secret", f"{header}.{body}".encode(), hashlib.sha256).digest()
    assert base64.urlsafe_b64decode(signature + "==") == expected
    assert str(uuid.UUID(TOKENS.tenant_id)) == TOKENS.tenant_id


def test_own_token_is_verified_until_it_expires() -> None:
    token = TOKENS.issue(now_ms=NOW_MS, token_id="an-id", subject="anna", roles=("Reader",))
    end_ms = NOW_MS + LIFETIME_S * 1000
    claims = TOKENS.verify(token, now_ms=end_ms - 1)
    assert (claims.subject, claims.roles) == ("anna", ("Reader",))
    with pytest.raises(AuthFailed, match="expired"):
        TOKENS.verify(token, now_ms=end_ms)


def test_another_services_token_is_refused() -> None:
    token = AdminTokens(b"another").issue(now_ms=NOW_MS, token_id="an-id")
    with pytest.raises(AuthFailed, match="not signed by this service"):
        TOKENS.verify(token, now_ms=NOW_MS)


def test_a_token_changed_anywhere_is_refused() -> None:
    token = TOKENS.issue(now_ms=NOW_MS, token_id="an-id")
    for at in range(len(token)):
        changed = token[:at] + ("A" if token[at] != "A" else "B") + token[at + 1 :]
        with pytest.raises(AuthFailed):
            TOKENS.verify(changed, now_ms=NOW_MS)


@pytest.mark.parametrize(
    "token",
    ["", ".", "..", "...", "a.b.c", "é.é.é", "\0", "x" * 10_000, "Bearer x"],
)
def test_a_malformed_token_is_refused(token: str) -> None:
    with pytest.raises(AuthFailed):
        TOKENS.verify(token, now_ms=NOW_MS)


def test_a_token_cannot_choose_its_algorithm() -> None:
    body = TOKENS.issue(now_ms=NOW_MS, token_id="an-id").split(".")[1]
    for header in ({"alg": "none", "typ": "JWT"}, {"typ": "JWT", "alg": "HS256"}):
        signed = f"{part(header)}.{body}"
        digest = hmac.new(b"secret", signed.encode(), hashlib.sha256).digest()
        signature = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        for token in (f"{signed}.", f"{signed}.{signature}"):
            with pytest.raises(AuthFailed, match="not signed"):
                TOKENS.verify(token, now_ms=NOW_MS)


def test_a_token_for_another_purpose_is_refused() -> None:
    header = TOKENS.issue(now_ms=NOW_MS, token_id="an-id").split(".")[0]
    signed = f"{header}.{part({'iss': 'penstock', 'aud': 'elsewhere'})}"
    digest = hmac.new(b"secret", signed.encode(), hashlib.sha256).digest()
    signature = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
    with pytest.raises(AuthFailed, match="another purpose"):
        TOKENS.verify(f"{signed}.{signature}", now_ms=NOW_MS)


def test_secrets_are_in_no_message_and_no_repr() -> None:
    assert "secret" not in repr(TOKENS)
    with pytest.raises(AuthFailed) as caught:
        TOKENS.verify("swordfish.swordfish.swordfish", now_ms=NOW_MS)
    assert "swordfish" not in str(caught.value)


def test_token_without_an_id_is_valid() -> None:
    """As version 0.1 issued it."""
    claims = {"iss": "penstock", "aud": "penstock-administration", "sub": "admin", "exp": 2**40}
    header = TOKENS.issue(now_ms=NOW_MS, token_id="x").split(".")[0]
    signed = f"{header}.{part(claims | {'tid': 't', 'roles': []})}"
    digest = hmac.new(b"secret", signed.encode(), hashlib.sha256).digest()
    token = f"{signed}.{base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}"
    assert TOKENS.verify(token, now_ms=NOW_MS).token_id == ""


def test_lifetime_is_as_asked_for() -> None:
    token = TOKENS.issue(now_ms=NOW_MS, token_id="x", lifetime_s=60)
    assert TOKENS.verify(token, now_ms=NOW_MS + 59_999).expires_s == NOW_MS // 1000 + 60
    with pytest.raises(AuthFailed, match="expired"):
        TOKENS.verify(token, now_ms=NOW_MS + 60_000)
