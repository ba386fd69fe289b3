"""The older management of hubs and groups as Atom with a Manage token (protocol.md 7.2)."""

from __future__ import annotations

import importlib.util
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from penstock.auth import Authority, sign
from penstock.management import atom
from penstock.management import xml as reading
from penstock.management.atom_door import AtomDoor, Target, parse_target
from penstock.management.operations import HubRequest, NamespaceRequest
from penstock.model import limits
from penstock.model.entities import AuthorizationRule, LimitSet, Right
from penstock.model.errors import ArgumentError, NotAllowed, NotFound
from penstock.model.names import HubName

if TYPE_CHECKING:
    from tests.unit.management.conftest import Answered, Plane

HOST = "localhost:8443"
NS = {"a": atom.ATOM, "c": atom.CONNECT}


def entry(kind: str, inner: str) -> bytes:
    return (
        f'<entry xmlns="{atom.ATOM}"><content type="application/xml">'
        f'<{kind} xmlns="{atom.CONNECT}">{inner}</{kind}></content></entry>'
    ).encode()


def hub_body(inner: str = "") -> bytes:
    return entry("EventHubDescription", inner)


class Client:
    """Requests to the door with a token of some policy."""

    def __init__(self, plane: Plane) -> None:
        self.plane = plane
        self.door = AtomDoor(
            plane.administration, authorities=self._authorities, new_id=lambda: "an-id"
        )
        # Test files import no test module: the helper comes by its path.
        spec = importlib.util.spec_from_file_location(
            "management_conftest", Path(__file__).with_name("conftest.py")
        )
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        self._asgi = module.asgi

    def _authorities(self) -> Sequence[Authority]:
        return [self._authority(each.name) for each in self.plane.catalog.namespaces()]

    def _authority(self, namespace: Any) -> Authority:
        catalog = self.plane.catalog

        def rule(hub: str | None, name: str) -> AuthorizationRule | None:
            return catalog.rule(namespace, hub, name)

        def hub(name: str) -> HubName | None:
            found = catalog.hub(namespace, name)
            return None if found is None else found.name

        return Authority(
            namespace=namespace,
            hosts=frozenset({"localhost"}),
            rule=rule,
            hub=hub,
            hubs=lambda: [each.name for each in catalog.hubs(namespace)],
        )

    def token(
        self, policy: str = "RootManageSharedAccessKey", hub: str | None = None, uri: str = ""
    ) -> str:
        rule = self.plane.catalog.rule("contoso", hub, policy)
        assert rule is not None
        expires_s = self.plane.clock.now_ms() // 1000 + 60
        return sign(f"https://{HOST}/{uri}", policy, rule.primary_key, expires_s=expires_s)

    async def __call__(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        token: str | None = None,
        change: bool = False,
        query: str = "api-version=2014-01",
    ) -> Answered:
        headers = {"host": HOST, "authorization": self.token() if token is None else token}
        if change:
            headers["if-match"] = "*"
        answered: Answered = await self._asgi(self.door, method, path, body, headers, query)
        return answered


@pytest.fixture
def client(full: Plane) -> Client:
    return Client(full)


def fields(answer: Answered) -> dict[str, str | None]:
    """The description's elements."""
    (description,) = ET.fromstring(answer.body).iterfind("a:content/*", NS)
    return {each.tag.partition("}")[2]: each.text for each in description}


async def test_hub_is_created_read_changed_and_deleted(client: Client) -> None:
    body = hub_body(
        "<MessageRetentionInDays>3</MessageRetentionInDays><Status>Active</Status>"
        "<UserMetadata>a &lt;b&gt;</UserMetadata><PartitionCount>8</PartitionCount>"
    )
    made = await client("PUT", "/new", body)
    assert made.status == 201
    assert made.headers["content-type"].startswith("application/atom+xml")
    told = fields(made)
    assert told["UserMetadata"] == "a <b>"
    assert (told["MessageRetentionInDays"], told["PartitionCount"]) == ("3", "8")
    assert list(told) == [
        *("MessageRetentionInDays", "AuthorizationRules", "Status", "CreatedAt", "UpdatedAt"),
        *("UserMetadata", "PartitionCount", "PartitionIds"),
    ]
    assert (await client("PUT", "/NEW", body)).status == 409
    change = hub_body("<Status>SendDisabled</Status>")
    assert (await client("PUT", "/new", change, change=True)).status == 200
    assert fields(await client("GET", "/new"))["Status"] == "SendDisabled"
    assert (await client("DELETE", "/new")).status == 200
    assert (await client("GET", "/new")).status == 404
    assert (await client("PUT", "/new", change, change=True)).status == 404


async def test_hub_has_sixteen_partitions_unless_told(client: Client) -> None:
    assert fields(await client("PUT", "/new", hub_body()))["PartitionCount"] == "16"
    assert fields(await client("PUT", "/other"))["PartitionCount"] == "16"


async def test_partition_count_obeys_the_limits_of_the_namespace(client: Client) -> None:
    body = hub_body("<PartitionCount>1</PartitionCount>")
    refused = await client("PUT", "/one", body)
    assert refused.status == 400
    assert b"The partition count is 1: 2 to 32 are allowed." in refused.body
    for namespace in client.plane.catalog.namespaces():
        client.plane.catalog.put_namespace(
            msgspec.structs.replace(namespace, limits=LimitSet.CURRENT)
        )
    assert fields(await client("PUT", "/one", body))["PartitionCount"] == "1"


async def test_elements_out_of_order_are_passed_over(client: Client) -> None:
    body = hub_body(
        "<UserMetadata>kept</UserMetadata><MessageRetentionInDays>5</MessageRetentionInDays>"
        "<PartitionCount>4</PartitionCount><Status>Disabled</Status>"
    )
    told = fields(await client("PUT", "/new", body))
    assert (told["UserMetadata"], told["PartitionCount"]) == ("kept", "4")
    assert (told["MessageRetentionInDays"], told["Status"]) == ("1", "Active")


async def test_answer_written_back_changes_nothing(client: Client) -> None:
    first = await client("GET", "/orders")
    again = await client("PUT", "/orders", first.body, change=True)
    assert (again.status, again.body) == (200, first.body)


async def test_groups_and_partitions(client: Client) -> None:
    body = entry("ConsumerGroupDescription", "<UserMetadata>who</UserMetadata>")
    path = "/orders/consumergroups/new"
    assert fields(await client("PUT", path, body))["UserMetadata"] == "who"
    assert (await client("PUT", path, body)).status == 409
    assert (await client("PUT", "/orders/consumergroups/$Default")).status == 409
    feed = ET.fromstring((await client("GET", "/orders/consumergroups")).body)
    titles = [each.findtext("a:title", namespaces=NS) for each in feed.iterfind("a:entry", NS)]
    assert titles == ["$Default", "new", "readers"]
    part = await client("GET", "/orders/ConsumerGroups", query="$skip=1&$top=1")
    assert len(ET.fromstring(part.body).findall("a:entry", NS)) == 1
    partition = await client("GET", f"{path}/partitions/0")
    assert fields(partition)["EndSequenceNumber"] == "-1"
    assert (
        len(ET.fromstring((await client("GET", f"{path}/partitions")).body).findall("a:entry", NS))
        == 4
    )
    assert (await client("GET", f"{path}/partitions/9")).status == 404
    assert (await client("DELETE", path)).status == 200
    assert (await client("DELETE", path)).status == 404
    assert (await client("DELETE", "/orders/consumergroups/$Default")).status == 400


async def test_hubs_of_the_tokens_namespace_are_listed(client: Client) -> None:
    client.plane.admin.namespaces.put("fabrikam", NamespaceRequest())
    client.plane.admin.hubs.put("fabrikam", "theirs", HubRequest())
    feed = ET.fromstring((await client("GET", "/$Resources/EventHubs")).body)
    titles = [each.findtext("a:title", namespaces=NS) for each in feed.iterfind("a:entry", NS)]
    assert titles == ["orders"]
    assert (await client("GET", "/theirs")).status == 404


async def test_only_manage_manages(client: Client) -> None:
    assert (await client("GET", "/orders", token=client.token("sender"))).status == 401
    assert (await client("GET", "/orders", token="")).status == 401
    assert (await client("GET", "/orders", token="SharedAccessSignature x")).status == 401
    expired = client.token()
    client.plane.clock.advance(61_000)
    assert (await client("GET", "/orders", token=expired)).status == 401


async def test_policy_of_a_hub_manages_that_hub_alone(client: Client) -> None:
    client.plane.admin.rules.put("contoso", "orders", "own", Right.ALL)
    client.plane.admin.hubs.put("contoso", "others", HubRequest())
    own = client.token("own", "orders")
    assert (await client("GET", "/orders", token=own)).status == 200
    assert (await client("PUT", "/orders/consumergroups/x", token=own)).status == 201
    for path in ("/others", "/$Resources/EventHubs", "/others/consumergroups/$Default"):
        assert (await client("GET", path, token=own)).status == 401
    assert (await client("PUT", "/new", token=own)).status == 401
    narrow = client.token(uri="orders")
    assert (await client("GET", "/orders", token=narrow)).status == 200
    assert (await client("GET", "/others", token=narrow)).status == 401
    who = {entry[0] for entry in client.plane.audit()}
    assert "policy own" in who


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", "/$Resources/EventHubs"),
        ("DELETE", "/orders/consumergroups"),
        ("PUT", "/orders/consumergroups/readers/partitions/0"),
        ("POST", "/orders"),
    ],
)
async def test_methods_that_mean_nothing_are_405(client: Client, method: str, path: str) -> None:
    assert (await client(method, path)).status == 405


async def test_errors_are_the_services_xml(client: Client) -> None:
    answer = await client("GET", "/a%3Cscript%3E")
    assert answer.status == 404
    assert b"<script>" not in answer.body
    error = ET.fromstring(answer.body)
    assert (error.tag, error.findtext("Code")) == ("Error", "404")


@pytest.mark.parametrize(
    "body",
    [
        b"nonsense",
        b"<entry/>",
        b"<a><b></a>",
        f'<entry xmlns="{atom.ATOM}"/>'.encode(),
        hub_body("<PartitionCount>many</PartitionCount>"),
        hub_body("<PartitionCount>-4</PartitionCount>"),
        hub_body("<PartitionCount>4<b/></PartitionCount>"),
        hub_body("<PartitionCount>99999999999</PartitionCount>"),
        hub_body("<Status>Nonsense</Status>"),
        hub_body("<Authorization><AuthorizationRule/></Authorization>"),
        hub_body("<PartitionCount>33</PartitionCount>"),
        hub_body("<MessageRetentionInDays>0</MessageRetentionInDays>"),
        b'<!DOCTYPE a [<!ENTITY x "y">]><a>&x;</a>',
        b'<!DOCTYPE a SYSTEM "file:///etc/passwd"><a/>',
        b'<?xml version="1.0" encoding="nonsense"?><a/>',
        hub_body("<a>" * 20 + "</a>" * 20),
        hub_body("<a/>" * 300),
        b"\x00\x01",
    ],
    ids=lambda body: body[-50:],
)
async def test_bodies_that_mean_nothing_are_refused(client: Client, body: bytes) -> None:
    before = client.plane.catalog.hubs("contoso")
    answer = await client("PUT", "/new", body)
    assert answer.status in (400, 403)
    assert client.plane.catalog.hubs("contoso") == before


async def test_body_has_a_largest_size(client: Client) -> None:
    assert (await client("PUT", "/new", b" " * (limits.ATOM_BODY_BYTES_MAX + 1))).status == 413


def test_entities_are_not_expanded() -> None:
    bomb = b'<!DOCTYPE l [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;">]><l>&b;</l>'
    with pytest.raises(ArgumentError, match="document type"):
        reading.parse(bomb)


@pytest.mark.parametrize(
    "text", ["<>&\"'", "]]>", "\x00\x08\ufffe\ud800", "é \U0001f600", "a\tb\nc"]
)
def test_any_text_can_be_written(text: str) -> None:
    written = f"<a b='{reading.text(text)}'>{reading.text(text)}</a>"
    assert reading.parse(written.encode()).name == "a"


@pytest.mark.parametrize(
    ("path", "target"),
    [
        (b"/$Resources/EventHubs", Target()),
        (b"/%24resources/eventhubs/", Target()),
        (b"/hub", Target(hub="hub")),
        (b"/a/b", Target(hub="a/b")),
        (b"/a%2Fb", Target(hub="a/b")),
        (b"/hub/ConsumerGroups", Target(hub="hub", groups=True)),
        (b"/hub/consumergroups/g", Target(hub="hub", groups=True, group="g")),
        (
            b"/hub/consumergroups/g/partitions",
            Target(hub="hub", groups=True, group="g", partitions=True),
        ),
        (
            b"/hub/consumergroups/g/partitions/1",
            Target(hub="hub", groups=True, group="g", partitions=True, partition="1"),
        ),
        (b"/hub/partitions/1", Target(hub="hub", groups=True, partitions=True, partition="1")),
        (b"/consumergroups/consumergroups/g", Target(hub="consumergroups", groups=True, group="g")),
    ],
)
def test_paths_name_their_targets(path: bytes, target: Target) -> None:
    assert parse_target(path) == target


@pytest.mark.parametrize(
    "path",
    [
        b"/",
        b"",
        b"//",
        b"/a//b",
        b"/hub/consumergroups/g/x",
        b"/hub/consumergroups/g/partitions/1/2",
        b"/" + b"a" * 257,
        b"/%ff",
        b"/" + b"a" * 9000,
    ],
)
def test_paths_without_a_target_are_refused(path: bytes) -> None:
    with pytest.raises((NotFound, ArgumentError)):
        parse_target(path)


def test_rules_in_a_description_are_refused() -> None:
    with pytest.raises(NotAllowed):
        atom.read_hub(
            hub_body("<AuthorizationRules><AuthorizationRule/></AuthorizationRules>"), is_new=True
        )
