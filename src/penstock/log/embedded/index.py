"""Sparse index of one segment: about one entry per 64 KB of log, by sequence, offset and time.

The file `<base offset>.index` has a checksum (checksummed_file.py). Its body:

    byte  0  base offset    u64   of the segment
          8  through        u64   the index covers the log up to this offset, which was flushed
         16  next sequence  u64   before the file was written: recovery starts here
         24  newest         i64   enqueued time of the last event before `through`, milliseconds
         32  last offset    i64   of that event
         40  entries        n x (first sequence u64, base offset u64, enqueued i64)
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from penstock.log.checksummed_file import add_checksum, remove_checksum
from penstock.model import limits

INDEX_MAGIC = b"PNSTKIDX"
INDEX_INTERVAL_BYTES = 64 * limits.KB
INDEX_FILE_BYTES_MAX = 64 * limits.MB

_HEAD = struct.Struct("<QQQqq")
_ENTRY = struct.Struct("<QQq")


class LogMark(msgspec.Struct, frozen=True, gc=False):
    """A point between two records and the state of the log up to there."""

    offset: int
    next_sequence: int
    newest_ms: int
    last_offset: int


class IndexEntry(NamedTuple):
    """Where a record starts, and the sequence number of its first event."""

    offset: int
    sequence: int


class SparseIndex:
    """One thread appends, the committer for an active segment; any thread may search meanwhile."""

    __slots__ = ("_firsts", "_next_offset", "_offsets", "_times")

    def __init__(self) -> None:
        self._firsts = array("Q")
        self._offsets = array("Q")
        self._times = array("q")
        self._next_offset = 0

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def oldest_ms(self) -> int | None:
        """Enqueued time of the segment's first batch; None if it is empty."""
        return self._times[0] if self._times else None

    def note(self, first_sequence: int, base_offset: int, enqueued_ms: int) -> None:
        """Add a committed record. Only one per INDEX_INTERVAL_BYTES becomes an entry."""
        if base_offset >= self._next_offset:
            # The offset first: a thread that finds an entry by its time or sequence number must
            # find its offset too.
            self._offsets.append(base_offset)
            self._firsts.append(first_sequence)
            self._times.append(enqueued_ms)
            self._next_offset = base_offset + INDEX_INTERVAL_BYTES

    def before_sequence(self, sequence: int) -> IndexEntry | None:
        """Where to start the search for the record that holds `sequence`; None: at the
        beginning."""
        return self._entry_at(bisect_right(self._firsts, sequence) - 1)

    def before_offset(self, offset: int) -> IndexEntry | None:
        return self._entry_at(bisect_right(self._offsets, offset) - 1)

    def before_time(self, time_ms: int) -> IndexEntry | None:
        """The last entry strictly before `time_ms`: several records may share a millisecond."""
        return self._entry_at(bisect_left(self._times, time_ms) - 1)

    def copy(self) -> SparseIndex:
        copy = SparseIndex()
        for entry in self._entries():
            copy.note(*entry)
        return copy

    def encode(self, base_offset: int, mark: LogMark) -> bytes:
        head = _HEAD.pack(
            base_offset, mark.offset, mark.next_sequence, mark.newest_ms, mark.last_offset
        )
        entries = [_ENTRY.pack(*entry) for entry in self._entries()]
        return add_checksum(INDEX_MAGIC, head + b"".join(entries))

    def _entries(self) -> Iterator[tuple[int, int, int]]:
        return zip(self._firsts, self._offsets, self._times, strict=True)

    def _entry_at(self, entry: int) -> IndexEntry | None:
        return IndexEntry(self._offsets[entry], self._firsts[entry]) if entry >= 0 else None


def decode_index(content: bytes, base_offset: int) -> tuple[SparseIndex, LogMark] | None:
    """The index and the mark that it covers; None if it belongs to another segment or is
    damaged."""
    body = remove_checksum(INDEX_MAGIC, content)
    if body is None or len(body) < _HEAD.size or (len(body) - _HEAD.size) % _ENTRY.size:
        return None
    base, through, next_sequence, newest_ms, last_offset = _HEAD.unpack_from(body)
    if base != base_offset:
        return None
    index = SparseIndex()
    for entry in _ENTRY.iter_unpack(body[_HEAD.size :]):
        index.note(*entry)
    return index, LogMark(through, next_sequence, newest_ms, last_offset)
