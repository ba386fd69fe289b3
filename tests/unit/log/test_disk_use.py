"""What a partition takes on disk: little while it holds little, and nothing that nobody owns."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from tests.unit.log.test_embedded import NOW, Bench, batch

from penstock.log.embedded.files import OsFiles
from penstock.log.producer_state import decode_producers
from penstock.model.events import EventBatch, ProducerStamp

KB = 1024
CLEAN_BYTES_MAX = 24 * KB  # after a clean stop, with blocks of 4 KB
OPEN_BYTES_MAX = 64 * KB
HOUR_MS = 3_600_000


def used_bytes(folder: Path) -> int:
    """As `du` counts: blocks of the files and of the directory."""
    return sum(path.stat().st_blocks * 512 for path in (folder, *folder.iterdir()))


def stamped(number: int) -> EventBatch:
    return EventBatch(
        batch(number).sections, 1, producer=ProducerStamp(number % 2, 1, number, number)
    )


@pytest.mark.parametrize("flush", ["disk", "os"])
@pytest.mark.parametrize("is_marked", [False, True], ids=["no pass", "after a retention pass"])
def test_partition_with_one_small_event_takes_little_room(
    tmp_path: Path, flush: str, is_marked: bool
) -> None:
    bench = Bench(tmp_path, flush=flush)  # type: ignore[arg-type]  # the parameter is a plain str
    bench.append(stamped(0))
    folder = tmp_path / "hub" / "0"
    if is_marked:
        bench.store.enforce_retention("hub", retention_ms=HOUR_MS, now_ms=NOW)
        bench.settle()
    assert used_bytes(folder) <= OPEN_BYTES_MAX
    bench.store.close()
    assert used_bytes(folder) <= CLEAN_BYTES_MAX


def test_blocks_that_a_killed_process_had_reserved_are_given_back_by_a_clean_stop(
    tmp_path: Path,
) -> None:
    """As commit 2ffc782 left 1 MB in every partition."""
    bench = Bench(tmp_path)
    bench.append(batch(0))
    bench.store.close()
    folder = tmp_path / "hub" / "0"
    [segment] = folder.glob("*.log")
    fd = os.open(segment, os.O_RDWR)
    OsFiles().allocate(fd, 0, 1024 * KB)
    os.close(fd)
    if used_bytes(folder) < 1024 * KB:
        pytest.skip("this file system does not reserve blocks")
    bench = Bench(tmp_path)
    assert bench.partition().status().last_sequence == 0
    bench.store.close()
    assert used_bytes(folder) <= CLEAN_BYTES_MAX


def test_segment_that_grows_reserves_ahead_and_gives_it_back(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.append(*[batch(n, 100_000) for n in range(9)])
    assert bench.files.reserved == []
    bench.append(*[batch(n, 100_000) for n in range(9)])
    assert bench.files.reserved
    bench.store.close()
    [segment] = (tmp_path / "hub" / "0").glob("*.log")
    assert segment.stat().st_blocks * 512 < segment.stat().st_size + 16 * KB


def test_blocks_for_the_next_start_on_a_full_disk_are_kept_after_a_clean_stop(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path)
    lock = tmp_path / "lock"
    bench.store.close()
    if lock.stat().st_blocks * 512 < 512 * KB:
        pytest.skip("this file system does not reserve blocks")
    assert lock.stat().st_size < 4 * KB
    bench = Bench(tmp_path)
    assert lock.stat().st_blocks * 512 <= 4 * KB
    bench.store.close()


def test_reserve_for_the_next_start_takes_what_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def allocate(files: OsFiles, fd: int, position: int, size: int) -> None:
        asked.append(size)
        if size > 128 * KB:
            raise OSError(errno.ENOSPC, "No space left on device")

    bench = Bench(tmp_path)
    monkeypatch.setattr(OsFiles, "allocate", allocate)
    bench.store.reserve_space()
    assert asked == [512 * KB, 256 * KB, 128 * KB]
    bench.store.close()


# --- derived files --------------------------------------------------------------------------------


def test_stamps_are_flushed_before_they_replace_those_of_dropped_records(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.append(stamped(0))
    before = bench.files.flushes
    bench.store.enforce_retention("hub", retention_ms=HOUR_MS, now_ms=NOW)
    bench.settle()
    others = 2  # the rounds of `settle` itself
    first = 1  # and the segment that they begin
    assert bench.files.flushes == before + 1 + others + first
    [path] = (tmp_path / "hub" / "0").glob("*.producers")
    found = decode_producers(path.read_bytes())
    assert found is not None
    assert found[0].get(0) == ProducerStamp(0, 1, 0, 0)
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
