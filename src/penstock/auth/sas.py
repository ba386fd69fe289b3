"""Shared access signatures (protocol.md 2.5): parse, sign and verify them.

    SharedAccessSignature sr=<escaped uri>&sig=<escaped base64>&se=<seconds>&skn=<policy>

The signature is computed over `sr` and `se` exactly as the token has them, so both are kept raw.
"""

from __future__ import annotations

import hmac
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from operator import itemgetter
from urllib.parse import quote

import msgspec

from penstock.auth.grant import Grant, effective_rights
from penstock.auth.resource import (
    Path,
    hub_length,
    parse_resource,
    percent_decode,
    scope_covers,
)
from penstock.model import limits
from penstock.model.entities import AuthorizationRule, Right, Secret
from penstock.model.errors import ArgumentOutOfRange, AuthFailed, UnsupportedTokenType
from penstock.model.names import HubName, NamespaceName, RuleName, fold_name, quote_text

EXPIRY_S_MAX = 2**53  # the largest integer that every client can represent

_PREFIX = "sharedaccesssignature"
_FIELDS = frozenset({"sr", "sig", "se", "skn"})
_FIELDS_MAX = 16  # four have a meaning; unknown ones are ignored
_EXPIRY_DIGITS_MAX = 16
# `sr` is an escaped URI whose path may contain escapes itself. An issuer that escapes once and lets
# clients choose publisher names would sign `%61lice`, which decodes to `alice`. An issuer that
# escapes the path never escapes letters, digits, `-`, `.` or `_` (RFC 3986 section 2.3).
_NEEDLESS_ESCAPE = re.compile(
    "/publishers?/.*%(?:2[de]|3[0-9]|4[1-9a-f]|5[0-9a]|5f|6[1-9a-f]|7[0-9a])", re.IGNORECASE
)
_HUB_SEGMENTS_MAX = limits.HUB_NAME_MAX // 2 + 1  # "a/a/a…": more can be no hub's name


class SasToken(msgspec.Struct, frozen=True, kw_only=True):
    """A well-formed token that is not verified yet."""

    raw_resource: str
    resource: str
    signature: bytes
    raw_expiry: str
    expiry_s: int
    key_name: str

    @property
    def string_to_sign(self) -> bytes:
        return f"{self.raw_resource}\n{self.raw_expiry}".encode()

    def __repr__(self) -> str:  # a signature is a password until it expires
        return (
            f"SasToken(resource={self.resource!r}, key_name={self.key_name!r}, "
            f"expiry_s={self.expiry_s}, signature=***)"
        )


def parse_token(text: str) -> SasToken:
    """Parse a token without verifying it. Raises AuthFailed ("MalformedToken: ...") only."""
    fields = _split_fields(text)
    missing = _FIELDS - fields.keys()
    if missing:
        raise _malformed_token_error(f"'{min(missing)}' is missing")
    resource = _decode_form(fields["sr"])
    if not resource:
        raise _malformed_token_error("'sr' is not an escaped resource URI")
    if _NEEDLESS_ESCAPE.search(resource) is not None:
        raise _malformed_token_error(
            "'sr' escapes letters or digits of a publisher's name; escape a '%' of the name as %25"
        )
    return SasToken(
        raw_resource=fields["sr"],
        resource=resource,
        signature=_parse_signature(fields["sig"]),
        raw_expiry=fields["se"],
        expiry_s=_parse_expiry_s(fields["se"]),
        key_name=_parse_key_name(fields["skn"]),
    )


def sign(resource_uri: str, key_name: str, key: Secret, *, expires_s: int) -> str:
    """Create a token for the resource, valid until `expires_s` (seconds since 1970)."""
    if not 0 <= expires_s <= EXPIRY_S_MAX:
        raise ArgumentOutOfRange(f"expires_s is {expires_s}: 0 to {EXPIRY_S_MAX} are allowed.")
    resource = quote(resource_uri, safe="")
    digest = signature(key, f"{resource}\n{expires_s}".encode())
    sig = quote(b64encode(digest), safe="")
    return f"SharedAccessSignature sr={resource}&sig={sig}&se={expires_s}&skn={quote(key_name)}"


def signature(key: Secret, string_to_sign: bytes) -> bytes:
    """HMAC-SHA256 under the key's text itself, which is not base64-decoded (protocol.md 2.5)."""
    return hmac.digest(key.reveal().encode(), string_to_sign, "sha256")


class Authority(msgspec.Struct, frozen=True, kw_only=True):
    """What verification needs of one namespace; the callables read the current catalog.

    `hosts` are lower-case, without port, IPv6 without brackets. `is_reached_by` accepts further
    hosts, which several namespaces may share. `rule(hub, name)` finds a rule of exactly that level.
    `hub(name)` returns the name of an existing hub and ignores case.
    """

    namespace: NamespaceName
    hosts: frozenset[str]
    rule: Callable[[str | None, str], AuthorizationRule | None]
    hub: Callable[[str], HubName | None]
    hubs: Callable[[], Iterable[HubName]]
    is_reached_by: Callable[[str], bool] = lambda _host: False

    def answers_to(self, host: str | None) -> bool:
        """A host name, or the namespace's bare name (`sr=contoso`, protocol.md 2.5)."""
        if not host:
            return False
        return host in self.hosts or host == fold_name(self.namespace) or self.is_reached_by(host)

    def hub_of(self, path: Path) -> HubName | None:
        """The existing hub with the longest name that the path begins with."""
        for length in range(min(hub_length(path), _HUB_SEGMENTS_MAX), 0, -1):
            hub = self.hub("/".join(path[:length]))
            if hub is not None:
                return hub
        return None


# Replaces a rule that does not exist, so that an unknown policy takes as long as a bad signature:
# policy names cannot be found by timing. A match with its keys is ignored.
_NO_RULE = AuthorizationRule(
    namespace=NamespaceName("nobody"),
    hub=None,
    name=RuleName("nobody"),
    rights=Right.NONE,
    primary_key=Secret("0" * 44),
    secondary_key=Secret("1" * 44),
    created_ms=0,
    updated_ms=0,
)
_NO_AUTHORITY = Authority(
    namespace=NamespaceName("nobody"),
    hosts=frozenset(),
    rule=lambda _hub, _name: None,
    hub=lambda _name: None,
    hubs=lambda: (),
)


def verify_sas_token(
    token_text: str, *, audience: str, authorities: Sequence[Authority], now_s: int
) -> Grant:
    """Verify the token and return its grant for the audience. Raises AuthFailed.

    Several namespaces may share a host: the rule and key that verify the token decide. A client
    without a key learns only that the signature is invalid.
    """
    token = parse_token(token_text)
    source = parse_resource(token.resource, fault="MalformedToken")
    target = parse_resource(audience)
    reached = [
        authority
        for authority in authorities
        if authority.answers_to(source.host)
        and (target.host is None or authority.answers_to(target.host))
    ]
    match = _find_signing_rule(token, target.path, reached or (_NO_AUTHORITY,))
    if not reached:
        raise AuthFailed(
            f"InvalidAudience: The token for '{quote_text(source.uri)}' names no host of the "
            "namespace "
            f"that '{quote_text(audience)}' belongs to."
        )
    if match is None:
        raise AuthFailed("InvalidSignature: The token has an invalid signature.")
    if now_s >= token.expiry_s:
        raise AuthFailed(
            "ExpiredToken: The token is expired. "
            f"Expiration time: '{_format_time(token.expiry_s)}', "
            f"current time '{_format_time(now_s)}'."
        )
    if not scope_covers(source.path, target.path):
        raise AuthFailed(
            f"InvalidAudience: The token is for '{quote_text(source.uri)}', "
            f"which does not cover '{quote_text(audience)}'."
        )
    rule, key = match
    return _build_grant(rule, key, source.path, target.path, expires_ms=token.expiry_s * 1000)


def grant_from_key(
    authorities: Sequence[Authority], *, user: str, password: str, host: str | None = None
) -> Grant:
    """SASL PLAIN (protocol.md 1.3): policy name and key authorize the whole connection.

    Rules of a namespace are tried before those of its hubs; a rule of a hub covers that hub only.
    With `host`, as the client wrote it, only its namespaces are tried. Raises AuthFailed.
    """
    reached = parse_resource(f"//{host}").host if host else None
    match: tuple[AuthorizationRule, Secret] | None = None
    presented_key = password.encode("utf-8", "surrogatepass")
    for authority in authorities:
        if reached is not None and not authority.answers_to(reached):
            continue
        for hub in (None, *authority.hubs()):
            rule = authority.rule(hub, user)
            # Every rule is compared, also after a match: the time reveals nothing.
            for secret in _keys(rule or _NO_RULE):
                same = hmac.compare_digest(secret.reveal().encode(), presented_key)
                if same and rule is not None and match is None:
                    match = rule, secret
    if match is None:
        raise AuthFailed("InvalidSignature: The policy name or its key is not valid.")
    return _build_grant(*match, scope=(), audience=(), expires_ms=None)


def revalidate_grant(grant: Grant, authorities: Iterable[Authority]) -> Grant | None:
    """The grant under the current policies; None if its rule or its key no longer exists."""
    for authority in authorities:
        if fold_name(authority.namespace) != fold_name(grant.namespace):
            continue
        rule = authority.rule(grant.hub, grant.rule_name)
        if rule is not None and grant.key in _keys(rule):
            rights = effective_rights(rule.rights, grant.scope)
            return msgspec.structs.replace(grant, rights=rights)
    return None


def _split_fields(text: str) -> dict[str, str]:
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
            # Two parsers could choose different ones; no client sends both.
            raise _malformed_token_error("a parameter is given twice")
        fields[name] = value
    return fields


def _parse_signature(raw: str) -> bytes:
    # Base64 has no space: a space is a plus that was not escaped.
    decoded = percent_decode(raw).replace(" ", "+")
    try:
        sig = b64decode(decoded, validate=True)
    except ValueError:
        sig = b""
    if not sig:
        raise _malformed_token_error("'sig' is not escaped base64")
    return sig


def _parse_expiry_s(raw: str) -> int:
    if not (raw.isascii() and raw.isdigit() and len(raw) <= _EXPIRY_DIGITS_MAX):
        raise _malformed_token_error("'se' is not a decimal number of seconds since 1970")
    expiry_s = int(raw)
    if expiry_s > EXPIRY_S_MAX:
        raise _malformed_token_error(f"'se' is above {EXPIRY_S_MAX}")
    return expiry_s


def _parse_key_name(raw: str) -> str:
    """Unescape twice, because the Python SDK escapes twice; policy names contain no `%` or `+`."""
    name = _decode_form(_decode_form(raw))
    if not name:
        raise _malformed_token_error("'skn' is not the name of a policy")
    return name


def _decode_form(raw: str) -> str:
    # Python, Java and Go write a space as a plus in a token; they always escape a plus.
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


def _find_signing_rule(
    token: SasToken, path: Path, reached: Sequence[Authority]
) -> tuple[AuthorizationRule, Secret] | None:
    """The rule and key that signed the token. Always computes four signatures per authority, so
    that the time does not reveal which rules exist."""
    string_to_sign = token.string_to_sign
    matches: list[tuple[bool, AuthorizationRule, Secret]] = []  # first whether the hub is missing
    for authority in reached:
        hub = authority.hub_of(path)
        # A rule of the hub precedes one of the namespace with its name (protocol.md 2.5).
        own = authority.rule(hub, token.key_name) if hub is not None else None
        for rule in (own, authority.rule(None, token.key_name)):
            for secret in _keys(rule or _NO_RULE):
                digest = signature(secret, string_to_sign)
                if hmac.compare_digest(digest, token.signature) and rule is not None:
                    matches.append((hub is None, rule, secret))
    # Two namespaces may share a key: the one with the hub is meant.
    return min(matches, key=itemgetter(0))[1:] if matches else None


def _keys(rule: AuthorizationRule) -> tuple[Secret, Secret]:
    return rule.primary_key, rule.secondary_key


def _build_grant(
    rule: AuthorizationRule, key: Secret, scope: Path, audience: Path, *, expires_ms: int | None
) -> Grant:
    return Grant(
        namespace=rule.namespace,
        rule_name=rule.name,
        hub=rule.hub,
        rights=effective_rights(rule.rights, scope),
        scope=scope,
        audience=audience,
        expires_ms=expires_ms,
        key=key,
    )


def _format_time(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
