"""Events become sections of a batch: what AMQP's own encoder makes of them, or nothing."""

from __future__ import annotations

import struct
import uuid
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.amqp.message import DataBody, Message, encode_message
from penstock.amqp.types import Symbol, Uint
from penstock.kernels import append_event, split_batch
from penstock.kernels._pure import producer_batch as pure

KEY = bytes.fromhex("00 53 72 c1 19 02 a3 13") + b"x-opt-partition-key" + b"\xa1\x01a"
FIELDS = bytes.fromhex("00 53 73 c0 04 01 a1 01") + b"m"

values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.text(max_size=300),
    st.binary(max_size=300),
)
unusual = st.one_of(
    st.integers(2**63, 2**70),
    st.integers(-(2**70), -(2**63) - 1),
    st.sampled_from([Uint(1), Symbol("a"), [], {}, uuid.UUID(int=1), "\ud800"]),
    st.just(datetime(2026, 1, 1, tzinfo=UTC)),
)


def appended(
    properties: dict[str, object] | None,
    body: bytes,
    *,
    before: bytes = b"",
    annotations: bytes = b"",
    fields: bytes = b"",
) -> bytes | None:
    out = bytearray(before)
    done = append_event(out, annotations, fields, properties, body)
    expected = bytearray(before)
    assert pure.append_event(expected, annotations, fields, properties, body) is done
    assert out == expected
    if not done:
        assert out == before
        return None
    return bytes(out)


def section(message: bytes) -> bytes:
    if len(message) < 256:
        return b"\x00\x53\x75\xa0" + bytes((len(message),)) + message
    return b"\x00\x53\x75\xb0" + struct.pack(">I", len(message)) + message


@given(st.dictionaries(st.text(max_size=40), values, max_size=8), st.binary(max_size=600))
def test_usual_events_are_encoded_as_by_the_amqp_encoder(
    properties: dict[str, object], body: bytes
) -> None:
    message = Message(application_properties=properties or None, body=DataBody([body]))
    assert appended(properties, body) == section(encode_message(message))


@given(
    st.dictionaries(st.text(max_size=5), values, max_size=4),
    st.text(max_size=5),
    unusual,
    st.binary(max_size=9),
)
def test_unusual_values_are_left_to_the_caller(
    properties: dict[str, object], name: str, value: object, body: bytes
) -> None:
    assert appended(properties | {name: value}, body, before=b"before") is None


@pytest.mark.parametrize("name", [1, None, b"a", Symbol("a"), "\ud800"])
def test_names_that_are_no_plain_text_are_left_to_the_caller(name: object) -> None:
    properties: dict[str, object] = {}
    properties[name] = 1  # type: ignore[index]  # what a caller may do
    assert appended(properties, b"x") is None


@pytest.mark.parametrize("size", [0, 1, 240, 250, 251, 252, 255, 256, 65536])
@pytest.mark.parametrize("count", [0, 1, 126, 127, 128, 200])
def test_lengths_are_as_short_as_they_can_be(size: int, count: int) -> None:
    properties: dict[str, object] = {f"{i}": None for i in range(count)}
    message = Message(application_properties=properties or None, body=DataBody([bytes(size)]))
    assert appended(properties, bytes(size)) == section(encode_message(message))


@pytest.mark.parametrize("length", range(245, 256))
def test_maps_change_their_form_where_the_encoder_changes_it(length: int) -> None:
    properties: dict[str, object] = {"a": "x" * length}
    message = Message(application_properties=properties, body=DataBody([b""]))
    assert appended(properties, b"") == section(encode_message(message))


def test_sections_given_stand_in_front() -> None:
    out = appended({"n": 1}, b"body", before=b"head", annotations=KEY, fields=FIELDS)
    rest = bytes.fromhex("00 53 74 c1 06 02 a1 01 6e 55 01") + b"\x00\x53\x75\xa0\x04body"
    assert out == b"head" + section(KEY + FIELDS + rest)


def test_batches_made_so_are_split_again() -> None:
    out = bytearray()
    for i in range(100):
        assert append_event(out, KEY, b"", {"i": i}, b"x" * (7 * i))
    publication = split_batch(bytes(out), 0, len(out))
    assert publication.count == 100
    assert publication.partition_key == "a"
    assert publication.sections == out  # stored as it came


def test_events_beyond_any_publication_are_left_to_the_caller() -> None:
    assert appended(None, bytes(pure.EVENT_BYTES_MAX + 1)) is None
    assert appended(None, bytes(pure.EVENT_BYTES_MAX - 4)) is None
    many: dict[str, object] = {str(i): bytes(1024 * 1024) for i in range(65)}
    assert appended(many, b"") is None


def test_buffers_that_are_being_looked_at_are_not_resized() -> None:
    out = bytearray(b"abc")
    with memoryview(out), pytest.raises(BufferError):
        append_event(out, b"", b"", None, b"x")
    assert out == b"abc"
