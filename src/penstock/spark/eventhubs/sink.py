"""The sink's task: rows of Arrow batches become publications, each row once where that can be.

Every task of a query publishes under a producer id of its own, made from the query, its batch and
the task. The service knows how many events it has of that id in each partition: a task that is run
again (its first run was killed, or the driver was) asks, takes the place of a first run that is not
quite dead, reads back which rows they are, and leaves those out. With a policy that may only send
nothing can be read back: then so many rows are left out, in the order in which they come.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import logging
import struct
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from penstock.client.consumer import EventHubConsumerClient
from penstock.client.errors import ClientDenied, ClientThrottled
from penstock.client.event_data import EventData, EventDataBatch
from penstock.client.idempotence import (
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
from penstock.spark.eventhubs.options import WriteOptions
from penstock.spark.eventhubs.stored_batches import read_stored_rows, row_digest

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger("penstock.spark")
_BUSY_S_MAX = 15 * 60.0  # a service that is busy for longer will not be better soon
_RUN_BYTES = 128 * 1024  # of rows without key and partition, before the next partition's turn
_RUN_ROWS = 4096
_KEY_CHARACTERS_MAX = 128
_EVENTS_MAX = 65_536
_KEYS_MAX = 4096  # whose annotations are kept ready
_NUMBER = struct.Struct(">i")
_NUMBER_NAME = PRODUCER_SEQUENCE.encode() + b"\x71"
_CYCLE = 2**31  # after the highest number comes 0


def producer_id(*parts: object) -> int:
    """63 bits that nobody else has: an AMQP long that is not negative, and not 0."""
    text = "\0".join(str(part) for part in parts)
    digest = hashlib.blake2b(text.encode(), digest_size=8, person=b"penstock sink").digest()
    return int.from_bytes(digest) >> 1 or 1


def publish(
    batches: Iterator[pa.RecordBatch], options: WriteOptions, identity: tuple[object, ...]
) -> int:
    """Publish every row; how many there were. Returns when all are stored. Raises ClientError,
    ArgumentError for a row that cannot be an event."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(_publish(batches, options, producer_id(*identity)))


async def _publish(batches: Iterator[pa.RecordBatch], options: WriteOptions, number: int) -> int:
    first: Any = await asyncio.to_thread(next, batches, None)
    if first is None:
        return 0
    sink = _SinkTask(options, None if options.idempotent is False else number)
    try:
        if not await sink.open():
            _log.info("eventhubs: the service is not Penstock: rows arrive at least once.")
            await sink.close()
            sink = _SinkTask(options, None)
            await sink.open()
        count = 0
        batch = first
        while batch is not None:
            # The next rows come while these are encoded and sent.
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


class _SinkBatch(EventDataBatch):
    """A batch that takes an event's parts: no object per row. Its events have their numbers from
    the beginning, since a partition's publications leave one after the other."""

    def __init__(
        self, max_size_in_bytes: int, *, partition_id: str | None, stamps: _SequenceNumbers | None
    ) -> None:
        super().__init__(max_size_in_bytes, partition_id=partition_id, stamped=stamps is not None)
        self.lane = partition_id
        self._stamps = stamps
        self._first = 0 if stamps is None else stamps.published + 1

    def append(self, body: bytes, properties: dict[str, object] | None, key: str | None) -> bool:
        """False when it has no room."""
        data, stamps = self._data, self._stamps
        before = len(data)
        if before + len(body) > self.max_size_in_bytes or self._count >= _EVENTS_MAX:
            return False
        if stamps is not None:
            own = stamps.next(key)
        else:
            own = b"" if key is None else annotations_section(key)
        if not append_event(data, own, b"", properties, body):
            EventData(body, properties=properties).append_to(data, own)
        if len(data) > self.max_size_in_bytes:
            del data[before:]
            return False
        if stamps is not None:
            stamps.published += 1
            self._starts.append(before + (5 if data[before + 3] == 0xA0 else 8))
        self._count += 1
        return True

    def append_rows(self, bodies: SinkBodies, first: int, stop: int) -> int:
        """The same for rows that are nothing but bodies; how many had room."""
        stamps = self._stamps
        own, number_at = (b"", -1) if stamps is None else stamps.blank
        starts = append_bodies(
            self._data,
            own,
            number_at,
            0 if stamps is None else (stamps.published + 1) % _CYCLE,
            bodies.data,
            bodies.ends,
            first,
            min(stop, first + _EVENTS_MAX - self._count),
            size_max=self.max_size_in_bytes,
        )
        if stamps is not None:
            stamps.published += len(starts)
            self._starts += starts
        self._count += len(starts)
        return len(starts)

    def stamp(self, producer: ProducerState) -> None:
        stamps = self._stamps
        if stamps is not None and stamps.are_of(producer) and producer.after(1) == self._first:
            write_stamp(
                self._data, self._envelope_size - len(self._annotations), producer, self._first
            )
        else:
            super().stamp(producer)


class _SequenceNumbers:
    """The annotations of one partition's events: all the same but for the number, and the key."""

    def __init__(self, state: ProducerState) -> None:
        self._state = state
        self.published = state.published
        self._made: dict[str | None, tuple[bytes, bytes]] = {}
        before, behind = self._make(None)
        self.blank = before + bytes(_NUMBER.size) + behind, len(before)  # and where its number goes

    def are_of(self, producer: ProducerState) -> bool:
        return (producer.id, producer.epoch) == (self._state.id, self._state.epoch)

    def next(self, key: str | None) -> bytes:
        made = self._made.get(key)
        if made is None:
            made = self._make(key)
        return made[0] + _NUMBER.pack((self.published + 1) % _CYCLE) + made[1]

    def _make(self, key: str | None) -> tuple[bytes, bytes]:
        """What stands before the number and behind it."""
        if len(self._made) >= _KEYS_MAX:
            self._made.clear()
        section = bytearray(annotations_section(key, stamped=True))
        write_stamp(section, 0, self._state, 0)
        at = section.index(_NUMBER_NAME) + len(_NUMBER_NAME)
        made = self._made[key] = bytes(section[:at]), bytes(section[at + _NUMBER.size :])
        return made


class _SinkPartition:
    """One partition's rows."""

    def __init__(self, partition_id: str | None, stamps: _SequenceNumbers | None) -> None:
        self.partition_id = partition_id
        self.stamps = stamps
        self.batch: _SinkBatch | None = None
        self.skip = 0  # rows that the service has already, when nobody can say which
        self.sending: asyncio.Task[None] | None = None


class _SinkTask:
    def __init__(self, options: WriteOptions, number: int | None) -> None:
        target = options.target
        self._options = options
        self._is_idempotent = number is not None
        self._producer = EventHubProducerClient(
            target.connection_string.reveal(),
            eventhub_name=target.eventhub_name,
            idempotent=number is not None,
            producer_id=number,
            ssl_context=unverified_tls_context() if target.insecure else None,
            ca_file=target.ca_file,
            retry=RetryPolicy(options.retries_max, options.retry_backoff_s, 30.0),
            timeout_s=target.timeout_s,
            transport="websocket" if target.websocket else "amqp",
        )
        self._producer_id = number
        self._lanes: dict[str, _SinkPartition] = {}
        self._stored: Counter[bytes] = Counter()  # of an earlier run, by `row_digest`
        self._ids: list[str] = []
        self._turn = 0
        self._run_rows = self._run_bytes = 0

    async def open(self) -> bool:
        """False where each row once is not promised: by default only Penstock is trusted to know
        its producers for ever."""
        is_asked = self._is_idempotent and self._options.idempotent is None
        if is_asked and await self._producer.get_service_product() != PRODUCT:
            return False
        self._ids = await self._producer.get_partition_ids()
        wanted = self._options.partition_id
        if wanted is not None and wanted not in self._ids:
            raise ArgumentError(_no_partition(wanted, self._ids))
        if self._producer_id is not None:
            # All are asked before any row goes: one without a key may have gone to any of them.
            places = self._ids
            states = await asyncio.gather(*(self._producer.producer_state(p) for p in places))
            told = list(zip(places, states, strict=True))
            self._lanes = {
                place: _SinkPartition(place, _SequenceNumbers(state)) for place, state in told
            }
            counts = {place: state.published for place, state in told if state.published}
            if counts:
                await self._leave_out(self._producer_id, counts)
        return True

    async def close(self) -> None:
        for lane in self._lanes.values():
            if lane.sending is not None:
                lane.sending.cancel()
                await asyncio.wait([lane.sending])
        await self._producer.close()

    async def add(self, rows: pa.RecordBatch) -> None:
        columns = SinkColumns(rows, self._options)
        bodies = None if self._is_particular else columns.bodies_alone()
        if bodies is not None:
            await self._add_bodies(bodies)
            return
        for body, properties, key, partition_id in columns:
            if self._stored and self._is_stored(body, key, properties):
                continue
            place = self._place(partition_id, key, len(body))
            lane = self._lanes.get(place) or self._new_lane(place)
            if lane.skip:
                lane.skip -= 1
                continue
            batch = lane.batch
            if batch is None or not batch.append(body, properties, key) or self._is_full(batch):
                await self._next(lane, batch, body, properties, key)

    @property
    def _is_particular(self) -> bool:
        """Whether rows have to be looked at one by one."""
        options = self._options
        return (
            bool(self._stored)
            or any(lane.skip for lane in self._lanes.values())
            or options.batch_events_max is not None
            or options.partition_key is not None
        )

    async def _add_bodies(self, bodies: SinkBodies) -> None:
        """Rows that are nothing but bodies, in runs: each goes to one partition."""
        row = 0
        while row < bodies.count:
            place, stop = self._run(bodies, row)
            lane = self._lanes.get(place) or self._new_lane(place)
            while row < stop:
                if lane.batch is None:
                    lane.batch = await self._new_batch(lane)
                added = lane.batch.append_rows(bodies, row, stop)
                row += added
                if row < stop:
                    if added == 0 and len(lane.batch) == 0:
                        raise _too_large(bodies.size(row), lane.batch)
                    await self._send(lane)

    def _run(self, bodies: SinkBodies, row: int) -> tuple[str, int]:
        """Where the row goes, and before which one that changes; as `_place` has it."""
        wanted = self._options.partition_id
        if wanted is not None:
            return wanted, bodies.count
        rows = bodies.rows_within(row, _RUN_BYTES - self._run_bytes)
        rows = min(rows, _RUN_ROWS - self._run_rows)
        if rows <= 0:
            self._turn += 1
            self._run_rows = self._run_bytes = 0
            rows = max(1, min(bodies.rows_within(row, _RUN_BYTES), _RUN_ROWS))
        self._run_rows += rows
        self._run_bytes += bodies.size(row, rows)
        return self._ids[self._turn % len(self._ids)], row + rows

    async def flush(self) -> None:
        """Everything is stored when this returns."""
        for lane in self._lanes.values():
            await self._send(lane)
        for lane in self._lanes.values():
            await self._wait_sent(lane)

    # --- inside ---------------------------------------------------------------------------------

    async def _leave_out(self, number: int, counts: dict[str, int]) -> None:
        """This task ran before, and so many of its events are stored."""
        target = self._options.target
        consumer = EventHubConsumerClient(
            target.connection_string.reveal(),
            eventhub_name=target.eventhub_name,
            ssl_context=unverified_tls_context() if target.insecure else None,
            ca_file=target.ca_file,
            timeout_s=target.timeout_s,
            transport="websocket" if target.websocket else "amqp",
        )
        try:
            self._stored = await read_stored_rows(consumer, number, counts)
        except ClientDenied:
            _log.warning(
                "eventhubs: the policy may not listen: rows that an earlier run has stored are "
                "left out by their order."
            )
            for place, count in counts.items():
                self._lanes[place].skip = count
        finally:
            await consumer.close()

    def _is_stored(self, body: bytes, key: str | None, properties: Any) -> bool:
        digest = row_digest(body, key, properties)
        left = self._stored.get(digest, 0)
        if left:
            self._stored[digest] = left - 1
        return left > 0

    def _is_full(self, batch: _SinkBatch) -> bool:
        most = self._options.batch_events_max
        return most is not None and len(batch) >= most

    async def _next(
        self,
        lane: _SinkPartition,
        batch: _SinkBatch | None,
        body: bytes,
        properties: dict[str, object] | None,
        key: str | None,
    ) -> None:
        """The batch goes, and the event into the next one unless it is in it."""
        if batch is not None and self._is_full(batch):
            await self._send(lane)
            return
        await self._send(lane)
        batch = lane.batch = await self._new_batch(lane)
        if not batch.append(body, properties, key):
            raise _too_large(len(body), batch)
        if self._is_full(batch):
            await self._send(lane)

    async def _new_batch(self, lane: _SinkPartition) -> _SinkBatch:
        made = await self._producer.create_batch(partition_id=lane.partition_id)
        allowed = made.max_size_in_bytes
        size = min(allowed, self._options.batch_bytes_max or allowed)
        return _SinkBatch(size, partition_id=lane.partition_id, stamps=lane.stamps)

    def _new_lane(self, place: str) -> _SinkPartition:
        assert not self._is_idempotent, "all partitions were asked when it was opened"
        lane = self._lanes[place] = _SinkPartition(place, None)
        return lane

    def _place(self, partition_id: str | None, key: str | None, size: int) -> str:
        """A function of the rows alone: another run of the task chooses the same."""
        ids = self._ids
        if partition_id is not None:
            if partition_id not in ids:
                raise ArgumentError(_no_partition(partition_id, ids))
            return partition_id
        if key is not None:
            return ids[partition_for_key(key, len(ids))]
        self._run_rows += 1
        self._run_bytes += size
        if self._run_rows > _RUN_ROWS or self._run_bytes > _RUN_BYTES:
            self._run_rows, self._run_bytes = 1, size
            self._turn += 1
        return ids[self._turn % len(ids)]

    async def _send(self, lane: _SinkPartition) -> None:
        """One publication of a partition is on its way at a time: order."""
        batch, lane.batch = lane.batch, None
        if batch is None or len(batch) == 0:
            return
        await self._wait_sent(lane)
        lane.sending = asyncio.create_task(self._deliver(batch))
        await asyncio.sleep(0)  # its first bytes leave before the next rows are encoded

    async def _wait_sent(self, lane: _SinkPartition) -> None:
        sending, lane.sending = lane.sending, None
        if sending is not None:
            await sending

    async def _deliver(self, batch: _SinkBatch) -> None:
        deadline_s = time.monotonic() + _BUSY_S_MAX
        while True:
            try:
                await self._producer.send_batch(batch)
                return
            except ClientThrottled:
                # The retry policy has waited as often as it may; the meter refills all the time.
                if not self._options.waits_when_throttled or time.monotonic() > deadline_s:
                    raise


class SinkBodies:
    """A column of bodies as Arrow has it: `data`, and where each row ends."""

    def __init__(self, column: Any) -> None:
        _, ends, data = column.buffers()
        self.count = len(column)
        self.data = memoryview(data if data is not None else b"").cast("B")
        first = 4 * column.offset  # a slice has the offsets of the whole
        self.ends = memoryview(ends).cast("B")[first : first + 4 * (self.count + 1)]
        self._ends = self.ends.cast("i")

    def size(self, row: int, rows: int = 1) -> int:
        return self._ends[row + rows] - self._ends[row]

    def rows_within(self, row: int, size: int) -> int:
        """How many from `row` on have no more bytes than that."""
        ends = self._ends
        return bisect_right(ends, ends[row] + size, row + 1, self.count + 1) - row - 1


class SinkColumns:
    """The rows of one Arrow batch as events: body, properties, partition key, partition id."""

    def __init__(self, rows: pa.RecordBatch, options: WriteOptions) -> None:
        self._rows = rows
        self._options = options
        self._names = {name.lower(): index for index, name in enumerate(rows.schema.names)}

    def bodies_alone(self) -> SinkBodies | None:
        """When no row has a key, a partition or properties of its own, and there is a row."""
        others = ("partitionkey", "partitionid", "properties")
        columns = [self._rows.column(self._names[each]) for each in others if each in self._names]
        if not self._rows.num_rows or any(each.null_count < len(each) for each in columns):
            return None
        return SinkBodies(self._body())

    def _body(self) -> Any:
        import pyarrow as pa

        body = self._rows.column(self._names["body"])
        if not pa.types.is_binary(body.type):
            body = body.cast(pa.binary())
        if body.null_count:
            raise ArgumentError("A row's body is null: every event needs one (it may be empty).")
        return body

    def __iter__(
        self,
    ) -> Iterator[tuple[bytes, dict[str, object] | None, str | None, str | None]]:
        body = self._body()
        keys = self._texts("partitionkey", self._options.partition_key)
        ids = self._texts("partitionid", self._options.partition_id)
        return zip(body.to_pylist(), self._properties(), keys, ids, strict=False)

    def _texts(self, name: str, constant: str | None) -> Iterator[str | None]:
        import pyarrow as pa

        index = self._names.get(name)
        if index is None:
            return itertools.repeat(constant)
        column = self._rows.column(index)
        if not pa.types.is_string(column.type):
            column = column.cast(pa.string())
        if constant is not None:
            column = column.fill_null(constant)
        other = self._names.get("partitionid" if name == "partitionkey" else "partitionkey")
        if name == "partitionkey":
            self._check_keys(column, other)
        return iter(column.to_pylist())

    def _check_keys(self, keys: Any, ids_at: int | None) -> None:
        import pyarrow.compute as pc

        longest = pc.max(pc.utf8_length(keys)).as_py() or 0
        if longest > _KEY_CHARACTERS_MAX:
            raise ArgumentError(
                f"A partitionKey has {longest} characters: at most {_KEY_CHARACTERS_MAX} are "
                "allowed."
            )
        if ids_at is None:
            return
        both = pc.and_(pc.is_valid(keys), pc.is_valid(self._rows.column(ids_at)))
        if pc.any(both).as_py():
            raise ArgumentError(
                "A row has a partitionKey and a partitionId: only one of them may be set."
            )

    def _properties(self) -> Iterator[dict[str, object] | None]:
        index = self._names.get("properties")
        if index is None:
            return itertools.repeat(None)
        column = self._rows.column(index)
        return (dict(pairs) if pairs else None for pairs in column.to_pylist())


def _too_large(size: int, batch: EventDataBatch) -> ArgumentError:
    return ArgumentError(
        f"An event of {size} bytes and its properties does not fit into a publication of at most "
        f"{batch.max_size_in_bytes} bytes."
    )


def _no_partition(wanted: str, ids: list[str]) -> str:
    return f"The hub has no partition {wanted!r}: it has {', '.join(ids)}."
