"""What routes share: who asks, names out of paths, the errors that any may answer."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, Path, Query, Request
from fastapi.security import HTTPBearer

from penstock.management import paths
from penstock.management.bodies import ErrorBody
from penstock.management.door import API_VERSION, ASKED
from penstock.management.operations import Operations, ResourceScope
from penstock.management.shapes import ServiceEndpoints, namespace_ref

Responses = dict[int | str, dict[str, Any]]

_REFUSALS = {
    400: "Malformed, out of range or not allowed",
    401: "No valid token",
    403: "The role does not suffice, or a quota is reached",
    404: "It does not exist",
    408: "The body did not come in time",
    409: "It exists already, or is in use",
    413: "The body is too large",
    429: "Too many requests: see Retry-After",
    503: "The disk does not take it now",
}
# Each by itself and not as `default`: a test holds every answer against them.
ERRORS: Responses = {
    status: {"model": ErrorBody, "description": text} for status, text in _REFUSALS.items()
}

_bearer = HTTPBearer(
    auto_error=False, description="An admin token: `admin_token` in `runtime.json`"
)


class ApiRequest:
    """One request's operations, and where the service is."""

    def __init__(self, request: Request) -> None:
        administration, endpoints, actor = request.scope[ASKED]
        self.operations = Operations(administration, actor)
        self.endpoints: ServiceEndpoints = endpoints


async def _api_request(request: Request, _: Annotated[object, Depends(_bearer)]) -> ApiRequest:
    return ApiRequest(request)


async def _version(
    api_version: Annotated[
        str, Query(alias="api-version", examples=["2024-01-01"], pattern=API_VERSION)
    ],
) -> None:
    """Judged by the door already; here for the document."""


Asked = Annotated[ApiRequest, Depends(_api_request)]
VERSIONED = [Depends(_version)]

# For the document: what the routes see is escaped, up to twelve characters for one, and bounded by
# the length of the path. Every name is judged by its own rules besides.
_Name = Annotated[str, Path(json_schema_extra={"maxLength": 256})]
Subscription = Annotated[str, Path(alias="subscription", json_schema_extra={"maxLength": 256})]
ResourceGroup = _Name


async def _resource_scope(subscription: _Name, resource_group: _Name) -> ResourceScope:
    return ResourceScope(paths.decode_name(subscription), paths.decode_name(resource_group))


InPlace = Annotated[ResourceScope, Depends(_resource_scope)]


class NamespaceScope:
    """The namespace that a path leads through: it exists, and at this place."""

    def __init__(self, asked: ApiRequest, namespace: str, place: ResourceScope) -> None:
        self.asked = asked
        self.operations = asked.operations
        self.entity = asked.operations.namespaces.show(namespace, place)
        self.name = self.entity.name
        self.place = place
        self.ref = namespace_ref(self.entity, place)


async def _parent(asked: Asked, place: InPlace, namespace: _Name) -> NamespaceScope:
    return NamespaceScope(asked, paths.decode_name(namespace), place)


async def _hub_parameter(hub: _Name) -> str:
    return paths.decode_name(hub)


async def _group_parameter(group: _Name) -> str:
    return paths.decode_name(group)


async def _rule_parameter(rule: _Name) -> str:
    return paths.decode_name(rule)


async def _namespace_parameter(namespace: _Name) -> str:
    return paths.decode_name(namespace)


async def _publisher(publisher: _Name) -> str:
    return paths.decode_name(publisher)


async def _connection(connection: _Name) -> str:
    return paths.decode_name(connection)


async def _job(job: _Name) -> str:
    return paths.decode_name(job)


async def _token_id(token_id: _Name) -> str:
    return paths.decode_name(token_id)


InNamespace = Annotated[NamespaceScope, Depends(_parent)]
NamespaceName = Annotated[str, Depends(_namespace_parameter)]
HubName = Annotated[str, Depends(_hub_parameter)]
GroupName = Annotated[str, Depends(_group_parameter)]
RuleName = Annotated[str, Depends(_rule_parameter)]
PublisherName = Annotated[str, Depends(_publisher)]
ConnectionId = Annotated[str, Depends(_connection)]
JobName = Annotated[str, Depends(_job)]
TokenId = Annotated[str, Depends(_token_id)]

_PAGE_MAX = 1_000_000
Skip = Annotated[int, Query(alias="$skip", ge=0, le=_PAGE_MAX)]
Top = Annotated[int | None, Query(alias="$top", ge=1, le=_PAGE_MAX)]
