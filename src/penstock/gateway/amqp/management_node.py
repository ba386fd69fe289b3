"""`$management`: runtime information of a hub or a partition (protocol.md 3 and 13)."""

from __future__ import annotations

import msgspec

from penstock.amqp.link import Link
from penstock.amqp.message import Message
from penstock.amqp.types import Array, Int, Long, Timestamp
from penstock.auth.grant import Grant
from penstock.auth.resource import canonical_path
from penstock.auth.sas import verify_sas_token
from penstock.broker.hub import HubRuntime
from penstock.gateway.amqp.addresses import LinkAddress, NodeKind
from penstock.gateway.amqp.links import LinkHost
from penstock.gateway.amqp.request_response import NodeResponse, RequestLink, Respond
from penstock.gateway.guard import policy_of
from penstock.model import limits, names, slow_operations
from penstock.model.errors import (
    ArgumentError,
    AuthFailed,
    PenstockError,
    Unauthorized,
)

HUB = "com.microsoft:eventhub"
PARTITION = "com.microsoft:partition"
NEVER_MS = -62_135_596_800_000  # 0001-01-01, the service's "never" (protocol.md 3.2)
_STR32 = 0xB1
_NAME_MAX = 1024

Properties = dict[str, object]


class ManagementRequestLink(RequestLink):
    """READ of a hub or a partition; each request carries its own token (protocol.md 2.2)."""

    kind = NodeKind.MANAGEMENT

    def __init__(self, host: LinkHost, link: Link, address: LinkAddress) -> None:
        super().__init__(host, link)
        self._address = address

    def answer(self, request: Message, respond: Respond) -> None:
        clock = self.host.context.clock
        began_ms = clock.monotonic_ms()
        properties = request.application_properties or {}
        try:
            body = self._read(properties)
            response = NodeResponse(
                status=200, description="OK", properties={"operation": "READ"}, body=body
            )
        except PenstockError as error:
            response = self._refuse_read(properties, error)
        took_ms = clock.monotonic_ms() - began_ms
        slow_operations.warn_if_slow("management", took_ms, endpoint="amqp", peer=self.host.peer)
        respond(response)

    def _refuse_read(self, request: Properties, error: PenstockError) -> NodeResponse:
        hub, partition = request.get("name") or self._address.hub, request.get("partition")
        path = [str(hub).strip("/"), *(["partitions", str(partition)] if partition else ())]
        response = self.refuse("read", error, path, policy_of(request.get("security_token")))
        if isinstance(error, AuthFailed):  # named "unauthorized" here (protocol.md 3.3)
            response = msgspec.structs.replace(response, condition=Unauthorized.condition)
        return response

    def _read(self, request: Properties) -> Properties:
        operation, kind = request.get("operation"), request.get("type")
        if operation != "READ":
            raise ArgumentError("The operation is not READ; $management knows no other.")
        name = request.get("name") or self._address.hub
        if not isinstance(name, str) or not 0 < len(name) <= _NAME_MAX:
            raise ArgumentError("The application property 'name' must be the event hub's name.")
        if kind not in (HUB, PARTITION):
            raise ArgumentError(f"The type must be {HUB} or {PARTITION}.")
        grant = self._authorize(name, request.get("security_token"))
        context = self.host.context
        hub = context.broker.hub(grant.namespace, name)
        context.management_rate.admit(hub.namespace, context.clock.monotonic_ms())
        if kind == HUB:
            return _describe_hub(hub)
        partition = request.get("partition")
        if not isinstance(partition, str):
            raise ArgumentError("The application property 'partition' must be a string.")
        return _describe_partition(hub, partition, context.clock.now_ms())

    def _authorize(self, name: str, token: object) -> Grant:
        """By the token of the request, else by one that the connection holds, with any right."""
        host = self.host
        now_ms = host.context.clock.now_ms()
        path = canonical_path((name.strip("/"),))
        if isinstance(token, str) and token:
            if len(token) > limits.SAS_TOKEN_BYTES_MAX:
                raise AuthFailed("MalformedToken: the security_token is too long.")
            grant = verify_sas_token(
                token,
                # JS and Go sign the node, the others the hub; a hub's token covers its node.
                audience=f"/{name.strip('/')}/$management",
                authorities=host.context.authorities(),
                now_s=now_ms // 1000,
            )
            host.authenticate(grant.namespace)
            return grant
        held_grant = host.grants.any_for(path, now_ms=now_ms) or host.grants.any_for(
            (*path, "$management"), now_ms=now_ms
        )
        if held_grant is None:
            raise Unauthorized(
                f"Unauthorized access. No valid token was given for '{names.quote_text(name)}'."
            )
        return held_grant


def _describe_hub(hub: HubRuntime) -> Properties:
    """In the recorded order; partition_ids is an array, not a list (E18)."""
    return {
        "name": str(hub.entity.name),
        "type": HUB,
        "created_at": Timestamp(hub.entity.created_ms),
        "partition_count": Int(hub.partition_count),
        "partition_ids": Array(list(hub.partition_ids), _STR32),
        "georeplication_factor": Int(1),
    }


def _describe_partition(hub: HubRuntime, partition: str, now_ms: int) -> Properties:
    status = hub.status(hub.partition_index(partition))
    last_ms = status.last_enqueued_ms if status.last_sequence >= 0 else NEVER_MS
    return {
        "name": str(hub.entity.name),
        "partition": partition,
        "type": PARTITION,
        "begin_sequence_number_epoch": Int(-1),
        "begin_sequence_number": Long(status.begin_sequence),
        "last_enqueued_sequence_number_epoch": Int(-1),
        "last_enqueued_sequence_number": Long(status.last_sequence),
        "last_enqueued_offset": str(status.last_offset),
        "last_enqueued_time_utc": Timestamp(last_ms),
        "is_partition_empty": status.is_empty,
        "runtime_info_retrieval_time_utc": Timestamp(now_ms),
    }
