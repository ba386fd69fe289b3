"""Columns of bodies become sections of a batch: what `append_event` makes of each row."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import kernels
from penstock.client.idempotence import ProducerState, annotations_section, write_stamp
from penstock.kernels import KernelError, append_event
from penstock.kernels._pure import producer_batch as pure

STAMPED = annotations_section(None, stamped=True)
NUMBER_AT = len(STAMPED) - 4
IMPLEMENTATIONS = [kernels.append_bodies, pure.append_bodies]


def column(bodies: list[bytes]) -> tuple[bytes, bytes]:
    """The data and the offsets that Arrow has of them."""
    ends = [0]
    for body in bodies:
        ends.append(ends[-1] + len(body))
    return b"".join(bodies), struct.pack(f"<{len(ends)}i", *ends)


@pytest.mark.parametrize("append_bodies", IMPLEMENTATIONS, ids=["served", "pure"])
@given(
    bodies=st.lists(st.binary(max_size=600), max_size=12),
    size_max=st.integers(0, 6000),
    number=st.sampled_from([0, 1, 2**31 - 2]),
    has_stamps=st.booleans(),
    data=st.data(),
)
def test_rows_are_the_events_that_append_event_makes(
    append_bodies: object,
    bodies: list[bytes],
    size_max: int,
    number: int,
    has_stamps: bool,
    data: st.DataObject,
) -> None:
    assert callable(append_bodies)
    first = data.draw(st.integers(0, len(bodies)))
    chunk, ends = column(bodies)
    out = bytearray(b"before")
    own, at = (STAMPED, NUMBER_AT) if has_stamps else (b"", -1)
    starts = append_bodies(
        out, own, at, number, memoryview(chunk), ends, first, len(bodies), size_max=size_max
    )
    expected, stored = bytearray(b"before"), 0
    for row, body in enumerate(bodies[first:]):
        section = bytearray(own)
        if has_stamps:
            write_stamp(section, 0, ProducerState(0, 0, 0), number + row)
        before = len(expected)
        assert append_event(expected, bytes(section), b"", None, body)
        if len(expected) > size_max:
            del expected[before:]
            break
        assert expected[starts[row] :].startswith(section)
        stored += 1
    assert out == expected
    assert len(starts) == stored


@pytest.mark.parametrize("append_bodies", IMPLEMENTATIONS, ids=["served", "pure"])
@pytest.mark.parametrize(
    ("chunk", "ends", "rows", "number_at"),
    [
        (b"ab", struct.pack("<3i", 0, 1, 3), (0, 2), -1),  # beyond the data
        (b"ab", struct.pack("<3i", 0, 2, 1), (0, 2), -1),  # backwards
        (b"ab", struct.pack("<3i", -1, 1, 2), (0, 2), -1),
        (b"ab", struct.pack("<3i", 0, 1, 2), (0, 3), -1),  # more rows than there are
        (b"ab", struct.pack("<3i", 0, 1, 2), (-1, 2), -1),
        (b"ab", struct.pack("<3i", 0, 1, 2), (2, 1), -1),
        (b"ab", struct.pack("<3i", 0, 1, 2)[:-1], (0, 1), -1),
        (b"ab", b"", (0, 0), -1),
        (b"ab", struct.pack("<3i", 0, 1, 2), (0, 2), 0),  # annotations without room for a number
    ],
)
def test_columns_that_cannot_be_are_refused(
    append_bodies: object, chunk: bytes, ends: bytes, rows: tuple[int, int], number_at: int
) -> None:
    assert callable(append_bodies)
    with pytest.raises(KernelError):
        append_bodies(bytearray(), b"", number_at, 0, chunk, ends, *rows, size_max=1000)
