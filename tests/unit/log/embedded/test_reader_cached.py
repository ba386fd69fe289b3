"""Readers of older batches, served from the page cache without a thread."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue

import pytest

from penstock.log.embedded.files import Files
from penstock.log.embedded.partition import EmbeddedPartition
from penstock.log.embedded.reader import CACHED_READ_BYTES
from penstock.log.embedded.record import RECORD_HEADER_BYTES
from penstock.log.embedded.segment import SEGMENT_HEADER_BYTES
from penstock.log.embedded.store import EmbeddedLogStore
from penstock.model.errors import LogCorrupt, PenstockError
from penstock.model.events import EventBatch, Receipt, StoredBatch

NOW = 1_700_000_000_000
DEADLINE_S = 20
EVENT_BYTES = 1000


class MemoryFiles(Files):
    """A file system whose files are in memory as far as the test says."""

    def __init__(self) -> None:
        self.reads = 0
        self.cached_bytes = 1 << 30
        self.error: int | None = None

    def pread(self, fd: int, size: int, position: int) -> bytes:
        self.reads += 1
        return super().pread(fd, size, position)

    def pread_cached(self, fd: int, buffer: memoryview, position: int) -> int:
        if self.error is not None:
            raise OSError(self.error, os.strerror(self.error))
        return os.preadv(fd, [buffer[: self.cached_bytes]], position) if self.cached_bytes else 0


class Bench:
    """A store that keeps next to nothing in its own memory."""

    def __init__(self, directory: Path, segment_bytes: int = 1 << 26) -> None:
        self.directory = directory
        self.files = MemoryFiles()
        self._turns: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.store = EmbeddedLogStore(
            directory,
            wake=self._turns.put,
            files=self.files,
            segment_bytes=segment_bytes,
            tail_cache_bytes=1,
        )
        found = self.store.partition("hub", 0)
        assert isinstance(found, EmbeddedPartition)
        self.log = found

    def publish(self, *sizes: int) -> None:
        outcomes: list[Receipt | PenstockError] = []
        for number, size in enumerate(sizes):
            self.log.append(batch(number, size), now_ms=NOW, done=outcomes.append)
        while len(outcomes) < len(sizes):
            self._turns.get(timeout=DEADLINE_S)()
        assert all(isinstance(outcome, Receipt) for outcome in outcomes)

    def begin(self) -> int:
        """Read the first batch as every reader does; where to go on."""
        return self.log.read(0, bytes_max=1)[-1].next_sequence

    def go_on(self, sequence: int, *, bytes_max: int = 1 << 20) -> list[StoredBatch]:
        """Everything that is served from memory, in calls as a reader makes them."""
        found: list[StoredBatch] = []
        while batches := self.log.read_cached(sequence, bytes_max=bytes_max):
            found += batches
            sequence = batches[-1].next_sequence
        return found


def batch(number: int, size: int) -> EventBatch:
    body = f"{number}".encode().ljust(size, b"x")
    return EventBatch(b"\x00\x53\x75\xb0" + len(body).to_bytes(4, "big") + body, 1)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path / "data")
    yield made
    made.store.close()


@pytest.mark.parametrize(
    ("sizes", "bytes_max"),
    [
        ([EVENT_BYTES] * 40, 1),
        ([EVENT_BYTES] * 40, 3000),
        ([EVENT_BYTES] * 40, 1 << 20),
        (list(range(1, 4000, 100)), 9000),
        (list(range(1, 4000, 100)), 1 << 20),
        (list(range(4000, 1, -100)), 9000),
    ],
)
def test_reader_that_continues_is_served_from_the_page_cache(
    bench: Bench, sizes: list[int], bytes_max: int
) -> None:
    bench.publish(*sizes)
    sequence = bench.begin()
    expected = bench.log.read(sequence, bytes_max=1 << 30)
    sequence = bench.begin()  # reading all of it has moved the mark to the end
    reads = bench.files.reads
    assert bench.go_on(sequence, bytes_max=bytes_max) == expected
    assert bench.files.reads == reads


def test_cached_read_is_limited_to_the_requested_bytes(bench: Bench) -> None:
    bench.publish(*[EVENT_BYTES] * 40)
    found = bench.log.read_cached(bench.begin(), bytes_max=5 * EVENT_BYTES)
    assert found is not None
    assert [each.first_sequence for each in found] == [1, 2, 3, 4]


def test_read_without_a_byte_limit_does_not_use_the_page_cache(bench: Bench) -> None:
    bench.publish(*[EVENT_BYTES] * 4)
    assert bench.log.read_cached(bench.begin()) is None


def test_reader_at_an_unknown_position_must_read_from_disk(bench: Bench) -> None:
    bench.publish(*[EVENT_BYTES] * 4)
    assert bench.log.read_cached(2, bytes_max=1 << 20) is None


@pytest.mark.parametrize("cached_bytes", [0, 10, 64, 200])
def test_record_that_is_not_whole_in_memory_is_left_to_the_disk(
    bench: Bench, cached_bytes: int
) -> None:
    bench.publish(*[EVENT_BYTES] * 4)
    sequence = bench.begin()
    bench.files.cached_bytes = cached_bytes
    assert bench.log.read_cached(sequence, bytes_max=1 << 20) is None
    assert len(bench.log.read(sequence, bytes_max=1 << 20)) == 3


def test_memory_that_ends_within_a_record_gives_those_before_it(bench: Bench) -> None:
    bench.publish(*[EVENT_BYTES] * 6)
    sequence = bench.begin()
    bench.files.cached_bytes = 2500
    found = bench.log.read_cached(sequence, bytes_max=1 << 20)
    assert found is not None
    assert [each.first_sequence for each in found] == [1, 2]


def test_record_larger_than_the_buffer_is_left_to_the_disk(bench: Bench) -> None:
    bench.publish(10, CACHED_READ_BYTES, 10)
    assert bench.log.read_cached(bench.begin(), bytes_max=1 << 30) is None


def test_segments_end_is_passed_with_the_disks_help(tmp_path: Path) -> None:
    bench = Bench(tmp_path, segment_bytes=5 * EVENT_BYTES)
    bench.publish(*[EVENT_BYTES] * 12)
    found = bench.log.read(0, bytes_max=1)
    while found[-1].next_sequence < 12:
        sequence = found[-1].next_sequence
        more = bench.log.read_cached(sequence, bytes_max=1 << 20)
        found += more if more is not None else bench.log.read(sequence, bytes_max=1)
    assert [each.first_sequence for each in found] == list(range(12))
    bench.store.close()


def test_damage_is_never_served_from_memory_and_named_by_the_disk(bench: Bench) -> None:
    bench.publish(*[EVENT_BYTES] * 6)
    sequence = bench.begin()
    [path] = (bench.directory / "hub" / "0").glob("*.log")
    content = bytearray(path.read_bytes())
    at = content.index(b"3xxx")  # within the fourth event
    content[at + 100] ^= 1
    path.write_bytes(content)
    served = bench.go_on(sequence)
    assert [each.first_sequence for each in served] == [1, 2]
    with pytest.raises(LogCorrupt, match="The events 3 to 3 cannot be read"):
        bench.log.read(3, bytes_max=1)


def test_error_of_the_file_system_is_left_to_the_disk_to_word(bench: Bench) -> None:
    bench.publish(*[EVENT_BYTES] * 4)
    sequence = bench.begin()
    bench.files.error = errno.EIO
    assert bench.log.read_cached(sequence, bytes_max=1 << 20) is None


def test_closed_file_and_a_busy_lock_are_not_waited_for(bench: Bench) -> None:
    bench.publish(*[EVENT_BYTES] * 4)
    sequence = bench.begin()
    handles = bench.store._handles
    with handles._lock:
        assert bench.log.read_cached(sequence, bytes_max=1 << 20) is None
    handles.close()
    assert bench.log.read_cached(sequence, bytes_max=1 << 20) is None
    assert len(bench.log.read(sequence, bytes_max=1 << 20)) == 3


@pytest.mark.parametrize("code", [errno.EAGAIN, errno.EOPNOTSUPP, errno.EIO])
def test_file_system_without_cached_reads_serves_nothing_from_memory(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "preadv", refuse)
    buffer = memoryview(bytearray(10))
    if code == errno.EIO:
        with pytest.raises(OSError, match="Input/output"):
            Files().pread_cached(0, buffer, 0)
    else:
        assert Files().pread_cached(0, buffer, 0) == 0


def test_what_was_just_written_is_in_memory(tmp_path: Path) -> None:
    files = Files()
    fd = files.open(tmp_path / "file", create=True)
    files.pwritev(fd, [b"hello world"], 0)
    buffer = memoryview(bytearray(5))
    count = files.pread_cached(fd, buffer, 6)
    files.close(fd)
    assert count in (0, 5)  # 0 where the file system cannot tell
    assert bytes(buffer[:count]) == b"world"[:count]


@pytest.mark.parametrize("harm", ["removed", "cut in a record", "cut between records", "emptied"])
@pytest.mark.parametrize("bytes_max", [1, 2500, 1 << 20])
def test_consumer_that_reaches_a_gap_gets_an_error_that_names_it(
    tmp_path: Path, harm: str, bytes_max: int
) -> None:
    """As the broker reads: from memory, and from the disk where that has nothing."""
    record = RECORD_HEADER_BYTES + 8 + EVENT_BYTES
    segment_bytes = SEGMENT_HEADER_BYTES + 4 * record
    bench = Bench(tmp_path, segment_bytes)
    bench.publish(*[EVENT_BYTES] * 20)
    bench.store.close()
    victim = sorted((tmp_path / "hub" / "0").glob("*.log"))[2]
    content = victim.read_bytes()
    first = 8  # of the lost events
    match harm:
        case "removed":
            victim.unlink()
        case "emptied":
            victim.write_bytes(b"")
        case "cut between records":
            victim.write_bytes(content[: SEGMENT_HEADER_BYTES + 2 * record])
            first = 10
        case _:
            victim.write_bytes(content[: SEGMENT_HEADER_BYTES + 2 * record - 5])
            first = 9
    bench = Bench(tmp_path, segment_bytes)
    for start, end in ((0, first), (12, 20)):
        sequence = start
        while sequence < end:
            batches = bench.log.read_cached(sequence, bytes_max=bytes_max)
            if batches is None:
                batches = bench.log.read(sequence, bytes_max=bytes_max)
            assert [found.first_sequence for found in batches] == list(
                range(sequence, batches[-1].next_sequence)
            )
            sequence = batches[-1].next_sequence
        assert sequence == end
    for _ in range(2):  # also when the consumer comes back
        assert bench.log.read_cached(first, bytes_max=bytes_max) is None
        with pytest.raises(LogCorrupt, match=f"{first} to 11 cannot be read.* number 12"):
            bench.log.read(first, bytes_max=bytes_max)
    bench.store.close()
