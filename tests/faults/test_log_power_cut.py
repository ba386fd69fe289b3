"""Loss of power at any moment, on a simulated disk that keeps only what was flushed.

What was not flushed may survive in any part and any order, sector by sector, names apart from
contents: the worst that a file system may do. Whatever it does, what was acknowledged is there, the
log is gapless and nothing damaged is served.
"""

from __future__ import annotations

import errno
import logging
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import SimpleQueue
from threading import Lock
from typing import Literal

import pytest
from tests.conftest import Sized

from penstock.log.embedded.files import Files
from penstock.log.embedded.partition import EmbeddedPartition
from penstock.log.embedded.store import EmbeddedLogStore
from penstock.model.errors import DataDirectoryError, PenstockError
from penstock.model.events import EventBatch, ProducerStamp, Receipt, StoredBatch

NOW = 1_700_000_000_000
SECTOR = 64  # smaller than any real one, so that small records are torn in several places
DEADLINE_S = 20
SEGMENT_BYTES = 1500
QUARTER_MS = 3_600_000  # of the retention: after it retention closes the active segment


class Inode:
    """A file's bytes as a process sees them, as the platter has them, and what lies between."""

    def __init__(self, durable: bytes = b"") -> None:
        self.seen = bytearray(durable)
        self.durable = bytearray(durable)
        self.changes: list[tuple[int, bytes] | int] = []  # a write, or a truncation to a size

    def apply(self, to: bytearray, change: tuple[int, bytes] | int) -> None:
        if isinstance(change, int):
            del to[change:]
            to.extend(bytes(change - len(to)))
            return
        position, content = change
        to.extend(bytes(max(0, position + len(content) - len(to))))
        to[position : position + len(content)] = content

    def change(self, change: tuple[int, bytes] | int) -> None:
        self.apply(self.seen, change)
        self.changes.append(change)

    def flush(self) -> None:
        self.durable = bytearray(self.seen)
        self.changes = []

    def survivor(self, chance: random.Random) -> Inode:
        """What a reader finds after the power is back."""
        content = bytearray(self.durable)
        # A size change is journalled: those up to some moment happened, the later ones did not.
        upto = chance.randint(0, len(self.changes))
        for number, change in enumerate(self.changes):
            if isinstance(change, int):
                if number >= upto:
                    break
                self.apply(content, change)
                continue
            position, written = change
            for start in range(0, len(written), SECTOR):
                if chance.random() < 0.5:
                    self.apply(content, (position + start, written[start : start + SECTOR]))
        return Inode(bytes(content))


class SimulatedDisk(Files):
    """Files in memory, until the call with the number `dies_at`: then nothing works any more."""

    def __init__(self, dies_at: int | None = None) -> None:
        self.calls = 0
        self.dies_at = dies_at
        self._lock = Lock()
        self._names: dict[Path, Inode] = {}
        self._durable_names: dict[Path, Inode] = {}
        self._open: dict[int, Inode] = {}
        self._next_fd = 1000

    def _enter(self) -> None:
        with self._lock:
            self.calls += 1
            if self.dies_at is not None and self.calls > self.dies_at:
                raise OSError(errno.EIO, "the power is gone")

    def after_power_cut(self, chance: random.Random) -> SimulatedDisk:
        disk = SimulatedDisk()
        for path in {*self._names, *self._durable_names}:
            candidates = [names.get(path) for names in (self._names, self._durable_names)]
            node = chance.choice(candidates)
            if node is not None:
                disk._names[path] = node.survivor(chance)
        disk._durable_names = dict(disk._names)
        return disk

    def open(self, path: Path, *, create: bool = False, write: bool = True) -> int:
        self._enter()
        if path not in self._names:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
            self._names[path] = Inode()
        self._next_fd += 1
        self._open[self._next_fd] = self._names[path]
        return self._next_fd

    def close(self, fd: int) -> None:
        del self._open[fd]

    def size(self, fd: int) -> int:
        return len(self._open[fd].seen)

    def pread(self, fd: int, size: int, position: int) -> bytes:
        return bytes(self._open[fd].seen[position : position + size])

    def pread_cached(self, fd: int, buffer: memoryview, position: int) -> int:
        return 0

    def pwritev(self, fd: int, buffers: Sequence[bytes], position: int) -> int:
        content = b"".join(buffers)
        try:
            self._enter()
        except OSError:
            self._open[fd].changes.append((position, content))  # it may have been under way
            raise
        self._open[fd].change((position, content))
        return len(content)

    def fdatasync(self, fd: int) -> None:
        self._enter()
        self._open[fd].flush()

    def allocate(self, fd: int, position: int, size: int) -> None:
        self._enter()

    def truncate(self, fd: int, size: int) -> None:
        self._enter()
        self._open[fd].change(size)

    def listdir(self, path: Path) -> list[str]:
        depth = len(path.parts)
        below = {name.parts[depth] for name in list(self._names) if path in name.parents}
        return sorted(below)

    def mkdir(self, path: Path) -> None:
        self._enter()

    def rename(self, old: Path, new: Path) -> None:
        self._enter()
        self._names[new] = self._names.pop(old)

    def unlink(self, path: Path) -> None:
        self._enter()
        if self._names.pop(path, None) is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))

    def rmdir(self, path: Path) -> None:
        self._enter()

    def fsync_directory(self, path: Path) -> None:
        self._enter()
        kept = {n: inode for n, inode in self._durable_names.items() if n.parent != path}
        kept.update({n: inode for n, inode in self._names.items() if n.parent == path})
        self._durable_names = kept


class Session:
    """One life of a store on a simulated disk."""

    def __init__(
        self, directory: Path, disk: SimulatedDisk, flush: Literal["disk", "os"] = "disk"
    ) -> None:
        self._queue: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.acknowledged: list[tuple[int, bytes]] = []
        self.store = EmbeddedLogStore(
            directory, wake=self._queue.put, files=disk, flush=flush, segment_bytes=SEGMENT_BYTES
        )
        log = self.store.partition("hub", 0)
        assert isinstance(log, EmbeddedPartition)
        self.log = log
        self._now_ms = max(NOW, log.status().last_enqueued_ms)

    def append(self, batches: list[EventBatch]) -> None:
        heard = 0

        def done_for(batch: EventBatch) -> Callable[[Receipt | PenstockError], None]:
            def done(outcome: Receipt | PenstockError) -> None:
                nonlocal heard
                heard += 1
                if isinstance(outcome, Receipt):
                    self.acknowledged.append((outcome.first_sequence, batch.sections))

            return done

        for batch in batches:
            self.log.append(batch, now_ms=self._now_ms, done=done_for(batch))
        while heard < len(batches):
            self._queue.get(timeout=DEADLINE_S)()

    def work(self, chance: random.Random) -> None:
        """Flights of batches of mixed sizes, now and then a retention pass, which leaves a mark;
        one of them closes the active segment."""
        rolled_at = chance.randrange(30)
        for number in range(30):
            flight = [batch(chance, number) for _ in range(chance.randint(1, 5))]
            self.append(flight)
            if number == rolled_at:
                self._now_ms += QUARTER_MS + 1
            if number == rolled_at or chance.random() < 0.2:
                self.store.enforce_retention(
                    "hub", retention_ms=4 * QUARTER_MS, now_ms=self._now_ms
                )

    def read_all(self) -> list[StoredBatch]:
        """From the disk alone, and from memory where possible: the same."""
        ways: list[list[StoredBatch]] = []
        for is_cached in (False, True):
            found: list[StoredBatch] = []
            while True:
                batches = self.log.read_cached(len(found), bytes_max=1000) if is_cached else None
                if batches is None:
                    batches = self.log.read(len(found), bytes_max=1000 if is_cached else 1 << 20)
                if not batches:
                    break
                found += batches
            ways.append(found)
        assert ways[0] == ways[1]
        return ways[0]


def batch(chance: random.Random, number: int) -> EventBatch:
    size = chance.choice((20, 60, 250, 700, 1400, 2000))  # the last is larger than a segment
    body = f"{number}:{chance.getrandbits(64):x}".encode().ljust(chance.randint(20, size), b"x")
    stamp = ProducerStamp(number % 4, 0, number, number) if chance.random() < 0.3 else None
    head = b"\x00\x53\x75\xb0" + len(body).to_bytes(4, "big")
    return EventBatch(head + body, 1, producer=stamp)


def calls_of_a_whole_life(directory: Path) -> int:
    disk = SimulatedDisk()
    session = Session(directory, disk)
    session.work(random.Random(0))
    session.store.close()
    return disk.calls


def life_and_death(directory: Path, seed: int, calls: int, flush: Literal["disk", "os"]) -> int:
    """Two lives, each ended by a power cut, then a look at the log; acknowledged events lost."""
    chance = random.Random(seed)
    disk = SimulatedDisk()
    acknowledged: list[tuple[int, bytes]] = []
    lost = 0
    for _ in range(2):
        if chance.random() < 0.5:
            disk = cut_while_opening(directory, disk, chance)
        session = Session(directory, disk, flush)
        start = [(found.first_sequence, found.sections) for found in session.read_all()]
        lost += _check(session, acknowledged, start)
        disk.dies_at = disk.calls + chance.randint(1, calls)
        session.work(chance)
        acknowledged = start + session.acknowledged
        session.store.close()
        disk = disk.after_power_cut(chance)
    session = Session(directory, disk, flush)
    found = [(found.first_sequence, found.sections) for found in session.read_all()]
    lost += _check(session, acknowledged, found)
    session.store.close()
    return lost


def cut_while_opening(directory: Path, disk: SimulatedDisk, chance: random.Random) -> SimulatedDisk:
    """Recovery itself is interrupted."""
    disk.dies_at = disk.calls + chance.randint(0, 12)
    try:
        store = EmbeddedLogStore(directory, wake=lambda _: None, files=disk)
    except DataDirectoryError:
        return disk.after_power_cut(chance)
    store.partition("hub", 0)
    store.close()
    return disk.after_power_cut(chance)


def _check(
    session: Session, acknowledged: list[tuple[int, bytes]], found: list[tuple[int, bytes]]
) -> int:
    assert session.log.damage == ()
    assert [sequence for sequence, _ in found] == list(range(len(found)))
    same = sum(a == b for a, b in zip(acknowledged, found, strict=False))
    return len(acknowledged) - same


@pytest.mark.sized("faults")
@pytest.mark.timeout(3600)
def test_power_cut_at_any_moment_loses_nothing_acknowledged(
    tmp_path: Path, sized: Sized, caplog: pytest.LogCaptureFixture
) -> None:
    # pytest keeps every record until the test ends, and with its traceback the simulated disk.
    caplog.set_level(logging.CRITICAL + 1, "penstock.log")
    calls = calls_of_a_whole_life(tmp_path)
    for seed in range(sized(short=60, full=2_000, long=20_000)):
        assert life_and_death(tmp_path, seed, calls, "disk") == 0, f"seed {seed}"


def test_power_cut_without_flushes_does_lose(tmp_path: Path) -> None:
    """The control: the simulation can see a loss, so that the test above means something."""
    calls = calls_of_a_whole_life(tmp_path)
    assert any(life_and_death(tmp_path, seed, calls, "os") > 0 for seed in range(20))
