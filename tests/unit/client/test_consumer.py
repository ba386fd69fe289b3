"""Readers against a peer that answers as it is told: order, credit, losses, ranges."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from penstock.amqp.message import decode_message, encode_message
from penstock.amqp.performatives import Error
from penstock.amqp.types import Long, Symbol, Timestamp
from penstock.client import (
    ClientClosed,
    ClientDenied,
    ClientError,
    ClientNotFound,
    ClientStolen,
    EventHubConsumerClient,
    EventPosition,
    RetryPolicy,
    receiver,
    retry,
)

AT_ONCE = RetryPolicy(retry_total=3, backoff_s=0)
EARLIEST = EventPosition.earliest()
FORCED = Error(condition="amqp:link:detach-forced", description="moved")
STOLEN = Error(condition="amqp:link:stolen", description="New receiver")
Make = Callable[..., bytes]


def consumer(peer: Any, **options: Any) -> EventHubConsumerClient:
    return EventHubConsumerClient(peer.connection_string, **{"retry": AT_ONCE} | options)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "BUSY_S", 0.0)


def feed(peer: Any, *events: bytes) -> None:
    """More events, to readers that are there already too."""
    peer.events += events
    for connection in peer.connections:
        for link in connection.readers():
            connection.feed(link)
        connection.flush()


async def test_events_come_in_order_and_whole(peer: Any, make_delivered: Make) -> None:
    peer.events = [make_delivered(i, b"body %d" % i) for i in range(10)]
    async with consumer(peer) as client, client.open_partition("0", EARLIEST) as reader:
        events = await reader.receive_batch(4)
        assert [event.body for event in events] == [b"body %d" % i for i in range(4)]
        assert [event.sequence_number for event in events] == [0, 1, 2, 3]
        columns = await reader.receive_columns()
        assert columns.sequence_numbers == list(range(4, 10))
        assert await reader.receive_batch(max_wait_time_s=0.01) == []
    assert peer.tokens == ["sb://127.0.0.1/hub/ConsumerGroups/$Default"]
    assert peer.attached[0].source.address == "hub/ConsumerGroups/$Default/Partitions/0"


async def test_reader_wakes_when_events_come(peer: Any, make_delivered: Make) -> None:
    async with consumer(peer) as client, client.open_partition("0", EARLIEST) as reader:
        waiting = asyncio.create_task(reader.receive_batch())
        await peer.until(lambda: bool(peer.credits))
        feed(peer, make_delivered(5))
        (event,) = await waiting
        assert event.offset == "500"


async def test_reader_iterates_event_by_event(peer: Any, make_delivered: Make) -> None:
    peer.events = [make_delivered(i) for i in range(5)]
    seen = []
    async with consumer(peer) as client, client.open_partition("0", EARLIEST) as reader:
        async for event in reader:
            seen.append(event.sequence_number)
            if len(seen) == 5:
                break
    assert seen == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("loss", ["detach", "drop"])
async def test_lost_reader_goes_on_behind_the_last_event(
    peer: Any, make_delivered: Make, loss: str
) -> None:
    peer.events = [make_delivered(i) for i in range(3)]
    async with consumer(peer) as client, client.open_partition("0", EARLIEST) as reader:
        assert len(await reader.receive_batch(2)) == 2
        await peer.until(lambda: bool(peer.credits))
        if loss == "detach":
            peer.connections[-1].detach_readers(FORCED)
        else:
            peer.connections[-1].drop()
        peer.events = [make_delivered(3)]
        got = [event.sequence_number for event in await reader.receive_batch(1)]
        while len(got) < 2:
            got += [event.sequence_number for event in await reader.receive_batch(1)]
        assert got == [2, 3]
    selectors = peer.selectors()
    assert selectors[0] == "amqp.annotation.x-opt-offset > '-1'"
    assert selectors[1:] == ["amqp.annotation.x-opt-offset > '200'"]
    assert len(peer.connections) == (1 if loss == "detach" else 2)


async def test_stolen_reader_is_over_at_once(peer: Any, make_delivered: Make) -> None:
    peer.events = [make_delivered(i) for i in range(3)]
    async with (
        consumer(peer) as client,
        client.open_partition("0", EARLIEST, owner_level=7) as reader,
    ):
        await reader.receive_batch(1)
        peer.connections[-1].detach_readers(STOLEN)
        with pytest.raises(ClientStolen, match="New receiver"):
            while True:
                await reader.receive_batch(1)
        with pytest.raises(ClientStolen):
            await reader.receive_columns()
    assert len(peer.attached) == 1
    assert peer.attached[0].properties == {"com.microsoft:epoch": 7}


@pytest.mark.parametrize(
    ("condition", "kind"),
    [("amqp:not-found", ClientNotFound), ("amqp:unauthorized-access", ClientDenied)],
)
async def test_reader_of_what_is_not_there_or_not_allowed_is_refused_once(
    peer: Any, condition: str, kind: type[ClientError]
) -> None:
    peer.refusals.append(Error(condition=condition, description="no"))
    async with consumer(peer) as client:
        with pytest.raises(kind):
            await client.open_partition("9", EARLIEST).open()
    assert len(peer.attached) == 1


async def test_reader_that_lost_its_right_says_so_after_what_it_has(
    peer: Any, make_delivered: Make
) -> None:
    peer.events = [make_delivered(0)]
    async with consumer(peer) as client, client.open_partition("0", EARLIEST) as reader:
        await peer.until(lambda: len(peer.credits) > 0)
        denied = Error(condition="amqp:unauthorized-access", description="expired")
        peer.connections[-1].detach_readers(denied)
        assert len(await reader.receive_batch()) == 1
        with pytest.raises(ClientDenied, match="expired"):
            await reader.receive_batch()
    assert len(peer.attached) == 1


async def test_reader_gives_up_after_its_tries(peer: Any) -> None:
    async with consumer(peer) as client, client.open_partition("0", EARLIEST) as reader:
        peer.refusals.extend([Error(condition="amqp:internal-error", description="ill")] * 9)
        peer.connections[-1].detach_readers(FORCED)
        with pytest.raises(ClientError, match="ill"):
            await reader.receive_batch()
    assert len(peer.attached) == 4  # the first, and one less than the tries: the loss was one


async def test_reader_opens_again_when_the_first_attach_fails(
    peer: Any, make_delivered: Make
) -> None:
    peer.events = [make_delivered(0)]
    peer.refusals.extend([Error(condition="com.microsoft:server-busy", description="busy")] * 3)
    async with consumer(peer) as client, client.open_partition("0", EARLIEST) as reader:
        assert len(await reader.receive_batch()) == 1
    assert len(peer.attached) == 4


async def test_what_nobody_takes_is_bounded_by_prefetch(peer: Any, make_delivered: Make) -> None:
    peer.events = [make_delivered(i) for i in range(100)]
    async with (
        consumer(peer) as client,
        client.open_partition("0", EARLIEST, prefetch=10) as reader,
    ):
        await reader.receive_batch(1)
        assert max(peer.credits) <= 10
        total = 1
        while total < 100:
            total += len(await reader.receive_batch(3))
            (connection,) = peer.connections
            (link,) = connection.readers()
            assert connection.next_event[link] - total <= 10
    assert total == 100


async def test_large_events_get_less_credit(
    peer: Any, make_delivered: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiver, "BUFFER_BYTES", 100_000)
    monkeypatch.setattr(receiver, "_FIRST_CREDIT", 2)
    peer.events = [make_delivered(i, bytes(10_000)) for i in range(60)]
    async with consumer(peer) as client, client.open_partition("0", EARLIEST) as reader:
        total = 0
        while total < 60:
            total += len(await reader.receive_batch(1))
    assert max(peer.credits) <= 9


async def test_reading_pauses_when_events_grow_all_at_once(
    peer: Any, make_delivered: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiver, "BUFFER_BYTES", 50_000)
    peer.events = [make_delivered(i) for i in range(100)]
    peer.events += [make_delivered(100 + i, bytes(20_000)) for i in range(100)]
    async with consumer(peer) as client, client.open_partition("0", EARLIEST) as reader:
        got: list[int | None] = []
        while len(got) < 200:
            got += [event.sequence_number for event in await reader.receive_batch(7)]
    assert got == list(range(200))


async def test_partitions_end_is_told_by_the_newest_event(peer: Any, make_delivered: Make) -> None:
    message = decode_message(make_delivered(3))
    message.delivery_annotations = {
        Symbol("last_enqueued_sequence_number"): Long(9),
        Symbol("last_enqueued_offset"): "900",
        Symbol("last_enqueued_time_utc"): Timestamp(1_700_000_000_000),
        Symbol("runtime_info_retrieval_time_utc"): Timestamp(1_700_000_001_000),
    }
    peer.events = [encode_message(message)]
    async with (
        consumer(peer) as client,
        client.open_partition("0", EARLIEST, track_last_enqueued=True) as reader,
    ):
        assert reader.last_enqueued is None
        await reader.receive_batch()
        told = reader.last_enqueued
    assert told is not None
    assert (told["sequence_number"], told["offset"]) == (9, "900")
    assert (told["retrieval_time"] - told["enqueued_time"]).total_seconds() == 1
    assert peer.attached[0].desired_capabilities == ["com.microsoft:enable-receiver-runtime-metric"]


async def test_what_is_no_event_ends_the_reader(peer: Any) -> None:
    peer.events = [b"\x00\x53\x75\xa0\x01x"]  # without a sequence number
    async with consumer(peer) as client, client.open_partition("0", EARLIEST) as reader:
        with pytest.raises(ClientError, match="no event"):
            await reader.receive_batch()


async def test_closed_reader_says_so(peer: Any) -> None:
    async with consumer(peer) as client:
        reader = client.open_partition("0", EARLIEST)
        with pytest.raises(ClientClosed):
            await reader.receive_batch()
        await reader.open()
        waiting = asyncio.create_task(reader.receive_batch())
        await peer.until(lambda: bool(peer.credits))
        await client.close()  # its readers too
        with pytest.raises(ClientClosed):
            await waiting
        with pytest.raises(ClientClosed):
            client.open_partition("0", EARLIEST)


async def test_tokens_of_readers_are_renewed(peer: Any, make_delivered: Make) -> None:
    client = consumer(peer)
    client.token_s = 0.2
    async with client, client.open_partition("0", EARLIEST) as reader:
        await peer.until(lambda: len(peer.tokens) >= 4)
        feed(peer, make_delivered(0))
        assert len(await reader.receive_batch()) == 1
    assert len(peer.attached) == 1


# --- ranges ---------------------------------------------------------------------------------------


def partition(first: int, last: int) -> dict[str, object]:
    return {
        "name": "hub",
        "partition": "0",
        "begin_sequence_number": Long(first),
        "last_enqueued_sequence_number": Long(last),
        "last_enqueued_offset": str(last * 100),
        "last_enqueued_time_utc": Timestamp(-62_135_596_800_000),
        "is_partition_empty": last < first or last < 0,
    }


async def numbers(client: EventHubConsumerClient, first: int, last: int) -> list[int]:
    return [
        number
        async for columns in client.read_range("0", first, last)
        for number in columns.sequence_numbers
    ]


async def test_range_stops_at_its_last_event(peer: Any, make_delivered: Make) -> None:
    peer.management = partition(0, 99)
    peer.events = [make_delivered(i) for i in range(10, 100)]
    async with consumer(peer) as client:
        assert await numbers(client, 10, 20) == list(range(10, 21))
    assert peer.selectors() == ["amqp.annotation.x-opt-sequence-number >= '10'"]
    assert sum(peer.credits[:1]) == 11  # nothing is asked for that nobody wants


async def test_range_is_cut_to_what_is_retained(peer: Any, make_delivered: Make) -> None:
    peer.management = partition(50, 59)
    peer.events = [make_delivered(i) for i in range(50, 60)]
    async with consumer(peer) as client:
        assert await numbers(client, 0, 1000) == list(range(50, 60))


@pytest.mark.parametrize(("first", "last"), [(0, 9), (100, 200), (7, 6)])
async def test_range_of_nothing_opens_no_reader(peer: Any, first: int, last: int) -> None:
    peer.management = partition(50, 59) if first != 7 else partition(0, -1)
    async with consumer(peer) as client:
        assert await numbers(client, first, last) == []
    assert peer.attached == []


async def test_range_that_loses_its_link_has_no_gap(peer: Any, make_delivered: Make) -> None:
    peer.management = partition(0, 9)
    peer.events = [make_delivered(i) for i in range(5)]
    got: list[int] = []
    async with consumer(peer) as client:
        async for columns in client.read_range("0", 0, 9):
            got += columns.sequence_numbers
            if got == [0, 1, 2, 3, 4]:
                peer.events = [make_delivered(i) for i in range(5, 10)]
                peer.connections[-1].detach_readers(FORCED)
    assert got == list(range(10))


async def test_reader_of_a_range_is_woken_once_and_only_for_what_came(
    peer: Any, make_delivered: Make
) -> None:
    """A moment that began for events which were taken meanwhile must not end the next wait."""
    async with consumer(peer) as client:
        runs = client.read_runs("0", 0, 3)
        waiting = asyncio.ensure_future(anext(runs))
        await peer.until(lambda: bool(peer.credits))
        feed(peer, make_delivered(0))
        feed(peer, make_delivered(1))
        found = [chunk.last for chunk in await waiting]
        while found[-1] < 3:
            waiting = asyncio.ensure_future(anext(runs))
            await asyncio.sleep(0)
            feed(peer, make_delivered(found[-1] + 1))
            found += [chunk.last for chunk in await waiting]
        assert found == sorted(set(found))
        await runs.aclose()
