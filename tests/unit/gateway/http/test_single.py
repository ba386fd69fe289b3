"""One event a request: body, content type, BrokerProperties, headers, routing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from penstock.amqp.message import DataBody, Message, Properties, encode_message
from penstock.amqp.types import Symbol
from penstock.model.partitioner import partition_for_key

if TYPE_CHECKING:
    from tests.unit.gateway.http.conftest import World

KEY = "x-opt-partition-key"


def broker_properties(**given: object) -> dict[str, str]:
    return {"BrokerProperties": json.dumps(given)}


@pytest.mark.parametrize("body", [b"hello", b"", b"\x00\xff" * 200, b"x" * 70_000])
async def test_body_is_stored_byte_for_byte_in_one_data_section(world: World, body: bytes) -> None:
    response = await world.call(body=body)
    assert (response.status, response.body) == (201, b"")
    assert world.one().raw == encode_message(Message(body=DataBody([body])))


async def test_event_is_what_the_same_one_over_amqp_is(world: World) -> None:
    await world.call(
        headers={
            "Content-Type": "application/json",
            "BrokerProperties": '{"PartitionKey":"k","MessageId":"m","Label":"s"}',
            "DeviceId": "7",
        }
    )
    assert world.one().raw == encode_message(
        Message(
            message_annotations={Symbol(KEY): "k"},
            properties=Properties(message_id="m", subject="s", content_type="application/json"),
            application_properties={"DeviceId": "7"},
            body=DataBody([b"hello"]),
        )
    )


async def test_events_without_a_key_go_round(world: World) -> None:
    for _ in range(8):
        assert (await world.call()).status == 201
    assert [event.partition for event in world.stored()] == [0, 0, 1, 1, 2, 2, 3, 3]


async def test_partition_in_the_path_decides_even_over_a_key(world: World) -> None:
    await world.call("/events/partitions/2/messages", headers=broker_properties(PartitionKey="k"))
    assert world.one().partition == 2
    assert world.one().message.message_annotations == {KEY: "k"}


@pytest.mark.parametrize("key", ["k", "", "Gerät", "0123456789" * 12 + "12345678", "\x00"])
async def test_partition_key_decides(world: World, key: str) -> None:
    await world.call(headers=broker_properties(PartitionKey=key))
    assert world.one().partition == partition_for_key(key, 4)
    assert world.one().message.message_annotations == {KEY: key}


async def test_hub_name_may_hold_a_slash(world: World) -> None:
    token = world.token("https://contoso.example.net/plant/line")
    assert (await world.call("/Plant/Line/Messages/", token=token)).status == 201
    assert len(world.stored("hub1")) == 1


# --- publishers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["publishers", "publisher", "Publishers"])
async def test_publisher_gives_its_name_to_the_event(world: World, word: str) -> None:
    await world.call(f"/events/{word}/Device-1/messages")
    event = world.one()
    assert event.partition == partition_for_key("Device-1", 4)
    assert event.message.message_annotations == {KEY: "Device-1", "x-opt-publisher": "Device-1"}


async def test_publisher_may_repeat_its_name_as_the_key(world: World) -> None:
    response = await world.call(
        "/events/publishers/dev/messages", headers=broker_properties(PartitionKey="dev")
    )
    assert response.status == 201


async def test_publisher_with_another_key_is_refused(world: World) -> None:
    response = await world.call(
        "/events/publishers/dev/messages", headers=broker_properties(PartitionKey="other")
    )
    assert response.status == 400
    assert "another partition key than its publisher's name" in response.detail
    assert world.stored() == []


# --- BrokerProperties ---------------------------------------------------------------------------


async def test_every_broker_property_finds_its_place(world: World) -> None:
    await world.call(
        headers=broker_properties(
            MessageId="id",
            CorrelationId="correlation",
            Label="label",
            To="to",
            ReplyTo="reply",
            SessionId="session",
            ReplyToSessionId="reply session",
            ContentType="text/x",
        )
    )
    assert world.one().message.properties == Properties(
        message_id="id",
        correlation_id="correlation",
        subject="label",
        to="to",
        reply_to="reply",
        group_id="session",
        reply_to_group_id="reply session",
        content_type="text/x",
    )
    assert world.one().message.message_annotations is None


async def test_request_content_type_wins_over_the_broker_property(world: World) -> None:
    headers = broker_properties(ContentType="text/x") | {"Content-Type": "text/y; charset=utf-8"}
    await world.call(headers=headers)
    properties = world.one().message.properties
    assert properties is not None
    assert properties.content_type == "text/y; charset=utf-8"


async def test_content_encoding_is_kept_and_the_body_not_touched(world: World) -> None:
    await world.call(body=b"\x1f\x8b??", headers={"Content-Encoding": "gzip"})
    properties = world.one().message.properties
    assert properties is not None
    assert properties.content_encoding == "gzip"
    assert world.one().body == b"\x1f\x8b??"


@pytest.mark.parametrize(
    "given",
    [
        "{}",
        '{"TimeToLive":10,"State":"Active","ScheduledEnqueueTimeUtc":"x","Unknown":[{}]}',
        '{"PartitionKey":null,"MessageId":null}',
        '{"partitionkey":"names are exact"}',
        ' {"LockToken" : 1.5e3} ',
    ],
)
async def test_broker_properties_without_a_meaning_are_passed_over(
    world: World, given: str
) -> None:
    assert (await world.call(headers={"BrokerProperties": given})).status == 201
    assert world.one().raw == encode_message(Message(body=DataBody([b"hello"])))


async def test_last_of_two_equal_names_counts(world: World) -> None:
    await world.call(headers={"BrokerProperties": '{"PartitionKey":"a","PartitionKey":"b"}'})
    assert world.one().message.message_annotations == {KEY: "b"}


@pytest.mark.parametrize(
    "given",
    [
        *("", "[]", "null", "1", '"x"', "{", "nonsense", '{"PartitionKey":"a"} x'),
        *('{"PartitionKey":1}', '{"PartitionKey":["a"]}', '{"MessageId":true}', '{"To":{}}'),
        *('{"Label":NaN}', '{"PartitionKey":"\\ud800"}', '{"Other":NaN}', '{"Other":1e999}x'),
        '{"Other":' + "[" * 20_000 + "]" * 20_000 + "}",
        '{"Other":' + '{"a":' * 20_000,
        '{"PartitionKey":"\xff"}',  # Latin-1, not UTF-8
        '{"PartitionKey":"' + "k" * 129 + '"}',
        '{"ContentType":"t\\u00e9"}',
    ],
)
async def test_broker_properties_that_cannot_be_read_are_refused(world: World, given: str) -> None:
    response = await world.call(headers={"BrokerProperties": given})
    assert response.status == 400
    assert len(response.detail) < 500
    assert world.stored() == []


# --- headers ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b"plain", "plain"),
        (b'"quoted"', "quoted"),
        (b'"with \\"quotes\\" and \\\\"', 'with "quotes" and \\'),
        (b'""', ""),
        (b'"', '"'),
        (b'"open', '"open'),
        (b"", ""),
        (b"42", "42"),  # no type is guessed
        (b"true", "true"),
        (b"Ger\xc3\xa4t", "Gerät"),
        (b"Ger\xe4t", "Gerät"),
        (b"x" * 300, "x" * 300),
    ],
)
async def test_custom_header_becomes_a_string_property(
    world: World, value: bytes, text: str
) -> None:
    await world.call(headers=[(b"X-Own", value)])
    assert world.one().message.application_properties == {"X-Own": text}


async def test_headers_of_the_request_become_no_properties(world: World) -> None:
    names = (
        *("Accept", "Accept-Encoding", "Cache-Control", "Connection", "Cookie", "Date", "Expect"),
        *("From", "If-Match", "Origin", "Pragma", "Range", "Referer", "Sec-Fetch-Mode", "TE"),
        *("Upgrade", "User-Agent", "Via", "X-Forwarded-For", "x-ms-retrypolicy", "Keep-Alive"),
        *("x-ms-client-request-id", "Proxy-Connection"),
    )
    await world.call(headers=dict.fromkeys(names, "x"))
    assert world.one().message.application_properties is None


@pytest.mark.parametrize("value", ["u=3", "u=1, i", "i", "u=0, i=?0"])
async def test_priority_of_http_becomes_no_property(world: World, value: str) -> None:
    await world.call(headers={"priority": value})
    assert world.one().message.application_properties is None


@pytest.mark.parametrize("value", ["High", "1", '"u=3"'])
async def test_priority_of_the_event_becomes_a_property(world: World, value: str) -> None:
    """The documents' own example of a property sends `Priority: High`."""
    await world.call(headers={"Priority": value})
    assert world.one().message.application_properties == {"Priority": value.strip('"')}


async def test_property_has_the_name_as_the_client_wrote_it(world: World) -> None:
    await world.call(headers={"deviceID": "1", "OTHER": "2"})
    assert world.one().message.application_properties == {"deviceID": "1", "OTHER": "2"}


async def test_property_has_a_lower_case_name_when_the_server_kept_no_other(world: World) -> None:
    await world.call(headers={"deviceID": "1"}, names=False)
    assert world.one().message.application_properties == {"deviceid": "1"}


async def test_header_that_comes_twice_is_one_list(world: World) -> None:
    await world.call(headers=[(b"Tag", b'"a"'), (b"Tag", b"b"), (b"tag", b"c")])
    assert world.one().message.application_properties == {"Tag": "a, b", "tag": "c"}


@pytest.mark.parametrize(
    "name", ["Host", "Authorization", "Content-Type", "Content-Length", "BrokerProperties"]
)
async def test_header_that_decides_may_not_come_twice(world: World, name: str) -> None:
    pairs = [(name.encode(), b"{}"), (name.lower().encode(), b"{}")]
    response = await world.call(headers=pairs)
    assert response.status == 400
    assert f"{name.lower()} comes more than once" in response.detail


async def test_content_type_that_is_not_ascii_is_refused(world: World) -> None:
    response = await world.call(headers={"Content-Type": "text/\xe4"})
    assert response.status == 400
    assert "is not ASCII" in response.detail
