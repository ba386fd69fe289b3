"""The sparse index of a segment and its file."""

from __future__ import annotations

from penstock.log.checksummed_file import add_checksum
from penstock.log.embedded.index import (
    INDEX_INTERVAL_BYTES,
    IndexEntry,
    LogMark,
    SparseIndex,
    decode_index,
)


def filled_index() -> SparseIndex:
    index = SparseIndex()
    for number in range(100):
        index.note(number * 10, number * 20_000, number // 2)
    return index


def test_index_remembers_about_one_record_per_interval() -> None:
    index = filled_index()
    assert len(index) == 25  # every fourth: the first one 64 KB or more behind the last
    assert index.oldest_ms == 0
    assert SparseIndex().oldest_ms is None
    assert 4 * 20_000 >= INDEX_INTERVAL_BYTES > 3 * 20_000


def test_index_finds_the_nearest_entry_before() -> None:
    index = filled_index()
    assert index.before_sequence(39) == IndexEntry(0, 0)
    assert index.before_sequence(40) == IndexEntry(80_000, 40)
    assert index.before_sequence(10_000) == IndexEntry(96 * 20_000, 960)
    assert index.before_offset(79_999) == IndexEntry(0, 0)
    assert index.before_offset(80_000) == IndexEntry(80_000, 40)
    assert index.before_time(2) == IndexEntry(0, 0)
    assert index.before_time(3) == IndexEntry(80_000, 40)
    assert index.before_time(0) is None
    assert SparseIndex().before_sequence(5) is None


def test_index_file_is_read_back() -> None:
    mark = LogMark(2_000_000, 1000, 49, 1_999_000)
    content = filled_index().encode(0, mark)
    found = decode_index(content, 0)
    assert found is not None
    index, read = found
    assert read == mark
    assert index.encode(0, mark) == content
    assert decode_index(content, 1) is None
    assert decode_index(content[:-1], 0) is None
    assert decode_index(add_checksum(b"PNSTKIDX", b"short"), 0) is None
    assert decode_index(add_checksum(b"PNSTKIDX", bytes(41)), 0) is None
