"""What an attach asks for, and whether it may have it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.amqp.link import UNLIMITED, Link, Role
from penstock.amqp.performatives import Attach, Coordinator
from penstock.amqp.types import Int, Long, Short, Symbol
from penstock.auth import Grant, missing_claim_text
from penstock.gateway.amqp.addresses import Address, NodeKind, parse_address
from penstock.gateway.amqp.cbs import CbsLink
from penstock.gateway.amqp.filters import start_position
from penstock.gateway.amqp.inbound import PublisherLink
from penstock.gateway.amqp.links import LinkApp
from penstock.gateway.amqp.management import ManagementLink
from penstock.gateway.amqp.nodes import ReplyLink
from penstock.gateway.amqp.outbound import ReaderLink
from penstock.model import limits, names
from penstock.model.entities import Right
from penstock.model.errors import (
    ArgumentError,
    NotAllowed,
    NotImplementedHere,
    Unauthorized,
)

if TYPE_CHECKING:
    from penstock.gateway.amqp.driver import AmqpConnection

RUNTIME_METRIC = "com.microsoft:enable-receiver-runtime-metric"
IDEMPOTENT = "com.microsoft:idempotent-producer"
EPOCH = "com.microsoft:epoch"
RECEIVER_NAME = "com.microsoft:receiver-name"
PRODUCER_ID = "com.microsoft:producer-id"
PRODUCER_EPOCH = "com.microsoft:producer-epoch"
PRODUCER_SEQUENCE = "com.microsoft:producer-sequence-number"
TRACKING_ID = Symbol("com.microsoft:tracking-id")

Properties = dict[str, object]


def attach(connection: AmqpConnection, link: Link) -> LinkApp:
    """Answer the attach and give the link's application object; raises what refuses it."""
    asked = link.attach
    assert asked is not None
    if len(link.name) > limits.LINK_NAME_MAX:
        raise ArgumentError(
            f"The link name has {len(link.name)} characters: at most {limits.LINK_NAME_MAX}."
        )
    if isinstance(asked.target, Coordinator):
        raise NotImplementedHere("Transactions are not supported on event hubs.")
    if link.role is Role.RECEIVER:
        return _attach_publisher(connection, link, asked)
    return _attach_reader(connection, link, asked)


# --- the client sends ---------------------------------------------------------------------------


def _attach_publisher(connection: AmqpConnection, link: Link, asked: Attach) -> LinkApp:
    target = asked.target
    assert not isinstance(target, Coordinator)
    address = parse_address(target.address if target is not None else None)
    if address.kind is NodeKind.CBS:
        return _accept_node(link, asked, CbsLink(connection, link))
    if address.kind is NodeKind.MANAGEMENT:
        return _accept_node(link, asked, ManagementLink(connection, link, address))
    if address.kind is NodeKind.CONSUMER_GROUP:
        raise NotAllowed("Events cannot be sent to a consumer group: send to the event hub.")
    grant = _grant(connection, address, Right.SEND)
    hub = connection.context.broker.hub(grant.namespace, address.hub)
    partition = None if address.partition is None else hub.partition_index(address.partition)
    app = PublisherLink(
        connection,
        link,
        hub=hub,
        address=address,
        partition=partition,
        expires_ms=grant.expires_ms,
    )
    properties: Properties = {TRACKING_ID: connection.id}
    if IDEMPOTENT in (asked.desired_capabilities or ()):
        properties.update(_attach_producer(app, asked, partition))
    else:
        app.sender = hub.open_sender(on_end=app.end)
    link.accept(
        source=asked.source,
        target=target,
        max_message_size=hub.namespace.publication_bytes_max,
        properties=properties,
    )
    return app


def _attach_producer(app: PublisherLink, asked: Attach, partition: int | None) -> Properties:
    """Idempotent producers live on partition links; the reply has all three numbers (4.7)."""
    if partition is None:
        raise NotAllowed("An idempotent producer attaches to a partition, not to the event hub.")
    given = asked.properties or {}
    producer = app.hub.open_producer(
        partition=partition,
        producer_id=_optional_int(given, PRODUCER_ID),
        epoch=_optional_int(given, PRODUCER_EPOCH),
        sequence=_optional_int(given, PRODUCER_SEQUENCE),
        on_end=app.end,
    )
    app.producer = producer
    return {
        Symbol(PRODUCER_ID): Long(producer.id),
        Symbol(PRODUCER_EPOCH): Short(producer.epoch),
        Symbol(PRODUCER_SEQUENCE): Int(producer.sequence),
    }


# --- the client receives ------------------------------------------------------------------------


def _attach_reader(connection: AmqpConnection, link: Link, asked: Attach) -> LinkApp:
    source = asked.source
    address = parse_address(source.address if source is not None else None)
    if address.kind in (NodeKind.CBS, NodeKind.MANAGEMENT):
        return _accept_node(link, asked, ReplyLink(connection, link, address.kind))
    if address.kind is not NodeKind.CONSUMER_GROUP:
        raise NotAllowed(
            "Events are received from 'HUB/ConsumerGroups/GROUP/Partitions/ID', "
            "not from this address."
        )
    assert source is not None
    assert address.group is not None
    assert address.partition is not None
    grant = _grant(connection, address, Right.LISTEN)
    hub = connection.context.broker.hub(grant.namespace, address.hub)
    hub.group(address.group)
    index = hub.partition_index(address.partition)
    position = start_position(source.filter)
    given = asked.properties or {}
    epoch, name = _optional_int(given, EPOCH), _optional_text(given, RECEIVER_NAME)
    upper = 32767 * (index + 1) // hub.partition_count  # as the service numbers them (13)
    app = ReaderLink(
        connection,
        link,
        address=address,
        runtime_metrics=RUNTIME_METRIC in (asked.desired_capabilities or ()),
        tracker=f"{hub.namespace.name}:eventhub:{hub.entity.name}~{upper}|{names.key(address.group)}",
        expires_ms=grant.expires_ms,
    )
    app.reader = hub.open_reader(
        group=address.group,
        partition=index,
        position=position,
        epoch=epoch,
        name=name,
        on_end=app.end,
        on_ready=app.ready,
    )
    properties: Properties = {TRACKING_ID: connection.id}
    if epoch is not None:
        properties[Symbol(EPOCH)] = Long(epoch)
    link.accept(
        source=source,
        target=asked.target,
        max_message_size=hub.namespace.publication_bytes_max,
        properties=properties,
    )
    return app


# --- shared -------------------------------------------------------------------------------------


def _accept_node(link: Link, asked: Attach, app: LinkApp) -> LinkApp:
    link.accept(source=asked.source, target=asked.target, max_message_size=UNLIMITED)
    # Announced as the service does; what is really taken is bounded before anybody is known.
    link.max_message_size = limits.NODE_MESSAGE_BYTES_MAX
    return app


def _grant(connection: AmqpConnection, address: Address, right: Right) -> Grant:
    now_ms = connection.context.clock.now_ms()
    grant = connection.grants.find(address.path, right, now_ms=now_ms)
    if grant is None:
        resource = f"sb://{connection.namespace or 'namespace'}/{'/'.join(address.path)}"
        raise Unauthorized(missing_claim_text(right, names.shown(resource)))
    connection.namespace = grant.namespace
    return grant


def _optional_int(given: Properties, key: str) -> int | None:
    value = given.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise ArgumentError(f"The link property {key} must be an integer.")
    return int(value)


def _optional_text(given: Properties, key: str) -> str | None:
    value = given.get(key)
    if value is None or isinstance(value, str):
        return value
    raise ArgumentError(f"The link property {key} must be a string.")
