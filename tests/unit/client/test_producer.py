"""Producers against a peer that answers as it is told: tries, refusals, numbers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.amqp.performatives import Error
from penstock.amqp.types import Int, Long, Short, Symbol
from penstock.client import (
    ClientClosed,
    ClientDenied,
    ClientError,
    ClientNotFound,
    ClientThrottled,
    ClientTimedOut,
    ClientTooLarge,
    EventData,
    EventHubProducerClient,
    RetryPolicy,
    retry,
)
from penstock.kernels import split_batch
from penstock.model.errors import ArgumentError

AT_ONCE = RetryPolicy(retry_total=3, backoff_s=0)
BUSY = Error(condition="com.microsoft:server-busy", description="Please wait 4 seconds.")
SILENCE, DROP, DETACH = "silence", "drop", "detach"


def producer(peer: Any, **options: Any) -> EventHubProducerClient:
    return EventHubProducerClient(peer.connection_string, **{"retry": AT_ONCE} | options)


def bodies(payload: bytes) -> int:
    return split_batch(payload, 0, len(payload)).count


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "BUSY_S", 0.0)


async def test_batch_is_sent_once_when_it_is_taken(peer: Any) -> None:
    async with producer(peer) as sender:
        batch = await sender.create_batch()
        assert batch.max_size_in_bytes == 64 * 1024
        for i in range(10):
            batch.add(EventData(f"event {i}"))
        await sender.send_batch(batch)
    assert [bodies(payload) for payload in peer.published] == [10]
    assert peer.tokens == ["sb://127.0.0.1/hub"]
    assert peer.attached[0].target.address == "hub"


async def test_lists_of_events_are_sent_as_one_batch(peer: Any) -> None:
    async with producer(peer) as sender:
        await sender.send_batch([EventData("a"), EventData("b")], partition_id="1")
        await sender.send_batch([], partition_id="1")
        with pytest.raises(ValueError, match="does not fit"):
            await sender.send_batch([EventData(bytes(40_000))] * 2)
    assert [bodies(payload) for payload in peer.published] == [2]
    assert peer.attached[0].target.address == "hub/Partitions/1"


async def test_single_event_is_a_message_of_its_own(peer: Any) -> None:
    async with producer(peer) as sender:
        await sender.send_event(EventData("alone"))
    assert peer.published == [b"\x00\x53\x75\xa0\x05alone"]


@pytest.mark.parametrize("times", [1, 3])
async def test_busy_service_is_asked_again(peer: Any, times: int) -> None:
    peer.verdicts.extend([BUSY] * times)
    async with producer(peer) as sender:
        await sender.send_event(EventData("a"))
    assert len(peer.published) == 1
    assert len(peer.attached) == 1  # on the same link


async def test_busy_service_is_not_asked_for_ever(peer: Any) -> None:
    peer.verdicts.extend([BUSY] * 10)
    async with producer(peer) as sender:
        with pytest.raises(ClientThrottled, match="Please wait"):
            await sender.send_event(EventData("a"))
    assert len(peer.verdicts) == 6


@pytest.mark.parametrize(
    ("condition", "kind"),
    [
        ("amqp:link:message-size-exceeded", ClientTooLarge),
        ("com.microsoft:argument-error", ClientError),
        ("com.microsoft:publisher-revoked", ClientError),
        ("com.microsoft:entity-disabled", ClientError),
        ("amqp:not-allowed", ClientError),
    ],
)
async def test_final_refusals_are_told_at_once(
    peer: Any, condition: str, kind: type[ClientError]
) -> None:
    peer.verdicts.extend([Error(condition=condition, description="no")] * 2)
    async with producer(peer) as sender:
        with pytest.raises(kind, match=condition):
            await sender.send_event(EventData("a"))
        assert len(peer.verdicts) == 1


@pytest.mark.parametrize("loss", [DROP, DETACH])
async def test_lost_links_are_opened_again(peer: Any, loss: str) -> None:
    peer.verdicts.append(loss)
    async with producer(peer) as sender:
        await sender.send_event(EventData("a"))
        await sender.send_event(EventData("b"))
    assert len(peer.attached) == 2
    assert len(peer.connections) == (2 if loss == DROP else 1)
    assert len(peer.published) == (3 if loss == DROP else 2)  # at least once


async def test_silent_service_is_left_after_the_deadline(peer: Any) -> None:
    peer.verdicts.extend([SILENCE, None])
    many = RetryPolicy(retry_total=20, backoff_s=0)
    async with producer(peer, timeout_s=0.5, retry=many) as sender:
        await sender.send_event(EventData("a"))
    assert len(peer.connections) >= 2


async def test_silent_service_times_out(peer: Any) -> None:
    peer.verdicts.append(SILENCE)
    async with producer(peer, timeout_s=0.2, retry=RetryPolicy(retry_total=0)) as sender:
        with pytest.raises(ClientTimedOut, match=r"0\.2 s"):
            await sender.send_event(EventData("a"))


@pytest.mark.parametrize(
    ("status", "kind"), [(401, ClientDenied), (404, ClientNotFound), (403, ClientDenied)]
)
async def test_refused_token_is_not_tried_again(
    peer: Any, status: int, kind: type[ClientError]
) -> None:
    peer.token_status = status
    async with producer(peer) as sender:
        with pytest.raises(kind, match=str(status)):
            await sender.send_event(EventData("a"))
    assert len(peer.tokens) == 1


async def test_failing_token_service_is_asked_again(peer: Any) -> None:
    peer.token_status = 500
    async with producer(peer) as sender:
        with pytest.raises(ClientError, match="500"):
            await sender.send_event(EventData("a"))
    assert len(peer.tokens) == 4


@pytest.mark.parametrize(
    ("condition", "kind", "attaches"),
    [
        ("amqp:not-found", ClientNotFound, 1),
        ("amqp:unauthorized-access", ClientDenied, 1),
        ("amqp:internal-error", ClientError, 4),
    ],
)
async def test_refused_links_are_judged_by_their_condition(
    peer: Any, condition: str, kind: type[ClientError], attaches: int
) -> None:
    peer.refusals.extend([Error(condition=condition, description="no")] * 4)
    async with producer(peer) as sender:
        with pytest.raises(kind, match=condition):
            await sender.send_event(EventData("a"))
    assert len(peer.attached) == attaches


async def test_service_that_is_not_there_is_an_error_of_the_client() -> None:
    string = (
        "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=n;SharedAccessKey=k;"
        "EntityPath=h;UseDevelopmentEmulator=true"
    )
    async with EventHubProducerClient(string, retry=RetryPolicy(retry_total=0)) as sender:
        with pytest.raises(ClientError, match=r"127\.0\.0\.1:1 cannot be reached"):
            await sender.send_event(EventData("a"))


async def test_many_sends_at_once_share_the_connection(peer: Any) -> None:
    async with producer(peer) as sender:
        await asyncio.gather(*(sender.send_event(EventData(str(i))) for i in range(300)))
    assert len(peer.published) == 300  # three times the credit that the peer gave at first
    assert len(peer.connections) == len(peer.attached) == 1


async def test_closed_producer_says_so(peer: Any) -> None:
    sender = producer(peer)
    await sender.send_event(EventData("a"))
    await sender.close()
    await sender.close()
    with pytest.raises(ClientClosed):
        await sender.send_event(EventData("b"))


async def test_hub_properties_are_told_as_by_the_official_sdk(peer: Any) -> None:
    async with producer(peer) as sender:
        told = await sender.get_eventhub_properties()
        assert told["eventhub_name"] == "hub"
        assert told["created_at"].isoformat() == "2023-11-14T22:13:20+00:00"
        assert await sender.get_partition_ids() == ["0", "1"]


async def test_management_is_asked_again_when_it_is_busy(peer: Any) -> None:
    peer.management_errors.extend([(503, "com.microsoft:server-busy")] * 2)
    async with producer(peer) as sender:
        assert await sender.get_partition_ids() == ["0", "1"]


async def test_unknown_partition_is_not_asked_for_again(peer: Any) -> None:
    peer.management_errors.extend([(400, "com.microsoft:argument-out-of-range")] * 2)
    async with producer(peer) as sender:
        with pytest.raises(ClientError, match="400"):
            await sender.get_partition_properties("7")
    assert len(peer.management_errors) == 1


async def test_tokens_are_renewed_before_they_expire(peer: Any) -> None:
    async with producer(peer) as sender:
        sender.token_s = 0.2
        await sender.send_event(EventData("a"))
        await peer.until(lambda: len(peer.tokens) >= 4)
        await sender.send_event(EventData("b"))
    assert len(peer.connections) == len(peer.attached) == 1


async def test_tokens_that_could_not_be_renewed_are_tried_again(peer: Any) -> None:
    async with producer(peer) as sender:
        sender.token_s = 0.2
        await sender.send_event(EventData("a"))
        peer.token_status = 500
        await peer.until(lambda: len(peer.tokens) >= 3)
        peer.token_status = 202
        await peer.until(lambda: len(peer.tokens) >= 6)
        await sender.send_event(EventData("b"))
    assert len(peer.connections) == 1


# --- idempotent -----------------------------------------------------------------------------------


def told(producer_id: int, epoch: int, number: int | None) -> dict[str, object]:
    return {
        Symbol("com.microsoft:producer-id"): Long(producer_id),
        Symbol("com.microsoft:producer-epoch"): Short(epoch),
        Symbol("com.microsoft:producer-sequence-number"): None if number is None else Int(number),
    }


def stamps(payloads: list[bytes]) -> list[Any]:
    return [split_batch(payload, 0, len(payload)).producer for payload in payloads]


async def test_idempotent_producer_numbers_its_events(peer: Any) -> None:
    peer.producer = told(77, 3, 41)
    async with producer(peer, idempotent=True) as sender:
        await sender.send_batch([EventData("a"), EventData("b")], partition_id="0")
        await sender.send_event(EventData("c"), partition_id="0")
    assert stamps(peer.published) == [(77, 3, 42, 43), (77, 3, 44, 44)]
    assert peer.attached[0].properties == {}


async def test_idempotent_producer_repeats_the_numbers_of_what_it_sends_again(peer: Any) -> None:
    peer.producer = told(5, 0, 0)
    peer.verdicts.append(DROP)
    async with producer(peer, idempotent=True) as sender:
        await sender.send_batch([EventData("a"), EventData("b")], partition_id="0")
        peer.verdicts.extend([DETACH, BUSY, None])
        await sender.send_event(EventData("c"), partition_id="0")
    assert stamps(peer.published) == [(5, 0, 1, 2), (5, 0, 1, 2), (5, 0, 3, 3)]
    # No number while a batch is in doubt: a service that stored it refuses one behind its own.
    assert peer.attached[1].properties == told(5, 0, None)
    assert peer.attached[2].properties == told(5, 0, None)


async def test_batch_in_doubt_keeps_its_numbers_and_others_get_a_new_producer(peer: Any) -> None:
    peer.producer = told(5, 0, 0)
    once = RetryPolicy(retry_total=0)
    async with producer(peer, idempotent=True, retry=once) as sender:
        batch = await sender.create_batch(partition_id="0")
        batch.add(EventData("a"))
        peer.verdicts.append(DROP)
        with pytest.raises(ClientError):
            await sender.send_batch(batch)
        await sender.send_batch(batch)  # the same: the service may know it by its number
        assert stamps(peer.published) == [(5, 0, 1, 1)] * 2
        peer.verdicts.append(DROP)
        with pytest.raises(ClientError):
            await sender.send_event(EventData("b"), partition_id="0")
        peer.producer = told(6, 0, 0)
        await sender.send_event(EventData("c"), partition_id="0")
    assert stamps(peer.published)[-1] == (6, 0, 1, 1)
    assert peer.attached[-1].properties == {}


async def test_idempotent_producer_chooses_partitions_itself(peer: Any) -> None:
    peer.producer = told(5, 0, 0)
    async with producer(peer, idempotent=True) as sender:
        for _ in range(4):
            await sender.send_event(EventData("a"))
        await sender.send_event(EventData("k"), partition_key="key1")
    places = [attach.target.address for attach in peer.attached]
    assert places == ["hub/Partitions/0", "hub/Partitions/1"]
    assert split_batch(peer.published[-1], 0, len(peer.published[-1])).partition_key == "key1"


async def test_service_without_idempotent_producers_is_told_from_one_with(peer: Any) -> None:
    async with producer(peer, idempotent=True, retry=RetryPolicy(retry_total=0)) as sender:
        with pytest.raises(ClientError, match="does not support idempotent producers"):
            await sender.send_event(EventData("a"), partition_id="0")


async def test_partition_and_key_exclude_each_other(peer: Any) -> None:
    async with producer(peer) as sender:
        with pytest.raises(ArgumentError):
            await sender.create_batch(partition_id="0", partition_key="k")
        batch = await sender.create_batch()
        with pytest.raises(ArgumentError):
            await sender.send_batch(batch, partition_key="k")
        with pytest.raises(ArgumentError):
            await sender.create_batch(partition_key="k" * 129)
        with pytest.raises(ValueError, match="max_size_in_bytes"):
            await sender.create_batch(max_size_in_bytes=10**9)


async def test_callers_at_the_same_time_read_the_partition_ids_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = "Endpoint=sb://localhost;SharedAccessKeyName=a;SharedAccessKey=b"
    producer = EventHubProducerClient(text, eventhub_name="hub")
    reads = []

    async def read() -> list[str]:
        reads.append("read")
        await asyncio.sleep(0)
        return ["0", "1"]

    monkeypatch.setattr(producer, "get_partition_ids", read)
    chosen = await asyncio.gather(*(producer._choose_partition(None) for _ in range(4)))
    assert chosen == ["0", "1", "0", "1"]
    assert reads == ["read"]
