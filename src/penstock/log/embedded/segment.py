"""Segment files: `<base offset, 20 digits>.log`, two copies of a header and then records.

    byte   0  magic           8 bytes  "PNSTKSEG"
           8  version         u32
          12  checksum        u32      CRC-32C of the other 60 bytes of this copy
          16  base offset     u64      of the first record; also the file's name
          24  first sequence  u64      number of the first event
          32  last offset     i64      of the newest event before this segment, -1 if there is none
          40  newest          i64      enqueued time of that event, milliseconds; 0 if there is none
          48  salt            u32      the partition's: the seed of every record's checksum
          52  partition       u32      its index in the hub
          56  (zero)          u64
          64  the same 64 bytes again, so that one damaged sector or bit does no harm
         128  records         (record.py)

A segment's header says how the one before it ended, so closed segments are not read when a
partition is opened.
"""

from __future__ import annotations

import struct
from pathlib import Path

import msgspec
from crc32c import crc32c

from penstock.log.embedded.index import LogMark, SparseIndex
from penstock.model.errors import DataDirectoryError

SEGMENT_MAGIC = b"PNSTKSEG"
SEGMENT_VERSION = 1
SEGMENT_HEADER_BYTES = 128
SEGMENT_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
PRODUCERS_SUFFIX = ".producers"

_COPY = struct.Struct("<8sIIQQqqIIQ")
_BEFORE_CHECKSUM = 12
_AFTER_CHECKSUM = 16
_NAME_DIGITS = 20

assert _COPY.size * 2 == SEGMENT_HEADER_BYTES


class SegmentHeader(msgspec.Struct, frozen=True, gc=False):
    base_offset: int
    first_sequence: int
    last_offset: int
    newest_ms: int
    salt: int
    partition: int

    @property
    def start(self) -> LogMark:
        """The log mark at the beginning of this segment."""
        return LogMark(self.base_offset, self.first_sequence, self.newest_ms, self.last_offset)

    def encode(self) -> bytes:
        packed = _COPY.pack(
            SEGMENT_MAGIC,
            SEGMENT_VERSION,
            0,
            self.base_offset,
            self.first_sequence,
            self.last_offset,
            self.newest_ms,
            self.salt,
            self.partition,
            0,
        )
        checksum = struct.pack("<I", _checksum(packed))
        return (packed[:_BEFORE_CHECKSUM] + checksum + packed[_AFTER_CHECKSUM:]) * 2


class Segment:
    """One file of a partition. It is closed once `end` is set; the active one ends with the log.

    The committer sets `end` and `index`; any thread reads them. `end` is set before `index` is
    cleared, so a reader without an index always finds the end.
    """

    __slots__ = ("end", "header", "index", "path")

    def __init__(
        self,
        path: Path,
        header: SegmentHeader,
        *,
        end: LogMark | None = None,
        index: SparseIndex | None = None,
    ) -> None:
        self.path = path
        self.header = header
        self.end = end
        self.index = index  # None once closed: loaded by SegmentIndexes

    def __repr__(self) -> str:
        return f"Segment({self.path.name})"

    def position(self, offset: int) -> int:
        """File position of the record with that base offset."""
        assert offset >= self.header.base_offset
        return offset - self.header.base_offset + SEGMENT_HEADER_BYTES

    def beside(self, suffix: str) -> Path:
        return self.path.with_suffix(suffix)


def segment_name(base_offset: int) -> str:
    return f"{base_offset:0{_NAME_DIGITS}d}{SEGMENT_SUFFIX}"


def parse_segment_name(name: str) -> int | None:
    """The base offset in a segment's file name; None for any other file."""
    stem = name.removesuffix(SEGMENT_SUFFIX)
    if stem == name or len(stem) != _NAME_DIGITS or not (stem.isascii() and stem.isdigit()):
        return None
    return int(stem)


def is_copy_intact(content: bytes, number: int) -> bool:
    """Whether the header's first (0) or second (1) copy has this version and is intact."""
    copy = content[number * _COPY.size : (number + 1) * _COPY.size]
    if _read_version(copy) != SEGMENT_VERSION:
        return False
    return int(_COPY.unpack(copy)[2]) == _checksum(copy)


def decode_header(content: bytes, path: Path) -> SegmentHeader | None:
    """The header from an intact copy; None if there is none. Raises DataDirectoryError if both
    copies have a newer version; a newer version in one copy alone is damage."""
    for number in (0, 1):
        if is_copy_intact(content, number):
            fields = _COPY.unpack_from(content, number * _COPY.size)
            _, _, _, base, first, last, newest_ms, salt, partition, _ = fields
            return SegmentHeader(base, first, last, newest_ms, salt, partition)
    version = _read_version(content[: _COPY.size])
    if version > SEGMENT_VERSION and version == _read_version(content[_COPY.size :]):
        raise DataDirectoryError(
            f"The segment {path} has format version {version}, written by a newer Penstock: "
            f"this one reads version {SEGMENT_VERSION}."
        )
    return None


def _read_version(copy: bytes) -> int:
    """The version in a copy of the header; -1 if it is no whole copy."""
    if len(copy) != _COPY.size or not copy.startswith(SEGMENT_MAGIC):
        return -1
    return int(_COPY.unpack(copy)[1])


def _checksum(copy: bytes) -> int:
    return crc32c(copy[_AFTER_CHECKSUM:], crc32c(copy[:_BEFORE_CHECKSUM]))
