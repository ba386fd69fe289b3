"""Frame headers byte by byte, every malformed header, and frames cut to the peer's limit."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.amqp.errors import AmqpError, FramingError, LocalError
from penstock.amqp.frames import (
    AMQP_FRAME,
    AMQP_HEADER,
    EMPTY_FRAME,
    FRAME_HEADER_BYTES,
    SASL_FRAME,
    SASL_HEADER,
    TLS_HEADER,
    encode_fitting_frame,
    encode_frame,
    parse_frame_header,
)
from penstock.amqp.performatives import (
    Accepted,
    Close,
    Detach,
    Disposition,
    End,
    Error,
    Open,
    Performative,
    Rejected,
    decode_performative,
    encode_performative,
)


def header(size: int, doff: int = 2, frame_type: int = 0, channel: int = 0) -> bytes:
    return size.to_bytes(4, "big") + bytes((doff, frame_type)) + channel.to_bytes(2, "big")


def test_protocol_headers_are_those_of_the_specification() -> None:
    assert AMQP_HEADER == b"AMQP\x00\x01\x00\x00"
    assert TLS_HEADER == b"AMQP\x02\x01\x00\x00"
    assert SASL_HEADER == b"AMQP\x03\x01\x00\x00"
    assert {len(AMQP_HEADER), len(TLS_HEADER), len(SASL_HEADER)} == {8}


def test_empty_frame_is_eight_bytes_on_channel_zero() -> None:
    assert bytes.fromhex("00000008 02 00 0000") == EMPTY_FRAME
    assert encode_frame(0, b"") == EMPTY_FRAME


def test_encode_frame_puts_size_doff_type_channel_body_payload() -> None:
    frame = encode_frame(0x1234, b"\xaa\xbb", b"\xcc")
    assert frame == bytes.fromhex("0000000b 02 00 1234 aabb cc")


def test_encode_frame_marks_sasl_frames() -> None:
    assert encode_frame(0, b"\xaa", frame_type=SASL_FRAME) == bytes.fromhex(
        "00000009 02 01 0000 aa"
    )


@pytest.mark.parametrize("channel", [-1, 0x10000])
def test_encode_frame_refuses_a_channel_outside_16_bits(channel: int) -> None:
    with pytest.raises(LocalError, match=str(channel)):
        encode_frame(channel, b"")


def test_encode_frame_takes_the_last_channel() -> None:
    assert encode_frame(0xFFFF, b"")[6:8] == b"\xff\xff"


@settings(deadline=None)
@given(
    st.integers(0, 0xFFFF), st.binary(max_size=50), st.binary(max_size=50), st.sampled_from((0, 1))
)
def test_parse_frame_header_reads_what_encode_frame_wrote(
    channel: int, body: bytes, payload: bytes, frame_type: int
) -> None:
    frame = encode_frame(channel, body, payload, frame_type=frame_type)
    size, body_start, seen_type, seen_channel = parse_frame_header(frame, 0, frame_bytes_max=512)
    assert size == len(frame)
    assert frame[body_start:size] == body + payload
    assert (seen_type, seen_channel) == (frame_type, channel)


def test_parse_frame_header_works_in_the_middle_of_a_bytearray() -> None:
    stream = bytearray(b"...." + encode_frame(7, b"body") + b"next")
    size, body_start, frame_type, channel = parse_frame_header(stream, 4, frame_bytes_max=512)
    assert (size, body_start, frame_type, channel) == (12, 12, AMQP_FRAME, 7)
    assert bytes(stream[body_start : 4 + size]) == b"body"


def test_parse_frame_header_skips_the_extended_header() -> None:
    frame = header(16, doff=3) + b"EXT!" + b"body"
    assert parse_frame_header(frame, 0, frame_bytes_max=512) == (16, 12, AMQP_FRAME, 0)


def test_parse_frame_header_needs_only_the_header_to_judge_the_size() -> None:
    assert parse_frame_header(header(512), 0, frame_bytes_max=512)[0] == 512


@pytest.mark.parametrize(
    ("data", "seen"),
    [
        (header(0), "size 0"),
        (header(7), "size 7"),
        (header(513), "size 513"),
        (header(0xFFFFFFFF), "size 4294967295"),
        (header(8, doff=0), "doff 0"),
        (header(8, doff=1), "doff 1"),
        (header(8, doff=3), "doff 3"),
        (header(11, doff=3), "doff 3"),
        (header(512, doff=255), "doff 255"),
        (header(8, frame_type=2), "type 2"),
        (header(8, frame_type=255), "type 255"),
        (AMQP_HEADER, "size 1095586128"),  # a second protocol header where a frame must be
        (b"GET / HT", "size"),
    ],
)
def test_parse_frame_header_refuses_and_says_what_it_saw(data: bytes, seen: str) -> None:
    with pytest.raises(FramingError, match=seen) as caught:
        parse_frame_header(data, 0, frame_bytes_max=512)
    assert caught.value.condition == "amqp:connection:framing-error"


@pytest.mark.parametrize(("length", "start"), [(0, 0), (7, 0), (15, 8), (8, 1), (8, -1)])
def test_parse_frame_header_blames_the_caller_when_the_header_is_not_there(
    length: int, start: int
) -> None:
    with pytest.raises(LocalError):
        parse_frame_header(bytes(length), start, frame_bytes_max=512)


@settings(deadline=None)
@given(st.binary(min_size=FRAME_HEADER_BYTES, max_size=16))
def test_parse_frame_header_answers_or_refuses_any_bytes(data: bytes) -> None:
    try:
        size, body_start, frame_type, channel = parse_frame_header(data, 0, frame_bytes_max=4096)
    except AmqpError as error:
        assert isinstance(error, FramingError)
    else:
        assert 8 <= body_start <= size <= 4096
        assert frame_type in (0, 1)
        assert 0 <= channel <= 0xFFFF


def build_error(text: str | None) -> Error:
    return Error(condition="amqp:internal-error", description=text)


def build_performatives_with_error(text: str | None) -> list[Performative]:
    return [
        Detach(handle=2**32 - 1, closed=True, error=build_error(text)),
        End(error=build_error(text)),
        Close(error=build_error(text)),
        Disposition(
            role=True,
            first=2**32 - 1,
            last=2**32 - 1,
            settled=True,
            state=Rejected(error=build_error(text)),
        ),
    ]


@given(text=st.text(max_size=3000), limit=st.integers(512, 2000))
def test_a_frame_never_exceeds_the_limit(text: str, limit: int) -> None:
    for performative in build_performatives_with_error(text):
        frame = encode_fitting_frame(3, performative, frame_bytes_max=limit)
        assert len(frame) <= limit
        decode_performative(frame, 8, len(frame))
        whole = encode_frame(3, encode_performative(performative))
        assert (frame == whole) == (len(whole) <= limit)


@pytest.mark.parametrize(
    "performative",
    build_performatives_with_error("ä" * 5000),
    ids=lambda performative: type(performative).__name__,
)
def test_as_much_of_the_text_is_kept_as_fits(performative: Performative) -> None:
    before = encode_performative(performative)
    frame = encode_fitting_frame(0, performative, frame_bytes_max=1000)
    assert 990 <= len(frame) <= 1000
    assert encode_performative(performative) == before


@pytest.mark.parametrize(
    "performative",
    [
        Open(container_id="c" * 600),
        Close(error=Error(condition="c" * 600)),
        Disposition(role=True, first=0, state=Accepted()),
        Disposition(role=True, first=0, state=Rejected()),
        Detach(handle=0),
    ],
)
def test_what_has_no_text_is_left_as_it_is(performative: Performative) -> None:
    whole = encode_frame(0, encode_performative(performative))
    assert encode_fitting_frame(0, performative, frame_bytes_max=512) == whole
