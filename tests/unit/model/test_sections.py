"""Data sections of a stored batch."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import LogCorrupt
from penstock.model.sections import (
    count_sections,
    last_section_position,
    messages,
    section_position,
    section_positions,
)


def section(message: bytes, *, is_long: bool = False) -> bytes:
    if is_long or len(message) > 255:
        return b"\x00\x53\x75\xb0" + len(message).to_bytes(4, "big") + message
    return b"\x00\x53\x75\xa0" + len(message).to_bytes(1, "big") + message


@given(st.lists(st.tuples(st.binary(max_size=600), st.booleans()), min_size=1, max_size=20))
def test_events_are_found_in_short_and_long_sections(bodies: list[tuple[bytes, bool]]) -> None:
    expected, sections = [], b""
    for message, is_long in bodies:
        expected.append(len(sections))
        sections += section(message, is_long=is_long)
    assert list(section_positions(sections)) == expected
    assert last_section_position(sections) == expected[-1]
    assert count_sections(sections) == len(bodies)
    assert [section_position(sections, index) for index in range(len(bodies))] == expected
    assert section_position(sections, len(bodies)) == len(sections)
    assert list(messages(sections)) == [
        (position, message) for position, (message, _) in zip(expected, bodies, strict=True)
    ]


@pytest.mark.parametrize(
    "invalid",
    [b"\x00", b"\x00\x53\x75\xa0", b"\x00\x53\x75\xa0\x05abcd", b"\x00\x53\x75\xb0\x00\x00",
     b"\x00\x53\x77\xa0\x00", b"\x00\x53\x75\xa1\x00" + bytes(9), b"hello, world"],
)  # fmt: skip
def test_bytes_without_a_whole_section_are_reported(invalid: bytes) -> None:
    sections = section(b"x") + invalid
    for read in (section_positions, messages):
        with pytest.raises(LogCorrupt, match="no whole data section at byte 6 of"):
            list(read(sections))
    with pytest.raises(LogCorrupt, match="no whole data section at byte 6 of"):
        section_position(sections, 2)
    with pytest.raises(LogCorrupt):
        count_sections(sections)
    assert last_section_position(sections) == 6
    assert last_section_position(invalid) == 0


def test_position_beyond_the_last_event_is_reported() -> None:
    with pytest.raises(LogCorrupt, match="no whole data section at byte 6 of 6"):
        section_position(section(b"x"), 2)
