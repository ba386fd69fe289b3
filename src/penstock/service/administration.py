"""The management room as this service fills it: doors' connections, tokens, keys, endpoints."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable, Mapping
from functools import partial

from penstock.broker import Broker
from penstock.gateway.amqp.driver import AmqpConnection
from penstock.gateway.amqp.links import EntityLink
from penstock.gateway.amqp.server import AmqpDoor
from penstock.management.door import Verified
from penstock.management.operations import ConnectionView, LinkView
from penstock.management.shapes import Endpoints
from penstock.model import names
from penstock.model.clock import Clock
from penstock.model.entities import Right, Secret
from penstock.model.errors import ConnectionForced
from penstock.service.admin_token import AdminTokens
from penstock.service.facts import Facts

_KEY_BYTES = 32  # 256 bits (expectations.md H.2)
_LINKS_SHOWN = 100  # of one connection
_USER_AGENT_MAX = 256
_ROLES = {Right.SEND: "send", Right.LISTEN: "receive"}


class DoorConnections:
    """`management.operations.Connections` over the AMQP door."""

    def __init__(self, door: AmqpDoor, clock: Clock) -> None:
        self._door = door
        self._clock = clock

    def list(self) -> list[ConnectionView]:
        now_ms = self._clock.now_ms()
        living = sorted(self._door.connections, key=lambda each: (each.opened_ms, each.id))
        return [_view(connection, now_ms) for connection in living]

    def kill(self, connection_id: str) -> bool:
        for connection in self._door.connections:
            if connection.id == connection_id:
                connection.fail(
                    ConnectionForced("An operator closed the connection; it may come back.")
                )
                return True
        return False


def _view(connection: AmqpConnection, now_ms: int) -> ConnectionView:
    opened = connection.engine.open
    hub_links = [app for app in connection.apps.values() if isinstance(app, EntityLink)]
    return ConnectionView(
        id=connection.id,
        peer=connection.transport.peer,
        namespace=connection.namespace,
        container_id="" if opened is None else names.shown(opened.container_id),
        user_agent="" if opened is None else _user_agent(opened.properties or {}),
        opened_ms=connection.opened_ms,
        age_seconds=max(0, now_ms - connection.opened_ms) / 1000,
        links=len(connection.apps),
        hub_links=[_link(app) for app in hub_links[:_LINKS_SHOWN]],
        events_in=connection.events_in,
        events_out=connection.events_out,
        bytes_in=connection.reading.bytes,
        bytes_out=connection.bytes_out,
    )


def _link(app: EntityLink) -> LinkView:
    address = app.address
    return LinkView(
        hub=address.hub,
        role=_ROLES.get(app.right, "manage"),
        group=address.group,
        partition=address.partition,
        publisher=address.publisher,
    )


def _user_agent(properties: Mapping[str, object]) -> str:
    """As SDKs name themselves when they open (protocol.md 1.3): the whole text, or its parts."""
    known = {str(name).lower(): value for name, value in properties.items()}
    text = known.get("user-agent")
    if not isinstance(text, str) or not text:
        parts = (known.get("product"), known.get("version"))
        text = "/".join(part for part in parts if isinstance(part, str) and part)
    return names.shown(text, most=_USER_AGENT_MAX)


def hubs_of_connections(
    door: AmqpDoor,
) -> Callable[[], list[tuple[str, Callable[[], list[str]]]]]:
    """Each connection's namespace, and the hubs that it has links to when asked."""

    def hubs(connection: AmqpConnection) -> list[str]:
        apps = connection.apps.values()
        return [app.address.hub for app in apps if isinstance(app, EntityLink)]

    def all_of_them() -> list[tuple[str, Callable[[], list[str]]]]:
        return [(each.namespace, partial(hubs, each)) for each in door.connections]

    return all_of_them


def token_verifier(tokens: AdminTokens, clock: Clock) -> Callable[[str], Verified]:
    def verify(token: str) -> Verified:
        claims = tokens.verify(token, now_ms=clock.now_ms())
        return claims.subject, claims.roles

    return verify


def endpoints_of(facts: Facts, tenant_id: str) -> Endpoints:
    """As `serve` prints them: what listKeys gives leads to the same door (design.md 7)."""
    servicebus = facts.connection_string.partition(";")[0].removeprefix("Endpoint=")
    return Endpoints(servicebus=servicebus, https=facts.https, tenant_id=tenant_id)


def new_key() -> Secret:
    return Secret(base64.b64encode(secrets.token_bytes(_KEY_BYTES)).decode())


def units_needed(broker: Broker) -> Callable[[str], int]:
    """What the hour's busiest second needed, for a namespace whose units are not enforced."""

    def needed(namespace: str) -> int:
        account = broker.accounts.find(namespace)
        return 1 if account is None else account.meter.units

    return needed
