"""Tokens over HTTPS: who may publish where, and how long what was verified is believed."""

from __future__ import annotations

import hmac
from base64 import b64encode
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from penstock.gateway.http import authorization
from penstock.model.entities import Right

if TYPE_CHECKING:
    from tests.unit.gateway.http.conftest import World

HOST = "contoso.example.net"

YES, NO = 201, 401
HUB = "/events/messages"
PARTITION = "/events/partitions/0/messages"
PUBLISHER = "/events/publishers/dev/messages"

# (what the token is signed for, below the host), (where it is used) -> is it good there?
SCOPES = [
    ("", HUB, YES),
    ("", PARTITION, YES),
    ("", PUBLISHER, YES),
    ("", "/plant/line/messages", YES),
    ("events", HUB, YES),
    ("events", PARTITION, YES),
    ("events", PUBLISHER, YES),
    ("events", "/plant/line/messages", NO),
    ("events/messages", HUB, YES),
    ("events/messages", PARTITION, NO),
    ("events/messages", PUBLISHER, NO),
    ("events/partitions/0", PARTITION, YES),
    ("events/partitions/0/messages", PARTITION, YES),
    ("events/partitions/0", "/events/partitions/1/messages", NO),
    ("events/partitions/0", HUB, NO),
    ("events/partitions/0", PUBLISHER, NO),
    ("events/publishers/dev", PUBLISHER, YES),
    ("events/publishers/dev/messages", PUBLISHER, YES),
    ("events/publisher/dev/messages", PUBLISHER, YES),
    ("events/publishers/dev", "/events/publisher/dev/messages", YES),
    ("events/publishers/dev", "/events/publishers/DEV/messages", YES),
    ("events/publishers/dev", "/events/publishers/dev1/messages", NO),
    ("events/publishers/dev", "/events/publishers/dev%2F1/messages", NO),
    ("events/publishers/dev", HUB, NO),
    ("events/publishers/dev", PARTITION, NO),
    ("events/publishers", PUBLISHER, YES),
    ("events/publishers/messages", PUBLISHER, NO),
    ("events/publishers/messages", "/events/publishers/messages/messages", YES),
    ("events/publishers/a/b", "/events/publishers/a%2Fb/messages", YES),
    ("events/publishers/\u212a", "/events/publishers/k/messages", NO),
    ("events/publishers/straße", "/events/publishers/strasse/messages", NO),
    ("event", HUB, NO),
    ("events1", HUB, NO),
    ("events/consumergroups/$default", HUB, NO),
    ("events/messages/messages", HUB, NO),
    ("plant", "/plant/line/messages", YES),
    ("plant/line", "/plant/line/messages", YES),
    ("plant/line/messages", "/plant/line/messages", YES),
    ("plant/line", HUB, NO),
    ("plant/messages", "/plant/line/messages", NO),
    ("messages", HUB, NO),
    ("../events", HUB, NO),
    ("./events", HUB, NO),
    ("events/../plant/line", "/plant/line/messages", NO),
]
# How clients write the host of a resource.
SPELLINGS = [
    f"https://{HOST}/{{}}",
    f"sb://{HOST}/{{}}",
    f"amqps://{HOST}:5671/{{}}",
    f"http://{HOST.upper()}/{{}}",
    f"{HOST}/{{}}",
    "//contoso/{}",
    "https://localhost:8443/{}",
]


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize(("scope", "path", "status"), SCOPES)
async def test_token_reaches_what_it_was_signed_for_and_nothing_else(
    world: World, spelling: str, scope: str, path: str, status: int
) -> None:
    response = await world.call(path, token=world.token(spelling.format(scope)))
    assert response.status == status
    assert len(world.stored() + world.stored("hub1")) == (status == YES)


def test_scope_table_has_the_promised_size() -> None:
    assert len(SCOPES) * len(SPELLINGS) >= 200


@pytest.mark.parametrize(
    ("policy", "path", "status"),
    [
        ("Root", HUB, YES),
        ("Sender", HUB, YES),
        ("Sender", PUBLISHER, YES),
        ("Listener", HUB, NO),
        ("Listener", PUBLISHER, NO),
        ("HubSend", HUB, YES),
        ("HubSend", PUBLISHER, YES),
    ],
)
async def test_policy_needs_the_right_to_send(
    world: World, policy: str, path: str, status: int
) -> None:
    response = await world.call(path, token=world.token(policy=policy))
    assert response.status == status
    if status == NO:
        assert "Unauthorized access. 'Send' claim(s) are required" in response.detail
        assert response.headers["www-authenticate"] == "SharedAccessSignature"


async def test_policy_of_a_hub_is_no_policy_of_another(world: World) -> None:
    token = world.token(f"https://{HOST}/plant/line", "HubSend")
    assert (await world.call("/plant/line/messages", token=token)).status == NO


@pytest.mark.parametrize(
    ("host", "status"),
    [
        (HOST, YES),
        (f"{HOST}:443", YES),
        (HOST.upper(), YES),
        ("localhost", YES),
        ("localhost:8443", YES),
        ("127.0.0.1:8443", YES),
        ("[::1]:8443", YES),
        ("contoso", YES),
        ("other.example.net", NO),
        ("example.net", NO),
        (f"{HOST}.evil.net", NO),
    ],
)
async def test_host_is_one_of_the_namespaces(world: World, host: str, status: int) -> None:
    assert (await world.call(host=host)).status == status


@pytest.mark.parametrize(
    ("token", "sub_code"),
    [
        (None, "SubCode=40102: Missing authorization token. MissingToken: "),
        ("nonsense", "SubCode=40105: Malformed authorization token. MalformedToken: "),
        ("Bearer a.b.c", "SubCode=40105: "),
        ("SharedAccessSignature sr=x", "SubCode=40105: "),
        ("SharedAccessSignature " + "x" * 9000, "SubCode=40105: "),
        ("Basic \u00ff", "SubCode=40105: "),
    ],
)
async def test_token_that_is_none_is_unauthorized(
    world: World, token: str | None, sub_code: str
) -> None:
    response = await world.call(token=None, headers={"Authorization": token} if token else {})
    assert response.status == 401
    assert response.detail.startswith(sub_code)
    assert response.headers["www-authenticate"] == "SharedAccessSignature"


async def test_bad_signature_has_the_services_number(world: World) -> None:
    response = await world.call(token=world.token(key="wrong"))
    assert response.status == 401
    assert response.detail.startswith(
        "SubCode=40103: Invalid authorization token signature. "
        "InvalidSignature: The token has an invalid signature."
    )


async def test_token_of_a_stranger_has_the_services_number(world: World) -> None:
    response = await world.call(token=world.token("https://elsewhere.example/events"))
    assert response.detail.startswith("SubCode=40104: Invalid authorization token audience. ")


async def test_who_holds_no_token_cannot_tell_what_exists(world: World) -> None:
    answers = [
        await world.call(f"/{hub}/messages", token=world.token(f"https://{HOST}/x", key="wrong"))
        for hub in ("events", "nothing")
    ]
    texts = [answer.detail.partition(" TrackingId")[0] for answer in answers]
    assert texts[0] == texts[1]


# --- what is remembered -------------------------------------------------------------------------


async def test_token_is_verified_once(world: World) -> None:
    token = world.token()
    for _ in range(5):
        assert (await world.call(token=token)).status == 201
    assert world.verified == 1


async def test_remembered_token_is_good_nowhere_else(world: World) -> None:
    token = world.token(f"https://{HOST}/events/publishers/dev")
    assert (await world.call(PUBLISHER, token=token)).status == 201
    for path in (HUB, PARTITION, "/events/publishers/other/messages", "/plant/line/messages"):
        assert (await world.call(path, token=token)).status == 401
    list_ = await world.call("/events/revokedpublishers", b"", method="GET", token=token)
    assert list_.status == 401
    assert (await world.call(PUBLISHER, token=token, host="other.example.net")).status == 401


async def test_remembered_token_expires(world: World) -> None:
    token = world.token(lasts_s=10)
    assert (await world.call(token=token)).status == 201
    world.clock.advance(9_999)
    assert (await world.call(token=token)).status == 201
    world.clock.advance(1)
    response = await world.call(token=token)
    assert response.status == 401
    assert "ExpiredToken: The token is expired" in response.detail


async def test_remembered_token_lives_again_when_the_clock_is_set_back(world: World) -> None:
    token = world.token(lasts_s=10)
    world.clock.jump(20_000)
    assert (await world.call(token=token)).status == 401
    world.clock.jump(-20_000)
    assert (await world.call(token=token)).status == 201


@pytest.mark.parametrize("change", ["rotated", "deleted", "less rights"])
async def test_remembered_token_dies_with_its_policy(world: World, change: str) -> None:
    token = world.token(policy="Sender")
    assert (await world.call(token=token)).status == 201
    if change == "rotated":
        world.put_rule("Sender", Right.SEND, key="another")
    elif change == "deleted":
        world.catalog.delete_rule("contoso", None, "Sender")
    else:
        world.put_rule("Sender", Right.LISTEN)
    assert (await world.call(token=token)).status == 401


async def test_second_key_is_as_good_as_the_first(world: World) -> None:
    assert (await world.call(token=world.token(key="second-root-key"))).status == 201


async def test_hub_deleted_under_a_remembered_token_is_not_found(world: World) -> None:
    token = world.token()
    assert (await world.call(token=token)).status == 201
    world.catalog.delete_hub("contoso", "events")
    assert (await world.call(token=token)).status == 404


async def test_refused_token_is_not_remembered(world: World) -> None:
    token = world.token(policy="Listener")
    assert (await world.call(token=token)).status == 401
    world.put_rule("Listener", Right.ALL)
    assert (await world.call(token=token)).status == 201


async def test_no_more_tokens_are_remembered_than_are_allowed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authorization, "CACHED_GRANTS_MAX", 4)
    made = [world.token(lasts_s=100 + number) for number in range(3)]
    for token in [*made, *made[1:]]:
        assert (await world.call(token=token)).status == 201
    assert world.verified == 3
    assert (await world.call(token=made[0])).status == 201  # the oldest made room
    assert world.verified == 4


async def test_tokens_that_are_not_used_again_are_forgotten(world: World) -> None:
    """A client that signs a token for each request once filled the cache with them."""
    lasting = world.token(lasts_s=100_000)
    for second in range(600):
        assert (await world.call(token=world.token(lasts_s=1_000 + second))).status == 201
        assert (await world.call(token=lasting)).status == 201
        world.clock.advance(1_000)
    assert world.verified == 601  # the one that is used stays
    tokens = world.app._tokens
    assert (
        len(tokens._newer) + len(tokens._older)
        <= 2 * authorization.CACHE_GENERATION_MS // 1_000 + 2
    )


async def test_overlong_token_is_verified_each_time(world: World) -> None:
    token = f"{world.token()}&x={'y' * 2000}"
    for _ in range(2):
        assert (await world.call(token=token)).status == 201
    assert world.verified == 2


async def test_closed_door_no_longer_follows_the_catalog(world: World) -> None:
    token = world.token()
    await world.call(token=token)
    world.app.close()
    world.put_rule("Listener", Right.ALL)
    assert (await world.call(token=token)).status == 201
    assert world.verified == 1


async def test_lower_case_escapes_are_verified_as_they_stand(world: World) -> None:
    """Go lower-cases the escaped resource before it signs (protocol.md 2.5)."""
    resource = quote(f"https://{HOST}/events/messages", safe="").lower()
    expires_s = world.clock.now_ms() // 1000 + 60
    digest = hmac.digest(b"root-key", f"{resource}\n{expires_s}".encode(), "sha256")
    sig = quote(b64encode(digest), safe="")
    token = f"SharedAccessSignature sr={resource}&sig={sig}&se={expires_s}&skn=Root"
    assert (await world.call(token=token)).status == 201
