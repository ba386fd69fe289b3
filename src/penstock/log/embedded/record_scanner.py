"""Walk over the records of one segment, in order, past damage.

The reading of records happens here and nowhere else: readers, recovery, index rebuilding and
`verify` all see a segment as a run of `Found` records and `Damaged` stretches.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from penstock.log.embedded.files import Files
from penstock.log.embedded.record import (
    RECORD_HEADER_BYTES,
    RECORD_MAGIC,
    RecordHeader,
    decode_record_header,
    is_intact,
)
from penstock.log.embedded.segment import SEGMENT_HEADER_BYTES, Segment
from penstock.model import limits


class IntactRecord(msgspec.Struct, frozen=True, gc=False):
    """A whole record at `position` of `chunk`, its checksum compared."""

    header: RecordHeader
    chunk: bytes
    position: int


class DamagedRange(msgspec.Struct, frozen=True, gc=False):
    """Bytes from `offset` to `stop` that are no whole record; at `stop` one is, or the end."""

    offset: int
    stop: int
    is_zero: bool  # nothing but zeros: space that was never written


def scan_records(
    files: Files,
    fd: int,
    segment: Segment,
    offset: int,
    stop: int,
    *,
    chunk_bytes: int = limits.READ_CHUNK_BYTES,
) -> Iterator[IntactRecord | DamagedRange]:
    """The records from `offset` (where one starts) up to `stop`, and what is none between them.

    Nothing is taken for a record that does not end by `stop`. May raise OSError.
    """
    there = segment.header.base_offset + files.size(fd) - SEGMENT_HEADER_BYTES
    window = _ScanBuffer(files, fd, segment, min(stop, there), chunk_bytes)
    salt = segment.header.salt
    while offset < window.stop:
        position = offset - window.offset
        header = decode_record_header(window.chunk, position, base_offset=offset)
        if header is None or not is_intact(window.chunk, position, header, salt):
            header = _whole_record(window, offset)  # it may only reach beyond the chunk
        if header is not None:
            yield IntactRecord(header, window.chunk, offset - window.offset)
            offset = header.next_offset
            continue
        damaged = _damage(window, offset)
        offset = damaged.stop
        if offset < window.stop or window.stop == stop:
            yield damaged
        else:  # the file ends too early as well: one stretch, told once
            yield DamagedRange(damaged.offset, stop, False)
            return
    if offset < stop:
        yield DamagedRange(offset, stop, False)


class _ScanBuffer:
    """A part of the segment in memory, moved along the walk."""

    __slots__ = ("_chunk_bytes", "_fd", "_files", "chunk", "offset", "segment", "stop")

    def __init__(
        self, files: Files, fd: int, segment: Segment, stop: int, chunk_bytes: int
    ) -> None:
        self._files = files
        self._fd = fd
        self._chunk_bytes = chunk_bytes
        self.segment = segment
        self.stop = stop
        self.offset = 0
        self.chunk = b""

    def hold(self, offset: int, size: int) -> int:
        """Have `size` bytes from `offset` in `chunk`, or up to `stop`; where `offset` is there."""
        end = min(offset + size, self.stop)
        if not (self.offset <= offset and end <= self.offset + len(self.chunk)):
            size = min(max(size, self._chunk_bytes), self.stop - offset)
            self.chunk = self._files.pread(self._fd, size, self.segment.position(offset))
            self.offset = offset
        return offset - self.offset


def _whole_record(window: _ScanBuffer, offset: int) -> RecordHeader | None:
    position = window.hold(offset, RECORD_HEADER_BYTES)
    header = decode_record_header(window.chunk, position, base_offset=offset)
    if header is None or header.next_offset > window.stop:
        return None
    position = window.hold(offset, header.next_offset - offset)
    if not is_intact(window.chunk, position, header, window.segment.header.salt):
        return None
    return header


def _damage(window: _ScanBuffer, offset: int) -> DamagedRange:
    """Look for the next whole record behind `offset`, where there is none."""
    is_zero = True
    at = offset
    while at < window.stop:
        position = window.hold(at, RECORD_HEADER_BYTES)
        rest = window.chunk[position:]
        if not rest:
            break  # the file became shorter under our hands
        is_zero = is_zero and rest.count(0) == len(rest)
        found = -1 if is_zero else rest.find(RECORD_MAGIC)
        if found < 0:
            # A magic may lie across two chunks: the last three bytes are looked at again.
            at = at + max(1, len(rest) - len(RECORD_MAGIC) + 1)
            continue
        at += found
        if at > offset and _whole_record(window, at) is not None:
            return DamagedRange(offset, at, False)
        at += 1
    return DamagedRange(offset, window.stop, is_zero)
