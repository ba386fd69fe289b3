"""Routes around the entities: subscriptions, resource groups, the provider, empty lists."""

from __future__ import annotations

from typing import Any

from penstock.management.operations.namespaces import (
    DEFAULT_LOCATION,
    DEFAULT_SUBSCRIPTION,
    ResourceScope,
    is_at,
    scope_of,
)
from penstock.management.permissions import Action
from penstock.management.resources import NameAvailability, NameRequest, ResourceGroupBody
from penstock.management.router import RouteTable
from penstock.management.routes.entities import (
    HUB,
    NAMESPACE,
    PROVIDER,
    RESOURCE_GROUP,
    SUBSCRIPTION,
    ApiRequest,
)
from penstock.model import names
from penstock.model.errors import NotAllowed

_RESOURCE_TYPES = (
    "namespaces",
    "namespaces/authorizationRules",
    "namespaces/eventhubs",
    "namespaces/eventhubs/authorizationRules",
    "namespaces/eventhubs/consumergroups",
)
_PROVIDER = f"{SUBSCRIPTION}/providers/{PROVIDER}"
_API_VERSIONS = ("2024-01-01", "2021-11-01", "2017-04-01", "2015-08-01", "2014-09-01")

ROUTES = RouteTable()


# --- subscriptions and resource groups: any is accepted, those in use are listed ------------------


def _subscription(request: ApiRequest, subscription: str) -> dict[str, Any]:
    return {
        "id": f"/subscriptions/{subscription}",
        "subscriptionId": subscription,
        "tenantId": request.endpoints.tenant_id,
        "displayName": "Penstock",
        "state": "Enabled",
        "subscriptionPolicies": {
            "locationPlacementId": "Internal_2014-09-01",
            "quotaId": "Internal_2014-09-01",
            "spendingLimit": "Off",
        },
        "authorizationSource": "RoleBased",
        "managedByTenants": [],
    }


@ROUTES.add("GET", "/subscriptions")
def list_subscriptions(request: ApiRequest) -> list[dict[str, Any]]:
    used = [scope_of(entity).subscription for entity in request.operations.namespaces.list()]
    return [_subscription(request, name) for name in sorted({DEFAULT_SUBSCRIPTION, *used})]


@ROUTES.add("GET", SUBSCRIPTION)
def get_subscription(request: ApiRequest) -> dict[str, Any]:
    request.operations.namespaces.list()  # checks the right to read
    return _subscription(request, request.names["subscription"])


@ROUTES.add("GET", f"{SUBSCRIPTION}/locations")
def list_locations(request: ApiRequest) -> list[dict[str, Any]]:
    location = {
        "id": f"/subscriptions/{request.names['subscription']}/locations/{DEFAULT_LOCATION}",
        "name": DEFAULT_LOCATION,
        "displayName": "This machine",
    }
    return [location]


@ROUTES.add("GET", "/tenants")
def list_tenants(request: ApiRequest) -> list[dict[str, Any]]:
    tenant = request.endpoints.tenant_id
    return [{"id": f"/tenants/{tenant}", "tenantId": tenant, "displayName": "Penstock"}]


def _resource_group(scope: ResourceScope) -> dict[str, Any]:
    return {
        "id": f"/subscriptions/{scope.subscription}/resourceGroups/{scope.resource_group}",
        "name": scope.resource_group,
        "type": "Microsoft.Resources/resourceGroups",
        "location": DEFAULT_LOCATION,
        "tags": {},
        "properties": {"provisioningState": "Succeeded"},
    }


@ROUTES.add("GET", f"{SUBSCRIPTION}/resourceGroups")
def list_resource_groups(request: ApiRequest) -> list[dict[str, Any]]:
    requested = request.scope
    namespaces = request.operations.namespaces.list(requested)
    scopes = [scope_of(entity, requested) for entity in namespaces if is_at(entity, requested)]
    groups = {names.fold_name(scope.resource_group): scope for scope in scopes}
    return [_resource_group(scope) for _, scope in sorted(groups.items())]


@ROUTES.add("GET", RESOURCE_GROUP)
def get_resource_group(request: ApiRequest) -> dict[str, Any]:
    """Every resource group exists: it is a part of a namespace's path, and nothing more."""
    request.operations.namespaces.list()  # checks the right to read
    return _resource_group(request.scope)


@ROUTES.add("PUT", RESOURCE_GROUP)
@ROUTES.add("PATCH", RESOURCE_GROUP, name="update_resource_group")
def put_resource_group(request: ApiRequest, body: ResourceGroupBody | None) -> dict[str, Any]:
    if body is not None and body.tags:
        raise NotAllowed(
            "tags of a resource group are not supported: a resource group is only a name "
            "here. Tag the namespaces in it."
        )
    return get_resource_group(request)


@ROUTES.add("HEAD", RESOURCE_GROUP, statuses=(204,))
def head_resource_group(request: ApiRequest) -> None:
    request.operations.namespaces.list()  # checks the right to read


# --- the provider ---------------------------------------------------------------------------------


@ROUTES.add("GET", _PROVIDER)
@ROUTES.add("POST", f"{_PROVIDER}/register", name="register_provider")
def get_provider(request: ApiRequest) -> dict[str, Any]:
    return {
        "id": f"/subscriptions/{request.names['subscription']}/providers/{PROVIDER}",
        "namespace": PROVIDER,
        "registrationPolicy": "RegistrationRequired",
        "registrationState": "Registered",
        "resourceTypes": [
            {
                "resourceType": kind,
                "locations": [DEFAULT_LOCATION],
                "apiVersions": list(_API_VERSIONS),
                "capabilities": "None",
            }
            for kind in _RESOURCE_TYPES
        ],
    }


@ROUTES.add("GET", f"{SUBSCRIPTION}/providers")
def list_providers(request: ApiRequest) -> list[dict[str, Any]]:
    return [get_provider(request)]


@ROUTES.add("GET", f"/providers/{PROVIDER}/operations")
def list_operations(request: ApiRequest) -> list[dict[str, Any]]:
    return [
        {
            "name": f"{PROVIDER}/{action}",
            "isDataAction": False,
            "display": {"provider": "Penstock", "operation": action.name},
        }
        for action in Action
    ]


@ROUTES.add("POST", f"{_PROVIDER}/checkNameAvailability")
def check_name_availability(request: ApiRequest, body: NameRequest) -> NameAvailability:
    return request.operations.namespaces.check_name(body.name)


# --- resources that Azure has and Penstock does not: lists of them are empty ----------------------


@ROUTES.add("GET", f"{NAMESPACE}/networkRuleSets/default")
def get_network_rule_set(request: ApiRequest) -> dict[str, Any]:
    return {
        "id": f"{request.namespace_id}/networkRuleSets/default",
        "name": "default",
        "type": f"{PROVIDER}/Namespaces/NetworkRuleSets",
        "location": request.location,
        "properties": {
            "publicNetworkAccess": "Enabled",
            "defaultAction": "Allow",
            "virtualNetworkRules": [],
            "ipRules": [],
            "trustedServiceAccessEnabled": False,
        },
    }


@ROUTES.add("GET", f"{NAMESPACE}/networkRuleSets")
def list_network_rule_sets(request: ApiRequest) -> list[dict[str, Any]]:
    return [get_network_rule_set(request)]


@ROUTES.add("GET", f"{NAMESPACE}/privateEndpointConnections", name="list_private_endpoints")
@ROUTES.add("GET", f"{NAMESPACE}/privateLinkResources", name="list_private_links")
@ROUTES.add("GET", f"{NAMESPACE}/disasterRecoveryConfigs", name="list_disaster_recovery_configs")
@ROUTES.add("GET", f"{NAMESPACE}/schemagroups", name="list_schema_groups")
@ROUTES.add("GET", f"{NAMESPACE}/applicationGroups", name="list_application_groups")
@ROUTES.add(
    "GET", f"{NAMESPACE}/networkSecurityPerimeterConfigurations", name="list_network_perimeters"
)
def list_none_of_namespace(request: ApiRequest) -> list[dict[str, Any]]:
    request.path()  # raises NotFound
    return []


@ROUTES.add("GET", f"{HUB}/fabricShortcuts")
def list_fabric_shortcuts(request: ApiRequest) -> list[dict[str, Any]]:
    request.operations.hubs.show(*request.path("hub"))
    return []


@ROUTES.add("GET", f"{_PROVIDER}/clusters")
@ROUTES.add("GET", f"{_PROVIDER}/availableClusterRegions", name="list_cluster_regions")
@ROUTES.add(
    "GET",
    f"{RESOURCE_GROUP}/providers/{PROVIDER}/clusters",
    name="list_clusters_of_resource_group",
)
def list_clusters(request: ApiRequest) -> list[dict[str, Any]]:
    return []
