"""Which payloads the log keeps in memory: those within the tail cache budget, and no others."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.unit.log.embedded.bench import DEADLINE_S, NOW, Bench, batch

from penstock.log.tail_cache import TailCacheBudget
from penstock.model.errors import PenstockError
from penstock.model.events import EventBatch, Receipt

PARTITIONS = 8
EVENT_BYTES = 200_000


class Payload(bytes):
    """Bytes that are counted while they exist; bytes cannot be referenced weakly."""

    live_bytes = 0

    def __init__(self, content: bytes) -> None:
        Payload.live_bytes += len(content)

    def __del__(self) -> None:
        Payload.live_bytes -= len(self)


@pytest.fixture(autouse=True)
def no_payload_of_another_test() -> Iterator[None]:
    gc.collect()
    Payload.live_bytes = 0
    yield


def publish_at_once(bench: Bench, hub: str, size: int = EVENT_BYTES) -> list[object]:
    """One payload to each partition, all in one round; their outcomes."""
    bench.files.gate = threading.Event()
    bench.files.is_flushing.clear()
    first = bench.start(batch(0), index=31)
    assert bench.files.is_flushing.wait(DEADLINE_S)
    outcomes: list[Receipt | PenstockError] = []
    for index in range(PARTITIONS):
        item = EventBatch(Payload(batch(index, size).sections), 1)
        bench.partition(index, hub).append(item, now_ms=NOW, done=outcomes.append)
    bench.files.gate.set()
    bench.files.gate = None
    bench.turn(lambda: len(first) == 1 and len(outcomes) == PARTITIONS)
    return list(outcomes)


@pytest.mark.parametrize("size", [1000, EVENT_BYTES], ids=["small rounds", "large rounds"])
def test_budget_of_the_newest_batches_holds_over_all_partitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """Also in partitions that got nothing since: no partition keeps its last round."""
    budget = 5 * size
    monkeypatch.setattr(
        "penstock.log.embedded.store.TailCacheBudget", partial(TailCacheBudget, budget)
    )
    bench = Bench(tmp_path)
    for number in range(10):
        assert all(
            isinstance(outcome, Receipt) for outcome in publish_at_once(bench, f"hub{number}", size)
        )
    bench.settle()
    assert 0 < Payload.live_bytes <= budget
    bench.store.close()


@pytest.mark.parametrize("size", [1000, EVENT_BYTES], ids=["small rounds", "large rounds"])
def test_payloads_of_a_deleted_hub_are_released(tmp_path: Path, size: int) -> None:
    bench = Bench(tmp_path)
    for _ in range(3):
        publish_at_once(bench, "gone", size)
        assert Payload.live_bytes > 0
        bench.store.drop("gone")
        bench.settle()
        assert Payload.live_bytes == 0
    bench.store.close()


def test_payloads_of_a_failed_round_are_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path)

    def fail(fd: int, buffers: object, position: int) -> int:
        raise OSError(5, "Input/output error")

    bench.append(batch(0), index=31)
    with monkeypatch.context() as patched:
        patched.setattr(bench.files, "pwritev", fail)
        outcomes: list[Receipt | PenstockError] = []
        item = EventBatch(Payload(batch(0, EVENT_BYTES).sections), 1)
        bench.partition(0).append(item, now_ms=NOW, done=outcomes.append)
        del item
        bench.turn(lambda: len(outcomes) == 1)
    assert not isinstance(outcomes[0], Receipt)
    bench.settle()
    gc.collect()
    assert Payload.live_bytes == 0
    bench.store.close()
