"""One shared server for the real clients, and the six ways in which the Python SDK can be used.

A test that needs an empty partition takes a `spot`, one that needs a whole hub takes a `hub`: each
is handed out once, so that tests share the process but not the events.

The SDK sleeps between frames while it connects (half a second each time), so most tests here are
*cases*: `async def case(sdk)`, all cases of a module run at once, and each is then reported as a
test of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import pytest

pytest.importorskip("azure.eventhub", reason="the Python SDK is not installed")

from azure.eventhub import (
    EventData,
    EventHubConsumerClient,
    EventHubProducerClient,
    TransportType,
)
from azure.eventhub.aio import EventHubConsumerClient as AioConsumerClient
from azure.eventhub.aio import EventHubProducerClient as AioProducerClient

if TYPE_CHECKING:
    from tests.conftest import Server, ServerFactory

HERE = Path(__file__).parent
NAMESPACE = "compatibility"
HUBS = 80  # of 4 partitions; none is used twice
WIDE_HUBS = 12  # of 32 partitions, handed out one by one
WIDE = 32
CASES_AT_ONCE = 24
CASE_DEADLINE_S = 90
MODULE_DEADLINE_S = 300
KEYS = {"sender": "key-that-only-sends", "listener": "key-that-only-listens"}
SECONDARY_KEY = "the-second-key-of-the-root-policy"
HUB_KEY = "key-of-one-hub-alone"

# What the tests of a failing SDK call need: no second try, no waiting in between.
AT_ONCE: dict[str, Any] = {"retry_total": 0, "retry_backoff_factor": 0.01}

# The SDK leaves sockets and loops to the garbage collector after an error.
SDK_LEAKS = (
    "ignore::ResourceWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
    "ignore::DeprecationWarning",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.sdk)
            # The first test of a module pays for all of its cases, or for a compiler.
            item.add_marker(pytest.mark.timeout(MODULE_DEADLINE_S))
            for leak in SDK_LEAKS:
                item.add_marker(pytest.mark.filterwarnings(leak))


@pytest.fixture(autouse=True, scope="module")
def _leaks_end_here() -> Iterator[None]:
    """What the SDKs left lying is collected while its warnings are ignored, not in other tests."""
    yield
    gc.collect()


class Spot(NamedTuple):
    """An empty partition that no other test uses."""

    hub: str
    partition: str


@pytest.fixture(scope="session")
def server(start_session_server: ServerFactory) -> Server:
    """The shared server: a standard namespace with policies of every right and many hubs."""
    return start_session_server(config=_configuration())


def _configuration() -> str:
    lines = ["[auth]", "expiry_grace_seconds = 0"]  # expiry tests wait for the link's end
    lines += ["[[namespaces]]", f'name = "{NAMESPACE}"']
    lines += _rule("namespaces", "RootManageSharedAccessKey", "manage", "the-first-key")
    lines += [f'secondary_key = "{SECONDARY_KEY}"']
    lines += _rule("namespaces", "sender", "send", KEYS["sender"])
    lines += _rule("namespaces", "listener", "listen", KEYS["listener"])
    for index in range(HUBS):
        lines += _hub(f"hub-{index}", 4)
        lines += ['groups = ["readers", "Other.Group_1"]']
        lines += _rule("namespaces.hubs", "of-this-hub", "manage", HUB_KEY)
    for index in range(WIDE_HUBS):
        lines += [*_hub(f"wide-{index}", WIDE), 'groups = ["readers"]']
    lines += [*_hub("Mixed.Case/path_1", 2), 'groups = ["Readers"]']
    return "\n".join(lines)


def _hub(name: str, partitions: int) -> list[str]:
    return ["[[namespaces.hubs]]", f'name = "{name}"', f"partition_count = {partitions}"]


def _rule(table: str, name: str, right: str, key: str) -> list[str]:
    return [f"[[{table}.rules]]", f'name = "{name}"', f'rights = ["{right}"]', f'key = "{key}"']


class Takings:
    """Hands out hubs and partitions, each once in a session."""

    def __init__(self) -> None:
        self._hubs = count()
        self._spots = count()

    def hub(self) -> str:
        """A hub of 4 partitions."""
        number = next(self._hubs)
        assert number < HUBS, "declare more hubs in conftest.py"
        return f"hub-{number}"

    def spot(self) -> Spot:
        number, partition = divmod(next(self._spots), WIDE)
        assert number < WIDE_HUBS, "declare more wide hubs in conftest.py"
        return Spot(f"wide-{number}", str(partition))


@pytest.fixture(scope="session")
def takings() -> Takings:
    return Takings()


@pytest.fixture
def hub(takings: Takings) -> str:
    return takings.hub()


@pytest.fixture
def spot(takings: Takings) -> Spot:
    return takings.spot()


class PythonSdk:
    """azure-eventhub over one transport. Both flavours have the same face, an asynchronous one."""

    flavour = ""

    def __init__(self, server: Server, takings: Takings, transport: str = "tcp") -> None:
        self.server = server
        self.transport = transport
        self.hub = takings.hub
        self.spot = takings.spot

    @property
    def options(self) -> dict[str, Any]:
        """What leads the SDK to this server over this transport (protocol.md 1.2)."""
        # Also without TLS: the SDK reads this file for each connection, and certifi's is large.
        options = AT_ONCE | {"connection_verify": self.server["ca_file"]}
        if self.transport == "tcp":
            return options
        door = "https" if self.transport == "websocket" else "amqps"
        transport_type = TransportType.Amqp
        if self.transport == "websocket":
            transport_type = TransportType.AmqpOverWebsocket
        return options | {
            "custom_endpoint_address": f"sb://localhost:{self.server.port(door)}",
            "transport_type": transport_type,
        }

    def connection_string(self, policy: str | None = None, key: str | None = None) -> str:
        tls = self.transport != "tcp"
        return self.server.connection_string(policy=policy, key=key, tls=tls)

    def producer(self, hub: str, **options: Any) -> Any:
        raise NotImplementedError

    def consumer(self, hub: str, group: str = "$Default", **options: Any) -> Any:
        raise NotImplementedError

    async def call(self, act: Callable[..., Any], *args: Any, **options: Any) -> Any:
        raise NotImplementedError

    async def close(self, client: Any) -> None:
        await self.call(client.close)

    @contextlib.asynccontextmanager
    async def producing(self, hub: str, **options: Any) -> AsyncIterator[Any]:
        producer = self.producer(hub, **options)
        try:
            yield producer
        finally:
            await self.close(producer)

    @contextlib.asynccontextmanager
    async def consuming(self, hub: str, **options: Any) -> AsyncIterator[Any]:
        consumer = self.consumer(hub, **options)
        try:
            yield consumer
        finally:
            await self.close(consumer)

    @staticmethod
    def body(event: EventData) -> bytes:
        return b"".join(cast("list[bytes]", event.body))

    async def send(self, hub: str, *events: EventData | str | bytes, **where: Any) -> None:
        """As one batch; `where` is partition_id or partition_key."""
        batch = [EventData(each) if isinstance(each, str | bytes) else each for each in events]
        async with self.producing(hub) as producer:
            await self.call(producer.send_batch, batch, **where)

    async def send_event(self, hub: str, event: Any, **where: Any) -> None:
        async with self.producing(hub) as producer:
            await self.call(producer.send_event, event, **where)

    async def read(self, hub: str, partition: str, events: int, **options: Any) -> list[EventData]:
        """Until that many events came or nothing came for a while; raises what on_error got."""
        received: list[EventData] = []
        options = {"max_wait_time": 20.0} | options  # the async SDK counts its connecting
        async with self.reading(hub, partition, **options) as reading:
            while len(received) < events:
                event = await reading.next()
                if event is None:
                    break
                received.append(event)
        return received

    @contextlib.asynccontextmanager
    async def reading(
        self,
        hub: str,
        partition: str | None,
        *,
        group: str = "$Default",
        client: dict[str, Any] | None = None,
        **options: Any,
    ) -> AsyncIterator[Reading]:
        """`receive` in the background, from the start unless told otherwise. `checkpoint=True`
        records each event as done."""
        consumer = self.consumer(hub, group, **(client or {}))
        reading = Reading()
        options = {"starting_position": "-1", "partition_id": partition} | options
        receiving = asyncio.create_task(self.receive(consumer, reading, options))
        try:
            yield reading
        finally:
            await self.end(consumer, receiving)

    async def receive(self, consumer: Any, reading: Reading, options: dict[str, Any]) -> None:
        raise NotImplementedError

    async def end(self, consumer: Any, receiving: asyncio.Task[None]) -> None:
        raise NotImplementedError


class Reading:
    """What a background reader got: events (None after each max_wait_time), errors, closings."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.context: Any = None
        self._got: asyncio.Queue[Any] = asyncio.Queue()
        self.closed: asyncio.Queue[Any] = asyncio.Queue()
        self._done: asyncio.Queue[int] = asyncio.Queue()

    def on_event(self, context: Any, event: Any) -> None:
        self.context = context
        self._got.put_nowait(event)

    def on_error(self, context: Any, error: Exception) -> None:
        self._got.put_nowait(error)

    def on_close(self, context: Any, reason: Any) -> None:
        self.closed.put_nowait(reason)

    def on_done(self, context: Any, event: Any) -> None:
        self._done.put_nowait(event.sequence_number)

    async def done(self, sequence_number: int, within_s: float = 30) -> None:
        """Until that event is recorded as done. One who ends the reader before may cancel it."""
        async with asyncio.timeout(within_s):
            while await self._done.get() != sequence_number:
                pass

    async def next(self, within_s: float = 30) -> Any:
        """The next event, or None when the SDK said that there is none; raises an error."""
        got = await asyncio.wait_for(self._got.get(), within_s)
        if isinstance(got, Exception):
            raise got
        return got

    async def error(self, within_s: float = 30) -> Exception:
        """The error that ends it; events before it are skipped."""
        got = None
        while not isinstance(got, Exception):
            got = await asyncio.wait_for(self._got.get(), within_s)
        return got


class SyncSdk(PythonSdk):
    """The blocking clients, in a thread."""

    flavour = "sync"

    def producer(self, hub: str, **options: Any) -> EventHubProducerClient:
        text = options.pop("conn_str", None) or self.connection_string()
        return EventHubProducerClient.from_connection_string(
            text, eventhub_name=hub, **self.options | options
        )

    def consumer(self, hub: str, group: str = "$Default", **options: Any) -> EventHubConsumerClient:
        text = options.pop("conn_str", None) or self.connection_string()
        return EventHubConsumerClient.from_connection_string(
            text, group, eventhub_name=hub, **self.options | options
        )

    async def call(self, act: Callable[..., Any], *args: Any, **options: Any) -> Any:
        return await asyncio.to_thread(act, *args, **options)

    async def receive(
        self, consumer: EventHubConsumerClient, reading: Reading, options: dict[str, Any]
    ) -> None:
        checkpoint = options.pop("checkpoint", False)

        def later(act: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
            return lambda context, what: _into(reading.loop, act, context, what)

        def on_event(context: Any, event: Any) -> None:
            _into(reading.loop, reading.on_event, context, event)
            if checkpoint and event is not None:
                context.update_checkpoint(event)
                _into(reading.loop, reading.on_done, context, event)

        receive: Callable[..., Any] = consumer.receive
        if options.pop("batches", False):
            receive = consumer.receive_batch
        await asyncio.to_thread(
            receive,
            on_event,
            on_error=later(reading.on_error),
            on_partition_close=later(reading.on_close),
            **options,
        )

    async def end(self, consumer: EventHubConsumerClient, receiving: asyncio.Task[None]) -> None:
        await asyncio.to_thread(consumer.close)
        await asyncio.wait_for(receiving, 30)


def _into(loop: asyncio.AbstractEventLoop, act: Callable[..., None], *args: Any) -> None:
    with contextlib.suppress(RuntimeError):  # the case is over and its loop closed
        loop.call_soon_threadsafe(act, *args)


class AioSdk(PythonSdk):
    """The clients of azure.eventhub.aio."""

    flavour = "aio"

    def producer(self, hub: str, **options: Any) -> AioProducerClient:
        text = options.pop("conn_str", None) or self.connection_string()
        return AioProducerClient.from_connection_string(
            text, eventhub_name=hub, **self.options | options
        )

    def consumer(self, hub: str, group: str = "$Default", **options: Any) -> AioConsumerClient:
        text = options.pop("conn_str", None) or self.connection_string()
        return AioConsumerClient.from_connection_string(
            text, group, eventhub_name=hub, **self.options | options
        )

    async def call(self, act: Callable[..., Any], *args: Any, **options: Any) -> Any:
        return await act(*args, **options)

    async def receive(
        self, consumer: AioConsumerClient, reading: Reading, options: dict[str, Any]
    ) -> None:
        def awaited(act: Callable[[Any, Any], None]) -> Callable[[Any, Any], Awaitable[None]]:
            async def call(context: Any, what: Any) -> None:
                act(context, what)

            return call

        checkpoint = options.pop("checkpoint", False)

        async def on_event(context: Any, event: Any) -> None:
            reading.on_event(context, event)  # first: the SDK may cancel the next line halfway
            if checkpoint and event is not None:
                await context.update_checkpoint(event)
                reading.on_done(context, event)

        receive: Callable[..., Any] = consumer.receive
        if options.pop("batches", False):
            receive = consumer.receive_batch
        await receive(
            on_event,
            on_error=awaited(reading.on_error),
            on_partition_close=awaited(reading.on_close),
            **options,
        )

    async def end(self, consumer: AioConsumerClient, receiving: asyncio.Task[None]) -> None:
        receiving.cancel()  # as the SDK's samples do: it would sleep out its balancing interval
        await asyncio.wait([receiving], timeout=30)
        await consumer.close()


SDKS: dict[str, type[PythonSdk]] = {"sync": SyncSdk, "aio": AioSdk}
Case = Callable[[Any], Awaitable[None]]


class Sdks:
    """The Python SDK by flavour and transport, and the way to run many cases at once."""

    def __init__(self, server: Server, takings: Takings) -> None:
        self._server = server
        self._takings = takings

    def of(self, flavour: str, transport: str = "tcp", server: Server | None = None) -> PythonSdk:
        return SDKS[flavour](server or self._server, self._takings, transport)

    def run(self, *groups: tuple[Iterable[Case], Iterable[tuple[str, str]]]) -> Outcomes:
        """The cases of each group in each of its ways (flavour, transport), all concurrently."""
        started: dict[tuple[str, ...], tuple[Case, PythonSdk]] = {
            (case.__name__, *way): (case, self.of(*way))
            for cases, ways in groups
            for way in ways
            for case in cases
        }
        return Outcomes(asyncio.run(_run_all(started)))


class Outcomes:
    """What became of the cases; asking for one raises what it raised."""

    def __init__(self, errors: dict[tuple[str, ...], BaseException | None]) -> None:
        self._errors = errors

    def check(self, case: Case | str, flavour: str = "aio", transport: str = "tcp") -> None:
        name = case if isinstance(case, str) else case.__name__
        error = self._errors[name, flavour, transport]
        if error is not None:
            raise error


async def _run_all(
    started: dict[tuple[str, ...], tuple[Case, PythonSdk]],
) -> dict[tuple[str, ...], BaseException | None]:
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(64, thread_name_prefix="sync-sdk"))
    places = asyncio.Semaphore(CASES_AT_ONCE)

    async def run(case: Case, sdk: PythonSdk) -> None:
        async with places, asyncio.timeout(CASE_DEADLINE_S):
            await case(sdk)

    running = [run(case, sdk) for case, sdk in started.values()]
    ended = await asyncio.gather(*running, return_exceptions=True)
    return dict(zip(started, ended, strict=True))


@pytest.fixture(scope="session")
def sdks(server: Server, takings: Takings) -> Sdks:
    return Sdks(server, takings)


@pytest.fixture
def sdk(sdks: Sdks) -> PythonSdk:
    """The asynchronous SDK over plain TCP, where flavour and transport make no difference."""
    return sdks.of("aio")
