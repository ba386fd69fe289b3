"""Events and batches: what is encoded, what is kept closed, how large it is."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.amqp.message import (
    DataBody,
    Message,
    Properties,
    SequenceBody,
    ValueBody,
    decode_message,
    encode_message,
)
from penstock.amqp.types import Decimal128, Int, Long, Symbol, Timestamp, Uint, Ulong
from penstock.client import ClientError, EventData, EventDataBatch
from penstock.client.event_data import to_events
from penstock.client.idempotence import ProducerState
from penstock.client.receiver import MessageChunk, ReceiveQueue, join_columns
from penstock.kernels import decode_events, split_batch
from penstock.model.errors import ArgumentError

PLACE: dict[Any, object] = {
    Symbol("x-opt-sequence-number-epoch"): Int(-1),
    Symbol("x-opt-sequence-number"): Long(7),
    Symbol("x-opt-offset"): "700",
    Symbol("x-opt-enqueued-time"): Timestamp(1_700_000_000_123),
    Symbol("x-opt-partition-key"): "key",
}


def received(**sections: Any) -> EventData:
    message = encode_message(Message(message_annotations=PLACE, **sections))
    (event,) = to_events(decode_events(message, [0, len(message)]))
    return event


def sent(event: EventData) -> Message:
    batch = EventDataBatch(10**6)
    batch.add(event)
    return decode_message(batch.single())


def test_event_made_of_text_is_its_utf8() -> None:
    event = EventData("grüße")
    assert event.body == "grüße".encode()
    assert event.body_as_str() == str(event) == "grüße"
    assert (event.sequence_number, event.offset, event.enqueued_time) == (None, None, None)
    assert event.properties == event.system_properties == {}


def test_event_is_sent_with_all_that_it_was_given() -> None:
    event = EventData(
        b"body",
        properties={"n": 1, "t": "text", "id": uuid.UUID(int=5)},
        content_type="application/json",
        message_id="m",
        correlation_id=uuid.UUID(int=6),
    )
    message = sent(event)
    assert message.body == DataBody([b"body"])
    assert message.application_properties == {"n": 1, "t": "text", "id": uuid.UUID(int=5)}
    assert message.properties is not None
    assert message.properties.message_id == "m"
    assert message.properties.correlation_id == uuid.UUID(int=6)
    assert message.properties.content_type == "application/json"
    assert (event.message_id, event.content_type) == ("m", "application/json")


def test_times_and_nested_values_are_properties_too() -> None:
    at = datetime(2026, 1, 2, tzinfo=UTC)
    message = sent(EventData(properties={"at": at, "list": [1, "a"], "map": {"x": 1}}))
    assert message.application_properties == {
        "at": int(at.timestamp() * 1000),
        "list": [1, "a"],
        "map": {"x": 1},
    }


@pytest.mark.parametrize("properties", [{"x": object()}, {"x": 2**70}, {1: "x"}])
def test_what_amqp_cannot_hold_is_refused_and_the_batch_is_as_before(properties: Any) -> None:
    batch = EventDataBatch(10**6)
    batch.add(EventData("first"))
    size = batch.size_in_bytes
    with pytest.raises(ArgumentError):
        batch.add(EventData("x", properties=properties))
    assert (len(batch), batch.size_in_bytes) == (1, size)


def test_received_event_shows_its_place_and_opens_its_sections_when_asked() -> None:
    event = received(
        properties=Properties(message_id=Ulong(3), content_type="text/plain"),
        application_properties={"u": Uint(4)},
        body=DataBody([b"one", b"two"]),
    )
    assert event.body == b"onetwo"
    assert (event.sequence_number, event.offset, event.partition_key) == (7, "700", "key")
    assert event.enqueued_time == datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=UTC)
    assert event.properties == {"u": 4}
    assert isinstance(event.properties["u"], Uint)
    assert (event.message_id, event.content_type, event.correlation_id) == (3, "text/plain", None)
    assert event.system_properties["x-opt-offset"] == "700"


def test_received_event_is_forwarded_bit_by_bit() -> None:
    application = {"d": Decimal128(bytes(range(16))), "u": Uint(4), "s": Symbol("é".strip("é"))}
    fields = Properties(message_id=Ulong(3), group_sequence=9)
    event = received(properties=fields, application_properties=application, body=DataBody([b"x"]))
    message = sent(event)
    assert message.application_properties == application
    assert message.properties == fields
    assert message.message_annotations is None  # the service's own are not sent back


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (ValueBody({"a": 1}), "value"),
        (SequenceBody([[1], [2, 3]]), "sequence"),
        (DataBody([]), "none"),
    ],
)
def test_other_bodies_are_kept_as_they_are(body: Any, kind: str) -> None:
    event = received(body=body)
    assert event.body_type == kind
    expected = None if kind == "none" else body
    assert sent(event).body == expected


def test_batch_knows_its_size_and_refuses_what_does_not_fit() -> None:
    batch = EventDataBatch(2000)
    while batch.try_add(EventData(bytes(300), properties={"a": "b"})):
        assert batch.size_in_bytes == len(batch.payload()) <= 2000
    assert len(batch) == 6
    before = batch.payload()
    with pytest.raises(ValueError, match="at most 2000 bytes"):
        batch.add(EventData(bytes(300)))
    assert batch.payload() == before
    assert batch.try_add(EventData(b"small"))


@pytest.mark.parametrize("key", ["k", "ü" * 128])
def test_key_stands_on_the_envelope_and_on_each_event(key: str) -> None:
    batch = EventDataBatch(10**6, partition_key=key)
    batch.add(EventData("a"))
    batch.add(EventData("b"))
    payload = batch.payload()
    publication = split_batch(payload, 0, len(payload))
    assert (publication.count, publication.partition_key) == (2, key)
    assert publication.sections == payload[-len(publication.sections) :]  # stored as sent
    envelope = decode_message(payload[: -len(publication.sections)])
    assert envelope.message_annotations == {"x-opt-partition-key": key}
    assert envelope.header == [True]


@pytest.mark.parametrize("key", [None, "k", "k" * 128])
def test_numbers_are_written_where_room_was_left(key: str | None) -> None:
    batch = EventDataBatch(10**6, partition_key=key, stamped=True)
    for i in range(300):
        batch.add(EventData(bytes(i * 10)))
    size = batch.size_in_bytes
    for state in (ProducerState(2**63 - 1, 7, 2**31 - 3), ProducerState(0, 0, 5)):
        batch.stamp(state)
        assert batch.size_in_bytes == size
        payload = batch.payload()
        publication = split_batch(payload, 0, len(payload))
        first, last = state.after(1), state.after(300)
        assert publication.producer == (state.id, state.epoch, first, last)
        assert publication.partition_key == key


def test_events_of_a_partitions_batch_may_have_their_own_keys() -> None:
    batch = EventDataBatch(10**6, partition_id="0")
    for key in ("a", "b", None):
        assert batch.try_add(EventData("x"), partition_key=key)
    payload = batch.payload()
    publication = split_batch(payload, 0, len(payload))
    assert publication.count == 3
    assert publication.sections.count(b"x-opt-partition-key") == 2


# --- what was received and not taken --------------------------------------------------------------


def chunk_of(first: int, count: int) -> MessageChunk:
    made = [
        encode_message(
            Message(
                message_annotations=PLACE | {Symbol("x-opt-sequence-number"): Long(first + i)},
                body=DataBody([b"%d" % (first + i)]),
            )
        )
        for i in range(count)
    ]
    data = b"".join(made)
    bounds, at = [], 0
    for message in made:
        bounds += [at, at + len(message)]
        at += len(message)
    return MessageChunk(data, bounds, first, first + count - 1)


def numbers_of(parts: list[tuple[bytes, list[int]]]) -> list[int]:
    return join_columns([decode_events(*part) for part in parts]).sequence_numbers


@given(st.lists(st.integers(1, 6), max_size=6), st.lists(st.integers(1, 9), max_size=12))
def test_rows_are_taken_in_order_however_they_came(added: list[int], taken: list[int]) -> None:
    inbox = ReceiveQueue()
    total = 0
    for count in added:
        inbox.add(chunk_of(total, count))
        total += count
    assert (inbox.events, inbox.bytes > 0, bool(inbox)) == (total, total > 0, total > 0)
    got: list[int] = []
    for count in [*taken, total + 1]:
        numbers = numbers_of(inbox.take(count))
        assert len(numbers) == min(count, total - len(got))
        got += numbers
        assert inbox.events == total - len(got)
    assert got == list(range(total))
    assert inbox.bytes == 0


def test_inbox_gives_whole_chunks() -> None:
    inbox = ReceiveQueue()
    chunks = [chunk_of(0, 3), chunk_of(3, 2)]
    for chunk in chunks:
        inbox.add(chunk)
    assert inbox.take_chunks() == chunks
    assert (inbox.events, inbox.bytes, bool(inbox)) == (0, 0, False)


def test_inbox_can_be_emptied() -> None:
    inbox = ReceiveQueue()
    inbox.add(chunk_of(0, 5))
    inbox.take(2)
    inbox.clear()
    assert inbox.take(10) == []
    inbox.add(chunk_of(9, 1))
    assert numbers_of(inbox.take(10)) == [9]


def test_event_hides_nothing_but_says_little(make_delivered: Callable[..., bytes]) -> None:
    message = make_delivered(4, bytes(1000))
    (event,) = to_events(decode_events(message, [0, len(message)]))
    assert repr(event) == "<EventData 1000 bytes, sequence number 4>"
    assert event._system_raw
    assert event._properties_raw == b""


@pytest.mark.parametrize("cut", range(1, 7))
def test_damaged_properties_are_told_when_they_are_opened(cut: int) -> None:
    application = bytes.fromhex("00 53 74 c1 05 02 a1 01 61 40")
    fields = bytes.fromhex("00 53 73 c0 04 01 a1 01 6d")
    place = encode_message(Message(message_annotations=PLACE))
    for whole in (application, fields):
        # The lengths of the section are right, what lies inside is not.
        broken = whole[:6] + bytes((0xA1, 0xFF, 0x70, 0xC1, 0xD1, 0xB1)[cut - 1 :][:1]) * (
            len(whole) - 6
        )
        message = place + broken + b"\x00\x53\x75\xa0\x01x"
        (event,) = to_events(decode_events(message, [0, len(message)]))
        assert event.body == b"x"
        with pytest.raises(ClientError, match="damaged"):
            _ = event.properties if whole is application else event.message_id
