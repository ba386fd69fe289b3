"""Routes of the management API: path templates, and requests decoded for their handlers.

A handler is a method of an operation group, or a function whose first parameter is the request; it
may be a coroutine function. Its annotations are the only declaration of a route's types: `body`,
`query` and names of the path are decoded as annotated (a handler takes those that it declares), and
the OpenAPI document is built from them and from the return type. A list is returned as a page.
"""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar
from urllib.parse import unquote_to_bytes

import msgspec

from penstock.management.errors import RequestError
from penstock.management.resources import Page
from penstock.model import limits, names
from penstock.model.errors import ArgumentError

OWN = "/providers/Penstock"  # the prefix of Penstock's own routes, which need no api-version
# Dated versions from the first one of Microsoft.EventHub on (protocol.md 7.3).
API_VERSION = re.compile(
    r"^(2014-(09|1[0-2])|20(1[5-9]|[2-9][0-9])-(0[1-9]|1[0-2]))-(0[1-9]|[12][0-9]|3[01])"
    r"(-preview|-privatepreview)?$"
)

H = TypeVar("H", bound=Callable[..., Any])


class ServiceEndpoints(msgspec.Struct, frozen=True, kw_only=True):
    """Addresses of the service, as `serve` prints them (docs/reference/configuration.md)."""

    servicebus: str  # sb://localhost:5671/
    https: str  # https://localhost:8443
    tenant_id: str


class Route(msgspec.Struct, frozen=True):
    method: str
    path: str  # /subscriptions/{subscription}: literals in any letter case
    handler: Callable[..., Any]
    group: str | None  # the attribute of `Operations` whose method the handler is
    name: str  # the operation's id in the OpenAPI document
    statuses: tuple[int, ...]  # of success; the first one unless the handler sets another
    types: dict[str, Any]  # of the handler's parameters and of `return`
    words: list[str]  # of the path, in lower case; a name is in braces

    def matches(self, segments: list[str]) -> bool:
        return len(segments) == len(self.words) and all(
            word.startswith("{") or word == segment.lower()
            for word, segment in zip(self.words, segments, strict=True)
        )


class RouteTable(list[Route]):
    """The routes of one module. `group` is the attribute of `Operations` that has its handlers."""

    def __init__(self, group: str | None = None) -> None:
        super().__init__()
        self._group = group

    def add(
        self, method: str, path: str, *, name: str | None = None, statuses: tuple[int, ...] = (200,)
    ) -> Callable[[H], H]:
        """Decorator of a handler. A handler of several routes needs a `name` for each."""

        def register(handler: H) -> H:
            types = typing.get_type_hints(handler)
            types.pop("request", None)
            if typing.get_origin(types["return"]) in (list, Sequence):
                types["return"] = Page[typing.get_args(types["return"])[0]]  # type: ignore[misc]
            identifier, words = name or handler.__name__, path.lower().split("/")[1:]
            self.append(
                Route(method, path, handler, self._group, identifier, statuses, types, words)
            )
            return handler

        return register


def find_route(
    routes: Iterable[Route], method: str, segments: list[str]
) -> tuple[Route, dict[str, str]]:
    """The route of a request, and the names in its path. Resource Manager compares the words of a
    path in any letter case; names are passed on as the client wrote them. Raises RequestError."""
    methods = {route.method: route for route in routes if route.matches(segments)}
    route = methods.get(method)
    if route is not None:
        return route, {
            word[1:-1]: segment
            for word, segment in zip(route.words, segments, strict=True)
            if word.startswith("{")
        }
    path = names.quote_text("/" + "/".join(segments), most=300)
    text = f"{method} {path} is not supported; docs/reference/management.md lists what is."
    if methods:
        raise RequestError(405, "MethodNotAllowed", text, [("allow", ", ".join(methods))])
    raise RequestError(404, "InvalidResourceType", text)


async def run_route(
    route: Route, target: object, path_names: dict[str, str], body: bytes, query: dict[str, str]
) -> Any:
    """The value of the response. `target` is the handler's first argument; `query` has its names in
    lower case. Raises RequestError for content that the handler's types do not accept, and what the
    operation raises."""
    types = route.types
    arguments = {
        name: decode(value, types[name], f"path.{name}")
        for name, value in path_names.items()
        if name in types
    }
    if "body" in types:
        arguments["body"] = decode(parse_json(body), types["body"], "body")
    if "query" in types:
        fields = [field.encode_name for field in msgspec.structs.fields(types["query"])]
        values = {name: query[name.lower()] for name in fields if name.lower() in query}
        arguments["query"] = decode(values, types["query"], "query", strict=False)
    value = route.handler(target, **arguments)
    if inspect.isawaitable(value):
        value = await value
    return Page(value) if isinstance(value, list) else value


def decode(value: object, kind: Any, where: str, *, strict: bool = True) -> Any:
    """`value` as `kind`. Raises RequestError; its text begins with the position in `where`."""
    try:
        return msgspec.convert(value, kind, strict=strict)
    except msgspec.ValidationError as error:
        reason, _, position = str(error).partition(" - at `$")
        text = names.quote_text(f"{where}{position.rstrip('`')}: {reason}.", most=300)
        raise RequestError(400, "InvalidRequestContent", text) from None


def parse_json(body: bytes) -> object:
    """The value of a body of bounded depth; None for an empty one. Raises ArgumentError."""
    if not body.strip():
        return None
    try:
        value = msgspec.json.decode(body)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ArgumentError(
            f"The body is not JSON: {names.quote_text(reason, most=200)}."
        ) from None
    level = [value]
    for _ in range(limits.MANAGEMENT_BODY_DEPTH_MAX):
        children: list[object] = []
        for item in level:
            if isinstance(item, dict):
                children += item.values()
            elif isinstance(item, list):
                children += item
        if not children:
            return value
        level = children
    raise ArgumentError(
        f"The body is nested more than {limits.MANAGEMENT_BODY_DEPTH_MAX} levels deep."
    )


def split_path(raw_path: bytes) -> list[str]:
    """The segments of a path. An escaped slash within a name does not divide it. Empty segments are
    dropped, as Resource Manager does: `az` writes `Microsoft.EventHub//namespaces` and appends to
    an endpoint with a trailing slash. Raises ArgumentError."""
    if len(raw_path) > limits.HTTP_PATH_BYTES_MAX:
        raise ArgumentError(
            f"The path has {len(raw_path)} bytes: at most {limits.HTTP_PATH_BYTES_MAX} are allowed."
        )
    try:
        return [unquote_to_bytes(part).decode() for part in raw_path.split(b"/") if part]
    except UnicodeDecodeError:
        raise ArgumentError("The path is not escaped UTF-8.") from None
