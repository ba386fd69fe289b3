"""Indexes of closed segments and the positions at which readers stopped."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.log.embedded.bench import NOW, SIZE, Bench, batch

from penstock.log.embedded import reader
from penstock.log.embedded.segment import SEGMENT_HEADER_BYTES


def test_few_indexes_stay_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader.SegmentIndexes.__init__, "__kwdefaults__", {"indexes_max": 3})
    bench = Bench(tmp_path, segment_bytes=SEGMENT_HEADER_BYTES + SIZE)
    bench.append(*[batch(number) for number in range(10)])
    for sequence in (0, 5, 2, 9, 7, 0):
        assert bench.partition().read(sequence, bytes_max=1)[0].first_sequence == sequence
    assert len(bench.store._indexes) <= 3
    bench.store.close()


def test_many_readers_continue_where_they_stopped(bench: Bench) -> None:
    log = bench.partition()
    bench.append(*[batch(number) for number in range(600)])
    for _ in range(2):
        for sequence in range(600):
            assert log.read(sequence, bytes_max=1)[0].first_sequence == sequence
    assert len(log._reader._stops) <= 256


def test_index_of_a_segment_closed_since_the_view_was_taken_is_whole(tmp_path: Path) -> None:
    bench = Bench(tmp_path, segment_bytes=SEGMENT_HEADER_BYTES + 4 * SIZE)
    bench.append(batch(0))
    view = bench.partition().view
    bench.append(*[batch(number) for number in range(1, 6)])
    index = bench.directory / "hub" / "0" / "00000000000000000000.index"
    before = index.read_bytes()
    for _ in range(2):
        found = bench.partition()._reader.read(view, 0, bytes_max=1 << 20)
        assert [b.first_sequence for b in found] == [0]
        assert index.read_bytes() == before
    bench.store.close()


def closed_segments(directory: Path) -> Bench:
    bench = Bench(directory, segment_bytes=200)
    for number in range(4):
        bench.append(batch(number))
    return bench


def test_index_rebuilt_for_a_segment_that_retention_removed_does_not_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = closed_segments(tmp_path)
    victim = bench.segments()[0]
    index = victim.with_suffix(".index")
    index.unlink()
    rename = bench.files.rename

    def removed_meanwhile(old: Path, new: Path) -> None:
        if new == index:
            victim.unlink()
        rename(old, new)

    monkeypatch.setattr(bench.files, "rename", removed_meanwhile)
    assert bench.partition().read(0, bytes_max=1)[0].first_sequence == 0
    assert not victim.exists()
    assert not index.exists()
    bench.store.close()


def test_index_rebuilt_while_retention_removes_the_segment_does_not_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = closed_segments(tmp_path)
    victim = bench.segments()[0]
    index = victim.with_suffix(".index")
    unlink = bench.files.unlink

    def written_meanwhile(path: Path) -> None:
        if path == victim:
            index.write_bytes(b"rebuilt by a reader")
        unlink(path)

    monkeypatch.setattr(bench.files, "unlink", written_meanwhile)
    bench.store.enforce_retention("hub", retention_ms=1, now_ms=NOW + 10)
    bench.settle()
    bench.store.close()
    assert not victim.exists()
    assert not index.exists()
