"""Runs of plain transfers in a socket read."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.amqp.transfer_run import (
    TransferRun,
    _read_plain_transfer,
    _scan_same_shape,
    scan_transfers,
)


def raw(*parts: str | bytes) -> bytes:
    """Bytes from hexadecimal text and plain bytes, in the order in which they are written."""
    return b"".join(bytes.fromhex(part) if isinstance(part, str) else part for part in parts)


def frame(fields: bytes, count: int, payload: bytes = b"hello", *, channel: int = 1) -> bytes:
    performative = raw("00 53 14 c0", bytes((len(fields) + 1, count)), fields)
    return struct.pack(">IHH", 8 + len(performative) + len(payload), 0x0200, channel) + (
        performative + payload
    )


def python(number: int, payload: bytes = b"hello", *, handle: str = "52 03") -> bytes:
    """As azure-eventhub writes it: 11 fields, the smallest uint, a 4-byte tag."""
    delivery_id = raw("43") if number == 0 else raw("52", bytes((number,))) if number < 256 else b""
    delivery_id = delivery_id or b"\x70" + struct.pack(">I", number)
    tag = b"\xa0\x04" + struct.pack(">I", number)
    rest = raw("43 56 00 56 00 40 40 56 00 56 00 56 00")
    return frame(raw(handle, delivery_id, tag, rest), 11, payload)


def proton(number: int, payload: bytes = b"hello") -> bytes:
    """As Qpid Proton writes it: handle, id, tag and format alone."""
    return frame(
        raw("43 70", struct.pack(">I", number), "a0 01", bytes((number & 255,)), "43"), 4, payload
    )


def scan(
    data: bytes, start: int = 0, *, frame_bytes_max: int = 1024, count_max: int = 4096
) -> TransferRun | None:
    return scan_transfers(
        data, start, len(data), frame_bytes_max=frame_bytes_max, count_max=count_max
    )


def payloads(data: bytes, run: TransferRun | None) -> list[bytes]:
    assert run is not None
    assert len(run.bounds) == 2 * run.count
    assert run.next_position == run.bounds[-1]
    starts, stops = run.bounds[::2], run.bounds[1::2]
    return [data[start:stop] for start, stop in zip(starts, stops, strict=True)]


def test_single_transfer_is_a_run_of_one() -> None:
    data = raw(
        "00 00 00 22 02 00 00 01",
        "00 53 14 c0 0f 04 52 03 70 00 00 01 00 a0 04 74 61 67 31 43",
        "00 53 75 a0 01 78",
    )  # fmt: skip

    assert scan(data) == TransferRun(1, 3, 256, 1, False, 0, [28, 34], 34)


@pytest.mark.parametrize("make", [python, proton])
def test_transfers_that_follow_each_other_are_one_run(make: Callable[..., bytes]) -> None:
    bodies = [b"x" * n for n in (0, 1, 100, 700, 5)]
    data = b"".join(make(1000 + i, body) for i, body in enumerate(bodies))
    run = scan(data)

    assert payloads(data, run) == bodies
    assert run is not None
    assert (run.first_delivery_id, run.count, run.next_position) == (1000, 5, len(data))


def test_ids_may_change_their_width_and_begin_again_at_zero() -> None:
    numbers = [254, 255, 256, 257]
    data = b"".join(python(number) for number in numbers)
    assert len(payloads(data, scan(data))) == 4

    data = b"".join(python(number) for number in (0xFFFFFFFE, 0xFFFFFFFF, 0, 1, 2))
    assert len(payloads(data, scan(data))) == 5


def test_run_begins_in_the_middle_of_a_buffer_and_ends_before_its_end() -> None:
    data = b"\xff" * 7 + python(500) + python(501) + python(502)
    run = scan_transfers(data, 7, len(data) - 1, frame_bytes_max=1024)

    assert payloads(data, run) == [b"hello", b"hello"]


def test_run_ends_at_its_largest_count() -> None:
    data = b"".join(python(1000 + i) for i in range(10))

    assert [len(payloads(data, scan(data, count_max=n))) for n in (1, 2, 9, 20)] == [1, 2, 9, 10]
    assert scan(data, count_max=0) is None


@pytest.mark.parametrize(
    "other",
    [
        python(1003),
        python(1001),
        python(1002, handle="52 04"),
        frame(raw("52 03 70 00 00 03 ea a0 04 00 00 03 ea 43"), 4, channel=2),
        python(1002).replace(raw("43 56 00 56 00"), raw("43 56 01 56 00")),
        raw("00 00 00 08 02 00 00 00"),
        frame(raw("52 03 70 00 00 03 ea a0 04 00 00 03 ea 70 80 01 37 00"), 4),
        python(1002, b"x" * 2000),
        python(1002)[:5] + b"\x01" + python(1002)[6:],
        b"\x00\x00\x00\x00" * 10,
        b"AMQP\x00\x01\x00\x00",
    ],
)
def test_run_ends_before_what_does_not_belong_to_it(other: bytes) -> None:
    data = python(1000) + python(1001) + other + python(1002)
    run = scan(data)

    assert payloads(data, run) == [b"hello", b"hello"]
    assert run is not None
    assert run.next_position == len(python(1000)) * 2


def test_frame_as_large_as_allowed_belongs_to_the_run_and_a_larger_one_does_not() -> None:
    data = b"".join(python(1000 + i, b"x" * 60) for i in range(3))
    size = len(data) // 3

    assert len(payloads(data, scan(data, frame_bytes_max=size))) == 3
    assert scan(data, frame_bytes_max=size - 1) is None


def test_frames_of_one_shape_are_followed_without_being_decoded() -> None:
    data = b"".join(python(1000 + i) for i in range(5))
    frame = _read_plain_transfer(data, 0, len(data), 1024)
    assert frame is not None
    bounds = [frame.payload, frame.stop]
    _scan_same_shape(data, frame, len(data), 1024, 8, bounds)

    assert bounds == [position + at for position in range(0, 180, 45) for at in (40, 45)]


def test_frame_of_another_link_starts_a_run_of_its_own() -> None:
    data = python(1000) + python(1001, handle="52 04") + python(1002, handle="52 04")
    run = scan(data)
    assert run is not None
    following = scan(data, run.next_position)

    assert (run.handle, run.count) == (3, 1)
    assert following is not None
    assert (following.handle, following.count, following.first_delivery_id) == (4, 2, 1001)


HANDLE_ID_TAG = "52 03 52 07 a0 01 74"


@pytest.mark.parametrize(
    ("fields", "count", "settled", "message_format"),
    [
        (HANDLE_ID_TAG, 3, False, 0),
        (HANDLE_ID_TAG + "40", 4, False, 0),
        (HANDLE_ID_TAG + "52 01", 4, False, 1),
        (HANDLE_ID_TAG + "70 80 01 37 00", 4, False, 0x80013700),
        (HANDLE_ID_TAG + "43 41", 5, True, 0),
        (HANDLE_ID_TAG + "43 42", 5, False, 0),
        (HANDLE_ID_TAG + "43 40", 5, False, 0),
        (HANDLE_ID_TAG + "43 56 01 56 00", 6, True, 0),
        (HANDLE_ID_TAG + "43 41 42 40 40 42 42 41", 11, True, 0),
        (HANDLE_ID_TAG + "40 40 40 40 40 40 40 40", 11, False, 0),
        ("70 00 00 00 03 43 b0 00 00 00 01 74 43", 4, False, 0),
        ("43 43 a0 00 43", 4, False, 0),
        ("43 43 a0 20" + "74" * 32, 3, False, 0),
    ],
)
def test_plain_transfer_in_each_of_its_forms(
    fields: str, count: int, settled: bool, message_format: int
) -> None:
    short = frame(bytes.fromhex(fields), count)
    encoded = bytes.fromhex(fields)
    long = raw("00 53 14 d0", struct.pack(">II", len(encoded) + 4, count), encoded, b"hello")
    long = struct.pack(">IHH", 8 + len(long), 0x0200, 1) + long
    for data in (short, long):
        run = scan(data)

        assert payloads(data, run) == [b"hello"]
        assert run is not None
        assert (run.settled, run.message_format) == (settled, message_format)


@pytest.mark.parametrize(
    ("fields", "count"),
    [
        ("52 03 52 07", 2),
        ("52 03 40 a0 01 74 43", 4),
        ("40 52 07 a0 01 74 43", 4),
        ("52 03 52 07 40 43", 4),
        ("43 43 a0 21" + "74" * 33, 3),
        ("43 43 b0 ff ff ff ff", 3),
        (HANDLE_ID_TAG + "54 01", 4),
        (HANDLE_ID_TAG + "43 41 41", 6),
        (HANDLE_ID_TAG + "43 41 42 50 00", 7),
        (HANDLE_ID_TAG + "43 41 42 40 00 53 24 45", 8),
        (HANDLE_ID_TAG + "43 41 42 40 40 41", 9),
        (HANDLE_ID_TAG + "43 41 42 40 40 42 41", 10),
        (HANDLE_ID_TAG + "43 41 42 40 40 42 42 54 00", 11),
        (HANDLE_ID_TAG + "43 56 02", 5),
        (HANDLE_ID_TAG + "43 41 42 40 40 42 42 41 40", 12),
        (HANDLE_ID_TAG + "43 43", 4),
        (HANDLE_ID_TAG + "43", 5),
    ],
)
def test_unusual_transfer_is_left_to_the_engine(fields: str, count: int) -> None:
    assert scan(frame(bytes.fromhex(fields), count, b"")) is None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00\x00\x00\x08\x02\x00\x00\x00",
        python(9).replace(b"\x00\x53\x14", b"\x00\x53\x15"),
        python(9).replace(b"\x00\x53\x14\xc0", b"\x00\x53\x14\x45"),
        raw("00 00 00 0c 02 00 00 00 00 53 14 c0"),
        raw("00 00 00 0c 02 00 00 00 00 53 14 d0"),
        raw("00 00 00 05 02 00 00 00 00 53 14 c0 05 04 43 43 a0 00 43"),
        raw("00 00 00 20 03 00 00 00", bytes(24)),
        raw("ff ff ff ff 02 00 00 00 00 53 14 c0 05 04 43 43 a0 00 43"),
    ],
)
def test_anything_else_is_left_to_the_engine(data: bytes) -> None:
    assert scan(data, frame_bytes_max=1 << 32) is None


def test_positions_outside_the_buffer_are_none() -> None:
    data = python(9)
    for start, end in ((-1, len(data)), (0, len(data) + 1), (5, 4)):
        assert scan_transfers(data, start, end, frame_bytes_max=1024) is None


def test_run_cut_anywhere_holds_the_whole_frames() -> None:
    frames = [python(1000 + i, b"x" * i) for i in range(4)]
    data = b"".join(frames)
    for cut in range(len(data) + 1):
        whole = sum(len(b"".join(frames[: i + 1])) <= cut for i in range(4))
        run = scan(data[:cut])

        assert (run.count if run else 0) == whole


@settings(deadline=None)
@given(st.data())
def test_mutated_frames_never_raise_and_never_leave_the_buffer(data: st.DataObject) -> None:
    buffer = bytearray(b"".join(python(1000 + i, b"x" * i) for i in range(4)))
    for _ in range(data.draw(st.integers(1, 4))):
        buffer[data.draw(st.integers(0, len(buffer) - 1))] = data.draw(st.integers(0, 255))
    run = scan(bytes(buffer), frame_bytes_max=1 << 31)

    if run is not None:
        edges = [0, *run.bounds]
        assert edges == sorted(edges)
        assert run.next_position <= len(buffer)
