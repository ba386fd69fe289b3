"""Messages of `$cbs` and `$management`: written canonically, read in any order."""

from __future__ import annotations

import itertools
import uuid

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.amqp import types as t
from penstock.amqp.decoder import SMALL, DecodeLimits
from penstock.amqp.encoder import encode
from penstock.amqp.errors import AmqpDecodeError, LocalError
from penstock.amqp.message import (
    DataBody,
    Message,
    MessageId,
    Properties,
    SequenceBody,
    ValueBody,
    decode_message,
    encode_message,
)

ID = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")

HEADER = "005370 c0 02 01 41"
DELIVERY = "005371 c1 06 02 a3 01 64 54 01"
ANNOTATIONS = "005372 c1 06 02 a3 01 6d 55 02"
PROPERTIES = "005373 c0 10 0d a1 01 69" + "40" * 12
NAMED = "005374 c1 06 02 a1 01 61 54 03"
DATA = "005375 a0 02 6869"
SEQUENCE = "005376 c0 02 01 41"
VALUE = "005377 a1 01 76"
FOOTER = "005378 c1 05 02 a3 01 66 40"

SECTIONS = {
    "header": HEADER,
    "delivery_annotations": DELIVERY,
    "message_annotations": ANNOTATIONS,
    "properties": PROPERTIES,
    "application_properties": NAMED,
    "body": VALUE,
    "footer": FOOTER,
}

WHOLE = Message(
    header=[True],
    delivery_annotations={"d": t.Int(1)},
    message_annotations={"m": t.Long(2)},
    properties=Properties(message_id="i"),
    application_properties={"a": t.Int(3)},
    body=ValueBody("v"),
    footer={"f": None},
)


def hexed(*parts: str) -> bytes:
    return b"".join(bytes.fromhex(part) for part in parts)


# --- writing ---------------------------------------------------------------------------------


def test_message_is_written_in_the_order_of_the_specification() -> None:
    assert encode_message(WHOLE).hex(" ") == hexed(*SECTIONS.values()).hex(" ")


def test_empty_message_has_no_bytes() -> None:
    assert encode_message(Message()) == b""
    assert decode_message(b"") == Message()


@pytest.mark.parametrize("name", SECTIONS)
def test_section_stands_alone(name: str) -> None:
    message = Message()
    setattr(message, name, getattr(WHOLE, name))
    assert encode_message(message) == bytes.fromhex(SECTIONS[name])
    assert decode_message(bytes.fromhex(SECTIONS[name])) == message


@pytest.mark.parametrize("code", range(0x70, 0x79))
def test_every_section_descriptor_is_a_smallulong(code: int) -> None:
    """E1, which azure-eventhub reads by position."""
    message = {
        0x75: Message(body=DataBody([b"x"])),
        0x76: Message(body=SequenceBody([[1]])),
    }.get(code, WHOLE)
    assert bytes((0x00, 0x53, code)) in encode_message(message)


def test_put_token_answer_is_written_as_the_service_does() -> None:
    """protocol.md 13: correlation-id only, int status-code, string keys, no body section."""
    answer = Message(
        properties=Properties(correlation_id=t.Ulong(1)),
        application_properties={"status-code": t.Int(202), "status-description": "Accepted"},
    )
    expected = (
        hexed("005373 c0 0f 0d", "40" * 5, "53 01", "40" * 7)
        + hexed("005374 c1 31 04 a1 0b")
        + b"status-code"
        + hexed("71 000000ca a1 12")
        + b"status-description"
        + hexed("a1 08")
        + b"Accepted"
    )
    assert encode_message(answer).hex(" ") == expected.hex(" ")


def test_management_answer_has_an_array_of_str32() -> None:
    """E18 and protocol.md 13."""
    answer = Message(body=ValueBody({"partition_ids": t.Array(["0", "1"])}))
    assert encode_message(answer) == hexed("005377 c1 1e 02 a1 0d") + b"partition_ids" + hexed(
        "e0 0c 02 b1 00000001 30 00000001 31"
    )


def test_keys_get_the_type_their_section_wants() -> None:
    message = Message(
        delivery_annotations={"k": 1},
        message_annotations={"k": 1, t.Ulong(7): 2},
        application_properties={t.Symbol("k"): 1},
        footer={"k": 1},
    )
    data = encode_message(message)
    assert data.count(b"\xa3\x01k") == 3
    assert data.count(b"\xa1\x01k") == 1
    assert decode_message(data) == message


def test_data_and_sequence_bodies_have_a_section_each() -> None:
    data = Message(body=DataBody([b"hi", b"", b"x" * 256]))
    assert encode_message(data) == hexed(DATA, "005375 a0 00", "005375 b0 00000100" + "78" * 256)
    sequence = Message(body=SequenceBody([[True], []]))
    assert encode_message(sequence) == hexed(SEQUENCE, "005376 45")
    for message in (data, sequence):
        assert decode_message(encode_message(message)) == message


def test_null_value_is_a_body_and_no_body_is_none() -> None:
    assert encode_message(Message(body=ValueBody(None))) == hexed("005377 40")
    assert decode_message(hexed("005377 40")).body == ValueBody(None)
    assert decode_message(hexed(NAMED)).body is None


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (Message(properties=Properties(message_id=-1)), r"properties\.message_id"),
        (Message(properties=Properties(message_id=True)), r"properties\.message_id"),
        (Message(properties=Properties(correlation_id=2**64)), r"properties\.correlation_id"),
        (Message(properties=Properties(to="\ud800")), r"properties\.to"),
        (Message(properties=Properties(content_type="é")), r"properties\.content_type"),
        (Message(properties=Properties(creation_time=2**63)), r"properties\.creation_time"),
        (Message(properties=Properties(group_sequence=2**32)), r"properties\.group_sequence"),
        (Message(message_annotations={"é": 1}), "ASCII"),
        (Message(body=ValueBody(object())), "object is no AMQP type"),
        (Message(header=[object()]), "object is no AMQP type"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_message_that_cannot_be_written_is_refused(message: Message, reason: str) -> None:
    with pytest.raises(LocalError, match=reason):
        encode_message(message)


def test_time_that_is_no_int_is_refused() -> None:
    properties = Properties()
    setattr(properties, "creation_time", "12")  # noqa: B010  (past mypy)
    with pytest.raises(LocalError, match=r"properties\.creation_time cannot be a str"):
        encode_message(Message(properties=properties))


def test_application_properties_need_str_keys() -> None:
    message = decode_message(hexed("005372 c1 04 02 53 07 40"))  # annotations may have ulong keys
    message.application_properties = message.message_annotations
    with pytest.raises(LocalError, match="application-properties"):
        encode_message(message)


# --- properties ------------------------------------------------------------------------------

FULL = Properties(
    message_id=ID,
    user_id=b"u",
    to="to",
    subject="s",
    reply_to="r",
    correlation_id=b"c",
    content_type="text/plain",
    content_encoding="gzip",
    absolute_expiry_time=1,
    creation_time=-1,
    group_id="g",
    group_sequence=7,
    reply_to_group_id="rg",
)


def test_properties_have_thirteen_fields_in_order() -> None:
    expected = hexed(
        "005373 c0 4f 0d",
        "98 00112233445566778899aabbccddeeff",
        "a0 01 75",
        "a1 02 746f",
        "a1 01 73",
        "a1 01 72",
        "a0 01 63",
        "a3 0a 746578742f706c61696e",
        "a3 04 677a6970",
        "83 0000000000000001",
        "83 ffffffffffffffff",
        "a1 01 67",
        "52 07",
        "a1 02 7267",
    )
    assert encode_message(Message(properties=FULL)).hex(" ") == expected.hex(" ")
    assert decode_message(expected).properties == FULL


@pytest.mark.parametrize(
    ("encoded", "value"),
    [
        ("98 00112233445566778899aabbccddeeff", ID),  # azure-eventhub for Python
        ("53 01", t.Ulong(1)),  # Java
        ("44", t.Ulong(0)),
        ("80 ffffffffffffffff", t.Ulong(2**64 - 1)),
        ("a1 08 7265717565737431", "request1"),  # JavaScript, Go, Spark's connector
        ("a0 02 0001", b"\x00\x01"),
    ],
)
def test_message_id_becomes_a_correlation_id_of_the_same_type(
    encoded: str, value: MessageId
) -> None:
    """E16: each client compares typed values."""
    id_bytes = bytes.fromhex(encoded)
    request = decode_message(b"\x00\x53\x73\xc0" + bytes((len(id_bytes) + 1, 1)) + id_bytes)
    assert request.properties is not None
    assert request.properties.message_id == value
    assert type(request.properties.message_id) is type(value)
    answer = Message(properties=Properties(correlation_id=request.properties.message_id))
    data = encode_message(answer)
    assert data == b"\x00\x53\x73\xc0" + bytes((len(id_bytes) + 13, 13)) + b"\x40" * 5 + (
        id_bytes + b"\x40" * 7
    )


def test_plain_int_as_message_id_is_a_ulong() -> None:
    properties = Properties(message_id=7)
    assert b"\x0d\x53\x07" in encode_message(Message(properties=properties))


@pytest.mark.parametrize("encoded", ["54 07", "55 07", "52 07"])
def test_message_id_of_another_integer_type_keeps_it(encoded: str) -> None:
    message = decode_message(hexed("005373 c0 03 01", encoded))
    assert bytes.fromhex(encoded) in encode_message(message)


@pytest.mark.parametrize("encoded", ["41", "45", "c1 01 00", "82 3ff8000000000000", "00 53 01 40"])
def test_message_id_of_a_foreign_type_is_refused(encoded: str) -> None:
    id_bytes = bytes.fromhex(encoded)
    with pytest.raises(AmqpDecodeError, match=r"properties\.message_id"):
        decode_message(b"\x00\x53\x73\xc0" + bytes((len(id_bytes) + 1, 1)) + id_bytes)


def test_short_and_empty_properties_are_read() -> None:
    assert decode_message(hexed("005373 45")).properties == Properties()
    assert decode_message(hexed("005373 c0 05 03 40 40 a1 00")).properties == Properties(to="")


IDS = st.one_of(
    st.uuids(), st.integers(0, 2**64 - 1).map(t.Ulong), st.text("abc"), st.binary(max_size=300)
)


@settings(deadline=None)
@given(IDS, IDS)
def test_ids_survive_with_their_type(message_id: MessageId, correlation_id: MessageId) -> None:
    properties = Properties(message_id=message_id, correlation_id=correlation_id)
    seen = decode_message(encode_message(Message(properties=properties))).properties
    assert seen == properties
    assert type(seen.message_id) is type(message_id)
    assert type(seen.correlation_id) is type(correlation_id)


# --- reading ---------------------------------------------------------------------------------


def test_sections_are_read_in_any_order() -> None:
    """azure-eventhub for Python writes delivery annotations last (protocol.md 4.6)."""
    parts = [bytes.fromhex(text) for text in SECTIONS.values()]
    for order in itertools.islice(itertools.permutations(parts), 0, None, 97):
        assert decode_message(b"".join(order)) == WHOLE
    assert decode_message(b"".join(reversed(parts))) == WHOLE


@pytest.mark.parametrize(
    ("name", "symbol"),
    [
        ("header", "amqp:header:list"),
        ("delivery_annotations", "amqp:delivery-annotations:map"),
        ("message_annotations", "amqp:message-annotations:map"),
        ("properties", "amqp:properties:list"),
        ("application_properties", "amqp:application-properties:map"),
        ("body", "amqp:amqp-value:*"),
        ("footer", "amqp:footer:map"),
    ],
)
def test_section_with_a_symbolic_or_wide_descriptor_is_read(name: str, symbol: str) -> None:
    section = bytes.fromhex(SECTIONS[name])
    symbolic = encode(t.Described(symbol, t.Raw(section[3:])))
    wide = b"\x00\x80" + bytes(7) + section[2:]
    assert decode_message(symbolic) == decode_message(wide) == decode_message(section)
    assert getattr(decode_message(symbolic), name) == getattr(WHOLE, name)


@pytest.mark.parametrize("symbol", ["amqp:data:binary", "amqp:amqp-sequence:list"])
def test_repeatable_section_with_a_symbolic_descriptor_is_read(symbol: str) -> None:
    body: object = b"hi" if "data" in symbol else [1]
    section = encode(t.Described(symbol, body))
    expected = DataBody([b"hi", b"hi"]) if "data" in symbol else SequenceBody([[1], [1]])
    assert decode_message(section * 2).body == expected


@pytest.mark.parametrize("name", SECTIONS)
def test_section_twice_is_refused(name: str) -> None:
    with pytest.raises(AmqpDecodeError, match="twice"):
        decode_message(bytes.fromhex(SECTIONS[name]) * 2)


@pytest.mark.parametrize(
    "sections", list(itertools.permutations((DATA, SEQUENCE, VALUE), 2)), ids=lambda s: s[0][:6]
)
def test_mixed_body_is_refused(sections: tuple[str, str]) -> None:
    with pytest.raises(AmqpDecodeError, match="another kind of body"):
        decode_message(hexed(*sections))


def test_data_sections_need_not_be_neighbours() -> None:
    message = decode_message(hexed(DATA, NAMED, DATA))
    assert message.body == DataBody([b"hi", b"hi"])


@pytest.mark.parametrize(
    "text",
    [
        "40",  # no section
        "005379 40",  # no such section
        "005310 45",  # a performative
        "005370 c1 01 00",  # header that is a map
        "005370 40",
        "005371 45",  # annotations that are a list
        "005372 40",
        "005373 c1 01 00",
        "005373 40",
        "005373 c0 0f 0e" + "40" * 14,  # a fourteenth property
        "005373 c0 04 03 40 40 43",  # `to` that is no string
        "005373 c0 0b 09" + "40" * 8 + "55 01",  # an expiry that is no timestamp
        "005374 45",
        "005374 c1 03 02 43 40",  # application properties keyed by uint
        "005375 a1 00",  # data that is a string
        "005375 40",
        "005376 40",
        "005376 e0 02 00 40",  # an array is no list
        "005378 45",
        "0040 40",
        "00 a3 01 78 40",  # unknown symbol
        "00 a1 11 616d71703a686561646572 45",
        DATA + "00",
        DATA + "ff",
        "00",
        "0053",
        "005377",
        "00 80 00000000",
    ],
)
def test_message_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(AmqpDecodeError):
        decode_message(bytes.fromhex(text))


def test_refusal_names_the_section() -> None:
    with pytest.raises(AmqpDecodeError, match=r"properties:list: properties\.to: constructor 0x43"):
        decode_message(hexed("005373 c0 04 03 40 40 43"))


def test_message_cut_inside_a_section_is_refused() -> None:
    data = encode_message(WHOLE)
    ends = set(itertools.accumulate(len(bytes.fromhex(text)) for text in SECTIONS.values()))
    for cut in range(1, len(data)):
        if cut in ends:
            assert decode_message(data[:cut]) is not None
        else:
            with pytest.raises(AmqpDecodeError):
                decode_message(data[:cut])


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_are_a_message_or_refused(data: bytes) -> None:
    try:
        decode_message(data)
    except AmqpDecodeError as error:
        assert str(error)


@settings(deadline=None)
@given(st.sampled_from(range(0x70, 0x79)), st.binary(max_size=40))
def test_any_section_is_read_or_refused(code: int, contents: bytes) -> None:
    try:
        message = decode_message(bytes((0, 0x53, code)) + contents)
    except AmqpDecodeError:
        return
    assert decode_message(encode_message(message)) == message


def test_limits_bound_all_sections_together() -> None:
    section = encode(t.Described(0x76, [None] * 10))
    assert decode_message(section * 2, limits=DecodeLimits(elements_max=22)).body is not None
    with pytest.raises(AmqpDecodeError, match="more elements in all"):
        decode_message(section * 2, limits=DecodeLimits(elements_max=21))


def test_sections_count_as_elements() -> None:
    """64 KB of empty data sections are 13,000 values."""
    section = encode(t.Described(0x75, b""))
    assert decode_message(section * 512, limits=SMALL).body == DataBody([b""] * 512)
    with pytest.raises(AmqpDecodeError, match="more elements in all"):
        decode_message(section * 513, limits=SMALL)


def test_repr_shows_no_contents() -> None:
    """The body of put-token is a token; so is `security_token`."""
    message = Message(
        body=ValueBody("SharedAccessSignature sig=hunter2"),
        application_properties={"security_token": "hunter2"},
    )
    assert repr(message) == "Message(application_properties, body)"
    for body in (message.body, DataBody([b"hunter2"]), SequenceBody([["hunter2"]])):
        assert "hunter2" not in repr(body)
