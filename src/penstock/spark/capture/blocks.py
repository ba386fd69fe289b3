"""Ranges of events to blocks of Avro or Parquet.

A block has about a megabyte (Parquet: 16), so a task holds a few of them whatever the size of its
window. Blocks end where the messages say, not where the network split them: a range that is read
again gives the same blocks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import accumulate
from operator import sub
from typing import TYPE_CHECKING

import msgspec

from penstock.capture.container import BLOCK_BYTES, deflate
from penstock.client.ranges import MessageChunk, RangeSettings, read_chunks
from penstock.formats.amqp_values import avro_value
from penstock.kernels import AvroRecordWriter, decode_events

if TYPE_CHECKING:
    from penstock.spark.capture.parquet_file import ParquetBlockBuilder


class CaptureBlock(msgspec.Struct, frozen=True):
    """`first_ms` and `last_ms` are the enqueued times of its first and last event."""

    count: int
    data: bytes
    first_ms: int
    last_ms: int


def read_blocks(
    ranges: RangeSettings,
    partition: str,
    first: int,
    last: int,
    *,
    encoding: str,
    iso_time: bool = False,
) -> Iterator[CaptureBlock]:
    """Raises ClientError."""
    builder: _AvroBuilder | ParquetBlockBuilder
    if encoding == "Parquet":
        from penstock.spark.capture.parquet_file import ParquetBlockBuilder

        builder = ParquetBlockBuilder()
    else:
        builder = _AvroBuilder(iso_time=iso_time, is_deflated=encoding == "AvroDeflate")
    chunks = read_chunks(ranges, partition, first, last)
    first_ms = last_ms = 0
    for piece in split_chunks(chunks, builder.block_bytes):
        first_ms = first_ms or piece.first_ms
        last_ms = piece.last_ms
        builder.add(piece.data, piece.bounds)
        if piece.is_end:
            yield CaptureBlock(builder.rows, builder.take(), first_ms, last_ms)
            first_ms = 0
    if builder.rows:
        yield CaptureBlock(builder.rows, builder.take(), first_ms, last_ms)


class ChunkPiece(msgspec.Struct, frozen=True):
    """Messages of one block; with `is_end` the block is full."""

    data: bytes
    bounds: list[int]
    is_end: bool
    first_ms: int
    last_ms: int


def split_chunks(chunks: Iterable[MessageChunk], limit: int = BLOCK_BYTES) -> Iterator[ChunkPiece]:
    """A block ends after the message with which it has `limit` bytes."""
    held = 0
    for chunk in chunks:
        data, bounds = chunk.data, chunk.bounds
        first_ms, last_ms = _first_and_last_time(data, bounds)
        size = sum(bounds[1::2]) - sum(bounds[::2])
        while held + size >= limit:
            sizes = map(sub, bounds[1::2], bounds[::2])
            reached = list(accumulate(sizes, initial=held))
            index = bisect_left(reached, limit)  # this many messages fill the block
            taken = bounds[: 2 * index]
            yield ChunkPiece(data, taken, True, first_ms, _first_and_last_time(data, taken)[1])
            bounds = bounds[2 * index :]
            held, size = 0, size - (reached[index] - held)
            if not bounds:
                break
            first_ms, last_ms = _first_and_last_time(data, bounds)
        if bounds:
            held += size
            yield ChunkPiece(data, bounds, False, first_ms, last_ms)


def _first_and_last_time(data: bytes, bounds: list[int]) -> tuple[int, int]:
    ends = decode_events(data, [*bounds[:2], *bounds[-2:]])
    return ends.enqueued_ms[0], ends.enqueued_ms[-1]


class _AvroBuilder:
    block_bytes = BLOCK_BYTES

    def __init__(self, *, iso_time: bool, is_deflated: bool) -> None:
        self._records = AvroRecordWriter(avro_value, iso_time=iso_time)
        self._is_deflated = is_deflated
        self.add = self._records.add

    @property
    def rows(self) -> int:
        return self._records.rows

    def take(self) -> bytes:
        records = self._records.take()
        return deflate(records) if self._is_deflated else records
