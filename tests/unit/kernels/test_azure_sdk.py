"""The official SDK's own codec as a second opinion on what the kernels take and deliver."""

from __future__ import annotations

import datetime
import struct
import uuid
from typing import Any

import pytest

from penstock.kernels import frame_events, split_batch, split_singles

decoder = pytest.importorskip("azure.eventhub._pyamqp._decode")
encoder = pytest.importorskip("azure.eventhub._pyamqp._encode")
eventhub = pytest.importorskip("azure.eventhub")
transports = pytest.importorskip("azure.eventhub._transport._pyamqp_transport")

PROPERTIES = {
    "int": 1,
    "text": "größe",
    "bytes": b"\x00\xff",
    "true": True,
    "false": False,
    "uuid": uuid.UUID(int=7),
    "float": 1.5,
    "none": None,
    "time": datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC),
    "empty": "",
}


def encoded(message: Any) -> bytes:
    output = bytearray()
    encoder.encode_payload(output, message)
    return bytes(output)


def event(number: int, *, delivery_annotations: bool = False) -> Any:
    made = eventhub.EventData(b"body %d" % number)
    made.properties = PROPERTIES | {"number": number}
    made.message_id = f"message-{number}"
    made.content_type = "application/json"
    if delivery_annotations:
        made.raw_amqp_message.delivery_annotations = {"seen": number}
        made.raw_amqp_message.annotations = {"own": [1, "two"]}
    return made


def single(made: Any) -> bytes:
    transport = transports.PyamqpTransport
    return encoded(transport.to_outgoing_amqp_message(made.raw_amqp_message))


def batch(events: list[Any], key: str | None) -> bytes:
    made = eventhub.EventDataBatch(partition_key=key, amqp_transport=transports.PyamqpTransport)
    for one in events:
        made.add(one)
    return encoded(made._message)


def delivered(sections: bytes, frame_bytes_max: int) -> list[Any]:
    framed = frame_events(
        sections,
        0,
        events_max=100,
        frames_max=100,
        bytes_max=1 << 20,
        channel=1,
        handle=2,
        delivery_id=5,
        frame_bytes_max=frame_bytes_max,
        sequence=100,
        base_offset=5_000,
        enqueued_ms=1_234,
        runtime=b"",
    )
    messages: list[Any] = []
    payload = b""
    position = 0
    while position < len(framed.data):
        (size,) = struct.unpack_from(">I", framed.data, position)
        frame = memoryview(framed.data)[position + 8 : position + size]
        kind, fields = decoder.decode_frame(frame)
        assert kind == 20
        handle, delivery_id, tag, message_format, settled, more = fields[:6]
        assert (handle, delivery_id) == (2, 5 + len(messages))
        assert (tag, message_format, settled) == (b"", 0, True)
        assert fields[6:11] == [None, None, None, None, True]
        payload += bytes(fields[11])
        if not more:
            messages.append(decoder.decode_payload(memoryview(payload)))
            payload = b""
        position += size
    return messages


def assert_delivered(message: Any, sent: bytes, number: int, key: str | None) -> None:
    before = decoder.decode_payload(memoryview(sent))
    annotations = message.message_annotations
    assert annotations[b"x-opt-sequence-number"] == 100 + number
    assert annotations[b"x-opt-sequence-number-epoch"] == -1
    assert annotations[b"x-opt-enqueued-time"] == 1_234
    assert annotations.get(b"x-opt-partition-key") == (None if key is None else key.encode())
    assert message.application_properties == before.application_properties
    assert message.properties == before.properties
    assert message.data == before.data == [b"body %d" % number]
    assert message.delivery_annotations == before.delivery_annotations


@pytest.mark.parametrize("key", [None, "key", "schlüssel"])
@pytest.mark.parametrize("frame_bytes_max", [512, 65_536])
def test_batch_of_the_sdk_comes_back_to_the_sdk(key: str | None, frame_bytes_max: int) -> None:
    events = [event(number) for number in range(5)]
    data = batch(events, key)
    publication = split_batch(data, 0, len(data))

    assert publication.count == 5
    assert publication.partition_key == key
    assert data.endswith(publication.sections)  # canonical as it comes
    messages = delivered(publication.sections, frame_bytes_max)
    for number, message in enumerate(messages):
        assert_delivered(message, single(event(number)), number, key)


def test_delivery_annotations_that_the_sdk_writes_last_come_back() -> None:
    sent = [single(event(number, delivery_annotations=number == 1)) for number in range(3)]
    bounds: list[int] = []
    for message in sent:
        start = bounds[-1] if bounds else 0
        bounds += [start, start + len(message)]
    (publication,) = split_singles(b"".join(sent), bounds)

    assert publication.count == 3
    messages = delivered(publication.sections, 65_536)  # type: ignore[union-attr] # not refused
    for number, message in enumerate(messages):
        assert_delivered(message, sent[number], number, None)
    assert messages[1].delivery_annotations == {b"seen": 1}
    assert messages[1].message_annotations[b"own"] == [1, b"two"]
