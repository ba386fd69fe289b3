"""azure-eventhub publishes: singles, batches, keys, partitions, the buffered producer, sizes."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from azure.eventhub import EventData
from azure.eventhub.exceptions import EventDataSendError

if TYPE_CHECKING:
    from tests.compatibility.conftest import Case, Outcomes, PythonSdk, Sdks

PUBLICATION_BYTES = 262_144

# protocol.md 8.2, the column of 4 partitions.
PLACES_OF_4 = {
    "7": 3,
    "131": 2,
    "7149682": 0,
    "7149583486996073602": 1,
    "FWfAT": 1,
    "key1": 3,
    "partitionKey": 1,
    "alphabet": 2,
    "a": 0,
    "device-1": 0,
    "0123456789ab": 2,
    "0123456789abc": 3,
    "$0cb": 1,
    "this-is-a-key-1": 3,
    "ünïcode": 2,
    "日本語": 1,
    "é": 0,
    "abcé": 1,
}


async def everything_in(sdk: PythonSdk, hub: str, partitions: int = 4) -> list[list[EventData]]:
    """All events of a hub, by partition, read at once."""
    numbers = [str(n) for n in range(partitions)]
    async with sdk.consuming(hub) as consumer:
        counts = [
            (await sdk.call(consumer.get_partition_properties, n))["last_enqueued_sequence_number"]
            for n in numbers
        ]
    reads = [
        sdk.read(hub, n, last + 1) for n, last in zip(numbers, counts, strict=True) if last >= 0
    ]
    read = iter(await asyncio.gather(*reads))
    return [next(read) if last >= 0 else [] for last in counts]


def texts(events: list[EventData]) -> list[str]:
    return [event.body_as_str() for event in events]


async def list_of_events_is_one_batch(sdk: PythonSdk) -> None:
    hub, partition = sdk.spot()
    await sdk.send(hub, "a", "b", "c", partition_id=partition)
    received = await sdk.read(hub, partition, 3)
    assert texts(received) == ["a", "b", "c"]
    assert len({event.enqueued_time for event in received}) == 1


async def batch_takes_as_much_as_the_link_allows(sdk: PythonSdk) -> None:
    hub, partition = sdk.spot()
    async with sdk.producing(hub) as producer:
        batch = await sdk.call(producer.create_batch, partition_id=partition)
        assert batch.max_size_in_bytes == PUBLICATION_BYTES
        count = 0
        with pytest.raises(ValueError, match="reached its size limit"):
            while True:
                batch.add(EventData(b"x" * 1000))
                count += 1
        await sdk.call(producer.send_batch, batch)
    assert len(await sdk.read(hub, partition, count)) == count


async def batch_filled_to_the_last_byte_is_accepted(sdk: PythonSdk) -> None:
    hub, partition = sdk.spot()
    async with sdk.producing(hub) as producer:
        batch = await sdk.call(producer.create_batch, partition_id=partition)
        batch.add(EventData(b"x" * 200_000))
        room = PUBLICATION_BYTES - batch.size_in_bytes
        body = b"y" * (room - 40)
        for smaller in range(40):  # the event's own overhead is the SDK's to know
            try:
                batch.add(EventData(body[smaller:] if smaller else body + b"z" * 20))
                break
            except ValueError:
                continue
        assert 0 <= PUBLICATION_BYTES - batch.size_in_bytes < 40
        await sdk.call(producer.send_batch, batch)
    assert len(await sdk.read(hub, partition, 2)) == 2


async def event_that_fits_no_batch_is_the_sdks_own_error(sdk: PythonSdk) -> None:
    hub, _ = sdk.spot()
    async with sdk.producing(hub) as producer:
        batch = await sdk.call(producer.create_batch)
        with pytest.raises(ValueError, match="size limit"):
            batch.add(EventData(b"x" * PUBLICATION_BYTES))


async def batch_larger_than_the_link_is_the_sdks_own_error(sdk: PythonSdk) -> None:
    hub, _ = sdk.spot()
    async with sdk.producing(hub) as producer:
        with pytest.raises(ValueError, match="acceptable max batch size is: 262144 bytes"):
            await sdk.call(producer.create_batch, max_size_in_bytes=PUBLICATION_BYTES + 1)


async def event_over_the_limit_is_refused_by_the_service(sdk: PythonSdk) -> None:
    hub, partition = sdk.spot()
    async with sdk.producing(hub) as producer:
        with pytest.raises(EventDataSendError, match="exceeds the limit") as raised:
            event = EventData(b"x" * (PUBLICATION_BYTES + 1))
            await sdk.call(producer.send_event, event, partition_id=partition)
        assert raised.value.error == "link:message-size-exceeded"
        # A refusal is not the end of the link.
        await sdk.call(producer.send_event, EventData("small"), partition_id=partition)
    assert texts(await sdk.read(hub, partition, 1)) == ["small"]


async def event_just_under_the_limit_comes_back_whole(sdk: PythonSdk) -> None:
    hub, partition = sdk.spot()
    body = b"".join(n.to_bytes(4, "big") for n in range(65_500))
    assert PUBLICATION_BYTES - 200 < len(body) < PUBLICATION_BYTES
    await sdk.send_event(hub, EventData(body), partition_id=partition)
    [received] = await sdk.read(hub, partition, 1)
    assert sdk.body(received) == body


async def keys_are_placed_as_the_sdks_place_them(sdk: PythonSdk) -> None:
    hub = sdk.hub()
    async with sdk.producing(hub) as producer:
        for key in PLACES_OF_4:
            await sdk.call(producer.send_event, EventData(key), partition_key=key)
            await sdk.call(producer.send_batch, [EventData(key)] * 2, partition_key=key)
    for place, events in enumerate(await everything_in(sdk, hub)):
        wanted = [key for key, where in PLACES_OF_4.items() for _ in range(3) if where == place]
        assert texts(events) == wanted
        assert [event.partition_key for event in events] == [key.encode() for key in wanted]


async def batches_without_a_key_are_spread_over_all_partitions(sdk: PythonSdk) -> None:
    hub = sdk.hub()
    async with sdk.producing(hub) as producer:
        for _ in range(16):
            await sdk.call(producer.send_batch, [EventData("x"), EventData("y")])
    spread = [texts(events) for events in await everything_in(sdk, hub)]
    assert [len(events) for events in spread] == [8, 8, 8, 8]
    assert all(events == ["x", "y"] * 4 for events in spread)


async def one_producer_serves_many_partitions_in_order(sdk: PythonSdk) -> None:
    hub = sdk.hub()
    async with sdk.producing(hub) as producer:
        for number in range(40):
            event = EventData(str(number))
            await sdk.call(producer.send_event, event, partition_id=str(number % 4))
    for place, events in enumerate(await everything_in(sdk, hub)):
        assert texts(events) == [str(n) for n in range(40) if n % 4 == place]


async def empty_bodies_are_events_too(sdk: PythonSdk) -> None:
    hub, partition = sdk.spot()
    await sdk.send_event(hub, EventData(b""), partition_id=partition)
    await sdk.send(hub, b"", b"", partition_id=partition)
    received = await sdk.read(hub, partition, 3)
    assert [sdk.body(event) for event in received] == [b"", b"", b""]


async def buffered_producer_delivers_everything_in_order(sdk: PythonSdk) -> None:
    hub = sdk.hub()
    succeeded: Counter[str] = Counter()
    failed: list[Exception] = []

    def on_success(events: list[EventData], partition: str) -> None:
        succeeded[partition] += len(events)

    def on_error(events: list[EventData], partition: str, error: Exception) -> None:
        failed.append(error)

    options: dict[str, Any] = {
        "buffered_mode": True,
        "max_wait_time": 0.2,
        "max_buffer_length": 50,
        "on_success": _maybe_async(sdk, on_success),
        "on_error": _maybe_async(sdk, on_error),
    }
    async with sdk.producing(hub, **options) as producer:
        for number in range(120):
            where = {"partition_id": "2"} if number % 3 == 0 else {}
            await sdk.call(producer.send_event, EventData(str(number)), **where)
        for number in range(30):
            await sdk.call(producer.send_event, EventData(f"key {number}"), partition_key="key1")
        await sdk.call(producer.flush)
        assert producer.total_buffered_event_count == 0
    by_partition = await everything_in(sdk, hub)
    assert failed == []
    assert succeeded.total() == 150 == sum(map(len, by_partition))
    assert {str(n): len(events) for n, events in enumerate(by_partition) if events} == succeeded
    to_two = [text for text in texts(by_partition[2]) if text.isdigit() and int(text) % 3 == 0]
    assert to_two == [str(n) for n in range(0, 120, 3)]
    keyed = [[t for t in texts(events) if t.startswith("key")] for events in by_partition]
    assert [f"key {n}" for n in range(30)] in keyed


def _maybe_async(sdk: PythonSdk, act: Any) -> Any:
    if sdk.flavour == "sync":
        return act

    async def call(*args: Any) -> None:
        act(*args)

    return call


async def many_producers_at_once_lose_nothing(sdk: PythonSdk) -> None:
    hub, partition = sdk.spot()

    async def produce(name: str) -> None:
        async with sdk.producing(hub) as producer:
            for number in range(20):
                batch = [EventData(f"{name} {number} {part}") for part in "abc"]
                await sdk.call(producer.send_batch, batch, partition_id=partition)

    await asyncio.gather(*(produce(name) for name in ("one", "two", "three", "four")))
    received = texts(await sdk.read(hub, partition, 240))
    assert len(received) == 240
    for name in ("one", "two", "three", "four"):
        wanted = [f"{name} {number} {part}" for number in range(20) for part in "abc"]
        assert [text for text in received if text.startswith(f"{name} ")] == wanted
    # A batch is contiguous.
    starts = [index for index, text in enumerate(received) if text.endswith(" a")]
    assert all(received[i + 1] == received[i][:-1] + "b" for i in starts)
    assert all(received[i + 2] == received[i][:-1] + "c" for i in starts)


FOR_BOTH: list[Case] = [
    list_of_events_is_one_batch,
    batch_takes_as_much_as_the_link_allows,
    event_over_the_limit_is_refused_by_the_service,
    buffered_producer_delivers_everything_in_order,
]
FOR_ONE: list[Case] = [
    batch_filled_to_the_last_byte_is_accepted,
    event_that_fits_no_batch_is_the_sdks_own_error,
    batch_larger_than_the_link_is_the_sdks_own_error,
    event_just_under_the_limit_comes_back_whole,
    keys_are_placed_as_the_sdks_place_them,
    batches_without_a_key_are_spread_over_all_partitions,
    one_producer_serves_many_partitions_in_order,
    empty_bodies_are_events_too,
    many_producers_at_once_lose_nothing,
]


@pytest.fixture(scope="module")
def outcomes(sdks: Sdks) -> Outcomes:
    return sdks.run((FOR_BOTH, [("sync", "tcp"), ("aio", "tcp")]), (FOR_ONE, [("aio", "tcp")]))


@pytest.mark.parametrize("case", FOR_BOTH, ids=lambda case: case.__name__)
@pytest.mark.parametrize("flavour", ["sync", "aio"])
def test_publishing(outcomes: Outcomes, case: Case, flavour: str) -> None:
    outcomes.check(case, flavour)


@pytest.mark.parametrize("case", FOR_ONE, ids=lambda case: case.__name__)
def test_publishing_more(outcomes: Outcomes, case: Case) -> None:
    outcomes.check(case)
