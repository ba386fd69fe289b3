"""The histogram of flushes, and that the log tells of each."""

from __future__ import annotations

import queue
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest

from penstock.log.embedded.store import EmbeddedLogStore
from penstock.model.events import EventBatch
from penstock.model.metrics import FLUSH_BOUNDS_S, FlushLatencies

DEADLINE_S = 30.0


def test_each_time_is_counted_in_its_class() -> None:
    times = FlushLatencies()
    for seconds in (0.0, 0.0005, 0.0006, 10.0, 10.1, 300.0):
        times.observe(seconds)
    assert (times.counts[0], times.counts[1]) == (2, 1)
    assert (times.counts[-2], times.counts[-1]) == (1, 2)
    assert sum(times.counts) == 6
    assert len(times.counts) == len(FLUSH_BOUNDS_S) + 1
    assert times.total_s == pytest.approx(320.1011)


def test_what_was_read_does_not_change_afterwards() -> None:
    times = FlushLatencies()
    before = times.counts
    times.observe(1.0)
    assert sum(before) == 0


@pytest.mark.parametrize(("flush", "told"), [("disk", 3), ("os", 0)])
def test_log_tells_of_each_round_that_was_flushed(
    tmp_path: Path, flush: Literal["disk", "os"], told: int
) -> None:
    """One append at a time: each is a round of its own."""
    works: queue.Queue[Callable[[], None]] = queue.Queue()
    times = FlushLatencies()
    store = EmbeddedLogStore(tmp_path / "log", wake=works.put, flush=flush, on_flush=times.observe)
    partition = store.partition("hub", 0)
    done: list[object] = []
    for number in range(3):
        batch = EventBatch(b"\x00\x53\x75\xa0\x01a", 1)
        partition.append(batch, now_ms=1, done=done.append)
        while len(done) == number:
            works.get(timeout=DEADLINE_S)()
    store.close()
    assert sum(times.counts) == told
