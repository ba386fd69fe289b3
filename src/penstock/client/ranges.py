"""Blocking reads of sequence ranges, for threads and processes without an event loop.

A Spark task reads its range with `read_chunks`, and a kernel turns each chunk into columns. The
driver plans with a `HubReader`. Each opens its own connections.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Coroutine, Iterator
from concurrent.futures import TimeoutError as OverTime
from typing import Any, Self, TypeVar

import msgspec

from penstock.client.connection import Transport
from penstock.client.consumer import EventHubConsumerClient
from penstock.client.errors import ClientClosed, ClientTimedOut, EventsLost
from penstock.client.event_position import EventPosition, to_milliseconds
from penstock.client.hub_client import EventHubProperties, PartitionProperties
from penstock.client.receiver import MessageChunk
from penstock.client.retry import RetryPolicy
from penstock.io.event_loop import EventLoopThread, new_event_loop
from penstock.io.tls import unverified_tls_context
from penstock.model.backoff import Backoff
from penstock.model.errors import ArgumentError

__all__ = ["EventsLost", "HubReader", "MessageChunk", "RangeSettings", "read_chunks"]

T = TypeVar("T")
_BACKOFF = Backoff(0.5, 5.0)
_RETRIES_MIN = 3
_STOP_S = 10.0  # for the loop of a HubReader to end


class RangeSettings(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """Where to read, and how. Can be pickled; its text contains no secret.

    `prefetch` bounds the events that wait for the task; without it only their size does.
    `insecure` accepts any certificate. With `owner_level` a reader displaces lower ones.
    """

    connection_string: str
    eventhub_name: str | None = None
    consumer_group: str = "$Default"
    ca_file: str | None = None
    insecure: bool = False
    transport: Transport = "amqp"
    timeout_s: float = 60.0
    prefetch: int | None = None
    owner_level: int | None = None

    def __repr__(self) -> str:
        return f"<RangeSettings {self.eventhub_name or 'hub'} group {self.consumer_group}>"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("eventhub_name", self.eventhub_name), ("consumer_group", self.consumer_group)]


def read_chunks(
    settings: RangeSettings, partition_id: str, first: int, last: int
) -> Iterator[MessageChunk]:
    """The encoded messages from sequence number `first` to `last`, both included, in order.

    A lost connection is reopened, for about `timeout_s`. Where retention removed events at the
    beginning of the range, the messages begin later, and there may be none. Raises ClientError:
    EventsLost for a gap after that, ClientTimedOut when no event arrives for `timeout_s`.
    """
    _check_no_loop_runs()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        loop = runner.get_loop()
        client = _open_client(settings)
        runs = client.read_runs(
            partition_id,
            first,
            last,
            prefetch=settings.prefetch,
            owner_level=settings.owner_level,
        )
        try:
            # A run of the loop costs as much as hundreds of events, so each one fetches many.
            while run := loop.run_until_complete(_next(runs)):
                yield from run
        finally:
            loop.run_until_complete(runs.aclose())
            loop.run_until_complete(client.close())


async def _next(runs: AsyncGenerator[list[MessageChunk], None]) -> list[MessageChunk] | None:
    return await anext(runs, None)


class HubReader:
    """Properties of a hub and its partitions, for a planner. Any thread may call it; one
    connection, on a thread of its own, serves all calls. Every method raises ClientError."""

    def __init__(self, settings: RangeSettings) -> None:
        _check_no_loop_runs()
        self._timeout_s = settings.timeout_s
        self._client = _open_client(settings)
        self._is_closed = False
        self._closing = threading.Lock()
        self._thread = EventLoopThread("penstock-hub-reader")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def partition_ids(self) -> list[str]:
        return self._ask(self._client.get_partition_ids())

    def partitions(self) -> dict[str, PartitionProperties]:
        """The properties of all partitions, by id."""
        return self._ask(self._partitions())

    def sequence_at(self, partition_id: str, time_ms: int) -> int:
        """The first sequence number that was stored at `time_ms` or later; one above the last
        where there is none."""
        return self._ask(self._sequence_at(partition_id, time_ms))

    def sequence_at_offset(self, partition_id: str, offset: str, *, inclusive: bool = True) -> int:
        """The sequence number of the event at that offset (without `inclusive`, after it), or of
        the next event."""
        return self._ask(self._sequence_at_offset(partition_id, offset, inclusive))

    def offset_of(self, partition_id: str, sequence_number: int) -> str | None:
        """The offset of the event with that number; None where it is no longer retained."""
        return self._ask(self._offset_of(partition_id, sequence_number))

    def properties(self) -> EventHubProperties:
        return self._ask(self._client.get_eventhub_properties())

    def service_product(self) -> str:
        return self._ask(self._client.get_service_product())

    def close(self) -> None:
        """Stop the thread and close the connection. A second call does nothing."""
        with self._closing:
            if self._is_closed:
                return
            try:
                self._ask(self._client.close())
            finally:
                self._is_closed = True
                self._thread.close(_STOP_S)

    async def _partitions(self) -> dict[str, PartitionProperties]:
        ids = await self._client.get_partition_ids()
        read = self._client.get_partition_properties
        properties = await asyncio.gather(*(read(partition_id) for partition_id in ids))
        return dict(zip(ids, properties, strict=True))

    async def _sequence_at(self, partition_id: str, time_ms: int) -> int:
        partition = await self._client.get_partition_properties(partition_id)
        last_ms = to_milliseconds(partition["last_enqueued_time_utc"])
        if partition["is_empty"] or last_ms < time_ms:
            return partition["last_enqueued_sequence_number"] + 1
        if time_ms <= 0:
            return partition["beginning_sequence_number"]
        return await self._first_at(partition_id, EventPosition.from_enqueued_ms(time_ms - 1))

    async def _sequence_at_offset(self, partition_id: str, offset: str, inclusive: bool) -> int:
        partition = await self._client.get_partition_properties(partition_id)
        last_offset = partition["last_enqueued_offset"]
        # Offsets are opaque, but nearly always numbers; for others the service decides below.
        is_after_last = (
            last_offset.isdigit() and offset.isdigit() and int(offset) > int(last_offset)
        )
        if partition["is_empty"] or is_after_last or (offset == last_offset and not inclusive):
            return partition["last_enqueued_sequence_number"] + 1
        return await self._first_at(partition_id, EventPosition.from_offset(offset, inclusive))

    async def _offset_of(self, partition_id: str, sequence_number: int) -> str | None:
        async for columns in self._client.read_range(
            partition_id, max(0, sequence_number), sequence_number
        ):
            return columns.offsets[0]
        return None

    async def _first_at(self, partition_id: str, position: EventPosition) -> int:
        async with self._client.open_partition(partition_id, position, prefetch=1) as reader:
            chunks = await reader.receive_chunks()
        if not chunks:
            raise ClientTimedOut(
                f"The first event of partition {partition_id} at {position.selector} did not come "
                f"within {self._timeout_s} s."
            )
        return chunks[0].first

    def _ask(self, request: Coroutine[Any, Any, T]) -> T:
        if self._is_closed:
            request.close()
            raise ClientClosed("The reader of the hub is closed.")
        result = self._thread.submit(request)
        # Each step of the request has its own deadline; this one is for a thread that died.
        deadline_s = 10 * self._timeout_s + 60
        try:
            return result.result(deadline_s)
        except OverTime:
            result.cancel()
            raise ClientTimedOut(f"The hub gave no answer within {deadline_s} s.") from None


def _open_client(settings: RangeSettings) -> EventHubConsumerClient:
    return EventHubConsumerClient(
        settings.connection_string,
        settings.consumer_group,
        eventhub_name=settings.eventhub_name,
        ssl_context=unverified_tls_context() if settings.insecure else None,
        ca_file=settings.ca_file,
        retry=_retry_policy(settings.timeout_s),
        timeout_s=settings.timeout_s,
        transport=settings.transport,
    )


def _retry_policy(timeout_s: float) -> RetryPolicy:
    """Retries for about `timeout_s` in all: a service that restarts is back by then."""
    retries, pauses_s = 0, 0.0
    while pauses_s < timeout_s:
        retries += 1
        pauses_s += _BACKOFF.pause_s(retries)
    return RetryPolicy(max(retries, _RETRIES_MIN), _BACKOFF.first_s, _BACKOFF.max_s)


def _check_no_loop_runs() -> None:
    """Raises ArgumentError in a thread with a running event loop, which must not be blocked."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise ArgumentError(
        "An event loop runs in this thread: ranges are read blocking, in a thread without one. "
        "Use EventHubConsumerClient.read_chunks here."
    )
