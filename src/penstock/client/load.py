"""The load generator behind `penstock bench`: prepared payloads, pipelined, on one thread."""

from __future__ import annotations

import asyncio
import ssl
import struct
import time
from functools import partial

import msgspec

from penstock.amqp.events import TransfersReceived
from penstock.amqp.performatives import Error
from penstock.client.connection import ClientError, Connection, Sender, connect
from penstock.client.endpoint import Endpoint

BATCH_FORMAT = 0x80013700
_QUIET_S = 2.0  # a reader that got nothing for this long has read everything
_LATENCIES_MAX = 1_000_000


class Result(msgspec.Struct, kw_only=True):
    """One run. Latencies are of acknowledgements, in milliseconds."""

    events: int
    payload_bytes: int
    seconds: float
    errors: int = 0
    first_error: str | None = None
    latencies_ms: list[float] = []

    @property
    def events_per_s(self) -> float:
        return self.events / self.seconds if self.seconds else 0.0

    @property
    def mb_per_s(self) -> float:
        return self.payload_bytes / self.seconds / 1_048_576 if self.seconds else 0.0

    def percentile(self, share: float) -> float | None:
        if not self.latencies_ms:
            return None
        ordered = sorted(self.latencies_ms)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def publication(size: int, batch: int) -> tuple[bytes, int]:
    """Encoded payload and message format: `batch` events whose bodies have `size` bytes."""
    message = _data_section(bytes(i % 251 for i in range(size)))
    if batch == 1:
        return message, 0
    return _data_section(message) * batch, BATCH_FORMAT


def _data_section(body: bytes) -> bytes:
    if len(body) < 256:
        return b"\x00\x53\x75\xa0" + bytes((len(body),)) + body
    return b"\x00\x53\x75\xb0" + struct.pack(">I", len(body)) + body


class Publisher:
    """Keeps `in_flight` deliveries outstanding on one link until it is told to stop."""

    def __init__(self, sender: Sender, *, size: int, batch: int, in_flight: int) -> None:
        self._sender = sender
        self._payload, self._format = publication(size, batch)
        self._batch = batch
        self._in_flight_max = in_flight
        self._outstanding = 0
        self._scheduled = False
        self._loop = asyncio.get_running_loop()
        self._idle = asyncio.Event()
        self._stopping = False
        self.result = Result(events=0, payload_bytes=0, seconds=0.0)
        self._size = size
        sender.on_room_callback = self._fill

    def start(self) -> None:
        self._fill()

    async def stop(self, *, timeout_s: float) -> None:
        self._stopping = True
        if self._outstanding:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()

    def _fill(self) -> None:
        self._scheduled = False
        if self._stopping or self._sender.error is not None:
            return
        while self._outstanding < self._in_flight_max:
            started = time.perf_counter()
            sent = self._sender.send(
                self._payload,
                message_format=self._format,
                on_settled=partial(self._settled, started),
            )
            if not sent:
                break
            self._outstanding += 1
        self._sender.connection.flush()

    def _settled(self, started: float, error: Error | None) -> None:
        self._outstanding -= 1
        result = self.result
        if error is None:
            result.events += self._batch
            result.payload_bytes += self._batch * self._size
            if len(result.latencies_ms) < _LATENCIES_MAX:
                result.latencies_ms.append((time.perf_counter() - started) * 1000)
        else:
            result.errors += 1
            result.first_error = result.first_error or f"{error.condition}: {error.description}"
        if self._outstanding == 0:
            self._idle.set()
        if not self._scheduled and not self._stopping:
            self._scheduled = True
            self._loop.call_soon(self._fill)


async def publish(
    endpoint: Endpoint,
    hub: str,
    *,
    partition: str | None,
    size: int,
    batch: int,
    in_flight: int,
    connections: int,
    duration_s: float,
    tls: ssl.SSLContext | None,
) -> Result:
    """Publish as fast as the service acknowledges, for a while."""
    address = hub if partition is None else f"{hub}/Partitions/{partition}"
    opened: list[Connection] = []
    try:
        publishers = []
        for _ in range(connections):
            connection = await connect(endpoint, tls=tls)
            opened.append(connection)
            await connection.authorise(hub)
            sender = await connection.sender(address)
            publishers.append(Publisher(sender, size=size, batch=batch, in_flight=in_flight))
        started = time.perf_counter()
        for publisher in publishers:
            publisher.start()
        await asyncio.sleep(duration_s)
        for publisher in publishers:
            await publisher.stop(timeout_s=30.0)
        return _joined([p.result for p in publishers], time.perf_counter() - started)
    finally:
        for connection in opened:
            await connection.close()


class Reading:
    """Counts what arrives; nothing is decoded, so the service is what is measured."""

    def __init__(self, events_max: int | None) -> None:
        self.events = 0
        self.payload_bytes = 0
        self.started: float | None = None
        self.last = 0.0
        self.done = asyncio.Event()
        self.progress = asyncio.Event()
        self._events_max = events_max

    def on_transfers(self, event: TransfersReceived) -> None:
        now = time.perf_counter()
        if self.started is None:
            self.started = now
        self.last = now
        self.events += event.count
        self.payload_bytes += event.bounds[-1] - event.bounds[0]
        self.progress.set()
        if self._events_max is not None and self.events >= self._events_max:
            self.done.set()


async def receive(
    endpoint: Endpoint,
    hub: str,
    *,
    group: str,
    partitions: list[str],
    credit: int,
    events_max: int | None,
    duration_s: float,
    tls: ssl.SSLContext | None,
) -> Result:
    """Read partitions from their start, until nothing comes, `events_max`, or the time is up."""
    reading = Reading(events_max)
    connection = await connect(endpoint, tls=tls)
    try:
        await connection.authorise(hub)
        for partition in partitions:
            await connection.receiver(
                f"{hub}/ConsumerGroups/{group}/Partitions/{partition}",
                credit=credit,
                on_transfers=reading.on_transfers,
                selector="amqp.annotation.x-opt-offset > '-1'",
            )
        await _until_quiet(reading, duration_s)
    finally:
        await connection.close()
    if reading.started is None:
        raise ClientError(f"Nothing came from {hub} within {duration_s} s: publish first.")
    return Result(
        events=reading.events,
        payload_bytes=reading.payload_bytes,
        seconds=max(reading.last - reading.started, 1e-9),
    )


async def _until_quiet(reading: Reading, duration_s: float) -> None:
    try:
        async with asyncio.timeout(duration_s):
            while not reading.done.is_set():
                reading.progress.clear()
                try:
                    async with asyncio.timeout(_QUIET_S):
                        await reading.progress.wait()
                except TimeoutError:
                    return
    except TimeoutError:
        return


def _joined(results: list[Result], seconds: float) -> Result:
    return Result(
        events=sum(r.events for r in results),
        payload_bytes=sum(r.payload_bytes for r in results),
        seconds=seconds,
        errors=sum(r.errors for r in results),
        first_error=next((r.first_error for r in results if r.first_error), None),
        latencies_ms=[latency for r in results for latency in r.latencies_ms],
    )
