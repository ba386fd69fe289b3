"""Asyncio clients of any Event Hubs endpoint: producers, consumers, readers of ranges.

The names are the official SDK's. A name is loaded at its first use, so `import penstock.client`
costs nothing. `connect`, `Connection`, `Sender` and `Receiver` are the lower level, for tools.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock import lazy_names

if TYPE_CHECKING:
    from penstock.client.buffered_producer import (
        EventHubBufferedProducerClient as EventHubBufferedProducerClient,
    )
    from penstock.client.connection import Connection as Connection
    from penstock.client.connection import connect as connect
    from penstock.client.consumer import EventHubConsumerClient as EventHubConsumerClient
    from penstock.client.errors import ClientClosed as ClientClosed
    from penstock.client.errors import ClientDenied as ClientDenied
    from penstock.client.errors import ClientError as ClientError
    from penstock.client.errors import ClientNotFound as ClientNotFound
    from penstock.client.errors import ClientStolen as ClientStolen
    from penstock.client.errors import ClientThrottled as ClientThrottled
    from penstock.client.errors import ClientTimedOut as ClientTimedOut
    from penstock.client.errors import ClientTooLarge as ClientTooLarge
    from penstock.client.errors import ClientUntrusted as ClientUntrusted
    from penstock.client.event_data import EventData as EventData
    from penstock.client.event_data import EventDataBatch as EventDataBatch
    from penstock.client.event_position import EventPosition as EventPosition
    from penstock.client.hub_client import EventHubProperties as EventHubProperties
    from penstock.client.hub_client import LastEnqueued as LastEnqueued
    from penstock.client.hub_client import PartitionProperties as PartitionProperties
    from penstock.client.leases import LeaseLost as LeaseLost
    from penstock.client.links import Receiver as Receiver
    from penstock.client.links import Sender as Sender
    from penstock.client.partition_pump import CloseReason as CloseReason
    from penstock.client.partition_pump import PartitionContext as PartitionContext
    from penstock.client.processor import EventProcessorClient as EventProcessorClient
    from penstock.client.producer import EventHubProducerClient as EventHubProducerClient
    from penstock.client.receiver import PartitionReceiver as PartitionReceiver
    from penstock.client.retry import RetryPolicy as RetryPolicy
    from penstock.kernels import Columns as Columns
    from penstock.model.connection_string import Endpoint as Endpoint
    from penstock.model.connection_string import parse_connection_string as parse_connection_string

_NAMES = {
    "client.buffered_producer": "EventHubBufferedProducerClient",
    "client.connection": "Connection connect",
    "client.consumer": "EventHubConsumerClient",
    "client.errors": "ClientClosed ClientDenied ClientError ClientNotFound ClientStolen "
    "ClientThrottled ClientTimedOut ClientTooLarge ClientUntrusted",
    "client.event_data": "EventData EventDataBatch",
    "client.event_position": "EventPosition",
    "client.hub_client": "EventHubProperties LastEnqueued PartitionProperties",
    "client.leases": "LeaseLost",
    "client.links": "Receiver Sender",
    "client.partition_pump": "CloseReason PartitionContext",
    "client.processor": "EventProcessorClient",
    "client.producer": "EventHubProducerClient",
    "client.receiver": "PartitionReceiver",
    "client.retry": "RetryPolicy",
    "kernels": "Columns",
    "model.connection_string": "Endpoint parse_connection_string",
}
__getattr__, __dir__, __all__ = lazy_names(__name__, _NAMES)
