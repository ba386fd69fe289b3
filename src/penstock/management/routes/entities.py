"""Routes of namespaces, event hubs, consumer groups, authorization rules and keys."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Response
from fastapi.responses import JSONResponse

from penstock.management import bodies, shapes
from penstock.management.operations import ResourceScope
from penstock.management.paths import decode_name as unescaped
from penstock.management.routes.parameters import (
    VERSIONED,
    ApiRequest,
    Asked,
    GroupName,
    HubName,
    InNamespace,
    InPlace,
    NamespaceName,
    NamespaceScope,
    Responses,
    RuleName,
    Skip,
    Subscription,
    Top,
)
from penstock.management.shapes import PROVIDER, Shape
from penstock.model.entities import AuthorizationRule, Namespace, Secret
from penstock.model.errors import NotFound

SUBSCRIPTION = "/subscriptions/{subscription}"
RESOURCE_GROUP = SUBSCRIPTION + "/resourceGroups/{resource_group}"
NAMESPACES = f"{RESOURCE_GROUP}/providers/{PROVIDER}/namespaces"
NAMESPACE = NAMESPACES + "/{namespace}"
HUBS = f"{NAMESPACE}/eventhubs"
HUB = HUBS + "/{hub}"
GROUPS = f"{HUB}/consumergroups"
GROUP = GROUPS + "/{group}"

router = APIRouter(dependencies=VERSIONED)

_RESOURCE: Responses = {200: {"model": bodies.ArmResource}}
_LIST: Responses = {200: {"model": bodies.ArmResourceList}}
_KEYS: Responses = {200: {"model": bodies.AccessKeys}}
_GONE: Responses = {204: {"description": "It was not there"}}


def _namespace_resource(
    asked: ApiRequest, namespace: Namespace, place: ResourceScope | None
) -> Shape:
    needed = asked.operations.namespaces.needed_units(namespace)
    return shapes.namespace_shape(
        namespace, place, needed_units=needed, https=asked.endpoints.https
    )


def _delete_response(found: bool) -> Response:
    """Deleting what is not there is no error in Resource Manager."""
    return Response(status_code=200 if found else 204)


# --- namespaces -----------------------------------------------------------------------------------


@router.get(f"{SUBSCRIPTION}/providers/{PROVIDER}/namespaces", responses=_LIST)
async def list_namespaces(
    asked: Asked, subscription: Subscription, skip: Skip = 0, top: Top = None
) -> Shape:
    return _list_namespaces(asked, ResourceScope(unescaped(subscription), ""), skip, top)


@router.get(NAMESPACES, responses=_LIST)
async def list_namespaces_of_resource_group(
    asked: Asked, place: InPlace, skip: Skip = 0, top: Top = None
) -> Shape:
    return _list_namespaces(asked, place, skip, top)


def _list_namespaces(asked: ApiRequest, place: ResourceScope, skip: int, top: int | None) -> Shape:
    found = asked.operations.namespaces.list(place)
    return shapes.to_page(
        [_namespace_resource(asked, each, place) for each in found], skip=skip, top=top
    )


@router.get(NAMESPACE, responses=_RESOURCE)
async def get_namespace(parent: InNamespace) -> Shape:
    return _namespace_resource(parent.asked, parent.entity, parent.place)


@router.put(NAMESPACE, responses={**_RESOURCE, 201: {"model": bodies.ArmResource}})
async def put_namespace(
    asked: Asked, place: InPlace, namespace: NamespaceName, body: bodies.NamespaceResource
) -> JSONResponse:
    made, is_new = asked.operations.namespaces.put(namespace, body.request(), place)
    # Done when it answers: `provisioningState` says Succeeded, and no client polls.
    return JSONResponse(_namespace_resource(asked, made, place), status_code=201 if is_new else 200)


@router.patch(NAMESPACE, responses=_RESOURCE)
async def update_namespace(parent: InNamespace, body: bodies.NamespaceResource) -> Shape:
    changed, _ = parent.operations.namespaces.put(parent.name, body.request(), parent.place)
    return _namespace_resource(parent.asked, changed, parent.place)


@router.delete(NAMESPACE, responses=_GONE, response_class=Response)
async def delete_namespace(asked: Asked, place: InPlace, namespace: NamespaceName) -> Response:
    try:
        asked.operations.namespaces.delete(namespace, place)
    except NotFound:
        return _delete_response(False)
    return _delete_response(True)


# --- event hubs -----------------------------------------------------------------------------------


@router.get(HUBS, responses=_LIST)
async def list_event_hubs(parent: InNamespace, skip: Skip = 0, top: Top = None) -> Shape:
    found = parent.operations.hubs.list(parent.name)
    return shapes.to_page([shapes.hub_shape(hub, parent.ref) for hub in found], skip=skip, top=top)


@router.get(HUB, responses=_RESOURCE)
async def get_event_hub(parent: InNamespace, hub: HubName) -> Shape:
    return shapes.hub_shape(parent.operations.hubs.show(parent.name, hub), parent.ref)


@router.put(HUB, responses=_RESOURCE)
async def put_event_hub(parent: InNamespace, hub: HubName, body: bodies.EventHubResource) -> Shape:
    made = parent.operations.hubs.put(parent.name, hub, body.request())
    return shapes.hub_shape(made, parent.ref)


@router.delete(HUB, responses=_GONE, response_class=Response)
async def delete_event_hub(parent: InNamespace, hub: HubName) -> Response:
    try:
        parent.operations.hubs.delete(parent.name, hub)
    except NotFound:
        return _delete_response(False)
    return _delete_response(True)


# --- consumer groups ------------------------------------------------------------------------------


@router.get(GROUPS, responses=_LIST)
async def list_consumer_groups(
    parent: InNamespace, hub: HubName, skip: Skip = 0, top: Top = None
) -> Shape:
    found = parent.operations.groups.list(parent.name, hub)
    return shapes.to_page(
        [shapes.group_shape(each, parent.ref) for each in found], skip=skip, top=top
    )


@router.get(GROUP, responses=_RESOURCE)
async def get_consumer_group(parent: InNamespace, hub: HubName, group: GroupName) -> Shape:
    return shapes.group_shape(parent.operations.groups.show(parent.name, hub, group), parent.ref)


@router.put(GROUP, responses=_RESOURCE)
async def put_consumer_group(
    parent: InNamespace,
    hub: HubName,
    group: GroupName,
    body: bodies.ConsumerGroupResource | None = None,
) -> Shape:
    metadata = None if body is None else body.user_metadata
    made = parent.operations.groups.put(parent.name, hub, group, user_metadata=metadata)
    return shapes.group_shape(made, parent.ref)


@router.delete(GROUP, responses=_GONE, response_class=Response)
async def delete_consumer_group(parent: InNamespace, hub: HubName, group: GroupName) -> Response:
    try:
        parent.operations.groups.delete(parent.name, hub, group)
    except NotFound:
        return _delete_response(False)
    return _delete_response(True)


# --- authorization rules, of a namespace and of a hub ---------------------------------------------


async def _no_hub() -> None:
    return None


class _RuleParent:
    """Where a rule stands: a namespace, or one of its hubs."""

    def __init__(self, parent: NamespaceScope, hub: str | None) -> None:
        self.parent, self.hub = parent, hub
        self.rules = parent.operations.rules

    def shape(self, rule: AuthorizationRule) -> Shape:
        return shapes.rule_shape(rule, self.parent.ref)

    def keys(self, rule: AuthorizationRule) -> Shape:
        return shapes.keys_shape(rule, self.parent.asked.endpoints.servicebus)


async def _namespace_level(parent: InNamespace) -> _RuleParent:
    return _RuleParent(parent, None)


async def _hub_level(parent: InNamespace, hub: HubName) -> _RuleParent:
    return _RuleParent(parent, hub)


OfNamespace = Annotated[_RuleParent, Depends(_namespace_level)]
OfHub = Annotated[_RuleParent, Depends(_hub_level)]


def _list_rules(level: _RuleParent) -> Shape:
    found = level.rules.list(level.parent.name, level.hub)
    return shapes.to_page([level.shape(rule) for rule in found])


def _get_rule(level: _RuleParent, rule: str) -> Shape:
    return level.shape(level.rules.show(level.parent.name, level.hub, rule))


def _put_rule(level: _RuleParent, rule: str, body: bodies.AuthorizationRuleResource) -> Shape:
    return level.shape(level.rules.put(level.parent.name, level.hub, rule, body.rights()))


def _delete_rule(level: _RuleParent, rule: str) -> Response:
    try:
        level.rules.delete(level.parent.name, level.hub, rule)
    except NotFound:
        return _delete_response(False)
    return _delete_response(True)


def _list_keys(level: _RuleParent, rule: str) -> Shape:
    return level.keys(level.rules.keys(level.parent.name, level.hub, rule))


def _regenerate(level: _RuleParent, rule: str, body: bodies.RegenerateBody) -> Shape:
    key = None if body.key is None else Secret(body.key)
    made = level.rules.regenerate(level.parent.name, level.hub, rule, body.key_type, key)
    return level.keys(made)


@router.get(f"{NAMESPACE}/authorizationRules", responses=_LIST)
async def list_namespace_rules(level: OfNamespace) -> Shape:
    return _list_rules(level)


@router.get(f"{NAMESPACE}/authorizationRules/{{rule}}", responses=_RESOURCE)
async def get_namespace_rule(level: OfNamespace, rule: RuleName) -> Shape:
    return _get_rule(level, rule)


@router.put(f"{NAMESPACE}/authorizationRules/{{rule}}", responses=_RESOURCE)
async def put_namespace_rule(
    level: OfNamespace, rule: RuleName, body: bodies.AuthorizationRuleResource
) -> Shape:
    return _put_rule(level, rule, body)


@router.delete(f"{NAMESPACE}/authorizationRules/{{rule}}", responses=_GONE, response_class=Response)
async def delete_namespace_rule(level: OfNamespace, rule: RuleName) -> Response:
    return _delete_rule(level, rule)


@router.post(f"{NAMESPACE}/authorizationRules/{{rule}}/listKeys", responses=_KEYS)
async def list_namespace_keys(level: OfNamespace, rule: RuleName) -> Shape:
    return _list_keys(level, rule)


@router.post(f"{NAMESPACE}/authorizationRules/{{rule}}/regenerateKeys", responses=_KEYS)
async def regenerate_namespace_keys(
    level: OfNamespace, rule: RuleName, body: bodies.RegenerateBody
) -> Shape:
    return _regenerate(level, rule, body)


@router.get(f"{HUB}/authorizationRules", responses=_LIST)
async def list_hub_rules(level: OfHub) -> Shape:
    return _list_rules(level)


@router.get(f"{HUB}/authorizationRules/{{rule}}", responses=_RESOURCE)
async def get_hub_rule(level: OfHub, rule: RuleName) -> Shape:
    return _get_rule(level, rule)


@router.put(f"{HUB}/authorizationRules/{{rule}}", responses=_RESOURCE)
async def put_hub_rule(
    level: OfHub, rule: RuleName, body: bodies.AuthorizationRuleResource
) -> Shape:
    return _put_rule(level, rule, body)


@router.delete(f"{HUB}/authorizationRules/{{rule}}", responses=_GONE, response_class=Response)
async def delete_hub_rule(level: OfHub, rule: RuleName) -> Response:
    return _delete_rule(level, rule)


@router.post(f"{HUB}/authorizationRules/{{rule}}/listKeys", responses=_KEYS)
async def list_hub_keys(level: OfHub, rule: RuleName) -> Shape:
    return _list_keys(level, rule)


@router.post(f"{HUB}/authorizationRules/{{rule}}/regenerateKeys", responses=_KEYS)
async def regenerate_hub_keys(level: OfHub, rule: RuleName, body: bodies.RegenerateBody) -> Shape:
    return _regenerate(level, rule, body)
