"""azure-eventhub reads: every starting position, prefetch, waiting, metadata, live and replayed."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from azure.eventhub import EventData

if TYPE_CHECKING:
    from tests.compatibility.conftest import Case, Outcomes, PythonSdk, Sdks, Spot

SIX = ["0", "1", "2", "3", "4", "5"]


def texts(events: list[EventData]) -> list[str]:
    return [event.body_as_str() for event in events]


async def six_events(sdk: PythonSdk) -> tuple[Spot, list[EventData]]:
    """Six events, the first three in one batch, the others one by one with time between them."""
    spot = sdk.spot()
    async with sdk.producing(spot.hub) as producer:
        first = [EventData(text) for text in SIX[:3]]
        await sdk.call(producer.send_batch, first, partition_id=spot.partition)
        for text in SIX[3:]:
            await asyncio.sleep(0.01)
            await sdk.call(producer.send_event, EventData(text), partition_id=spot.partition)
    events = await sdk.read(*spot, 6)
    assert texts(events) == SIX
    return spot, events


NOTHING_S = 3.0  # how long to wait for what must not come


async def first_from(
    sdk: PythonSdk, spot: Spot, position: Any, *, inclusive: bool, wait_s: float = 20.0
) -> str | None:
    """The first event from that position, or None (the async SDK counts its connecting)."""
    where = {"starting_position": position, "starting_position_inclusive": inclusive}
    events = await sdk.read(*spot, 1, max_wait_time=wait_s, **where)
    return events[0].body_as_str() if events else None


async def positions_are_exclusive_or_inclusive(sdk: PythonSdk) -> None:
    spot, events = await six_events(sdk)
    of_first, of_fourth = events[0].enqueued_time, events[3].enqueued_time
    assert of_first is not None
    assert of_fourth is not None
    offset = [
        *await asyncio.gather(
            first_from(sdk, spot, events[1].offset, inclusive=False),
            first_from(sdk, spot, events[1].offset, inclusive=True),
            first_from(sdk, spot, events[5].offset, inclusive=False, wait_s=NOTHING_S),
            first_from(sdk, spot, events[5].offset, inclusive=True),
        )
    ]
    assert offset == ["2", "1", None, "5"]
    sequence = [
        *await asyncio.gather(
            first_from(sdk, spot, 1, inclusive=False),
            first_from(sdk, spot, 1, inclusive=True),
            first_from(sdk, spot, 5, inclusive=False, wait_s=NOTHING_S),
            first_from(sdk, spot, 5, inclusive=True),
        )
    ]
    assert sequence == ["2", "1", None, "5"]
    time = [
        *await asyncio.gather(
            first_from(sdk, spot, of_fourth, inclusive=False),
            first_from(sdk, spot, of_fourth, inclusive=True),
            first_from(sdk, spot, of_fourth - timedelta(milliseconds=1), inclusive=False),
            first_from(sdk, spot, of_first, inclusive=False),  # the whole batch has one time
            first_from(sdk, spot, of_first, inclusive=True),
        )
    ]
    assert time == ["4", "3", "3", "3", "0"]


async def positions_outside_of_what_is_there(sdk: PythonSdk) -> None:
    spot, _ = await six_events(sdk)
    long_ago = datetime(2001, 1, 1, tzinfo=UTC)
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    found = [
        *await asyncio.gather(  # five at most: the sixth reader would be refused
            first_from(sdk, spot, "-1", inclusive=True),
            first_from(sdk, spot, -1, inclusive=False),
            first_from(sdk, spot, long_ago, inclusive=False),
            first_from(sdk, spot, tomorrow, inclusive=True, wait_s=NOTHING_S),
            first_from(sdk, spot, "@latest", inclusive=False, wait_s=NOTHING_S),
        )
    ]
    assert found == ["0", "0", "0", None, None]


async def latest_sees_what_comes_after_the_attach(sdk: PythonSdk) -> None:
    spot = sdk.spot()
    await sdk.send(spot.hub, "before", partition_id=spot.partition)
    async with (
        sdk.producing(spot.hub) as producer,
        sdk.reading(*spot, starting_position="@latest", max_wait_time=0.5) as reading,
    ):
        event, sent = None, 0
        while event is None:  # nothing tells that an idle reader is attached
            sent += 1
            after = EventData(f"after {sent}")
            await sdk.call(producer.send_event, after, partition_id=spot.partition)
            event = await reading.next()
        assert event.body_as_str().startswith("after")
        assert event.sequence_number > 0


async def position_may_differ_by_partition(sdk: PythonSdk) -> None:
    hub = sdk.hub()
    for partition in "0123":
        await sdk.send(hub, f"{partition}a", f"{partition}b", partition_id=partition)
    where = {"0": "-1", "1": 0, "2": "@latest"}
    inclusive = {"1": True}
    options: dict[str, Any] = {
        "starting_position": where,
        "starting_position_inclusive": inclusive,
    }
    async with sdk.reading(hub, None, **options) as reading:
        got = sorted([(await reading.next()).body_as_str() for _ in range(6)])
    assert got == ["0a", "0b", "1a", "1b", "3a", "3b"]


async def events_carry_their_place_in_the_log(sdk: PythonSdk) -> None:
    before = datetime.now(UTC) - timedelta(seconds=2)
    spot, events = await six_events(sdk)
    assert [event.sequence_number for event in events] == [0, 1, 2, 3, 4, 5]
    offsets = [int(event.offset or "") for event in events]
    assert offsets == sorted(set(offsets))
    times = [event.enqueued_time for event in events if event.enqueued_time is not None]
    assert len(times) == 6
    assert times == sorted(times)
    assert before < times[0] <= times[-1] <= datetime.now(UTC) + timedelta(seconds=2)
    names = {b"x-opt-sequence-number", b"x-opt-offset", b"x-opt-enqueued-time"}
    assert names <= set(events[0].system_properties)
    assert b"x-opt-partition-key" not in events[0].system_properties
    async with sdk.consuming(spot.hub) as consumer:
        properties = await sdk.call(consumer.get_partition_properties, spot.partition)
    assert properties["beginning_sequence_number"] == 0
    assert properties["last_enqueued_sequence_number"] == 5
    assert properties["last_enqueued_offset"] == events[-1].offset
    assert properties["last_enqueued_time_utc"] == times[-1]
    assert properties["is_empty"] is False


async def last_enqueued_event_is_told_when_asked(sdk: PythonSdk) -> None:
    spot, events = await six_events(sdk)
    asked: dict[str, Any] = {"track_last_enqueued_event_properties": True, "prefetch": 1}
    async with sdk.reading(*spot, **asked) as reading:
        assert (await reading.next()).sequence_number == 0
        last = reading.context.last_enqueued_event_properties
    assert last["sequence_number"] == 5
    assert last["offset"] == events[-1].offset
    assert last["enqueued_time"] == events[-1].enqueued_time
    assert abs(last["retrieval_time"] - datetime.now(UTC)) < timedelta(minutes=1)
    async with sdk.reading(*spot) as reading:
        await reading.next()
        assert not any((reading.context.last_enqueued_event_properties or {}).values())


async def small_prefetch_reads_everything(sdk: PythonSdk) -> None:
    spot = sdk.spot()
    await sdk.send(spot.hub, *map(str, range(40)), partition_id=spot.partition)
    assert texts(await sdk.read(*spot, 40, prefetch=1)) == [str(n) for n in range(40)]


async def thousands_of_events_arrive_in_order_without_gaps(sdk: PythonSdk) -> None:
    spot = sdk.spot()
    async with sdk.producing(spot.hub) as producer:
        for start in range(0, 4000, 500):
            batch = [EventData(str(start + n)) for n in range(500)]
            await sdk.call(producer.send_batch, batch, partition_id=spot.partition)
    received = await sdk.read(*spot, 4000, prefetch=900)
    assert [event.sequence_number for event in received] == list(range(4000))
    assert texts(received) == [str(n) for n in range(4000)]


async def batches_are_received_as_asked(sdk: PythonSdk) -> None:
    spot = sdk.spot()
    await sdk.send(spot.hub, *map(str, range(25)), partition_id=spot.partition)
    options: dict[str, Any] = {"batches": True, "max_batch_size": 10, "max_wait_time": 1}
    received: list[EventData] = []
    async with sdk.reading(*spot, **options) as reading:
        while len(received) < 25:
            batch = await reading.next()
            assert len(batch) <= 10
            received += batch
        assert await reading.next() == []  # nothing for max_wait_time: an empty batch
    assert texts(received) == [str(n) for n in range(25)]


async def groups_read_independently(sdk: PythonSdk) -> None:
    spot = sdk.spot()
    await sdk.send(spot.hub, "a", "b", partition_id=spot.partition)
    one, two = await asyncio.gather(
        sdk.read(*spot, 2, group="$Default"), sdk.read(*spot, 2, group="readers")
    )
    assert texts(one) == texts(two) == ["a", "b"]
    assert texts(await sdk.read(*spot, 2)) == ["a", "b"]  # reading takes nothing away


async def names_are_compared_without_case(sdk: PythonSdk) -> None:
    await sdk.send("mixed.case/PATH_1", "a", partition_id="0")
    assert "a" in texts(await sdk.read("Mixed.Case/path_1", "0", 1, group="rEADERS"))
    assert "a" in texts(await sdk.read("MIXED.CASE/path_1", "0", 1, group="$default"))
    async with sdk.producing("mixed.case/path_1") as producer:
        properties = await sdk.call(producer.get_eventhub_properties)
    assert properties["eventhub_name"].lower() == "mixed.case/path_1"


async def idle_reader_gets_an_event_when_it_is_committed(sdk: PythonSdk) -> None:
    spot = sdk.spot()
    await sdk.send(spot.hub, "first", partition_id=spot.partition)
    async with sdk.producing(spot.hub) as producer, sdk.reading(*spot) as reading:
        assert (await reading.next()).body_as_str() == "first"
        for number in range(5):  # no max_wait_time: nothing but the server's push can end the wait
            event = EventData(str(number))
            await sdk.call(producer.send_event, event, partition_id=spot.partition)
            assert (await reading.next(within_s=10)).body_as_str() == str(number)


async def one_client_reads_all_partitions(sdk: PythonSdk) -> None:
    hub = sdk.hub()
    for partition in "0123":
        await sdk.send(hub, f"{partition}a", f"{partition}b", partition_id=partition)
    async with sdk.reading(hub, None) as reading:
        got = [(await reading.next()).body_as_str() for _ in range(8)]
    assert sorted(got) == [f"{p}{x}" for p in "0123" for x in "ab"]


async def received_event_can_be_sent_on(sdk: PythonSdk) -> None:
    first, second = sdk.spot(), sdk.spot()
    event = EventData("body")
    event.properties = {"a": 1}
    event.message_id = "id"
    await sdk.send(first.hub, "filler", event, partition_id=first.partition)
    [_, received] = await sdk.read(*first, 2)
    # The SDK cannot encode this one again (an int of more than 32 bits); the others it sends back.
    annotations = received.raw_amqp_message.annotations
    assert annotations is not None
    del annotations[b"x-opt-enqueued-time"]
    assert {b"x-opt-sequence-number", b"x-opt-offset"} <= set(annotations)
    await sdk.send_event(second.hub, received, partition_id=second.partition)
    await sdk.send(second.hub, received, partition_id=second.partition)
    for number, again in enumerate(await sdk.read(*second, 2)):
        assert (again.body_as_str(), again.properties, again.message_id) == (
            "body",
            {b"a": 1},
            "id",
        )
        assert again.sequence_number == number  # its own place, not the old one


FOR_BOTH: list[Case] = [
    positions_are_exclusive_or_inclusive,
    latest_sees_what_comes_after_the_attach,
    events_carry_their_place_in_the_log,
    last_enqueued_event_is_told_when_asked,
    batches_are_received_as_asked,
    idle_reader_gets_an_event_when_it_is_committed,
]
FOR_ONE: list[Case] = [
    positions_outside_of_what_is_there,
    position_may_differ_by_partition,
    small_prefetch_reads_everything,
    thousands_of_events_arrive_in_order_without_gaps,
    groups_read_independently,
    names_are_compared_without_case,
    one_client_reads_all_partitions,
    received_event_can_be_sent_on,
]


@pytest.fixture(scope="module")
def outcomes(sdks: Sdks) -> Outcomes:
    return sdks.run((FOR_BOTH, [("sync", "tcp"), ("aio", "tcp")]), (FOR_ONE, [("aio", "tcp")]))


@pytest.mark.parametrize("case", FOR_BOTH, ids=lambda case: case.__name__)
@pytest.mark.parametrize("flavour", ["sync", "aio"])
def test_reading(outcomes: Outcomes, case: Case, flavour: str) -> None:
    outcomes.check(case, flavour)


@pytest.mark.parametrize("case", FOR_ONE, ids=lambda case: case.__name__)
def test_reading_more(outcomes: Outcomes, case: Case) -> None:
    outcomes.check(case)
