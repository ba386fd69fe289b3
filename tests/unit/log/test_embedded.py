"""The store on disk beyond the contract: group commit, files, descriptors, marks, threads."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Literal

import pytest

from penstock.log.embedded import file_handles, reader, writer
from penstock.log.embedded.committer import FLUSH_HELPERS
from penstock.log.embedded.file_handles import FileHandleCache
from penstock.log.embedded.files import OsFiles
from penstock.log.embedded.partition import EmbeddedPartition
from penstock.log.embedded.record import RECORD_HEADER_BYTES
from penstock.log.embedded.segment import SEGMENT_HEADER_BYTES, Segment, SegmentHeader
from penstock.log.embedded.store import EmbeddedLogStore
from penstock.model.errors import InternalError, LogCorrupt, OperationCancelled, PenstockError
from penstock.model.events import EventBatch, Receipt
from penstock.model.positions import Position, PositionKind

NOW = 1_700_000_000_000
DEADLINE_S = 20


class WatchedFiles(OsFiles):
    """Counts flushes and open files; can hold a flush back until a test lets it go."""

    def __init__(self) -> None:
        self.flushes = 0
        self.writes = 0
        self.open_fds: set[int] = set()
        self.gate: threading.Event | None = None
        self.is_flushing = threading.Event()
        self.reserved: list[int] = []

    def open(self, path: Path, *, create: bool = False, write: bool = True) -> int:
        fd = super().open(path, create=create, write=write)
        self.open_fds.add(fd)
        return fd

    def close(self, fd: int) -> None:
        self.open_fds.remove(fd)
        super().close(fd)

    def pwritev(self, fd: int, buffers: object, position: int) -> int:
        self.writes += 1
        return super().pwritev(fd, buffers, position)  # type: ignore[arg-type]  # passed through

    def fdatasync(self, fd: int) -> None:
        self.flushes += 1
        self.is_flushing.set()
        if self.gate is not None:
            assert self.gate.wait(DEADLINE_S)

    def allocate(self, fd: int, position: int, size: int) -> None:
        self.reserved.append(size)
        super().allocate(fd, position, size)

    def fsync_directory(self, path: Path) -> None:
        pass


class Bench:
    def __init__(
        self,
        directory: Path,
        *,
        flush: Literal["disk", "os"] = "disk",
        segment_bytes: int = 1 << 26,
        tail_cache_bytes: int = 1 << 22,
    ) -> None:
        self.directory = directory
        self.files = WatchedFiles()
        self.turns: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.store = EmbeddedLogStore(
            directory,
            wake=self.turns.put,
            files=self.files,
            flush=flush,
            segment_bytes=segment_bytes,
            tail_cache_bytes=tail_cache_bytes,
        )

    def partition(self, index: int = 0, hub: str = "hub") -> EmbeddedPartition:
        found = self.store.partition(hub, index)
        assert isinstance(found, EmbeddedPartition)
        return found

    def start(self, *batches: EventBatch, index: int = 0) -> list[Receipt | PenstockError]:
        outcomes: list[Receipt | PenstockError] = []
        for item in batches:
            self.partition(index).append(item, now_ms=NOW, done=outcomes.append)
        return outcomes

    def append(self, *batches: EventBatch, index: int = 0) -> list[Receipt | PenstockError]:
        outcomes = self.start(*batches, index=index)
        self.turn(lambda: len(outcomes) == len(batches))
        return outcomes

    def turn(self, until: Callable[[], bool]) -> None:
        while not until():
            self.turns.get(timeout=DEADLINE_S)()

    def settle(self) -> None:
        """What a round leaves to be done is done before the next round's outcome is told."""
        for _ in range(2):
            self.append(batch(0), index=31)
        try:
            while True:
                self.turns.get_nowait()()
        except Empty:
            return

    def segments(self, index: int = 0) -> list[Path]:
        return sorted((self.directory / "hub" / str(index)).glob("*.log"))


def batch(number: int, size: int = 40) -> EventBatch:
    body = f"{number}".encode().ljust(size, b"x")
    head = b"\x00\x53\x75\xb0" + len(body).to_bytes(4, "big")
    return EventBatch(head + body, 1)


SIZE = RECORD_HEADER_BYTES + len(batch(0).sections)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path / "data")
    yield made
    made.store.close()
    assert made.files.open_fds == set()


# --- group commit ---------------------------------------------------------------------------------


def test_appends_that_come_during_a_flush_share_the_next_one(bench: Bench) -> None:
    bench.append(batch(0))
    bench.files.gate = threading.Event()
    bench.files.is_flushing.clear()
    first = bench.start(batch(1))
    assert bench.files.is_flushing.wait(DEADLINE_S)
    flushes, writes = bench.files.flushes, bench.files.writes
    others = bench.start(*[batch(number) for number in range(2, 502)])
    bench.files.gate.set()
    bench.turn(lambda: len(others) == 500)
    assert len(first) == 1
    assert bench.files.flushes == flushes + 1
    assert bench.files.writes == writes + 1
    assert [o.first_sequence for o in others if isinstance(o, Receipt)] == list(range(2, 502))


def test_large_flight_is_written_in_several_calls_of_many_buffers(bench: Bench) -> None:
    outcomes = bench.append(*[batch(number) for number in range(3000)])
    assert [o.first_sequence for o in outcomes if isinstance(o, Receipt)] == list(range(3000))


def test_round_is_bounded_so_that_the_first_hear_soon(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.log.embedded.committer.next_round_bytes", lambda *_: 10 * SIZE)
    bench.append(batch(0))
    bench.files.gate = threading.Event()
    bench.files.is_flushing.clear()
    first = bench.start(batch(1))
    assert bench.files.is_flushing.wait(DEADLINE_S)
    flushes = bench.files.flushes
    others = bench.start(*[batch(number) for number in range(100)])
    bench.files.gate.set()
    bench.turn(lambda: len(others) == 100)
    assert len(first) == 1
    assert bench.files.flushes == flushes + 10


# The larger ones are written and flushed each in a thread of its own.
@pytest.mark.parametrize("size", [40, 60_000])
def test_partitions_of_one_round_are_flushed_each_once(bench: Bench, size: int) -> None:
    for index in range(6):
        bench.append(batch(0), index=index)
    bench.files.gate = threading.Event()
    bench.files.is_flushing.clear()
    bench.start(batch(1))
    assert bench.files.is_flushing.wait(DEADLINE_S)
    flushes = bench.files.flushes
    outcomes = [bench.start(batch(2, size), batch(3, size), index=index) for index in range(6)]
    bench.files.gate.set()
    bench.turn(lambda: all(len(heard) == 2 for heard in outcomes))
    assert bench.files.flushes == flushes + 6


def test_pending_bytes_are_those_not_yet_settled(bench: Bench) -> None:
    outcomes = bench.start(batch(0), batch(1))
    assert bench.store.pending_bytes == 2 * SIZE
    bench.turn(lambda: len(outcomes) == 2)
    assert bench.store.pending_bytes == 0


def test_flush_os_never_flushes_for_an_append(tmp_path: Path) -> None:
    bench = Bench(tmp_path, flush="os")
    bench.append(batch(0))
    flushes = bench.files.flushes
    for number in range(20):
        bench.append(batch(number))
    assert bench.files.flushes == flushes
    bench.store.close()
    assert bench.files.flushes == flushes + 1  # a clean shutdown leaves everything on disk


def test_partitions_start_no_threads_of_their_own(tmp_path: Path) -> None:
    before = threading.active_count()
    bench = Bench(tmp_path)
    for index in range(32):
        bench.partition(index)
    assert threading.active_count() == before + 1 + FLUSH_HELPERS
    bench.append(batch(0))
    assert threading.active_count() == before + 1 + FLUSH_HELPERS
    bench.store.close()
    assert threading.active_count() == before


def test_owner_whose_loop_is_closed_hears_of_its_appends_in_close(tmp_path: Path) -> None:
    def wake(fn: Callable[[], None]) -> None:
        raise RuntimeError("Event loop is closed")

    store = EmbeddedLogStore(tmp_path, wake=wake)
    outcomes: list[Receipt | PenstockError] = []
    store.partition("hub", 0).append(batch(0), now_ms=NOW, done=outcomes.append)
    store.close()
    assert [type(outcome) for outcome in outcomes] == [Receipt]


def test_append_after_close_is_cancelled(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    log = bench.partition()
    bench.append(batch(0))
    bench.store.close()
    outcomes: list[Receipt | PenstockError] = []
    log.append(batch(1), now_ms=NOW, done=outcomes.append)
    bench.turn(lambda: bool(outcomes))
    assert type(outcomes[0]) is OperationCancelled


def test_close_from_another_thread_leaves_the_news_to_the_owner(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    heard: list[int] = []
    for _ in range(10):
        bench.partition().append(
            batch(0), now_ms=NOW, done=lambda _: heard.append(threading.get_ident())
        )
    closing = threading.Thread(target=bench.store.close)
    closing.start()
    closing.join(DEADLINE_S)
    assert heard == []
    bench.turn(lambda: len(heard) == 10)
    assert set(heard) == {threading.get_ident()}
    bench.store.close()  # once more is nothing


def test_callback_of_the_store_that_fails_does_not_end_the_committer(bench: Bench) -> None:
    def broken() -> None:
        raise ValueError("a bug")

    bench.store._committer.run_on_committer(broken)
    bench.store._committer.run_on_helper(broken)
    bench.store._committer.run_on_owner(broken)
    assert isinstance(bench.append(batch(0))[0], Receipt)


# --- files ----------------------------------------------------------------------------------------


def test_opened_partition_costs_no_file_until_it_is_written(bench: Bench) -> None:
    for hub in range(20):
        for index in range(32):
            bench.partition(index, f"hub-{hub}")
    assert bench.files.open_fds == set()
    assert sorted(path.name for path in bench.directory.iterdir()) == ["format.json", "lock"]


def test_segments_roll_at_their_size_and_room_ahead_is_given_back(tmp_path: Path) -> None:
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


def test_room_is_reserved_in_growing_steps(bench: Bench) -> None:
    for _ in range(40):
        bench.append(*[batch(0, 100_000) for _ in range(10)])
    assert bench.files.reserved[0] >= 1 << 20
    assert len(bench.files.reserved) < 12
    assert max(bench.files.reserved) < 18 << 20


def test_few_files_stay_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_handles, "HANDLES_MAX", 8)
    monkeypatch.setattr(FileHandleCache.__init__, "__kwdefaults__", {"handles_max": 8})
    bench = Bench(tmp_path, segment_bytes=SEGMENT_HEADER_BYTES + SIZE)
    for index in range(20):
        bench.append(*[batch(number) for number in range(5)], index=index)
    assert len(bench.files.open_fds) <= 8
    for index in range(20):
        for sequence in range(5):
            assert bench.partition(index).read(sequence, bytes_max=1)
    assert len(bench.files.open_fds) <= 8
    bench.store.close()
    assert bench.files.open_fds == set()


def test_few_indexes_stay_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader.SegmentIndexes.__init__, "__kwdefaults__", {"indexes_max": 3})
    bench = Bench(tmp_path, segment_bytes=SEGMENT_HEADER_BYTES + SIZE)
    bench.append(*[batch(number) for number in range(10)])
    for sequence in (0, 5, 2, 9, 7, 0):
        assert bench.partition().read(sequence, bytes_max=1)[0].first_sequence == sequence
    assert len(bench.store._indexes) <= 3
    bench.store.close()


def test_handle_in_use_outlives_being_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_bytes(b"hello")
    files = WatchedFiles()
    cache = FileHandleCache(files)
    segment = Segment(path, SegmentHeader(0, 0, -1, 0, 0, 0))
    handle = cache.acquire(segment)
    assert cache.acquire(segment) is handle
    path.unlink()
    cache.forget(segment)
    cache.forget(segment)
    assert files.pread(handle.fd, 5, 0) == b"hello"
    cache.release(handle)
    cache.release(handle)
    assert files.open_fds == set()
    assert len(cache) == 0


def test_read_only_file_system_still_serves(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.append(batch(0))
    bench.store._handles.close()
    opened = bench.files.open

    def read_only(path: Path, *, create: bool = False, write: bool = True) -> int:
        if write:
            raise OSError(errno.EROFS, "read-only file system", str(path))
        return opened(path, create=create, write=write)

    with monkeypatch.context() as patch:
        patch.setattr(bench.files, "open", read_only)
        assert len(bench.partition().read(0, bytes_max=1)) == 1
        patch.setattr(bench.files, "open", lambda *_, **__: _raise(errno.EMFILE))
        bench.store._handles.close()
        with pytest.raises(InternalError, match="cannot be read"):
            bench.partition().read(0, bytes_max=1)


def _raise(code: int) -> int:
    raise OSError(code, os.strerror(code))


def test_many_readers_that_stop_and_go_on_find_their_places(bench: Bench) -> None:
    log = bench.partition()
    bench.append(*[batch(number) for number in range(600)])
    for _ in range(2):
        for sequence in range(600):
            assert log.read(sequence, bytes_max=1)[0].first_sequence == sequence
    assert len(log._reader._resumes) <= 256


def test_index_of_a_segment_closed_since_the_view_was_taken_is_whole(tmp_path: Path) -> None:
    bench = Bench(tmp_path, segment_bytes=SEGMENT_HEADER_BYTES + 4 * SIZE)
    bench.append(batch(0))
    view = bench.partition()._view
    bench.append(*[batch(number) for number in range(1, 6)])
    index = bench.directory / "hub" / "0" / "00000000000000000000.index"
    before = index.read_bytes()
    for _ in range(2):
        found = bench.partition()._reader.read(view, 0, bytes_max=1 << 20)
        assert [b.first_sequence for b in found] == [0]
        assert index.read_bytes() == before
    bench.store.close()


# --- marks ----------------------------------------------------------------------------------------


def marks(bench: Bench) -> list[str]:
    folder = bench.directory / "hub" / "0"
    return sorted(path.suffix for path in folder.iterdir() if path.suffix != ".log")


def test_mark_is_left_every_so_many_bytes(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "CHECKPOINT_BYTES", 1000)
    bench.append(batch(0, 500))
    bench.settle()
    assert marks(bench) == []
    bench.append(batch(1, 500))
    bench.settle()
    assert marks(bench) == [".index", ".producers"]


def test_mark_is_left_after_so_many_records(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "CHECKPOINT_RECORDS", 10)
    bench.append(*[batch(number) for number in range(9)])
    bench.settle()
    assert marks(bench) == []
    bench.append(batch(9))
    bench.settle()
    assert marks(bench) == [".index", ".producers"]


def test_maintenance_leaves_a_mark_so_that_old_damage_is_not_taken_for_a_torn_tail(
    bench: Bench, tmp_path: Path
) -> None:
    bench.append(batch(0))
    bench.store.enforce_retention("hub", retention_ms=10**9, now_ms=NOW)
    bench.settle()
    crashed = tmp_path / "crashed"
    for path in (bench.directory / "hub" / "0").iterdir():
        copy = crashed / "hub" / "0" / path.name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(
            path.read_bytes()[:-1] + b"?" if path.suffix == ".log" else path.read_bytes()
        )
    again = Bench(crashed)
    assert again.partition().status().last_sequence == 0
    with pytest.raises(LogCorrupt, match="events 0 to 0 cannot be read"):
        again.partition().read(0, bytes_max=1)
    again.store.close()


def test_reopened_store_writes_nothing_when_nothing_was_appended(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.append(batch(0))
    bench.store.close()
    again = Bench(tmp_path)
    again.partition()
    again.store.close()
    assert again.files.writes == 0
    assert again.files.flushes == 0


# --- retention ------------------------------------------------------------------------------------


def test_retention_removes_whole_segments_and_their_derived_files(tmp_path: Path) -> None:
    bench = Bench(tmp_path, segment_bytes=SEGMENT_HEADER_BYTES + 2 * SIZE)
    for number in range(10):
        outcomes: list[Receipt | PenstockError] = []
        bench.partition().append(batch(number), now_ms=NOW + number, done=outcomes.append)
        bench.turn(lambda outcomes=outcomes: bool(outcomes))  # type: ignore[misc]  # a lambda's default has no type
    freed = bench.store.enforce_retention("hub", retention_ms=1000, now_ms=NOW + 1005)
    assert freed == 4 * SIZE
    assert bench.partition().status().begin_sequence == 4
    bench.store.close()
    kept = {path.stem for path in bench.segments()}
    assert min(kept) == f"{4 * SIZE:020d}"
    folder = bench.directory / "hub" / "0"
    assert {path.stem for path in folder.iterdir()} == kept
    again = Bench(tmp_path)
    assert again.partition().status().begin_sequence == 4
    again.store.close()


def test_slow_partition_rolls_early_so_that_its_events_go_in_time(bench: Bench) -> None:
    bench.append(batch(0))
    day = 24 * 3600 * 1000
    for hours in (0, 5):
        bench.store.enforce_retention("hub", retention_ms=day, now_ms=NOW + hours * day // 24)
        bench.settle()
        assert len(bench.segments()) == 1
    bench.store.enforce_retention("hub", retention_ms=day, now_ms=NOW + 7 * day // 24)
    bench.settle()
    assert len(bench.segments()) == 2
    assert bench.partition().status().begin_sequence == 0
    bench.store.enforce_retention("hub", retention_ms=day, now_ms=NOW + day + 1)
    assert bench.partition().status().is_empty


def test_retention_reaches_partitions_that_were_not_opened(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.append(batch(0), index=3)
    bench.store.close()
    again = Bench(tmp_path)
    assert again.store.enforce_retention("hub", retention_ms=1, now_ms=NOW + 10) == SIZE
    again.store.close()


def test_readers_at_the_edge_never_see_wrong_events_while_segments_go(tmp_path: Path) -> None:
    bench = Bench(tmp_path, segment_bytes=SEGMENT_HEADER_BYTES + 2 * SIZE, tail_cache_bytes=1)
    log = bench.partition()
    faults: list[BaseException] = []
    is_over = threading.Event()

    def read_on() -> None:
        sequence = 0
        try:
            while not is_over.is_set():
                for found in log.read(sequence, bytes_max=500):
                    assert found.first_sequence >= sequence
                    assert found.sections == batch(found.first_sequence).sections
                    sequence = found.next_sequence
                log.locate(Position(PositionKind.ENQUEUED_TIME, NOW + sequence, True))
                log.locate(Position(PositionKind.OFFSET, 0, True))
                sequence = max(0, sequence - 6)
        except BaseException as fault:  # noqa: BLE001 - told to the test's own thread
            faults.append(fault)

    readers = [threading.Thread(target=read_on) for _ in range(3)]
    outcomes: list[Receipt | PenstockError] = []
    log.append(batch(0), now_ms=NOW, done=outcomes.append)
    bench.turn(lambda: len(outcomes) == 1)
    for thread in readers:
        thread.start()
    for number in range(1, 150):
        log.append(batch(number), now_ms=NOW + number, done=outcomes.append)
        bench.turn(lambda number=number: len(outcomes) == number + 1)  # type: ignore[misc]  # a lambda's default has no type
        bench.store.enforce_retention("hub", retention_ms=5, now_ms=NOW + number)
    is_over.set()
    for thread in readers:
        thread.join(DEADLINE_S)
    bench.store.close()
    assert faults == []
    assert log.status().begin_sequence > 100


def test_segment_file_that_somebody_removed_is_named(tmp_path: Path) -> None:
    bench = Bench(tmp_path, segment_bytes=SEGMENT_HEADER_BYTES + SIZE)
    bench.append(batch(0), batch(1))
    bench.store._handles.close()
    bench.segments()[0].unlink()
    with pytest.raises(LogCorrupt, match=r"00000000000000000000\.log is missing"):
        bench.partition().read(0, bytes_max=1)
    assert bench.partition().read(1, bytes_max=1)
    bench.store.close()


# --- dropping -------------------------------------------------------------------------------------


def test_dropped_hub_leaves_no_file(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "data")
    bench.append(batch(0), index=1)
    bench.store.drop("hub")
    bench.store.close()
    assert sorted(p.name for p in (tmp_path / "data").iterdir()) == ["format.json", "lock"]


def test_hub_whose_dropping_was_interrupted_goes_at_the_next_start(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "data")
    bench.append(batch(0))
    bench.store.close()
    (tmp_path / "data" / "hub").rename(tmp_path / "data" / ".dropped-hub-0")
    again = Bench(tmp_path / "data")
    again.store.close()
    assert sorted(p.name for p in (tmp_path / "data").iterdir()) == ["format.json", "lock"]


def test_append_under_way_when_the_hub_is_dropped_is_cancelled(bench: Bench) -> None:
    bench.append(batch(0))
    bench.files.gate = threading.Event()
    bench.files.is_flushing.clear()
    outcomes = bench.start(batch(1))
    assert bench.files.is_flushing.wait(DEADLINE_S)
    outcomes_later = bench.start(batch(2))
    bench.store.drop("hub")
    bench.files.gate.set()
    bench.turn(lambda: len(outcomes) == 1 and len(outcomes_later) == 1)
    assert type(outcomes[0]) is type(outcomes_later[0]) is OperationCancelled
