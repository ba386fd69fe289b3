"""From a range of the log to blocks: Avro records, compressed or not, or columns for Parquet.

One block is about a megabyte, so a task holds a few of them whatever its window has.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import accumulate
from operator import sub

import msgspec

from penstock.capture.container import BLOCK_BYTES, deflate
from penstock.client.ranges import MessageChunk, RangeSettings, read_chunks
from penstock.formats.amqp_values import avro_value
from penstock.kernels import AvroRecordWriter, decode_events


class CaptureBlock(msgspec.Struct, frozen=True):
    """`first_ms` and `last_ms` are when its first and its last event were stored."""

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
    chunks = read_chunks(ranges, partition, first, last)
    if encoding == "Parquet":
        from penstock.spark.capture.parquet import column_blocks

        yield from column_blocks(chunks)
        return
    rows = AvroRecordWriter(avro_value, iso_time=iso_time)
    first_ms = last_ms = 0
    for piece in split_chunks(chunks):
        first_ms = first_ms or piece.first_ms
        last_ms = piece.last_ms
        rows.add(piece.data, piece.bounds)
        if piece.is_end:
            yield _take_block(rows, encoding, first_ms, last_ms)
            first_ms = 0
    if rows.rows:
        yield _take_block(rows, encoding, first_ms, last_ms)


class ChunkPiece(msgspec.Struct, frozen=True):
    """Messages of one block; `is_end`: the block is full."""

    data: bytes
    bounds: list[int]
    is_end: bool
    first_ms: int
    last_ms: int


def split_chunks(chunks: Iterable[MessageChunk], limit: int = BLOCK_BYTES) -> Iterator[ChunkPiece]:
    """Chunks are as the network brought them; blocks end where the messages say, so that a range
    that is read again gives the same blocks: behind the message that makes `limit` bytes full."""
    held = 0
    for chunk in chunks:
        data, bounds = chunk.data, chunk.bounds
        first_ms, last_ms = first_and_last_time(data, bounds)
        size = sum(bounds[1::2]) - sum(bounds[::2])
        while held + size >= limit:
            sizes = map(sub, bounds[1::2], bounds[::2])
            reached = list(accumulate(sizes, initial=held))
            index = bisect_left(reached, limit)  # so many messages fill the block
            taken = bounds[: 2 * index]
            yield ChunkPiece(data, taken, True, first_ms, first_and_last_time(data, taken)[1])
            bounds = bounds[2 * index :]
            held, size = 0, size - (reached[index] - held)
            if not bounds:
                break
            first_ms, last_ms = first_and_last_time(data, bounds)
        if bounds:
            held += size
            yield ChunkPiece(data, bounds, False, first_ms, last_ms)


def _take_block(rows: AvroRecordWriter, encoding: str, first_ms: int, last_ms: int) -> CaptureBlock:
    count = rows.rows
    records = rows.take()
    data = deflate(records) if encoding == "AvroDeflate" else records
    return CaptureBlock(count, data, first_ms, last_ms)


def first_and_last_time(data: bytes, bounds: list[int]) -> tuple[int, int]:
    """When the first and the last of the messages were stored."""
    ends = decode_events(data, [*bounds[:2], *bounds[-2:]])
    return ends.enqueued_ms[0], ends.enqueued_ms[-1]
