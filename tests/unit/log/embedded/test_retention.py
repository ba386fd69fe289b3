"""Which segments expire, which are rolled early, and what readers see meanwhile."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from tests.unit.log.embedded.bench import DEADLINE_S, NOW, SIZE, Bench, batch

from penstock.log.embedded.segment import SEGMENT_HEADER_BYTES
from penstock.model.errors import LogCorrupt, PenstockError
from penstock.model.events import Receipt
from penstock.model.positions import Position, PositionKind


def test_retention_pass_writes_a_mark_so_that_old_damage_is_no_torn_write(
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
