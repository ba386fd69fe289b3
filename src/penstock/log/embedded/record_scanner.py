"""Scans the records of one segment in order, across damage.

Readers, recovery, index rebuilding and `verify` all read a segment as a sequence of `IntactRecord`
and `DamagedRange`. Only `PartitionReader.read_cached` decodes records without it.
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
    """A complete record at `position` of `chunk` whose checksum is correct."""

    header: RecordHeader
    chunk: bytes
    position: int


class DamagedRange(msgspec.Struct, frozen=True, gc=False):
    """Bytes from `offset` to `stop` that are no intact record. At `stop` there is one, or the end
    of the scan."""

    offset: int
    stop: int
    is_zero: bool  # all zero: space that was never written


def scan_records(
    files: Files,
    fd: int,
    segment: Segment,
    offset: int,
    stop: int,
    *,
    chunk_bytes: int = limits.READ_CHUNK_BYTES,
) -> Iterator[IntactRecord | DamagedRange]:
    """Yield the records from `offset`, where one must start, to `stop`, and the damaged ranges
    between them. A record that ends after `stop` counts as damage. Raises OSError."""
    file_end = segment.header.base_offset + files.size(fd) - SEGMENT_HEADER_BYTES
    buffer = _ScanBuffer(files, fd, segment, min(stop, file_end), chunk_bytes)
    salt = segment.header.salt
    while offset < buffer.stop:
        position = offset - buffer.offset
        header = decode_record_header(buffer.chunk, position, base_offset=offset)
        if header is None or not is_intact(buffer.chunk, position, header, salt):
            header = _find_record(buffer, offset)  # it may extend beyond the chunk
        if header is not None:
            yield IntactRecord(header, buffer.chunk, offset - buffer.offset)
            offset = header.next_offset
            continue
        damaged = _find_damage_end(buffer, offset)
        offset = damaged.stop
        if offset < buffer.stop or buffer.stop == stop:
            yield damaged
        else:  # the file ends too early as well: report one range
            yield DamagedRange(damaged.offset, stop, False)
            return
    if offset < stop:
        yield DamagedRange(offset, stop, False)


class _ScanBuffer:
    """The part of the segment that is in memory; it moves along with the scan."""

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

    def load(self, offset: int, size: int) -> int:
        """Load `size` bytes from `offset` into `chunk`, at most up to `stop`. Returns the position
        of `offset` in `chunk`."""
        end = min(offset + size, self.stop)
        if not (self.offset <= offset and end <= self.offset + len(self.chunk)):
            size = min(max(size, self._chunk_bytes), self.stop - offset)
            self.chunk = self._files.pread(self._fd, size, self.segment.position(offset))
            self.offset = offset
        return offset - self.offset


def _find_record(buffer: _ScanBuffer, offset: int) -> RecordHeader | None:
    position = buffer.load(offset, RECORD_HEADER_BYTES)
    header = decode_record_header(buffer.chunk, position, base_offset=offset)
    if header is None or header.next_offset > buffer.stop:
        return None
    position = buffer.load(offset, header.next_offset - offset)
    if not is_intact(buffer.chunk, position, header, buffer.segment.header.salt):
        return None
    return header


def _find_damage_end(buffer: _ScanBuffer, offset: int) -> DamagedRange:
    """Search for the next intact record after `offset`, where there is none."""
    is_zero = True
    candidate = offset
    while candidate < buffer.stop:
        position = buffer.load(candidate, RECORD_HEADER_BYTES)
        remaining = buffer.chunk[position:]
        if not remaining:
            break  # the file was truncated during the scan
        is_zero = is_zero and remaining.count(0) == len(remaining)
        match = -1 if is_zero else remaining.find(RECORD_MAGIC)
        if match < 0:
            # A magic may span two chunks: search the last three bytes again.
            candidate = candidate + max(1, len(remaining) - len(RECORD_MAGIC) + 1)
            continue
        candidate += match
        if candidate > offset and _find_record(buffer, candidate) is not None:
            return DamagedRange(offset, candidate, False)
        candidate += 1
    return DamagedRange(offset, buffer.stop, is_zero)
