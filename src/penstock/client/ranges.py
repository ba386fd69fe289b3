"""Ranges of events for jobs: blocking, for threads and processes that have no event loop.

A task of Spark reads its range with `read_chunks` and turns each chunk into columns by a kernel; a
driver plans with a `HubReader`. Both open connections of their own and share nothing.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import AsyncGenerator, Coroutine, Iterator
from concurrent.futures import TimeoutError as OverTime
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec

from penstock.client.connection import Transport
from penstock.client.consumer import EventHubConsumerClient
from penstock.client.errors import ClientClosed, ClientTimedOut, EventsLost
from penstock.client.event_position import EventPosition
from penstock.client.inbox import MessageChunk
from penstock.client.properties import EventHubProperties, PartitionProperties
from penstock.client.retry import RetryPolicy
from penstock.model.errors import ArgumentError

__all__ = ["EventsLost", "HubReader", "MessageChunk", "RangeSettings", "read_chunks"]

T = TypeVar("T")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_BACKOFF_S, _BACKOFF_MAX_S = 0.5, 5.0
_FEW = 3  # retries at least
_STOP_S = 10.0  # for a loop of ours to end


class RangeSettings(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """Where to read, and how. Can be pickled; what is shown of it has no secret.

    `prefetch` bounds the events that wait for the task; without it their size alone does.
    `insecure` believes any certificate. With `owner_level` a reader displaces lower ones.
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
    """The messages from sequence number `first` to `last`, both included, unopened, in order.

    A lost connection is opened again, for about `timeout_s`. It may begin behind `first`, and end
    without any, where retention was quicker: the caller judges. Raises ClientError: EventsLost for
    a gap behind that, ClientTimedOut when no event comes for `timeout_s`.
    """
    loop = event_loop_factory()
    try:
        client = _client(settings)
        runs = client.read_runs(
            partition_id,
            first,
            last,
            prefetch=settings.prefetch,
            owner_level=settings.owner_level,
        )
        try:
            while True:
                # Each turn of the loop costs as much as hundreds of events: few of them.
                run = loop.run_until_complete(_next(runs))
                if run is None:
                    return
                yield from run
        finally:
            loop.run_until_complete(runs.aclose())
            loop.run_until_complete(client.close())
    finally:
        _close_loop(loop)


async def _next(runs: AsyncGenerator[list[MessageChunk], None]) -> list[MessageChunk] | None:
    return await anext(runs, None)


class HubReader:
    """What a hub is and where its partitions begin and end, for a planner. Keeps one connection,
    in a thread of its own; any thread may ask. Close it."""

    def __init__(self, settings: RangeSettings) -> None:
        self._timeout_s = settings.timeout_s
        self._client = _client(settings)
        self._loop = event_loop_factory()
        self._is_closed = False
        self._closing = threading.Lock()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="penstock-hub-reader", daemon=True
        )
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def partition_ids(self) -> list[str]:
        """Raises ClientError, as all of these."""
        return self._ask(self._client.get_partition_ids())

    def partitions(self) -> dict[str, PartitionProperties]:
        """Of all partitions, by id, asked for at once."""
        return self._ask(self._partitions())

    def sequence_at(self, partition_id: str, time_ms: int) -> int:
        """The first sequence number that was stored at that time (milliseconds since 1970) or
        later; the last one's successor when there is none."""
        return self._ask(self._sequence_at(partition_id, time_ms))

    def sequence_at_offset(self, partition_id: str, offset: str, *, inclusive: bool = True) -> int:
        """The same for the event at that offset, or the first one behind it."""
        return self._ask(self._sequence_at_offset(partition_id, offset, inclusive))

    def offset_of(self, partition_id: str, sequence_number: int) -> str | None:
        """The offset of the event with that number; None when it is not there any more."""
        return self._ask(self._offset_of(partition_id, sequence_number))

    def properties(self) -> EventHubProperties:
        """The hub's name, when it was created, its partitions."""
        return self._ask(self._client.get_eventhub_properties())

    def service_product(self) -> str:
        return self._ask(self._client.get_service_product())

    def close(self) -> None:
        """Harmless when done before."""
        with self._closing:
            if self._is_closed:
                return
            try:
                self._ask(self._client.close())
            finally:
                self._is_closed = True
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._thread.join(_STOP_S)
                if not self._thread.is_alive():
                    _close_loop(self._loop)

    async def _partitions(self) -> dict[str, PartitionProperties]:
        ids = await self._client.get_partition_ids()
        told = await asyncio.gather(*(self._client.get_partition_properties(each) for each in ids))
        return dict(zip(ids, told, strict=True))

    async def _sequence_at(self, partition_id: str, time_ms: int) -> int:
        known = await self._client.get_partition_properties(partition_id)
        behind = known["last_enqueued_sequence_number"] + 1
        last_ms = (known["last_enqueued_time_utc"] - _EPOCH) // timedelta(milliseconds=1)
        if known["is_empty"] or last_ms < time_ms:
            return behind
        if time_ms <= 0:
            return known["beginning_sequence_number"]
        return await self._first_at(partition_id, EventPosition.from_enqueued_ms(time_ms - 1))

    async def _sequence_at_offset(self, partition_id: str, offset: str, inclusive: bool) -> int:
        known = await self._client.get_partition_properties(partition_id)
        behind = known["last_enqueued_sequence_number"] + 1
        last_offset = known["last_enqueued_offset"]
        if known["is_empty"] or (offset == last_offset and not inclusive):
            return behind
        # Offsets are numbers nearly everywhere; where they are not, the service is asked.
        if last_offset.isdigit() and offset.isdigit() and int(offset) > int(last_offset):
            return behind
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

    def _ask(self, question: Coroutine[Any, Any, T]) -> T:
        if self._is_closed:
            question.close()
            raise ClientClosed("The reader of the hub is closed.")
        answer = asyncio.run_coroutine_threadsafe(question, self._loop)
        # Each step of it has a deadline of its own: this one is for a thread that died.
        deadline_s = 10 * self._timeout_s + 60
        try:
            return answer.result(deadline_s)
        except OverTime:
            answer.cancel()
            raise ClientTimedOut(f"The hub gave no answer within {deadline_s} s.") from None


def _client(settings: RangeSettings) -> EventHubConsumerClient:
    context: ssl.SSLContext | None = None
    if settings.insecure:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return EventHubConsumerClient(
        settings.connection_string,
        settings.consumer_group,
        eventhub_name=settings.eventhub_name,
        ssl_context=context,
        ca_file=settings.ca_file,
        retry=_policy(settings.timeout_s),
        timeout_s=settings.timeout_s,
        transport=settings.transport,
    )


def _policy(timeout_s: float) -> RetryPolicy:
    """Tries for about `timeout_s` in all: a service that restarts is back by then."""
    pauses, pause, total = 0.0, _BACKOFF_S, 0
    while pauses < timeout_s:
        pauses += pause
        pause = min(pause * 2, _BACKOFF_MAX_S)
        total += 1
    return RetryPolicy(max(total, _FEW), _BACKOFF_S, _BACKOFF_MAX_S)


def event_loop_factory() -> asyncio.AbstractEventLoop:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        raise ArgumentError(
            "An event loop runs in this thread: ranges are read blocking, in a thread without "
            "one. Use EventHubConsumerClient.read_chunks here."
        )
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def _close_loop(loop: asyncio.AbstractEventLoop) -> None:
    try:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        loop.close()
