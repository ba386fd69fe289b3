"""The ARM shapes, route by route, without a socket."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penstock.management.operations import NamespaceRequest, Place

if TYPE_CHECKING:
    from tests.unit.management.conftest import Caller

GROUP = "/subscriptions/s/resourceGroups/g"
ROOT = f"{GROUP}/providers/Microsoft.EventHub/namespaces"
NAMESPACE = f"{ROOT}/fabrikam"
HUB = f"{NAMESPACE}/eventhubs/orders"
OWN = "/providers/Penstock"


@pytest.fixture
async def made(call: Caller) -> Caller:
    call.plane.admin.namespaces.put("fabrikam", NamespaceRequest(capacity=2), Place("s", "g"))
    assert (await call("PUT", HUB, {"properties": {"partitionCount": 2}})).status == 200
    return call


async def test_namespace_is_201_when_new_and_200_after(call: Caller) -> None:
    body = {"location": "here", "tags": {"a": "b"}, "sku": {"name": "Standard", "capacity": 2}}
    first, again = await call("PUT", NAMESPACE, body), await call("PUT", NAMESPACE, body)
    assert (first.status, again.status) == (201, 200)
    assert first.json["sku"] == {"name": "Standard", "tier": "Standard", "capacity": 2}
    assert first.json["id"] == NAMESPACE
    assert first.json["properties"]["provisioningState"] == "Succeeded"
    assert first.json["properties"]["serviceBusEndpoint"] == "https://localhost:8443/"
    assert first.json["properties"]["createdAt"] == "2023-11-14T22:13:20.000Z"


async def test_namespace_in_another_place_is_a_conflict(made: Caller) -> None:
    answer = await made("PUT", NAMESPACE.replace("/g/", "/other/"), {})
    assert (answer.status, answer.code) == (409, "Conflict")


@pytest.mark.parametrize(
    "properties",
    [
        {"disableLocalAuth": True},
        {"publicNetworkAccess": "Disabled"},
        {"encryption": {"keySource": "Microsoft.KeyVault"}},
        {"minimumTlsVersion": "1.3"},
    ],
    ids=str,
)
async def test_promises_that_nothing_keeps_are_refused(call: Caller, properties: Any) -> None:
    answer = await call("PUT", NAMESPACE, {"properties": properties})
    assert (answer.status, answer.code) == (400, "OperationNotAllowed")
    assert call.plane.catalog.namespace("fabrikam") is None


async def test_patch_needs_what_it_changes(made: Caller) -> None:
    assert (await made("PATCH", f"{ROOT}/missing", {"tags": {}})).status == 404
    changed = await made("PATCH", NAMESPACE, {"tags": {"a": "b"}})
    assert (changed.json["tags"], changed.json["sku"]["capacity"]) == ({"a": "b"}, 2)


async def test_unlimited_units_are_shown_as_such_and_survive_a_round_trip(call: Caller) -> None:
    body = {"properties": {"throughputUnits": "unlimited"}}
    made = (await call("PUT", NAMESPACE, body)).json
    assert made["properties"]["throughputUnits"] == "unlimited"
    assert made["sku"]["capacity"] == 1
    again = (await call("PUT", NAMESPACE, made | {"tags": {"a": "b"}})).json
    assert again["properties"]["throughputUnits"] == "unlimited"
    limited = (await call("PUT", NAMESPACE, {"sku": {"capacity": 1}})).json
    assert limited["properties"]["throughputUnits"] == 1


async def test_hub_keeps_what_it_was_told(made: Caller) -> None:
    capture = {"enabled": False, "intervalInSeconds": 90}
    properties = {
        "userMetadata": "about <it>",
        "status": "ReceiveDisabled",
        "retentionDescription": {"cleanupPolicy": "Delete", "retentionTimeInHours": 30},
        "captureDescription": capture,
    }
    answer = await made("PUT", HUB, {"properties": properties})
    told = answer.json["properties"]
    assert told["userMetadata"] == "about <it>"
    assert (told["status"], told["messageRetentionInDays"]) == ("ReceiveDisabled", 2)
    assert told["captureDescription"]["intervalInSeconds"] == 90
    assert told["partitionIds"] == ["0", "1"]
    assert (await made("GET", HUB)).json == answer.json
    assert (await made("PUT", HUB, answer.json)).json == answer.json  # as a client writes it back


async def test_lists_are_paged(made: Caller) -> None:
    for number in range(4):
        await made("PUT", f"{HUB}/consumergroups/g{number}", {})
    path = f"{HUB}/consumergroups"
    whole = await made("GET", path)
    assert [each["name"] for each in whole.json["value"]] == ["$Default", "g0", "g1", "g2", "g3"]
    assert whole.json["nextLink"] is None
    query = "api-version=2024-01-01&$skip=1&$top=2"
    part = await made("GET", path, query=query)
    assert [each["name"] for each in part.json["value"]] == ["g0", "g1"]
    for wrong in ("$skip=-1", "$top=0", "$top=x"):
        assert (await made("GET", path, query=f"api-version=2024-01-01&{wrong}")).status == 400


@pytest.mark.parametrize("parent", [NAMESPACE, HUB])
async def test_rules_and_keys_of_both_levels(made: Caller, parent: str) -> None:
    path = f"{parent}/authorizationRules/both"
    rights = {"properties": {"rights": ["Send", "Listen"]}}
    rule = await made("PUT", path, rights)
    assert rule.json["properties"]["rights"] == ["Listen", "Send"]
    assert rule.json["id"] == path
    assert b"key-" not in rule.body
    assert b"key-" not in (await made("GET", f"{parent}/authorizationRules")).body
    keys = (await made("POST", f"{path}/listKeys")).json
    start = "Endpoint=sb://localhost:5671/;SharedAccessKeyName=both;SharedAccessKey="
    end = ";EntityPath=orders" if parent == HUB else ""
    assert keys["primaryConnectionString"] == f"{start}{keys['primaryKey']}{end}"
    new = (await made("POST", f"{path}/regenerateKeys", {"keyType": "SecondaryKey"})).json
    assert new["primaryKey"] == keys["primaryKey"]
    assert new["secondaryKey"] != keys["secondaryKey"]
    given = {"keyType": "PrimaryKey", "key": "given"}
    assert (await made("POST", f"{path}/regenerateKeys", given)).json["primaryKey"] == "given"
    assert (await made("DELETE", path)).status == 200
    assert (await made("POST", f"{path}/listKeys")).status == 404


@pytest.mark.parametrize(
    "body",
    [
        None,
        {},
        {"properties": {}},
        {"properties": {"rights": []}},
        {"properties": {"rights": ["Manage"]}},
        {"properties": {"rights": ["Read"]}},
        {"properties": {"rights": "Send"}},
        {"properties": {"rights": ["Send"] * 17}},
    ],
    ids=str,
)
async def test_rule_without_sensible_rights_is_refused(made: Caller, body: Any) -> None:
    answer = await made("PUT", f"{NAMESPACE}/authorizationRules/new", body)
    assert answer.status == 400


@pytest.mark.parametrize(
    "body", [{}, {"keyType": "ThirdKey"}, {"keyType": "PrimaryKey", "key": "x" * 257}], ids=str
)
async def test_regenerate_needs_to_know_which_key(made: Caller, body: Any) -> None:
    path = f"{NAMESPACE}/authorizationRules/RootManageSharedAccessKey/regenerateKeys"
    assert (await made("POST", path, body)).status == 400


async def test_subscriptions_and_groups_in_use_are_listed(made: Caller) -> None:
    listed = (await made("GET", "/subscriptions")).json["value"]
    assert "s" in [each["subscriptionId"] for each in listed]
    assert {each["tenantId"] for each in listed} == {"a-tenant"}
    assert (await made("GET", "/subscriptions/anything")).json["state"] == "Enabled"
    groups = (await made("GET", "/subscriptions/s/resourcegroups")).json["value"]
    assert [each["name"] for each in groups] == ["g"]
    assert (await made("GET", GROUP)).json["properties"]["provisioningState"] == "Succeeded"
    assert (await made("PUT", GROUP, {"location": "x"})).status == 200
    assert (await made("HEAD", GROUP)).status == 204
    tenants = (await made("GET", "/tenants")).json["value"]
    assert [each["tenantId"] for each in tenants] == ["a-tenant"]
    assert (await made("GET", "/subscriptions/s/locations")).json["value"]


@pytest.mark.parametrize(
    "tail",
    [
        "networkRuleSets",
        "networkRuleSets/default",
        "privateEndpointConnections",
        "privateLinkResources",
        "disasterRecoveryConfigs",
        "schemagroups",
        "applicationGroups",
    ],
)
async def test_what_azure_has_and_we_do_not_reads_as_empty(made: Caller, tail: str) -> None:
    assert (await made("GET", f"{NAMESPACE}/{tail}")).status == 200


async def test_provider_is_registered(made: Caller) -> None:
    path = "/subscriptions/s/providers/Microsoft.EventHub"
    assert (await made("GET", path)).json["registrationState"] == "Registered"
    assert (await made("POST", f"{path}/register")).json["registrationState"] == "Registered"
    operations = (await made("GET", "/providers/Microsoft.EventHub/operations")).json["value"]
    assert "Microsoft.EventHub/eventhubs/write" in [each["name"] for each in operations]
    found = await made("POST", f"{path}/checkNameAvailability", {"name": "fabrikam"})
    assert found.json["reason"] == "NameInUse"
    free = await made("POST", f"{path}/checkNameAvailability", {"name": "northwind"})
    assert free.json["nameAvailable"] is True


async def test_own_paths_need_no_version(made: Caller) -> None:
    listed = (await made("GET", f"{OWN}/namespaces", query="")).json["value"]
    assert [each["name"] for each in listed] == ["contoso", "fabrikam"]
    hub = f"{OWN}/namespaces/fabrikam/eventhubs/orders"
    partitions = (await made("GET", f"{hub}/partitions", query="")).json["value"]
    assert [each["last_sequence"] for each in partitions] == [-1, -1]
    assert (await made("GET", f"{hub}/readers", query="")).json["value"] == []


async def test_publishers_connections_usage_and_grants(made: Caller) -> None:
    revoked = f"{OWN}/namespaces/fabrikam/eventhubs/orders/revokedPublishers"
    assert (await made("PUT", f"{revoked}/a%2Fb")).json["name"] == "a/b"
    assert [each["name"] for each in (await made("GET", revoked)).json["value"]] == ["a/b"]
    assert (await made("DELETE", f"{revoked}/a%2Fb")).status == 200
    assert (await made("DELETE", f"{revoked}/a%2Fb")).status == 404
    connections = (await made("GET", f"{OWN}/connections")).json["value"]
    assert [each["id"] for each in connections] == ["first", "second"]
    assert (await made("DELETE", f"{OWN}/connections/first")).status == 200
    assert (await made("DELETE", f"{OWN}/connections/first")).status == 404
    assert (await made("GET", f"{OWN}/usage")).json["value"] == []
    grants = f"{OWN}/namespaces/fabrikam/quotaGrants"
    assert (await made("PUT", f"{grants}/throughput-units", {"value": 40})).json["value"] == 40
    assert (await made("PUT", f"{grants}/throughput-units", {"value": 21})).status == 400
    assert (await made("PUT", f"{grants}/wishes", {"value": 3})).status == 400
    assert len((await made("GET", grants)).json["value"]) == 1
    assert (await made("DELETE", f"{grants}/throughput-units")).status == 200
    audit = (await made("GET", f"{OWN}/audit", query="newest=3")).json["value"]
    assert len(audit) == 3
    assert audit[-1]["at"].endswith("Z")
