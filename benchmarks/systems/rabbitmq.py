"""RabbitMQ (Debian: rabbitmq-server): a classic queue over AMQP 1.0, a stream over its protocol.

A node of its own in a temporary directory, on loopback ports. Queue and stream are two subjects on
one node: starting it takes seconds, and while one is measured the other has nothing to do.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import time
from pathlib import Path
from typing import TypeVar

from benchmarks.systems.base import Absent, run
from benchmarks.systems.process import Broker, free_port, wait_for_port
from benchmarks.systems.rabbitmq_stream import (
    StreamConnection,
    StreamPublisher,
    StreamReader,
    make_stream,
)

from penstock.amqp.events import Event, SaslMechanismsReceived
from penstock.amqp.link import LinkRole
from penstock.amqp.performatives import Source, Target
from penstock.client.connection import Connection
from penstock.client.links import Receiver
from penstock.client.load.consumer import LoadConsumer
from penstock.client.load.measurements import LoadResult
from penstock.client.load.producer import LoadProducer, LoadProfile, run_producers
from penstock.client.transfer_frames import data_section
from penstock.model.connection_string import Endpoint

WINDOW = 2000
_CREDIT = 2000
_START_S = 60.0
_READ_S = 60.0
_QUEUE, _STREAM = "bench-queue", "bench-stream"
_SCRIPTS = Path("/usr/lib/rabbitmq/bin")  # Debian's wrapper in the path would change the user
_DURABLE = b"\x00\x53\x70\xc0\x02\x01\x41"  # header: durable (AMQP 3.2.1)
_PRE_SETTLED = 1  # AMQP 2.8.2

StreamT = TypeVar("StreamT", bound=StreamConnection)


class RabbitNode:
    """The process behind both subjects."""

    def __init__(self, place: Path) -> None:
        if shutil.which("rabbitmq-server") is None:
            raise Absent("rabbitmq-server is not installed (Debian: rabbitmq-server)")
        script = _SCRIPTS / "rabbitmq-server"
        program = str(script) if script.exists() else "rabbitmq-server"
        self.port = free_port()
        self.stream_port = free_port()
        self._epmd_port = free_port()
        home = place / "rabbitmq"
        home.mkdir()
        self._write_configuration(home)
        self._environ = {
            "HOME": str(home),
            "RABBITMQ_NODENAME": f"bench-{self.port}@localhost",
            "RABBITMQ_MNESIA_BASE": str(home / "mnesia"),
            "RABBITMQ_LOG_BASE": str(home / "log"),
            "RABBITMQ_CONFIG_FILE": str(home / "rabbitmq"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "enabled_plugins"),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
        }
        self.broker = Broker([program], environ=self._environ)
        try:
            for port in (self.port, self.stream_port):
                wait_for_port(port, self.broker, deadline_s=_START_S)
        except (RuntimeError, TimeoutError) as error:
            self.close()
            raise Absent(f"rabbitmq-server does not start: {error}") from error

    def _write_configuration(self, home: Path) -> None:
        queue = {"name": _QUEUE, "vhost": "/", "durable": True, "auto_delete": False}
        everything = {"configure": ".*", "write": ".*", "read": ".*"}
        definitions = {
            "users": [{"name": "guest", "password": "guest", "tags": "administrator"}],
            "vhosts": [{"name": "/"}],
            "permissions": [{"user": "guest", "vhost": "/", **everything}],
            "queues": [{**queue, "arguments": {}}],
        }
        (home / "definitions.json").write_text(json.dumps(definitions))
        (home / "enabled_plugins").write_text("[rabbitmq_amqp1_0,rabbitmq_stream].\n")
        (home / "rabbitmq.conf").write_text(
            f"listeners.tcp.1 = 127.0.0.1:{self.port}\n"
            f"stream.listeners.tcp.1 = 127.0.0.1:{self.stream_port}\n"
            f"load_definitions = {home / 'definitions.json'}\n"
            "log.file = false\nlog.console = false\n"
        )

    def close(self) -> None:
        self.broker.close()
        epmd = shutil.which("epmd")  # the node started one on its own port
        if epmd is not None:
            subprocess.run(
                [epmd, "-port", str(self._epmd_port), "-kill"],
                env=self._environ,
                capture_output=True,
                timeout=10,
            )


class RabbitQueue:
    """A durable classic queue. What a round publishes, it reads, so that it is empty again."""

    name = "RabbitMQ classic"
    acknowledges = "durable queue, persistent messages, confirmed in groups after fsync"
    kinds: tuple[int, ...] = (1,)

    def __init__(self, node: RabbitNode) -> None:
        self._node = node

    @property
    def broker(self) -> Broker:
        return self._node.broker

    def close(self) -> None:
        self._node.close()

    def fresh(self) -> None:
        """Nothing to do."""

    async def publish(
        self, size: int, batch: int, *, seconds: float, connections: int = 1
    ) -> LoadResult:
        assert batch == 1
        load = LoadProfile(
            hub=_QUEUE,
            size=size,
            batch=1,
            in_flight=WINDOW,
            connections=connections,
            duration_s=seconds,
        )
        payload = _DURABLE + data_section(b"x" * size)
        opened = [await self._connect() for _ in range(connections)]
        senders = [await each.sender(f"/amq/queue/{_QUEUE}") for each in opened]
        result = LoadResult()
        publishers = [LoadProducer(sender, load, result, payload=payload) for sender in senders]
        await run_producers(publishers, load, result)
        for connection in opened:
            await connection.close()
        return result

    async def deliver(self, size: int, *, events: int) -> LoadResult:
        reading = LoadConsumer(events)
        connection = await self._connect()
        started_s, cpu_s = time.perf_counter(), time.process_time()
        await connection.settled_receiver(f"/amq/queue/{_QUEUE}", reading)
        async with asyncio.timeout(_READ_S):
            await reading.finished
        result = LoadResult(
            events=reading.events,
            payload_bytes=reading.events * size,
            seconds=reading.last_s - started_s,
            cpu_seconds=time.process_time() - cpu_s,
        )
        await connection.close()
        return result

    async def _connect(self) -> RabbitConnection:
        endpoint = Endpoint(host="127.0.0.1", port=self._node.port, tls=False)
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            lambda: RabbitConnection(endpoint, timeout_s=10.0), endpoint.host, endpoint.port
        )
        async with asyncio.timeout(10.0):
            await connection.opened
        return connection


class RabbitStream:
    """A stream of one replica."""

    name = "RabbitMQ stream"
    acknowledges = "stream, no fsync before the confirmation"
    kinds: tuple[int, ...] = (
        100,
        1,
    )  # messages in one frame; each is stored and confirmed by itself

    def __init__(self, node: RabbitNode) -> None:
        self._node = node

    @property
    def broker(self) -> Broker:
        return self._node.broker

    def close(self) -> None:
        self._node.close()

    def fresh(self) -> None:
        run(self._make_stream())

    async def _make_stream(self) -> None:
        client = await self._connect(StreamConnection())
        await make_stream(client, _STREAM)
        client.close()

    async def publish(
        self, size: int, batch: int, *, seconds: float, connections: int = 1
    ) -> LoadResult:
        result = LoadResult()
        clients = [
            await self._connect(StreamPublisher(size, batch, result)) for _ in range(connections)
        ]
        for client in clients:
            await client.prepare(_STREAM)
        started_s, cpu_s = time.perf_counter(), time.process_time()
        for client in clients:
            client.start()
        await asyncio.sleep(seconds)
        for client in clients:
            client.stop()
        async with asyncio.timeout(_READ_S):
            await asyncio.gather(*(client.finished for client in clients))
        result.seconds = time.perf_counter() - started_s
        result.cpu_seconds = time.process_time() - cpu_s
        for client in clients:
            client.close()
        return result

    async def deliver(self, size: int, *, events: int) -> LoadResult:
        client = await self._connect(StreamReader(events))
        started_s, cpu_s = time.perf_counter(), time.process_time()
        await client.subscribe(_STREAM)
        async with asyncio.timeout(_READ_S):
            await client.finished
        client.close()
        return LoadResult(
            events=client.events,
            payload_bytes=client.events * size,
            seconds=client.last_s - started_s,
            cpu_seconds=time.process_time() - cpu_s,
        )

    async def _connect(self, client: StreamT) -> StreamT:
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: client, "127.0.0.1", self._node.stream_port)
        await client.log_in()
        return client


class RabbitConnection(Connection):
    """Our client with a user and a password, without `$cbs`."""

    def _on_control(self, event: Event) -> None:
        if isinstance(event, SaslMechanismsReceived):
            self.engine.init_sasl("PLAIN", b"\0guest\0guest")
        else:
            super()._on_control(event)

    async def settled_receiver(self, address: str, reading: LoadConsumer) -> Receiver:
        """Deliveries come settled, as an Event Hub's do."""
        link = self._new_link(LinkRole.RECEIVER)
        receiver = self._ends[link] = Receiver(self, link, _CREDIT, reading.on_transfers)
        link.request(
            source=Source(address=address),
            target=Target(address=link.name),
            snd_settle_mode=_PRE_SETTLED,
        )
        await self._wait_attached(link, address)
        link.grant(_CREDIT)
        self.flush()
        return receiver
