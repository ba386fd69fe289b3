"""The load generator behind `penstock bench`: prepared frames, pipelined, on one thread.

Nothing here costs Python per event but the reading of time stamps in `end_to_end`, which runs at a
fixed rate: the service is what is measured. Works against every Event Hubs endpoint.
"""

from __future__ import annotations

import asyncio
import secrets
import ssl
import struct
import time
from collections.abc import Callable, Iterable

import msgspec

from penstock.amqp.events import TransfersReceived
from penstock.amqp.performatives import Error
from penstock.client.connection import ClientError, Connection, Receiver, Sender, connect
from penstock.client.load.measurements import LoadResult, OutstandingDeliveries
from penstock.client.transfer_frames import (
    PreparedRun,
    TransferFraming,
    data_section,
    encode_publication,
)
from penstock.model.connection_string import Endpoint

QUIET_S = 2.0  # a reader that got nothing for this long has read everything
STAMP_BYTES = 16  # the least size of an event that tells when it was sent
_REPORT_S = 0.25
_DRAIN_S = 30.0
_TICK_S = 0.001  # what the loops' timers resolve
_LATE_S = 0.0025  # lateness of a timer; an event later than this was kept waiting
_STAMP = struct.Struct(">8sd")

Report = Callable[[float, int], None]
"""Called four times a second with the seconds that passed and the events so far."""


class LoadProfile(msgspec.Struct, frozen=True, kw_only=True):
    """What is published, and how."""

    hub: str
    partition: str | None = None
    size: int = 100
    batch: int = 100
    in_flight: int = 64
    connections: int = 1
    duration_s: float = 5.0
    events_max: int | None = None  # then the run ends, whatever the duration
    rate: float | None = None  # events a second, over all connections

    @property
    def address(self) -> str:
        return self.hub if self.partition is None else f"{self.hub}/Partitions/{self.partition}"


# --- publishing ---------------------------------------------------------------------------------


class LoadRate:
    """When deliveries are due, at a fixed rate. What is not sent in time counts from when it was
    due: a service that stalls must not choose which moments are measured."""

    def __init__(self, per_s: float, started_s: float) -> None:
        self._interval_s = 1 / per_s
        self._started_s = started_s
        self._taken = 0
        self.tick_s = max(self._interval_s, _TICK_S)

    def due(self, now_s: float) -> int:
        return int((now_s - self._started_s) / self._interval_s) + 1 - self._taken

    def take(self, count_max: int, now_s: float) -> tuple[int, float]:
        """How many to send as one burst, and from when on they count."""
        due_s = self._started_s + self._taken * self._interval_s
        if now_s - due_s < _LATE_S:
            self._taken += count_max
            return count_max, now_s
        count = min(count_max, max(1, int(_TICK_S / self._interval_s)))
        self._taken += count
        return count, due_s


class TimestampedRun:
    """Events that carry the run's mark and when they were sent: made anew for each burst."""

    def __init__(self, framing: TransferFraming, *, size: int, batch: int, mark: bytes) -> None:
        assert size >= STAMP_BYTES
        self._framing = framing
        self._batch = batch
        self._mark = mark
        self._rest = bytes(size - STAMP_BYTES)
        self.pieces = framing.pieces(len(self._payload(0.0)))

    def take(self, first_id: int, count: int, at_s: float) -> bytes:
        payload = self._payload(at_s)
        make = self._framing.delivery
        return b"".join([make(payload, (first_id + i) & 0xFFFFFFFF) for i in range(count)])

    def _payload(self, at_s: float) -> bytes:
        message = data_section(_STAMP.pack(self._mark, at_s) + self._rest)
        return message if self._batch == 1 else data_section(message) * self._batch


class LoadProducer:
    """Keeps `in_flight` deliveries outstanding on one link, as far as credit and window allow."""

    def __init__(
        self,
        sender: Sender,
        load: LoadProfile,
        *,
        events_max: int | None = None,
        mark: bytes | None = None,
        payload: bytes | None = None,
    ) -> None:
        """`mark` makes events that tell when they were sent; `payload` is an encoded message to
        send instead of the load's own."""
        self._sender = sender
        self._link = sender.link
        self._load = load
        self._left = None if events_max is None else -(-events_max // load.batch)
        made, message_format = encode_publication(load.size, load.batch)
        session = self._link.session
        framing = TransferFraming(
            channel=session.channel,
            handle=self._link.handle,
            message_format=message_format,
            frame_bytes_max=session.frame_bytes_max,
        )
        self._stamped = None
        if mark is not None:
            self._stamped = TimestampedRun(framing, size=load.size, batch=load.batch, mark=mark)
        self._prepared = PreparedRun(framing, made if payload is None else payload)
        self._pieces = self._prepared.pieces
        self._outstanding = OutstandingDeliveries()
        self._pace: LoadRate | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._scheduled = False
        self._stopping = False
        self.result = LoadResult()
        self.finished: asyncio.Future[None] = self._loop.create_future()
        sender.on_room_callback = self._schedule
        sender.on_range = self._on_settled

    def start(self) -> None:
        rate = self._load.rate
        if rate is not None:
            share = rate / self._load.connections / self._load.batch
            self._pace = LoadRate(share, time.perf_counter())
            self._tick()
        self._fill()

    def stop(self) -> None:
        """Send nothing more; `finished` is done when the last is settled."""
        self._stopping = True
        if self._timer is not None:
            self._timer.cancel()
        self._finish_if_idle()

    def _tick(self) -> None:
        assert self._pace is not None
        self._timer = self._loop.call_later(self._pace.tick_s, self._tick)
        self._fill()

    def _schedule(self) -> None:
        """Once per turn of the loop, however many frames of it gave room."""
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._fill)

    def _fill(self) -> None:
        self._scheduled = False
        if self._sender.error is not None:
            self._on_link_lost(self._sender.error)
            return
        if self._stopping or self._sender.connection.write_paused:
            return
        now_s = time.perf_counter()
        room = self._room(now_s)
        while room > 0:
            room -= self._send(room, now_s)
        self._sender.connection.flush()
        if self._left == 0:
            self.stop()

    def _room(self, now_s: float) -> int:
        room = min(
            self._load.in_flight - self._outstanding.count,
            self._link.credit,
            self._link.sendable_frames // self._pieces,
        )
        if self._left is not None:
            room = min(room, self._left)
        return room if self._pace is None else min(room, self._pace.due(now_s))

    def _send(self, room: int, now_s: float) -> int:
        """One burst; how many deliveries it has."""
        link, at_s = self._link, now_s
        first = link.session.next_delivery_id
        if self._pace is not None:
            room, at_s = self._pace.take(room, now_s)
        if self._stamped is not None:
            data, count = self._stamped.take(first, room, at_s), room
        else:
            data, count = self._prepared.take(first, room)
            if self._pace is not None:
                while count < room:  # the pace has counted them: all of them go now
                    more, taken = self._prepared.take((first + count) & 0xFFFFFFFF, room - count)
                    data, count = data + more, count + taken
        link.send_transfers(data, deliveries=count, frames=count * self._pieces)
        self._outstanding.add(first, count, at_s)
        if self._left is not None:
            self._left -= count
        return count

    def _on_settled(self, first: int, last: int, error: Error | None) -> None:
        now_s = time.perf_counter()
        result, load = self.result, self._load
        for count, at_s in self._outstanding.settle(first, last):
            if error is None:
                result.events += count * load.batch
                result.payload_bytes += count * load.batch * load.size
                result.latencies.add((now_s - at_s) * 1000, count)
            else:
                self._count_errors(count, error)
        if self._stopping:
            self._finish_if_idle()
        else:
            self._schedule()

    def _on_link_lost(self, error: ClientError) -> None:
        """The link is no more: nothing will be heard of what is outstanding."""
        self._stopping = True
        if self._timer is not None:
            self._timer.cancel()
        wire = error.error or Error(condition="amqp:link:detach-forced", description=str(error))
        self._count_errors(max(1, self._outstanding.clear()), wire)
        self._finish_if_idle()

    def _count_errors(self, count: int, error: Error) -> None:
        self.result.errors += count
        if self.result.first_error is None:
            self.result.first_condition = error.condition
            self.result.first_error = f"{error.condition}: {error.description}"

    def _finish_if_idle(self) -> None:
        if self._outstanding.count == 0 and not self.finished.done():
            self.finished.set_result(None)


async def publish(
    endpoint: Endpoint,
    load: LoadProfile,
    *,
    tls: ssl.SSLContext | None,
    report: Report | None = None,
) -> LoadResult:
    """Publish as fast as the service acknowledges, or at the load's rate, for a while."""
    opened: list[Connection] = []
    try:
        publishers = await _publishers(endpoint, load, tls=tls, opened=opened)
        return await run_publishers(publishers, load, report)
    finally:
        await _close(opened)


async def _publishers(
    endpoint: Endpoint,
    load: LoadProfile,
    *,
    tls: ssl.SSLContext | None,
    opened: list[Connection],
    mark: bytes | None = None,
) -> list[LoadProducer]:
    """A connection, a link and a publisher each; `opened` are the caller's to close."""
    publishers = []
    for number in range(load.connections):
        connection = await connect(endpoint, tls=tls)
        opened.append(connection)
        await connection.authorise(load.hub)
        sender = await connection.sender(load.address)
        share = _share(load.events_max, load.connections, number)
        publishers.append(LoadProducer(sender, load, events_max=share, mark=mark))
    return publishers


async def run_publishers(
    publishers: list[LoadProducer], load: LoadProfile, report: Report | None = None
) -> LoadResult:
    """Start them together, stop them together, wait for what is outstanding."""
    started_s, cpu_s = time.perf_counter(), time.process_time()
    for publisher in publishers:
        publisher.start()
    finished = [publisher.finished for publisher in publishers]

    def events() -> int:
        return sum(publisher.result.events for publisher in publishers)

    await _wait(finished, load.duration_s, events, report)
    for publisher in publishers:
        publisher.stop()
    _, pending = await asyncio.wait(finished, timeout=_DRAIN_S)
    if pending:
        raise TimeoutError(
            f"{len(pending)} of {len(finished)} connections have deliveries that were not "
            f"acknowledged within {_DRAIN_S:.0f} s."
        )
    result = LoadResult(
        seconds=time.perf_counter() - started_s, cpu_seconds=time.process_time() - cpu_s
    )
    for publisher in publishers:
        result.merge(publisher.result)
    return result


# --- reading ------------------------------------------------------------------------------------


class LoadConsumer:
    """Counts what arrives in runs, as the scan kernel found them; nothing is decoded."""

    def __init__(self, events_max: int | None) -> None:
        self.events = 0
        self.payload_bytes = 0
        self.last_s = 0.0
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._events_max = events_max
        self._timer: asyncio.TimerHandle | None = None

    def on_transfers(self, event: TransfersReceived) -> None:
        self.last_s = time.perf_counter()
        self.events += event.count
        self.payload_bytes += sum(event.bounds[1::2]) - sum(event.bounds[::2])
        if self._events_max is not None and self.events >= self._events_max:
            self.finish()

    def finish(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self.finished.done():
            self.finished.set_result(None)

    def finish_when_quiet(self) -> None:
        """Finish once nothing came for QUIET_S."""
        loop = asyncio.get_running_loop()
        quiet_s = time.perf_counter() - self.last_s
        if quiet_s >= QUIET_S:
            self.finish()
        elif not self.finished.done():
            self._timer = loop.call_later(QUIET_S - quiet_s, self.finish_when_quiet)


async def receive(
    endpoint: Endpoint,
    hub: str,
    *,
    group: str = "$Default",
    partitions: list[str],
    connections: int = 1,
    credit: int = 20_000,
    events_max: int | None = None,
    duration_s: float = 60.0,
    tls: ssl.SSLContext | None,
    report: Report | None = None,
) -> LoadResult:
    """Read partitions from their start, until nothing comes, `events_max`, or the time is up."""
    reading = LoadConsumer(events_max)
    opened: list[Connection] = []
    try:
        for _ in range(connections):
            connection = await connect(endpoint, tls=tls)
            opened.append(connection)
            await connection.authorise(hub)
        started_s, cpu_s = time.perf_counter(), time.process_time()
        reading.last_s = started_s
        receivers: list[Receiver] = []
        for connection, partition in _shared_out(opened, partitions):
            receivers.append(
                await connection.receiver(
                    f"{hub}/ConsumerGroups/{group}/Partitions/{partition}",
                    credit=credit,
                    on_transfers=reading.on_transfers,
                    selector="amqp.annotation.x-opt-offset > '-1'",
                )
            )
        reading.finish_when_quiet()
        ended = [receiver.ended for receiver in receivers]
        await _wait(
            [reading.finished, *ended], duration_s, lambda: reading.events, report, any_=True
        )
        cpu_s = time.process_time() - cpu_s
        _raise_first([receiver.error for receiver in receivers])
    finally:
        reading.finish()
        await _close(opened)
    if reading.events == 0:
        raise ClientError(f"Nothing came from {hub} within {duration_s} s: publish first.")
    return LoadResult(
        events=reading.events,
        payload_bytes=reading.payload_bytes,
        seconds=max(reading.last_s - started_s, 1e-9),
        cpu_seconds=cpu_s,
    )


# --- end to end ---------------------------------------------------------------------------------


class LatencyConsumer:
    """Reads when each event of this run was sent; what others publish is passed over."""

    def __init__(self, *, size: int, mark: bytes) -> None:
        self._size = size
        self._mark = mark
        self._awaited: int | None = None
        self.result = LoadResult()
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_transfers(self, event: TransfersReceived) -> None:
        now_s = time.perf_counter()
        data, size, result = event.data, self._size, self.result
        for stop in event.bounds[1::2]:
            if stop < size:
                continue
            mark, at_s = _STAMP.unpack_from(data, stop - size)
            if mark == self._mark:
                result.events_read += 1
                result.deliveries.add((now_s - at_s) * 1000)
        self._finish_if_complete()

    def expect(self, events: int) -> None:
        """`finished` is done when so many have come."""
        self._awaited = events
        self._finish_if_complete()

    def _finish_if_complete(self) -> None:
        complete = self._awaited is not None and self.result.events_read >= self._awaited
        if complete and not self.finished.done():
            self.finished.set_result(None)


async def end_to_end(
    endpoint: Endpoint,
    load: LoadProfile,
    *,
    group: str = "$Default",
    tls: ssl.SSLContext | None,
    report: Report | None = None,
) -> LoadResult:
    """Publish to one partition and read it at the same time, in this process: one clock."""
    assert load.partition is not None
    mark = secrets.token_bytes(8)
    reader = LatencyConsumer(size=load.size, mark=mark)
    opened: list[Connection] = []
    try:
        connection = await connect(endpoint, tls=tls)
        opened.append(connection)
        await connection.authorise(load.hub)
        receiver = await connection.receiver(
            f"{load.hub}/ConsumerGroups/{group}/Partitions/{load.partition}",
            credit=20_000,
            on_transfers=reader.on_transfers,
            selector="amqp.annotation.x-opt-offset > '@latest'",
        )
        publishers = await _publishers(endpoint, load, tls=tls, opened=opened, mark=mark)
        result = await run_publishers(publishers, load, report)
        reader.expect(result.events)
        await asyncio.wait([reader.finished, receiver.ended], timeout=QUIET_S)
        _raise_first([receiver.error])
        result.merge(reader.result)
        return result
    finally:
        await _close(opened)


# --- shared -------------------------------------------------------------------------------------


async def _wait(
    futures: Iterable[asyncio.Future[None]],
    seconds: float,
    events: Callable[[], int],
    report: Report | None,
    *,
    any_: bool = False,
) -> None:
    """Until all futures (or any) are done, or the time is up; tells how far it is on the way."""
    started_s = time.perf_counter()
    pending = set(futures)
    when = asyncio.FIRST_COMPLETED if any_ else asyncio.ALL_COMPLETED
    while True:
        left_s = seconds - (time.perf_counter() - started_s)
        if left_s <= 0:
            return
        step_s = left_s if report is None else min(left_s, _REPORT_S)
        done, waiting = await asyncio.wait(pending, timeout=step_s, return_when=when)
        if report is not None:
            report(time.perf_counter() - started_s, events())
        if not waiting or (any_ and done):
            return


def _share(total: int | None, parts: int, number: int) -> int | None:
    if total is None:
        return None
    return total // parts + (1 if number < total % parts else 0)


def _shared_out(
    connections: list[Connection], partitions: list[str]
) -> list[tuple[Connection, str]]:
    """Every partition is read at least once, and every connection reads."""
    count = max(len(connections), len(partitions))
    return [
        (connections[i % len(connections)], partitions[i % len(partitions)]) for i in range(count)
    ]


def _raise_first(errors: list[ClientError | None]) -> None:
    for error in errors:
        if error is not None:
            raise error


async def _close(connections: list[Connection]) -> None:
    if connections:
        await asyncio.gather(*(connection.close() for connection in connections))
