"""Kafka 4, when its jars are here: KAFKA_HOME (or /opt/kafka) with libs/*.jar, and Java.

Publishing sends prebuilt record batches of 16 KB (its client's default) over the raw protocol, five
requests in flight, acks=all: what the broker does, without a Java client's cost. Reading is its own
Java consumer (ConsumerPerformance), on the generator's core.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import struct
import subprocess
import time
import uuid
from base64 import urlsafe_b64encode
from collections import deque
from pathlib import Path

from benchmarks.systems.base import Absent, run
from benchmarks.systems.process import Broker, free_port, wait_for_port
from crc32c import crc32c

from penstock.client.load.measurements import LoadResult

BATCH_BYTES = 16 * 1024
IN_FLIGHT = 5
_PLACES = ("/opt/kafka", "/usr/share/kafka", "/usr/local/kafka")
_START_S = 60.0
_REPLY_S = 20.0
_READ_S = 120.0
_WARM_UP_S = 4.0
_PRODUCE, _CREATE_TOPICS, _DELETE_TOPICS = (0, 7), (19, 4), (20, 3)  # key and version
_FORMAT = "kafka.tools.StorageTool"
_SERVER = "kafka.Kafka"
_CONSUMER = "org.apache.kafka.tools.ConsumerPerformance"


class Kafka:
    """One node, broker and controller in one; a topic of one partition for each round."""

    name = "Kafka"
    acknowledges = "acks=all, one replica, no fsync before the acknowledgement; batches of 16 KB"
    kinds: tuple[int, ...] = (100,)  # its own batches, by bytes

    def __init__(self, place: Path) -> None:
        self._java, self._jars = _find()
        self._port, controller = free_port(), free_port()
        self._topic = ""
        self._round = 0
        home = place / "kafka"
        home.mkdir()
        config = home / "server.properties"
        config.write_text(
            "process.roles=broker,controller\nnode.id=1\n"
            f"controller.quorum.voters=1@127.0.0.1:{controller}\n"
            f"listeners=PLAINTEXT://127.0.0.1:{self._port},CONTROLLER://127.0.0.1:{controller}\n"
            f"advertised.listeners=PLAINTEXT://127.0.0.1:{self._port}\n"
            f"controller.listener.names=CONTROLLER\nlog.dirs={home / 'log'}\n"
            "offsets.topic.replication.factor=1\noffsets.topic.num.partitions=1\n"
            "group.initial.rebalance.delay.ms=0\n"
        )
        cluster = urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        formatted = subprocess.run(
            self._command(_FORMAT, "format", "-t", cluster, "-c", config),
            capture_output=True,
            text=True,
            timeout=_START_S,
        )
        if formatted.returncode != 0:
            raise Absent(f"Kafka cannot format its directory: {formatted.stderr.strip()[-200:]}")
        self.broker = Broker(self._command(_SERVER, config))
        try:
            wait_for_port(self._port, self.broker, deadline_s=_START_S)
        except (RuntimeError, TimeoutError) as error:
            self.close()
            raise Absent(f"Kafka does not start: {error}") from error
        run(self._warm_up())

    def _command(self, program: str, *arguments: object) -> list[str]:
        return [self._java, "-Xmx1g", "-cp", self._jars, program, *map(str, arguments)]

    def close(self) -> None:
        self.broker.close()

    def fresh(self) -> None:
        run(self._next_topic())

    async def publish(
        self, size: int, batch: int, *, seconds: float, connections: int = 1
    ) -> LoadResult:
        assert batch in self.kinds
        clients = [await self._connect() for _ in range(connections)]
        result = LoadResult()
        producers = [Producing(client, self._topic, size, result) for client in clients]
        started_s, cpu_s = time.perf_counter(), time.process_time()
        await asyncio.gather(*(producer.run(started_s + seconds) for producer in producers))
        result.seconds = time.perf_counter() - started_s
        result.cpu_seconds = time.process_time() - cpu_s
        for client in clients:
            client.close()
        return result

    async def deliver(self, size: int, *, events: int) -> LoadResult:
        """The tool's own figure of fetching: Java's start and joining the group are left out."""
        process = await asyncio.create_subprocess_exec(
            *self._command(_CONSUMER, "--bootstrap-server", f"127.0.0.1:{self._port}"),
            *("--topic", self._topic, "--messages", str(events), "--hide-header"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        async with asyncio.timeout(_READ_S):
            told, errors = await process.communicate()
        lines = [line for line in told.decode().splitlines() if line.count(",") >= 9]
        if process.returncode != 0 or not lines:
            raise RuntimeError(f"ConsumerPerformance failed: {errors.decode().strip()[-300:]}")
        fields = [field.strip() for field in lines[-1].split(",")]
        count, fetch_ms = int(fields[4]), float(fields[7])
        return LoadResult(events=count, payload_bytes=count * size, seconds=fetch_ms / 1000)

    async def _next_topic(self) -> None:
        client = await self._connect()
        if self._topic:
            names = struct.pack(">i", 1) + _text(self._topic) + struct.pack(">i", 5000)
            await client.ask(_DELETE_TOPICS, names)
        self._round += 1
        self._topic = f"bench-{self._round}"
        await self._create(client, self._topic)
        client.close()

    async def _create(self, client: KafkaConnection, name: str) -> None:
        """A topic of one partition, with a leader: one small batch is in it then."""
        topic = _text(name) + struct.pack(">ihii", 1, 1, 0, 0)
        content = struct.pack(">i", 1) + topic + struct.pack(">i?", 5000, False)
        answer = await client.ask(_CREATE_TOPICS, content)
        (error,) = struct.unpack_from(">h", answer, 4 + 4 + 2 + len(name))
        if error:
            raise RuntimeError(f"Kafka refused the topic with error {error}")
        async with asyncio.timeout(_REPLY_S):
            while True:
                producer = Producing(client, name, BATCH_BYTES)
                await producer.send()
                if not producer.result.errors:
                    return
                await asyncio.sleep(0.05)  # its leader is not known yet

    async def _warm_up(self) -> None:
        """Java compiles what runs often: give it something to run."""
        client = await self._connect()
        await self._create(client, "warm")
        await Producing(client, "warm", 100).run(time.perf_counter() + _WARM_UP_S)
        client.close()

    async def _connect(self) -> KafkaConnection:
        loop = asyncio.get_running_loop()
        _, client = await loop.create_connection(KafkaConnection, "127.0.0.1", self._port)
        return client


def _find() -> tuple[str, str]:
    """Java, and the class path."""
    for place in (os.environ.get("KAFKA_HOME", ""), *_PLACES):
        jars = sorted(Path(place).glob("libs/kafka-clients-*.jar")) if place else []
        if jars:
            java = shutil.which("java")
            if java is None:
                raise Absent("Kafka's jars are here, but Java is not")
            return java, f"{jars[0].parent}/*"
    raise Absent("Kafka's jars are not here (KAFKA_HOME, /opt/kafka)")


def _text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


class KafkaConnection(asyncio.Protocol):
    """Requests, answered in their order."""

    def __init__(self) -> None:
        self._socket: asyncio.Transport | None = None
        self._pending = b""
        self._answers: deque[asyncio.Future[bytes]] = deque()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._socket = transport  # type: ignore[assignment]  # a stream transport

    def data_received(self, data: bytes) -> None:
        self._pending += data
        while len(self._pending) >= 4:
            (size,) = struct.unpack_from(">i", self._pending)
            if len(self._pending) < 4 + size:
                return
            self._answers.popleft().set_result(self._pending[8 : 4 + size])
            self._pending = self._pending[4 + size :]

    def connection_lost(self, exc: Exception | None) -> None:
        for answer in self._answers:
            if not answer.done():
                answer.set_exception(RuntimeError("Kafka closed the connection"))

    def close(self) -> None:
        assert self._socket is not None
        self._socket.close()

    def request(self, api: tuple[int, int], content: bytes) -> asyncio.Future[bytes]:
        assert self._socket is not None
        head = struct.pack(">hhih", *api, 1, -1)  # correlation id, no client id
        self._socket.write(struct.pack(">i", len(head) + len(content)) + head + content)
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._answers.append(answer)
        return answer

    async def ask(self, api: tuple[int, int], content: bytes) -> bytes:
        async with asyncio.timeout(_REPLY_S):
            return await self.request(api, content)


class Producing:
    """IN_FLIGHT requests of one batch each."""

    def __init__(
        self, client: KafkaConnection, topic: str, size: int, result: LoadResult | None = None
    ) -> None:
        batch, self._count = record_batch(size)
        self._client = client
        self._size = size
        self._error_at = 4 + 2 + len(topic) + 4 + 4
        self._content = (
            struct.pack(">hhi", -1, -1, 30_000)  # no transaction, acks=all, timeout
            + struct.pack(">i", 1)
            + _text(topic)
            + struct.pack(">iii", 1, 0, len(batch))  # one partition, number 0
            + batch
        )
        self.result = result or LoadResult()

    async def run(self, until_s: float) -> None:
        await asyncio.gather(*(self._send_until(until_s) for _ in range(IN_FLIGHT)))

    async def _send_until(self, until_s: float) -> None:
        while time.perf_counter() < until_s and not self.result.errors:
            await self.send()

    async def send(self) -> None:
        result, started_s = self.result, time.perf_counter()
        answer = await self._client.ask(_PRODUCE, self._content)
        (error,) = struct.unpack_from(">h", answer, self._error_at)
        if error:
            result.errors += self._count
            result.first_error = f"Kafka error {error}"
            return
        result.events += self._count
        result.payload_bytes += self._count * self._size
        result.latencies.add((time.perf_counter() - started_s) * 1000, self._count)


def record_batch(size: int) -> tuple[bytes, int]:
    """A batch of version 2 as large as the client's default allows, and how many it holds."""
    records: list[bytes] = []
    length = 61  # the batch's own header
    now_ms = int(time.time() * 1000)
    while not records or length + len(records[-1]) <= BATCH_BYTES:
        body = b"\x00\x00" + _varint(len(records)) + _varint(-1) + _varint(size) + b"x" * size
        record = _varint(len(body) + 1) + body + b"\x00"  # no headers
        records.append(record)
        length += len(record)
    count = len(records)
    checked = struct.pack(">hiqqqhii", 0, count - 1, now_ms, now_ms, -1, -1, -1, count)
    checked += b"".join(records)
    head = struct.pack(">qiibI", 0, len(checked) + 9, -1, 2, crc32c(checked))
    return head + checked, count


def _varint(value: int) -> bytes:
    """Zigzag, seven bits a byte."""
    left = (value << 1) ^ (value >> 63)
    out = bytearray()
    while left > 127:
        out.append(left & 127 | 128)
        left >>= 7
    out.append(left)
    return bytes(out)
