"""How much one round of commits takes, and what a failure in it touches."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest
from tests.unit.log.test_embedded import DEADLINE_S, Bench, batch

from penstock.log.embedded.committer import (
    QUICK_FLUSH_S,
    ROUND_BYTES_MAX,
    ROUND_BYTES_MIN,
    SLOW_FLUSH_S,
    next_round_bytes,
)
from penstock.log.embedded.files import OsFiles
from penstock.model.events import Receipt


def test_rounds_grow_where_flushes_are_slow_and_shrink_where_they_are_quick() -> None:
    size = ROUND_BYTES_MIN
    for _ in range(10):
        size = next_round_bytes(size, 2 * SLOW_FLUSH_S)
    assert size == ROUND_BYTES_MAX
    assert next_round_bytes(size, (SLOW_FLUSH_S + QUICK_FLUSH_S) / 2) == size
    for _ in range(10):
        size = next_round_bytes(size, QUICK_FLUSH_S / 2)
    assert size == ROUND_BYTES_MIN


def test_partition_that_fails_in_a_large_round_fails_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path)
    for index in range(4):
        bench.append(batch(0), index=index)
    full = bench.segments(2)[0].stat().st_ino

    def pwritev(fd: int, buffers: object, position: int) -> int:
        if os.fstat(fd).st_ino == full:
            raise OSError(errno.ENOSPC, "no room")
        return OsFiles.pwritev(bench.files, fd, buffers, position)  # type: ignore[arg-type]

    monkeypatch.setattr(bench.files, "pwritev", pwritev)
    bench.files.gate = threading.Event()
    bench.files.is_flushing.clear()
    bench.start(batch(1))
    assert bench.files.is_flushing.wait(DEADLINE_S)
    heard = [bench.start(batch(2, 150_000), batch(3, 150_000), index=i) for i in range(4)]
    bench.files.gate.set()
    bench.turn(lambda: all(len(each) == 2 for each in heard))
    assert [type(each).__name__ for each in heard[2]] == ["DiskFull"] * 2
    assert all(isinstance(each, Receipt) for i in (0, 1, 3) for each in heard[i])
    monkeypatch.undo()
    (again,) = bench.append(batch(4), index=2)
    assert isinstance(again, Receipt) and again.first_sequence == 1
    bench.store.close()
