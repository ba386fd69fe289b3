"""Batches: many events in one JSON array, one partition, all or nothing."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.amqp.message import (
    DataBody,
    Message,
    Properties,
    decode_message,
    encode_message,
)
from penstock.amqp.types import Symbol, Ulong
from penstock.gateway.http.message_encoder import BatchEncoder, is_batch
from penstock.kernels import split_batch
from penstock.model import limits
from penstock.model.entities import Tier
from penstock.model.errors import PenstockError
from penstock.model.partitioner import partition_for_key

if TYPE_CHECKING:
    from tests.unit.gateway.http.conftest import World

KEY = "x-opt-partition-key"


@pytest.mark.parametrize(
    "content_type",
    [
        "application/vnd.microsoft.servicebus.json",
        "application/vnd.microsoft.servicebus.json; charset=utf-8",
        "Application/vnd.Microsoft.ServiceBus.JSON ;charset=utf-8",
    ],
)
async def test_content_type_makes_a_batch(world: World, content_type: str) -> None:
    body = b'[{"Body":"one"},{"Body":"two"}]'
    response = await world.call(body=body, headers={"Content-Type": content_type})
    assert (response.status, response.body) == (201, b"")
    assert [event.body for event in world.stored()] == [b"one", b"two"]


@pytest.mark.parametrize(
    "content_type", ["", "application/json", "application/vnd.microsoft.servicebus.jsonx"]
)
def test_other_content_types_make_none(content_type: str) -> None:
    assert not is_batch(content_type.encode())


async def test_events_of_a_batch_are_those_that_amqp_would_carry(world: World) -> None:
    await world.batch(
        {"Body": "Grüße"},
        {"Body": base64.b64encode(b"\x00\xff").decode(), "IsBodyBase64": True},
        {"Body": "e30=", "IsBodyBase64": False},
        {
            "Body": "all",
            "BrokerProperties": {"MessageId": "m", "Label": "s", "ContentType": "text/x"},
            "UserProperties": {"Alert": "Strong Wind"},
        },
    )
    assert [event.raw for event in world.stored()] == [
        encode_message(Message(body=DataBody(["Grüße".encode()]))),
        encode_message(Message(body=DataBody([b"\x00\xff"]))),
        encode_message(Message(body=DataBody([b"e30="]))),
        encode_message(
            Message(
                properties=Properties(message_id="m", subject="s", content_type="text/x"),
                application_properties={"Alert": "Strong Wind"},
                body=DataBody([b"all"]),
            )
        ),
    ]


async def test_batch_lies_in_one_partition_in_its_order(world: World) -> None:
    await world.batch(*({"Body": str(number)} for number in range(1200)))
    events = world.stored()
    assert {event.partition for event in events} == {0}
    assert [event.body for event in events] == [b"%d" % number for number in range(1200)]


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ("text", "text"),
        ("", ""),
        (True, True),
        (False, False),
        (None, None),
        (0, 0),
        (-(2**63), -(2**63)),
        (2**63 - 1, 2**63 - 1),
        (2**64 - 1, Ulong(2**64 - 1)),
        (1.5, 1.5),
        (1.0, 1.0),
        (1e300, 1e300),
    ],
)
async def test_user_property_keeps_its_json_type(world: World, value: Any, kept: Any) -> None:
    await world.batch({"Body": "x", "UserProperties": {"p": value}})
    properties = world.one().message.application_properties
    assert properties == {"p": kept}
    expected = encode_message(Message(application_properties={"p": kept}, body=DataBody([b"x"])))
    assert world.one().raw == expected


async def test_headers_of_a_batch_become_no_properties(world: World) -> None:
    await world.batch({"Body": "x"}, headers={"Own": "header"})
    assert world.one().message.application_properties is None


# --- routing ------------------------------------------------------------------------------------


async def test_key_of_the_request_is_that_of_every_event(world: World) -> None:
    headers = {"BrokerProperties": '{"PartitionKey":"k"}'}
    await world.batch({"Body": "a"}, {"Body": "b"}, headers=headers)
    events = world.stored()
    assert {event.partition for event in events} == {partition_for_key("k", 4)}
    assert [event.message.message_annotations for event in events] == [{KEY: "k"}] * 2


async def test_key_of_the_events_is_that_of_the_batch(world: World) -> None:
    await world.batch(
        {"Body": "a"},
        {"Body": "b", "BrokerProperties": {"PartitionKey": "k"}},
        {"Body": "c", "BrokerProperties": {"PartitionKey": "k"}},
    )
    events = world.stored()
    assert {event.partition for event in events} == {partition_for_key("k", 4)}
    assert [event.message.message_annotations for event in events] == [{KEY: "k"}] * 3


@pytest.mark.parametrize("header", [None, '{"PartitionKey":"k"}'])
async def test_batch_with_different_keys_is_refused(world: World, header: str | None) -> None:
    other = {"Body": "b", "BrokerProperties": {"PartitionKey": "other"}}
    first = {"Body": "a", "BrokerProperties": {"PartitionKey": "k"}}
    headers = {} if header is None else {"BrokerProperties": header}
    response = await world.batch(first, other, headers=headers)
    assert response.status == 400
    assert "different partition keys" in response.detail
    assert world.stored() == []


async def test_partition_in_the_path_takes_the_batch(world: World) -> None:
    await world.batch({"Body": "a"}, {"Body": "b"}, path="/events/partitions/3/messages")
    assert [event.partition for event in world.stored()] == [3, 3]


async def test_publisher_takes_the_batch(world: World) -> None:
    await world.batch({"Body": "a"}, {"Body": "b"}, path="/events/publishers/dev/messages")
    wanted = {Symbol(KEY): "dev", Symbol("x-opt-publisher"): "dev"}
    assert [event.message.message_annotations for event in world.stored()] == [wanted] * 2


async def test_publisher_with_another_key_is_refused(world: World) -> None:
    event = {"Body": "a", "BrokerProperties": {"PartitionKey": "other"}}
    response = await world.batch({"Body": "b"}, event, path="/events/publishers/dev/messages")
    assert response.status == 400
    assert world.stored() == []


# --- what is refused ----------------------------------------------------------------------------

DEEP = 100_000


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"[]", b"{}", b"null", b"1", b"[", b"[1]", b"[null]", b"[[]]", b'["x"]', b"x"),
        *(b"[{}]", b'[{"body":"x"}]', b'[{"Body":1}]', b'[{"Body":null}]', b'[{"Body":{}}]'),
        *(b'[{"Body":"x"}', b'[{"Body":"x"},]', b'[{"Body":"x"}]x', b'[{"Body":"x"}{}]'),
        *(b'[{"Body":"\\ud800"}]', b'[{"Body":"\xff"}]', b'[{"Body":"\n"}]', b"[{'Body':'x'}]"),
        b'[{"Body":"x","IsBodyBase64":"true"}]',
        b'[{"Body":"*","IsBodyBase64":true}]',
        b'[{"Body":"eA","IsBodyBase64":true}]',
        b'[{"Body":"x","UserProperties":[]}]',
        b'[{"Body":"x","UserProperties":{"a":[]}}]',
        b'[{"Body":"x","UserProperties":{"a":{}}}]',
        b'[{"Body":"x","UserProperties":{"a":NaN}}]',
        b'[{"Body":"x","UserProperties":{"a":-Infinity}}]',
        b'[{"Body":"x","UserProperties":{"a":1e999}}]',
        b'[{"Body":"x","UserProperties":{"a":18446744073709551616}}]',
        b'[{"Body":"x","UserProperties":{"a":-9223372036854775809}}]',
        b'[{"Body":"x","UserProperties":{"a":' + b"9" * 5000 + b"}}]",
        b'[{"Body":"x","BrokerProperties":"{}"}]',
        b'[{"Body":"x","BrokerProperties":{"PartitionKey":7}}]',
        b'[{"Body":"x","BrokerProperties":{"ContentType":"\xc3\xa4"}}]',
        b'[{"Body":"x","Other":' + b"[" * DEEP + b"]" * DEEP + b"}]",
        b'[{"Body":"x","Other":' + b'{"a":' * 50_000,
        b"[" * DEEP,
        b'[{"Body":"x"},{"Body":2}]',
        b'[{"Body":"x"},{"Body":"x","BrokerProperties":{"PartitionKey":"' + b"k" * 129 + b'"}}]',
        b"\xff\xfe[\x00]\x00",
    ],
)
async def test_batch_that_cannot_be_read_is_refused_whole(world: World, body: bytes) -> None:
    headers = {"Content-Type": "application/vnd.microsoft.servicebus.json"}
    response = await world.call(body=body, headers=headers)
    assert response.status == 400
    assert len(response.detail) < 600
    assert world.stored() == []


async def test_event_that_would_be_a_bomb_for_readers_is_refused(world: World) -> None:
    """More elements than one map of an event may have (kernels.values)."""
    world.change_namespace(tier=Tier.DEDICATED)
    many = {f"{number:x}": None for number in range(40_000)}
    response = await world.batch({"Body": "x", "UserProperties": many})
    assert response.status == 400
    assert world.stored() == []


async def test_byte_order_mark_is_passed_over(world: World) -> None:
    headers = {"Content-Type": "application/vnd.microsoft.servicebus.json"}
    response = await world.call(body=b'\xef\xbb\xbf[{"Body":"x"}]', headers=headers)
    assert response.status == 201


async def test_last_of_two_equal_names_counts(world: World) -> None:
    headers = {"Content-Type": "application/vnd.microsoft.servicebus.json"}
    await world.call(body=b'[{"Body":"x","Body":"y"}]', headers=headers)
    assert world.one().body == b"y"


async def test_encoded_size_decides_and_not_that_of_the_json(world: World) -> None:
    """Base64 and escapes may make the JSON longer than the limit, not the publication."""
    body = base64.b64encode(b"x" * 250_000).decode()
    assert len(body) > limits.PUBLICATION_BYTES_STANDARD
    assert (await world.batch({"Body": body, "IsBodyBase64": True})).status == 201
    assert world.one().body == b"x" * 250_000


@pytest.mark.parametrize(("events", "size", "status"), [(253, 1020, 201), (254, 1020, 413)])
async def test_publication_is_measured_as_its_amqp_message(
    world: World, events: int, size: int, status: int
) -> None:
    response = await world.batch(*[{"Body": "x" * size}] * events)
    assert response.status == status
    assert len(world.stored()) == (events if status == 201 else 0)


async def test_envelope_counts_too(world: World) -> None:
    room = limits.PUBLICATION_BYTES_STANDARD - 16
    assert (await world.batch({"Body": "x" * room})).status == 201
    headers = {"BrokerProperties": '{"PartitionKey":"k"}'}
    response = await world.batch({"Body": "x" * room}, headers=headers)
    assert response.status == 413
    assert f"exceeds the limit ({limits.PUBLICATION_BYTES_STANDARD} bytes)" in response.detail


async def test_far_too_many_events_are_given_up_before_all_are_encoded(world: World) -> None:
    response = await world.batch(*[{"Body": "y" * 600}] * 800)
    assert response.status == 413
    assert "has more than 308000 bytes as an AMQP message" in response.detail


def test_batch_has_at_most_as_many_events_as_a_record() -> None:
    body = json.dumps([{"Body": ""}] * (limits.BATCH_EVENTS_MAX + 1)).encode()
    with pytest.raises(PenstockError, match="65537 events: 1 to 65536"):
        BatchEncoder(body, key=None, bytes_max=2**30)


def test_batch_is_encoded_in_steps() -> None:
    body = json.dumps([{"Body": "x"}] * 1001).encode()
    encoder = BatchEncoder(body, key=None, bytes_max=2**20)
    assert len(list(encoder.steps())) == 2  # between three of them
    assert len(encoder.message()) == 1001 * 11


@given(st.binary(max_size=200))
def test_any_bytes_are_encoded_or_refused_by_name(body: bytes) -> None:
    try:
        encoder = BatchEncoder(body, key=None, bytes_max=2**20)
        list(encoder.steps())
    except PenstockError:
        return
    assert isinstance(json.loads(body), list)
    assert encoder.message()


SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text()
ENTRIES = st.fixed_dictionaries(
    {"Body": st.text(max_size=300)},
    optional={
        "UserProperties": st.dictionaries(st.text(max_size=10), SCALARS, max_size=5),
        "BrokerProperties": st.fixed_dictionaries({}, optional={"MessageId": st.text()}),
        "Other": st.recursive(SCALARS, st.lists, max_leaves=5),
    },
)


@settings(max_examples=60)
@given(st.lists(ENTRIES, min_size=1, max_size=8))
def test_what_json_can_say_arrives_as_it_was_said(entries: list[dict[str, Any]]) -> None:
    try:
        body = json.dumps(entries, allow_nan=False).encode()
    except ValueError:
        return
    encoder = BatchEncoder(body, key=None, bytes_max=2**20)
    list(encoder.steps())
    message = encoder.message()
    publication = split_batch(message, 0, len(message))
    assert publication.count == len(entries)
    assert publication.sections == message
    position = 0
    for entry in entries:
        size, start = message[position + 4], position + 5
        if message[position + 3] == 0xB0:
            size, start = int.from_bytes(message[position + 4 : position + 8], "big"), position + 8
        event = decode_message(message[start : start + size])
        assert isinstance(event.body, DataBody)
        assert event.body.chunks == [entry["Body"].encode()]
        assert (event.application_properties or {}) == entry.get("UserProperties", {})
        position = start + size
