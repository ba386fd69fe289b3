"""Ranges for jobs, against a broker in this process and against a peer that says odd things."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock.amqp.performatives import Error
from penstock.amqp.types import Array, Int, Long, Timestamp
from penstock.client import ClientDenied, ClientTimedOut, EventData, EventHubProducerClient
from penstock.client.errors import ClientClosed
from penstock.client.ranges import EventsLost, HubReader, RangeSettings, read_chunks
from penstock.kernels import decode_events
from penstock.model.errors import ArgumentError
from penstock.testing import broker

Make = Callable[..., bytes]
COUNT = 3000


async def publish(connection_string: str, count: int) -> None:
    async with EventHubProducerClient(connection_string, eventhub_name="events") as producer:
        sent = 0
        while sent < count:
            batch = await producer.create_batch(partition_id="0")
            for number in range(sent, min(sent + 500, count)):
                batch.add(EventData(b"%d" % number))
            sent += len(batch)
            await producer.send_batch(batch)


@pytest.fixture(scope="module")
def settings() -> Iterator[RangeSettings]:
    with broker() as it:
        asyncio.run(publish(it.emulator_connection_string, COUNT))
        yield RangeSettings(it.emulator_connection_string, "events", timeout_s=20)


def numbers(settings: RangeSettings, first: int, last: int) -> list[int]:
    found: list[int] = []
    for chunk in read_chunks(settings, "0", first, last):
        columns = decode_events(chunk.data, chunk.bounds)
        assert columns.sequence_numbers[0] == chunk.first
        assert columns.sequence_numbers[-1] == chunk.last
        assert columns.bodies == [b"%d" % number for number in columns.sequence_numbers]
        found += columns.sequence_numbers
    return found


@pytest.mark.parametrize(
    ("first", "last"), [(0, 0), (0, COUNT - 1), (7, 7), (299, 301), (1234, 2345), (COUNT - 1,) * 2]
)
def test_range_is_exactly_what_was_asked_for(
    settings: RangeSettings, first: int, last: int
) -> None:
    assert numbers(settings, first, last) == list(range(first, last + 1))


def test_range_that_ends_before_it_begins_is_empty(settings: RangeSettings) -> None:
    assert numbers(settings, 5, 4) == []


def test_range_can_be_left_early(settings: RangeSettings) -> None:
    chunks = read_chunks(settings, "0", 0, COUNT - 1)
    assert next(chunks).first == 0
    chunks.close()  # type: ignore[attr-defined]  # it is a generator
    assert list(chunks) == []


def test_range_below_zero_is_refused(settings: RangeSettings) -> None:
    with pytest.raises(ArgumentError, match="first is -1"):
        list(read_chunks(settings, "0", -1, 4))


async def test_range_is_not_read_where_a_loop_runs(settings: RangeSettings) -> None:
    with pytest.raises(ArgumentError, match="EventHubConsumerClient"):
        list(read_chunks(settings, "0", 0, 4))


def test_settings_travel_and_hide_the_key(settings: RangeSettings) -> None:
    assert pickle.loads(pickle.dumps(settings)) == settings
    assert settings.connection_string not in repr(settings)
    assert "SharedAccess" not in repr(settings) + repr(settings.__rich_repr__())


def test_hub_reader_tells_what_a_planner_needs(settings: RangeSettings) -> None:
    with HubReader(settings) as hub:
        assert hub.partition_ids() == ["0", "1", "2", "3"]
        told = hub.partitions()
        assert list(told) == ["0", "1", "2", "3"]
        assert told["0"]["last_enqueued_sequence_number"] == COUNT - 1
        assert told["1"]["is_empty"]
        last_ms = round(told["0"]["last_enqueued_time_utc"].timestamp() * 1000)
        at_last = hub.sequence_at("0", last_ms)
        columns = [
            decode_events(chunk.data, chunk.bounds)
            for chunk in read_chunks(settings, "0", 0, COUNT - 1)
        ]
        times = [time for each in columns for time in each.enqueued_ms]
        assert at_last == next(i for i, time in enumerate(times) if time >= last_ms)
        assert hub.sequence_at("0", times[0]) == 0
        assert hub.sequence_at("0", 0) == 0
        assert hub.sequence_at("0", last_ms + 1) == COUNT
        assert hub.sequence_at("1", 0) == 0
    hub.close()
    with pytest.raises(ClientClosed):
        hub.partition_ids()


def test_wrong_key_is_denied_at_once(settings: RangeSettings) -> None:
    wrong = settings.connection_string.replace("SharedAccessKey=", "SharedAccessKey=A")
    with pytest.raises(ClientDenied):
        list(read_chunks(RangeSettings(wrong, "events"), "0", 0, 1))
    with HubReader(RangeSettings(wrong, "events")) as hub, pytest.raises(ClientDenied):
        hub.partitions()


# --- a service that says what the test wants ------------------------------------------------------


def partition(first: int, last: int, *, empty: bool = False) -> dict[str, object]:
    return {
        "name": "hub",
        "type": "com.microsoft:partition",
        "partition": "0",
        "begin_sequence_number": Long(first),
        "last_enqueued_sequence_number": Long(last),
        "last_enqueued_offset": "0",
        "last_enqueued_time_utc": Timestamp(0),
        "is_partition_empty": empty,
        "partition_ids": Array(["0"]),
        "partition_count": Int(1),
    }


async def read(peer: Any, first: int, last: int, **options: Any) -> list[int]:
    settings = RangeSettings(peer.connection_string, **({"timeout_s": 20} | options))

    def blocking() -> list[int]:
        found: list[int] = []
        try:
            for chunk in read_chunks(settings, "0", first, last):
                found += range(chunk.first, chunk.last + 1)
        except EventsLost as lost:
            found += [-lost.expected, -lost.found]
        return found

    return await asyncio.to_thread(blocking)


async def test_range_begins_later_where_retention_was_quicker(
    peer: Any, make_delivered: Make
) -> None:
    peer.events = [make_delivered(i) for i in range(5, 9)]
    assert await read(peer, 2, 7) == [5, 6, 7]
    assert peer.selectors() == ["amqp.annotation.x-opt-sequence-number >= '2'"]


async def test_range_that_is_gone_ends_without_events(peer: Any, make_delivered: Make) -> None:
    peer.events = [make_delivered(9)]
    assert await read(peer, 2, 7) == []
    peer.events = []
    peer.management = partition(8, 12)
    assert await read(peer, 2, 7) == []
    peer.management = partition(-1, 7, empty=True)
    assert await read(peer, 2, 7) == []


async def test_range_with_a_gap_says_what_is_lost(peer: Any, make_delivered: Make) -> None:
    peer.events = [make_delivered(i) for i in (2, 3, 6, 7)]
    assert await read(peer, 2, 7) == [2, 3, -4, -6]
    peer.events = [make_delivered(i) for i in (2, 3, 9)]
    assert await read(peer, 2, 7) == [2, 3, -4, -9]
    peer.events = [make_delivered(i) for i in (2, 3, 9)]
    assert await read(peer, 2, 3) == [2, 3]


async def test_range_drops_what_came_before(peer: Any, make_delivered: Make) -> None:
    peer.events = [make_delivered(i) for i in range(10)]
    assert await read(peer, 4, 6) == [4, 5, 6]


async def test_range_goes_on_when_the_link_is_lost(peer: Any, make_delivered: Make) -> None:
    peer.events = [make_delivered(i) for i in range(3)]
    reading = asyncio.create_task(read(peer, 0, 5))
    await peer.until(lambda: len(peer.attached) == 1 and bool(peer.credits))
    peer.events = [make_delivered(i) for i in range(3, 6)]
    peer.connections[-1].detach_readers(Error(condition="amqp:link:detach-forced"))
    assert await reading == list(range(6))
    assert peer.selectors()[1] == "amqp.annotation.x-opt-offset > '200'"


async def test_range_does_not_wait_for_ever(peer: Any, make_delivered: Make) -> None:
    peer.management = partition(0, 9)
    with pytest.raises(ClientTimedOut, match=r"up to 3, did not come within 0\.2 s"):
        await read(peer, 0, 3, timeout_s=0.2)
