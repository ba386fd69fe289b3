"""Two namespaces on one loopback address, as a service would describe them to `auth`."""

from __future__ import annotations

import hmac
from base64 import b64encode
from collections.abc import Callable, Sequence
from urllib.parse import quote

import pytest

from penstock.auth.sas import Authority
from penstock.model.entities import AuthorizationRule, Right, Secret
from penstock.model.names import HubName, NamespaceName, RuleName

LOOPBACK = ("localhost", "127.0.0.1", "::1")

MakeAuthority = Callable[..., Authority]
MakeToken = Callable[..., str]


def _rule(
    namespace: str, hub: str | None, name: str, rights: Right, primary: str, secondary: str
) -> AuthorizationRule:
    return AuthorizationRule(
        namespace=NamespaceName(namespace),
        hub=None if hub is None else HubName(hub),
        name=RuleName(name),
        rights=rights,
        primary_key=Secret(primary),
        secondary_key=Secret(secondary),
        created_ms=0,
        updated_ms=0,
    )


def _authority(
    namespace: str, *, hubs: Sequence[str], rules: Sequence[AuthorizationRule]
) -> Authority:
    names = {name.lower(): HubName(name) for name in hubs}
    found = {(rule.hub and rule.hub.lower(), rule.name.lower()): rule for rule in rules}
    return Authority(
        namespace=NamespaceName(namespace),
        hosts=frozenset({*LOOPBACK, f"{namespace.lower()}.servicebus.windows.net"}),
        rule=lambda hub, name: found.get((hub and hub.lower(), name.lower())),
        hub=lambda name: names.get(name.lower()),
        hubs=names.values,
    )


@pytest.fixture(scope="session")
def make_rule() -> Callable[..., AuthorizationRule]:
    return _rule


@pytest.fixture(scope="session")
def make_authority() -> MakeAuthority:
    return _authority


@pytest.fixture(scope="session")
def make_token() -> MakeToken:
    """A token over a raw `sr`, escaped by the test itself; independent of `auth.sign`."""

    def make(raw_sr: str, policy: str, key: str, se: str | int) -> str:
        digest = hmac.digest(key.encode(), f"{raw_sr}\n{se}".encode(), "sha256")
        sig = quote(b64encode(digest), safe="")
        return f"SharedAccessSignature sr={raw_sr}&sig={sig}&se={se}&skn={policy}"

    return make


@pytest.fixture(scope="session")
def authorities() -> tuple[Authority, ...]:
    contoso = _authority(
        "contoso",
        hubs=("hub1", "hub10", "Telemetry", "plant", "plant/line", "a/b/c"),
        rules=(
            _rule("contoso", None, "Root", Right.ALL, "root-1", "root-2"),
            _rule("contoso", None, "Sender", Right.SEND, "send-1", "send-2"),
            _rule("contoso", None, "Listener", Right.LISTEN, "listen-1", "listen-2"),
            _rule("contoso", "hub1", "HubSend", Right.SEND, "hs-1", "hs-2"),
            _rule("contoso", "hub1", "HubAll", Right.ALL, "ha-1", "ha-2"),
            _rule("contoso", "hub10", "HubSend", Right.SEND, "hs10-1", "hs10-2"),
            _rule("contoso", "plant", "PlantAll", Right.ALL, "pa-1", "pa-2"),
            _rule("contoso", "plant/line", "LineAll", Right.ALL, "la-1", "la-2"),
            # the same name on both levels, with other keys and rights
            _rule("contoso", None, "Shared", Right.ALL, "shared-ns", "shared-ns-2"),
            _rule("contoso", "hub1", "Shared", Right.LISTEN, "shared-hub", "shared-hub-2"),
        ),
    )
    fabrikam = _authority(
        "fabrikam",
        hubs=("hub1", "own"),
        rules=(
            _rule("fabrikam", None, "Root", Right.ALL, "froot-1", "froot-2"),
            # the same rule and key as contoso's: told apart by the hub
            _rule("fabrikam", None, "Sender", Right.SEND, "send-1", "send-2"),
        ),
    )
    return contoso, fabrikam
