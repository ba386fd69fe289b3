"""A whole control plane in memory: catalog, log, broker, operations by any role, the API."""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from typing import Any

import pytest
from tests.support.usage_ledger import MemoryUsageLedger

from penstock.broker.broker import Broker
from penstock.catalog.api import Catalog
from penstock.log.memory import MemoryLogStore
from penstock.management import resources as arm
from penstock.management.app import ManagementApp
from penstock.management.jobs import JobRegistry
from penstock.management.operations import Operations
from penstock.management.operations.base import (
    ConnectionView,
    LinkView,
    ManagementContext,
)
from penstock.management.permissions import Actor, AdminRole, Verified
from penstock.management.router import ServiceEndpoints
from penstock.model.checkpoints import Checkpoint, Ownership
from penstock.model.clock import ManualClock
from penstock.model.entities import Secret
from penstock.model.errors import AuthFailed
from penstock.model.events import EventBatch, Receipt
from penstock.model.metrics import MetricRequest, MetricSeries
from penstock.service.lag_report import LagReport

NAMESPACE = "contoso"
HUB = "orders"


def namespace_body(
    *,
    sku: str | None = None,
    capacity: int | None = None,
    units: int | None = None,
    unlimited: bool = False,
    auto_inflate: bool | None = None,
    maximum_units: int | None = None,
    **fields: Any,
) -> arm.NamespaceBody:
    properties = arm.NamespaceBodyProperties(
        throughput_units="unlimited" if unlimited else units,
        is_auto_inflate_enabled=auto_inflate,
        maximum_throughput_units=maximum_units,
    )
    return arm.NamespaceBody(
        sku=arm.Sku(name=sku, capacity=capacity), properties=properties, **fields
    )


def hub_body(
    *,
    retention_days: int | None = None,
    retention_hours: int | None = None,
    cleanup_policy: str | None = None,
    capture: dict[str, Any] | None = None,
    **fields: Any,
) -> arm.HubBody:
    properties = arm.HubBodyProperties(
        message_retention_in_days=retention_days,
        retention_description=arm.RetentionDescription(
            cleanup_policy=cleanup_policy, retention_time_in_hours=retention_hours
        ),
        capture_description=capture,
        **fields,
    )
    return arm.HubBody(properties=properties)


TOKENS = {
    "admin-token": ("Owner",),
    "operator-token": ("Contributor",),
    "viewer-token": ("Reader",),
    "nobody-token": ("Janitor",),
    "capture-token": ("Capture",),
    "portal-token": ("Portal",),
}
_CLAIMS = base64.urlsafe_b64encode(b'{"exp":1700003600}').decode()
JWT = f"header.{_CLAIMS}.signature"  # expires an hour after the manual clock's start
TOKENS[JWT] = ("Reader",)
ENDPOINTS = ServiceEndpoints(
    servicebus="sb://localhost:5671/", https="https://localhost:8443", tenant_id="a-tenant"
)


class SomeConnections:
    """Two connections that can be killed."""

    def __init__(self) -> None:
        self.living = ["first", "second"]

    def list(self) -> list[ConnectionView]:
        return [
            ConnectionView(
                id=name,
                peer="127.0.0.1:1",
                namespace=NAMESPACE,
                container_id="c",
                user_agent="an-sdk/1.0",
                opened_ms=1_700_000_000_000,
                age_seconds=1.5,
                links=1,
                hub_links=[LinkView(hub=HUB, role="send")],
                events_in=2,
                events_out=3,
                bytes_in=4,
                bytes_out=5,
            )
            for name in self.living
        ]

    def kill(self, connection_id: str) -> bool:
        if connection_id not in self.living:
            return False
        self.living.remove(connection_id)
        return True


class AtOnce(Executor):
    """Runs what it is given where it is given: nothing to wait for, nothing to shut down."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - whoever waits for it hears it
            done.set_exception(error)
        return done


class Kept:
    """Leases and checkpoints by (hub id, group) and partition."""

    def __init__(self) -> None:
        self.owned: dict[tuple[str, str], list[Ownership]] = {}
        self.saved: dict[tuple[str, str], dict[str, Checkpoint]] = {}

    def ownerships(self, hub_id: str, group: str) -> list[Ownership]:
        return self.owned.get((hub_id, group.lower()), [])

    def checkpoints(self, hub_id: str, group: str) -> list[Checkpoint]:
        return list(self.saved.get((hub_id, group.lower()), {}).values())

    async def save(self, hub_id: str, group: str, checkpoints: Sequence[Checkpoint]) -> None:
        known = self.saved.setdefault((hub_id, group.lower()), {})
        known |= {each.partition_id: each for each in checkpoints}


class SomeTokens:
    """Remembers which admin tokens were issued and revoked."""

    def __init__(self) -> None:
        self.issued: list[arm.AdminToken] = []
        self.revoked_ids: list[str] = []

    def issue(self, *, subject: str, role: str, lifetime_s: int) -> arm.AdminToken:
        token_id = f"{len(self.issued):032x}"
        expires_at = arm.format_time(lifetime_s * 1000)
        self.issued.append(
            arm.AdminToken(
                id=token_id,
                token=f"token-{token_id}",
                name=subject,
                role=role,
                expires_at=expires_at,
            )
        )
        return self.issued[-1]

    def revoke(self, token_id: str) -> None:
        self.revoked_ids.append(token_id)

    def revoked(self) -> list[str]:
        return self.revoked_ids


class NoHistory:
    """Answers with what it was asked for."""

    def __init__(self) -> None:
        self.asked: MetricRequest | None = None

    async def read(self, request: MetricRequest) -> MetricSeries:
        self.asked = request
        values: dict[str, list[int | None]] = {name: [1, None] for name in request.names}
        groups: dict[str, list[int | None]] = {"readers": [7, 8], "gone": [9, 9]}
        return MetricSeries(
            step_ms=10_000,
            at_ms=[0, 10_000],
            values=values,
            lag_by_group={} if request.hub is None else groups,
        )


class SomePortal:
    def sign_in_link(self, user: str, role: AdminRole, *, now_ms: int) -> str:
        return f"link of {user}, {role.name}"

    def token_holder(self, token: str) -> tuple[str, tuple[str, ...]] | None:
        return ("vera", ("Reader",)) if token == "known" else None


class Plane:
    """Everything the tests act on; `as_(role)` gives the operations of somebody."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.catalog = Catalog()
        self.logs = MemoryLogStore(lambda work: work())
        self.broker = Broker(
            self.catalog, self.logs, self.clock, producer_ids=itertools.count(1).__next__
        )
        self.connections = SomeConnections()
        self.ledger = MemoryUsageLedger()
        self.needed = {"units": 1}
        self.kept = Kept()
        reads = AtOnce()
        self.history = NoHistory()
        self.tokens = SomeTokens()
        numbers = itertools.count(1)
        self.administration = ManagementContext(
            catalog=self.catalog,
            broker=self.broker,
            clock=self.clock,
            connections=self.connections,
            ledger=self.ledger,
            measure_lag=LagReport(self.broker, self.catalog, self.kept, self.clock, reads).measure,
            checkpoints=self.kept,
            read_metrics=self.history.read,
            jobs=JobRegistry(),
            reads=reads,
            new_key=lambda: Secret(f"key-{next(numbers)}"),
            new_hub_id=lambda: f"hub-{next(numbers)}",
            units_needed=lambda _namespace: self.needed["units"],
            portal=SomePortal(),
            tokens=self.tokens,
        )

    def as_(self, role: AdminRole, name: str | None = None) -> Operations:
        return Operations(self.administration, Actor(name or role.name.lower(), role))

    @property
    def admin(self) -> Operations:
        return self.as_(AdminRole.ADMIN)

    def publish(self, *bodies: bytes, partition: int = 0) -> None:
        """One batch."""
        outcomes: list[object] = []
        sections = b"".join(b"\x00\x53\x75\xa0" + bytes([len(body)]) + body for body in bodies)
        self.broker.hub(NAMESPACE, HUB).publish(
            EventBatch(sections=sections, count=len(bodies)),
            size_bytes=len(sections),
            partition=partition,
            done=outcomes.append,
        )
        assert [type(each) for each in outcomes] == [Receipt]

    @property
    def hub_id(self) -> str:
        hub = self.catalog.hub(NAMESPACE, HUB)
        assert hub is not None
        return hub.id

    def audit(self) -> list[tuple[str, str, str]]:
        return [
            (entry.who, entry.what, entry.detail)
            for entry in reversed(self.catalog.audit(newest=100))
        ]


@pytest.fixture
def plane() -> Plane:
    return Plane()


@pytest.fixture
def full(plane: Plane) -> Plane:
    """One namespace with a hub, a group, and a policy on each level."""
    from penstock.model.entities import Right

    admin = plane.admin
    admin.namespaces.put(NAMESPACE, namespace_body(capacity=2))
    admin.hubs.put(NAMESPACE, HUB, hub_body(partition_count=4))
    admin.groups.put(NAMESPACE, HUB, "readers")
    admin.rules.put(NAMESPACE, None, "sender", Right.SEND)
    admin.rules.put(NAMESPACE, HUB, "listener", Right.LISTEN)
    return plane


class Answered:
    """A response of the API."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        return str(self.json["error"]["code"])


class Caller:
    """Requests to the API without a socket."""

    def __init__(self, plane: Plane) -> None:
        self.plane = plane
        self.tokens = list(TOKENS)
        ids = itertools.count(1)
        self.app = ManagementApp(
            plane.administration,
            verify=self._verify,
            endpoints=lambda: ENDPOINTS,
            new_id=lambda: f"request-{next(ids)}",
        )

    def _verify(self, token: str) -> Verified:
        if token not in TOKENS:
            raise AuthFailed("The token was not signed by this service.")
        return token.partition("-")[0], TOKENS[token]

    async def __call__(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        token: str | None = "admin-token",
        query: str = "api-version=2024-01-01",
        raw: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> Answered:
        content = raw if raw is not None else b"" if body is None else json.dumps(body).encode()
        pairs = {"host": "localhost", "content-type": "application/json", **(headers or {})}
        if token is not None:
            pairs["authorization"] = f"Bearer {token}"
        return await asgi(self.app, method, path, content, pairs, query)


async def asgi(
    app: Callable[..., Any],
    method: str,
    path: str,
    content: bytes,
    headers: dict[str, str],
    query: str,
) -> Answered:
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in headers.items()],
        "scheme": "https",
        "server": ("localhost", 8443),
        "client": ("127.0.0.1", 1),
        "http_version": "1.1",
        "root_path": "",
    }
    given = [{"type": "http.request", "body": content, "more_body": False}]
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return given.pop() if given else {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await app(scope, receive, send)
    start = sent[0]
    said = {name.decode(): value.decode() for name, value in start["headers"]}
    return Answered(start["status"], said, b"".join(each.get("body", b"") for each in sent[1:]))


@pytest.fixture
def call(full: Plane) -> Caller:
    return Caller(full)
