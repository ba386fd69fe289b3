"""The store: opening, closing, deletion of a hub."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from tests.unit.log.embedded.bench import DEADLINE_S, NOW, SIZE, Bench, batch

from penstock.log.embedded.segment import SEGMENT_HEADER_BYTES
from penstock.model.errors import LogCorrupt, OperationCancelled, PenstockError
from penstock.model.events import Receipt


def test_pending_bytes_are_those_not_yet_settled(bench: Bench) -> None:
    outcomes = bench.start(batch(0), batch(1))
    assert bench.store.pending_bytes == 2 * SIZE
    bench.turn(lambda: len(outcomes) == 2)
    assert bench.store.pending_bytes == 0


def test_append_after_close_is_cancelled(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    log = bench.partition()
    bench.append(batch(0))
    bench.store.close()
    outcomes: list[Receipt | PenstockError] = []
    log.append(batch(1), now_ms=NOW, done=outcomes.append)
    bench.turn(lambda: bool(outcomes))
    assert type(outcomes[0]) is OperationCancelled


def test_opened_partition_costs_no_file_until_it_is_written(bench: Bench) -> None:
    for hub in range(20):
        for index in range(32):
            bench.partition(index, f"hub-{hub}")
    assert bench.files.open_fds == set()
    assert sorted(path.name for path in bench.directory.iterdir()) == ["format.json", "lock"]


def test_missing_segment_file_is_named(tmp_path: Path) -> None:
    bench = Bench(tmp_path, segment_bytes=SEGMENT_HEADER_BYTES + SIZE)
    bench.append(batch(0), batch(1))
    bench.store._handles.close()
    bench.segments()[0].unlink()
    with pytest.raises(LogCorrupt, match=r"00000000000000000000\.log is missing"):
        bench.partition().read(0, bytes_max=1)
    assert bench.partition().read(1, bytes_max=1)
    bench.store.close()


def test_dropped_hub_leaves_no_file(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "data")
    bench.append(batch(0), index=1)
    bench.store.drop("hub")
    bench.store.close()
    assert sorted(p.name for p in (tmp_path / "data").iterdir()) == ["format.json", "lock"]


def test_interrupted_deletion_of_a_hub_is_completed_at_the_next_start(tmp_path: Path) -> None:
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
