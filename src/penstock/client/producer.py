"""The producer: batches, single events, keys, partitions; idempotent on request."""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from types import TracebackType
from typing import Literal, Self

from penstock.client.batch import EventDataBatch
from penstock.client.events import EventData
from penstock.client.properties import EventHubProperties, PartitionProperties
from penstock.client.retry import RetryPolicy


class EventHubProducerClient:
    """Publishes to one hub over one connection, which opens itself and reopens when it is lost.

    An awaited send is stored by the service. Without `idempotent` a send whose answer was lost is
    sent again, and may then be there twice.
    """

    def __init__(
        self,
        connection_string: str,
        *,
        eventhub_name: str | None = None,
        idempotent: bool = False,
        ssl_context: ssl.SSLContext | None = None,
        ca_file: str | None = None,
        retry: RetryPolicy = RetryPolicy(),  # noqa: B008  # frozen
        timeout_s: float = 60,
        transport: Literal["amqp", "websocket"] = "amqp",
    ) -> None:
        """`eventhub_name` is needed where the connection string has no EntityPath. `ca_file` or
        `ssl_context` say whom to trust; `timeout_s` bounds each try."""
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

    async def create_batch(
        self,
        *,
        partition_id: str | None = None,
        partition_key: str | None = None,
        max_size_in_bytes: int | None = None,
    ) -> EventDataBatch:
        """An empty batch as large as the service takes, or as `max_size_in_bytes` says."""
        raise NotImplementedError

    async def send_batch(
        self,
        batch: EventDataBatch | Iterable[EventData],
        *,
        partition_id: str | None = None,
        partition_key: str | None = None,
    ) -> None:
        """Returns when the batch is stored. Events instead of a batch must fit into one, else
        ValueError; only then the two options mean something."""
        raise NotImplementedError

    async def send_event(
        self,
        event: EventData,
        *,
        partition_id: str | None = None,
        partition_key: str | None = None,
    ) -> None:
        """Returns when the event is stored."""
        raise NotImplementedError

    async def get_eventhub_properties(self) -> EventHubProperties:
        raise NotImplementedError

    async def get_partition_ids(self) -> list[str]:
        raise NotImplementedError

    async def get_partition_properties(self, partition_id: str) -> PartitionProperties:
        raise NotImplementedError

    async def close(self) -> None:
        """Harmless when done before. Sends that wait end with ClientClosed."""
        raise NotImplementedError
