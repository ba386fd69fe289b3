"""Faults on demand as the official SDK sees them, blocking and asynchronous: its own exceptions,
its own retries. And the broker's other doors."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import http.client
import ssl
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

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
from azure.eventhub.exceptions import (
    AuthenticationError,
    ConnectError,
    ConnectionLostError,
    EventDataSendError,
    EventHubError,
)

from penstock.auth.sas import sign
from penstock.checkpoints import ServiceCheckpointStore
from penstock.model.entities import Secret
from penstock.testing import InProcessBroker, ManualClock, broker

DEADLINE_S = 60.0
PATIENT: dict[str, Any] = {"retry_total": 5, "retry_backoff_factor": 0.05}
AT_ONCE: dict[str, Any] = {"retry_total": 0, "retry_backoff_factor": 0.01}
SLOW_S = 0.4
CASES_AT_ONCE = 16
CASE_DEADLINE_S = 100.0
CASE_TEST = "test_sdk_meets_a_fault"

pytestmark = [
    pytest.mark.sdk,
    pytest.mark.penstock(partitions=1),  # one sender has one link then
    # The SDK leaves sockets and loops to the garbage collector after an error.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.fixture(autouse=True, scope="module")
def _leaks_end_here() -> Iterator[None]:
    yield
    gc.collect()


class Sdk:
    """Both flavours with one face, an asynchronous one."""

    def __init__(self, running: InProcessBroker, *, is_async: bool) -> None:
        self.broker = running
        self.is_async = is_async

    @contextlib.asynccontextmanager
    async def producing(self, **options: Any) -> AsyncIterator[Producer]:
        kind = AioProducerClient if self.is_async else EventHubProducerClient
        given = {"eventhub_name": "events", **PATIENT, **options}
        client = kind.from_connection_string(self.broker.connection_string, **given)
        try:
            yield Producer(client, is_async=self.is_async)
        finally:
            await _called(client.close, is_async=self.is_async)

    @contextlib.asynccontextmanager
    async def reading(self, **options: Any) -> AsyncIterator[Reading]:
        kind = AioConsumerClient if self.is_async else EventHubConsumerClient
        client = kind.from_connection_string(
            self.broker.connection_string,
            consumer_group="$Default",
            eventhub_name="events",
            **(PATIENT | options),
        )
        reading = Reading(asyncio.get_running_loop())
        if self.is_async:
            on_event, on_error = reading.on_event_async, reading.on_error_async
        else:
            on_event, on_error = reading.on_event, reading.on_error  # type: ignore[assignment]
        given = {"on_event": on_event, "on_error": on_error, "partition_id": "0"}
        receive = _called(client.receive, starting_position="-1", is_async=self.is_async, **given)
        task = asyncio.ensure_future(receive)
        try:
            yield reading
        finally:
            if self.is_async:
                task.cancel()  # else it sleeps until it would balance its load again
            await _called(client.close, is_async=self.is_async)
            await asyncio.wait([task], timeout=DEADLINE_S)


class Producer:
    def __init__(self, client: Any, *, is_async: bool) -> None:
        self._client = client
        self._is_async = is_async

    async def send(self, *texts: str) -> None:
        """One batch."""
        events = [EventData(text) for text in texts]
        await _called(self._client.send_batch, events, is_async=self._is_async)


class Reading:
    """What came, and what went wrong."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.texts: list[str] = []
        self.errors: list[Exception] = []
        self._loop = loop
        self._changed = asyncio.Event()

    def on_event(self, context: Any, event: Any) -> None:
        if event is not None:
            self.texts.append(event.body_as_str())
        self._loop.call_soon_threadsafe(self._changed.set)

    def on_error(self, context: Any, error: Exception) -> None:
        self.errors.append(error)
        self._loop.call_soon_threadsafe(self._changed.set)

    async def on_event_async(self, context: Any, event: Any) -> None:
        self.on_event(context, event)

    async def on_error_async(self, context: Any, error: Exception) -> None:
        self.on_error(context, error)

    async def until(self, *, texts: int = 0, errors: int = 0) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while len(self.texts) < texts or len(self.errors) < errors:
                await self._changed.wait()
                self._changed.clear()


async def _called(function: Any, *args: Any, is_async: bool, **named: Any) -> Any:
    if is_async:
        return await function(*args, **named)
    return await asyncio.to_thread(function, *args, **named)


Case = Callable[[Sdk], Awaitable[None]]
CASES: dict[str, tuple[Case, bool]] = {}  # by what the test is called; whether it is asynchronous


def case(*flavours: str) -> Callable[[Case], Case]:
    """The SDK sleeps half a second wherever it connects: cases run all at once, each against a
    broker of its own, and are then reported as tests of their own."""

    def register(function: Case) -> Case:
        for flavour in flavours or ("sync", "async"):
            name = f"{function.__name__}-{flavour}"
            CASES[name] = (function, flavour == "async")
        return function

    return register


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest) -> dict[str, BaseException | None]:
    """What came of each case that was selected."""
    chosen = [
        str(item.callspec.params["name"])
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.originalname == CASE_TEST
    ]
    return asyncio.run(_all(chosen))


async def _all(chosen: list[str]) -> dict[str, BaseException | None]:
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2 * len(CASES) + 2))
    places = asyncio.Semaphore(CASES_AT_ONCE)

    async def run(function: Case, *, is_async: bool) -> None:
        async with places, broker(partitions=1) as running, asyncio.timeout(CASE_DEADLINE_S):
            await function(Sdk(running, is_async=is_async))

    found = await asyncio.gather(
        *(run(CASES[name][0], is_async=CASES[name][1]) for name in chosen), return_exceptions=True
    )
    return dict(zip(chosen, found, strict=True))


def texts_in(running: InProcessBroker) -> list[str]:
    return [event.text for event in running.published("events")]


# --- publishing ---------------------------------------------------------------------------------


@case()
async def busy_service_is_asked_again_by_the_sdk_once(sdk: Sdk) -> None:
    async with sdk.producing() as producer:
        busy = sdk.broker.faults.server_busy(times=1, hub="events")
        await producer.send("patience")
        assert (busy.count, busy.is_armed) == (1, False)
        with sdk.broker.faults.server_busy(times=None) as busy:
            with pytest.raises(EventDataSendError) as raised:
                await producer.send("never")
            assert raised.value.error == "server-busy"
            assert "50002" in raised.value.message
            assert busy.count >= 1
        await producer.send("after")
    assert texts_in(sdk.broker) == ["patience", "after"]


@case()
async def detached_sender_attaches_again(sdk: Sdk) -> None:
    async with sdk.producing() as producer:
        detach = sdk.broker.faults.detach(after=3)
        await producer.send("0", "1")
        assert detach.count == 0
        await producer.send("2")
        await asyncio.to_thread(detach.wait)
        await producer.send("3")
    assert (detach.count, detach.is_armed) == (1, False)
    assert texts_in(sdk.broker) == ["0", "1", "2", "3"]


@case()
async def detach_carries_the_condition_that_the_test_chose(sdk: Sdk) -> None:
    async with sdk.producing(**AT_ONCE) as producer:
        await producer.send("0")
        detach = sdk.broker.faults.detach(condition="amqp:link:stolen")
        assert detach.count == 1
        with pytest.raises(ConnectionLostError) as raised:
            await producer.send("1")
        assert raised.value.error == "link:stolen"
    assert texts_in(sdk.broker) == ["0"]


@case()
async def dropped_connection_loses_nothing_that_was_acknowledged(sdk: Sdk) -> None:
    async with sdk.producing() as producer:
        drop = sdk.broker.faults.drop_connection(after_events=2, side="send")
        for number in range(4):
            await producer.send(str(number))
        assert drop.count == 1
    assert texts_in(sdk.broker) == ["0", "1", "2", "3"]


@case()
async def connection_dropped_before_the_acknowledgement_makes_a_duplicate(sdk: Sdk) -> None:
    async with sdk.producing() as producer:
        drop = sdk.broker.faults.drop_connection(after_events=2, acknowledge=False)
        for number in range(3):
            await producer.send(str(number))
        assert drop.count == 1
    assert texts_in(sdk.broker) == ["0", "1", "1", "2"]


@case()
async def slow_service_answers_later(sdk: Sdk) -> None:
    async with sdk.producing() as producer:
        await producer.send("0")
        with sdk.broker.faults.slow(SLOW_S) as slow:
            began = time.monotonic()
            await producer.send("1")
            assert time.monotonic() - began >= SLOW_S * 0.9
            assert slow.count == 1
    assert texts_in(sdk.broker) == ["0", "1"]


@case()
async def expired_token_is_renewed_by_the_sdk(sdk: Sdk) -> None:
    async with sdk.producing() as producer:
        await producer.send("0")
        expired = sdk.broker.faults.expire_token()
        assert expired.count == 1
        await producer.send("1")
    assert texts_in(sdk.broker) == ["0", "1"]


@case()
async def expired_token_ends_the_link_as_unauthorized(sdk: Sdk) -> None:
    async with sdk.producing(**AT_ONCE) as producer:
        await producer.send("0")
        sdk.broker.faults.expire_token()
        with pytest.raises(EventHubError) as raised:
            await producer.send("1")
        assert raised.value.error == "unauthorized-access"


@case()
async def refused_connections_are_tried_again(sdk: Sdk) -> None:
    refused = sdk.broker.faults.refuse_connections(2)
    async with sdk.producing() as producer:
        await producer.send("0")
        assert refused.count == 2
    with sdk.broker.faults.refuse_connections(None) as refused:
        async with sdk.producing(**AT_ONCE) as producer:
            with pytest.raises(ConnectError):
                await producer.send("1")
        assert refused.count >= 1
    assert texts_in(sdk.broker) == ["0"]


@case()
async def refused_token_is_an_authentication_error(sdk: Sdk) -> None:
    with sdk.broker.faults.refuse_tokens(None) as refused:
        async with sdk.producing(**AT_ONCE) as producer:
            with pytest.raises(AuthenticationError):
                await producer.send("0")
        assert refused.count >= 1
    async with sdk.producing() as producer:
        await producer.send("1")
    assert texts_in(sdk.broker) == ["1"]


# --- reading ------------------------------------------------------------------------------------

MANY = [str(number) for number in range(20)]


@case()
async def detached_reader_goes_on_where_it_was(sdk: Sdk) -> None:
    async with sdk.producing() as producer:
        await producer.send(*MANY)
    detach = sdk.broker.faults.detach(after=5, times=2, side="receive")
    async with sdk.reading() as reading:
        await reading.until(texts=len(MANY))
        assert (detach.count, detach.is_armed) == (2, False)
        assert reading.texts == MANY


@case()
async def reader_whose_connection_drops_goes_on_where_it_was(sdk: Sdk) -> None:
    async with sdk.producing() as producer:
        await producer.send(*MANY)
    drop = sdk.broker.faults.drop_connection(after_events=5, side="receive")
    async with sdk.reading() as reading:
        await reading.until(texts=len(MANY))
        assert drop.count == 1
        assert reading.texts == MANY


@case()
async def reader_whose_token_ran_out_goes_on(sdk: Sdk) -> None:
    async with sdk.producing() as producer:
        await producer.send("0")
        async with sdk.reading() as reading:
            await reading.until(texts=1)
            assert sdk.broker.faults.expire_token().count == 2  # the sender's and the reader's
            await producer.send("1")
            await reading.until(texts=2)
            assert reading.texts == ["0", "1"]


@case()
async def slow_service_delivers_later(sdk: Sdk) -> None:
    async with sdk.producing() as producer:
        await producer.send(*MANY)
    slow = sdk.broker.faults.slow(SLOW_S, side="receive")
    began = time.monotonic()
    async with sdk.reading() as reading:
        await reading.until(texts=len(MANY))
        assert time.monotonic() - began >= SLOW_S * 0.9
        assert slow.count >= 1
        assert reading.texts == MANY
        slow.cancel()


@case("sync")
async def stolen_link_reaches_on_error_after_as_many_events_as_said(sdk: Sdk) -> None:
    async with sdk.producing() as producer:
        await producer.send(*MANY)
    sdk.broker.faults.detach(after=5, condition="amqp:link:stolen", side="receive")
    async with sdk.reading(retry_total=0) as reading:
        await reading.until(errors=1)
        assert reading.texts[:5] == MANY[:5]
        assert getattr(reading.errors[0], "error", None) == "link:stolen"


@pytest.mark.timeout(300)  # the first pays for all
@pytest.mark.parametrize("name", CASES)
def test_sdk_meets_a_fault(name: str, outcomes: dict[str, BaseException | None]) -> None:
    error = outcomes[name]
    if error is not None:
        raise error


# --- other doors --------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["tls", "websocket"])
def test_sdk_comes_in_by_tls_and_websocket(penstock_broker: InProcessBroker, way: str) -> None:
    running = penstock_broker
    options: dict[str, Any] = {"custom_endpoint_address": f"sb://{running.amqps}"}
    if way == "websocket":
        address = running.https_url.removeprefix("https://")
        options = {
            "custom_endpoint_address": f"sb://{address}",
            "transport_type": TransportType.AmqpOverWebsocket,
        }
    client = EventHubProducerClient.from_connection_string(
        running.tls_connection_string,
        eventhub_name="events",
        connection_verify=running.ca_file,
        **(PATIENT | options),
    )
    with client:
        client.send_batch([EventData("0")])
        drop = running.faults.drop_connection()
        assert drop.count == 1
        client.send_batch([EventData("1")])
    assert texts_in(running) == ["0", "1"]


class Https:
    """One publisher over HTTPS."""

    def __init__(self, running: InProcessBroker) -> None:
        parts = dict(p.split("=", 1) for p in running.connection_string.split(";") if p)
        self._address = running.https_url.removeprefix("https://")
        self._tls = ssl.create_default_context(cafile=running.ca_file)
        self._token = sign(
            f"https://{self._address}/events",
            parts["SharedAccessKeyName"],
            Secret(parts["SharedAccessKey"]),
            expires_s=int(time.time()) + 3600,
        )

    def post(self, body: str) -> http.client.HTTPResponse:
        connection = http.client.HTTPSConnection(
            self._address, timeout=DEADLINE_S, context=self._tls
        )
        try:
            connection.request(
                "POST", "/events/messages", body.encode(), {"Authorization": self._token}
            )
            answer = connection.getresponse()
            answer.read()
            return answer
        finally:
            connection.close()


def test_https_publisher_meets_the_same_faults(penstock_broker: InProcessBroker) -> None:
    faults, https = penstock_broker.faults, Https(penstock_broker)
    assert https.post("0").status == 201
    faults.server_busy(times=1)
    answer = https.post("refused")
    assert (answer.status, answer.getheader("Retry-After")) == (503, "4")
    refused = faults.refuse_tokens(1)
    assert https.post("refused").status == 401
    assert refused.count == 1
    refused = faults.refuse_connections(1)
    with pytest.raises((OSError, http.client.HTTPException)):
        https.post("refused")
    assert refused.count == 1
    with faults.slow(SLOW_S) as slow:
        began = time.monotonic()
        assert https.post("1").status == 201
        assert time.monotonic() - began >= SLOW_S * 0.9
        assert slow.count == 1
    assert sorted(texts_in(penstock_broker)) == ["0", "1"]


def test_service_keeps_checkpoints_for_a_test(penstock_broker: InProcessBroker) -> None:
    running = penstock_broker
    store = ServiceCheckpointStore(
        running.connection_string, https_url=running.https_url, ca_file=running.ca_file
    )
    where = ("localhost", "events", "$Default")
    checkpoint = dict(zip(("fully_qualified_namespace", "eventhub_name"), where, strict=False))
    store.update_checkpoint(
        {**checkpoint, "consumer_group": "$Default", "partition_id": "0"}
        | {"offset": "57", "sequence_number": 1}
    )
    (kept,) = store.list_checkpoints(*where)
    assert (kept["partition_id"], kept["sequence_number"]) == ("0", 1)


def test_tokens_run_out_when_the_clock_is_turned() -> None:
    clock = ManualClock(time.time_ns() // 1_000_000)
    with broker(partitions=1, clock=clock) as running:
        client = EventHubProducerClient.from_connection_string(
            running.connection_string, eventhub_name="events", **AT_ONCE
        )
        with client:
            client.send_batch([EventData("0")])
            running.advance(timedelta(hours=3))
            with pytest.raises(EventHubError):  # its link ended, or its next token refused
                client.send_batch([EventData("1")])
        assert texts_in(running) == ["0"]


def test_clients_left_open_do_not_keep_the_broker(penstock_broker: InProcessBroker) -> None:
    threads = set(threading.enumerate())
    with broker() as other:
        client = EventHubProducerClient.from_connection_string(
            other.connection_string, eventhub_name="events", **AT_ONCE
        )
        client.send_batch([EventData("0")])
    assert set(threading.enumerate()) <= threads
    assert penstock_broker.published() == []
    client.close()
