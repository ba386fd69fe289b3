"""The management room as this service fills it: doors' connections, tokens, keys, endpoints."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable

from penstock.broker import Broker
from penstock.gateway.amqp.server import AmqpDoor
from penstock.management.door import Verified
from penstock.management.operations import ConnectionView
from penstock.management.shapes import Endpoints
from penstock.model import names
from penstock.model.clock import Clock
from penstock.model.entities import Secret
from penstock.model.errors import ConnectionForced
from penstock.service.admin_token import AdminTokens
from penstock.service.facts import Facts

_KEY_BYTES = 32  # 256 bits (expectations.md H.2)


class DoorConnections:
    """`management.operations.Connections` over the AMQP door."""

    def __init__(self, door: AmqpDoor) -> None:
        self._door = door

    def list(self) -> list[ConnectionView]:
        return [
            ConnectionView(
                id=connection.id,
                peer=connection.transport.peer,
                namespace=connection.namespace,
                container_id=(
                    names.shown(connection.engine.open.container_id)
                    if connection.engine.open is not None
                    else ""
                ),
                links=len(connection.apps),
                events_in=connection.events_in,
                events_out=connection.events_out,
            )
            for connection in sorted(self._door.connections, key=lambda each: each.id)
        ]

    def kill(self, connection_id: str) -> bool:
        for connection in self._door.connections:
            if connection.id == connection_id:
                connection.fail(
                    ConnectionForced("An operator closed the connection; it may come back.")
                )
                return True
        return False


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
