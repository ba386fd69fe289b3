"""Record format: a fixed header, then a batch's data sections unchanged, under one checksum.

    byte  0  magic          4 bytes  "PnRc"; where to look for the next record after damage
          4  checksum       u32      CRC-32C of bytes 8 to the end, seeded with the partition's salt
          8  payload length u32
         12  event count    u32
         16  base offset    u64      where this record starts in the partition's log
         24  first sequence u64
         32  enqueued       i64      milliseconds since the epoch
         40  producer id    i64  )
         48  first number   i32  )   the idempotent producer's stamp, zeros without FLAG_PRODUCER
         52  last number    i32  )
         56  epoch          i16  )
         58  flags          u16
         60  unflushed      u32      bytes before this record that were not known to be flushed when
                                     it was encoded; everything further back was on disk
         64  payload                 the batch's data sections

All numbers are little-endian. A record's base offset is its position in the log, without the file
headers, so the next record's is this one's plus 64 plus the payload length; bytes at any other
position are no record. The salt is random per partition and never leaves the disk, so that a
publisher cannot place bytes in a payload which a scan after damage would take for a record.
"""

from __future__ import annotations

import struct

import msgspec
from crc32c import crc32c

from penstock.model import limits
from penstock.model.events import ProducerStamp, StoredBatch

RECORD_MAGIC = b"PnRc"
RECORD_HEADER_BYTES = 64
FLAG_PRODUCER = 1

_HEADER = struct.Struct("<4sIIIQQqqiihHI")
_PREFIX = struct.Struct("<4sI")
_FIELDS = struct.Struct("<IIQQqqiihHI")
_UNFLUSHED_MAX = 0xFFFF_FFFF  # more than a segment: a saturated value never ends within one
_CHECKED_FROM = _PREFIX.size
_NO_STAMP = ProducerStamp(0, 0, 0, 0)

assert _HEADER.size == RECORD_HEADER_BYTES == _PREFIX.size + _FIELDS.size


class RecordHeader(msgspec.Struct, frozen=True, gc=False):
    """A record's header as it is on disk. Plausible; its checksum is not yet verified."""

    checksum: int
    length: int
    count: int
    base_offset: int
    first_sequence: int
    enqueued_ms: int
    producer: ProducerStamp | None
    flushed_offset: int  # everything below was on disk when this record was encoded
    next_offset: int  # where the next record starts

    @property
    def next_sequence(self) -> int:
        return self.first_sequence + self.count


def record_bytes(sections: bytes) -> int:
    """Size of a batch's record."""
    return RECORD_HEADER_BYTES + len(sections)


def encode_record_header(
    batch: StoredBatch, stamp: ProducerStamp | None, *, flushed_offset: int, salt: int
) -> bytes:
    """The header to write before `batch.sections`."""
    assert flushed_offset <= batch.base_offset
    unflushed = batch.base_offset - flushed_offset
    stamp_flag = 0 if stamp is None else FLAG_PRODUCER
    stamp = _NO_STAMP if stamp is None else stamp
    fields = _FIELDS.pack(
        len(batch.sections),
        batch.count,
        batch.base_offset,
        batch.first_sequence,
        batch.enqueued_ms,
        stamp.id,
        stamp.first_sequence,
        stamp.last_sequence,
        stamp.epoch,
        stamp_flag,
        unflushed if unflushed <= _UNFLUSHED_MAX else _UNFLUSHED_MAX,
    )
    return _PREFIX.pack(RECORD_MAGIC, crc32c(batch.sections, crc32c(fields, salt))) + fields


def decode_record_header(
    chunk: bytes | memoryview, position: int, *, base_offset: int
) -> RecordHeader | None:
    """The header at `position`; None if no record of that base offset can start there."""
    if position + RECORD_HEADER_BYTES > len(chunk):
        return None
    magic, checksum, length, count, base, *fields = _HEADER.unpack_from(chunk, position)
    if magic != RECORD_MAGIC or base != base_offset:
        return None
    if length > limits.RECORD_PAYLOAD_BYTES_MAX or not 1 <= count <= limits.BATCH_EVENTS_MAX:
        return None
    first_sequence, enqueued_ms, stamp_id, first, last, epoch, flags, unflushed = fields
    stamp = ProducerStamp(stamp_id, epoch, first, last) if flags & FLAG_PRODUCER else None
    return RecordHeader(
        checksum,
        length,
        count,
        base,
        first_sequence,
        enqueued_ms,
        stamp,
        base - unflushed if unflushed < base else 0,
        base + RECORD_HEADER_BYTES + length,
    )


def is_intact(chunk: bytes | memoryview, position: int, header: RecordHeader, salt: int) -> bool:
    """Whether the complete record is in `chunk` and its checksum is correct."""
    end = position + RECORD_HEADER_BYTES + header.length
    if end > len(chunk):
        return False
    return crc32c(memoryview(chunk)[position + _CHECKED_FROM : end], salt) == header.checksum


def decode_batch(chunk: bytes | memoryview, position: int, header: RecordHeader) -> StoredBatch:
    """The batch in the intact record at `position`."""
    start = position + RECORD_HEADER_BYTES
    return StoredBatch(
        header.first_sequence,
        header.base_offset,
        header.enqueued_ms,
        header.count,
        bytes(chunk[start : start + header.length]),
    )
