"""`penstock.client` and the official SDK against one `penstock serve`: each reads what the other
wrote, every position means the same, keys lead to the same place."""

from __future__ import annotations

import asyncio
import itertools
import os
import uuid
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from penstock.amqp.types import Symbol
from penstock.client import (
    ClientDenied,
    ClientError,
    ClientNotFound,
    ClientStolen,
    ClientUntrusted,
    EventData,
    EventHubBufferedProducerClient,
    EventHubConsumerClient,
    EventHubProducerClient,
    EventPosition,
    RetryPolicy,
)

pytest.importorskip("azure.eventhub", reason="the Python SDK is not installed")

from azure.eventhub import EventData as OfficialEvent
from azure.eventhub.aio import EventHubConsumerClient as OfficialConsumer
from azure.eventhub.aio import EventHubProducerClient as OfficialProducer

if TYPE_CHECKING:
    from tests.conftest import Server, ServerFactory

pytestmark = pytest.mark.sdk
DEADLINE_S = 60.0
HUBS = 24
EARLIEST = EventPosition.earliest()
CONFIG = (
    '[[namespaces]]\nname = "client"\n'
    + '[[namespaces.rules]]\nname = "RootManageSharedAccessKey"\nrights = ["manage"]\n'
    + 'key = "the-root-key"\n'
    + '[[namespaces.rules]]\nname = "reader"\nrights = ["listen"]\nkey = "the-readers-key"\n'
    + '[[namespaces.rules]]\nname = "writer"\nrights = ["send"]\nkey = "the-writers-key"\n'
    + "".join(
        f'[[namespaces.hubs]]\nname = "hub-{i}"\npartition_count = 4\ngroups = ["other"]\n'
        for i in range(HUBS)
    )
)


@pytest.fixture(scope="module")
def server(start_session_server: ServerFactory) -> Server:
    return start_session_server("--flush=os", "--log-level=warning", config=CONFIG)


@pytest.fixture(scope="module")
def hubs() -> Iterator[str]:
    return (f"hub-{i}" for i in itertools.count())


@pytest.fixture
def hub(hubs: Iterator[str]) -> str:
    """One that no other test uses."""
    return next(hubs)


@pytest.fixture
def string(server: Server) -> str:
    return server.connection_string()


def official_producer(string: str, hub: str) -> OfficialProducer:
    return OfficialProducer.from_connection_string(string, eventhub_name=hub)


async def official_read(string: str, hub: str, count: int, **options: Any) -> list[Any]:
    """So many events of one partition, by the official SDK."""
    got: list[Any] = []
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def on_batch(_: Any, events: list[Any]) -> None:
        got.extend(events)
        if len(got) >= count and not done.done():
            done.set_result(None)

    chosen: dict[str, Any] = {"partition_id": "0", "starting_position": "-1"} | options
    client = OfficialConsumer.from_connection_string(string, "$Default", eventhub_name=hub)
    async with client:
        receiving = asyncio.ensure_future(client.receive_batch(on_batch, **chosen))
        async with asyncio.timeout(DEADLINE_S):
            await done
        receiving.cancel()
        await asyncio.wait([receiving])
    return got


async def our_read(
    string: str, hub: str, count: int, position: EventPosition = EARLIEST, partition: str = "0"
) -> list[EventData]:
    got: list[EventData] = []
    async with (
        EventHubConsumerClient(string, eventhub_name=hub) as client,
        client.open_partition(partition, position) as reader,
        asyncio.timeout(DEADLINE_S),
    ):
        while len(got) < count:
            got += await reader.receive_batch()
    return got


# --- each reads what the other wrote --------------------------------------------------------------

BODIES = [b"", b"x", bytes(range(256)), os.urandom(5000), "grüße".encode()]
PROPERTIES: list[dict[str, Any]] = [
    {},
    {"text": "t", "number": 7, "big": 2**40, "real": 1.5, "yes": True, "no": False, "none": None},
    {"bytes": b"\x00\xff", "uuid": uuid.UUID(int=9), "long": "ü" * 300},
]


async def test_official_sdk_reads_what_we_send(string: str, hub: str) -> None:
    sent = [(body, properties) for body in BODIES for properties in PROPERTIES]
    async with EventHubProducerClient(string, eventhub_name=hub) as producer:
        batch = await producer.create_batch(partition_id="0")
        for i, (body, properties) in enumerate(sent):
            batch.add(
                EventData(body, properties=properties, message_id=f"m{i}", content_type="a/b")
            )
        await producer.send_batch(batch)
        await producer.send_event(EventData("alone", correlation_id="c"), partition_id="0")
    got = await official_read(string, hub, len(sent) + 1)
    for i, (body, properties) in enumerate(sent):
        assert b"".join(got[i].body) == body
        assert _plain(got[i].properties) == properties
        assert (got[i].message_id, got[i].content_type) == (f"m{i}", "a/b")
        assert got[i].sequence_number == i
    assert b"".join(got[-1].body) == b"alone"
    assert got[-1].correlation_id == "c"


async def test_we_read_what_the_official_sdk_sends(string: str, hub: str) -> None:
    sent = [(body, properties) for body in BODIES for properties in PROPERTIES]
    async with official_producer(string, hub) as producer:
        batch = await producer.create_batch(partition_id="0")
        for i, (body, properties) in enumerate(sent):
            event = OfficialEvent(body)
            event.properties = _sendable(properties)
            event.message_id = f"m{i}"
            event.content_type = "a/b"
            batch.add(event)
        await producer.send_batch(batch)
        single = OfficialEvent(b"alone")
        single.correlation_id = "c"
        await producer.send_event(single, partition_id="0")
    ours = await our_read(string, hub, len(sent) + 1)
    theirs = await official_read(string, hub, len(sent) + 1)
    for i, (body, properties) in enumerate(sent):
        assert ours[i].body == body
        assert ours[i].properties == _sendable(properties)
        assert (ours[i].message_id, ours[i].content_type) == (f"m{i}", "a/b")
    assert (ours[-1].body, ours[-1].correlation_id) == (b"alone", "c")
    for our, their in zip(ours, theirs, strict=True):
        assert (our.sequence_number, our.offset) == (their.sequence_number, their.offset)
        assert our.enqueued_time == their.enqueued_time


def _sendable(properties: dict[str, Any]) -> dict[Any, Any]:
    """The SDK writes every integer as an AMQP int."""
    return {name: value for name, value in properties.items() if name != "big"}


def _plain(properties: dict[Any, Any]) -> dict[str, Any]:
    """The SDK gives names and texts as bytes; a value that was binary stays so."""
    plain: dict[str, Any] = {}
    for name, value in (properties or {}).items():
        text = name.decode() if isinstance(name, bytes) else name
        is_text = isinstance(value, bytes) and text not in ("bytes",)
        plain[text] = value.decode() if is_text else value
    return plain


async def test_forwarded_events_keep_their_bytes(string: str, hub: str) -> None:
    async with official_producer(string, hub) as official:
        event = OfficialEvent(b"payload")
        event.properties = {"n": 1, "t": "x"}
        event.message_id = "id"
        await official.send_event(event, partition_id="0")
    (received,) = await our_read(string, hub, 1)
    async with EventHubProducerClient(string, eventhub_name=hub) as producer:
        await producer.send_batch([received], partition_id="1")
    (forwarded,) = await our_read(string, hub, 1, partition="1")
    assert forwarded._properties_raw == received._properties_raw != b""
    assert (forwarded.body, forwarded.message_id) == (b"payload", "id")


async def test_every_position_means_what_it_means_to_the_official_sdk(
    string: str, hub: str
) -> None:
    async with EventHubProducerClient(string, eventhub_name=hub) as producer:
        for first in (0, 5):
            events = [EventData(str(i)) for i in range(first, first + 5)]
            await producer.send_batch(events, partition_id="0")
            await asyncio.sleep(0.02)  # the second batch is later by some milliseconds
    stored = await our_read(string, hub, 10)
    middle, time = stored[4], stored[4].enqueued_time
    assert middle.offset is not None
    assert time is not None
    offset = int(middle.offset)
    cases: list[tuple[EventPosition, dict[str, Any], int]] = [
        (EARLIEST, {"starting_position": "-1"}, 0),
        (EventPosition.from_offset(offset), {"starting_position": str(offset)}, 5),
        (
            EventPosition.from_offset(str(offset), inclusive=True),
            {"starting_position": str(offset), "starting_position_inclusive": True},
            4,
        ),
        (EventPosition.from_sequence_number(4), {"starting_position": 4}, 5),
        (
            EventPosition.from_sequence_number(4, inclusive=True),
            {"starting_position": 4, "starting_position_inclusive": True},
            4,
        ),
        (
            EventPosition.from_enqueued_time(time - timedelta(milliseconds=1)),
            {"starting_position": time - timedelta(milliseconds=1)},
            0,
        ),
        (EventPosition.from_enqueued_time(time), {"starting_position": time}, 5),
    ]

    async def same(position: EventPosition, official: dict[str, Any], first: int) -> None:
        ours = await our_read(string, hub, 10 - first, position)
        assert [event.body_as_str() for event in ours] == [str(i) for i in range(first, 10)]
        theirs = await official_read(string, hub, 10 - first, **official)
        assert [event.offset for event in theirs] == [event.offset for event in ours]

    for some in (cases[:4], cases[4:]):  # five readers of one group are allowed
        await asyncio.gather(*(same(*case) for case in some))


async def test_latest_begins_behind_what_is_there(string: str, hub: str) -> None:
    async with (
        EventHubProducerClient(string, eventhub_name=hub) as producer,
        EventHubConsumerClient(string, eventhub_name=hub) as client,
    ):
        await producer.send_event(EventData("before"), partition_id="2")
        async with client.open_partition("2", EventPosition.latest()) as reader:
            await producer.send_event(EventData("after"), partition_id="2")
            (event,) = await reader.receive_batch()
            assert event.body == b"after"


async def test_keys_lead_where_the_official_sdk_sends_them(string: str, hub: str) -> None:
    keys = [f"device-{i}" for i in range(12)] + ["ü"]
    async with official_producer(string, hub) as official:
        for key in keys:
            batch = await official.create_batch(partition_key=key)
            batch.add(OfficialEvent(key))
            await official.send_batch(batch)
    async with EventHubProducerClient(string, eventhub_name=hub) as producer:
        for key in keys:
            await producer.send_event(EventData(key), partition_key=key)
            await producer.send_batch([EventData(key)] * 2, partition_key=key)
    async with EventHubBufferedProducerClient(string, eventhub_name=hub) as buffered:
        for key in keys:
            await buffered.enqueue_event(EventData(key), partition_key=key)
    async with EventHubConsumerClient(string, eventhub_name=hub) as client:
        found: dict[str, list[str | None]] = {}
        for partition in await client.get_partition_ids():
            async for columns in client.read_range(partition, 0, 2**40):
                for body, key_ in zip(columns.bodies, columns.partition_keys, strict=True):
                    assert body.decode() == key_
                    found.setdefault(key_, []).append(partition)
    assert {key: len(places) for key, places in found.items()} == dict.fromkeys(keys, 5)
    assert all(len(set(places)) == 1 for places in found.values())


async def test_management_tells_both_the_same(string: str, hub: str) -> None:
    async with (
        EventHubProducerClient(string, eventhub_name=hub) as producer,
        official_producer(string, hub) as official,
    ):
        await producer.send_event(EventData("x"), partition_id="1")
        theirs = await official.get_eventhub_properties()
        assert await producer.get_eventhub_properties() == theirs
        for partition in theirs["partition_ids"]:
            their = await official.get_partition_properties(partition)
            our = await producer.get_partition_properties(partition)
            if not our["is_empty"]:  # the SDK shows year 1 as a naive time
                assert our == their
            assert our["last_enqueued_sequence_number"] == their["last_enqueued_sequence_number"]


async def test_official_sdk_reads_what_an_idempotent_producer_sent(string: str, hub: str) -> None:
    async with EventHubProducerClient(string, eventhub_name=hub, idempotent=True) as producer:
        for i in range(5):
            await producer.send_batch([EventData(f"{i}-{j}") for j in range(3)], partition_id="0")
    got = await official_read(string, hub, 15)
    assert [event.body_as_str() for event in got] == [
        f"{i}-{j}" for i in range(5) for j in range(3)
    ]
    assert got[0].system_properties[b"com.microsoft:producer-sequence-number"] == 1


# --- ranges, columns, readers ---------------------------------------------------------------------


async def test_ranges_are_exact(string: str, hub: str) -> None:
    async with EventHubProducerClient(string, eventhub_name=hub) as producer:
        for first in range(0, 20_000, 4_000):
            batch = await producer.create_batch(partition_id="0")
            for i in range(first, first + 4_000):
                batch.add(EventData(b"%d" % i))
            await producer.send_batch(batch)
    async with EventHubConsumerClient(string, eventhub_name=hub) as client:
        for first, last in ((0, 0), (7, 15_000), (19_999, 10**9), (20_000, 20_001)):
            numbers: list[int] = []
            bodies: list[bytes] = []
            async for columns in client.read_range("0", first, last):
                numbers += columns.sequence_numbers
                bodies += columns.bodies
            expected = list(range(first, min(last, 19_999) + 1))
            assert numbers == expected
            assert bodies == [b"%d" % i for i in expected]


async def test_end_of_the_partition_is_told_with_events(string: str, hub: str) -> None:
    async with (
        EventHubProducerClient(string, eventhub_name=hub) as producer,
        EventHubConsumerClient(string, "other", eventhub_name=hub) as client,
    ):
        await producer.send_batch([EventData(b"x")] * 3, partition_id="0")
        async with client.open_partition("0", EARLIEST, track_last_enqueued=True) as reader:
            events = await reader.receive_batch()
            assert events
            told = reader.last_enqueued
    assert told is not None
    assert told["sequence_number"] == 2


async def test_newer_owner_takes_the_partition_and_the_older_hears_it(
    string: str, hub: str
) -> None:
    async with (
        EventHubConsumerClient(string, eventhub_name=hub) as client,
        client.open_partition("0", EARLIEST, owner_level=1) as first,
        client.open_partition("0", EARLIEST, owner_level=1) as second,
    ):
        with pytest.raises(ClientStolen):
            await first.receive_batch()
        with pytest.raises(ClientStolen):
            await client.open_partition("0", EARLIEST, owner_level=0).open()
        async with EventHubProducerClient(string, eventhub_name=hub) as producer:
            await producer.send_event(EventData("x"), partition_id="0")
        assert len(await second.receive_batch()) == 1


# --- who may, who is there ------------------------------------------------------------------------


async def test_rights_and_names_are_judged_by_the_service(server: Server, hub: str) -> None:
    reader = server.connection_string(policy="reader", key="the-readers-key")
    writer = server.connection_string(policy="writer", key="the-writers-key")
    wrong = server.connection_string(key="no-key")

    async def send(string: str, name: str = hub) -> None:
        async with EventHubProducerClient(string, eventhub_name=name) as producer:
            await producer.send_event(EventData("x"))

    async def read(string: str, name: str = hub, group: str = "$Default") -> None:
        async with EventHubConsumerClient(string, group, eventhub_name=name) as client:
            await client.open_partition("0", EARLIEST).open()

    await send(writer)
    await read(reader)
    for act, kind in (
        (send(reader), ClientDenied),
        (read(writer), ClientDenied),
        (send(wrong), ClientDenied),
        (send(writer, "no-such-hub"), ClientNotFound),
        (read(reader, hub, "no-such-group"), ClientNotFound),
    ):
        with pytest.raises(kind):
            await act


@pytest.mark.parametrize("transport", ["amqp", "websocket"])
async def test_tls_is_verified_on_every_transport(
    server: Server, hub: str, transport: Any, tmp_path: Any
) -> None:
    string = server.connection_string(tls=True)
    if transport == "websocket":
        endpoint = f"sb://localhost:{server.port('https')}"
        string = f"Endpoint={endpoint};" + string.partition(";")[2]
    options: dict[str, Any] = {
        "eventhub_name": hub,
        "transport": transport,
        "retry": RetryPolicy(retry_total=0),
    }
    ca_file = server["ca_file"]
    async with EventHubProducerClient(string, ca_file=ca_file, **options) as producer:
        for i in range(3):
            await producer.send_batch([EventData(bytes(100_000))] * 2, partition_id=str(i))
    async with (
        EventHubConsumerClient(string, ca_file=ca_file, **options) as client,
        client.open_partition("0", EARLIEST) as reader,
    ):
        total = 0
        while total < 2:
            total += len(await reader.receive_batch())
    async with EventHubProducerClient(string, **options) as producer:
        with pytest.raises(ClientUntrusted, match="ca_file"):
            await producer.send_event(EventData("x"))


async def test_websocket_to_what_is_none_is_an_error_of_the_client(
    server: Server, hub: str
) -> None:
    admin = server["admin"].rpartition(":")[2].rstrip("/")
    string = (
        f"Endpoint=sb://127.0.0.1:{admin};SharedAccessKeyName=n;SharedAccessKey=k;"
        "UseDevelopmentEmulator=true"
    )
    once = RetryPolicy(retry_total=0)
    async with EventHubProducerClient(
        string, eventhub_name=hub, transport="websocket", retry=once
    ) as producer:
        with pytest.raises(ClientError, match="refused"):
            await producer.send_event(EventData("x"))


# --- the buffered producer ------------------------------------------------------------------------


async def test_buffered_events_keep_the_order_of_their_keys(string: str, hub: str) -> None:
    stored: list[int] = []
    failed: list[Exception] = []

    def on_success(events: list[EventData], _: str) -> None:
        stored.append(len(events))

    def on_error(_: list[EventData], __: str, error: Exception) -> None:
        failed.append(error)

    async with EventHubBufferedProducerClient(
        string, eventhub_name=hub, on_success=on_success, on_error=on_error, max_buffer_length=500
    ) as producer:

        async def one_key(key: str) -> None:
            for i in range(400):
                event = EventData(f"{key}-{i}", properties={"i": i})
                await producer.enqueue_event(event, partition_key=key)

        await asyncio.gather(*(one_key(f"key{number}") for number in range(10)))
        await producer.enqueue_event(EventData(bytes(2_000_000)))
    assert sum(stored) == 4_000
    assert [type(error) for error in failed] == [ValueError]
    seen: dict[str, list[int]] = {}
    async with EventHubConsumerClient(string, eventhub_name=hub) as client:
        for partition in await client.get_partition_ids():
            async for columns in client.read_range(partition, 0, 2**40):
                for body in columns.bodies:
                    key, _, number = body.decode().partition("-")
                    seen.setdefault(key, []).append(int(number))
    assert seen == {f"key{number}": list(range(400)) for number in range(10)}


async def test_symbols_and_other_types_survive(string: str, hub: str) -> None:
    properties = {"symbol": Symbol("a"), "nested": [1, {"x": None}]}
    async with EventHubProducerClient(string, eventhub_name=hub) as producer:
        await producer.send_event(EventData("x", properties=properties), partition_id="0")
    (event,) = await our_read(string, hub, 1)
    assert event.properties == properties
    assert isinstance(event.properties["symbol"], Symbol)
