"""A reader of one partition: columns for speed, EventData for comfort; reopens when it is lost."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import TracebackType
from typing import Self

from penstock.client.events import EventData
from penstock.client.properties import LastEnqueued
from penstock.kernels import Columns

PREFETCH = 3000


class PartitionReceiver:
    """Made by `EventHubConsumerClient.open_partition`; opens when its context is entered.

    One task at a time may receive. A reader whose place was taken raises ClientStolen.
    """

    partition_id: str

    async def __aenter__(self) -> Self:
        raise NotImplementedError

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def receive_batch(
        self, max_batch_size: int = 300, max_wait_time_s: float | None = None
    ) -> list[EventData]:
        """As soon as there is one event, those that are there, at most `max_batch_size`. Empty
        when none came within `max_wait_time_s` (the client's `timeout_s` when None)."""
        raise NotImplementedError

    async def receive_columns(self, max_wait_time_s: float | None = None) -> Columns:
        """The same as columns, all that are there; no row when none came in time."""
        raise NotImplementedError

    def __aiter__(self) -> AsyncIterator[EventData]:
        """Events without end."""
        raise NotImplementedError

    @property
    def last_enqueued(self) -> LastEnqueued | None:
        """The partition's end as the newest event told it; needs `track_last_enqueued`."""
        raise NotImplementedError

    async def close(self) -> None:
        """Harmless when done before."""
        raise NotImplementedError
