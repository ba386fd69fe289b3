"""`$management`: facts of a hub and of a partition (protocol.md 3 and 13)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.amqp.link import Link
from penstock.amqp.message import Message
from penstock.amqp.types import Array, Int, Long, Timestamp
from penstock.auth import Grant, verify_sas_token
from penstock.auth.resource import canonical_path
from penstock.broker import HubRuntime
from penstock.gateway.amqp.addresses import LinkAddress, NodeKind
from penstock.gateway.amqp.errors import add_tracking, log_refusal
from penstock.gateway.amqp.request_response import NodeResponse, RequestLink
from penstock.gateway.guard import policy_of
from penstock.model import limits, names, slow_operations
from penstock.model.errors import (
    ArgumentError,
    AuthFailed,
    PenstockError,
    Unauthorized,
    UnsupportedTokenType,
)

if TYPE_CHECKING:
    from penstock.gateway.amqp.connection import AmqpConnection

HUB = "com.microsoft:eventhub"
PARTITION = "com.microsoft:partition"
NEVER_MS = -62_135_596_800_000  # 0001-01-01, the service's "never" (protocol.md 3.2)
_STR32 = 0xB1
_NAME_MAX = 1024


class ManagementRequestLink(RequestLink):
    """READ of a hub or a partition; each request carries its own token (protocol.md 2.2)."""

    kind = NodeKind.MANAGEMENT

    def __init__(self, connection: AmqpConnection, link: Link, address: LinkAddress) -> None:
        super().__init__(connection, link)
        self._address = address

    def answer(self, request: Message) -> NodeResponse:
        connection = self.connection
        clock = connection.context.clock
        began_ms = clock.monotonic_ms()
        try:
            return self._answer(request)
        finally:
            took_ms = clock.monotonic_ms() - began_ms
            slow_operations.warn_if_slow(
                "management", took_ms, door="amqp", peer=connection.transport.peer
            )

    def _answer(self, request: Message) -> NodeResponse:
        try:
            body = self._read(request.application_properties or {})
        except AuthFailed as error:
            # The service names a bad token "unauthorized" here (protocol.md 3.3).
            token = (request.application_properties or {}).get("security_token")
            is_guess = not isinstance(error, UnsupportedTokenType)
            delay_ms = self.connection.delayed_answers.fail(policy_of(token)) if is_guess else 0
            self._log_refusal(request, error)
            return NodeResponse(
                401, self._text(error), condition=Unauthorized.condition, delay_ms=delay_ms
            )
        except PenstockError as error:
            self._log_refusal(request, error)
            return NodeResponse.from_error(error, self._text(error))
        return NodeResponse(200, "OK", properties={"operation": "READ"}, body=body)

    def _log_refusal(self, request: Message, error: PenstockError) -> None:
        asked = request.application_properties or {}
        hub, partition = asked.get("name") or self._address.hub, asked.get("partition")
        path = [str(hub).strip("/"), *(["partitions", str(partition)] if partition else ())]
        policy = policy_of(asked.get("security_token"))
        log_refusal(self.connection, "read", error, path, policy)

    def _read(self, asked: dict[str, object]) -> dict[str, object]:
        operation, kind = asked.get("operation"), asked.get("type")
        if operation != "READ":
            raise ArgumentError("The operation is not READ; $management knows no other.")
        name = asked.get("name") or self._address.hub
        if not isinstance(name, str) or not 0 < len(name) <= _NAME_MAX:
            raise ArgumentError("The application property 'name' must be the event hub's name.")
        if kind not in (HUB, PARTITION):
            raise ArgumentError(f"The type must be {HUB} or {PARTITION}.")
        grant = self._authorise(name, asked.get("security_token"))
        context = self.connection.context
        hub = context.broker.hub(grant.namespace, name)
        context.calls.admit(hub.namespace, context.clock.monotonic_ms())
        if kind == HUB:
            return _hub_facts(hub)
        partition = asked.get("partition")
        if not isinstance(partition, str):
            raise ArgumentError("The application property 'partition' must be a string.")
        return self._partition_facts(hub, partition)

    def _authorise(self, name: str, token: object) -> Grant:
        """By the request's own token, else by one that the connection holds. Any right will do."""
        connection = self.connection
        clock = connection.context.clock
        path = canonical_path((name.strip("/"),))
        if isinstance(token, str) and token:
            if len(token) > limits.SAS_TOKEN_BYTES_MAX:
                raise AuthFailed("MalformedToken: the security_token is too long.")
            grant = verify_sas_token(
                token,
                # JS and Go sign the node, the others the hub; a hub's token covers its node.
                audience=f"/{name.strip('/')}/$management",
                authorities=connection.context.authorities(),
                now_s=clock.now_ms() // 1000,
            )
            connection.namespace = grant.namespace
            connection.on_token_put()
            return grant
        found = connection.grants.any_for(path, now_ms=clock.now_ms()) or connection.grants.any_for(
            (*path, "$management"), now_ms=clock.now_ms()
        )
        if found is None:
            raise Unauthorized(
                f"Unauthorized access. No valid token was given for '{names.quote_text(name)}'."
            )
        return found

    def _partition_facts(self, hub: HubRuntime, partition: str) -> dict[str, object]:
        index = hub.partition_index(partition)
        status = hub.status(index)
        written = status.last_sequence >= 0
        return {
            "name": str(hub.entity.name),
            "partition": partition,
            "type": PARTITION,
            "begin_sequence_number_epoch": Int(-1),
            "begin_sequence_number": Long(status.begin_sequence),
            "last_enqueued_sequence_number_epoch": Int(-1),
            "last_enqueued_sequence_number": Long(status.last_sequence),
            "last_enqueued_offset": str(status.last_offset),
            "last_enqueued_time_utc": Timestamp(status.last_enqueued_ms if written else NEVER_MS),
            "is_partition_empty": status.is_empty,
            "runtime_info_retrieval_time_utc": Timestamp(self.connection.context.clock.now_ms()),
        }

    def _text(self, error: PenstockError) -> str:
        return add_tracking(
            str(error),
            tracking_id=self.connection.id,
            tracker=self.connection.namespace or "-",
            now_ms=self.connection.context.clock.now_ms(),
        )


def _hub_facts(hub: HubRuntime) -> dict[str, object]:
    """In the recorded order; partition_ids is an array, not a list (E18)."""
    return {
        "name": str(hub.entity.name),
        "type": HUB,
        "created_at": Timestamp(hub.entity.created_ms),
        "partition_count": Int(hub.partition_count),
        "partition_ids": Array(list(hub.partition_ids), _STR32),
        "georeplication_factor": Int(1),
    }
