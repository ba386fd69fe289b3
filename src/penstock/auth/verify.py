"""Believe a token or not: authorities, signatures in constant work, expiry, scope."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime

import msgspec

from penstock.auth.grant import Grant, effective_rights, matches_key
from penstock.auth.resource import Path, hub_length, parse_resource, read_resource, scope_covers
from penstock.auth.sas import SasToken, parse_token, signature
from penstock.model import limits
from penstock.model.entities import AuthorizationRule, Right, Secret
from penstock.model.errors import AuthFailed
from penstock.model.names import HubName, NamespaceName, RuleName, fold_name, quote_text

_HUB_SEGMENTS_MAX = limits.HUB_NAME_MAX // 2 + 1  # "a/a/a…": more can be no hub's name


class Authority(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be known of one namespace; the callables ask the catalog as it is now.

    `hosts` are lower-case, without port, IPv6 without brackets. `is_reached_by` accepts further
    hosts, which several namespaces may share. `rule(hub, name)` finds a rule of exactly that level.
    `hub(name)` gives an existing hub's name, whatever the case asked for.
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
            found = self.hub("/".join(path[:length]))
            if found is not None:
                return found
        return None


class _MatchedRule(msgspec.Struct, frozen=True):
    authority: Authority
    hub_exists: bool
    rule: AuthorizationRule
    key: Secret


# Stands in for a rule that is not there, so that an unknown policy costs what a bad signature
# does (docs/security.md). Nothing it verifies is ever believed.
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
    """Turn a token into a grant for the audience, or raise AuthFailed.

    Several namespaces may answer to one host: the rule and key that verify the token decide
    (protocol.md 2.5). A client without the key learns only that the signature is invalid.
    """
    token = parse_token(token_text)
    source = read_resource(token.resource, fault="MalformedToken")
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
            f"ExpiredToken: The token is expired. Expiration time: '{_time_text(token.expiry_s)}', "
            f"current time '{_time_text(now_s)}'."
        )
    if not scope_covers(source.path, target.path):
        raise AuthFailed(
            f"InvalidAudience: The token is for '{quote_text(source.uri)}', "
            f"which does not cover '{quote_text(audience)}'."
        )
    return _grant(match, scope=source.path, audience=target.path, expires_ms=token.expiry_s * 1000)


def grant_from_key(
    authorities: Sequence[Authority], *, user: str, password: str, host: str | None = None
) -> Grant:
    """SASL PLAIN (protocol.md 1.3): policy name and key authorise the whole connection.

    A namespace's rules are tried before its hubs'; a hub's rule covers that hub alone. Only
    namespaces that answer to `host` (as a client writes it, port and all) are tried when one is
    given. Raises AuthFailed.
    """
    reached = parse_resource(f"//{host}").host if host else None
    match: _MatchedRule | None = None
    shown_key = password.encode("utf-8", "surrogatepass")
    for authority in authorities:
        if reached is not None and not authority.answers_to(reached):
            continue
        for hub in (None, *authority.hubs()):
            rule = authority.rule(hub, user)
            # Every rule is compared, found or not, before or after the right one.
            for secret in _keys(rule or _NO_RULE):
                same = hmac.compare_digest(secret.reveal().encode(), shown_key)
                if same and rule is not None and match is None:
                    match = _MatchedRule(authority, hub is not None, rule, secret)
    if match is None:
        raise AuthFailed("InvalidSignature: The policy name or its key is not valid.")
    return _grant(match, scope=(), audience=(), expires_ms=None)


def revalidate_grant(grant: Grant, authorities: Iterable[Authority]) -> Grant | None:
    """The grant as the policies stand now; None when its rule or its key is gone."""
    for authority in authorities:
        if fold_name(authority.namespace) != fold_name(grant.namespace):
            continue
        rule = authority.rule(grant.hub, grant.rule_name)
        if rule is not None and matches_key(rule, grant.key):
            rights = effective_rights(rule.rights, grant.scope)
            return msgspec.structs.replace(grant, rights=rights)
    return None


def _find_signing_rule(
    token: SasToken, path: Path, reached: Sequence[Authority]
) -> _MatchedRule | None:
    """Who signed the token. Four signatures per authority are computed, whatever is found."""
    string_to_sign = token.string_to_sign
    matches: list[_MatchedRule] = []
    for authority in reached:
        hub = authority.hub_of(path)
        # The hub's own rule comes before the namespace's of the same name (protocol.md 2.5).
        own = authority.rule(hub, token.key_name) if hub is not None else None
        for rule in (own, authority.rule(None, token.key_name)):
            for secret in _keys(rule or _NO_RULE):
                digest = signature(secret, string_to_sign)
                if hmac.compare_digest(digest, token.signature) and rule is not None:
                    matches.append(_MatchedRule(authority, hub is not None, rule, secret))
    # Two namespaces may share a key: the one that has the hub is meant.
    return next((match for match in matches if match.hub_exists), matches[0] if matches else None)


def _keys(rule: AuthorizationRule) -> tuple[Secret, Secret]:
    return rule.primary_key, rule.secondary_key


def _grant(match: _MatchedRule, *, scope: Path, audience: Path, expires_ms: int | None) -> Grant:
    return Grant(
        namespace=match.authority.namespace,
        rule_name=match.rule.name,
        hub=match.rule.hub,
        rights=effective_rights(match.rule.rights, scope),
        scope=scope,
        audience=audience,
        expires_ms=expires_ms,
        key=match.key,
    )


def _time_text(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
