"""The buffered producer against a peer that answers as it is told: order, room, callbacks."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.amqp.message import DataBody, decode_message
from penstock.amqp.performatives import Error
from penstock.client import (
    ClientClosed,
    ClientError,
    ClientTimedOut,
    EventData,
    EventHubBufferedProducerClient,
    RetryPolicy,
)
from penstock.model.errors import ArgumentError
from penstock.model.partitioner import partition_for_key

NO = Error(condition="com.microsoft:argument-error", description="no")


class Heard:
    def __init__(self) -> None:
        self.stored: list[tuple[str, list[bytes]]] = []
        self.failed: list[tuple[str, list[bytes], Exception]] = []

    def on_success(self, events: list[EventData], partition_id: str) -> None:
        self.stored.append((partition_id, [event.body for event in events]))

    async def on_error(self, events: list[EventData], partition_id: str, error: Exception) -> None:
        self.failed.append((partition_id, [event.body for event in events], error))

    def of(self, partition_id: str) -> list[bytes]:
        return [body for place, bodies in self.stored if place == partition_id for body in bodies]


@pytest.fixture
def heard() -> Heard:
    return Heard()


def buffered(peer: Any, heard: Heard, **options: Any) -> EventHubBufferedProducerClient:
    chosen: dict[str, Any] = {
        "on_success": heard.on_success,
        "on_error": heard.on_error,
        "max_wait_time_s": 60,
        "retry": RetryPolicy(retry_total=3, backoff_s=0),
    }
    return EventHubBufferedProducerClient(peer.connection_string, **chosen | options)


def inner(payload: bytes) -> list[bytes]:
    body = decode_message(payload).body
    assert isinstance(body, DataBody)
    found = []
    for chunk in body.chunks:
        event = decode_message(chunk).body
        assert isinstance(event, DataBody)
        found += event.chunks
    return found


async def test_events_are_published_in_order_when_the_buffer_is_closed(
    peer: Any, heard: Heard
) -> None:
    async with buffered(peer, heard) as producer:
        for i in range(500):
            await producer.enqueue_event(EventData(str(i)), partition_id=str(i % 2))
        assert producer.total_buffered_event_count == 500
    for place in (0, 1):
        assert heard.of(str(place)) == [str(i).encode() for i in range(place, 500, 2)]
    assert heard.failed == []


async def test_events_of_a_key_stay_together_and_others_take_turns(peer: Any, heard: Heard) -> None:
    async with buffered(peer, heard) as producer:
        for i in range(50):
            await producer.enqueue_event(EventData(f"k{i}"), partition_key="key")
            await producer.enqueue_event(EventData(f"r{i}"))
    place = str(partition_for_key("key", 2))
    assert [body for body in heard.of(place) if body.startswith(b"k")] == [
        b"k%d" % i for i in range(50)
    ]
    turns = [sum(body.startswith(b"r") for body in heard.of(each)) for each in ("0", "1")]
    assert turns == [25, 25]
    assert b"x-opt-partition-key" in b"".join(peer.published)


async def test_lone_event_goes_when_its_time_is_up(peer: Any, heard: Heard) -> None:
    async with buffered(peer, heard, max_wait_time_s=0.05) as producer:
        await producer.enqueue_event(EventData("a"), partition_id="0")
        await peer.until(lambda: len(peer.published) == 1)
        assert inner(peer.published[0]) == [b"a"]


async def test_full_batch_goes_at_once(peer: Any, heard: Heard) -> None:
    async with buffered(peer, heard) as producer:
        await producer.enqueue_event(EventData("first"), partition_id="0")
        await producer.flush()  # now it knows how large a batch may be
        for _ in range(3):
            await producer.enqueue_event(EventData(bytes(30_000)), partition_id="0")
        await peer.until(lambda: len(peer.published) >= 2)
        assert len(inner(peer.published[1])) == 2


async def test_full_buffer_makes_its_callers_wait(peer: Any, heard: Heard) -> None:
    async with buffered(peer, heard, max_buffer_length=10) as producer:
        counts = []
        for i in range(105):
            counts.append(await producer.enqueue_event(EventData(str(i)), partition_id="1"))
    assert max(counts) <= 10
    assert heard.of("1") == [str(i).encode() for i in range(105)]


async def test_full_buffer_of_a_silent_service_is_told_after_the_deadline(
    peer: Any, heard: Heard
) -> None:
    async with buffered(peer, heard, max_buffer_length=1) as producer:
        await producer.enqueue_event(EventData("a"), partition_id="0")
        await producer.flush()
        peer.verdicts.append("silence")
        await producer.enqueue_event(EventData("b"), partition_id="0")
        producer._timeout_s = 0.2
        with pytest.raises(ClientTimedOut, match="full for"):
            await producer.enqueue_event(EventData("c"), partition_id="0")
        peer.connections[-1].drop()  # it would wait for a minute


async def test_flush_waits_for_what_was_there(peer: Any, heard: Heard) -> None:
    async with buffered(peer, heard) as producer:
        await producer.enqueue_events([EventData("a"), EventData("b")], partition_id="0")
        await producer.enqueue_events([EventData("c")], partition_id="1")
        await producer.flush()
        assert (heard.of("0"), heard.of("1")) == ([b"a", b"b"], [b"c"])
        assert producer.total_buffered_event_count == 0
        await producer.flush()


async def test_refused_events_are_told_with_the_reason_and_later_ones_go_on(
    peer: Any, heard: Heard
) -> None:
    peer.verdicts.append(NO)
    async with buffered(peer, heard) as producer:
        await producer.enqueue_event(EventData("bad"), partition_id="0")
        await producer.flush()
        await producer.enqueue_event(EventData("good"), partition_id="0")
    ((place, bodies, error),) = heard.failed
    assert (place, bodies) == ("0", [b"bad"])
    assert isinstance(error, ClientError)
    assert heard.of("0") == [b"good"]


async def test_event_that_fits_no_batch_is_refused_alone(peer: Any, heard: Heard) -> None:
    async with buffered(peer, heard) as producer:
        for body in (b"a", bytes(100_000), b"b"):
            await producer.enqueue_event(EventData(body), partition_id="0")
        await producer.enqueue_event(EventData("c", properties={"x": object()}), partition_id="0")
        await producer.enqueue_event(EventData("d"), partition_id="0")
    assert heard.of("0") == [b"a", b"b", b"d"]
    assert [len(bodies) for _, bodies, _ in heard.failed] == [1, 1]


async def test_buffer_closed_without_flush_tells_what_is_lost(peer: Any, heard: Heard) -> None:
    producer = buffered(peer, heard)
    await producer.enqueue_event(EventData("a"), partition_id="0")
    await producer.close(flush=False)
    ((_, bodies, error),) = heard.failed
    assert bodies == [b"a"]
    assert isinstance(error, ClientClosed)
    with pytest.raises(ClientClosed):
        await producer.enqueue_event(EventData("b"))
    await producer.close()


async def test_callers_that_wait_for_room_hear_that_it_is_closed(peer: Any, heard: Heard) -> None:
    producer = buffered(peer, heard, max_buffer_length=1)
    await producer.enqueue_event(EventData("a"), partition_id="0")
    await producer.flush()
    peer.verdicts.append("silence")
    await producer.enqueue_event(EventData("b"), partition_id="0")
    waiting = asyncio.create_task(producer.enqueue_event(EventData("c"), partition_id="0"))
    await peer.until(lambda: not peer.verdicts)
    await producer.close(flush=False)
    with pytest.raises(ClientClosed):
        await waiting


async def test_callbacks_that_raise_do_not_stop_a_partition(peer: Any, heard: Heard) -> None:
    def broken(events: list[EventData], partition_id: str) -> None:
        heard.on_success(events, partition_id)
        raise RuntimeError("a bug of the user's")

    async with buffered(peer, heard, on_success=broken) as producer:
        for body in ("a", "b"):
            await producer.enqueue_event(EventData(body), partition_id="0")
            await producer.flush()
    assert heard.of("0") == [b"a", b"b"]


async def test_unknown_partitions_are_refused(peer: Any, heard: Heard) -> None:
    async with buffered(peer, heard) as producer:
        with pytest.raises(ArgumentError, match="it has 0, 1"):
            await producer.enqueue_event(EventData("a"), partition_id="7")
    with pytest.raises(ArgumentError):
        buffered(peer, heard, max_buffer_length=0)
