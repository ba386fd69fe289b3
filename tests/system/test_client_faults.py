"""`penstock.client` when things break: cables cut, answers lost, a service that is killed, busy or
strict about tokens. Nothing is lost, and an idempotent producer stores nothing twice."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from penstock.auth.sas import sign
from penstock.client import (
    ClientDenied,
    EventData,
    EventHubBufferedProducerClient,
    EventHubConsumerClient,
    EventHubProducerClient,
    EventPosition,
    RetryPolicy,
    retry,
)
from penstock.model.entities import Secret

if TYPE_CHECKING:
    from tests.conftest import Server, ServerFactory

DEADLINE_S = 60.0
EARLIEST = EventPosition.earliest()
SOON = RetryPolicy(retry_total=1000, backoff_s=0.05, mode="fixed")


class Cable:
    """A TCP relay that can be cut, and that can lose the answers of the service."""

    def __init__(self, target_port: int) -> None:
        self.target_port = target_port
        self.loses_answers = False
        self.connections = 0
        self._ends: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._relay, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def cut(self) -> None:
        for end in self._ends:
            end.transport.abort()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self.connections += 1
        self._ends.add(writer)
        with contextlib.suppress(OSError):
            there, back = await asyncio.open_connection("127.0.0.1", self.target_port)
            self._ends.add(back)
            await asyncio.gather(
                self._copy(reader, back, answers=False), self._copy(there, writer, answers=True)
            )
            self._ends.discard(back)
        self._ends.discard(writer)
        writer.transport.abort()

    async def _copy(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                if not (answers and self.loses_answers):
                    writer.write(data)
                    await writer.drain()
        writer.transport.abort()

    def string(self, server: Server) -> str:
        printed = server.connection_string()
        return f"Endpoint=sb://127.0.0.1:{self.port};" + printed.partition(";")[2]


@contextlib.asynccontextmanager
async def cable_to(server: Server) -> AsyncIterator[Cable]:
    cable = Cable(server.port("amqp"))
    await cable.open()
    try:
        yield cable
    finally:
        await cable.close()


@pytest.fixture(scope="module")
def server(start_session_server: ServerFactory) -> Server:
    hubs = [f"--hub=faults-{i}:2" for i in range(12)]
    return start_session_server(
        "--flush=os",
        "--log-level=warning",
        *hubs,
        environ={"PENSTOCK_AUTH_EXPIRY_GRACE_SECONDS": "0"},  # a test waits for the link's end
    )


@pytest.fixture(scope="module")
def hubs() -> Iterator[str]:
    return (f"faults-{i}" for i in itertools.count())


@pytest.fixture
def hub(hubs: Iterator[str]) -> str:
    return next(hubs)


async def stored(server: Server, hub: str, partition: str = "0") -> list[bytes]:
    bodies: list[bytes] = []
    async with EventHubConsumerClient(server.connection_string(), eventhub_name=hub) as client:
        async for columns in client.read_range(partition, 0, 2**40):
            bodies += columns.bodies
    return bodies


async def until_stored(server: Server, hub: str, count: int) -> None:
    """So many events are in partition 0."""
    async with (
        EventHubConsumerClient(server.connection_string(), eventhub_name=hub) as client,
        asyncio.timeout(DEADLINE_S),
        client.open_partition("0", EARLIEST) as reader,
    ):
        while count > 0:
            count -= len(await reader.receive_batch())


async def test_idempotent_producer_stores_nothing_twice_when_answers_are_lost(
    server: Server, hub: str
) -> None:
    async with (
        cable_to(server) as cable,
        EventHubProducerClient(
            cable.string(server), eventhub_name=hub, idempotent=True, retry=SOON
        ) as producer,
    ):
        for turn in range(4):
            cable.loses_answers = turn % 2 == 1
            batch = [EventData(f"{turn}-{i}") for i in range(20)]
            if turn % 2 == 0:
                await producer.send_batch(batch, partition_id="0")
                continue
            sending = asyncio.create_task(producer.send_batch(batch, partition_id="0"))
            await until_stored(server, hub, 20 * (turn + 1))
            cable.cut()  # it is there, and the producer cannot know it
            cable.loses_answers = False
            async with asyncio.timeout(DEADLINE_S):
                await sending
        assert cable.connections >= 3
    assert await stored(server, hub) == [
        f"{turn}-{i}".encode() for turn in range(4) for i in range(20)
    ]


async def test_plain_producer_stores_at_least_once_when_answers_are_lost(
    server: Server, hub: str
) -> None:
    async with (
        cable_to(server) as cable,
        EventHubProducerClient(cable.string(server), eventhub_name=hub, retry=SOON) as producer,
    ):
        await producer.send_event(EventData("a"), partition_id="0")
        cable.loses_answers = True
        sending = asyncio.create_task(producer.send_event(EventData("b"), partition_id="0"))
        await until_stored(server, hub, 2)
        cable.cut()
        cable.loses_answers = False
        async with asyncio.timeout(DEADLINE_S):
            await sending
    assert await stored(server, hub) == [b"a", b"b", b"b"]


async def test_sends_and_reads_outlive_a_cable_that_is_cut_again_and_again(
    server: Server, hub: str
) -> None:
    total = 30
    async with (
        cable_to(server) as cable,
        EventHubBufferedProducerClient(
            cable.string(server),
            eventhub_name=hub,
            idempotent=True,
            max_wait_time_s=0,
            retry=SOON,
        ) as producer,
        EventHubConsumerClient(cable.string(server), eventhub_name=hub, retry=SOON) as client,
        client.open_partition("0", EARLIEST, prefetch=7) as reader,
        asyncio.timeout(DEADLINE_S),
    ):
        seen: list[bytes] = []
        for i in range(total):
            await producer.enqueue_event(EventData(str(i)), partition_id="0")
            if i % 5 == 4:
                cable.cut()
            while len(seen) < i - 3:
                seen += [event.body for event in await reader.receive_batch(3)]
        await producer.flush()
        while len(seen) < total:
            seen += [event.body for event in await reader.receive_batch()]
    assert seen == [str(i).encode() for i in range(total)]
    assert await stored(server, hub) == seen


async def test_reader_and_producer_outlive_a_service_that_is_killed(
    start_server: ServerFactory,
) -> None:
    first = start_server("--hub=events:2", "--log-level=warning")
    async with (
        cable_to(first) as cable,
        EventHubProducerClient(
            cable.string(first), eventhub_name="events", idempotent=True, retry=SOON
        ) as producer,
        EventHubConsumerClient(cable.string(first), eventhub_name="events", retry=SOON) as client,
        client.open_partition("0", EARLIEST) as reader,
        asyncio.timeout(DEADLINE_S),
    ):
        await producer.send_batch([EventData(f"a{i}") for i in range(10)], partition_id="0")
        seen = [event.body for event in await reader.receive_batch(3)]
        await asyncio.to_thread(first.kill)
        cable.cut()
        second = await asyncio.to_thread(start_server, "--log-level=warning", data=first.data)
        cable.target_port = second.port("amqp")
        await producer.send_batch([EventData(f"b{i}") for i in range(10)], partition_id="0")
        while len(seen) < 20:
            seen += [event.body for event in await reader.receive_batch()]
    assert seen == [b"%c%d" % (letter, i) for letter in b"ab" for i in range(10)]


async def test_busy_service_gets_time_and_then_everything(
    start_server: ServerFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "BUSY_S", 0.3)
    pauses: list[float] = []
    plain = RetryPolicy.pause_s

    def counted(policy: RetryPolicy, *given: Any) -> float:
        pauses.append(plain(policy, *given))
        return pauses[-1]

    monkeypatch.setattr(RetryPolicy, "pause_s", counted)
    server = start_server(
        "--hub=events:4", "--throughput-units=1", "--flush=os", "--log-level=warning"
    )
    many = RetryPolicy(retry_total=100, backoff_s=0)
    async with EventHubProducerClient(
        server.connection_string(), eventhub_name="events", retry=many
    ) as producer:
        batches = [[EventData(f"{i}-".encode() + bytes(100_000))] * 2 for i in range(12)]
        await asyncio.gather(*(producer.send_batch(batch, partition_id="0") for batch in batches))
    assert pauses  # it was refused: 2.4 MB at once against 1 MB a second
    bodies = await stored(server, "events")
    numbers = Counter(body.partition(b"-")[0] for body in bodies)
    assert numbers == {str(i).encode(): 2 for i in range(12)}


async def test_long_lived_links_outlive_their_tokens(server: Server, hub: str) -> None:
    string = server.connection_string()
    producer = EventHubProducerClient(string, eventhub_name=hub)
    client = EventHubConsumerClient(string, eventhub_name=hub)
    producer.token_s = client.token_s = 4
    async with (
        producer,
        client,
        client.open_partition("0", EARLIEST) as reader,
        asyncio.timeout(DEADLINE_S),
    ):
        await producer.send_event(EventData("first"), partition_id="0")
        assert len(await reader.receive_batch()) == 1
        while producer._connection is None or producer._connection.renewed < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.04)  # 6 s: the first token has expired
        await producer.send_event(EventData("second"), partition_id="0")
        assert [event.body for event in await reader.receive_batch()] == [b"second"]


async def test_signature_that_expires_ends_the_link_and_is_not_tried_again(
    server: Server, hub: str
) -> None:
    expires_s = int(time.time()) + 5
    token = sign(
        f"sb://localhost/{hub}",
        "RootManageSharedAccessKey",
        Secret(server.key),
        expires_s=expires_s,
    )
    string = (
        f"Endpoint=sb://localhost:{server.port('amqp')};SharedAccessSignature={token};"
        "UseDevelopmentEmulator=true"
    )
    async with (
        EventHubProducerClient(string, eventhub_name=hub, retry=SOON) as producer,
        asyncio.timeout(DEADLINE_S),
    ):
        await producer.send_event(EventData("in time"))
        with pytest.raises(ClientDenied):
            while True:
                await producer.send_event(EventData("again"))
                await asyncio.sleep(0.04)
    assert time.time() >= expires_s


async def test_cancelled_sends_leave_the_producer_usable(server: Server, hub: str) -> None:
    async with EventHubProducerClient(server.connection_string(), eventhub_name=hub) as producer:
        for attempt in range(6):
            sending = asyncio.create_task(
                producer.send_batch([EventData(f"{attempt}")], partition_id="0")
            )
            for _ in range(attempt):
                await asyncio.sleep(0)
            sending.cancel()
            await asyncio.wait([sending])
        await producer.send_event(EventData("last"), partition_id="0")
    assert (await stored(server, hub))[-1] == b"last"
