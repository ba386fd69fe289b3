"""Entities as Azure Resource Manager writes them, in the shape of api-version 2024-01-01 (7.3)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import msgspec

from penstock.management.operations.hubs import to_days
from penstock.management.operations.namespaces import (
    DEFAULT_LOCATION,
    ResourceScope,
    capacity_of,
    scope_of,
    sku_of,
)
from penstock.management.operations.rules import rights_texts
from penstock.model.entities import AuthorizationRule, ConsumerGroup, Hub, Namespace, Secret

PROVIDER = "Microsoft.EventHub"
Shape = dict[str, Any]

# Told when nobody said otherwise.
_PROPERTIES: Shape = {
    "zoneRedundant": False,
    "kafkaEnabled": False,
    "disableLocalAuth": False,
    "publicNetworkAccess": "Enabled",
    "minimumTlsVersion": "1.2",
    "privateEndpointConnections": [],
}


class ServiceEndpoints(msgspec.Struct, frozen=True, kw_only=True):
    """Where the service is reached: what `serve` prints (docs/configuration.md)."""

    servicebus: str  # sb://localhost:5671/
    https: str  # https://localhost:8443
    tenant_id: str


class NamespaceRef(msgspec.Struct, frozen=True):
    """What the resources below a namespace take from it."""

    id: str
    location: str


def namespace_ref(namespace: Namespace, asked: ResourceScope | None) -> NamespaceRef:
    return NamespaceRef(namespace_id(namespace, asked), _location(namespace))


def namespace_id(namespace: Namespace, asked: ResourceScope | None) -> str:
    place = scope_of(namespace, asked)
    return (
        f"/subscriptions/{place.subscription}/resourceGroups/{place.resource_group}"
        f"/providers/{PROVIDER}/namespaces/{namespace.name}"
    )


def namespace_shape(
    namespace: Namespace, asked: ResourceScope | None, *, needed_units: int, https: str
) -> Shape:
    sku = sku_of(namespace)
    resource_id = namespace_id(namespace, asked)
    maximum = namespace.maximum_throughput_units
    units = namespace.throughput_units
    properties = {
        **_PROPERTIES,
        **_stored_properties(namespace),
        "isAutoInflateEnabled": maximum is not None,
        "maximumThroughputUnits": maximum or 0,
        "provisioningState": "Succeeded",
        "status": "Active",
        **_times(namespace),
        "serviceBusEndpoint": f"{https}/",
        "metricId": f"{scope_of(namespace, asked).subscription}:{namespace.name.lower()}",
        # Penstock's own: the limits that hold for it, the enforced units or `unlimited`, and what
        # the current hour needed.
        "limits": namespace.limits.value,
        "throughputUnits": "unlimited" if units is None else units,
        "throughputUnitsNeeded": needed_units,
    }
    return {
        "id": resource_id,
        "name": namespace.name,
        "type": f"{PROVIDER}/Namespaces",
        "location": _location(namespace),
        "tags": namespace.metadata.get("tags", {}),
        "sku": {"name": sku, "tier": sku, "capacity": capacity_of(namespace)},
        "properties": properties,
        "systemData": _system(namespace),
    }


def _location(namespace: Namespace) -> str:
    return str(namespace.metadata.get("location", DEFAULT_LOCATION))


def _stored_properties(namespace: Namespace) -> Shape:
    """Version 0.1 stored `zoneRedundant: true`, which nothing kept and a PUT now refuses."""
    stored: Shape = namespace.metadata.get("properties", {})
    return {name: value for name, value in stored.items() if name != "zoneRedundant"}


def hub_shape(hub: Hub, parent: NamespaceRef) -> Shape:
    properties: Shape = {
        "messageRetentionInDays": to_days(hub.retention_hours),
        "partitionCount": hub.partition_count,
        "status": hub.status.value,
        **_times(hub),
        "partitionIds": [str(index) for index in range(hub.partition_count)],
        "retentionDescription": {
            "cleanupPolicy": "Delete",
            "retentionTimeInHours": hub.retention_hours,
        },
    }
    if hub.user_metadata:
        properties["userMetadata"] = hub.user_metadata
    if (description := hub.capture_description) is not None:
        properties["captureDescription"] = description
    return _child(parent, hub_id(hub.name, parent.id), hub, "Namespaces/EventHubs", properties)


def hub_id(name: str, parent_id: str) -> str:
    return f"{parent_id}/eventhubs/{_segment(name)}"


def group_shape(group: ConsumerGroup, parent: NamespaceRef) -> Shape:
    properties: Shape = {**_times(group)}
    if group.user_metadata:
        properties["userMetadata"] = group.user_metadata
    resource_id = f"{hub_id(group.hub, parent.id)}/consumergroups/{_segment(group.name)}"
    return _child(parent, resource_id, group, "Namespaces/EventHubs/ConsumerGroups", properties)


def rule_shape(rule: AuthorizationRule, parent: NamespaceRef) -> Shape:
    above, kind = parent.id, "Namespaces/AuthorizationRules"
    if rule.hub is not None:
        above, kind = hub_id(rule.hub, parent.id), "Namespaces/EventHubs/AuthorizationRules"
    resource_id = f"{above}/authorizationRules/{rule.name}"
    return _child(parent, resource_id, rule, kind, {"rights": rights_texts(rule.rights)})


def keys_shape(rule: AuthorizationRule, servicebus: str) -> Shape:
    """The one answer with keys in it."""
    return {
        "primaryConnectionString": connection_string(rule, rule.primary_key, servicebus),
        "secondaryConnectionString": connection_string(rule, rule.secondary_key, servicebus),
        "primaryKey": rule.primary_key.reveal(),
        "secondaryKey": rule.secondary_key.reveal(),
        "keyName": rule.name,
    }


def connection_string(rule: AuthorizationRule, key: Secret, servicebus: str) -> str:
    text = f"Endpoint={servicebus};SharedAccessKeyName={rule.name};SharedAccessKey={key.reveal()}"
    return text if rule.hub is None else f"{text};EntityPath={rule.hub}"


def to_page(shapes: list[Shape], *, skip: int = 0, top: int | None = None) -> Shape:
    end = None if top is None else skip + top
    return {"value": shapes[skip:end], "nextLink": None}


def error_shape(code: str, message: str) -> Shape:
    return {"error": {"code": code, "message": message}}


def format_time(now_ms: int) -> str:
    """ISO 8601 in UTC, milliseconds and all; the last moment that it can write for any later."""
    seconds, milliseconds = divmod(min(now_ms, _TIME_MS_MAX), 1000)
    moment = datetime.fromtimestamp(seconds, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{milliseconds:03d}Z"


_TIME_MS_MAX = 253_402_300_799_999  # the end of the year 9999

_Entity = Namespace | Hub | ConsumerGroup | AuthorizationRule


def _child(
    parent: NamespaceRef, resource_id: str, entity: _Entity, kind: str, properties: Shape
) -> Shape:
    return {
        "id": resource_id,
        "name": entity.name,
        "type": f"{PROVIDER}/{kind}",
        "location": parent.location,
        "properties": properties,
        "systemData": _system(entity),
    }


def _times(entity: _Entity) -> Shape:
    return {
        "createdAt": format_time(entity.created_ms),
        "updatedAt": format_time(entity.updated_ms),
    }


def _system(entity: _Entity) -> Shape:
    return {
        "createdAt": format_time(entity.created_ms),
        "lastModifiedAt": format_time(entity.updated_ms),
    }


def _segment(name: str) -> str:
    return quote(name, safe="$")
