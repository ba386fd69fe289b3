"""What the management operations use of this service: connections, keys, endpoints, units; and the
checks of the administration port."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from penstock.broker.broker import Broker
from penstock.gateway.amqp.connection import AmqpConnection
from penstock.gateway.amqp.links import EntityLinkHandler
from penstock.gateway.amqp.server import AmqpServer
from penstock.management.operations.base import ConnectionView, LinkView
from penstock.management.permissions import AdminRole, Verified, role_from_claims
from penstock.management.router import ServiceEndpoints
from penstock.model import names
from penstock.model.clock import Clock
from penstock.model.entities import Right
from penstock.model.errors import AuthFailed, ConnectionForced
from penstock.model.host_names import HostNames
from penstock.service.certificates import machine_names
from penstock.service.config.settings import Settings, is_loopback
from penstock.service.runtime_description import RuntimeDescription

UNCHECKED_PATHS = ("/health", "/ready")  # for load balancers and container health checks
_LINKS_SHOWN = 100  # of one connection
_USER_AGENT_MAX = 256
_ROLES = {Right.SEND: "send", Right.LISTEN: "receive"}


@dataclass(frozen=True)
class AdministrationChecks:
    """Checks every request of the administration port except `/health` and `/ready`: its `Host`
    must be a name of this service, `/metrics` needs a token unless the port is on loopback, and a
    port without TLS answers only this machine."""

    app: ASGIApp
    hosts: HostNames
    namespace_hosts: Callable[[], Iterable[str]]
    verify: Callable[[str], Verified]
    metrics_need_token: bool
    is_for_this_machine: bool  # the port has no TLS

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app: ASGIApp = self.app
        if scope["type"] == "http" and scope["path"] not in UNCHECKED_PATHS:
            app = self._refusal(Headers(scope=scope), scope) or app
        await app(scope, receive, send)

    def _refusal(self, headers: Headers, scope: Scope) -> Response | None:
        peer, own = ((scope.get(side) or ("",))[0] for side in ("client", "server"))
        if self.is_for_this_machine and peer != own and not is_loopback(peer):
            text = "Without TLS only /health and /ready are open to other machines.\n"
            return PlainTextResponse(text, status_code=403)
        if not self._is_own_host(headers.get("host", ""), scope):
            host = names.quote_text(headers.get("host", ""))
            return PlainTextResponse(
                f"Penstock does not answer for the host '{host}': use localhost, a name of this "
                "machine, a host of a namespace, or start the service with --public-host NAME.\n",
                status_code=421,
            )
        if self.metrics_need_token and scope["path"].rstrip("/") == "/metrics":
            return self._metrics_refusal(headers.get("authorization", ""), scope)
        return None

    def _is_own_host(self, host: str, scope: Scope) -> bool:
        server = (scope.get("server") or (None,))[0]
        namespaces = HostNames(self.namespace_hosts())
        return self.hosts.allows(host, server=server) or namespaces.allows(host)

    def _metrics_refusal(self, authorization: str, scope: Scope) -> Response | None:
        scheme, _, token = authorization.partition(" ")
        try:
            if scheme.lower() != "bearer":
                raise AuthFailed("/metrics needs an admin token here.")
            _, roles = self.verify(token.strip())
        except AuthFailed as error:
            text = f"{error} 'penstock token admin --role Reader' makes one that suffices.\n"
            return PlainTextResponse(text, status_code=401, headers={"www-authenticate": "Bearer"})
        if role_from_claims(roles) < AdminRole.VIEWER:
            return PlainTextResponse("/metrics needs the role Reader.\n", status_code=403)
        scope[names.AUTHENTICATE]()
        return None


def own_host_names(settings: Settings) -> tuple[str, ...]:
    """Host names that the administration and portal ports answer to, beside loopback names: the
    machine's names, the bound address, configured hosts and `--public-host`."""
    configured = [host for namespace in settings.namespaces for host in namespace.hosts]
    bound = () if settings.host in ("0.0.0.0", "::") else (settings.host,)  # noqa: S104
    return (*machine_names(), *bound, *configured, *settings.public_hosts)


class GatewayConnections:
    """`management.operations.Connections` of the AMQP server."""

    def __init__(self, server: AmqpServer, clock: Clock) -> None:
        self._server = server
        self._clock = clock

    def list(self) -> list[ConnectionView]:
        now_ms = self._clock.now_ms()
        connections = sorted(
            (connection for connection in self._server.connections if connection.life.is_open),
            key=lambda connection: (connection.opened_ms, connection.id),
        )
        return [_view(connection, now_ms) for connection in connections]

    def kill(self, connection_id: str) -> bool:
        for connection in self._server.connections:
            if connection.id == connection_id:
                connection.fail(
                    ConnectionForced("An operator closed the connection; it may come back.")
                )
                return True
        return False


def _view(connection: AmqpConnection, now_ms: int) -> ConnectionView:
    opened = connection.engine.open
    hub_links = [
        app for app in connection.links.handlers.values() if isinstance(app, EntityLinkHandler)
    ]
    return ConnectionView(
        id=connection.id,
        peer=connection.transport.peer,
        namespace=connection.links.namespace,
        container_id="" if opened is None else names.quote_text(opened.container_id),
        user_agent="" if opened is None else _user_agent(opened.properties or {}),
        opened_ms=connection.opened_ms,
        age_seconds=max(0, now_ms - connection.opened_ms) / 1000,
        links=len(connection.links.handlers),
        hub_links=[_link(app) for app in hub_links[:_LINKS_SHOWN]],
        events_in=connection.links.events_in,
        events_out=connection.links.events_out,
        bytes_in=connection.input.bytes,
        bytes_out=connection.bytes_out,
    )


def _link(app: EntityLinkHandler) -> LinkView:
    address = app.address
    return LinkView(
        hub=address.hub,
        role=_ROLES.get(app.right, "manage"),
        group=address.group,
        partition=address.partition,
        publisher=address.publisher,
    )


def _user_agent(properties: Mapping[str, object]) -> str:
    """The name that the SDK sends in its open frame (protocol.md 1.4), in one text or in parts."""
    known = {str(name).lower(): value for name, value in properties.items()}
    text = known.get("user-agent")
    if not isinstance(text, str) or not text:
        parts = (known.get("product"), known.get("version"))
        text = "/".join(part for part in parts if isinstance(part, str) and part)
    return names.quote_text(text, most=_USER_AGENT_MAX)


def hubs_of_connections(server: AmqpServer) -> Iterator[tuple[str, list[str]]]:
    """The namespace of each connection, and the hubs that it has links to. A connection is examined
    when the caller reaches it; connections opened after the first one are left out."""
    for connection in list(server.connections):
        apps = connection.links.handlers.values()
        hubs = [app.address.hub for app in apps if isinstance(app, EntityLinkHandler)]
        yield connection.links.namespace, hubs


def endpoints_of(facts: RuntimeDescription, tenant_id: str) -> ServiceEndpoints:
    """The endpoints that `serve` prints; listKeys returns the same host
    (docs/reference/configuration.md)."""
    servicebus = facts.connection_string.partition(";")[0].removeprefix("Endpoint=")
    return ServiceEndpoints(servicebus=servicebus, https=facts.https, tenant_id=tenant_id)


def required_units(broker: Broker) -> Callable[[str], int]:
    """The units that the busiest second of the hour needed, where units are not enforced."""

    def needed(namespace: str) -> int:
        account = broker.accounts.find(namespace)
        return 1 if account is None else account.meter.units

    return needed
