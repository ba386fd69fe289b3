"""NATS JetStream (Debian: nats-server): a server of our own and a small raw client.

Publishing is pipelined: up to WINDOW messages wait for the stream's acknowledgement, each of which
is a message to our inbox. Reading is a push consumer without acknowledgements. Nothing is decoded:
both sides count what comes, at the speed of `bytes.count`.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections import deque
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.systems.base import Absent, run
from benchmarks.systems.process import Broker, free_port, wait_for_port

from penstock.client.load.measurements import LoadResult

WINDOW = 4000  # as nats.go's default for asynchronous publishing
_STREAM = "bench"
_START_S = 10.0
_REPLY_S = 10.0
_DRAIN_S = 30.0
_READ_S = 60.0
_BLOCK_BYTES = 256 * 1024

ClientT = TypeVar("ClientT", bound="Client")


class Nats:
    """One stream with file storage; the server keeps its defaults."""

    name = "NATS JetStream"
    acknowledges = "file storage, no fsync before the acknowledgement (sync_interval 2 min)"
    kinds: tuple[int, ...] = (1,)

    def __init__(self, place: Path) -> None:
        program = shutil.which("nats-server")
        if program is None:
            raise Absent("nats-server is not installed (Debian: nats-server)")
        self._port = free_port()
        config = place / "nats.conf"
        store = place / "nats"
        config.write_text(
            f'listen: "127.0.0.1:{self._port}"\njetstream {{ store_dir: "{store}" }}\n'
        )
        self.broker = Broker([program, "-c", config])
        try:
            wait_for_port(self._port, self.broker, deadline_s=_START_S)
        except (RuntimeError, TimeoutError) as error:
            self.close()
            raise Absent(f"nats-server does not start: {error}") from error

    def close(self) -> None:
        self.broker.close()

    def fresh(self) -> None:
        run(self._make_stream())

    async def publish(
        self, size: int, batch: int, *, seconds: float, connections: int = 1
    ) -> LoadResult:
        assert batch == 1
        result = LoadResult()
        clients = [await self._connect(Publishing(size, result)) for _ in range(connections)]
        started_s, cpu_s = time.perf_counter(), time.process_time()
        for client in clients:
            client.start()
        await asyncio.sleep(seconds)
        for client in clients:
            client.stop()
        async with asyncio.timeout(_DRAIN_S):
            for client in clients:
                await client.finished
        result.seconds = time.perf_counter() - started_s
        result.cpu_seconds = time.process_time() - cpu_s
        for client in clients:
            client.close()
        return result

    async def deliver(self, size: int, *, events: int) -> LoadResult:
        client = await self._connect(Reading(events))
        cpu_s, started_s = time.process_time(), time.perf_counter()
        consumer = {
            "deliver_subject": Reading.SUBJECT,
            "ack_policy": "none",
            "deliver_policy": "all",
        }
        await self._request(
            f"$JS.API.CONSUMER.CREATE.{_STREAM}", {"stream_name": _STREAM, "config": consumer}
        )
        async with asyncio.timeout(_READ_S):
            await client.finished
        client.close()
        return LoadResult(
            events=client.events,
            payload_bytes=client.events * size,
            seconds=client.last_s - started_s,
            cpu_seconds=time.process_time() - cpu_s,
        )

    async def _make_stream(self) -> None:
        """A new one in each round: what the last one stored is deleted."""
        await self._request(f"$JS.API.STREAM.DELETE.{_STREAM}", None, may_fail=True)
        await self._request(
            f"$JS.API.STREAM.CREATE.{_STREAM}",
            {
                "name": _STREAM,
                "subjects": [_STREAM],
                "retention": "limits",
                "storage": "file",
                "num_replicas": 1,
            },
        )

    async def _request(self, subject: str, body: object, *, may_fail: bool = False) -> None:
        content = b"" if body is None else json.dumps(body).encode()
        client = await self._connect(Asking(subject, content))
        async with asyncio.timeout(_REPLY_S):
            answer = await client.answer
        client.close()
        if "error" in answer and not may_fail:
            raise RuntimeError(f"NATS refused {subject}: {answer['error']}")

    async def _connect(self, client: ClientT) -> ClientT:
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: client, "127.0.0.1", self._port)
        async with asyncio.timeout(_REPLY_S):
            await client.ready
        return client


# --- the raw client -----------------------------------------------------------------------------


class Client(asyncio.Protocol):
    """One connection: INFO, CONNECT, PING, PONG, then whatever the subclass is for."""

    def __init__(self) -> None:
        self._socket: asyncio.Transport | None = None
        self._greeting = b""
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._socket = transport  # type: ignore[assignment]  # a stream transport
        options = {"verbose": False, "pedantic": False, "lang": "python", "version": "1"}
        self.write(f"CONNECT {json.dumps(options)}\r\nPING\r\n".encode())

    def data_received(self, data: bytes) -> None:
        if not self.ready.done():
            self._greeting += data
            if b"-ERR" in self._greeting:
                self.ready.set_exception(RuntimeError(f"NATS: {self._greeting!r}"))
            elif b"PONG\r\n" in self._greeting:
                self.ready.set_result(None)
                self.on_ready()
            return
        if data.endswith(b"PING\r\n") or b"\r\nPING\r\n" in data:
            self.write(b"PONG\r\n")
        self.on_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ready.done():
            self.ready.set_exception(RuntimeError("NATS closed the connection"))

    def write(self, data: bytes) -> None:
        assert self._socket is not None
        self._socket.write(data)

    def close(self) -> None:
        assert self._socket is not None
        self._socket.close()

    def on_ready(self) -> None:
        """The server has let us in."""

    def on_data(self, data: bytes) -> None:
        """Everything that comes afterwards."""


class Asking(Client):
    """One request to JetStream's own API."""

    def __init__(self, subject: str, body: bytes) -> None:
        super().__init__()
        self._request = (
            b"SUB _INBOX.ask 1\r\n"
            + f"PUB {subject} _INBOX.ask {len(body)}\r\n".encode()
            + body
            + b"\r\n"
        )
        self._received = b""
        self.answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()

    def on_ready(self) -> None:
        self.write(self._request)

    def on_data(self, data: bytes) -> None:
        """MSG subject sid [reply] size CR LF body CR LF"""
        self._received += data
        head, mark, rest = self._received.partition(b"\r\n")
        while mark and not head.startswith(b"MSG "):
            head, mark, rest = rest.partition(b"\r\n")
        if mark and len(rest) >= int(head.split()[-1]) and not self.answer.done():
            self.answer.set_result(json.loads(rest[: int(head.split()[-1])]))


class Counter:
    """How often a pattern came, also when two reads share one of them."""

    def __init__(self, pattern: bytes) -> None:
        self._pattern = pattern
        self._overlap = len(pattern) - 1
        self._tail = b""

    def count(self, data: bytes) -> int:
        found = data.count(self._pattern)
        found += (self._tail + data[: self._overlap]).count(self._pattern)
        self._tail = (self._tail + data[-self._overlap :])[-self._overlap :]
        return found


class Publishing(Client):
    """Keeps WINDOW messages unacknowledged."""

    def __init__(self, size: int, result: LoadResult) -> None:
        super().__init__()
        inbox = f"_INBOX.{id(self)}"
        message = f"PUB {_STREAM} {inbox} {size}\r\n".encode() + b"x" * size + b"\r\n"
        self._subscription = f"SUB {inbox} 1\r\n".encode()
        self._size = size
        self._stride = len(message)
        self._block = memoryview(message * max(1, _BLOCK_BYTES // len(message)))
        self._block_count = len(self._block) // self._stride
        self._acknowledged = Counter(b"MSG _INBOX.")
        self._refused = Counter(b'"error"')
        self._outstanding: deque[tuple[int, float]] = deque()
        self._count = 0
        self._stopping = False
        self.result = result
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_ready(self) -> None:
        self.write(self._subscription)

    def start(self) -> None:
        self._fill()

    def stop(self) -> None:
        self._stopping = True
        self._finish_if_idle()

    def _fill(self) -> None:
        room, now_s = WINDOW - self._count, time.perf_counter()
        while room > 0:
            count = min(room, self._block_count)
            self.write(bytes(self._block[: count * self._stride]))
            self._outstanding.append((count, now_s))
            self._count += count
            room -= count

    def on_data(self, data: bytes) -> None:
        """Acknowledgements come in the order of publishing."""
        now_s, result = time.perf_counter(), self.result
        result.errors += self._refused.count(data)
        left = self._acknowledged.count(data)
        self._count -= left
        result.events += left
        result.payload_bytes += left * self._size
        while left:
            count, at_s = self._outstanding.popleft()
            taken = min(count, left)
            result.latencies.add((now_s - at_s) * 1000, taken)
            left -= taken
            if taken < count:
                self._outstanding.appendleft((count - taken, at_s))
        if self._stopping:
            self._finish_if_idle()
        else:
            self._fill()

    def _finish_if_idle(self) -> None:
        if self._count == 0 and not self.finished.done():
            self.finished.set_result(None)


class Reading(Client):
    """Counts what a push consumer delivers."""

    SUBJECT = "bench.out"

    def __init__(self, events_max: int) -> None:
        super().__init__()
        self._events_max = events_max
        self._counter = Counter(f"MSG {_STREAM} 1 $JS.ACK.".encode())  # by its own subject
        self.events = 0
        self.last_s = 0.0
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_ready(self) -> None:
        self.write(f"SUB {self.SUBJECT} 1\r\n".encode())

    def on_data(self, data: bytes) -> None:
        self.events += self._counter.count(data)
        self.last_s = time.perf_counter()
        if self.events >= self._events_max and not self.finished.done():
            self.finished.set_result(None)
