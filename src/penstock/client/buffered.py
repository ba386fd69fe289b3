"""The buffered producer: events are taken at once and published in the background, in order."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Literal, Self, TypeAlias

from penstock.client.events import EventData
from penstock.client.properties import EventHubProperties, PartitionProperties
from penstock.client.retry import RetryPolicy

OnSuccess: TypeAlias = Callable[[list[EventData], str], Awaitable[None] | None]
OnError: TypeAlias = Callable[[list[EventData], str, Exception], Awaitable[None] | None]


class EventHubBufferedProducerClient:
    """Events of one partition, and so of one key, are published in the order in which they came.

    `on_success(events, partition_id)` and `on_error(events, partition_id, error)` hear of each
    publication; they may be coroutine functions.
    """

    def __init__(
        self,
        connection_string: str,
        *,
        on_success: OnSuccess | None = None,
        on_error: OnError | None = None,
        max_wait_time_s: float = 1,
        max_buffer_length: int = 1500,
        eventhub_name: str | None = None,
        idempotent: bool = False,
        ssl_context: ssl.SSLContext | None = None,
        ca_file: str | None = None,
        retry: RetryPolicy = RetryPolicy(),  # noqa: B008  # frozen
        timeout_s: float = 60,
        transport: Literal["amqp", "websocket"] = "amqp",
    ) -> None:
        """An event waits for others at most `max_wait_time_s`; a partition holds at most
        `max_buffer_length` events that are not published yet."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close(flush=error is None)

    async def enqueue_event(
        self,
        event: EventData,
        *,
        partition_id: str | None = None,
        partition_key: str | None = None,
    ) -> int:
        """How many events are in the buffers then. Waits while the partition's buffer is full, at
        most `timeout_s`."""
        raise NotImplementedError

    async def enqueue_events(
        self,
        events: Sequence[EventData],
        *,
        partition_id: str | None = None,
        partition_key: str | None = None,
    ) -> int:
        """The same for several, in their order."""
        raise NotImplementedError

    @property
    def total_buffered_event_count(self) -> int:
        raise NotImplementedError

    async def flush(self) -> None:
        """Publish what is buffered now, and wait until each was published or has failed."""
        raise NotImplementedError

    async def get_eventhub_properties(self) -> EventHubProperties:
        raise NotImplementedError

    async def get_partition_ids(self) -> list[str]:
        raise NotImplementedError

    async def get_partition_properties(self, partition_id: str) -> PartitionProperties:
        raise NotImplementedError

    async def close(self, flush: bool = True) -> None:
        """Without `flush` what is buffered is thrown away, and `on_error` hears of it."""
        raise NotImplementedError
