"""The consumer: readers of partitions, ranges, and what the hub says of itself."""

from __future__ import annotations

import asyncio
import ssl
import weakref
from collections.abc import AsyncGenerator

from penstock.client.connection import Connection, Transport
from penstock.client.errors import ClientTimedOut
from penstock.client.hub import HubClient
from penstock.client.inbox import rows
from penstock.client.positions import EventPosition
from penstock.client.receiver import PREFETCH, PartitionReceiver
from penstock.client.retry import RetryPolicy
from penstock.kernels import Columns
from penstock.model.errors import ArgumentError


class EventHubConsumerClient(HubClient):
    """Reads one hub as one consumer group. Every reader has a connection of its own."""

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
        transport: Transport = "amqp",
    ) -> None:
        """As of EventHubProducerClient."""
        super().__init__(
            connection_string,
            eventhub_name=eventhub_name,
            ssl_context=ssl_context,
            ca_file=ca_file,
            retry=retry,
            timeout_s=timeout_s,
            transport=transport,
        )
        self.consumer_group = consumer_group
        self._readers: weakref.WeakSet[PartitionReceiver] = weakref.WeakSet()

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
        return self._reader(
            partition_id,
            position,
            owner_level=owner_level,
            prefetch=prefetch,
            track_last_enqueued=track_last_enqueued,
        )

    async def read_range(
        self, partition_id: str, first_sequence_number: int, last_sequence_number: int
    ) -> AsyncGenerator[Columns, None]:
        """All events from the first to the last number, both included, as far as they are
        retained now: it stops by itself and never waits for events to come. Close it (`aclose`)
        when it is left early."""
        if first_sequence_number < 0:
            raise ArgumentError(f"first_sequence_number is {first_sequence_number}: below 0.")
        known = await self.get_partition_properties(partition_id)
        first = max(first_sequence_number, known["beginning_sequence_number"])
        last = min(last_sequence_number, known["last_enqueued_sequence_number"])
        if known["is_empty"] or first > last:
            return
        position = EventPosition.from_sequence_number(first, inclusive=True)
        prefetch = min(PREFETCH, last - first + 1)
        reader = self._reader(partition_id, position, prefetch=prefetch, last=last)
        async with reader:
            number = first - 1
            while number < last:
                columns = await reader.receive_columns()
                numbers = columns.sequence_numbers
                if not numbers:
                    raise ClientTimedOut(
                        f"Event {number + 1} of partition {partition_id} did not come within "
                        f"{self._timeout_s} s."
                    )
                number = numbers[-1]
                if number > last:
                    columns = rows(columns, 0, sum(each <= last for each in numbers))
                if columns.bodies:
                    yield columns

    async def close(self) -> None:
        """Closes its readers too. Harmless when done before."""
        readers = list(self._readers)
        self._readers.clear()
        await asyncio.gather(*(reader.close() for reader in readers))
        await super().close()

    def _reader(
        self,
        partition_id: str,
        position: EventPosition,
        *,
        prefetch: int,
        owner_level: int | None = None,
        track_last_enqueued: bool = False,
        last: int | None = None,
    ) -> PartitionReceiver:
        self._check_open()
        path = f"{self.eventhub_name}/ConsumerGroups/{self.consumer_group}"

        async def connect() -> Connection:
            return await self._connect(path)

        reader = PartitionReceiver(
            connect,
            f"{path}/Partitions/{partition_id}",
            partition_id,
            position,
            owner_level=owner_level,
            prefetch=prefetch,
            track_last_enqueued=track_last_enqueued,
            retry=self._retry,
            timeout_s=self._timeout_s,
            last_sequence_number=last,
        )
        self._readers.add(reader)
        return reader
