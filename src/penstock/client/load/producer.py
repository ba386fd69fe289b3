"""Publishing for `penstock bench`: prepared frames, pipelined, on one thread.

No Python code runs per event, so that the service is measured and not the generator. Works with
every Event Hubs endpoint.
"""

from __future__ import annotations

import asyncio
import ssl
import struct
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

import msgspec

from penstock.amqp.performatives import Error
from penstock.client.connection import Connection, connect
from penstock.client.errors import ClientError
from penstock.client.links import Sender
from penstock.client.load.measurements import LoadResult, OutstandingDeliveries
from penstock.client.transfer_frames import (
    PreparedRun,
    TransferFraming,
    encode_events,
    encode_publication,
)
from penstock.model.connection_string import Endpoint

STAMP = struct.Struct(">8sd")  # the mark of the run, and when the event was sent
STAMP_BYTES = STAMP.size  # the least size of an event with a stamp
_REPORT_S = 0.25
_DRAIN_S = 30.0
_TICK_S = 0.001  # the resolution of the event loop's timers
_LATE_S = 0.0025  # timers are late by less; an event that is later had to wait for the service

Report = Callable[[float, int], None]
"""Called four times a second with the elapsed seconds and the number of events so far."""


class LoadProfile(msgspec.Struct, frozen=True, kw_only=True):
    """What is published, and how fast."""

    hub: str
    partition: str | None = None
    size: int = 100
    batch: int = 100
    in_flight: int = 64
    connections: int = 1
    duration_s: float = 5.0
    events_max: int | None = None  # ends the run before `duration_s`
    rate: float | None = None  # events per second, over all connections

    @property
    def address(self) -> str:
        return self.hub if self.partition is None else f"{self.hub}/Partitions/{self.partition}"


class LoadRate:
    """When deliveries are due, at a fixed rate. The latency of a late delivery counts from the time
    when it was due, so that a stalled service does not hide its stalls."""

    def __init__(self, per_s: float, started_s: float) -> None:
        self._interval_s = 1 / per_s
        self._started_s = started_s
        self._taken = 0
        self.tick_s = max(self._interval_s, _TICK_S)

    def due(self, now_s: float) -> int:
        return int((now_s - self._started_s) / self._interval_s) + 1 - self._taken

    def take(self, count_max: int, now_s: float) -> tuple[int, float]:
        """How many to send in one burst, and the time from which their latency counts."""
        due_s = self._started_s + self._taken * self._interval_s
        if now_s - due_s < _LATE_S:
            self._taken += count_max
            return count_max, now_s
        count = min(count_max, max(1, int(_TICK_S / self._interval_s)))
        self._taken += count
        return count, due_s


class TimestampedRun:
    """Events that contain the mark of the run and their send time; built for each burst."""

    def __init__(self, framing: TransferFraming, *, size: int, batch: int, mark: bytes) -> None:
        assert size >= STAMP_BYTES
        self._framing = framing
        self._batch = batch
        self._mark = mark
        self._padding = bytes(size - STAMP_BYTES)
        self.pieces = framing.pieces(len(self._payload(0.0)))

    def take(self, first_id: int, count: int, at_s: float) -> bytes:
        payload = self._payload(at_s)
        frame = self._framing.delivery
        return b"".join([frame(payload, (first_id + i) & 0xFFFFFFFF) for i in range(count)])

    def _payload(self, at_s: float) -> bytes:
        return encode_events(STAMP.pack(self._mark, at_s) + self._padding, self._batch)


class LoadProducer:
    """Keeps `in_flight` deliveries outstanding on one link, as far as credit and window allow."""

    def __init__(
        self,
        sender: Sender,
        load: LoadProfile,
        result: LoadResult,
        *,
        events_max: int | None = None,
        mark: bytes | None = None,
        payload: bytes | None = None,
    ) -> None:
        """All producers of a run count in one `result`. With `mark` the events contain it and their
        send time; `payload` is an encoded message that replaces that of the profile."""
        self._sender = sender
        self._link = sender.link
        self._load = load
        self._result = result
        self._remaining = None if events_max is None else -(-events_max // load.batch)
        encoded, message_format = encode_publication(load.size, load.batch)
        framing = TransferFraming(self._link, message_format)
        self._frames: PreparedRun | TimestampedRun
        if mark is not None:
            self._frames = TimestampedRun(framing, size=load.size, batch=load.batch, mark=mark)
        else:
            self._frames = PreparedRun(framing, encoded if payload is None else payload)
        self._outstanding = OutstandingDeliveries()
        self._rate: LoadRate | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._scheduled = False
        self._stopping = False
        self.finished: asyncio.Future[None] = self._loop.create_future()
        sender.on_room_callback = self._schedule
        sender.on_range = self._on_settled

    def start(self) -> None:
        rate = self._load.rate
        if rate is not None:
            share = rate / self._load.connections / self._load.batch
            self._rate = LoadRate(share, time.perf_counter())
            self._tick()
        self._fill()

    def stop(self) -> None:
        """Send nothing more; `finished` is done when the last delivery is settled."""
        self._stopping = True
        if self._timer is not None:
            self._timer.cancel()
        self._finish_if_idle()

    def _tick(self) -> None:
        assert self._rate is not None
        self._timer = self._loop.call_later(self._rate.tick_s, self._tick)
        self._fill()

    def _schedule(self) -> None:
        """Fill once per turn of the event loop, however many frames gave room."""
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
        if self._remaining == 0:
            self.stop()

    def _room(self, now_s: float) -> int:
        room = min(
            self._load.in_flight - self._outstanding.count,
            self._link.credit,
            self._link.sendable_frames // self._frames.pieces,
        )
        if self._remaining is not None:
            room = min(room, self._remaining)
        return room if self._rate is None else min(room, self._rate.due(now_s))

    def _send(self, count: int, now_s: float) -> int:
        """Send one burst of at most `count` deliveries; returns their number."""
        link, at_s = self._link, now_s
        first = link.session.next_delivery_id
        if self._rate is not None:
            count, at_s = self._rate.take(count, now_s)
        data = self._frames.take(first, count, at_s)
        link.send_transfers(data, deliveries=count, frames=count * self._frames.pieces)
        self._outstanding.add(first, count, at_s)
        if self._remaining is not None:
            self._remaining -= count
        return count

    def _on_settled(self, first: int, last: int, error: Error | None) -> None:
        now_s = time.perf_counter()
        result, load = self._result, self._load
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
        """The outcome of the outstanding deliveries stays unknown. After the run its connections
        are closed, which is no error."""
        if self.finished.done():
            return
        self._stopping = True
        if self._timer is not None:
            self._timer.cancel()
        wire = error.error or Error(condition="amqp:link:detach-forced", description=str(error))
        self._count_errors(max(1, self._outstanding.clear()), wire)
        self._finish_if_idle()

    def _count_errors(self, count: int, error: Error) -> None:
        self._result.errors += count
        if self._result.first_error is None:
            self._result.first_condition = error.condition
            self._result.first_error = f"{error.condition}: {error.description}"

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
    """Publish as fast as the service acknowledges, or at the load's rate. Raises ClientError,
    TimeoutError."""
    async with open_connections(endpoint, load.hub, load.connections, tls=tls) as connections:
        result = LoadResult()
        producers = await attach_producers(connections, load, result)
        await run_producers(producers, load, result, report)
        return result


@asynccontextmanager
async def open_connections(
    endpoint: Endpoint, hub: str, count: int, *, tls: ssl.SSLContext | None
) -> AsyncIterator[list[Connection]]:
    """Connections that are authorized for the hub; closed at the end."""
    opened: list[Connection] = []
    try:
        for _ in range(count):
            connection = await connect(endpoint, tls=tls)
            opened.append(connection)
            await connection.authorise(hub)
        yield opened
    finally:
        await asyncio.gather(*(connection.close() for connection in opened))


async def attach_producers(
    connections: list[Connection],
    load: LoadProfile,
    result: LoadResult,
    *,
    mark: bytes | None = None,
) -> list[LoadProducer]:
    """A producer on each connection; they share the profile's `events_max`."""
    producers = []
    for number, connection in enumerate(connections):
        sender = await connection.sender(load.address)
        share = load.events_max
        if share is not None:
            share = share // len(connections) + (number < share % len(connections))
        producers.append(LoadProducer(sender, load, result, events_max=share, mark=mark))
    return producers


async def run_producers(
    producers: list[LoadProducer],
    load: LoadProfile,
    result: LoadResult,
    report: Report | None = None,
) -> None:
    """Start and stop the producers together, and wait for the outstanding deliveries. Raises
    TimeoutError."""
    started_s, cpu_s = time.perf_counter(), time.process_time()
    for producer in producers:
        producer.start()
    finished = [producer.finished for producer in producers]
    await wait_for(finished, load.duration_s, lambda: result.events, report)
    for producer in producers:
        producer.stop()
    _, pending = await asyncio.wait(finished, timeout=_DRAIN_S)
    if pending:
        raise TimeoutError(
            f"{len(pending)} of {len(finished)} connections have deliveries that were not "
            f"acknowledged within {_DRAIN_S:.0f} s."
        )
    result.seconds = time.perf_counter() - started_s
    result.cpu_seconds = time.process_time() - cpu_s


async def wait_for(
    futures: Iterable[asyncio.Future[None]],
    seconds: float,
    count_events: Callable[[], int],
    report: Report | None,
    *,
    any_: bool = False,
) -> None:
    """Until all futures, or with `any_` one of them, are done, or the time is over. Reports the
    progress meanwhile."""
    started_s = time.perf_counter()
    pending = set(futures)
    when = asyncio.FIRST_COMPLETED if any_ else asyncio.ALL_COMPLETED
    while (remaining_s := seconds - (time.perf_counter() - started_s)) > 0:
        step_s = remaining_s if report is None else min(remaining_s, _REPORT_S)
        done, waiting = await asyncio.wait(pending, timeout=step_s, return_when=when)
        if report is not None:
            report(time.perf_counter() - started_s, count_events())
        if not waiting or (any_ and done):
            return
