"""Stored events as they go out on the wire, byte by byte."""

from __future__ import annotations

import struct

import pytest

from penstock.kernels import FramedDeliveries, KernelError, frame_events


def raw(*parts: str | bytes) -> bytes:
    """Bytes from hexadecimal text and plain bytes, in the order in which they are written."""
    return b"".join(bytes.fromhex(part) if isinstance(part, str) else part for part in parts)


HELLO = raw("00 53 75 a0 05", b"hello")
OWN = raw("a3 13", b"x-opt-partition-key", "a1 01", b"a")
KEY_A = raw("00 53 72 c1 19 02", OWN)
RUNTIME = raw("00 53 71 c1 08 02 a3 03", b"run", "54 01")
# x-opt-sequence-number-epoch -1, x-opt-sequence-number 7, x-opt-offset "1000", enqueued time 1.
PLACE = raw(
    "a3 1b", b"x-opt-sequence-number-epoch", "54 ff",
    "a3 15", b"x-opt-sequence-number", "81 00 00 00 00 00 00 00 07",
    "a3 0c", b"x-opt-offset", "a1 04", b"1000",
    "a3 13", b"x-opt-enqueued-time", "83 00 00 00 00 00 00 00 01",
)  # fmt: skip
ANNOTATED = raw("00 53 72 c1 72 08", PLACE)  # 0x72 = 114: 109 bytes, 4 digits, the count
OFFSET = raw("a3 0c", b"x-opt-offset")


def wrapped(message: bytes) -> bytes:
    if len(message) < 256:
        return raw("00 53 75 a0", bytes((len(message),)), message)
    return raw("00 53 75 b0", len(message).to_bytes(4, "big"), message)


def frame(
    sections: bytes,
    position: int = 0,
    *,
    events_max: int = 1000,
    frames_max: int = 1000,
    bytes_max: int = 1 << 20,
    handle: int = 3,
    delivery_id: int = 9,
    frame_bytes_max: int = 65_536,
    base_offset: int = 1000,
    sequence: int = 7,
    runtime: bytes = b"",
) -> FramedDeliveries:
    return frame_events(
        sections,
        position,
        events_max=events_max,
        frames_max=frames_max,
        bytes_max=bytes_max,
        channel=2,
        handle=handle,
        delivery_id=delivery_id,
        frame_bytes_max=frame_bytes_max,
        sequence=sequence,
        base_offset=base_offset,
        enqueued_ms=1,
        runtime=runtime,
    )


def transfer(
    payload: bytes, *, handle: str = "52 03", delivery_id: str = "00 00 00 09", more: str = "42"
) -> bytes:
    fields = raw(handle, "70", delivery_id, "a0 00 43 41", more, "40 40 40 40 41")
    performative = raw("00 53 14 c0", bytes((len(fields) + 1,)), "0b", fields)
    return raw(struct.pack(">I", 8 + len(performative) + len(payload)), "02 00 00 02") + (
        performative + payload
    )


def payloads(data: bytes) -> list[tuple[int, bool, bytes]]:
    """Delivery-id, more and payload of each frame, read with the layout that is asserted above."""
    frames = []
    position = 0
    while position < len(data):
        (size,) = struct.unpack_from(">I", data, position)
        body = data[position + 8 : position + size]
        assert body[:4] == b"\x00\x53\x14\xc0"
        fields, rest = body[6 : 5 + body[4]], body[5 + body[4] :]
        assert fields[-10:] in (
            raw("a0 00 43 41 42 40 40 40 40 41"),
            raw("a0 00 43 41 41 40 40 40 40 41"),
        )
        (delivery_id,) = struct.unpack(">I", fields[-14:-10])
        frames.append((delivery_id, fields[-6] == 0x41, rest))
        position += size
    return frames


def message_of(sections: bytes, *, base_offset: int = 1000, sequence: int = 7) -> bytes:
    """The one message that is delivered, whole."""
    framed = frame(sections, base_offset=base_offset, sequence=sequence)
    assert framed.events == 1
    return b"".join(payload for _, _, payload in payloads(framed.data))


def test_plain_event_gets_the_services_annotations_first() -> None:
    sections = wrapped(HELLO)

    # 8 + 23 + 6 + 113 + 10 bytes, written out once in full.
    expected = raw(
        "00 00 00 a0 02 00 00 02",
        "00 53 14 c0 12 0b 52 03 70 00 00 00 09 a0 00 43 41 42 40 40 40 40 41",
        "00 53 72 c1 72 08", PLACE,
        "00 53 75 a0 05", b"hello",
    )  # fmt: skip
    assert expected == transfer(ANNOTATED + HELLO)
    assert frame(sections) == FramedDeliveries(expected, 1, 1, len(sections))


def test_senders_annotations_follow_the_services() -> None:
    expected = transfer(raw("00 53 72 c1 8a 0a", PLACE, OWN, HELLO))

    assert frame(wrapped(KEY_A + HELLO)).data == expected


def test_annotations_of_the_sender_in_the_long_form_are_given_whole() -> None:
    stored = raw("00 53 72 d1 00 00 00 1c 00 00 00 02", OWN, HELLO)

    assert frame(wrapped(stored)).data == transfer(raw("00 53 72 c1 8a 0a", PLACE, OWN, HELLO))


def test_annotations_that_outgrow_the_short_form_take_the_long_one() -> None:
    own = raw("a3 03", b"own", "a0 c8", bytes(200))
    stored = raw("00 53 72 c1", bytes((len(own) + 1, 2)), own, HELLO)

    size = struct.pack(">I", 4 + len(PLACE) + len(own))
    expected = transfer(raw("00 53 72 d1", size, "00 00 00 0a", PLACE, own, HELLO))
    assert frame(wrapped(stored)).data == expected


@pytest.mark.parametrize("size", range(100, 150))
def test_annotations_around_the_short_forms_limit_stay_whole(size: int) -> None:
    own = raw("a3 03", b"own", "a0", bytes((size - 7,)), bytes(size - 7))
    stored = raw("00 53 72 c1", bytes((len(own) + 1, 2)), own, HELLO)

    message = message_of(wrapped(stored))

    assert message.endswith(PLACE + own + HELLO)
    head = message[: -len(PLACE + own + HELLO)]
    whole = len(PLACE + own)
    assert head in (
        raw("00 53 72 c1", bytes((min(whole + 1, 255),)), "0a"),
        raw("00 53 72 d1", struct.pack(">II", whole + 4, 10)),
    )


@pytest.mark.parametrize(
    "header",
    ["00 53 70 45", "00 53 70 c0 02 01 41", "00 53 70 d0 00 00 00 05 00 00 00 01 41"],
)
def test_header_is_not_delivered(header: str) -> None:
    assert message_of(wrapped(raw(header, HELLO))) == ANNOTATED + HELLO
    assert message_of(wrapped(raw(header, KEY_A, HELLO))) == raw(
        "00 53 72 c1 8a 0a", PLACE, OWN, HELLO
    )
    assert message_of(wrapped(raw(header))) == ANNOTATED
    assert message_of(wrapped(raw(header, RUNTIME, HELLO))) == RUNTIME + ANNOTATED + HELLO


def test_other_sections_are_delivered_as_they_are() -> None:
    rest = raw(
        "00 53 73 c0 05 01 a1 02", b"id",
        "00 53 74 d1 00 00 00 08 00 00 00 02 a1 01", b"k", "41",
        "00 53 76 45 00 53 76 45 00 53 78 c1 01 00",
    )  # fmt: skip

    assert message_of(wrapped(rest)) == ANNOTATED + rest


def test_delivery_annotations_are_kept_unless_metrics_take_their_place() -> None:
    stored = raw("00 53 71 c1 08 02 a3 03", b"tag", "54 02")
    sections = wrapped(stored + KEY_A + HELLO)
    annotated = raw("00 53 72 c1 8a 0a", PLACE, OWN, HELLO)

    assert frame(sections).data == transfer(stored + annotated)
    assert frame(sections, runtime=RUNTIME).data == transfer(RUNTIME + annotated)
    assert frame(wrapped(HELLO), runtime=RUNTIME).data == transfer(RUNTIME + ANNOTATED + HELLO)


@pytest.mark.parametrize(
    ("handle", "encoded"), [(0, "43"), (1, "52 01"), (255, "52 ff"), (256, "70 00 00 01 00")]
)
def test_handle_takes_its_smallest_form(handle: int, encoded: str) -> None:
    assert frame(wrapped(HELLO), handle=handle).data == transfer(ANNOTATED + HELLO, handle=encoded)


def test_numbers_and_offsets_move_from_event_to_event() -> None:
    sections = wrapped(HELLO) * 3 + wrapped(raw("00 53 75 b0 00 00 04 00", bytes(1024)))
    framed = frame(sections, delivery_id=0xFFFFFFFE, base_offset=970)

    assert (framed.events, framed.frames, framed.position) == (4, 4, len(sections))
    frames = payloads(framed.data)
    assert [number for number, _, _ in frames] == [0xFFFFFFFE, 0xFFFFFFFF, 0, 1]
    for index, (_, more, message) in enumerate(frames):
        assert not more
        offset = str(970 + 15 * index).encode()
        assert OFFSET + raw("a1", bytes((len(offset),)), offset) in message
        assert raw(b"x-opt-sequence-number\x81", struct.pack(">q", 7 + index)) in message


def test_delivery_begins_at_any_event_and_tells_where_it_stopped() -> None:
    sections = wrapped(HELLO) * 5
    framed = frame(sections, 30, events_max=2)

    assert (framed.events, framed.frames, framed.position) == (2, 2, 60)
    assert OFFSET + raw("a1 04", b"1030") in framed.data
    assert frame(sections, 75) == FramedDeliveries(b"", 0, 0, 75)
    assert frame(sections, events_max=0) == FramedDeliveries(b"", 0, 0, 0)
    assert frame(sections, frames_max=0) == FramedDeliveries(b"", 0, 0, 0)


@pytest.mark.parametrize("pairs", [123, 124, 127, 128, 300])
def test_as_many_annotations_as_bytes_are_delivered(pairs: int) -> None:
    """Pairs of a byte each: with the service's four they need a map32."""
    own = raw("44 40") * pairs
    head = raw("00 53 72 d1", struct.pack(">II", len(own) + 4, 2 * pairs))
    framed = frame(wrapped(head + own + HELLO))
    ((_, _, payload),) = payloads(framed.data)
    _, count = struct.unpack_from(">II", payload, 4) if payload[3] == 0xD1 else payload[4:6]
    assert count == 2 * pairs + 8
    assert payload.endswith(own + HELLO)


def test_largest_offset_and_number_fit() -> None:
    largest = (1 << 63) - 1
    message = message_of(wrapped(KEY_A + HELLO), base_offset=largest, sequence=largest)

    assert OFFSET + raw("a1 13", b"9223372036854775807") in message
    assert b"x-opt-sequence-number\x81\x7f" + b"\xff" * 7 in message


def test_output_stops_when_it_is_long_enough_but_holds_one_event() -> None:
    sections = wrapped(HELLO) * 5
    size = len(transfer(ANNOTATED + HELLO))

    assert [frame(sections, bytes_max=n).events for n in (0, 1, size, size + 1, 3 * size)] == [
        1,
        1,
        1,
        2,
        3,
    ]


def test_large_event_is_cut_into_frames_that_repeat_the_delivery() -> None:
    body = bytes(range(256)) * 4
    message = raw("00 53 75 b0 00 00 04 00", body)
    framed = frame(wrapped(message), frame_bytes_max=512)

    assert (framed.events, framed.frames) == (1, 3)
    room = 512 - 8 - 23
    whole = ANNOTATED + message
    assert framed.data == (
        transfer(whole[:room], more="41")
        + transfer(whole[room : 2 * room], more="41")
        + transfer(whole[2 * room :])
    )


@pytest.mark.parametrize("frame_bytes_max", [*range(512, 530), 600, 1023, 1024, 1160, 1200])
def test_frames_of_any_size_carry_the_same_message(frame_bytes_max: int) -> None:
    sections = wrapped(raw("00 53 75 b0 00 00 04 00", bytes(1024))) * 2
    framed = frame(sections, frame_bytes_max=frame_bytes_max)
    frames = payloads(framed.data)

    assert framed.events == 2
    assert framed.frames == len(frames)
    assert max(len(payload) for _, _, payload in frames) <= frame_bytes_max - 31
    assert [number for number, more, _ in frames if not more] == [9, 10]
    whole = b"".join(payload for _, _, payload in payloads(frame(sections).data))
    assert b"".join(payload for _, _, payload in frames) == whole


def test_event_is_not_begun_when_its_frames_do_not_all_fit() -> None:
    large = wrapped(raw("00 53 75 b0 00 00 04 00", bytes(1024)))  # three frames of 512 bytes
    sections = wrapped(HELLO) + large + wrapped(HELLO)

    results = [frame(sections, frame_bytes_max=512, frames_max=n) for n in range(6)]
    assert [result.events for result in results] == [0, 1, 1, 1, 2, 3]
    assert [result.frames for result in results] == [0, 1, 1, 1, 4, 5]
    assert frame(large, frame_bytes_max=512, frames_max=2) == FramedDeliveries(b"", 0, 0, 0)


@pytest.mark.parametrize(
    "damaged",
    [
        b"\x00",
        b"\xff" * 40,
        raw("00 53 75 a0 00"),
        raw("00 53 75 a0 00 00 00 00 00 00"),
        raw("00 53 75 a0 03 00 53 75"),
        raw("00 53 75 a0 0b", HELLO),
        raw("00 53 75 b0 00 00 00 0b", HELLO),
        raw("00 53 75 b0 ff ff ff ff", HELLO),
        raw("00 53 75 b0 00 00"),
        raw("00 53 76 a0 0a", HELLO),
        raw("00 53 75 a1 0a", HELLO),
        wrapped(b"\x01" + HELLO[1:]),
        wrapped(raw("00 53 72 c1 ff 02") + HELLO),
        wrapped(raw("00 53 72 c1 00 02") + HELLO),
        wrapped(raw("00 53 72 d1 00 00 ff ff 00 00 00 02") + HELLO),
        wrapped(raw("00 53 72 d1 00 00 00 00 00 00 00 02") + HELLO),
        wrapped(raw("00 53 72 c0 02 01 41") + HELLO),
        wrapped(raw("00 53 70 c0 ff 01 41") + HELLO),
        wrapped(raw("00 53 70 c0 03 01 41") + HELLO),
        wrapped(raw("00 53 70 c1 02 01 41") + HELLO),
        wrapped(raw("00 53 70 d0 ff ff ff ff 00 00 00 00") + HELLO),
        wrapped(raw("00 53 71 c1 ff 02") + HELLO),
        wrapped(raw("00 53 71 c1")),
        wrapped(raw("00 53 6f 45") + HELLO),
        wrapped(raw("00 53 72 c1 19 ff", OWN) + HELLO),
    ],
)
def test_damaged_event_is_named_and_not_framed(damaged: bytes) -> None:
    with pytest.raises(KernelError):
        frame(damaged)
    with pytest.raises(KernelError):
        frame(wrapped(HELLO) + damaged)


def test_position_outside_the_sections_is_refused() -> None:
    for position in (-1, 16):
        with pytest.raises(KernelError, match="no event at byte"):
            frame(wrapped(HELLO), position)
    with pytest.raises(KernelError):
        frame(wrapped(HELLO) * 2, 1)
