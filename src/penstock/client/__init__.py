"""Asyncio clients of any Event Hubs endpoint: producers, consumers, readers of ranges.

The names are the official SDK's. Nothing is loaded before it is used (`import penstock.client` is
free). Below them, for tools: `connect`, `Connection`, `Sender`, `Receiver`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.client.batch import EventDataBatch
    from penstock.client.buffered_producer import EventHubBufferedProducerClient
    from penstock.client.connection import Connection, Receiver, Sender, connect
    from penstock.client.consumer import EventHubConsumerClient
    from penstock.client.errors import (
        ClientClosed,
        ClientDenied,
        ClientError,
        ClientNotFound,
        ClientStolen,
        ClientThrottled,
        ClientTimedOut,
        ClientTooLarge,
        ClientUntrusted,
    )
    from penstock.client.event_data import EventData
    from penstock.client.event_position import EventPosition
    from penstock.client.leases import LeaseLost
    from penstock.client.partition_pump import CloseReason, PartitionContext
    from penstock.client.processor import EventProcessorClient
    from penstock.client.producer import EventHubProducerClient
    from penstock.client.properties import EventHubProperties, LastEnqueued, PartitionProperties
    from penstock.client.receiver import PartitionReceiver
    from penstock.client.retry import RetryPolicy
    from penstock.kernels import Columns
    from penstock.model.connection_string import Endpoint, parse_connection_string

_HOMES = {
    "ClientClosed": "client.errors",
    "ClientDenied": "client.errors",
    "ClientError": "client.errors",
    "ClientNotFound": "client.errors",
    "ClientStolen": "client.errors",
    "ClientThrottled": "client.errors",
    "ClientTimedOut": "client.errors",
    "ClientTooLarge": "client.errors",
    "ClientUntrusted": "client.errors",
    "CloseReason": "client.partition_pump",
    "Columns": "kernels",
    "Connection": "client.connection",
    "Endpoint": "model.connection_string",
    "EventData": "client.event_data",
    "EventDataBatch": "client.batch",
    "EventHubBufferedProducerClient": "client.buffered_producer",
    "EventHubConsumerClient": "client.consumer",
    "EventHubProducerClient": "client.producer",
    "EventHubProperties": "client.properties",
    "EventPosition": "client.event_position",
    "EventProcessorClient": "client.processor",
    "LastEnqueued": "client.properties",
    "LeaseLost": "client.leases",
    "PartitionContext": "client.partition_pump",
    "PartitionProperties": "client.properties",
    "PartitionReceiver": "client.receiver",
    "Receiver": "client.connection",
    "RetryPolicy": "client.retry",
    "Sender": "client.connection",
    "connect": "client.connection",
    "parse_connection_string": "model.connection_string",
}

__all__ = [
    "ClientClosed",
    "ClientDenied",
    "ClientError",
    "ClientNotFound",
    "ClientStolen",
    "ClientThrottled",
    "ClientTimedOut",
    "ClientTooLarge",
    "ClientUntrusted",
    "CloseReason",
    "Columns",
    "Connection",
    "Endpoint",
    "EventData",
    "EventDataBatch",
    "EventHubBufferedProducerClient",
    "EventHubConsumerClient",
    "EventHubProducerClient",
    "EventHubProperties",
    "EventPosition",
    "EventProcessorClient",
    "LastEnqueued",
    "LeaseLost",
    "PartitionContext",
    "PartitionProperties",
    "PartitionReceiver",
    "Receiver",
    "RetryPolicy",
    "Sender",
    "connect",
    "parse_connection_string",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(f"penstock.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
