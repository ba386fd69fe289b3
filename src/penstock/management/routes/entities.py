"""Routes of namespaces, event hubs, consumer groups, authorization rules and keys.

Responses have the shape of api-version 2024-01-01 (protocol.md 7.3).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Annotated, Any, TypeVar
from urllib.parse import quote

import msgspec
from msgspec import UNSET, Meta

from penstock.management import resources as arm
from penstock.management.operations import Operations
from penstock.management.operations.base import ManagementContext
from penstock.management.operations.hubs import to_days
from penstock.management.operations.namespaces import (
    DEFAULT_LOCATION,
    ResourceScope,
    capacity_of,
    scope_of,
    sku_of,
)
from penstock.management.operations.rules import rights_texts
from penstock.management.permissions import Actor
from penstock.management.resources import format_time
from penstock.management.router import OWN, RouteTable, ServiceEndpoints
from penstock.model.entities import (
    AuthorizationRule,
    ConsumerGroup,
    Hub,
    Namespace,
    Right,
)
from penstock.model.errors import ArgumentError, NotFound

PROVIDER = "Microsoft.EventHub"
SUBSCRIPTION = "/subscriptions/{subscription}"
RESOURCE_GROUP = SUBSCRIPTION + "/resourceGroups/{resource_group}"
NAMESPACES = f"{RESOURCE_GROUP}/providers/{PROVIDER}/namespaces"
NAMESPACE = NAMESPACES + "/{namespace}"
HUB = NAMESPACE + "/eventhubs/{hub}"
_GROUP = HUB + "/consumergroups/{group}"
_NAMESPACE_RULE = NAMESPACE + "/authorizationRules/{rule}"
_HUB_RULE = HUB + "/authorizationRules/{rule}"
_PAGE_MAX = 1_000_000

T = TypeVar("T")
ROUTES = RouteTable()


class ApiRequest:
    """One request: the operations of its actor, and the names in its path."""

    def __init__(
        self,
        context: ManagementContext,
        actor: Actor,
        endpoints: ServiceEndpoints,
        path_names: dict[str, str],
    ) -> None:
        self.operations = Operations(context, actor)
        self.endpoints = endpoints
        self.names = path_names
        self.status: int | None = None  # set by a handler that has several; else the route's first

    @property
    def scope(self) -> ResourceScope:
        return ResourceScope(self.names["subscription"], self.names.get("resource_group", ""))

    @cached_property
    def namespace(self) -> Namespace:
        """The namespace in the path. It exists, in the resource group of the path. Raises
        NotFound."""
        return self.operations.namespaces.show(self.names["namespace"], self.scope)

    @property
    def namespace_id(self) -> str:
        return _namespace_id(self.namespace, self.scope)

    @property
    def location(self) -> str:
        return _location(self.namespace)

    def path(self, *parts: str) -> tuple[Any, ...]:
        """The name of the namespace, which exists, and these other names in the path; None for a
        hub in the path of a namespace's rule."""
        return self.namespace.name, *(self.names.get(part) for part in parts)


class PageQuery(msgspec.Struct, frozen=True):
    skip: Annotated[int, Meta(ge=0, le=_PAGE_MAX)] = msgspec.field(name="$skip", default=0)
    top: Annotated[int, Meta(ge=1, le=_PAGE_MAX)] | None = msgspec.field(name="$top", default=None)

    def select(self, values: list[T]) -> list[T]:
        end = None if self.top is None else self.skip + self.top
        return values[self.skip : end]


def _delete(request: ApiRequest, delete: Callable[..., None], *arguments: object) -> None:
    """Delete the entity. Resource Manager answers 204, not 404, when there is none."""
    try:
        delete(*arguments)
    except NotFound:
        request.status = 204


# --- namespaces -----------------------------------------------------------------------------------


@ROUTES.add("GET", f"{SUBSCRIPTION}/providers/{PROVIDER}/namespaces")
@ROUTES.add("GET", NAMESPACES, name="list_namespaces_of_resource_group")
def list_namespaces(request: ApiRequest, query: PageQuery) -> list[arm.NamespaceResource]:
    scope = request.scope
    namespaces = request.operations.namespaces.list(scope)
    return query.select([_namespace_resource(request, entity, scope) for entity in namespaces])


@ROUTES.add("GET", f"{OWN}/namespaces")
def list_all_namespaces(request: ApiRequest) -> list[arm.NamespaceResource]:
    """The namespaces of every subscription and resource group."""
    namespaces = request.operations.namespaces.list()
    return [_namespace_resource(request, entity, None) for entity in namespaces]


@ROUTES.add("GET", NAMESPACE)
def get_namespace(request: ApiRequest) -> arm.NamespaceResource:
    return _namespace_resource(request, request.namespace, request.scope)


@ROUTES.add("PUT", NAMESPACE, statuses=(200, 201))
def put_namespace(request: ApiRequest, body: arm.NamespaceBody) -> arm.NamespaceResource:
    """The operation is complete when this answers: `provisioningState` is Succeeded."""
    scope = request.scope
    namespace, is_new = request.operations.namespaces.put(request.names["namespace"], body, scope)
    request.status = 201 if is_new else 200
    return _namespace_resource(request, namespace, scope)


@ROUTES.add("PATCH", NAMESPACE)
def update_namespace(request: ApiRequest, body: arm.NamespaceBody) -> arm.NamespaceResource:
    request.path()  # raises NotFound
    return put_namespace(request, body)


@ROUTES.add("DELETE", NAMESPACE, statuses=(200, 204))
def delete_namespace(request: ApiRequest) -> None:
    namespaces = request.operations.namespaces
    _delete(request, namespaces.delete, request.names["namespace"], request.scope)


# --- event hubs -----------------------------------------------------------------------------------


@ROUTES.add("GET", f"{NAMESPACE}/eventhubs")
def list_event_hubs(request: ApiRequest, query: PageQuery) -> list[arm.EventHubResource]:
    hubs = request.operations.hubs.list(*request.path())
    return query.select([_hub_resource(hub, request) for hub in hubs])


@ROUTES.add("GET", HUB)
def get_event_hub(request: ApiRequest) -> arm.EventHubResource:
    return _hub_resource(request.operations.hubs.show(*request.path("hub")), request)


@ROUTES.add("PUT", HUB)
def put_event_hub(request: ApiRequest, body: arm.HubBody) -> arm.EventHubResource:
    namespace, hub = request.path("hub")
    return _hub_resource(request.operations.hubs.put(namespace, hub, body), request)


@ROUTES.add("DELETE", HUB, statuses=(200, 204))
def delete_event_hub(request: ApiRequest) -> None:
    _delete(request, request.operations.hubs.delete, *request.path("hub"))


# --- consumer groups ------------------------------------------------------------------------------


@ROUTES.add("GET", f"{HUB}/consumergroups")
def list_consumer_groups(request: ApiRequest, query: PageQuery) -> list[arm.ConsumerGroupResource]:
    groups = request.operations.groups.list(*request.path("hub"))
    return query.select([_group_resource(group, request) for group in groups])


@ROUTES.add("GET", _GROUP)
def get_consumer_group(request: ApiRequest) -> arm.ConsumerGroupResource:
    return _group_resource(request.operations.groups.show(*request.path("hub", "group")), request)


@ROUTES.add("PUT", _GROUP)
def put_consumer_group(
    request: ApiRequest, body: arm.GroupBody | None
) -> arm.ConsumerGroupResource:
    properties = None if body is None else body.properties
    metadata = None if properties is None else properties.user_metadata
    path = request.path("hub", "group")
    return _group_resource(request.operations.groups.put(*path, user_metadata=metadata), request)


@ROUTES.add("DELETE", _GROUP, statuses=(200, 204))
def delete_consumer_group(request: ApiRequest) -> None:
    _delete(request, request.operations.groups.delete, *request.path("hub", "group"))


# --- authorization rules of a namespace and of a hub ----------------------------------------------


@ROUTES.add("GET", f"{NAMESPACE}/authorizationRules", name="list_namespace_rules")
@ROUTES.add("GET", f"{HUB}/authorizationRules", name="list_hub_rules")
def list_rules(request: ApiRequest) -> list[arm.AuthorizationRuleResource]:
    rules = request.operations.rules.list(*request.path("hub"))
    return [_rule_resource(rule, request) for rule in rules]


@ROUTES.add("GET", _NAMESPACE_RULE, name="get_namespace_rule")
@ROUTES.add("GET", _HUB_RULE, name="get_hub_rule")
def get_rule(request: ApiRequest) -> arm.AuthorizationRuleResource:
    return _rule_resource(request.operations.rules.show(*request.path("hub", "rule")), request)


@ROUTES.add("PUT", _NAMESPACE_RULE, name="put_namespace_rule")
@ROUTES.add("PUT", _HUB_RULE, name="put_hub_rule")
def put_rule(request: ApiRequest, body: arm.RuleBody) -> arm.AuthorizationRuleResource:
    namespace, hub, name = request.path("hub", "rule")
    rights = _parse_rights(body.properties.rights)
    return _rule_resource(request.operations.rules.put(namespace, hub, name, rights), request)


@ROUTES.add("DELETE", _NAMESPACE_RULE, name="delete_namespace_rule", statuses=(200, 204))
@ROUTES.add("DELETE", _HUB_RULE, name="delete_hub_rule", statuses=(200, 204))
def delete_rule(request: ApiRequest) -> None:
    _delete(request, request.operations.rules.delete, *request.path("hub", "rule"))


@ROUTES.add("POST", f"{_NAMESPACE_RULE}/listKeys", name="list_namespace_keys")
@ROUTES.add("POST", f"{_HUB_RULE}/listKeys", name="list_hub_keys")
def list_keys(request: ApiRequest) -> arm.AccessKeys:
    rule = request.operations.rules.keys(*request.path("hub", "rule"))
    return _access_keys(rule, request.endpoints.servicebus)


@ROUTES.add("POST", f"{_NAMESPACE_RULE}/regenerateKeys", name="regenerate_namespace_keys")
@ROUTES.add("POST", f"{_HUB_RULE}/regenerateKeys", name="regenerate_hub_keys")
def regenerate_keys(request: ApiRequest, body: arm.RegenerateBody) -> arm.AccessKeys:
    namespace, hub, name = request.path("hub", "rule")
    rule = request.operations.rules.regenerate(namespace, hub, name, body)
    return _access_keys(rule, request.endpoints.servicebus)


def _parse_rights(words: list[str]) -> Right:
    rights = Right.NONE
    for word in words:
        if word.upper() not in ("LISTEN", "SEND", "MANAGE"):
            raise ArgumentError("rights: only Listen, Send and Manage are allowed.")
        rights |= Right[word.upper()]
    return rights


# --- entities as resources ------------------------------------------------------------------------


def _namespace_resource(
    request: ApiRequest, namespace: Namespace, scope: ResourceScope | None
) -> arm.NamespaceResource:
    """`scope` is the one of the request's path, for a namespace that has none of its own."""
    sku = sku_of(namespace)
    maximum, units = namespace.maximum_throughput_units, namespace.throughput_units
    stored = namespace.metadata.get("properties", {})
    return arm.NamespaceResource(
        name=namespace.name,
        id=_namespace_id(namespace, scope),
        type=f"{PROVIDER}/Namespaces",
        location=_location(namespace),
        tags=namespace.metadata.get("tags", {}),
        sku=arm.Sku(name=sku, tier=sku, capacity=capacity_of(namespace)),
        system_data=_system_data(namespace),
        properties=arm.NamespaceProperties(
            is_auto_inflate_enabled=maximum is not None,
            maximum_throughput_units=maximum or 0,
            created_at=format_time(namespace.created_ms),
            updated_at=format_time(namespace.updated_ms),
            service_bus_endpoint=f"{request.endpoints.https}/",
            metric_id=f"{scope_of(namespace, scope).subscription}:{namespace.name.lower()}",
            limits=namespace.limits.value,
            throughput_units="unlimited" if units is None else units,
            throughput_units_needed=request.operations.namespaces.needed_units(namespace),
            kafka_enabled=stored.get("kafkaEnabled", False),
            cluster_arm_id=stored.get("clusterArmId", UNSET),
            alternate_name=stored.get("alternateName", UNSET),
        ),
    )


def _namespace_id(namespace: Namespace, scope: ResourceScope | None) -> str:
    own = scope_of(namespace, scope)
    return (
        f"/subscriptions/{own.subscription}/resourceGroups/{own.resource_group}"
        f"/providers/{PROVIDER}/namespaces/{namespace.name}"
    )


def _location(namespace: Namespace) -> str:
    return str(namespace.metadata.get("location", DEFAULT_LOCATION))


def _hub_resource(hub: Hub, request: ApiRequest) -> arm.EventHubResource:
    properties = arm.HubProperties(
        message_retention_in_days=to_days(hub.retention_hours),
        partition_count=hub.partition_count,
        status=hub.status.value,
        created_at=format_time(hub.created_ms),
        updated_at=format_time(hub.updated_ms),
        partition_ids=[str(index) for index in range(hub.partition_count)],
        retention_description=arm.RetentionDescription(
            cleanup_policy="Delete", retention_time_in_hours=hub.retention_hours
        ),
        user_metadata=hub.user_metadata,
        capture_description=hub.metadata.get("capture"),
    )
    resource_id = _hub_id(hub.name, request)
    return arm.EventHubResource(
        **_child_fields(hub, request, resource_id, "EventHubs"), properties=properties
    )


def _hub_id(name: str, request: ApiRequest) -> str:
    return f"{request.namespace_id}/eventhubs/{quote(name, safe='$')}"


def _group_resource(group: ConsumerGroup, request: ApiRequest) -> arm.ConsumerGroupResource:
    properties = arm.GroupProperties(
        created_at=format_time(group.created_ms),
        updated_at=format_time(group.updated_ms),
        user_metadata=group.user_metadata,
    )
    resource_id = f"{_hub_id(group.hub, request)}/consumergroups/{quote(group.name, safe='$')}"
    return arm.ConsumerGroupResource(
        **_child_fields(group, request, resource_id, "EventHubs/ConsumerGroups"),
        properties=properties,
    )


def _rule_resource(rule: AuthorizationRule, request: ApiRequest) -> arm.AuthorizationRuleResource:
    parent_id, kind = request.namespace_id, "AuthorizationRules"
    if rule.hub is not None:
        parent_id, kind = _hub_id(rule.hub, request), "EventHubs/AuthorizationRules"
    resource_id = f"{parent_id}/authorizationRules/{rule.name}"
    return arm.AuthorizationRuleResource(
        **_child_fields(rule, request, resource_id, kind),
        properties=arm.RuleProperties(rights=rights_texts(rule.rights)),
    )


def _child_fields(
    entity: Hub | ConsumerGroup | AuthorizationRule,
    request: ApiRequest,
    resource_id: str,
    kind: str,
) -> dict[str, Any]:
    """The fields that every resource below a namespace has."""
    return {
        "name": entity.name,
        "id": resource_id,
        "type": f"{PROVIDER}/Namespaces/{kind}",
        "location": request.location,
        "system_data": _system_data(entity),
    }


def _access_keys(rule: AuthorizationRule, servicebus: str) -> arm.AccessKeys:
    """The only response that contains keys."""
    primary, secondary = rule.primary_key.reveal(), rule.secondary_key.reveal()
    start = f"Endpoint={servicebus};SharedAccessKeyName={rule.name};SharedAccessKey="
    end = "" if rule.hub is None else f";EntityPath={rule.hub}"
    return arm.AccessKeys(
        key_name=rule.name,
        primary_key=primary,
        secondary_key=secondary,
        primary_connection_string=f"{start}{primary}{end}",
        secondary_connection_string=f"{start}{secondary}{end}",
    )


def _system_data(entity: Namespace | Hub | ConsumerGroup | AuthorizationRule) -> arm.SystemData:
    return arm.SystemData(
        created_at=format_time(entity.created_ms), last_modified_at=format_time(entity.updated_ms)
    )
