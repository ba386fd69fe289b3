"""A sink task: rows of Arrow batches become publications, each row once where that is possible.

Every task of a query publishes with its own producer id, derived from the query, its batch and the
task. The service knows how many events it has of that id in each partition. A task that is run
again, because its first run or the driver was killed, asks the service for these counts, which also
fences a first run that is still alive. It then reads the stored events back and skips their rows:
the rows may come in another order, as they do after a shuffle. With a policy that may only send,
nothing can be read back: then the task skips that many rows in the order in which they come.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import struct
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from penstock.client.consumer import EventHubConsumerClient
from penstock.client.errors import ClientDenied, ClientThrottled, ClientTimedOut
from penstock.client.event_data import EventData, EventDataBatch, to_events
from penstock.client.idempotence import (
    PRODUCER_ID,
    PRODUCER_SEQUENCE,
    ProducerState,
    annotations_section,
    write_stamp,
)
from penstock.client.producer import EventHubProducerClient
from penstock.client.retry import RetryPolicy
from penstock.io.event_loop import new_event_loop
from penstock.io.tls import unverified_tls_context
from penstock.kernels import append_bodies, append_event
from penstock.model.errors import ArgumentError
from penstock.model.names import PRODUCT
from penstock.model.partitioner import partition_for_key
from penstock.spark.eventhubs.options import HubTarget, WriteOptions
from penstock.spark.eventhubs.sink_rows import SinkBodies, SinkColumns

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger("penstock.spark")
_BUSY_S_MAX = 15 * 60.0  # how long the task waits for a service that is busy
_RUN_BYTES = 128 * 1024  # of rows without key and partition, before the next partition's turn
_RUN_ROWS = 4096
_EVENTS_MAX = 65_536
_KEYS_MAX = 4096  # keys whose annotations are cached
_NUMBER = struct.Struct(">i")
_NUMBER_NAME = PRODUCER_SEQUENCE.encode() + b"\x71"
_CYCLE = 2**31  # after the highest number comes 0
_READ_BACK_EVENTS = 4096  # read backwards, more each time
_READ_BACK_S = 30.0  # until the last events of the earlier run are on disk
_READ_BACK_PAUSE_S = 0.05


def producer_id(*parts: object) -> int:
    """A producer id of 63 bits derived from `parts`: an AMQP long, not negative and not 0."""
    text = "\0".join(str(part) for part in parts)
    digest = hashlib.blake2b(text.encode(), digest_size=8, person=b"penstock sink").digest()
    return int.from_bytes(digest) >> 1 or 1


def publish(
    batches: Iterator[pa.RecordBatch], options: WriteOptions, identity: tuple[object, ...]
) -> int:
    """Publish every row and return their number when all are stored. `identity` is the same
    whenever the task is run again. Raises ClientError, or ArgumentError for a row that cannot be an
    event."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(_publish(batches, options, producer_id(*identity)))


async def _publish(batches: Iterator[pa.RecordBatch], options: WriteOptions, number: int) -> int:
    batch: Any = await asyncio.to_thread(next, batches, None)
    if batch is None:
        return 0
    sink = _SinkTask(options, None if options.idempotent is False else number)
    try:
        if not await sink.open():
            _log.info("eventhubs: the service is not Penstock: rows arrive at least once.")
            await sink.close()
            sink = _SinkTask(options, None)
            await sink.open()
        count = 0
        while batch is not None:
            # Spark hands over the next rows while these are encoded and sent.
            following = asyncio.get_running_loop().run_in_executor(None, next, batches, None)
            try:
                await sink.add(batch)
                count += batch.num_rows
            finally:
                batch = await following
        await sink.flush()
        return count
    finally:
        await sink.close()


class _SequenceNumbers:
    """Annotations of one partition's events: they differ only in the number and the key."""

    def __init__(self, state: ProducerState) -> None:
        self._state = state
        self.published = state.published
        self._split = lru_cache(_KEYS_MAX)(self._split_annotations)
        before, after = self._split(None)
        # Annotations without a key, and the position of the number in them.
        self.blank = before + bytes(_NUMBER.size) + after, len(before)

    def is_of(self, producer: ProducerState) -> bool:
        return (producer.id, producer.epoch) == (self._state.id, self._state.epoch)

    def next_annotations(self, key: str | None) -> bytes:
        before, after = self._split(key)
        return before + _NUMBER.pack((self.published + 1) % _CYCLE) + after

    def _split_annotations(self, key: str | None) -> tuple[bytes, bytes]:
        """What is before the number, and what is after it."""
        section = bytearray(annotations_section(key, stamped=True))
        write_stamp(section, 0, self._state, 0)
        position = section.index(_NUMBER_NAME) + len(_NUMBER_NAME)
        return bytes(section[:position]), bytes(section[position + _NUMBER.size :])


class _SinkBatch(EventDataBatch):
    """A batch to which parts of events are added, without an object per row. Events have their
    numbers from the beginning, since publications of a partition are sent one after the other."""

    def __init__(
        self, max_size_in_bytes: int, partition_id: str, numbers: _SequenceNumbers | None
    ) -> None:
        super().__init__(max_size_in_bytes, partition_id=partition_id, stamped=numbers is not None)
        self._numbers = numbers
        self._first = 0 if numbers is None else numbers.published + 1

    def append(self, body: bytes, properties: dict[str, object] | None, key: str | None) -> bool:
        """Add an event; False if it does not fit."""
        data, numbers = self._data, self._numbers
        before = len(data)
        if before + len(body) > self.max_size_in_bytes or self._count >= _EVENTS_MAX:
            return False
        if numbers is not None:
            annotations = numbers.next_annotations(key)
        else:
            annotations = b"" if key is None else annotations_section(key)
        if not append_event(data, annotations, b"", properties, body):
            EventData(body, properties=properties).append_to(data, annotations)
        if len(data) > self.max_size_in_bytes:
            del data[before:]
            return False
        if numbers is not None:
            numbers.published += 1
            self._starts.append(before + (5 if data[before + 3] == 0xA0 else 8))
        self._count += 1
        return True

    def append_rows(self, bodies: SinkBodies, first: int, stop: int) -> int:
        """Add rows that have only a body; return how many fit."""
        numbers = self._numbers
        annotations, number_at = (b"", -1) if numbers is None else numbers.blank
        starts = append_bodies(
            self._data,
            annotations,
            number_at,
            0 if numbers is None else (numbers.published + 1) % _CYCLE,
            bodies.data,
            bodies.ends,
            first,
            min(stop, first + _EVENTS_MAX - self._count),
            size_max=self.max_size_in_bytes,
        )
        if numbers is not None:
            numbers.published += len(starts)
            self._starts += starts
        self._count += len(starts)
        return len(starts)

    def stamp(self, producer: ProducerState) -> None:
        numbers = self._numbers
        if numbers is not None and numbers.is_of(producer) and producer.after(1) == self._first:
            start = self._envelope_size - len(self._annotations)
            write_stamp(self._data, start, producer, self._first)
        else:
            super().stamp(producer)


class _SinkPartition:
    """The rows for one partition. One publication is sent at a time, which keeps their order."""

    def __init__(self, partition_id: str, numbers: _SequenceNumbers | None) -> None:
        self.partition_id = partition_id
        self.numbers = numbers
        self.batch: _SinkBatch | None = None
        self.skip = 0  # rows that the service has already, if they cannot be read back
        self.sending: asyncio.Task[None] | None = None

    async def wait_sent(self) -> None:
        sending, self.sending = self.sending, None
        if sending is not None:
            await sending


class _SinkTask:
    """Publishes the rows of one task. With a producer id, each row is stored once."""

    def __init__(self, options: WriteOptions, number: int | None) -> None:
        self._options = options
        self._producer_id = number
        self._producer = EventHubProducerClient(
            **_client_arguments(options.target),
            idempotent=number is not None,
            producer_id=number,
            retry=RetryPolicy(options.retries_max, options.retry_backoff_s, 30.0),
        )
        self._partitions: dict[str, _SinkPartition] = {}
        self._stored: Counter[bytes] = Counter()  # rows of an earlier run, by `row_digest`
        self._ids: list[str] = []
        # Rows without key and partition go to one partition for a run, then to the next one.
        self._turn = self._run_rows = self._run_bytes = 0

    async def open(self) -> bool:
        """False if the service is not Penstock: by default the task trusts only Penstock to
        remember its producers."""
        options, number = self._options, self._producer_id
        is_unknown = number is not None and options.idempotent is None
        if is_unknown and await self._producer.get_service_product() != PRODUCT:
            return False
        ids = self._ids = await self._producer.get_partition_ids()
        if options.partition_id is not None and options.partition_id not in ids:
            raise _no_partition_error(options.partition_id, ids)
        if number is None:
            self._partitions = {key: _SinkPartition(key, None) for key in ids}
            return True
        # All partitions are asked before a row is sent: a row without a key may be in any of them.
        states = await asyncio.gather(*(self._producer.producer_state(key) for key in ids))
        by_id = dict(zip(ids, states, strict=True))
        self._partitions = {
            key: _SinkPartition(key, _SequenceNumbers(state)) for key, state in by_id.items()
        }
        counts = {key: state.published for key, state in by_id.items() if state.published}
        if counts:
            await self._find_stored_rows(number, counts)
        return True

    async def close(self) -> None:
        for partition in self._partitions.values():
            if partition.sending is not None:
                partition.sending.cancel()
                await asyncio.wait([partition.sending])
        await self._producer.close()

    async def add(self, rows: pa.RecordBatch) -> None:
        columns = SinkColumns(rows, self._options)
        bodies = columns.bodies_only() if self._can_add_runs() else None
        if bodies is not None:
            await self._add_bodies(bodies)
            return
        for body, properties, key, partition_id in columns:
            if self._stored and self._is_stored(body, key, properties):
                continue
            partition = self._partitions[self._choose_partition(partition_id, key, len(body))]
            if partition.skip:
                partition.skip -= 1
                continue
            batch = partition.batch
            if batch is None or not batch.append(body, properties, key):
                await self._send(partition)
                batch = await self._new_batch(partition)
                if not batch.append(body, properties, key):
                    raise _too_large_error(len(body), batch)
            if len(batch) >= (self._options.batch_events_max or _EVENTS_MAX):
                await self._send(partition)

    async def flush(self) -> None:
        """Return when everything is stored."""
        for partition in self._partitions.values():
            await self._send(partition)
        for partition in self._partitions.values():
            await partition.wait_sent()

    def _can_add_runs(self) -> bool:
        """Whether no row has to be examined on its own."""
        options = self._options
        is_first_run = not self._stored and not any(p.skip for p in self._partitions.values())
        return is_first_run and options.batch_events_max is None and options.partition_key is None

    async def _add_bodies(self, bodies: SinkBodies) -> None:
        row = 0
        while row < bodies.count:
            partition_id, stop = self._next_run(bodies, row)
            partition = self._partitions[partition_id]
            while row < stop:
                batch = partition.batch or await self._new_batch(partition)
                added = batch.append_rows(bodies, row, stop)
                row += added
                if row < stop:
                    if added == 0 and len(batch) == 0:
                        raise _too_large_error(bodies.size(row), batch)
                    await self._send(partition)

    def _next_run(self, bodies: SinkBodies, row: int) -> tuple[str, int]:
        """The partition of the row, and the first row that goes to another one. Chooses as
        `_choose_partition` does."""
        if self._options.partition_id is not None:
            return self._options.partition_id, bodies.count
        rows = bodies.rows_within(row, _RUN_BYTES - self._run_bytes)
        rows = min(rows, _RUN_ROWS - self._run_rows)
        if rows <= 0:
            self._turn += 1
            self._run_rows = self._run_bytes = 0
            rows = max(1, min(bodies.rows_within(row, _RUN_BYTES), _RUN_ROWS))
        self._run_rows += rows
        self._run_bytes += bodies.size(row, rows)
        return self._ids[self._turn % len(self._ids)], row + rows

    def _choose_partition(self, partition_id: str | None, key: str | None, size: int) -> str:
        """Depends on the rows alone, so that another run of the task chooses the same."""
        ids = self._ids
        if partition_id is not None:
            if partition_id not in self._partitions:
                raise _no_partition_error(partition_id, ids)
            return partition_id
        if key is not None:
            return ids[partition_for_key(key, len(ids))]
        self._run_rows += 1
        self._run_bytes += size
        if self._run_rows > _RUN_ROWS or self._run_bytes > _RUN_BYTES:
            self._run_rows, self._run_bytes = 1, size
            self._turn += 1
        return ids[self._turn % len(ids)]

    async def _new_batch(self, partition: _SinkPartition) -> _SinkBatch:
        allowed = (
            await self._producer.create_batch(partition_id=partition.partition_id)
        ).max_size_in_bytes
        size = min(allowed, self._options.batch_bytes_max or allowed)
        partition.batch = _SinkBatch(size, partition.partition_id, partition.numbers)
        return partition.batch

    async def _send(self, partition: _SinkPartition) -> None:
        batch, partition.batch = partition.batch, None
        if batch is None or len(batch) == 0:
            return
        await partition.wait_sent()
        partition.sending = asyncio.create_task(self._deliver(batch))
        await asyncio.sleep(0)  # its first bytes are sent before the next rows are encoded

    async def _deliver(self, batch: _SinkBatch) -> None:
        deadline_s = time.monotonic() + _BUSY_S_MAX
        while True:
            try:
                await self._producer.send_batch(batch)
                return
            except ClientThrottled:
                # The retry policy has waited already; the throughput units refill meanwhile.
                if self._options.throttling == "fail" or time.monotonic() > deadline_s:
                    raise

    # --- rows of an earlier run -----------------------------------------------------------------

    async def _find_stored_rows(self, number: int, counts: Mapping[str, int]) -> None:
        consumer = EventHubConsumerClient(**_client_arguments(self._options.target))
        try:
            for partition_id, count in counts.items():
                self._stored += await _read_stored_rows(consumer, partition_id, number, count)
        except ClientDenied:
            _log.warning(
                "eventhubs: the policy may not listen: rows that an earlier run has stored are "
                "skipped by their order."
            )
            self._stored.clear()
            for partition_id, count in counts.items():
                self._partitions[partition_id].skip = count
        finally:
            await consumer.close()

    def _is_stored(self, body: bytes, key: str | None, properties: Any) -> bool:
        digest = row_digest(body, key, properties)
        left = self._stored.get(digest, 0)
        if left:
            self._stored[digest] = left - 1
        return left > 0


def row_digest(body: bytes, key: str | None, properties: Mapping[str, object] | None) -> bytes:
    """The same for an event before it is sent and after it is read."""
    digest = hashlib.blake2b(body, digest_size=16)
    digest.update(b"\0" if key is None else b"\1" + key.encode())
    for name, value in sorted((properties or {}).items()):
        digest.update(f"\2{name}\3{value}".encode())
    return digest.digest()


async def _read_stored_rows(
    consumer: EventHubConsumerClient, partition_id: str, number: int, count: int
) -> Counter[bytes]:
    """The digests of `count` events of the producer `number`. Raises ClientError."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + _READ_BACK_S
    while True:
        rows = await _read_newest_rows(consumer, partition_id, number, count)
        if rows.total() >= count:
            return rows
        if loop.time() > deadline_s:
            raise ClientTimedOut(
                f"Partition {partition_id} has {count} events of an earlier run of this task, but "
                f"only {rows.total()} of them could be read within {_READ_BACK_S} s."
            )
        await asyncio.sleep(_READ_BACK_PAUSE_S)


async def _read_newest_rows(
    consumer: EventHubConsumerClient, partition_id: str, number: int, count: int
) -> Counter[bytes]:
    """Read the partition backwards until `count` events of the producer are found."""
    properties = await consumer.get_partition_properties(partition_id)
    rows: Counter[bytes] = Counter()
    if properties["is_empty"]:
        return rows
    last, begin = (
        properties["last_enqueued_sequence_number"],
        properties["beginning_sequence_number"],
    )
    length = max(_READ_BACK_EVENTS, 2 * count)
    while last >= begin and rows.total() < count:
        first = max(begin, last - length + 1)
        async for columns in consumer.read_range(partition_id, first, last):
            for event in to_events(columns):
                # Text keys or symbols: the codec returns both as str.
                if event.system_properties.get(PRODUCER_ID) == number:
                    rows[row_digest(event.body, event.partition_key, event.properties)] += 1
        last, length = first - 1, length * 2
    return rows


def _client_arguments(target: HubTarget) -> dict[str, Any]:
    return {
        "connection_string": target.connection_string.reveal(),
        "eventhub_name": target.eventhub_name,
        "ssl_context": unverified_tls_context() if target.insecure else None,
        "ca_file": target.ca_file,
        "timeout_s": target.timeout_s,
        "transport": target.transport,
    }


def _too_large_error(size: int, batch: EventDataBatch) -> ArgumentError:
    return ArgumentError(
        f"An event of {size} bytes and its properties does not fit into a publication of at most "
        f"{batch.max_size_in_bytes} bytes."
    )


def _no_partition_error(partition_id: str, ids: list[str]) -> ArgumentError:
    return ArgumentError(f"The hub has no partition {partition_id!r}: it has {', '.join(ids)}.")
