"""azure-eventhub against other servers: metered, dedicated, two namespaces, emulator."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest
from azure.eventhub import EventData
from azure.eventhub.exceptions import AuthenticationError, EventDataSendError

if TYPE_CHECKING:
    from tests.compatibility.conftest import PythonSdk, Sdks
    from tests.conftest import ServerFactory

MB = 1_048_576

TWO_NAMESPACES = """
[[namespaces]]
name = "first-namespace"
hosts = ["first.example"]
[[namespaces.rules]]
name = "RootManageSharedAccessKey"
rights = ["manage"]
key = "first-key"
[[namespaces.hubs]]
name = "events"
partition_count = 2

[[namespaces]]
name = "second-namespace"
hosts = ["second.example"]
[[namespaces.rules]]
name = "RootManageSharedAccessKey"
rights = ["manage"]
key = "second-key"
[[namespaces.hubs]]
name = "events"
partition_count = 3
"""
DEDICATED = """
[[namespaces]]
name = "large-namespace"
tier = "dedicated"
[[namespaces.hubs]]
name = "events"
"""
EMULATOR = {
    "UserConfig": {
        "NamespaceConfig": [
            {
                "Type": "EventHub",
                "Name": "emulatorNs1",
                "Entities": [
                    {
                        "Name": "eh1",
                        "PartitionCount": "1",
                        "ConsumerGroups": [{"Name": "cg1"}],
                    }
                ],
            }
        ],
        "LoggingConfig": {"Type": "File"},
    }
}


async def test_throughput_units_answer_server_busy(start_server: ServerFactory, sdks: Sdks) -> None:
    sdk = sdks.of("aio", server=start_server("--throughput-units", "1", "--hub", "events:4"))
    async with sdk.producing("events") as producer:
        with pytest.raises(EventDataSendError, match="Error code : 50002") as raised:
            # More than a second's worth is taken at once, and leaves a debt of some seconds.
            await producer.send_batch([EventData("x")] * 5_000, partition_id="0")
            await producer.send_batch([EventData("refused")], partition_id="0")
        assert raised.value.error == "server-busy"
        await _until_admitted(producer)
    events = await sdk.read("events", "0", 5_001)
    assert [sdk.body(event) for event in events] == [b"x"] * 5_000 + [b"again"]


async def _until_admitted(producer: object) -> None:
    """The bucket fills again; nobody has to reconnect."""
    async with asyncio.timeout(30):
        while True:
            try:
                again = [EventData("again")]
                await producer.send_batch(again, partition_id="0")  # type: ignore[attr-defined]  # client
            except EventDataSendError:
                await asyncio.sleep(0.02)
            else:
                return


async def test_unmetered_namespace_takes_a_burst(sdk: PythonSdk, hub: str) -> None:
    async with sdk.producing(hub) as producer:
        await producer.send_batch([EventData("x")])
        sends = (producer.send_batch([EventData(b"x" * 100_000)]) for _ in range(40))
        assert await asyncio.gather(*sends) == [None] * 40


async def test_dedicated_namespace_takes_a_megabyte(
    start_server: ServerFactory, sdks: Sdks
) -> None:
    sdk = sdks.of("aio", server=start_server(config=DEDICATED))
    body = b"x" * 1_000_000
    async with sdk.producing("events") as producer:
        batch = await producer.create_batch(partition_id="0")
        assert batch.max_size_in_bytes == MB
        batch.add(EventData(body))
        await producer.send_batch(batch)
        with pytest.raises(EventDataSendError) as raised:
            await producer.send_event(EventData(b"x" * MB), partition_id="0")
        assert raised.value.error == "link:message-size-exceeded"
    [received] = await sdk.read("events", "0", 1)
    assert sdk.body(received) == body


async def test_namespaces_on_one_address_are_told_apart_by_their_keys(
    start_server: ServerFactory, sdks: Sdks
) -> None:
    sdk = sdks.of("aio", server=start_server(config=TWO_NAMESPACES))
    strings = {key: sdk.connection_string(key=key) for key in ("first-key", "second-key")}
    for key, partitions in (("first-key", 2), ("second-key", 3)):
        async with sdk.producing("events", conn_str=strings[key]) as producer:
            assert len(await producer.get_partition_ids()) == partitions
            await producer.send_event(EventData(key), partition_id="0")
    for key, text in strings.items():
        [received] = await sdk.read("events", "0", 1, client={"conn_str": text})
        assert received.body_as_str() == key
    wrong = sdk.connection_string(key="third-key")
    async with sdk.producing("events", conn_str=wrong) as producer:
        with pytest.raises(AuthenticationError):
            await producer.send_event(EventData("x"))


async def test_namespace_is_reached_by_its_own_host_name(
    start_server: ServerFactory, sdks: Sdks
) -> None:
    server = start_server(config=TWO_NAMESPACES)
    sdk = sdks.of("aio", "tls", server=server)
    text = (
        "Endpoint=sb://second.example/;SharedAccessKeyName=RootManageSharedAccessKey;"
        "SharedAccessKey=second-key"
    )
    # custom_endpoint_address leads there; the token and the open frame carry the real name.
    async with sdk.producing("events", conn_str=text) as producer:
        assert len(await producer.get_partition_ids()) == 3
        await producer.send_event(EventData("x"), partition_id="2")


async def test_emulators_own_configuration_and_connection_string_work(
    start_server: ServerFactory, sdks: Sdks
) -> None:
    server = start_server(config=json.dumps(EMULATOR))
    assert server["namespace"] == "emulatorNs1"
    sdk = sdks.of("aio", server=server)
    text = (
        f"Endpoint=sb://localhost:{server.port('amqp')};"
        "SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey=SAS_KEY_VALUE;"
        "UseDevelopmentEmulator=true;"
    )
    async with sdk.producing("eh1", conn_str=text) as producer:
        assert await producer.get_partition_ids() == ["0"]
        await producer.send_batch([EventData("x")])
    options = {"client": {"conn_str": text}}
    [received] = await sdk.read("eh1", "0", 1, group="cg1", **options)
    assert received.body_as_str() == "x"
