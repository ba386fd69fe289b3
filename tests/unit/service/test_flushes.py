"""The log reports the duration of each flush."""

from __future__ import annotations

import queue
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest

from penstock.log.embedded.store import EmbeddedLogStore
from penstock.model.events import EventBatch
from penstock.model.metrics import FlushLatencies

DEADLINE_S = 30.0


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
