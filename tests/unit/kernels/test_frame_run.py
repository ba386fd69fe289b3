"""Several stored batches on their way out at once: the same bytes as one after the other."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.kernels import FramedDeliveries, KernelError, frame_events, frame_run
from penstock.model.events import StoredBatch

_LINK: dict[str, Any] = {
    "channel": 2,
    "handle": 3,
    "frame_bytes_max": 65_536,
    "runtime": b"",
}


def sections(count: int, size: int) -> bytes:
    body = b"\x00\x53\x75\xb0" + size.to_bytes(4, "big") + b"x" * size
    return (b"\x00\x53\x75\xb0" + len(body).to_bytes(4, "big") + body) * count


def run_of(*counts: int, size: int = 300) -> list[StoredBatch]:
    batches = []
    sequence = offset = 1000
    for number, count in enumerate(counts):
        content = sections(count, size)
        batches.append(StoredBatch(sequence, offset, number, count, content))
        sequence += count
        offset += 64 + len(content)
    return batches


def frame(
    batches: list[StoredBatch],
    position: int = 0,
    *,
    sequence: int = 1000,
    events_max: int = 1 << 30,
    frames_max: int = 1 << 30,
    bytes_max: int = 1 << 30,
    delivery_id: int = 9,
) -> FramedDeliveries:
    return frame_run(
        batches,
        position,
        sequence=sequence,
        events_max=events_max,
        frames_max=frames_max,
        bytes_max=bytes_max,
        delivery_id=delivery_id,
        **_LINK,
    )


def one_by_one(batches: list[StoredBatch], delivery_id: int = 9) -> bytes:
    """As batches went out before there were runs."""
    parts = []
    for batch in batches:
        framed = frame_events(
            batch.sections,
            0,
            events_max=batch.count,
            frames_max=1 << 30,
            bytes_max=1 << 30,
            sequence=batch.first_sequence,
            base_offset=batch.base_offset,
            enqueued_ms=batch.enqueued_ms,
            delivery_id=delivery_id,
            **_LINK,
        )
        delivery_id = (delivery_id + framed.events) & 0xFFFFFFFF
        parts.append(framed.data)
    return b"".join(parts)


@pytest.mark.parametrize("size", [1, 300, 70_000])
@pytest.mark.parametrize("delivery_id", [9, 0xFFFFFFFE])
def test_run_is_what_its_batches_are_one_after_the_other(size: int, delivery_id: int) -> None:
    batches = run_of(3, 1, 5, size=size)
    framed = frame(batches, delivery_id=delivery_id)
    assert framed.data == one_by_one(batches, delivery_id)
    assert framed.events == 9
    assert framed.frames == (9 if size < 65_000 else 18)
    assert framed.position == len(batches[-1].sections)


def test_run_larger_than_any_buffer_is_whole() -> None:
    batches = run_of(*[100] * 12, size=2000)
    framed = frame(batches)
    assert len(framed.data) > 2 << 20
    assert framed.data == one_by_one(batches)


def test_first_batch_goes_on_where_the_reader_is() -> None:
    batches = run_of(4, 2)
    step = len(batches[0].sections) // 4
    framed = frame(batches, 3 * step, sequence=1003, delivery_id=12)
    assert framed.events == 3
    assert framed.data == frame(batches).data[-len(framed.data) :]


def test_gap_between_batches_shows_in_their_numbers() -> None:
    first, _, third = batches = run_of(2, 2, 2)
    assert frame([first, third]).data == one_by_one([batches[0], batches[2]])


@pytest.mark.parametrize("limit", ["events_max", "frames_max"])
@pytest.mark.parametrize(("most", "position"), [(0, 0), (1, 1), (3, 3), (4, 1), (6, 3)])
def test_run_ends_within_or_between_batches(limit: str, most: int, position: int) -> None:
    batches = run_of(3, 3, 3)
    framed = frame(batches, **{limit: most})
    assert framed.events == framed.frames == most
    assert framed.position == position * len(batches[0].sections) // 3


@pytest.mark.parametrize(("bytes_max", "events"), [(0, 1), (1, 1), (500, 2), (1400, 4), (2000, 5)])
def test_run_ends_with_the_event_that_fills_the_bytes(bytes_max: int, events: int) -> None:
    batches = run_of(3, 3, 3)
    each = len(one_by_one(batches)) / 9
    assert 440 < each < 480
    assert frame(batches, bytes_max=bytes_max).events == events


@pytest.mark.parametrize(("count", "events"), [(2, 7), (5, 3)])
def test_batch_with_other_events_than_it_says_ends_the_run_or_is_cut(
    count: int, events: int
) -> None:
    batches = run_of(3, 5)
    wrong = StoredBatch(1000, 1000, 0, count, batches[0].sections)
    assert frame([wrong, batches[1]]).events == events


def test_damaged_batch_is_refused_and_the_first_alone_is_not() -> None:
    batches = run_of(2, 2)
    torn = StoredBatch(1002, 5000, 0, 2, batches[1].sections[:-1])
    with pytest.raises(KernelError, match="damaged"):
        frame([batches[0], torn])
    assert frame([batches[0]]).events == 2


@pytest.mark.parametrize("position", [-1, 10_000])
def test_position_outside_of_the_batch_is_refused(position: int) -> None:
    with pytest.raises(KernelError, match="no event at byte"):
        frame(run_of(2, 2), position)


def test_no_batches_are_no_frames() -> None:
    assert frame([]) == FramedDeliveries(b"", 0, 0, 0)
