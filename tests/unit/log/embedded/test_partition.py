"""A partition on the owner's thread and its readers on others."""

from __future__ import annotations

import pytest
from tests.unit.log.embedded.bench import Bench, batch

from penstock.log.tail_cache import TailCache
from penstock.model.positions import Position, PositionKind


@pytest.mark.parametrize("is_before", [True, False], ids=["before", "after"])
def test_round_committed_while_a_reader_resumes_at_the_end_is_not_skipped(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, is_before: bool
) -> None:
    """`locate` runs on another thread: a round may be applied before or after any of its reads."""
    bench.append(batch(0))
    partition = bench.partition()
    end = partition.status().last_offset
    read_last_offset = TailCache.__dict__["last_offset"].fget

    def read_and_commit(cache: TailCache) -> int:
        monkeypatch.undo()
        if is_before:
            bench.append(batch(1))
        last_offset: int = read_last_offset(cache)
        if not is_before:
            bench.append(batch(1))
        return last_offset

    monkeypatch.setattr(TailCache, "last_offset", property(read_and_commit))
    assert partition.locate(Position(PositionKind.OFFSET, end)) == 1
    assert partition.status().last_sequence == 1
