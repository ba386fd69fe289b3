"""What is written for a partition: calls, segments, reserved blocks, marks and stamps."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.unit.log.embedded.bench import NOW, SIZE, Bench, batch

from penstock.log.embedded import writer
from penstock.log.embedded.files import Files
from penstock.log.embedded.segment import SEGMENT_HEADER_BYTES
from penstock.log.producer_state import decode_producers
from penstock.model.events import EventBatch, ProducerStamp, Receipt

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


def test_large_flight_is_written_in_several_calls_of_many_buffers(bench: Bench) -> None:
    outcomes = bench.append(*[batch(number) for number in range(3000)])
    assert [o.first_sequence for o in outcomes if isinstance(o, Receipt)] == list(range(3000))


def test_flush_os_never_flushes_for_an_append(tmp_path: Path) -> None:
    bench = Bench(tmp_path, flush="os")
    bench.append(batch(0))
    flushes = bench.files.flushes
    for number in range(20):
        bench.append(batch(number))
    assert bench.files.flushes == flushes
    bench.store.close()
    assert bench.files.flushes == flushes + 1  # a clean shutdown leaves everything on disk


def test_segments_roll_at_their_size_and_reserved_blocks_are_released(tmp_path: Path) -> None:
    bench = Bench(tmp_path, segment_bytes=SEGMENT_HEADER_BYTES + 3 * SIZE)
    bench.append(*[batch(number) for number in range(10)])
    bench.store.close()
    sizes = [path.stat().st_size for path in bench.segments()]
    assert sizes == [SEGMENT_HEADER_BYTES + n * SIZE for n in (3, 3, 3, 1)]
    for path in bench.segments():
        assert path.stat().st_blocks * 512 <= 8192
    assert bench.files.reserved == []  # nothing ahead of a segment that is still small


def test_record_larger_than_a_segment_gets_one_of_its_own(tmp_path: Path) -> None:
    bench = Bench(tmp_path, segment_bytes=2000)
    for size in (10, 5000, 10):
        bench.append(batch(0, size))
    assert len(bench.segments()) == 3
    assert len(bench.partition().read(0, bytes_max=1 << 20)) == 3
    bench.store.close()


def test_blocks_are_reserved_in_growing_steps(bench: Bench) -> None:
    for _ in range(40):
        bench.append(*[batch(0, 100_000) for _ in range(10)])
    assert bench.files.reserved[0] >= 1 << 20
    assert len(bench.files.reserved) < 12
    assert max(bench.files.reserved) < 18 << 20


def marks(bench: Bench) -> list[str]:
    folder = bench.directory / "hub" / "0"
    return sorted(path.suffix for path in folder.iterdir() if path.suffix != ".log")


def test_mark_is_left_every_so_many_bytes(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "MARK_INTERVAL_BYTES", 1000)
    bench.append(batch(0, 500))
    bench.settle()
    assert marks(bench) == []
    bench.append(batch(1, 500))
    bench.settle()
    assert marks(bench) == [".index", ".producers"]


def test_mark_is_left_after_so_many_records(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "MARK_INTERVAL_RECORDS", 10)
    bench.append(*[batch(number) for number in range(9)])
    bench.settle()
    assert marks(bench) == []
    bench.append(batch(9))
    bench.settle()
    assert marks(bench) == [".index", ".producers"]


def test_reopened_store_writes_nothing_when_nothing_was_appended(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.append(batch(0))
    bench.store.close()
    again = Bench(tmp_path)
    again.partition()
    again.store.close()
    assert again.files.writes == 0
    assert again.files.flushes == 0


@pytest.mark.parametrize("flush", ["disk", "os"])
@pytest.mark.parametrize("is_marked", [False, True], ids=["no pass", "after a retention pass"])
def test_partition_with_one_small_event_takes_little_disk_space(
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
    Files().allocate(fd, 0, 1024 * KB)
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
