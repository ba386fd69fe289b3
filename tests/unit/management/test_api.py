"""The ARM shapes, route by route, without a socket."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from tests.unit.management.conftest import namespace_body

from penstock.management.operations.namespaces import ResourceScope
from penstock.model.entities import LimitSet

if TYPE_CHECKING:
    from tests.unit.management.conftest import Caller

GROUP = "/subscriptions/s/resourceGroups/g"
ROOT = f"{GROUP}/providers/Microsoft.EventHub/namespaces"
NAMESPACE = f"{ROOT}/fabrikam"
HUB = f"{NAMESPACE}/eventhubs/orders"
OWN = "/providers/Penstock"


@pytest.fixture
async def made(call: Caller) -> Caller:
    call.plane.admin.namespaces.put("fabrikam", namespace_body(capacity=2), ResourceScope("s", "g"))
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


async def test_partition_count_obeys_the_limits_of_the_namespace(made: Caller) -> None:
    one = {"properties": {"partitionCount": 1}}
    refused = await made("PUT", f"{NAMESPACE}/eventhubs/one", one)
    assert refused.status == 400
    assert "The partition count is 1: 2 to 32 are allowed." in refused.json["error"]["message"]
    namespace = made.plane.catalog.namespace("fabrikam")
    assert namespace is not None
    made.plane.catalog.put_namespace(msgspec.structs.replace(namespace, limits=LimitSet.CURRENT))
    answer = await made("PUT", f"{NAMESPACE}/eventhubs/one", one)
    assert answer.json["properties"]["partitionCount"] == 1
    # A namespace that a client writes back keeps its limits.
    assert (await made("PUT", NAMESPACE, {"tags": {"a": "b"}})).status == 200
    assert getattr(made.plane.catalog.namespace("fabrikam"), "limits", None) is LimitSet.CURRENT


async def test_namespace_in_another_place_is_a_conflict(made: Caller) -> None:
    answer = await made("PUT", NAMESPACE.replace("/g/", "/other/"), {})
    assert (answer.status, answer.code) == (409, "Conflict")


REPLICAS = {"locations": [{"locationName": "west", "roleType": "Secondary"}]}


@pytest.mark.parametrize(
    "body",
    [
        {"properties": {"disableLocalAuth": True}},
        {"properties": {"publicNetworkAccess": "Disabled"}},
        {"properties": {"encryption": {"keySource": "Microsoft.KeyVault"}}},
        {"properties": {"minimumTlsVersion": "1.3"}},
        {"properties": {"geoDataReplication": REPLICAS}},
        {"properties": {"zoneRedundant": True}},
        {"properties": {"ipAddressType": "DualStack"}},
        {"properties": {"privateEndpointConnections": [{"properties": {}}]}},
        {"properties": {"status": "Disabled"}},
        {"properties": {"limits": "current"}},
        {"identity": {"type": "SystemAssigned"}},
    ],
    ids=str,
)
async def test_promises_that_nothing_keeps_are_refused(call: Caller, body: Any) -> None:
    answer = await call("PUT", NAMESPACE, body)
    assert (answer.status, answer.code) == (400, "OperationNotAllowed")
    field = next(iter(body.get("properties", body)))
    assert answer.json["error"]["message"].startswith(field)
    assert call.plane.catalog.namespace("fabrikam") is None


async def test_what_asks_for_nothing_is_accepted(call: Caller) -> None:
    properties = {"zoneRedundant": False, "ipAddressType": "IPv4", "geoDataReplication": None}
    body = {"identity": {"type": "None"}, "properties": properties}
    assert (await call("PUT", NAMESPACE, body)).status == 201


async def test_zone_redundancy_of_version_0_1_is_not_reported(made: Caller) -> None:
    stored = made.plane.catalog.namespace("fabrikam")
    assert stored is not None
    metadata = stored.metadata | {"properties": {"zoneRedundant": True, "alternateName": "a"}}
    made.plane.catalog.put_namespace(msgspec.structs.replace(stored, metadata=metadata))
    read = (await made("GET", NAMESPACE)).json
    assert read["properties"]["zoneRedundant"] is False
    assert read["properties"]["alternateName"] == "a"
    assert (await made("PUT", NAMESPACE, as_az_writes(read))).status == 200


@pytest.mark.parametrize("limit_set", list(LimitSet))
async def test_limits_are_reported_and_may_be_written_back(
    made: Caller, limit_set: LimitSet
) -> None:
    stored = made.plane.catalog.namespace("fabrikam")
    assert stored is not None
    made.plane.catalog.put_namespace(msgspec.structs.replace(stored, limits=limit_set))
    read = (await made("GET", NAMESPACE)).json
    assert read["properties"]["limits"] == limit_set.value
    assert (await made("PUT", NAMESPACE, read)).status == 200
    other = next(each for each in LimitSet if each is not limit_set)
    answer = await made("PATCH", NAMESPACE, {"properties": {"limits": other.value}})
    assert (answer.status, answer.code) == (400, "OperationNotAllowed")


async def test_retention_of_tombstones_is_refused(made: Caller) -> None:
    retention = {"cleanupPolicy": "Delete", "tombstoneRetentionTimeInHours": 4}
    body = {"properties": {"retentionDescription": retention}}
    answer = await made("PUT", HUB, body)
    assert (answer.status, answer.code) == (400, "OperationNotAllowed")


async def test_event_time_of_the_client_is_refused(made: Caller) -> None:
    body = {"properties": {"messageTimestampDescription": {"timestampType": "Create"}}}
    answer = await made("PUT", HUB, body)
    assert (answer.status, answer.code) == (400, "OperationNotAllowed")
    body["properties"]["messageTimestampDescription"]["timestampType"] = "LogAppend"
    assert (await made("PUT", HUB, body)).status == 200


@pytest.mark.parametrize("method", ["PUT", "PATCH"])
async def test_tags_of_a_resource_group_are_refused(made: Caller, method: str) -> None:
    answer = await made(method, GROUP, {"location": "x", "tags": {"a": "b"}})
    assert (answer.status, answer.code) == (400, "OperationNotAllowed")
    for body in ({"location": "x"}, {"location": "x", "tags": {}}, {"tags": None}, None):
        assert (await made(method, GROUP, body)).status == 200


async def test_patch_needs_what_it_changes(made: Caller) -> None:
    assert (await made("PATCH", f"{ROOT}/missing", {"tags": {}})).status == 404
    changed = await made("PATCH", NAMESPACE, {"tags": {"a": "b"}})
    assert (changed.json["tags"], changed.json["sku"]["capacity"]) == ({"a": "b"}, 2)


def as_az_writes(shape: dict[str, Any]) -> dict[str, Any]:
    """The body of `az eventhubs namespace update`: what was read, without the fields that its
    model does not know or may not write."""
    dropped = {"throughputUnits", "throughputUnitsNeeded", "provisioningState", "status"}
    dropped |= {"metricId", "createdAt", "updatedAt", "serviceBusEndpoint"}
    properties = {name: value for name, value in shape["properties"].items() if name not in dropped}
    return {name: shape[name] for name in ("location", "tags", "sku")} | {"properties": properties}


@pytest.mark.parametrize("needed", [1, 334], ids=["idle", "after a burst"])
async def test_tag_written_as_az_does_leaves_unlimited_units(call: Caller, needed: int) -> None:
    made = (await call("PUT", NAMESPACE, {"properties": {"throughputUnits": "unlimited"}})).json
    assert made["properties"]["throughputUnits"] == "unlimited"
    call.plane.needed["units"] = needed
    read = (await call("GET", NAMESPACE)).json
    assert (read["sku"]["capacity"], read["properties"]["throughputUnitsNeeded"]) == (0, needed)
    changed = await call("PUT", NAMESPACE, as_az_writes(read) | {"tags": {"a": "b"}})
    assert (changed.status, changed.json["tags"]) == (200, {"a": "b"})
    assert changed.json["properties"]["throughputUnits"] == "unlimited"
    for body in (read, changed.json):  # as Penstock's own clients could write it
        again = (await call("PUT", NAMESPACE, body | {"tags": {"a": "c"}})).json
        assert again["properties"]["throughputUnits"] == "unlimited"
    limited = (await call("PUT", NAMESPACE, {"sku": {"capacity": 1}})).json
    assert limited["properties"]["throughputUnits"] == 1


@pytest.mark.parametrize(
    "body",
    [
        {"sku": {"capacity": 0}},
        {"properties": {"throughputUnits": 0}},
        {"properties": {"throughputUnits": "lots"}},
        {"properties": {"throughputUnits": -1}},
    ],
    ids=str,
)
async def test_units_that_do_not_exist_are_refused(made: Caller, body: Any) -> None:
    assert (await made("PUT", NAMESPACE, body)).status == 400
    assert (await made("GET", NAMESPACE)).json["properties"]["throughputUnits"] == 2


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
    given = {"keyType": "PrimaryKey", "key": "sixteen letters!"}
    answer = await made("POST", f"{path}/regenerateKeys", given)
    assert answer.json["primaryKey"] == "sixteen letters!"
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


@pytest.mark.parametrize(
    "key",
    [
        "",
        "x",
        "fifteen letters",
        "sixteen;letters!",
        "sixteen\nletters!",
        "sixteen lettres\u00e9",
        "k" * 257,
    ],
)
async def test_weak_or_unusable_key_is_refused(made: Caller, key: str) -> None:
    path = f"{NAMESPACE}/authorizationRules/RootManageSharedAccessKey"
    before = (await made("POST", f"{path}/listKeys")).json
    answer = await made("POST", f"{path}/regenerateKeys", {"keyType": "PrimaryKey", "key": key})
    assert (answer.status, answer.code) == (400, "BadRequest")
    text = answer.json["error"]["message"]
    assert "16 to 256 printable ASCII" in text
    assert len(key) < 15 or key not in text
    assert (await made("POST", f"{path}/listKeys")).json == before


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
        "networkSecurityPerimeterConfigurations",
        "eventhubs/orders/fabricShortcuts",
    ],
)
async def test_what_azure_has_and_we_do_not_reads_as_empty(made: Caller, tail: str) -> None:
    assert (await made("GET", f"{NAMESPACE}/{tail}")).status == 200


@pytest.mark.parametrize("scope", ["/subscriptions/s", GROUP])
async def test_there_are_no_clusters(made: Caller, scope: str) -> None:
    answer = await made("GET", f"{scope}/providers/Microsoft.EventHub/clusters")
    assert answer.json["value"] == []


@pytest.mark.parametrize(
    ("method", "path", "text"),
    [
        ("PUT", f"{NAMESPACE}/networkRuleSets/default", "Network rules are not supported"),
        ("PUT", f"{NAMESPACE}/disasterRecoveryConfigs/a", "Geo-disaster recovery is not"),
        (
            "POST",
            f"{NAMESPACE}/disasterRecoveryConfigs/checkNameAvailability",
            "Geo-disaster recovery is not",
        ),
        ("PUT", f"{NAMESPACE}/schemagroups/g", "The schema registry is not supported"),
        ("PUT", f"{NAMESPACE}/applicationGroups/g", "Application groups are not supported"),
        ("POST", f"{NAMESPACE}/failover", "Failover is not supported"),
        (
            "PUT",
            f"{GROUP}/providers/Microsoft.EventHub/clusters/c",
            "Dedicated clusters are not supported",
        ),
        ("DELETE", GROUP, "A resource group cannot be deleted"),
        ("GET", "/subscriptions/s/resources", "Resources cannot be listed together"),
        ("GET", f"{GROUP}/resources", "Resources cannot be listed together"),
        (
            "PUT",
            f"{GROUP}/providers/Microsoft.Resources/deployments/d",
            "Deployments of templates (ARM, Bicep) are not supported",
        ),
        (
            "PUT",
            f"{NAMESPACE}/providers/Microsoft.Authorization/locks/l",
            "The resource provider 'microsoft.authorization' is not supported",
        ),
    ],
)
async def test_what_is_not_supported_says_so(
    made: Caller, method: str, path: str, text: str
) -> None:
    answer = await made(method, path, raw=b"{template: 1}")  # as `az deployment` writes it
    assert (answer.status, answer.code) == (400, "OperationNotAllowed")
    assert answer.json["error"]["message"].startswith(text)


@pytest.mark.parametrize(
    "path",
    [
        f"{NAMESPACE}/privateEndpointConnections/pe1",
        f"{NAMESPACE}/disasterRecoveryConfigs/a/authorizationRules",
        f"{NAMESPACE}/schemagroups/g",
        f"{GROUP}/providers/Microsoft.EventHub/clusters/c",
        f"{NAMESPACE}/providers/Microsoft.Insights/metrics",
    ],
)
async def test_single_resource_that_cannot_exist_is_not_found(made: Caller, path: str) -> None:
    answer = await made("GET", path)
    assert (answer.status, answer.code) == (404, "ResourceNotFound")
    assert "not supported" in answer.json["error"]["message"]


async def test_names_that_are_words_elsewhere_are_names(made: Caller) -> None:
    for hub in ("failover", "providers", "resources", "clusters"):
        path = f"{NAMESPACE}/eventhubs/{hub}"
        assert (await made("PUT", path, {"properties": {"partitionCount": 2}})).status == 200
        assert (await made("PUT", f"{path}/consumergroups/schemagroups", {})).status == 200
        assert (await made("DELETE", path)).status == 200


async def test_children_have_the_location_of_their_namespace(call: Caller) -> None:
    assert (await call("PUT", NAMESPACE, {"location": "West Europe"})).status == 201
    body = {"properties": {"partitionCount": 2}}
    assert (await call("PUT", HUB, body)).json["location"] == "West Europe"
    for tail in ("consumergroups/$Default", "authorizationRules"):
        found = (await call("GET", f"{HUB}/{tail}")).json
        assert {each["location"] for each in found.get("value", [found])} <= {"West Europe"}
    assert (await call("PUT", NAMESPACE, {"location": "westeurope"})).status == 200
    moved = await call("PUT", NAMESPACE, {"location": "eastus"})
    assert (moved.status, moved.code) == (409, "Conflict")
    assert (await call("GET", NAMESPACE)).json["location"] == "West Europe"


async def test_provider_is_registered(made: Caller) -> None:
    path = "/subscriptions/s/providers/Microsoft.EventHub"
    assert (await made("GET", path)).json["registrationState"] == "Registered"
    assert (await made("POST", f"{path}/register")).json["registrationState"] == "Registered"
    listed = (await made("GET", "/subscriptions/s/providers")).json["value"]
    assert [each["namespace"] for each in listed] == ["Microsoft.EventHub"]
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


async def test_admin_tokens_are_issued_and_revoked(made: Caller) -> None:
    body = {"role": "Reader", "name": "prometheus", "lifetimeSeconds": 3600}
    answer = await made("POST", f"{OWN}/adminTokens", body)
    assert answer.status == 201
    issued = answer.json
    assert (issued["role"], issued["name"], issued["token"]) == (
        "Reader",
        "prometheus",
        f"token-{issued['id']}",
    )
    assert (await made("PUT", f"{OWN}/revokedAdminTokens/{issued['id']}")).status == 200
    listed = await made("GET", f"{OWN}/revokedAdminTokens")
    assert listed.json["value"] == [{"id": issued["id"]}]
    refused = await made("POST", f"{OWN}/adminTokens", body, token="operator-token")
    assert (refused.status, refused.code) == (403, "AuthorizationFailed")
