"""Where a reader resumes while the partition grows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.log.test_embedded import Bench, batch

from penstock.log.tail_cache import Tail
from penstock.model.positions import Position, PositionKind


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.store.close()


@pytest.mark.parametrize("is_before", [True, False], ids=["before", "after"])
def test_round_committed_while_a_reader_resumes_at_the_end_is_not_skipped(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, is_before: bool
) -> None:
    """`locate` runs on another thread: a round may be applied before or after any of its reads."""
    bench.append(batch(0))
    partition = bench.partition()
    end = partition.status().last_offset
    read_last_offset = Tail.__dict__["last_offset"].fget

    def read_and_commit(cache: Tail) -> int:
        monkeypatch.undo()
        if is_before:
            bench.append(batch(1))
        last_offset: int = read_last_offset(cache)
        if not is_before:
            bench.append(batch(1))
        return last_offset

    monkeypatch.setattr(Tail, "last_offset", property(read_and_commit))
    assert partition.locate(Position(PositionKind.OFFSET, end)) == 1
    assert partition.status().last_sequence == 1
