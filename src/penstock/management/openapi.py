"""The OpenAPI document, built from the routes and the types of their handlers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

import penstock
from penstock.management.resources import ErrorBody
from penstock.management.router import API_VERSION, OWN, Route

_DESCRIPTION = (
    "Namespaces, event hubs, consumer groups, authorization rules and keys in the shapes of Azure "
    "Resource Manager, provider Microsoft.EventHub; Penstock's own below /providers/Penstock."
)
_REFUSALS = {
    400: "Malformed, out of range or not allowed",
    401: "No valid token",
    403: "The role does not suffice, or a quota is reached",
    404: "It does not exist",
    408: "The body did not arrive in time",
    409: "It exists already, or is in use",
    413: "The body is too large",
    429: "Too many requests: see Retry-After",
    503: "The disk does not accept it now",
}
_VERSION_PARAMETER = {
    "name": "api-version",
    "in": "query",
    "required": True,
    "schema": {"type": "string", "pattern": API_VERSION.pattern, "examples": ["2024-01-01"]},
}
_REFS = "#/components/schemas/{name}"


def build_document(routes: Iterable[Route]) -> dict[str, Any]:
    """The document as JSON values. Every status is listed by itself, not as `default`:
    `tests/system/test_management_openapi.py` compares each response with it."""
    routes = list(routes)
    kinds = [ErrorBody, *(kind for route in routes for kind in route.types.values())]
    schemas, components = msgspec.json.schema_components(kinds, ref_template=_REFS)
    by_kind = dict(zip(map(repr, kinds), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(
            route, by_kind, components
        )
    bearer = {"type": "http", "scheme": "bearer", "description": "An admin token"}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Penstock management API",
            "version": penstock.__version__,
            "description": _DESCRIPTION,
        },
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": {"HTTPBearer": bearer}},
    }


def _operation(route: Route, schemas: dict[str, Any], components: dict[str, Any]) -> dict[str, Any]:
    parameters = [
        {
            "name": word[1:-1],
            "in": "path",
            "required": True,
            "schema": {"type": "string", "maxLength": 256},
        }
        for word in route.words
        if word.startswith("{")
    ]
    if not route.path.startswith(OWN):
        parameters.append(_VERSION_PARAMETER)
    if "query" in route.types:
        fields = components[route.types["query"].__name__]["properties"]
        parameters += [
            {"name": name, "in": "query", "schema": schema} for name, schema in fields.items()
        ]
    kind = route.types["return"]
    success: dict[str, Any] = {"description": "Done"}
    if kind is not type(None):
        success["content"] = _content(kind, schemas)
    operation: dict[str, Any] = {
        "operationId": route.name,
        "security": [{"HTTPBearer": []}],
        "parameters": parameters,
        "responses": {
            **{str(status): success for status in route.statuses},
            **{
                str(status): {"description": text, "content": _content(ErrorBody, schemas)}
                for status, text in _REFUSALS.items()
            },
        },
    }
    if route.handler.__doc__:
        operation["description"] = route.handler.__doc__
    if "body" in route.types:
        kind = route.types["body"]
        operation["requestBody"] = {
            "required": type(None) not in getattr(kind, "__args__", ()),
            "content": _content(kind, schemas),
        }
    return operation


def _content(kind: Any, schemas: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schemas[repr(kind)]}}
