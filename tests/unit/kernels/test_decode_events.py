"""Delivered messages as columns."""

from __future__ import annotations

import pytest

from penstock.kernels import Columns, KernelError, decode_events, frame_events


def raw(*parts: str | bytes) -> bytes:
    """Bytes from hexadecimal text and plain bytes, in the order in which they are written."""
    return b"".join(bytes.fromhex(part) if isinstance(part, str) else part for part in parts)


HELLO = raw("00 53 75 a0 05", b"hello")
SEQUENCE = raw("a3 15", b"x-opt-sequence-number", "81 00 00 00 00 00 00 00 07")
OFFSET = raw("a3 0c", b"x-opt-offset", "a1 04", b"1000")
ENQUEUED = raw("a3 13", b"x-opt-enqueued-time", "83 00 00 00 00 00 00 00 63")
EPOCH = raw("a3 1b", b"x-opt-sequence-number-epoch", "54 ff")
KEY = raw("a3 13", b"x-opt-partition-key", "a1 02", "é".encode())
OWN = raw("a3 03", b"own", "54 01")


def annotated(*pairs: bytes) -> bytes:
    body = b"".join(pairs)
    if len(body) < 255:
        return raw("00 53 72 c1", bytes((len(body) + 1, 2 * len(pairs))), body)
    return raw(
        "00 53 72 d1", (len(body) + 4).to_bytes(4, "big"), (2 * len(pairs)).to_bytes(4, "big"), body
    )


USUAL = annotated(EPOCH, SEQUENCE, OFFSET, ENQUEUED)


def decode(*messages: bytes) -> Columns:
    data, bounds = b"", []
    for message in messages:
        data += b"\x00\x53"
        bounds += [len(data), len(data) + len(message)]
        data += message
    return decode_events(data, bounds)


def test_nothing_gives_empty_columns() -> None:
    assert decode() == Columns([], [], [], [], [], [], [], [], b"")


def test_usual_event_is_decoded_into_all_columns() -> None:
    properties = raw("c0 05 01 a1 02", b"id")
    application = raw("c1 05 02 a1 01", b"k", "41")
    message = raw(USUAL, "00 53 73", properties, "00 53 74", application, HELLO)

    assert decode(message) == Columns(
        sequence_numbers=[7],
        offsets=["1000"],
        enqueued_ms=[99],
        partition_keys=[None],
        bodies=[b"hello"],
        properties=[application],
        system=[USUAL[3:]],
        message_properties=[properties],
        body_kinds=b"\x75",
    )


@pytest.mark.parametrize(
    "pairs",
    [
        (EPOCH, SEQUENCE, OFFSET, ENQUEUED, KEY),
        (EPOCH, SEQUENCE, OFFSET, ENQUEUED, KEY, OWN),
        (EPOCH, SEQUENCE, OFFSET, ENQUEUED, OWN, KEY),
        (OWN, KEY, ENQUEUED, OFFSET, SEQUENCE),
        (SEQUENCE.replace(b"\x81" + bytes(7), b"\x55"), OFFSET, ENQUEUED, KEY),
        (EPOCH, SEQUENCE, OFFSET, ENQUEUED, KEY, raw("a3 04", b"long", "a0 c8", bytes(200))),
        (EPOCH, SEQUENCE, OFFSET.replace(b"\xa1\x04", b"\xb1\x00\x00\x00\x04"), ENQUEUED, KEY),
        (EPOCH, SEQUENCE, OFFSET, ENQUEUED.replace(b"\xa3\x13", b"\xb3\x00\x00\x00\x13"), KEY),
        (raw("53 09 40"), raw("80 00 00 00 00 00 00 00 09 40"), SEQUENCE, OFFSET, ENQUEUED, KEY),
    ],
)
def test_annotations_are_read_in_any_order_and_form(pairs: tuple[bytes, ...]) -> None:
    columns = decode(annotated(*pairs) + HELLO)

    assert columns.sequence_numbers == [7]
    assert columns.offsets == ["1000"]
    assert columns.enqueued_ms == [99]
    assert columns.partition_keys == ["é"]
    assert columns.system == [annotated(*pairs)[3:]]


def test_key_after_the_service_s_annotations_is_read() -> None:
    keyed = annotated(EPOCH, SEQUENCE, OFFSET, ENQUEUED, KEY)
    assert decode_events(keyed, [0, len(keyed)]).partition_keys == ["é"]


def test_last_annotation_is_not_the_key_when_it_only_looks_like_one() -> None:
    other = KEY.replace(b"partition-key", b"partition-KEY")
    columns = decode(annotated(EPOCH, SEQUENCE, OFFSET, ENQUEUED, other) + HELLO)

    assert columns.partition_keys == [None]
    miscounted = annotated(EPOCH, SEQUENCE, OFFSET, ENQUEUED, KEY).replace(b"\x0a\xa3", b"\x0c\xa3")
    with pytest.raises(KernelError):
        decode(miscounted)


def test_key_that_is_no_string_is_none() -> None:
    key = raw("a3 13", b"x-opt-partition-key", "54 07")

    assert decode(annotated(EPOCH, SEQUENCE, OFFSET, ENQUEUED, key)).partition_keys == [None]


@pytest.mark.parametrize(
    ("sections", "body", "kind"),
    [
        (b"", b"", 0),
        (HELLO, b"hello", 0x75),
        (raw("00 53 75 a0 00"), b"", 0x75),
        (HELLO + raw("00 53 75 b0 00 00 00 02", b" w"), b"hello w", 0x75),
        (raw("00 53 77 40"), raw("00 53 77 40"), 0x77),
        (raw("00 53 77 a1 02", b"hi"), raw("00 53 77 a1 02", b"hi"), 0x77),
        (raw("00 53 76 45 00 53 76 c0 02 01 41"), raw("00 53 76 45 00 53 76 c0 02 01 41"), 0x76),
        (raw("00 80 00 00 00 00 00 00 00 75 a0 05", b"hello"), b"hello", 0x75),
    ],
)
def test_body_of_each_kind(sections: bytes, body: bytes, kind: int) -> None:
    columns = decode(USUAL + sections, USUAL + sections)

    assert columns.bodies == [body, body]
    assert columns.body_kinds == bytes((kind, kind))


def test_header_delivery_annotations_and_footer_are_passed_over() -> None:
    message = raw("00 53 70 c0 02 01 41 00 53 71 c1 01 00", USUAL, HELLO, "00 53 78 c1 01 00")

    assert decode(message).bodies == [b"hello"]


def test_framed_events_come_back() -> None:
    own = raw("00 53 72 c1 1a 02", KEY)
    sections = raw("00 53 75 a0 0a", HELLO, "00 53 75 a0 29", own, HELLO)
    framed = frame_events(
        sections,
        0,
        events_max=9,
        frames_max=9,
        bytes_max=9999,
        channel=0,
        handle=0,
        delivery_id=0,
        frame_bytes_max=512,
        sequence=5,
        base_offset=95,
        enqueued_ms=1_700_000_000_000,
        runtime=b"",
    )
    first = int.from_bytes(framed.data[:4], "big")
    columns = decode_events(framed.data, [30, first, first + 30, len(framed.data)])

    assert columns.sequence_numbers == [5, 6]
    assert columns.offsets == ["95", "110"]
    assert columns.enqueued_ms == [1_700_000_000_000] * 2
    assert columns.partition_keys == [None, "é"]
    assert columns.bodies == [b"hello", b"hello"]


@pytest.mark.parametrize(
    "message",
    [
        b"",
        HELLO,
        annotated(SEQUENCE, OFFSET) + HELLO,
        annotated(OFFSET, ENQUEUED) + HELLO,
        annotated(SEQUENCE, ENQUEUED) + HELLO,
        annotated(SEQUENCE, OFFSET.replace(b"\xa1", b"\xa0"), ENQUEUED) + HELLO,
        USUAL + HELLO + raw("00 53 77 40"),
        USUAL + raw("00 53 75 a1 05", b"hello"),
        USUAL + raw("00 53 75 a0 06", b"hello"),
        USUAL + raw("00 53 6f 45"),
        USUAL + raw("00 53"),
        USUAL + b"\x01",
        annotated(EPOCH, SEQUENCE, OFFSET.replace(b"1000", b"\xff\xff\xff\xff"), ENQUEUED),
        USUAL[:5] + b"\x0a" + USUAL[6:],
        annotated(OWN) + HELLO,
        raw("00 53 72 c1", bytes((len(USUAL) - 3,)), "08", USUAL[6:], "40", HELLO),
        annotated(EPOCH, SEQUENCE, OFFSET, ENQUEUED, KEY.replace(b"\xa1\x02", b"\xa1\x01")),
        annotated(EPOCH, SEQUENCE, OFFSET, ENQUEUED, KEY.replace(b"\xa1\x02", b"\xa1\x03")),
    ],
)
def test_message_that_is_none_is_refused(message: bytes) -> None:
    with pytest.raises(KernelError):
        decode(message)


def test_bounds_outside_the_data_are_refused() -> None:
    with pytest.raises(KernelError, match="bounds"):
        decode_events(HELLO, [0, 11])


def test_message_cut_anywhere_is_refused_or_without_its_tail() -> None:
    message = raw(USUAL, "00 53 73 c0 05 01 a1 02", b"id", HELLO)
    for cut in range(len(message)):
        try:
            assert decode(message[:cut]).bodies != [b"hello"]
        except KernelError:
            continue
