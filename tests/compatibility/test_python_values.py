"""What an event carries through azure-eventhub: bodies, sections, properties, value types."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from azure.eventhub import EventData
from azure.eventhub.amqp import (
    AmqpAnnotatedMessage,
    AmqpMessageBodyType,
    AmqpMessageHeader,
    AmqpMessageProperties,
)

if TYPE_CHECKING:
    from tests.compatibility.conftest import Case, Outcomes, PythonSdk, Sdks

# The SDK's constructors carry no annotations.
Header: Any = AmqpMessageHeader
Properties: Any = AmqpMessageProperties

SOME_UUID = UUID("12345678-1234-5678-1234-567812345678")
NESTED = {b"list": [1, b"two", [3.0, None]], b"map": {b"deep": True}}


async def there_and_back(sdk: PythonSdk, *messages: Any) -> list[EventData]:
    """Each message as a single event, then all of them as one batch."""
    hub, partition = sdk.spot()
    async with sdk.producing(hub) as producer:
        for message in messages:
            await sdk.call(producer.send_event, message, partition_id=partition)
        batch = await sdk.call(producer.create_batch, partition_id=partition)
        for message in messages:
            batch.add(message)
        await sdk.call(producer.send_batch, batch)
    received = await sdk.read(hub, partition, 2 * len(messages))
    assert len(received) == 2 * len(messages)
    return received


async def data_bodies_keep_their_sections(sdk: PythonSdk) -> None:
    message = AmqpAnnotatedMessage(data_body=[b"one", b"", b"three" * 100])
    for received in await there_and_back(sdk, message):
        assert received.body_type == AmqpMessageBodyType.DATA
        assert list(received.raw_amqp_message.body) == [b"one", b"", b"three" * 100]


async def value_bodies_keep_their_type(sdk: PythonSdk) -> None:
    values: list[Any] = [True, 7, -7, 1.5, b"bytes", b"text", SOME_UUID, NESTED, [1, [2]]]
    sent = ["text" if value == b"text" else value for value in values]
    messages = [AmqpAnnotatedMessage(value_body=value) for value in sent]
    received = await there_and_back(sdk, *messages)
    assert all(event.body_type == AmqpMessageBodyType.VALUE for event in received)
    assert [event.raw_amqp_message.body for event in received] == values * 2


async def event_without_a_body_is_an_event(sdk: PythonSdk) -> None:
    message = AmqpAnnotatedMessage(value_body=None, application_properties={"a": 1})
    for received in await there_and_back(sdk, message):  # the SDK leaves the section out
        assert received.properties == {b"a": 1}
        assert received.raw_amqp_message.body is None


async def sequence_bodies_keep_their_sections(sdk: PythonSdk) -> None:
    message = AmqpAnnotatedMessage(sequence_body=[[1, b"two", None], [3.5, True, NESTED]])
    for received in await there_and_back(sdk, message):
        assert received.body_type == AmqpMessageBodyType.SEQUENCE
        assert list(received.raw_amqp_message.body) == [[1, b"two", None], [3.5, True, NESTED]]


async def all_message_properties_come_back(sdk: PythonSdk) -> None:
    now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    properties = Properties(
        message_id="message",
        user_id=b"user",
        to="somewhere",
        subject="subject",
        reply_to="reply",
        correlation_id="correlation",
        content_type="application/json",
        content_encoding="utf-8",
        absolute_expiry_time=int(now.timestamp() * 1000),
        creation_time=int(now.timestamp() * 1000),
        group_id="group",
        group_sequence=77,
        reply_to_group_id="reply group",
    )
    message = AmqpAnnotatedMessage(data_body=[b"x"], properties=properties)
    for received in await there_and_back(sdk, message):
        got = received.raw_amqp_message.properties
        assert got is not None
        assert (got.message_id, got.user_id, got.to) == (b"message", b"user", b"somewhere")
        assert (got.subject, got.reply_to) == (b"subject", b"reply")
        assert got.correlation_id == b"correlation"
        assert (got.content_type, got.content_encoding) == (b"application/json", b"utf-8")
        assert got.absolute_expiry_time == got.creation_time == int(now.timestamp() * 1000)
        assert (got.group_id, got.group_sequence) == (b"group", 77)
        assert got.reply_to_group_id == b"reply group"


async def message_ids_keep_their_type(sdk: PythonSdk) -> None:
    ids: list[Any] = ["text", SOME_UUID, b"bytes", 2**40]
    messages = [
        AmqpAnnotatedMessage(
            data_body=[b"x"], properties=Properties(message_id=i, correlation_id=i)
        )
        for i in ids
    ]
    received = await there_and_back(sdk, *messages)
    got = [event.raw_amqp_message.properties for event in received]
    expected = [b"text", SOME_UUID, b"bytes", 2**40] * 2
    assert [each.message_id for each in got if each] == expected
    assert [each.correlation_id for each in got if each] == expected


async def annotations_and_footer_come_back(sdk: PythonSdk) -> None:
    message = AmqpAnnotatedMessage(
        data_body=[b"x"],
        header=Header(durable=True, priority=5, time_to_live=60_000),
        annotations={b"x-opt-mine": "kept", b"x-opt-number": 7},
        delivery_annotations={b"of-the-sender": "also kept"},
        footer={b"the-end": b"yes"},
        application_properties={"a": "b"},
    )
    for received in await there_and_back(sdk, message):
        raw = received.raw_amqp_message
        assert raw.annotations is not None
        assert raw.annotations[b"x-opt-mine"] == b"kept"
        assert raw.annotations[b"x-opt-number"] == 7
        assert raw.delivery_annotations == {b"of-the-sender": b"also kept"}
        assert raw.footer == {b"the-end": b"yes"}
        assert received.properties == {b"a": b"b"}


async def system_annotations_of_the_sender_are_overwritten(sdk: PythonSdk) -> None:
    forged: dict[str | bytes, Any] = {
        b"x-opt-sequence-number": 999,
        b"x-opt-offset": "999",
        b"x-opt-enqueued-time": 1,
    }
    message = AmqpAnnotatedMessage(data_body=[b"x"], annotations=forged)
    received = await there_and_back(sdk, message)
    assert [event.sequence_number for event in received] == [0, 1]
    assert "999" not in [event.offset for event in received]
    times = [event.enqueued_time for event in received]
    assert all(time is not None and time.year >= 2024 for time in times)


async def application_properties_keep_their_values(sdk: PythonSdk) -> None:
    when = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    event = EventData("x")
    event.properties = {
        "null": None,
        "true": True,
        "false": False,
        "zero": 0,
        "int": -(2**31),
        "double": 1.5e300,
        "bytes": bytes(range(256)),
        "text": "ünïcödé \U0001f600",
        "long text": "x" * 1000,
        "empty": "",
        "uuid": SOME_UUID,
        "time": when,
        "": "empty key",
        "ключ": "key",
    }
    for received in await there_and_back(sdk, event):
        assert received.properties == {
            b"null": None,
            b"true": True,
            b"false": False,
            b"zero": 0,
            b"int": -(2**31),
            b"double": 1.5e300,
            b"bytes": bytes(range(256)),
            b"text": "ünïcödé \U0001f600".encode(),
            b"long text": b"x" * 1000,
            b"empty": b"",
            b"uuid": SOME_UUID,
            b"time": int(when.timestamp() * 1000),
            b"": b"empty key",
            "ключ".encode(): b"key",
        }


async def event_with_hundreds_of_properties_comes_back(sdk: PythonSdk) -> None:
    event = EventData("x")
    event.properties = {f"property {n}": n for n in range(500)}
    for received in await there_and_back(sdk, event):
        assert received.properties == {f"property {n}".encode(): n for n in range(500)}


CASES: list[Case] = [
    data_bodies_keep_their_sections,
    value_bodies_keep_their_type,
    event_without_a_body_is_an_event,
    sequence_bodies_keep_their_sections,
    all_message_properties_come_back,
    message_ids_keep_their_type,
    annotations_and_footer_come_back,
    system_annotations_of_the_sender_are_overwritten,
    application_properties_keep_their_values,
    event_with_hundreds_of_properties_comes_back,
]


@pytest.fixture(scope="module")
def outcomes(sdks: Sdks) -> Outcomes:
    return sdks.run((CASES, [("aio", "tcp")]))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_value(outcomes: Outcomes, case: Case) -> None:
    outcomes.check(case)
