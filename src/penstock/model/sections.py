"""Data sections of a stored batch: their number, their positions, the message in each.

The format is described in `penstock.model.events`. This is the only implementation outside the
kernels.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.model.errors import LogCorrupt

_DATA = b"\x00\x53\x75"
_SHORT, _LONG = 0xA0, 0xB0  # constructors of binary: length of one byte, or of four
_SHORT_HEADER_BYTES, _LONG_HEADER_BYTES = 5, 8


def section_positions(sections: bytes) -> Iterator[int]:
    """Yield where each event's data section starts. Raises LogCorrupt where there is none."""
    position = 0
    while position < len(sections):
        yield position
        position += _checked_section_bytes(sections, position)


def section_position(sections: bytes, index: int) -> int:
    """Where the data section of event `index` starts; the end of `sections` for the index after the
    last. Raises LogCorrupt if there are fewer events."""
    position = 0
    for _ in range(index):
        position += _checked_section_bytes(sections, position)
    return position


def last_section_position(sections: bytes) -> int:
    """Where the last event's data section starts. Never raises: bytes that are no data section
    count as the last one."""
    position = 0
    while True:
        size = _section_bytes(sections, position)
        if size == 0 or position + size == len(sections):
            return position
        position += size


def count_sections(sections: bytes) -> int:
    """Number of events. Raises LogCorrupt if `sections` is not a run of whole data sections."""
    return sum(1 for _ in section_positions(sections))


def messages(sections: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the position of each data section and the encoded message in it. Raises LogCorrupt
    where there is no whole section."""
    for position in section_positions(sections):
        end = position + _checked_section_bytes(sections, position)
        is_short = sections[position + 3] == _SHORT
        start = position + (_SHORT_HEADER_BYTES if is_short else _LONG_HEADER_BYTES)
        yield position, sections[start:end]


def _checked_section_bytes(sections: bytes, position: int) -> int:
    size = _section_bytes(sections, position)
    if size == 0:
        raise LogCorrupt(
            f"A stored batch has no whole data section at byte {position} of {len(sections)}."
        )
    return size


def _section_bytes(sections: bytes, position: int) -> int:
    """Length of the data section at `position`, header included; 0 if there is no whole one."""
    header = sections[position : position + _LONG_HEADER_BYTES]
    if len(header) < _SHORT_HEADER_BYTES or header[:3] != _DATA:
        return 0
    if header[3] == _SHORT:
        size = _SHORT_HEADER_BYTES + header[4]
    elif header[3] == _LONG and len(header) == _LONG_HEADER_BYTES:
        size = _LONG_HEADER_BYTES + int.from_bytes(header[4:], "big")
    else:
        return 0
    return size if position + size <= len(sections) else 0
