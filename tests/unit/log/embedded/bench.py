"""A store on disk for tests: files that are watched, and a loop that the test turns."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Literal

import pytest

from penstock.log.embedded.files import Files
from penstock.log.embedded.partition import EmbeddedPartition
from penstock.log.embedded.record import RECORD_HEADER_BYTES
from penstock.log.embedded.store import EmbeddedLogStore
from penstock.model.errors import PenstockError
from penstock.model.events import EventBatch, Receipt

NOW = 1_700_000_000_000
DEADLINE_S = 20


class WatchedFiles(Files):
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
        partition = self.store.partition(hub, index)
        assert isinstance(partition, EmbeddedPartition)
        return partition

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
        """Run all tasks and callbacks: those of a round run before the next round's outcome."""
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


def refuse_threads(monkeypatch: pytest.MonkeyPatch, *, named: str = "") -> None:
    """As a limit on processes (RLIMIT_NPROC, a container's pids limit) does."""
    start = threading.Thread.start

    def refused(self: threading.Thread) -> None:
        if named in self.name:
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", refused)


SIZE = RECORD_HEADER_BYTES + len(batch(0).sections)
