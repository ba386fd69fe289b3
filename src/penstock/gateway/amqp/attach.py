"""Decide an attach: form, then right, then existence, then the registration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from penstock.amqp.link import UNLIMITED, Link, LinkRole
from penstock.amqp.performatives import Coordinator
from penstock.amqp.types import Int, Long, Short, Symbol
from penstock.auth.grant import Grant
from penstock.broker.hub import HubRuntime
from penstock.gateway.amqp.addresses import LinkAddress, NodeKind, parse_address
from penstock.gateway.amqp.authentication import CbsRequestLink
from penstock.gateway.amqp.errors import system_tracker
from penstock.gateway.amqp.filters import start_position
from penstock.gateway.amqp.links import (
    AcceptedAttach,
    EntityLink,
    LinkHost,
    OnDecided,
    RefusedAttach,
)
from penstock.gateway.amqp.management_node import ManagementRequestLink
from penstock.gateway.amqp.publish_link import IDEMPOTENT_NEEDS_PARTITION, PublishLink
from penstock.gateway.amqp.read_link import ReadLink
from penstock.gateway.amqp.request_response import ReplyLink
from penstock.model import limits, names
from penstock.model.entities import Right
from penstock.model.errors import ArgumentError, NotAllowed, NotImplementedHere, PenstockError

RUNTIME_METRIC = "com.microsoft:enable-receiver-runtime-metric"
IDEMPOTENT = "com.microsoft:idempotent-producer"
EPOCH = "com.microsoft:epoch"
RECEIVER_NAME = "com.microsoft:receiver-name"
PRODUCER_ID = "com.microsoft:producer-id"
PRODUCER_EPOCH = "com.microsoft:producer-epoch"
PRODUCER_SEQUENCE = "com.microsoft:producer-sequence-number"
TRACKING_ID = Symbol("com.microsoft:tracking-id")
_LONG_MAX = 2**63 - 1

Properties = dict[str, object]
_T = TypeVar("_T", int, str)


def decide_attach(host: LinkHost, link: Link, on_decided: OnDecided) -> None:
    """Accept or refuse the link. Registrations of this broker are decided at once."""
    decision = _AttachDecision(host, link)
    try:
        accepted = decision.decide()
    except PenstockError as error:
        on_decided(RefusedAttach(error, decision.path, decision.policy, decision.tracker))
    else:
        on_decided(accepted)


class _AttachDecision:
    """The registration comes last in each method: nothing after it can fail and leave it behind.

    `path` and `policy` are for the log line. `tracker` contains as much of the entity as the client
    may know at each point."""

    def __init__(self, host: LinkHost, link: Link) -> None:
        assert link.attach is not None
        self.tracker = ""
        self.path: Sequence[str] = ()
        self.policy = ""
        self._host = host
        self._link = link
        self._request = link.attach
        self._capabilities = link.attach.desired_capabilities or ()

    def decide(self) -> AcceptedAttach:
        """Raises a PenstockError to refuse the link."""
        name = self._link.name
        if len(name) > limits.LINK_NAME_MAX:
            raise ArgumentError(
                f"The link name has {len(name)} characters: at most {limits.LINK_NAME_MAX}."
            )
        if isinstance(self._request.target, Coordinator):
            raise NotImplementedHere("Transactions are not supported on event hubs.")
        if self._link.role is LinkRole.RECEIVER:
            return self._decide_sender()
        return self._decide_receiver()

    # --- the client sends -----------------------------------------------------------------------

    def _decide_sender(self) -> AcceptedAttach:
        host, link, target = self._host, self._link, self._request.target
        assert not isinstance(target, Coordinator)
        address = self._parse_address(target.address if target is not None else None)
        if address.kind is NodeKind.CBS:
            return AcceptedAttach(CbsRequestLink(host, link), UNLIMITED)
        if address.kind is NodeKind.MANAGEMENT:
            return AcceptedAttach(ManagementRequestLink(host, link, address), UNLIMITED)
        if address.kind is NodeKind.CONSUMER_GROUP:
            raise NotAllowed("Events cannot be sent to a consumer group: send to the event hub.")
        grant, hub = self._find_hub(address, Right.SEND)
        partition = self._find_partition(hub, address) if address.partition is not None else None
        entity = EntityLink(host, link, address, Right.SEND, grant, self.tracker)
        handler = PublishLink(entity, hub, partition)
        properties: Properties = {TRACKING_ID: host.id}
        is_idempotent = IDEMPOTENT in self._capabilities
        if is_idempotent and partition is not None:
            properties |= self._open_producer(handler, partition)
        else:
            if is_idempotent:
                self._check_unnamed_producer(address)
                handler.is_publishing_refused = True
            handler.sender = hub.open_sender(on_end=handler.end, publisher=address.publisher)
        return AcceptedAttach(handler, hub.namespace.publication_bytes_max, properties)

    def _check_unnamed_producer(self, address: LinkAddress) -> None:
        """The .NET client attaches an idempotent producer to the hub only to learn the message
        size limit, before it chooses a partition. It names no producer then."""
        is_named = any(
            self._property(key, int) is not None
            for key in (PRODUCER_ID, PRODUCER_EPOCH, PRODUCER_SEQUENCE)
        )
        if is_named or address.kind is not NodeKind.HUB:
            raise NotAllowed(IDEMPOTENT_NEEDS_PARTITION)

    def _open_producer(self, handler: PublishLink, partition: int) -> Properties:
        """On partition links only; the reply has all three numbers (protocol.md 4.7)."""
        producer = handler.producer = handler.hub.open_producer(
            partition=partition,
            producer_id=self._property(PRODUCER_ID, int),
            epoch=self._property(PRODUCER_EPOCH, int),
            sequence=self._property(PRODUCER_SEQUENCE, int),
            on_end=handler.end,
        )
        return {
            Symbol(PRODUCER_ID): Long(producer.id),
            Symbol(PRODUCER_EPOCH): Short(producer.epoch),
            Symbol(PRODUCER_SEQUENCE): Int(producer.sequence),
        }

    # --- the client receives --------------------------------------------------------------------

    def _decide_receiver(self) -> AcceptedAttach:
        host, link, source = self._host, self._link, self._request.source
        address = self._parse_address(source.address if source is not None else None)
        if address.kind in (NodeKind.CBS, NodeKind.MANAGEMENT):
            return AcceptedAttach(ReplyLink(host, link, address.kind), UNLIMITED)
        if address.kind is not NodeKind.CONSUMER_GROUP:
            raise NotAllowed(
                "Events are received from 'HUB/ConsumerGroups/GROUP/Partitions/ID', "
                "not from this address."
            )
        assert source is not None
        assert address.group is not None
        # Capture's own reads are neither slowed nor counted, so they need the Manage right.
        is_capture = names.fold_name(address.group) == names.fold_name(names.CAPTURE_GROUP)
        right = Right.MANAGE if is_capture else Right.LISTEN
        grant, hub = self._find_hub(address, right)
        hub.group(address.group)
        partition = self._find_partition(hub, address)
        # Every error in the request is found before the registration displaces another reader.
        position = start_position(source.filter)
        epoch, name = self._property(EPOCH, int), self._property(RECEIVER_NAME, str)
        entity = EntityLink(host, link, address, right, grant, self.tracker)
        has_metrics = RUNTIME_METRIC in self._capabilities
        handler = ReadLink(entity, hub.counters, runtime_metrics=has_metrics)
        handler.reader = hub.open_reader(
            group=address.group,
            partition=partition,
            position=position,
            epoch=epoch,
            name=name,
            on_end=handler.end,
            on_ready=handler.on_ready,
            is_metered=not is_capture,
        )
        properties: Properties = {TRACKING_ID: host.id}
        if epoch is not None:
            properties[Symbol(EPOCH)] = Long(epoch)
        # No limit: deliveries carry annotations in addition to what was published, and clients
        # refuse a delivery that is larger than what this attach announces.
        return AcceptedAttach(handler, UNLIMITED, properties)

    # --- shared ---------------------------------------------------------------------------------

    def _parse_address(self, text: str | None) -> LinkAddress:
        self.path = (text or "",)
        address = parse_address(text)
        self.path = address.path
        return address

    def _find_hub(self, address: LinkAddress, right: Right) -> tuple[Grant, HubRuntime]:
        """Check the right first, then whether the hub exists."""
        host = self._host
        grant = host.grants.find(address.path, right, now_ms=host.context.clock.now_ms())
        if grant is None:
            raise host.unauthorized_error(address.path, right)
        host.namespace = grant.namespace
        self.policy = grant.rule_name
        self.tracker = system_tracker(grant.namespace, address.hub, group=address.group)
        hub = host.context.broker.hub(grant.namespace, address.hub)
        self.tracker = system_tracker(grant.namespace, hub.entity.name, group=address.group)
        return grant, hub

    def _find_partition(self, hub: HubRuntime, address: LinkAddress) -> int:
        assert address.partition is not None
        index = hub.partition_index(address.partition)
        self.tracker = system_tracker(
            hub.namespace.name,
            hub.entity.name,
            partition=(index, hub.partition_count),
            group=address.group,
        )
        return index

    def _property(self, key: str, kind: type[_T]) -> _T | None:
        """An optional property of the attach; raises ArgumentError if it has another type."""
        value = (self._request.properties or {}).get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, kind):
            expected = "an integer" if kind is int else "a string"
            raise ArgumentError(f"The link property {key} must be {expected}.")
        if isinstance(value, int) and value > _LONG_MAX:  # of an AMQP ulong; the reply has a long
            raise ArgumentError(f"The link property {key} is {int(value)}: at most {_LONG_MAX}.")
        return kind(value)
