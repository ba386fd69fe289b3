"""The consumer: readers of partitions, ranges, and what the hub says of itself."""

from __future__ import annotations

import asyncio
import bisect
import ssl
import weakref
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from penstock.client.connection import Connection, Transport
from penstock.client.errors import ClientError, ClientTimedOut, EventsLost
from penstock.client.event_position import EventPosition
from penstock.client.hub_client import HubClient
from penstock.client.inbox import MessageChunk, slice_columns
from penstock.client.receiver import PREFETCH, PartitionReceiver
from penstock.client.retry import RetryPolicy
from penstock.kernels import Columns, KernelError, decode_events
from penstock.model.errors import ArgumentError

_ENOUGH_BYTES = 1024 * 1024  # so much of a range at a time, where it comes at once
_FIRST_WAIT_S = 1.0  # an event of a range comes at once, unless there is none


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
                    columns = slice_columns(columns, 0, sum(each <= last for each in numbers))
                if columns.bodies:
                    yield columns

    async def read_chunks(
        self,
        partition_id: str,
        first: int,
        last: int,
        *,
        prefetch: int | None = None,
        owner_level: int | None = None,
    ) -> AsyncGenerator[MessageChunk, None]:
        """The messages from sequence number `first` to `last`, both included, unopened, in order.

        It may begin behind `first`, and end without any, where retention was quicker. Raises
        EventsLost for a gap behind that, ClientTimedOut when no event comes for the client's
        `timeout_s`. Close it (`aclose`) when it is left early.
        """
        runs = self.read_runs(partition_id, first, last, prefetch=prefetch, owner_level=owner_level)
        async with aclosing(runs):
            async for run in runs:
                for chunk in run:
                    yield chunk

    async def read_runs(
        self,
        partition_id: str,
        first: int,
        last: int,
        *,
        prefetch: int | None = None,
        owner_level: int | None = None,
    ) -> AsyncGenerator[list[MessageChunk], None]:
        """The same, as many chunks at a time as there are."""
        if first < 0:
            raise ArgumentError(f"first is {first}: below 0.")
        if first > last:
            return
        reader = self._reader(
            partition_id,
            EventPosition.from_sequence_number(first, inclusive=True),
            prefetch=prefetch,
            owner_level=owner_level,
            last=last,
            enough_bytes=_ENOUGH_BYTES,
        )
        async with reader:
            expected: int | None = None  # nothing came yet
            while expected is None or expected <= last:
                chunks = await self._next_chunks(reader, expected is None, last)
                if not chunks or (expected is None and chunks[0].first > last):
                    return  # retention was quicker than we
                if expected is None:
                    expected = max(first, chunks[0].first)
                run, expected, found = _contiguous_run(chunks, expected, last)
                if run:
                    yield run
                if found is not None:
                    raise EventsLost(partition_id, expected, found)

    async def close(self) -> None:
        """Closes its readers too. Harmless when done before."""
        readers = list(self._readers)
        self._readers.clear()
        await asyncio.gather(*(reader.close() for reader in readers))
        await super().close()

    async def _next_chunks(
        self, reader: PartitionReceiver, is_first: bool, last: int
    ) -> list[MessageChunk]:
        """None when nothing up to `last` is there any more."""
        chunks: list[MessageChunk] = []
        if is_first:
            chunks = await reader.receive_chunks(min(_FIRST_WAIT_S, self._timeout_s))
            if not chunks:
                known = await self.get_partition_properties(reader.partition_id)
                ended = known["is_empty"] and known["last_enqueued_sequence_number"] >= last
                if ended or known["beginning_sequence_number"] > last:
                    return []
        if not chunks:
            chunks = await reader.receive_chunks()
        if not chunks:
            raise ClientTimedOut(
                f"The next event of partition {reader.partition_id}, up to {last}, did not come "
                f"within {self._timeout_s} s."
            )
        return chunks

    def _reader(
        self,
        partition_id: str,
        position: EventPosition,
        *,
        prefetch: int | None,
        owner_level: int | None = None,
        track_last_enqueued: bool = False,
        last: int | None = None,
        enough_bytes: int = 0,
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
            enough_bytes=enough_bytes,
        )
        self._readers.add(reader)
        return reader


def _contiguous_run(
    chunks: list[MessageChunk], expected: int, last: int
) -> tuple[list[MessageChunk], int, int | None]:
    """The chunks from `expected` on up to `last` or a gap, what is expected then, and found."""
    run: list[MessageChunk] = []
    for chunk in chunks:
        if expected > last:
            break
        part, found = _contiguous(chunk, expected, last)
        if part is not None:
            run.append(part)
            expected = part.last + 1
        if found is not None:
            return run, expected, found
    return run, expected, None


def _contiguous(
    chunk: MessageChunk, expected: int, last: int
) -> tuple[MessageChunk | None, int | None]:
    """The chunk's messages from `expected` on, up to `last` or a gap; and what follows the gap."""
    numbers: Sequence[int] = range(chunk.first, chunk.last + 1)
    if len(numbers) != chunk.count:
        try:
            numbers = decode_events(chunk.data, chunk.bounds).sequence_numbers
        except KernelError as error:
            raise ClientError(f"The service delivered what is no event: {error}") from None
    start = bisect.bisect_left(numbers, expected)
    if start == len(numbers):
        return None, None  # all of them came before
    if numbers[start] != expected:
        return None, numbers[start]
    if isinstance(numbers, range):
        stop = min(len(numbers), start + last - expected + 1)
    else:
        stop = start + 1
        while stop < len(numbers) and numbers[stop] == numbers[stop - 1] + 1 <= last:
            stop += 1
    found = numbers[stop] if stop < len(numbers) and numbers[stop - 1] < last else None
    if stop - start == chunk.count:
        return chunk, found
    bounds = chunk.bounds[2 * start : 2 * stop]
    return MessageChunk(chunk.data, bounds, expected, expected + stop - start - 1), found
