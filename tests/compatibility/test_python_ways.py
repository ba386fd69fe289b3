"""azure-eventhub in each of its six ways: sync and async; plain TCP, TLS and WebSocket."""

from __future__ import annotations

import socket
import ssl
from typing import TYPE_CHECKING

import pytest
from azure.eventhub import EventData
from azure.eventhub.exceptions import AuthenticationError, ConnectionLostError

if TYPE_CHECKING:
    from tests.compatibility.conftest import Case, Outcomes, PythonSdk, Sdks
    from tests.conftest import Server

WAYS = [
    (flavour, transport) for flavour in ("sync", "aio") for transport in ("tcp", "tls", "websocket")
]


async def batch_goes_out_and_comes_back_in_order(sdk: PythonSdk) -> None:
    hub, partition = sdk.spot()
    async with sdk.producing(hub) as producer:
        batch = await sdk.call(producer.create_batch, partition_id=partition)
        for number in range(100):
            batch.add(EventData(f"event {number}"))
        await sdk.call(producer.send_batch, batch)
    received = await sdk.read(hub, partition, 100)
    assert [event.body_as_str() for event in received] == [f"event {n}" for n in range(100)]
    assert [event.sequence_number for event in received] == list(range(100))


async def single_event_keeps_its_properties(sdk: PythonSdk) -> None:
    hub, partition = sdk.spot()
    event = EventData(b"\x00\xffraw")
    event.properties = {"text": "ünïcode", "number": 7, "truth": True}
    event.message_id, event.correlation_id, event.content_type = "m-1", "c-1", "text/plain"
    await sdk.send_event(hub, event, partition_id=partition)
    [received] = await sdk.read(hub, partition, 1)
    assert sdk.body(received) == b"\x00\xffraw"
    assert received.properties == {b"text": "ünïcode".encode(), b"number": 7, b"truth": True}
    assert (received.message_id, received.correlation_id) == ("m-1", "c-1")
    assert received.content_type == "text/plain"
    assert received.enqueued_time is not None
    assert received.partition_key is None


async def keyed_events_share_a_partition_and_keep_the_key(sdk: PythonSdk) -> None:
    hub = sdk.hub()
    await sdk.send(hub, "a", "b", partition_key="key1")  # 3 of 4 (protocol.md 8.2)
    received = await sdk.read(hub, "3", 2)
    assert [event.partition_key for event in received] == [b"key1", b"key1"]


async def hub_and_partition_describe_themselves(sdk: PythonSdk) -> None:
    hub = sdk.hub()
    async with sdk.producing(hub) as producer:
        properties = await sdk.call(producer.get_eventhub_properties)
        empty = await sdk.call(producer.get_partition_properties, "1")
        await sdk.call(producer.send_event, EventData("x"), partition_id="1")
        filled = await sdk.call(producer.get_partition_properties, "1")
    assert (properties["eventhub_name"], properties["partition_ids"]) == (hub, ["0", "1", "2", "3"])
    assert (empty["is_empty"], empty["last_enqueued_sequence_number"]) == (True, -1)
    assert (filled["is_empty"], filled["last_enqueued_sequence_number"]) == (False, 0)


async def large_event_crosses_in_many_frames(sdk: PythonSdk) -> None:
    hub, partition = sdk.spot()
    body = bytes(range(256)) * 1000
    await sdk.send_event(hub, EventData(body), partition_id=partition)
    [received] = await sdk.read(hub, partition, 1)
    assert sdk.body(received) == body


async def wrong_key_is_an_authentication_error(sdk: PythonSdk) -> None:
    hub, _ = sdk.spot()
    wrong = sdk.connection_string(key="not-the-key")
    async with sdk.producing(hub, conn_str=wrong) as producer:
        with pytest.raises(AuthenticationError, match="CBS Token authentication failed"):
            await sdk.call(producer.create_batch)


async def higher_owner_level_takes_the_partition(sdk: PythonSdk) -> None:
    hub, partition = sdk.spot()
    await sdk.send(hub, "one", partition_id=partition)
    async with sdk.reading(hub, partition, owner_level=1) as low:
        await low.next()
        async with sdk.reading(hub, partition, owner_level=2) as high:
            assert (await high.next()).body_as_str() == "one"
            error = await low.error()
    assert isinstance(error, ConnectionLostError)
    assert error.error == "link:stolen"


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "::1"])
@pytest.mark.parametrize("door", ["amqps", "https"])
def test_development_certificate_covers_every_name(server: Server, door: str, name: str) -> None:
    context = ssl.create_default_context(cafile=server["ca_file"])
    address = "127.0.0.1" if name == "localhost" else name
    try:
        plain = socket.create_connection((address, server.port(door)), 10)
    except OSError:
        assert name == "::1", "the door is closed"
        pytest.skip("this machine has no IPv6")
    with plain, context.wrap_socket(plain, server_hostname=name) as secure:
        assert secure.version() in ("TLSv1.2", "TLSv1.3")


CASES: list[Case] = [
    batch_goes_out_and_comes_back_in_order,
    single_event_keeps_its_properties,
    keyed_events_share_a_partition_and_keep_the_key,
    hub_and_partition_describe_themselves,
    large_event_crosses_in_many_frames,
    wrong_key_is_an_authentication_error,
    higher_owner_level_takes_the_partition,
]


@pytest.fixture(scope="module")
def outcomes(sdks: Sdks) -> Outcomes:
    return sdks.run((CASES, WAYS))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
@pytest.mark.parametrize("way", WAYS, ids="-".join)
def test_each_way(outcomes: Outcomes, case: Case, way: tuple[str, str]) -> None:
    outcomes.check(case, *way)
