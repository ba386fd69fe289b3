"""Pages without a service: `PageTest` calls the function of a route with data that a test gives."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qsl

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from penstock.management.permissions import AdminRole
from penstock.management.resources import (
    ConsumerGroupResource,
    EventHubResource,
    NamespaceResource,
)
from penstock.model.clock import ManualClock
from penstock.portal.application import PageRouter
from penstock.portal.page_request import PageRequest, Portal
from penstock.portal.pages import ROUTES
from penstock.portal.service_client import ServiceHealth
from penstock.portal.sessions import PortalSession
from penstock.portal.settings import PortalSettings

NAMESPACE = "contoso"


_TIME = "2026-11-17T14:00:00.000Z"


def namespace(name: str = NAMESPACE, units: int | str = 4) -> NamespaceResource:
    properties = {
        "isAutoInflateEnabled": False,
        "maximumThroughputUnits": 0,
        "createdAt": _TIME,
        "updatedAt": _TIME,
        "serviceBusEndpoint": "",
        "metricId": "",
        "throughputUnits": units,
        "throughputUnitsNeeded": 1,
    }
    made = {"name": name, "tags": {}, "sku": {"name": "Standard"}, "properties": properties}
    return msgspec.convert(made, NamespaceResource)


def hub(name: str, partitions: int = 2, **properties: Any) -> EventHubResource:
    """`properties` are those of the management API, in camel case."""
    known = {
        "messageRetentionInDays": 1,
        "partitionCount": partitions,
        "status": "Active",
        "createdAt": _TIME,
        "updatedAt": _TIME,
        "partitionIds": [str(index) for index in range(partitions)],
        "retentionDescription": {"retentionTimeInHours": 24},
    }
    return msgspec.convert({"name": name, "properties": known | properties}, EventHubResource)


def group(name: str, metadata: str = "") -> ConsumerGroupResource:
    properties = {"createdAt": _TIME, "updatedAt": _TIME, "userMetadata": metadata}
    return msgspec.convert({"name": name, "properties": properties}, ConsumerGroupResource)


class FakeBackend:
    """Answers of the management client by the name of its method. A function gets the arguments of
    the call; an exception is raised; a method without an answer returns an empty list."""

    def __init__(self, answers: Mapping[str, Any]) -> None:
        self.answers = {"namespaces": [namespace()], **answers}

    async def read(self, method: Any, *args: Any, **options: Any) -> Any:
        answer = self.answers.get(method.__name__, [])
        if isinstance(answer, Exception):
            raise answer
        return answer(*args, **options) if callable(answer) else answer

    async def find(self, name: str, method: Any, *args: Any) -> Any:
        found = await self.read(method, *args)
        return next((each for each in found if each.name.casefold() == name.casefold()), None)

    async def history(self, *args: Any) -> dict[str, Any]:
        none = {"at_ms": [], "step_ms": 10_000, "values": {}}
        return cast("dict[str, Any]", self.answers.get("history", none))

    async def health(self) -> ServiceHealth:
        return cast("ServiceHealth", self.answers.get("health", ServiceHealth("ready", {})))

    async def act(self, session: PortalSession, work: Any) -> Any:
        return work(self.answers["client"])

    def close(self) -> None:
        pass


class PageTest:
    """A signed-in user with a role, and a service with the answers."""

    def __init__(
        self,
        folder: Path,
        answers: Mapping[str, Any],
        *,
        role: AdminRole = AdminRole.ADMIN,
        hubs: tuple[str, ...] = (),
        **settings: Any,
    ) -> None:
        self.clock = ManualClock()
        token = folder / "portal.token"
        token.write_text("token")
        made = PortalSettings(
            admin_url="http://127.0.0.1:9", token_file=str(token), secret="a secret", **settings
        )
        self.portal = Portal(made, self.clock)
        self.portal.backend.close()
        self.portal.backend = cast("Any", FakeBackend(answers))
        self.session = PortalSession(user="anna", role=role, hubs=hubs, began_ms=0, seen_ms=0)

    def get(self, address: str, **headers: str) -> str:
        """The page at the address; its template is rendered."""
        return bytes(self.respond(address, **headers).body).decode()

    def respond(self, address: str, **headers: str) -> Response:
        path, _, query = address.partition("?")
        route, words = PageRouter(ROUTES).find("GET", path) or (None, {})
        assert route is not None, path
        scope = {
            "type": "http",
            "method": "GET",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [(k.replace("_", "-").encode(), v.encode()) for k, v in headers.items()],
            "server": ("localhost", 5380),
        }
        visit = PageRequest(
            portal=self.portal,
            request=Request(scope),
            session=self.session,
            route=route,
            words=words,
            query=dict(parse_qsl(query)),
            namespace=NAMESPACE,
        )
        return cast("Response", asyncio.run(cast("Any", route.handler(visit))))
