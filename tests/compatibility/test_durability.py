"""Kill -9, SIGTERM and restart under the unmodified SDK: acknowledged is on disk, in order."""

from __future__ import annotations

import asyncio
import socket
from itertools import count
from typing import TYPE_CHECKING, Any

from azure.eventhub import EventData
from azure.eventhub.exceptions import EventHubError

if TYPE_CHECKING:
    from tests.compatibility.conftest import PythonSdk, Sdks
    from tests.conftest import Server, ServerFactory

PARTITIONS = ("0", "1")
ENOUGH = 60  # acknowledged batches of each partition before the end comes


class Load:
    """One producer per partition, one batch after the other; what was acknowledged."""

    def __init__(self, sdk: PythonSdk) -> None:
        self._sdk = sdk
        self.acknowledged: dict[str, list[str]] = {partition: [] for partition in PARTITIONS}
        self.has_enough = asyncio.Event()

    async def run(self) -> None:
        await asyncio.gather(*(self._produce(partition) for partition in PARTITIONS))

    async def _produce(self, partition: str) -> None:
        acknowledged = self.acknowledged[partition]
        async with self._sdk.producing("events") as producer:
            for number in count():
                texts = [f"{partition} {number} {part}" for part in range(3)]
                batch = [EventData(text) for text in texts]
                try:
                    await producer.send_batch(batch, partition_id=partition)
                except EventHubError:
                    return  # the server is gone
                acknowledged += texts
                if min(map(len, self.acknowledged.values())) >= 3 * ENOUGH:
                    self.has_enough.set()


async def everything(sdk: PythonSdk, partition: str) -> list[EventData]:
    async with sdk.consuming("events") as consumer:
        properties = await consumer.get_partition_properties(partition)
    last: int = properties["last_enqueued_sequence_number"]
    return await sdk.read("events", partition, last + 1)


async def load_until(sdk: PythonSdk, end: Any) -> Load:
    load = Load(sdk)
    running = asyncio.create_task(load.run())
    await asyncio.wait_for(load.has_enough.wait(), 60)
    await asyncio.to_thread(end)
    await asyncio.wait_for(running, 60)
    return load


async def check_nothing_is_lost(sdk: PythonSdk, load: Load) -> None:
    found = await asyncio.gather(*(everything(sdk, partition) for partition in PARTITIONS))
    for partition, events in zip(PARTITIONS, found, strict=True):
        texts = [event.body_as_str() for event in events]
        acknowledged = load.acknowledged[partition]
        assert texts[: len(acknowledged)] == acknowledged
        # What was on its way is there as a whole or not at all.
        assert texts[len(acknowledged) :] in ([], _next_batch(partition, acknowledged))
        assert [event.sequence_number for event in events] == list(range(len(events)))


def _next_batch(partition: str, acknowledged: list[str]) -> list[str]:
    return [f"{partition} {len(acknowledged) // 3} {part}" for part in range(3)]


async def test_killed_server_keeps_what_it_acknowledged_and_checkpoints_fit(
    start_server: ServerFactory, sdks: Sdks
) -> None:
    server = start_server("--hub", "events:2")
    sdk = sdks.of("aio", server=server)
    load = Load(sdk)
    running = asyncio.create_task(load.run())
    await asyncio.wait_for(load.has_enough.wait(), 60)
    reads = (sdk.read("events", partition, 20) for partition in PARTITIONS)
    checkpoints = [events[-1] for events in await asyncio.gather(*reads)]
    await asyncio.to_thread(server.kill)  # in the middle of their sends
    await asyncio.wait_for(running, 60)

    again = sdks.of("aio", server=start_server(data=server.data))
    await check_nothing_is_lost(again, load)
    for partition, event in zip(PARTITIONS, checkpoints, strict=True):
        at = {"starting_position": event.offset}
        [after], [same] = await asyncio.gather(
            again.read("events", partition, 1, **at),
            again.read("events", partition, 1, starting_position_inclusive=True, **at),
        )
        assert after.sequence_number == (event.sequence_number or 0) + 1
        assert same.body_as_str() == event.body_as_str()


async def test_stopped_server_drains_and_goes_on_where_it_was(
    start_server: ServerFactory, sdks: Sdks
) -> None:
    server = start_server("--hub", "events:2")
    codes: list[int] = []
    sdk = sdks.of("aio", server=server)
    load = await load_until(sdk, lambda: codes.append(server.stop()))
    assert codes == [0]
    assert not (server.data / "runtime.json").exists()

    restarted = start_server(data=server.data)
    assert restarted.key == server.key
    again = sdks.of("aio", server=restarted)
    await check_nothing_is_lost(again, load)
    before = len(await everything(again, "0"))
    await again.send("events", "after the restart", partition_id="0")
    events = await everything(again, "0")
    assert events[-1].body_as_str() == "after the restart"
    assert events[-1].sequence_number == before


async def test_clients_find_the_restarted_server_by_themselves(
    start_server: ServerFactory, sdks: Sdks
) -> None:
    port = ("--amqp-port", str(_free_port()))
    server = start_server("--hub", "events:2", *port)
    sdk = sdks.of("aio", server=server)
    patient = {"retry_total": 8, "retry_backoff_factor": 0.1, "retry_mode": "fixed"}
    options: dict[str, Any] = {"client": patient}
    async with (
        sdk.producing("events", **patient) as producer,
        sdk.reading("events", "0", **options) as reading,
    ):
        await producer.send_event(EventData("before"), partition_id="0")
        assert (await reading.next()).body_as_str() == "before"
        await asyncio.to_thread(_restart, start_server, server, port)
        await producer.send_event(EventData("after"), partition_id="0")
        assert (await reading.next()).body_as_str() == "after"


def _restart(start_server: ServerFactory, server: Server, port: tuple[str, str]) -> None:
    assert server.stop() == 0
    start_server(*port, data=server.data)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port
