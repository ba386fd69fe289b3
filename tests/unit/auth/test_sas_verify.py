"""Verification: errors, namespaces on one address, SASL PLAIN, rotation, constant work."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.auth.grant import Grant, missing_claim_text
from penstock.auth.sas import Authority, grant_from_key, revalidate_grant, sign, verify_sas_token
from penstock.model.entities import AuthorizationRule, Right, Secret
from penstock.model.errors import AuthFailed
from penstock.model.names import HubName, NamespaceName, RuleName

NOW = 1_700_000_000
HOST = "sb://contoso.servicebus.windows.net"
GO = (
    "SharedAccessSignature sr=amqps%3a%2f%2fcontoso.servicebus.windows.net%2feh1"
    "&sig=%2Fky197NubpNSQIR7oc1cWJHCN4F4gzKBR37Im0Uvdfw%3D&se=1700000000&skn=Root"
)

Authorities = tuple[Authority, ...]


def token(path: str, key: str, *, policy: str = "Root", expires_s: int = NOW + 60) -> str:
    return sign(f"{HOST}{path}", policy, Secret(key), expires_s=expires_s)


def test_go_style_vector_is_verified(
    make_rule: Callable[..., AuthorizationRule], make_authority: Callable[..., Authority]
) -> None:
    rule = make_rule("contoso", None, "Root", Right.ALL, "SAS_KEY_VALUE", "other")
    authority = make_authority("contoso", hubs=("eh1",), rules=(rule,))
    audience = "amqps://contoso.servicebus.windows.net:5671/eh1/Partitions/0"
    grant = verify_sas_token(GO, audience=audience, authorities=[authority], now_s=1_699_999_999)
    assert grant.expires_ms == 1_700_000_000_000
    with pytest.raises(AuthFailed, match="ExpiredToken"):
        verify_sas_token(GO, audience=audience, authorities=[authority], now_s=1_700_000_000)


def test_grant_says_who_what_where_and_until_when(authorities: Authorities) -> None:
    grant = verify_sas_token(
        token("/Hub1", "hs-2", policy="hubsend"),
        audience=f"{HOST}/hub1/Partitions/0",
        authorities=authorities,
        now_s=NOW,
    )
    assert grant == Grant(
        namespace=NamespaceName("contoso"),
        rule_name=RuleName("HubSend"),
        hub=HubName("hub1"),
        rights=Right.SEND,
        scope=("hub1",),
        audience=("hub1", "partitions", "0"),
        expires_ms=(NOW + 60) * 1000,
        key=Secret("hs-2"),
    )
    assert "hs-2" not in repr(grant)


def test_expired_token_says_both_times(authorities: Authorities) -> None:
    with pytest.raises(AuthFailed) as caught:
        verify_sas_token(
            token("/hub1", "root-1", expires_s=NOW - 10),
            audience=f"{HOST}/hub1",
            authorities=authorities,
            now_s=NOW,
        )
    assert str(caught.value) == (
        "ExpiredToken: The token is expired. Expiration time: '2023-11-14T22:13:10', "
        "current time '2023-11-14T22:13:20'."
    )


def test_unknown_policy_and_wrong_key_read_the_same(authorities: Authorities) -> None:
    texts = set()
    for made in (
        token("/hub1", "root-1", policy="Nobody"),
        token("/hub1", "wrong"),
        token("/hub1", "wrong", expires_s=1),  # nor does expiry show without a key
        token("/other", "wrong"),  # nor the scope
    ):
        with pytest.raises(AuthFailed) as caught:
            verify_sas_token(made, audience=f"{HOST}/hub1", authorities=authorities, now_s=NOW)
        texts.add(str(caught.value))
    assert texts == {"InvalidSignature: The token has an invalid signature."}


def test_signature_of_another_length_is_invalid(authorities: Authorities) -> None:
    made = token("/hub1", "root-1").partition("&sig=")[0] + f"&sig=AAAA&se={NOW + 60}&skn=Root"
    with pytest.raises(AuthFailed, match="InvalidSignature"):
        verify_sas_token(made, audience=f"{HOST}/hub1", authorities=authorities, now_s=NOW)


def test_bearer_token_is_told_that_only_sas_is_accepted(authorities: Authorities) -> None:
    with pytest.raises(AuthFailed, match="only SharedAccessSignature is accepted here"):
        verify_sas_token(
            "Bearer a.b.c", audience=f"{HOST}/hub1", authorities=authorities, now_s=NOW
        )


def test_nothing_is_verified_where_there_is_no_namespace() -> None:
    with pytest.raises(AuthFailed, match="InvalidAudience"):
        verify_sas_token(
            token("/hub1", "root-1"), audience=f"{HOST}/hub1", authorities=(), now_s=NOW
        )


LOOPBACK = "sb://localhost:5672"


@pytest.mark.parametrize(
    ("policy", "key", "hub", "namespace"),
    [
        ("Root", "root-1", "hub1", "contoso"),
        ("Root", "froot-2", "hub1", "fabrikam"),
        ("HubAll", "ha-1", "hub1", "contoso"),
        ("Sender", "send-1", "own", "fabrikam"),  # one key, two namespaces: who has the hub
        ("Sender", "send-1", "hub10", "contoso"),
        ("Sender", "send-1", "hub1", "contoso"),  # both have it: the first
        ("Sender", "send-1", "nowhere", "contoso"),  # neither has it
    ],
)
def test_key_tells_namespaces_on_one_address_apart(
    policy: str, key: str, hub: str, namespace: str, authorities: Authorities
) -> None:
    uri = f"{LOOPBACK}/{hub}"
    made = sign(uri, policy, Secret(key), expires_s=NOW + 1)
    grant = verify_sas_token(made, audience=uri, authorities=authorities, now_s=NOW)
    assert grant.namespace == namespace


@pytest.fixture
def digests(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bytes]]:
    """The keys under which signatures were computed, in order."""
    used: list[bytes] = []
    real = hmac.digest

    def counted(key: bytes, message: bytes, digest: Any) -> bytes:
        used.append(key)
        return real(key, message, digest)

    monkeypatch.setattr(hmac, "digest", counted)
    yield used


@pytest.mark.parametrize(
    ("path", "policy", "key", "audience"),
    [
        ("/hub1", "Root", "root-1", "/hub1"),
        ("/hub1", "Root", "root-2", "/hub1"),
        ("/hub1", "Root", "wrong", "/hub1"),
        ("/hub1", "Nobody", "wrong", "/hub1"),
        ("/hub1", "HubSend", "hs-1", "/hub1"),
        ("/hub10", "Root", "root-1", "/hub1"),
        ("/none", "Root", "root-1", "/none"),
        ("/none", "Nobody", "wrong", "/none"),
    ],
)
def test_every_token_costs_the_same_signatures(
    path: str, policy: str, key: str, audience: str, authorities: Authorities, digests: list[bytes]
) -> None:
    made = token(path, key, policy=policy)
    digests.clear()
    with suppress(AuthFailed):
        verify_sas_token(made, audience=f"{HOST}{audience}", authorities=authorities, now_s=NOW)
    assert len(digests) == 4


def test_token_of_an_unknown_host_costs_the_same_signatures(
    authorities: Authorities, digests: list[bytes]
) -> None:
    made = sign("sb://evil.example/hub1", "Root", Secret("root-1"), expires_s=NOW + 1)
    digests.clear()
    with pytest.raises(AuthFailed, match="InvalidAudience"):
        verify_sas_token(made, audience=f"{HOST}/hub1", authorities=authorities, now_s=NOW)
    assert len(digests) == 4


@given(text=st.text(max_size=60), audience=st.text(max_size=60))
def test_verify_raises_auth_failed_and_nothing_else(text: str, audience: str) -> None:
    for made in (text, f"SharedAccessSignature sr={text}&sig=AAAA&se=1&skn={audience}"):
        with pytest.raises(AuthFailed):
            verify_sas_token(made, audience=audience, authorities=(), now_s=NOW)


def test_hub_is_searched_by_its_longest_name(make_authority: Callable[..., Authority]) -> None:
    authority = make_authority("contoso", hubs=("a", "a/b", "Partitions"), rules=())
    found = {
        path: authority.hub_of(tuple(path.split("/")))
        for path in ("a", "a/x", "a/b", "a/b/partitions/0", "partitions/partitions/0", "c", "a/b/c")
    }
    assert found == {
        "a": "a",
        "a/x": "a",
        "a/b": "a/b",
        "a/b/partitions/0": "a/b",
        "partitions/partitions/0": "Partitions",
        "c": None,
        "a/b/c": "a/b",
    }
    assert authority.hub_of(()) is None


def test_hub_search_is_bounded() -> None:
    asked: list[str] = []

    def hub(name: str) -> None:
        asked.append(name)

    authority = Authority(
        namespace=NamespaceName("contoso"),
        hosts=frozenset(),
        rule=lambda _hub, _name: None,
        hub=hub,
        hubs=lambda: (),
    )
    assert authority.hub_of(("a",) * 4000) is None
    assert len(asked) < 200


# --- SASL PLAIN ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("user", "password", "namespace", "hub", "rights"),
    [
        ("Root", "root-1", "contoso", None, Right.ALL),
        ("root", "root-2", "contoso", None, Right.ALL),
        ("Root", "froot-1", "fabrikam", None, Right.ALL),
        ("Sender", "send-2", "contoso", None, Right.SEND),
        ("HubSend", "hs-1", "contoso", "hub1", Right.SEND),
        ("HubSend", "hs10-2", "contoso", "hub10", Right.SEND),
        ("Shared", "shared-hub", "contoso", "hub1", Right.LISTEN),
    ],
)
def test_plain_grants_by_policy_and_key(
    user: str,
    password: str,
    namespace: str,
    hub: str | None,
    rights: Right,
    authorities: Authorities,
) -> None:
    grant = grant_from_key(authorities, user=user, password=password)
    assert (grant.namespace, grant.hub, grant.rights) == (namespace, hub, rights)
    assert grant.expires_ms is None
    assert grant.covers(((hub or "hub1"), "Partitions", "0"))


def test_plain_grant_of_a_hubs_rule_covers_that_hub_alone(authorities: Authorities) -> None:
    grant = grant_from_key(authorities, user="PlantAll", password="pa-1")
    assert grant.allows(("plant",), Right.MANAGE)
    assert grant.allows(("Plant", "ConsumerGroups", "$Default", "Partitions", "0"), Right.LISTEN)
    assert not grant.covers(("plant", "line"))
    assert not grant.covers(("hub1",))
    assert not grant.covers(())


@pytest.mark.parametrize(
    ("user", "password"),
    [
        ("Root", "wrong"),
        ("Root", ""),
        ("", "root-1"),
        ("Nobody", "root-1"),
        ("Nobody", "0" * 44),
        ("HubSend", "root-1"),
        ("Root", "root-1\0"),
        ("Root", "\ud800"),
        ("\ud800", "é" * 100_000),
    ],
)
def test_plain_refuses_what_is_no_policy_and_key(
    user: str, password: str, authorities: Authorities
) -> None:
    with pytest.raises(AuthFailed) as caught:
        grant_from_key(authorities, user=user, password=password)
    assert str(caught.value) == "InvalidSignature: The policy name or its key is not valid."


def test_plain_tries_only_namespaces_of_the_host_it_is_told(authorities: Authorities) -> None:
    def granted(host: str, password: str) -> str:
        return grant_from_key(authorities, user="Root", password=password, host=host).namespace

    assert granted("", "froot-1") == "fabrikam"
    assert granted("LocalHost:35671", "froot-1") == "fabrikam"
    assert granted("[::1]:5671", "froot-1") == "fabrikam"
    assert granted("fabrikam.servicebus.windows.net", "froot-1") == "fabrikam"
    with pytest.raises(AuthFailed):
        granted("contoso.servicebus.windows.net", "froot-1")
    for host in ("evil.example", "user@localhost", "localhost:x"):
        with pytest.raises(AuthFailed):
            granted(host, "root-1")


# --- Grants -------------------------------------------------------------------------------------


def test_renewed_grant_follows_its_rule(
    make_rule: Callable[..., AuthorizationRule], make_authority: Callable[..., Authority]
) -> None:
    def world(rights: Right, primary: str, secondary: str) -> list[Authority]:
        rule = make_rule("contoso", None, "Root", rights, primary, secondary)
        return [make_authority("contoso", hubs=("hub1",), rules=(rule,))]

    before = world(Right.ALL, "old", "second")
    grant = verify_sas_token(
        token("/hub1", "old"), audience=f"{HOST}/hub1", authorities=before, now_s=NOW
    )
    assert revalidate_grant(grant, before) == grant
    assert revalidate_grant(grant, world(Right.ALL, "new", "old")) == grant
    narrowed = revalidate_grant(grant, world(Right.LISTEN, "old", "second"))
    assert narrowed == msgspec.structs.replace(grant, rights=Right.LISTEN)
    assert revalidate_grant(grant, world(Right.ALL, "new", "second")) is None
    assert revalidate_grant(grant, [make_authority("contoso", hubs=("hub1",), rules=())]) is None
    assert revalidate_grant(grant, [make_authority("fabrikam", hubs=(), rules=())]) is None
    assert revalidate_grant(grant, []) is None


def test_renewed_publisher_still_only_sends(authorities: Authorities) -> None:
    made = token("/hub1/publishers/dev", "root-1")
    audience = f"{HOST}/hub1/publishers/dev"
    grant = verify_sas_token(made, audience=audience, authorities=authorities, now_s=NOW)
    assert grant.rights == Right.SEND
    again = revalidate_grant(grant, authorities)
    assert again is not None
    assert again.rights == Right.SEND


def test_grant_made_by_hand_is_bound_by_its_scope() -> None:
    grant = Grant(
        namespace=NamespaceName("contoso"),
        rule_name=RuleName("r"),
        hub=None,
        rights=Right.MANAGE,  # includes the others
        scope=("hub1",),
        expires_ms=None,
    )
    assert grant.allows(("HUB1", "Partitions", "1"), Right.SEND | Right.LISTEN)
    assert not grant.allows(("hub10",), Right.SEND)
    assert grant.allows(("hub1",), Right.NONE)
    assert not grant.allows(("hub2",), Right.NONE)


@pytest.mark.parametrize(
    ("right", "claims"),
    [
        (Right.LISTEN, "Listen"),
        (Right.SEND, "Send"),
        (Right.MANAGE, "Manage"),
        (Right.ALL, "Send, Listen, Manage"),
    ],
)
def test_missing_claim_is_told_in_the_services_words(right: Right, claims: str) -> None:
    assert missing_claim_text(right, "sb://ns/hub") == (
        f"Unauthorized access. '{claims}' claim(s) are required to perform this operation. "
        "Resource: 'sb://ns/hub'."
    )
