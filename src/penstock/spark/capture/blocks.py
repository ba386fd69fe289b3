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
    first_ms = last_ms = 0
    chunks = read_chunks(ranges, partition, first, last)
    for data, bounds, is_full in _split_chunks(chunks, builder.block_bytes):
        if not builder.rows:
            first_ms = _enqueued_ms(data, bounds[:2])
        builder.add(data, bounds)
        last_ms = _enqueued_ms(data, bounds[-2:])
        if is_full:
            yield CaptureBlock(builder.rows, builder.take(), first_ms, last_ms)
    if builder.rows:
        yield CaptureBlock(builder.rows, builder.take(), first_ms, last_ms)


def _split_chunks(
    chunks: Iterable[MessageChunk], limit: int
) -> Iterator[tuple[bytes, list[int], bool]]:
    """Messages of one block, and whether the block is full with them: it ends after the message
    with which it has `limit` bytes."""
    held = 0
    for chunk in chunks:
        bounds = chunk.bounds
        size = sum(bounds[1::2]) - sum(bounds[::2])
        while held + size >= limit:
            sizes = map(sub, bounds[1::2], bounds[::2])
            reached = list(accumulate(sizes, initial=held))
            index = bisect_left(reached, limit)  # this many messages fill the block
            yield chunk.data, bounds[: 2 * index], True
            bounds = bounds[2 * index :]
            held, size = 0, reached[-1] - reached[index]
        if bounds:
            held += size
            yield chunk.data, bounds, False


def _enqueued_ms(data: bytes, bounds: list[int]) -> int:
    return decode_events(data, bounds).enqueued_ms[0]


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
