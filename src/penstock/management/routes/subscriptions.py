"""Routes around the entities: subscriptions, resource groups, the provider."""

from __future__ import annotations

from fastapi import APIRouter

from penstock.management import bodies, shapes
from penstock.management.operations import ResourceScope
from penstock.management.operations.namespaces import (
    DEFAULT_LOCATION,
    DEFAULT_SUBSCRIPTION,
    is_at,
    scope_of,
)
from penstock.management.paths import decode_name as unescaped
from penstock.management.permissions import Action
from penstock.management.routes.entities import HUB, NAMESPACE, RESOURCE_GROUP, SUBSCRIPTION
from penstock.management.routes.parameters import (
    VERSIONED,
    ApiRequest,
    Asked,
    HubName,
    InNamespace,
    InPlace,
    NamespaceScope,
    ResourceGroup,
    Responses,
    Subscription,
)
from penstock.management.shapes import PROVIDER, Shape
from penstock.model import names

_LIST: Responses = {200: {"model": bodies.ArmResourceList}}
_RESOURCE_TYPES = (
    "namespaces",
    "namespaces/authorizationRules",
    "namespaces/eventhubs",
    "namespaces/eventhubs/authorizationRules",
    "namespaces/eventhubs/consumergroups",
)
_PROVIDER = f"{SUBSCRIPTION}/providers/{PROVIDER}"
_API_VERSIONS = ("2024-01-01", "2021-11-01", "2017-04-01", "2015-08-01", "2014-09-01")

router = APIRouter()


# --- subscriptions and resource groups: any is accepted, those in use are listed ----------------


def _subscription(asked: ApiRequest, subscription: str) -> Shape:
    return {
        "id": f"/subscriptions/{subscription}",
        "subscriptionId": subscription,
        "tenantId": asked.endpoints.tenant_id,
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


@router.get("/subscriptions", responses=_LIST, dependencies=VERSIONED)
async def list_subscriptions(asked: Asked) -> Shape:
    places = [scope_of(each).subscription for each in asked.operations.namespaces.list()]
    known = sorted({DEFAULT_SUBSCRIPTION, *places})
    return shapes.to_page([_subscription(asked, each) for each in known])


@router.get(SUBSCRIPTION, dependencies=VERSIONED)
async def get_subscription(asked: Asked, subscription: Subscription) -> Shape:
    asked.operations.namespaces.list()  # the right to read
    return _subscription(asked, unescaped(subscription))


@router.get(f"{SUBSCRIPTION}/locations", responses=_LIST, dependencies=VERSIONED)
async def list_locations(asked: Asked, subscription: Subscription) -> Shape:
    location = {
        "id": f"/subscriptions/{unescaped(subscription)}/locations/{DEFAULT_LOCATION}",
        "name": DEFAULT_LOCATION,
        "displayName": "This machine",
    }
    return shapes.to_page([location])


@router.get("/tenants", responses=_LIST, dependencies=VERSIONED)
async def list_tenants(asked: Asked) -> Shape:
    tenant = asked.endpoints.tenant_id
    return shapes.to_page(
        [{"id": f"/tenants/{tenant}", "tenantId": tenant, "displayName": "Penstock"}]
    )


def _resource_group(place: ResourceScope) -> Shape:
    return {
        "id": f"/subscriptions/{place.subscription}/resourceGroups/{place.resource_group}",
        "name": place.resource_group,
        "type": "Microsoft.Resources/resourceGroups",
        "location": DEFAULT_LOCATION,
        "tags": {},
        "properties": {"provisioningState": "Succeeded"},
    }


@router.get(f"{SUBSCRIPTION}/resourceGroups", responses=_LIST, dependencies=VERSIONED)
async def list_resource_groups(asked: Asked, subscription: Subscription) -> Shape:
    here = ResourceScope(unescaped(subscription), "")
    found = asked.operations.namespaces.list(here)
    groups = {
        names.fold_name(place.resource_group): place
        for place in (scope_of(each, here) for each in found if is_at(each, here))
    }
    return shapes.to_page([_resource_group(place) for _, place in sorted(groups.items())])


@router.get(RESOURCE_GROUP, dependencies=VERSIONED)
async def get_resource_group(
    asked: Asked, subscription: Subscription, resource_group: ResourceGroup
) -> Shape:
    """Every one exists: a name that namespaces are kept under, and nothing more."""
    asked.operations.namespaces.list()  # the right to read
    return _resource_group(ResourceScope(unescaped(subscription), unescaped(resource_group)))


@router.put(RESOURCE_GROUP, dependencies=VERSIONED)
@router.patch(RESOURCE_GROUP, dependencies=VERSIONED, operation_id="update_resource_group")
async def put_resource_group(
    asked: Asked,
    subscription: Subscription,
    resource_group: ResourceGroup,
    body: bodies.ResourceGroupBody | None = None,
) -> Shape:
    if body is not None:
        body.check()
    return await get_resource_group(asked, subscription, resource_group)


@router.head(RESOURCE_GROUP, status_code=204, dependencies=VERSIONED)
async def head_resource_group(
    asked: Asked, subscription: Subscription, resource_group: ResourceGroup
) -> None:
    asked.operations.namespaces.list()  # the right to read


# --- the provider -------------------------------------------------------------------------------


@router.get(_PROVIDER, dependencies=VERSIONED)
@router.post(
    f"{_PROVIDER}/register",
    dependencies=VERSIONED,
    operation_id="register_provider",
)
async def get_provider(asked: Asked, subscription: Subscription) -> Shape:
    return _provider(subscription)


@router.get(f"{SUBSCRIPTION}/providers", responses=_LIST, dependencies=VERSIONED)
async def list_providers(asked: Asked, subscription: Subscription) -> Shape:
    return shapes.to_page([_provider(subscription)])


def _provider(subscription: str) -> Shape:
    return {
        "id": f"/subscriptions/{unescaped(subscription)}/providers/{PROVIDER}",
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


@router.get(f"/providers/{PROVIDER}/operations", responses=_LIST, dependencies=VERSIONED)
async def list_operations(asked: Asked) -> Shape:
    return shapes.to_page(
        [
            {
                "name": f"{PROVIDER}/{action}",
                "isDataAction": False,
                "display": {"provider": "Penstock", "operation": action.name},
            }
            for action in Action
        ]
    )


@router.post(
    f"{_PROVIDER}/checkNameAvailability",
    dependencies=VERSIONED,
    responses={200: {"model": bodies.NameAvailability}},
)
async def check_name_availability(
    asked: Asked, subscription: Subscription, body: bodies.NameRequest
) -> Shape:
    found = asked.operations.namespaces.why_not(body.name)
    if found is None:
        return {"nameAvailable": True, "reason": "None", "message": ""}
    reason, text = found
    return {"nameAvailable": False, "reason": reason, "message": text}


# --- what a namespace has in Azure and not here: read, and empty ---------------------------------


def _network_rules(parent: NamespaceScope) -> Shape:
    return {
        "id": f"{parent.ref.id}/networkRuleSets/default",
        "name": "default",
        "type": f"{PROVIDER}/Namespaces/NetworkRuleSets",
        "location": parent.ref.location,
        "properties": {
            "publicNetworkAccess": "Enabled",
            "defaultAction": "Allow",
            "virtualNetworkRules": [],
            "ipRules": [],
            "trustedServiceAccessEnabled": False,
        },
    }


@router.get(f"{NAMESPACE}/networkRuleSets/default", dependencies=VERSIONED)
async def get_network_rule_set(parent: InNamespace) -> Shape:
    return _network_rules(parent)


@router.get(f"{NAMESPACE}/networkRuleSets", responses=_LIST, dependencies=VERSIONED)
async def list_network_rule_sets(parent: InNamespace) -> Shape:
    return shapes.to_page([_network_rules(parent)])


@router.get(f"{NAMESPACE}/privateEndpointConnections", responses=_LIST, dependencies=VERSIONED)
@router.get(f"{NAMESPACE}/privateLinkResources", responses=_LIST, dependencies=VERSIONED)
@router.get(f"{NAMESPACE}/disasterRecoveryConfigs", responses=_LIST, dependencies=VERSIONED)
@router.get(f"{NAMESPACE}/schemagroups", responses=_LIST, dependencies=VERSIONED)
@router.get(f"{NAMESPACE}/applicationGroups", responses=_LIST, dependencies=VERSIONED)
@router.get(
    f"{NAMESPACE}/networkSecurityPerimeterConfigurations", responses=_LIST, dependencies=VERSIONED
)
async def list_nothing(parent: InNamespace) -> Shape:
    return shapes.to_page([])


@router.get(f"{HUB}/fabricShortcuts", responses=_LIST, dependencies=VERSIONED)
async def list_fabric_shortcuts(parent: InNamespace, hub: HubName) -> Shape:
    parent.operations.hubs.show(parent.name, hub)
    return shapes.to_page([])


@router.get(f"{_PROVIDER}/clusters", responses=_LIST, dependencies=VERSIONED)
@router.get(f"{_PROVIDER}/availableClusterRegions", responses=_LIST, dependencies=VERSIONED)
async def list_clusters(asked: Asked, subscription: Subscription) -> Shape:
    return shapes.to_page([])


@router.get(
    f"{RESOURCE_GROUP}/providers/{PROVIDER}/clusters", responses=_LIST, dependencies=VERSIONED
)
async def list_clusters_of_resource_group(asked: Asked, place: InPlace) -> Shape:
    return shapes.to_page([])
