"""How fast the log is beside the disk it stands on: `python -m benchmarks.micro.log [--quick]`.

Every figure is taken on this machine in this run; compare ratios, not figures of two machines.
Batches are 100 events of 100 bytes, as the SDKs send them: 10.5 KB.
"""

from __future__ import annotations

import argparse
import gc
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Literal

from penstock.log.embedded.files import Files
from penstock.log.embedded.partition import EmbeddedPartition
from penstock.log.embedded.store import EmbeddedLogStore
from penstock.model.errors import PenstockError
from penstock.model.events import EventBatch, Receipt

MB = 1 << 20
SECTION = b"\x00\x53\x75\xa0\x64" + b"x" * 100
BATCH = EventBatch(SECTION * 100, 100)


class UnreservedFiles(Files):
    """For comparison: the file system finds blocks only when it must."""

    def allocate(self, fd: int, position: int, size: int) -> None:
        pass


@contextmanager
def scratch(parent: Path | None) -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(dir=parent, prefix="penstock-bench-"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory)


def raw_flush(directory: Path, size: int, seconds: float, files_count: int, *, aside: bool) -> None:
    """The disk itself: write `size` bytes to each file, flush each, again and again."""
    files = Files()
    fds = [files.open(directory / f"raw-{n}", create=True) for n in range(files_count)]
    for fd in fds:
        files.allocate(fd, 0, 64 * MB)
    content = os.urandom(size)
    times: list[float] = []
    position = 0
    with ThreadPoolExecutor(4) as helpers:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            start = time.perf_counter()
            for fd in fds:
                files.pwritev(fd, [content], position)
            if aside:
                flushes = [helpers.submit(files.fdatasync, fd) for fd in fds[1:]]
                files.fdatasync(fds[0])
                for flush in flushes:
                    flush.result()
            else:
                for fd in fds:
                    files.fdatasync(fd)
            times.append(time.perf_counter() - start)
            position = (position + size) % (60 * MB)
    for fd in fds:
        files.close(fd)
    rate = files_count * size / statistics.median(times) / MB
    how = "by helpers" if aside else "in turn"
    print(
        f"  {files_count} file(s) x {size // 1024:>4} KB, {how:<10} "
        f"p50 {statistics.median(times) * 1e3:6.2f} ms  "
        f"p99 {sorted(times)[int(len(times) * 0.99)] * 1e3:6.2f} ms  {rate:6.0f} MB/s at p50"
    )


class Load:
    """Keeps so many batches under way, spread over the partitions, for a time."""

    def __init__(self, store: EmbeddedLogStore, turns: SimpleQueue[Callable[[], None]]) -> None:
        self._store = store
        self._turns = turns
        self._under_way = 0
        self._done = 0

    def run(self, *, partitions: int, in_flight: int, seconds: float) -> tuple[float, float]:
        """Batches per second of wall and of this process's CPU."""
        logs = [self._store.partition("bench", n) for n in range(partitions)]
        started, cpu = time.perf_counter(), time.process_time()
        end = started + seconds
        number = 0
        while time.perf_counter() < end:
            while self._under_way < in_flight:
                logs[number % partitions].append(BATCH, now_ms=number, done=self._heard)
                self._under_way += 1
                number += 1
            self._turns.get()()
        while self._under_way:
            self._turns.get()()
        wall, spent = time.perf_counter() - started, time.process_time() - cpu
        return self._done / wall, self._done / spent

    def _heard(self, outcome: Receipt | PenstockError) -> None:
        assert isinstance(outcome, Receipt)
        self._under_way -= 1
        self._done += 1


def append_rate(
    directory: Path,
    files: Files,
    flush: Literal["disk", "os"],
    *,
    partitions: int,
    in_flight: int,
    seconds: float,
    note: str = "",
) -> float:
    """Batches per second."""
    turns: SimpleQueue[Callable[[], None]] = SimpleQueue()
    store = EmbeddedLogStore(directory, wake=turns.put, files=files, flush=flush)
    wall, spent = Load(store, turns).run(
        partitions=partitions, in_flight=in_flight, seconds=seconds
    )
    store.close()
    shutil.rmtree(directory)
    size = len(BATCH.sections)
    print(
        f"  {flush:<4} {partitions} partition(s) {in_flight:>4} in flight  {wall:8.0f} batches/s "
        f"{wall * size / MB:6.0f} MB/s {wall * 100 / 1e3:7.0f} k events/s  "
        f"{spent * 100 / 1e3:7.0f} k events/cpu-s {note}"
    )
    return wall


def append_cost(directory: Path, rounds: int) -> float:
    """append() alone, on the owner's thread, while the committer is busy beside it; µs."""
    turns: SimpleQueue[Callable[[], None]] = SimpleQueue()
    store = EmbeddedLogStore(directory, wake=turns.put, flush="os")
    log = store.partition("bench", 0)
    heard = 0

    def done(outcome: Receipt | PenstockError) -> None:
        nonlocal heard
        heard += 1

    costs: list[float] = []
    for number in range(1, rounds + 1):
        spent = time.thread_time()
        for _ in range(50):
            log.append(BATCH, now_ms=number, done=done)
        costs.append((time.thread_time() - spent) / 50)
        while heard < number * 50:
            turns.get()()
    store.close()
    shutil.rmtree(directory)
    median, late = statistics.median(costs) * 1e6, sorted(costs)[int(len(costs) * 0.9)] * 1e6
    size = len(BATCH.sections)
    print(f"  append() of {size} bytes: {median:.1f} µs of the owner's CPU (p90 {late:.1f})")
    return median


def read_and_open(directory: Path, size: int) -> tuple[float, float, float]:
    """MB read per CPU second; milliseconds of opening after a clean stop, and after a crash."""
    turns: SimpleQueue[Callable[[], None]] = SimpleQueue()
    store = EmbeddedLogStore(directory, wake=turns.put, flush="os")
    log = store.partition("bench", 0)
    under_way = 0

    def done(outcome: Receipt | PenstockError) -> None:
        nonlocal under_way
        under_way -= 1

    for number in range(size // len(BATCH.sections)):
        log.append(BATCH, now_ms=number, done=done)
        under_way += 1
        while under_way > 200:
            turns.get()()
    while under_way:
        turns.get()()
    read_mb = read_rate(log, 1 * MB)
    read_rate(log, 64 * 1024)
    cached_rate(log)
    store.close()
    clean_ms = open_time(directory, f"clean, {size // MB} MB")
    for mark in [*directory.rglob("*.index"), *directory.rglob("*.producers")]:
        if mark.stem == max(path.stem for path in directory.rglob("*.log")):
            mark.unlink()
    walked = max(directory.rglob("*.log")).stat().st_size
    note = f"after a crash, {size // MB} MB, {walked // MB} MB walked"
    return read_mb, clean_ms, open_time(directory, note)


def read_rate(log: object, bytes_max: int) -> float:
    """MB per CPU second."""
    assert isinstance(log, EmbeddedPartition)
    start, spent = time.perf_counter(), time.process_time()
    sequence = total = 0
    while batches := log.read(sequence, bytes_max=bytes_max):
        sequence = batches[-1].next_sequence
        total += sum(len(batch.sections) for batch in batches)
    wall, cpu = time.perf_counter() - start, time.process_time() - spent
    print(
        f"  read() of up to {bytes_max // 1024:>4} KB: {total / wall / MB:6.0f} MB/s, "
        f"{total / cpu / MB:6.0f} MB/cpu-s, checksums compared"
    )
    return total / cpu / MB


def cached_rate(log: object) -> None:
    assert isinstance(log, EmbeddedPartition)
    last = log.status().last_sequence
    count = 20_000
    spent = time.process_time()
    for _ in range(count):
        assert log.read_cached(last)
    print(f"  cached() at the end: {(time.process_time() - spent) / count * 1e6:.2f} µs")


def open_time(directory: Path, note: str) -> float:
    """Milliseconds."""
    start = time.perf_counter()
    store = EmbeddedLogStore(directory, wake=lambda _: None)
    store.partition("bench", 0)
    took_ms = (time.perf_counter() - start) * 1e3
    print(f"  open, {note}: {took_ms:.1f} ms")
    store.close()
    return took_ms


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", type=Path, help="where the disk to measure is mounted")
    parser.add_argument("--quick", action="store_true", help="a fraction of the time")
    arguments = parser.parse_args()
    seconds = 0.7 if arguments.quick else 3.0
    gc.freeze()
    with scratch(arguments.directory) as directory:
        print("The disk: write and fdatasync")
        for size in (4 * 1024, 64 * 1024, 1 * MB):
            raw_flush(directory, size, seconds, 1, aside=False)
        for aside in (False, True):
            raw_flush(directory, 64 * 1024, seconds, 4, aside=aside)
        print("The log: appending")
        data = directory / "data"
        for flush in ("disk", "os"):
            for partitions, in_flight in ((1, 1), (1, 8), (1, 64), (4, 64), (4, 256)):
                append_rate(
                    data,
                    Files(),
                    "disk" if flush == "disk" else "os",
                    partitions=partitions,
                    in_flight=in_flight,
                    seconds=seconds,
                )
        append_rate(
            data, UnreservedFiles(), "disk", partitions=1, in_flight=64, seconds=seconds,
            note="(no room reserved)",
        )  # fmt: skip
        append_cost(data, 50 if arguments.quick else 400)
        print("The log: reading and opening")
        read_and_open(data, (128 if arguments.quick else 1024) * MB)


if __name__ == "__main__":
    main()
