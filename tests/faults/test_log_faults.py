"""A disk that fails: every write and every flush in turn, short writes, no room, room again."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue

import pytest

from penstock.log.embedded.files import Files
from penstock.log.embedded.partition import EmbeddedPartition, RefusedPartition
from penstock.log.embedded.record import RECORD_HEADER_BYTES
from penstock.log.embedded.segment import SEGMENT_HEADER_BYTES
from penstock.log.embedded.store import EmbeddedLogStore
from penstock.model.errors import (
    DataDirectoryError,
    DiskFull,
    InternalError,
    LogCorrupt,
    LogFailed,
    PenstockError,
)
from penstock.model.events import EventBatch, ProducerStamp, Receipt, StoredBatch
from penstock.model.positions import EARLIEST

NOW = 1_700_000_000_000
DEADLINE_S = 20


class FaultyFiles(Files):
    """Counts the calls, and fails those that a test has chosen. Flushes are not waited for."""

    CHANGING = (
        "open",
        "pwritev",
        "fdatasync",
        "truncate",
        "rename",
        "unlink",
        "mkdir",
        "fsync_directory",
    )

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.fault: Callable[[str, str], int | None] = lambda call, path: None
        self.short_by = 0  # bytes that the next write leaves unwritten
        self._paths: dict[int, str] = {}

    def count(self, call: str, part: str = "") -> int:
        return sum(name == call and part in path for name, path in self.calls)

    def _enter(self, call: str, path: str) -> None:
        self.calls.append((call, path))
        code = self.fault(call, path)
        if code is not None:
            raise OSError(code, os.strerror(code))

    def open(self, path: Path, *, create: bool = False, write: bool = True) -> int:
        self._enter("open", str(path))
        fd = super().open(path, create=create, write=write)
        self._paths[fd] = str(path)
        return fd

    def pread(self, fd: int, size: int, position: int) -> bytes:
        self._enter("pread", self._paths[fd])
        return super().pread(fd, size, position)

    def pwritev(self, fd: int, buffers: Sequence[bytes], position: int) -> int:
        self._enter("pwritev", self._paths[fd])
        if self.short_by:
            whole = b"".join(buffers)
            buffers, self.short_by = [whole[: max(1, len(whole) - self.short_by)]], 0
        return super().pwritev(fd, buffers, position)

    def fdatasync(self, fd: int) -> None:
        self._enter("fdatasync", self._paths[fd])

    def truncate(self, fd: int, size: int) -> None:
        self._enter("truncate", self._paths[fd])
        super().truncate(fd, size)

    def rename(self, old: Path, new: Path) -> None:
        self._enter("rename", str(new))
        super().rename(old, new)

    def unlink(self, path: Path) -> None:
        self._enter("unlink", str(path))
        super().unlink(path)

    def mkdir(self, path: Path) -> None:
        self._enter("mkdir", str(path))
        super().mkdir(path)

    def fsync_directory(self, path: Path) -> None:
        self._enter("fsync_directory", str(path))


class Bench:
    """A store over faulty files, with the owner's thread in the test's hand."""

    def __init__(self, directory: Path, files: Files, *, segment_bytes: int = 1 << 26) -> None:
        self._queue: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.store = EmbeddedLogStore(
            directory, wake=self._queue.put, files=files, segment_bytes=segment_bytes
        )

    def partition(self, index: int = 0) -> EmbeddedPartition:
        found = self.store.partition("hub", index)
        assert isinstance(found, EmbeddedPartition)
        return found

    def append(self, *batches: EventBatch, index: int = 0) -> list[Receipt | PenstockError]:
        return self.append_to(self.partition(index), *batches)

    def append_to(
        self, log: EmbeddedPartition | RefusedPartition, *batches: EventBatch
    ) -> list[Receipt | PenstockError]:
        outcomes: list[Receipt | PenstockError] = []
        for item in batches:
            log.append(item, now_ms=NOW, done=outcomes.append)
        while len(outcomes) < len(batches):
            self._queue.get(timeout=DEADLINE_S)()
        return outcomes

    def turn_all(self) -> None:
        try:
            while True:
                self._queue.get_nowait()()
        except Empty:
            return


def batch(number: int, producer: ProducerStamp | None = None) -> EventBatch:
    body = f"event {number}".encode().ljust(40, b".")
    return EventBatch(b"\x00\x53\x75\xa0" + bytes([len(body)]) + body, 1, producer=producer)


SIZE = RECORD_HEADER_BYTES + len(batch(0).sections)


def read_all(log: EmbeddedPartition) -> list[StoredBatch]:
    found: list[StoredBatch] = []
    sequence = 0
    while batches := log.read(sequence, bytes_max=1 << 20):
        found += batches
        sequence = batches[-1].next_sequence
    return found


def sections(batches: list[StoredBatch]) -> list[bytes]:
    return [found.sections for found in batches]


def failing(call: str, part: str, code: int) -> Callable[[str, str], int | None]:
    return lambda name, path: code if name == call and part in path else None


@pytest.fixture
def files() -> FaultyFiles:
    return FaultyFiles()


@pytest.fixture
def bench(tmp_path: Path, files: FaultyFiles) -> Iterator[Bench]:
    made = Bench(tmp_path, files)
    yield made
    files.fault = lambda call, path: None
    made.store.close()


# --- the disk fails for good ----------------------------------------------------------------------


@pytest.mark.parametrize("call", ["pwritev", "fdatasync"])
def test_partition_stops_after_a_failed_write_or_flush(
    bench: Bench, files: FaultyFiles, call: str
) -> None:
    bench.append(batch(0))
    files.fault = failing(call, "/hub/0/", errno.EIO)
    outcomes = bench.append(batch(1), batch(2))
    assert [type(outcome) for outcome in outcomes] == [LogFailed, LogFailed]
    files.fault = lambda name, path: None
    calls = len(files.calls)
    assert type(bench.append(batch(3))[0]) is LogFailed
    assert len(files.calls) == calls  # a stopped partition does not touch the disk again
    status = bench.partition().status()
    assert status.failed is not None
    assert "until the service is restarted" in status.failed
    assert status.last_sequence == 0
    assert sections(read_all(bench.partition())) == [batch(0).sections]


def test_failed_flush_is_never_repeated(bench: Bench, files: FaultyFiles) -> None:
    bench.append(batch(0))
    before = files.count("fdatasync", "/hub/0/")
    files.fault = failing("fdatasync", "/hub/0/", errno.EIO)
    bench.append(batch(1))
    files.fault = lambda name, path: None
    bench.append(batch(2))
    bench.append(batch(3))
    bench.store.close()
    assert files.count("fdatasync", "/hub/0/") == before + 1
    bench.store = Bench(bench.store._directory, files).store


def test_failure_of_one_partition_does_not_hurt_the_others(
    bench: Bench, files: FaultyFiles
) -> None:
    for index in range(3):
        bench.append(batch(0), index=index)
    files.fault = failing("fdatasync", "/hub/1/", errno.EIO)
    outcomes: list[tuple[int, Receipt | PenstockError]] = []
    for number in range(10):
        for index in range(3):
            bench.partition(index).append(
                batch(number),
                now_ms=NOW,
                done=lambda o, index=index: outcomes.append((index, o)),  # type: ignore[misc]  # a lambda's default has no type
            )
    while len(outcomes) < 30:
        bench._queue.get(timeout=DEADLINE_S)()
    assert {index for index, outcome in outcomes if isinstance(outcome, Receipt)} == {0, 2}
    assert all(type(outcome) is LogFailed for index, outcome in outcomes if index == 1)
    assert [bench.partition(i).status().last_sequence for i in range(3)] == [10, 0, 10]


def test_restart_after_a_failed_flush_does_not_show_what_only_memory_had(
    bench: Bench, files: FaultyFiles, tmp_path: Path
) -> None:
    bench.append(batch(0))
    files.fault = failing("fdatasync", "/hub/0/", errno.EIO)
    bench.append(batch(1))
    files.fault = lambda name, path: None
    bench.store.close()
    bench.store = Bench(tmp_path, files).store
    assert bench.partition().status().last_sequence == 0
    assert bench.partition().status().failed is None


def test_read_that_fails_says_so(bench: Bench, files: FaultyFiles) -> None:
    bench.append(batch(0))
    files.fault = failing("pread", ".log", errno.EIO)
    with pytest.raises(InternalError, match=r"cannot be read: .*Input/output error"):
        bench.partition().read(0, bytes_max=100)
    assert bench.partition().read_cached(0) is not None


def test_fault_of_our_own_stops_the_partition_and_not_the_committer(
    bench: Bench, files: FaultyFiles
) -> None:
    def broken(call: str, path: str) -> int | None:
        if call == "pwritev" and "/hub/0/" in path:
            raise ValueError("a bug")
        return None

    files.fault = broken
    assert type(bench.append(batch(0))[0]) is LogFailed
    assert isinstance(bench.append(batch(0), index=1)[0], Receipt)


# --- short writes and no room ---------------------------------------------------------------------


@pytest.mark.parametrize("short_by", [1, 5, SIZE - 1, SIZE, SIZE + 1, 3 * SIZE - 1])
def test_short_write_is_gone_on_with(
    bench: Bench, files: FaultyFiles, tmp_path: Path, short_by: int
) -> None:
    bench.append(batch(0))
    files.short_by = short_by
    outcomes = bench.append(batch(1), batch(2), batch(3))
    assert all(isinstance(outcome, Receipt) for outcome in outcomes)
    bench.store.close()
    bench.store = Bench(tmp_path, files).store
    expected = [batch(number).sections for number in range(4)]
    assert sections(read_all(bench.partition())) == expected


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("call", ["pwritev", "fdatasync"])
def test_full_disk_refuses_and_accepts_again_when_there_is_space(
    bench: Bench, files: FaultyFiles, call: str, code: int
) -> None:
    bench.append(batch(0))
    files.fault = failing(call, "/hub/0/", code)
    for number in (1, 2):
        assert type(bench.append(batch(number), batch(number))[0]) is DiskFull
    segment = next((bench.store._directory / "hub" / "0").glob("*.log"))
    assert segment.stat().st_size == SEGMENT_HEADER_BYTES + SIZE
    failed = bench.partition().status().failed
    assert failed is not None
    assert "disk is full" in failed
    assert sections(read_all(bench.partition())) == [batch(0).sections]
    files.fault = lambda name, path: None
    [receipt] = bench.append(batch(3))
    assert isinstance(receipt, Receipt)
    assert (receipt.first_sequence, receipt.base_offset) == (1, SIZE)
    assert bench.partition().status().failed is None
    assert sections(read_all(bench.partition())) == [batch(0).sections, batch(3).sections]


def test_disk_that_fills_in_the_middle_of_a_write_keeps_none_of_it(
    bench: Bench, files: FaultyFiles
) -> None:
    bench.append(batch(0))
    files.short_by = SIZE + 7
    files.fault = lambda call, path: (
        errno.ENOSPC if call == "pwritev" and not files.short_by else None
    )
    assert [type(o) for o in bench.append(batch(1), batch(2))] == [DiskFull, DiskFull]
    files.fault = lambda call, path: None
    bench.append(batch(3))
    assert sections(read_all(bench.partition())) == [batch(0).sections, batch(3).sections]


def test_full_disk_that_cannot_be_cut_back_stops_the_partition(
    bench: Bench, files: FaultyFiles
) -> None:
    bench.append(batch(0))
    files.fault = lambda call, path: (
        {"pwritev": errno.ENOSPC, "truncate": errno.EIO}.get(call) if ".log" in path else None
    )
    assert type(bench.append(batch(1))[0]) is LogFailed
    files.fault = lambda call, path: None
    assert type(bench.append(batch(2))[0]) is LogFailed


def test_appends_queued_after_a_failure_fail_too_and_their_numbers_are_given_again(
    bench: Bench, files: FaultyFiles
) -> None:
    bench.append(batch(0))
    files.fault = failing("pwritev", "/hub/0/", errno.ENOSPC)
    outcomes: list[Receipt | PenstockError] = []
    log = bench.partition()

    def refill(outcome: Receipt | PenstockError) -> None:
        """As a publisher that retries at once, while older appends are still under way."""
        outcomes.append(outcome)
        if len(outcomes) == 1:
            files.fault = lambda name, path: None
            log.append(batch(9), now_ms=NOW, done=outcomes.append)

    for number in range(1, 20):
        log.append(batch(number), now_ms=NOW, done=refill)
    while len(outcomes) < 20:
        bench._queue.get(timeout=DEADLINE_S)()
    assert all(type(outcome) is DiskFull for outcome in outcomes[:19])
    assert isinstance(outcomes[19], Receipt)
    assert outcomes[19].first_sequence == 1
    assert sections(read_all(log)) == [batch(0).sections, batch(9).sections]
    assert bench.store.pending_bytes == 0


def test_appends_numbered_before_a_failure_was_known_are_refused_in_their_turn(
    bench: Bench, files: FaultyFiles
) -> None:
    bench.append(batch(0))
    is_flushing, may_go = threading.Event(), threading.Event()

    def hold_and_fail(call: str, path: str) -> int | None:
        if call != "fdatasync":
            return None
        is_flushing.set()
        assert may_go.wait(DEADLINE_S)
        return errno.ENOSPC

    files.fault = hold_and_fail
    heard: list[tuple[int, Receipt | PenstockError]] = []
    log = bench.partition()

    def append(number: int) -> None:
        log.append(batch(number), now_ms=NOW, done=lambda outcome: heard.append((number, outcome)))

    append(1)
    assert is_flushing.wait(DEADLINE_S)
    append(2)
    append(3)
    files.fault = lambda name, path: None
    may_go.set()
    while not heard:
        bench._queue.get(timeout=DEADLINE_S)()
    append(4)
    while len(heard) < 4:
        bench._queue.get(timeout=DEADLINE_S)()
    assert [(number, type(outcome)) for number, outcome in heard] == [
        (1, DiskFull), (2, DiskFull), (3, DiskFull), (4, Receipt),
    ]  # fmt: skip
    assert sections(read_all(log)) == [batch(0).sections, batch(4).sections]
    assert bench.store.pending_bytes == 0


def test_stamp_of_a_failed_append_is_forgotten(bench: Bench, files: FaultyFiles) -> None:
    """Else the publisher's retry would look like a repeat and be acknowledged unstored."""
    kept, lost = ProducerStamp(7, 1, 0, 0), ProducerStamp(7, 1, 1, 1)
    bench.append(batch(0, kept))
    files.fault = failing("fdatasync", "/hub/0/", errno.ENOSPC)
    bench.append(batch(1, lost))
    assert bench.partition().producer(7) == kept
    files.fault = lambda name, path: None
    bench.append(batch(1, lost))
    assert bench.partition().producer(7) == lost


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_lack_of_descriptors_or_memory_is_not_the_end(
    bench: Bench, files: FaultyFiles, code: int
) -> None:
    files.fault = failing("open", "/hub/0/", code)
    [outcome] = bench.append(batch(0))
    assert type(outcome) is LogFailed
    files.fault = lambda name, path: None
    assert isinstance(bench.append(batch(0))[0], Receipt)


def test_failed_flush_of_the_directory_acknowledges_nothing(
    bench: Bench, files: FaultyFiles
) -> None:
    files.fault = failing("fsync_directory", "/hub/0", errno.EIO)
    assert type(bench.append(batch(0))[0]) is LogFailed
    assert bench.partition().status().is_empty


@pytest.mark.parametrize("call", ["mkdir", "open", "rename", "fsync_directory"])
def test_directory_that_cannot_be_used_is_one_clear_error(
    tmp_path: Path, files: FaultyFiles, call: str
) -> None:
    files.fault = failing(call, str(tmp_path), errno.EROFS)
    with pytest.raises(
        DataDirectoryError, match=r"data directory .*: Read-only file system\. Free"
    ):
        Bench(tmp_path, files)
    files.fault = lambda name, path: None
    Bench(tmp_path, files).store.close()  # and the lock was given back


def test_segment_that_cannot_be_closed_for_retention_is_closed_later(
    bench: Bench, files: FaultyFiles
) -> None:
    bench.append(batch(0))
    files.fault = failing("open", f"{SIZE:020d}.log", errno.ENOSPC)
    for is_full in (True, False):
        bench.store.enforce_retention("hub", retention_ms=1, now_ms=NOW + 10)
        bench.append(batch(0), index=1)
        bench.append(batch(0), index=1)
        bench.turn_all()
        assert bench.partition().status().is_empty is not is_full
        assert bench.partition().status().failed is None
        files.fault = lambda name, path: None
    assert isinstance(bench.append(batch(1))[0], Receipt)


def test_append_succeeds_if_blocks_cannot_be_reserved(
    bench: Bench, files: FaultyFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(fd: int, position: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(files, "allocate", no_room)
    assert isinstance(bench.append(batch(0))[0], Receipt)


def test_partition_that_cannot_be_opened_says_so_and_the_others_serve(
    bench: Bench, files: FaultyFiles, tmp_path: Path
) -> None:
    for index in range(2):
        bench.append(batch(0), index=index)
    bench.store.close()
    files.fault = failing("open", "/hub/0/", errno.EIO)
    again = Bench(tmp_path, files)
    failed = again.store.partition("hub", 0).status().failed
    assert failed is not None
    assert "cannot be opened" in failed
    assert again.store.damage == [failed]
    refused = again.store.partition("hub", 0)
    assert refused.read_cached(0) is None
    assert refused.producer(1) is None
    refused.subscribe(lambda: None)()
    with pytest.raises(LogCorrupt):
        refused.locate(EARLIEST)
    assert isinstance(again.append(batch(1), index=1)[0], Receipt)
    again.store.drop("hub")
    again.store.close()
    bench.store = Bench(tmp_path, files).store


def test_hub_directory_that_cannot_be_renamed_stays_and_the_store_continues(
    bench: Bench, files: FaultyFiles
) -> None:
    bench.append(batch(0))
    files.fault = failing("rename", ".dropped-", errno.EACCES)
    bench.store.drop("hub")
    files.fault = lambda name, path: None
    assert isinstance(bench.store.partition("other", 0), EmbeddedPartition)
    assert (bench.store._directory / "hub").exists()


def test_lock_that_cannot_be_made_is_one_clear_error(tmp_path: Path, files: FaultyFiles) -> None:
    (tmp_path / "lock").mkdir()
    with pytest.raises(DataDirectoryError, match=r"cannot be used: Is a directory\.$"):
        Bench(tmp_path, files)


def test_write_that_takes_nothing_and_names_no_error_is_a_failure(
    bench: Bench, files: FaultyFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "pwritev", lambda fd, buffers, position: 0)
    assert type(bench.append(batch(0))[0]) is LogFailed


@pytest.mark.parametrize("is_new", [True, False], ids=["new directory", "after a clean stop"])
def test_full_disk_does_not_keep_the_store_from_opening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_new: bool
) -> None:
    """The lock's pid is for a text alone; after a clean stop it needs no new block either."""
    store = Bench(tmp_path, FaultyFiles())
    store.append(batch(0))
    store.store.close()
    lock = tmp_path / "lock"
    assert lock.read_text().strip() == str(os.getpid())
    if is_new:
        lock.unlink()

    def no_space(fd: int, content: bytes, position: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", no_space)
        again = Bench(tmp_path, FaultyFiles())
    assert sections(read_all(again.partition())) == [batch(0).sections]
    with pytest.raises(DataDirectoryError, match="in use by the process with pid unknown:"):
        Bench(tmp_path, FaultyFiles())
    again.store.close()


@pytest.mark.parametrize(
    "code", [errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENOMEM]
)
@pytest.mark.parametrize("call", ["open", "pwritev", "fdatasync", "fsync_directory"])
def test_no_error_shows_a_client_a_path_of_the_server(
    tmp_path: Path, files: FaultyFiles, call: str, code: int
) -> None:
    bench = Bench(tmp_path, files, segment_bytes=SEGMENT_HEADER_BYTES + SIZE)
    bench.append(batch(0), batch(1))

    def fault(name: str, path: str) -> int | None:
        if name == call and "/hub/0" in path:
            raise OSError(code, os.strerror(code), path)  # as the operating system does
        return None

    files.fault = fault
    [outcome] = bench.append(batch(2))
    texts = [str(outcome), str(bench.partition().status().failed)]
    files.fault = lambda name, path: None
    bench.store.close()
    files.fault = fault
    again = Bench(tmp_path, files)
    refused = again.store.partition("hub", 0)
    if isinstance(refused, RefusedPartition):
        texts += [str(error) for error in again.append_to(refused, batch(3))]
        with pytest.raises(LogCorrupt) as raised:
            refused.read(0, bytes_max=1)
        texts.append(str(raised.value))
    else:
        files.fault = lambda name, path: None
        for segment in (tmp_path / "hub" / "0").glob("*.log"):
            segment.write_bytes(segment.read_bytes()[:-1])
        with pytest.raises(LogCorrupt) as raised:
            refused.read(0, bytes_max=1)
        texts.append(str(raised.value))
    assert isinstance(outcome, LogFailed)
    assert not any(str(tmp_path) in text for text in texts), texts
    files.fault = lambda name, path: None
    again.store.close()
