"""Revoked publishers over HTTPS: list, see, revoke, resume."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest

from penstock.broker.hub import HubRuntime
from penstock.model import limits
from penstock.model.errors import PenstockError

if TYPE_CHECKING:
    from tests.unit.gateway.http.conftest import Response, World

LIST = "/events/revokedpublishers"
ATOM = "{http://www.w3.org/2005/Atom}"
SERVICE = "{http://schemas.microsoft.com/netservices/2010/10/servicebus/connect}"


def name_in(entry: ElementTree.Element) -> str | None:
    content = entry.find(f"{ATOM}content")
    assert content is not None
    assert content.attrib == {"type": "application/xml"}
    (description,) = content
    assert description.tag == f"{SERVICE}RevokedPublisherDescription"
    return description.findtext(f"{SERVICE}Name")


async def listed(world: World) -> list[str | None]:
    response = await world.call(LIST, b"", method="GET", length=None)
    assert response.status == 200
    assert response.headers["content-type"].startswith("application/atom+xml;type=feed")
    feed = ElementTree.fromstring(response.body)
    assert feed.tag == f"{ATOM}feed"
    return [name_in(entry) for entry in feed.findall(f"{ATOM}entry")]


async def act(world: World, method: str, name: str) -> Response:
    return await world.call(f"{LIST}/{name}", b"", method=method)


async def test_publisher_is_revoked_and_resumed(world: World) -> None:
    assert await listed(world) == []
    response = await act(world, "PUT", "Device-1")
    assert response.status == 201
    entry = ElementTree.fromstring(response.body)
    assert entry.tag == f"{ATOM}entry"
    assert name_in(entry) == "Device-1"
    assert entry.findtext(f"{ATOM}id") == "/events/revokedpublishers/Device-1"
    assert entry.findtext(f"{ATOM}published") == "2023-11-14T22:13:20Z"
    assert await listed(world) == ["Device-1"]
    assert (await world.call("/events/publishers/device-1/messages")).status == 403
    response = await act(world, "DELETE", "device-1")
    assert (response.status, response.body) == (200, b"")
    assert await listed(world) == []
    assert (await world.call("/events/publishers/device-1/messages")).status == 201


async def test_revoking_again_is_a_conflict(world: World) -> None:
    assert (await act(world, "PUT", "dev")).status == 201
    response = await act(world, "PUT", "DEV")
    assert response.status == 409
    assert "is already revoked" in response.detail
    assert await listed(world) == ["dev"]


@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_publisher_that_is_not_revoked_is_not_found(world: World, method: str) -> None:
    assert (await act(world, method, "dev")).status == 404


async def test_revoked_publisher_can_be_seen(world: World) -> None:
    world.revoke("dev")
    response = await act(world, "GET", "Dev")
    assert response.status == 200
    assert name_in(ElementTree.fromstring(response.body)) == "dev"


async def test_names_are_escaped_in_xml_and_uri(world: World) -> None:
    assert (await act(world, "PUT", "a%2Fb%26%3C%22%20%C3%A4")).status == 201
    assert await listed(world) == ['a/b&<" ä']
    response = await act(world, "GET", "a%2Fb%26%3C%22%20%C3%A4")
    entry = ElementTree.fromstring(response.body)
    link = entry.find(f"{ATOM}link")
    assert link is not None
    assert link.get("href") == "/events/revokedpublishers/a%2Fb%26%3C%22%20%C3%A4"


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("POST", LIST, "GET"),
        ("PUT", LIST, "GET"),
        ("POST", f"{LIST}/dev", "GET, PUT, DELETE"),
        ("PATCH", f"{LIST}/dev", "GET, PUT, DELETE"),
    ],
)
async def test_other_methods_are_not_allowed(
    world: World, method: str, path: str, allowed: str
) -> None:
    response = await world.call(path, method=method)
    assert response.status == 405
    assert response.headers["allow"] == allowed


@pytest.mark.parametrize("policy", ["Sender", "Listener", "HubSend"])
@pytest.mark.parametrize(
    ("method", "path"), [("GET", LIST), ("PUT", f"{LIST}/x"), ("DELETE", f"{LIST}/dev")]
)
async def test_managing_needs_the_right_to(
    world: World, policy: str, method: str, path: str
) -> None:
    world.revoke("dev")
    response = await world.call(path, b"", method=method, token=world.token(policy=policy))
    assert response.status == 401
    assert "'Manage' claim(s) are required" in response.detail
    assert await listed(world) == ["dev"]


@pytest.mark.parametrize(
    "resource", ["events/publishers/dev", "events/messages", "events/partitions/0", "plant/line"]
)
async def test_token_of_a_part_or_another_hub_does_not_manage(world: World, resource: str) -> None:
    token = world.token(f"https://localhost/{resource}")
    response = await world.call(f"{LIST}/dev", b"", method="PUT", token=token)
    assert response.status == 401
    assert await listed(world) == []


async def test_unknown_hub_is_not_found(world: World) -> None:
    token = world.token("https://localhost/")
    response = await world.call("/nope/revokedpublishers", b"", method="GET", token=token)
    assert response.status == 404


async def test_revoked_publishers_are_limited(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "REVOKED_PUBLISHERS_MAX", 1)
    await act(world, "PUT", "one")
    assert (await act(world, "PUT", "two")).status == 403


async def test_revoking_ends_the_publishers_links_of_the_other_door(world: World) -> None:
    hub: HubRuntime = world.broker.hub("contoso", "events")
    heard: list[PenstockError] = []
    hub.open_sender(on_end=heard.append, publisher="dev")
    await act(world, "PUT", "Dev")
    assert [error.condition for error in heard] == ["com.microsoft:publisher-revoked"]
