"""The text of a shared access signature (protocol.md 2.5): read it, and make one.

    SharedAccessSignature sr=<escaped uri>&sig=<escaped base64>&se=<seconds>&skn=<policy>

The signature is over `sr` and `se` exactly as they stand in the token, so both are kept raw.
"""

from __future__ import annotations

import hmac
import re
from base64 import b64decode, b64encode
from urllib.parse import quote

import msgspec

from penstock.auth.resource import percent_decode
from penstock.model import limits
from penstock.model.entities import Secret
from penstock.model.errors import ArgumentOutOfRange, AuthFailed, UnsupportedTokenType

EXPIRY_S_MAX = 2**53  # what every client's numbers can hold

_PREFIX = "sharedaccesssignature"
_FIELDS = frozenset({"sr", "sig", "se", "skn"})
_FIELDS_MAX = 16  # four have a meaning; a few unknown ones are passed over
_EXPIRY_DIGITS_MAX = 16
# `sr` is an escaped URI, whose path has escapes of its own. An issuer that escapes once and lets
# its clients choose publisher names would sign `%61lice` for one of them, which reads as `alice`.
# No issuer that escapes the path escapes letters, digits, `-`, `.` or `_` (RFC 3986 section 2.3).
_NEEDLESS_ESCAPE = re.compile(
    "/publishers?/.*%(?:2[de]|3[0-9]|4[1-9a-f]|5[0-9a]|5f|6[1-9a-f]|7[0-9a])", re.IGNORECASE
)


class SasToken(msgspec.Struct, frozen=True, kw_only=True):
    """A token that is well formed and not yet believed."""

    raw_resource: str
    resource: str
    signature: bytes
    raw_expiry: str
    expiry_s: int
    key_name: str

    @property
    def string_to_sign(self) -> bytes:
        return f"{self.raw_resource}\n{self.raw_expiry}".encode()

    def __repr__(self) -> str:  # a signature is as good as a password until it expires
        return (
            f"SasToken(resource={self.resource!r}, key_name={self.key_name!r}, "
            f"expiry_s={self.expiry_s}, signature=***)"
        )


def parse_token(text: str) -> SasToken:
    """Read a token; raises AuthFailed ("MalformedToken: ...") and nothing else."""
    fields = _fields(text)
    missing = _FIELDS - fields.keys()
    if missing:
        raise _malformed_token_error(f"'{min(missing)}' is missing")
    resource = _form_decoded(fields["sr"])
    if not resource:
        raise _malformed_token_error("'sr' is not an escaped resource URI")
    if _NEEDLESS_ESCAPE.search(resource) is not None:
        raise _malformed_token_error(
            "'sr' escapes letters or digits of a publisher's name; escape a '%' of the name as %25"
        )
    return SasToken(
        raw_resource=fields["sr"],
        resource=resource,
        signature=_signature(fields["sig"]),
        raw_expiry=fields["se"],
        expiry_s=_expiry_s(fields["se"]),
        key_name=_key_name(fields["skn"]),
    )


def sign(resource_uri: str, key_name: str, key: Secret, *, expires_s: int) -> str:
    """Make a token for the resource, valid until `expires_s` (seconds since the epoch)."""
    if not 0 <= expires_s <= EXPIRY_S_MAX:
        raise ArgumentOutOfRange(f"expires_s is {expires_s}: 0 to {EXPIRY_S_MAX} are allowed.")
    resource = quote(resource_uri, safe="")
    digest = signature(key, f"{resource}\n{expires_s}".encode())
    sig = quote(b64encode(digest), safe="")
    return f"SharedAccessSignature sr={resource}&sig={sig}&se={expires_s}&skn={quote(key_name)}"


def signature(key: Secret, string_to_sign: bytes) -> bytes:
    """HMAC-SHA256 under the key's text itself, which is not base64-decoded (protocol.md 2.5)."""
    return hmac.digest(key.reveal().encode(), string_to_sign, "sha256")


def _fields(text: str) -> dict[str, str]:
    if len(text) > limits.SAS_TOKEN_BYTES_MAX:
        raise _malformed_token_error(
            f"it has {len(text)} characters, {limits.SAS_TOKEN_BYTES_MAX} are allowed"
        )
    if not (text.isascii() and text.isprintable()):
        raise _malformed_token_error("it holds characters that must be escaped")
    scheme, _, rest = text.strip().partition(" ")
    if scheme.lower() != _PREFIX:
        raise _unsupported_scheme_error(scheme)
    pairs = rest.lstrip().split("&", _FIELDS_MAX)
    if len(pairs) > _FIELDS_MAX:
        raise _malformed_token_error(f"it has more than {_FIELDS_MAX} parameters")
    fields: dict[str, str] = {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        if name in fields:
            # Two readers could pick different ones; no honest client sends both.
            raise _malformed_token_error("a parameter is given twice")
        fields[name] = value
    return fields


def _signature(raw: str) -> bytes:
    # Base64 holds no space: one stands for a plus that was not escaped.
    decoded = percent_decode(raw).replace(" ", "+")
    try:
        sig = b64decode(decoded, validate=True)
    except ValueError:
        sig = b""
    if not sig:
        raise _malformed_token_error("'sig' is not escaped base64")
    return sig


def _expiry_s(raw: str) -> int:
    if not (raw.isascii() and raw.isdigit() and len(raw) <= _EXPIRY_DIGITS_MAX):
        raise _malformed_token_error("'se' is not a decimal number of seconds since 1970")
    expiry_s = int(raw)
    if expiry_s > EXPIRY_S_MAX:
        raise _malformed_token_error(f"'se' is above {EXPIRY_S_MAX}")
    return expiry_s


def _key_name(raw: str) -> str:
    """Unescaped twice, as the Python SDK escapes it; a policy's name holds no `%` or `+`."""
    name = _form_decoded(_form_decoded(raw))
    if not name:
        raise _malformed_token_error("'skn' is not the name of a policy")
    return name


def _form_decoded(raw: str) -> str:
    # Python, Java and Go write a space as a plus in a token; a true plus is always escaped there.
    return percent_decode(raw.replace("+", " "))


def _malformed_token_error(why: str) -> AuthFailed:
    return AuthFailed(f"MalformedToken: The token is malformed: {why}.")


def _unsupported_scheme_error(scheme: str) -> AuthFailed:
    looks_like_jwt = scheme.lower() == "bearer" or scheme.count(".") == 2
    if looks_like_jwt:
        return UnsupportedTokenType(
            "MalformedToken: The token is malformed: it looks like a JWT, and only "
            "SharedAccessSignature is accepted here."
        )
    return _malformed_token_error("it does not begin with 'SharedAccessSignature '")
