"""What an attach asks for, and whether it may have it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.amqp.link import UNLIMITED, Link, LinkRole
from penstock.amqp.performatives import Attach, Coordinator
from penstock.amqp.states import LinkState
from penstock.amqp.types import Int, Long, Short, Symbol
from penstock.auth import Grant
from penstock.broker import HubRuntime
from penstock.gateway.amqp.addresses import LinkAddress, NodeKind, parse_address
from penstock.gateway.amqp.authentication import CbsRequestLink
from penstock.gateway.amqp.errors import log_refusal, system_tracker
from penstock.gateway.amqp.filters import start_position
from penstock.gateway.amqp.links import LinkHandler, unauthorized_error
from penstock.gateway.amqp.management_node import ManagementRequestLink
from penstock.gateway.amqp.publish_link import IDEMPOTENT_NEEDS_PARTITION, PublishLink
from penstock.gateway.amqp.read_link import ReadLink
from penstock.gateway.amqp.request_response import ReplyLink
from penstock.model import limits, names, slow_operations
from penstock.model.entities import Right
from penstock.model.errors import ArgumentError, NotAllowed, NotImplementedHere, PenstockError

if TYPE_CHECKING:
    from penstock.gateway.amqp.connection import AmqpConnection

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


def answer_attach(connection: AmqpConnection, link: Link) -> LinkHandler | None:
    """Grant the link or refuse it; its application object, or None when it was refused."""
    clock = connection.context.clock
    began_ms = clock.monotonic_ms()
    try:
        return _decide_attach(connection, link)
    finally:
        slow_operations.warn_if_slow(
            "attach", clock.monotonic_ms() - began_ms, peer=connection.transport.peer
        )


def _decide_attach(connection: AmqpConnection, link: Link) -> LinkHandler | None:
    attaching = _AttachDecision(connection, link)
    try:
        app = attaching.decide()
    except PenstockError as error:
        attaching.undo()
        log_refusal(connection, "attach", error, attaching.path, attaching.policy)
        link.refuse(connection.wire_error(error, attaching.tracker))
        return None
    except BaseException:
        attaching.undo()  # a place that nobody holds any more would be taken for ever
        raise
    if link.state is LinkState.DETACH_SENT:  # the peer's frames are too small for our answer
        attaching.undo()
        return None
    return app


class _AttachDecision:
    """One attach on its way. `tracker` says as much of the entity as the peer may know by now."""

    def __init__(self, connection: AmqpConnection, link: Link) -> None:
        assert link.attach is not None
        self.tracker = ""
        self.path: Sequence[str] = ()  # of the entity, and the policy, for the log
        self.policy = ""
        self._connection = connection
        self._link = link
        self._asked: Attach = link.attach
        self._app: LinkHandler | None = None

    def decide(self) -> LinkHandler:
        """The order matters: form, then right, then existence, then the place itself."""
        name = self._link.name
        if len(name) > limits.LINK_NAME_MAX:
            raise ArgumentError(
                f"The link name has {len(name)} characters: at most {limits.LINK_NAME_MAX}."
            )
        if isinstance(self._asked.target, Coordinator):
            raise NotImplementedHere("Transactions are not supported on event hubs.")
        if self._link.role is LinkRole.RECEIVER:
            return self._publisher()
        return self._reader()

    def undo(self) -> None:
        if self._app is not None:
            self._app.close()

    # --- the client sends -----------------------------------------------------------------------

    def _publisher(self) -> LinkHandler:
        connection, link, target = self._connection, self._link, self._asked.target
        assert not isinstance(target, Coordinator)
        address = self._parse(target.address if target is not None else None)
        if address.kind is NodeKind.CBS:
            return self._node(CbsRequestLink(connection, link))
        if address.kind is NodeKind.MANAGEMENT:
            return self._node(ManagementRequestLink(connection, link, address))
        if address.kind is NodeKind.CONSUMER_GROUP:
            raise NotAllowed("Events cannot be sent to a consumer group: send to the event hub.")
        grant, hub = self._entity(address, Right.SEND)
        partition = self._partition(hub, address) if address.partition is not None else None
        app = self._app = PublishLink(
            connection,
            link,
            address=address,
            grant=grant,
            tracker=self.tracker,
            hub=hub,
            partition=partition,
        )
        properties: Properties = {TRACKING_ID: connection.id}
        is_idempotent = IDEMPOTENT in (self._asked.desired_capabilities or ())
        if is_idempotent and partition is not None:
            properties.update(self._producer(app, partition))
        else:
            if is_idempotent:
                self._check_unnamed_producer(address)
                app.is_publishing_refused = True
            app.sender = hub.open_sender(on_end=app.end, publisher=address.publisher)
        self._accept(hub.namespace.publication_bytes_max, properties)
        return app

    def _check_unnamed_producer(self, address: LinkAddress) -> None:
        """The .NET client attaches an idempotent producer to the hub only to learn the message
        size limit, before it chooses a partition. It names no producer then."""
        is_named = any(
            self._optional_int(key) is not None
            for key in (PRODUCER_ID, PRODUCER_EPOCH, PRODUCER_SEQUENCE)
        )
        if is_named or address.kind is not NodeKind.HUB:
            raise NotAllowed(IDEMPOTENT_NEEDS_PARTITION)

    def _producer(self, app: PublishLink, partition: int) -> Properties:
        """On partition links alone; the reply has all three numbers (protocol.md 4.7)."""
        producer = app.producer = app.hub.open_producer(
            partition=partition,
            producer_id=self._optional_int(PRODUCER_ID),
            epoch=self._optional_int(PRODUCER_EPOCH),
            sequence=self._optional_int(PRODUCER_SEQUENCE),
            on_end=app.end,
        )
        return {
            Symbol(PRODUCER_ID): Long(producer.id),
            Symbol(PRODUCER_EPOCH): Short(producer.epoch),
            Symbol(PRODUCER_SEQUENCE): Int(producer.sequence),
        }

    # --- the client receives --------------------------------------------------------------------

    def _reader(self) -> LinkHandler:
        connection, link, source = self._connection, self._link, self._asked.source
        address = self._parse(source.address if source is not None else None)
        if address.kind in (NodeKind.CBS, NodeKind.MANAGEMENT):
            return self._node(ReplyLink(connection, link, address.kind))
        if address.kind is not NodeKind.CONSUMER_GROUP:
            raise NotAllowed(
                "Events are received from 'HUB/ConsumerGroups/GROUP/Partitions/ID', "
                "not from this address."
            )
        assert source is not None
        assert address.group is not None
        # Capture's own reads are neither slowed nor counted: that is for who may manage the hub.
        is_capture = names.fold_name(address.group) == names.fold_name(names.CAPTURE_GROUP)
        right = Right.MANAGE if is_capture else Right.LISTEN
        grant, hub = self._entity(address, right)
        hub.group(address.group)
        partition = self._partition(hub, address)
        # Whatever may be wrong with the request is found before anybody loses a place to it.
        position = start_position(source.filter)
        epoch, name = self._optional_int(EPOCH), self._optional_text(RECEIVER_NAME)
        app = self._app = ReadLink(
            connection,
            link,
            address=address,
            grant=grant,
            right=right,
            tracker=self.tracker,
            runtime_metrics=RUNTIME_METRIC in (self._asked.desired_capabilities or ()),
        )
        app.counters = hub.counters
        app.reader = hub.open_reader(
            group=address.group,
            partition=partition,
            position=position,
            epoch=epoch,
            name=name,
            on_end=app.end,
            on_ready=app.ready,
            is_metered=not is_capture,
        )
        properties: Properties = {TRACKING_ID: connection.id}
        if epoch is not None:
            properties[Symbol(EPOCH)] = Long(epoch)
        # No limit: deliveries carry annotations on top of what was published, and clients refuse
        # a delivery that is larger than what this attach announces.
        self._accept(UNLIMITED, properties)
        return app

    # --- shared ---------------------------------------------------------------------------------

    def _node(self, app: LinkHandler) -> LinkHandler:
        asked = self._asked
        self._link.accept(source=asked.source, target=asked.target, max_message_size=UNLIMITED)
        # Announced as the service does; what is really taken is bounded before anybody is known.
        self._link.max_message_size = limits.NODE_MESSAGE_BYTES_MAX
        return app

    def _accept(self, max_message_size: int, properties: Properties) -> None:
        self._link.accept(
            source=self._asked.source,
            target=self._asked.target,
            max_message_size=max_message_size,
            properties=properties,
        )

    def _parse(self, text: str | None) -> LinkAddress:
        self.path = (text or "",)
        address = parse_address(text)
        self.path = address.path
        return address

    def _entity(self, address: LinkAddress, right: Right) -> tuple[Grant, HubRuntime]:
        """The right first, then whether the hub is there."""
        connection = self._connection
        now_ms = connection.context.clock.now_ms()
        grant = connection.grants.find(address.path, right, now_ms=now_ms)
        if grant is None:
            raise unauthorized_error(connection, address, right)
        connection.namespace = grant.namespace
        self.policy = grant.rule_name
        self.tracker = system_tracker(grant.namespace, address.hub, group=address.group)
        hub = connection.context.broker.hub(grant.namespace, address.hub)
        self.tracker = system_tracker(grant.namespace, hub.entity.name, group=address.group)
        return grant, hub

    def _partition(self, hub: HubRuntime, address: LinkAddress) -> int:
        assert address.partition is not None
        index = hub.partition_index(address.partition)
        self.tracker = system_tracker(
            hub.namespace.name,
            hub.entity.name,
            partition=(index, hub.partition_count),
            group=address.group,
        )
        return index

    def _optional_int(self, key: str) -> int | None:
        value = (self._asked.properties or {}).get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise ArgumentError(f"The link property {key} must be an integer.")
        if value > _LONG_MAX:  # an AMQP ulong may be; the answer could not carry it
            raise ArgumentError(f"The link property {key} is {int(value)}: at most {_LONG_MAX}.")
        return int(value)

    def _optional_text(self, key: str) -> str | None:
        value = (self._asked.properties or {}).get(key)
        if value is None or isinstance(value, str):
            return value
        raise ArgumentError(f"The link property {key} must be a string.")
