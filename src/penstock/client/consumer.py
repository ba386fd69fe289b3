"""The consumer: readers of partitions, ranges, and what the hub says of itself."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Literal, Self

from penstock.client.positions import EventPosition
from penstock.client.properties import EventHubProperties, PartitionProperties
from penstock.client.receiver import PREFETCH, PartitionReceiver
from penstock.client.retry import RetryPolicy
from penstock.kernels import Columns


class EventHubConsumerClient:
    """Reads one hub as one consumer group. Every reader has a connection of its own."""

    fully_qualified_namespace: str
    eventhub_name: str
    consumer_group: str

    def __init__(
        self,
        connection_string: str,
        consumer_group: str = "$Default",
        *,
        eventhub_name: str | None = None,
        ssl_context: ssl.SSLContext | None = None,
        ca_file: str | None = None,
        retry: RetryPolicy = RetryPolicy(),  # noqa: B008  # frozen
        timeout_s: float = 60,
        transport: Literal["amqp", "websocket"] = "amqp",
    ) -> None:
        """As of EventHubProducerClient."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def open_partition(
        self,
        partition_id: str,
        position: EventPosition,
        *,
        owner_level: int | None = None,
        prefetch: int = PREFETCH,
        track_last_enqueued: bool = False,
    ) -> PartitionReceiver:
        """A reader, to be entered with `async with`. With `owner_level` (epoch) it is the only
        one of its group, and displaces readers of the same level or a lower one."""
        raise NotImplementedError

    def read_range(
        self, partition_id: str, first_sequence_number: int, last_sequence_number: int
    ) -> AsyncIterator[Columns]:
        """All events from the first to the last number, both included, as far as they are
        retained now: it stops by itself and never waits for events to come. Close it (`aclose`)
        when it is left early."""
        raise NotImplementedError

    async def get_eventhub_properties(self) -> EventHubProperties:
        raise NotImplementedError

    async def get_partition_ids(self) -> list[str]:
        raise NotImplementedError

    async def get_partition_properties(self, partition_id: str) -> PartitionProperties:
        raise NotImplementedError

    async def close(self) -> None:
        """Closes its readers too. Harmless when done before."""
        raise NotImplementedError
