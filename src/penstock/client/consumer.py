"""The consumer: readers of partitions, ranges of sequence numbers, properties of the hub."""

from __future__ import annotations

import asyncio
import bisect
import weakref
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, Unpack

from penstock.client.errors import ClientTimedOut, EventsLost
from penstock.client.event_position import EventPosition
from penstock.client.hub_client import ClientOptions, HubClient
from penstock.client.receiver import (
    PREFETCH,
    MessageChunk,
    PartitionReceiver,
    decode_chunk,
    slice_columns,
)
from penstock.kernels import Columns
from penstock.model.errors import ArgumentError

_ENOUGH_BYTES = 1024 * 1024  # of a range at a time, where that many arrive together
_FIRST_WAIT_S = 1.0  # the first event of a range arrives sooner, unless there is none


class EventHubConsumerClient(HubClient):
    """Reads one hub as one consumer group. Every reader has its own connection."""

    def __init__(
        self,
        connection_string: str,
        consumer_group: str = "$Default",
        **options: Unpack[ClientOptions],
    ) -> None:
        super().__init__(connection_string, **options)
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
        reader of its group, and displaces readers of the same or a lower level."""
        options = {"owner_level": owner_level, "track_last_enqueued": track_last_enqueued}
        return self._reader(partition_id, position, prefetch=prefetch, **options)

    async def read_range(
        self, partition_id: str, first_sequence_number: int, last_sequence_number: int
    ) -> AsyncGenerator[Columns, None]:
        """The events from the first to the last number, both included, that are retained now; it
        does not wait for new events. A caller that leaves it early closes it (`aclose`). Raises
        ClientError."""
        if first_sequence_number < 0:
            raise ArgumentError(f"first_sequence_number is {first_sequence_number}: below 0.")
        partition = await self.get_partition_properties(partition_id)
        first = max(first_sequence_number, partition["beginning_sequence_number"])
        last = min(last_sequence_number, partition["last_enqueued_sequence_number"])
        if partition["is_empty"] or first > last:
            return
        position = EventPosition.from_sequence_number(first, inclusive=True)
        prefetch = min(PREFETCH, last - first + 1)
        reader = self._reader(partition_id, position, prefetch=prefetch, last_sequence_number=last)
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
        """The encoded messages from sequence number `first` to `last`, both included, in order.

        Where retention removed events at the beginning of the range, the messages begin later, and
        there may be none. Raises EventsLost for a gap after that, ClientTimedOut when no event
        arrives for the client's `timeout_s`. A caller that leaves it early closes it (`aclose`).
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
        """As `read_chunks`, with all available chunks at a time."""
        if first < 0:
            raise ArgumentError(f"first is {first}: below 0.")
        if first > last:
            return
        reader = self._reader(
            partition_id,
            EventPosition.from_sequence_number(first, inclusive=True),
            prefetch=prefetch,
            owner_level=owner_level,
            last_sequence_number=last,
            enough_bytes=_ENOUGH_BYTES,
        )
        async with reader:
            expected: int | None = None  # before the first chunk
            while expected is None or expected <= last:
                chunks = await self._next_chunks(reader, expected is None, last)
                if not chunks or (expected is None and chunks[0].first > last):
                    return  # retention removed the whole range
                if expected is None:
                    expected = max(first, chunks[0].first)
                run, expected, after_gap = _contiguous_run(chunks, expected, last)
                if run:
                    yield run
                if after_gap is not None:
                    raise EventsLost(partition_id, expected, after_gap)

    async def close(self) -> None:
        """Close the readers too. A second call does nothing."""
        readers = list(self._readers)
        self._readers.clear()
        await asyncio.gather(*(reader.close() for reader in readers))
        await super().close()

    async def _next_chunks(
        self, reader: PartitionReceiver, is_first: bool, last: int
    ) -> list[MessageChunk]:
        """Empty where no event up to `last` is retained."""
        chunks: list[MessageChunk] = []
        if is_first:
            chunks = await reader.receive_chunks(min(_FIRST_WAIT_S, self._timeout_s))
            if not chunks:
                partition = await self.get_partition_properties(reader.partition_id)
                is_removed = (
                    partition["is_empty"] and partition["last_enqueued_sequence_number"] >= last
                )
                if is_removed or partition["beginning_sequence_number"] > last:
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
        self, partition_id: str, position: EventPosition, **options: Any
    ) -> PartitionReceiver:
        """The options are those of PartitionReceiver."""
        self._check_open()
        path = f"{self.eventhub_name}/ConsumerGroups/{self.consumer_group}"
        reader = PartitionReceiver(
            lambda: self._connect(path),
            f"{path}/Partitions/{partition_id}",
            partition_id,
            position,
            retry=self._retry,
            timeout_s=self._timeout_s,
            **options,
        )
        self._readers.add(reader)
        return reader


def _contiguous_run(
    chunks: list[MessageChunk], expected: int, last: int
) -> tuple[list[MessageChunk], int, int | None]:
    """The chunks from `expected` up to `last` or a gap, the number that follows them, and the
    number after the gap."""
    run: list[MessageChunk] = []
    for chunk in chunks:
        if expected > last:
            break
        part, after_gap = _contiguous_part(chunk, expected, last)
        if part is not None:
            run.append(part)
            expected = part.last + 1
        if after_gap is not None:
            return run, expected, after_gap
    return run, expected, None


def _contiguous_part(
    chunk: MessageChunk, expected: int, last: int
) -> tuple[MessageChunk | None, int | None]:
    """The messages from `expected` up to `last` or a gap, and the number after the gap."""
    numbers: Sequence[int] = range(chunk.first, chunk.last + 1)
    if len(numbers) != chunk.count:
        numbers = decode_chunk(chunk.data, chunk.bounds).sequence_numbers
    start = bisect.bisect_left(numbers, expected)
    if start == len(numbers):
        return None, None  # all of them were received before
    if numbers[start] != expected:
        return None, numbers[start]
    if isinstance(numbers, range):
        stop = min(len(numbers), start + last - expected + 1)
    else:
        stop = start + 1
        while stop < len(numbers) and numbers[stop] == numbers[stop - 1] + 1 <= last:
            stop += 1
    after_gap = numbers[stop] if stop < len(numbers) and numbers[stop - 1] < last else None
    if stop - start == chunk.count:
        return chunk, after_gap
    bounds = chunk.bounds[2 * start : 2 * stop]
    return MessageChunk(chunk.data, bounds, expected, expected + stop - start - 1), after_gap
