"""Group commit: rounds, flushes, threads, and what one failure touches."""

from __future__ import annotations

import errno
import os
import threading
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from tests.unit.log.embedded.bench import DEADLINE_S, NOW, SIZE, Bench, batch, refuse_threads

from penstock.log.embedded import committer
from penstock.log.embedded.committer import (
    FLUSH_HELPERS,
    QUICK_FLUSH_S,
    ROUND_BYTES_MAX,
    ROUND_BYTES_MIN,
    SLOW_FLUSH_S,
    HelperThreads,
    next_round_bytes,
)
from penstock.log.embedded.files import Files
from penstock.log.embedded.store import EmbeddedLogStore
from penstock.log.embedded.writer import PartitionWriter
from penstock.model.errors import DataDirectoryError, LogFailed, PenstockError
from penstock.model.events import Receipt

LARGE = 150_000  # two of them in four partitions are a large round


def test_appends_that_come_during_a_flush_share_the_next_one(bench: Bench) -> None:
    bench.append(batch(0))
    bench.files.gate = threading.Event()
    bench.files.is_flushing.clear()
    first = bench.start(batch(1))
    assert bench.files.is_flushing.wait(DEADLINE_S)
    flushes, writes = bench.files.flushes, bench.files.writes
    others = bench.start(*[batch(number) for number in range(2, 502)])
    bench.files.gate.set()
    bench.turn(lambda: len(others) == 500)
    assert len(first) == 1
    assert bench.files.flushes == flushes + 1
    assert bench.files.writes == writes + 1
    assert [o.first_sequence for o in others if isinstance(o, Receipt)] == list(range(2, 502))


def test_round_is_bounded_so_that_the_first_appends_are_acknowledged_soon(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.log.embedded.committer.next_round_bytes", lambda *_: 10 * SIZE)
    bench.append(batch(0))
    bench.files.gate = threading.Event()
    bench.files.is_flushing.clear()
    first = bench.start(batch(1))
    assert bench.files.is_flushing.wait(DEADLINE_S)
    flushes = bench.files.flushes
    others = bench.start(*[batch(number) for number in range(100)])
    bench.files.gate.set()
    bench.turn(lambda: len(others) == 100)
    assert len(first) == 1
    assert bench.files.flushes == flushes + 10


# The larger ones are written and flushed each in a thread of its own.
@pytest.mark.parametrize("size", [40, 60_000])
def test_partitions_of_one_round_are_flushed_each_once(bench: Bench, size: int) -> None:
    for index in range(6):
        bench.append(batch(0), index=index)
    bench.files.gate = threading.Event()
    bench.files.is_flushing.clear()
    bench.start(batch(1))
    assert bench.files.is_flushing.wait(DEADLINE_S)
    flushes = bench.files.flushes
    outcomes = [bench.start(batch(2, size), batch(3, size), index=index) for index in range(6)]
    bench.files.gate.set()
    bench.turn(lambda: all(len(heard) == 2 for heard in outcomes))
    assert bench.files.flushes == flushes + 6


def test_partitions_start_no_threads_of_their_own(tmp_path: Path) -> None:
    before = threading.active_count()
    bench = Bench(tmp_path)
    for index in range(32):
        bench.partition(index)
    assert threading.active_count() == before + 1 + FLUSH_HELPERS
    bench.append(batch(0))
    assert threading.active_count() == before + 1 + FLUSH_HELPERS
    bench.store.close()
    assert threading.active_count() == before


def test_callbacks_run_in_close_if_the_owners_loop_is_closed(tmp_path: Path) -> None:
    def wake(fn: Callable[[], None]) -> None:
        raise RuntimeError("Event loop is closed")

    store = EmbeddedLogStore(tmp_path, wake=wake)
    outcomes: list[Receipt | PenstockError] = []
    store.partition("hub", 0).append(batch(0), now_ms=NOW, done=outcomes.append)
    store.close()
    assert [type(outcome) for outcome in outcomes] == [Receipt]


def test_close_from_another_thread_leaves_callbacks_to_the_owner(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    heard: list[int] = []
    for _ in range(10):
        bench.partition().append(
            batch(0), now_ms=NOW, done=lambda _: heard.append(threading.get_ident())
        )
    closing = threading.Thread(target=bench.store.close)
    closing.start()
    closing.join(DEADLINE_S)
    assert heard == []
    bench.turn(lambda: len(heard) == 10)
    assert set(heard) == {threading.get_ident()}
    bench.store.close()  # once more is nothing


def test_callback_of_the_store_that_fails_does_not_end_the_committer(bench: Bench) -> None:
    def broken() -> None:
        raise ValueError("a bug")

    bench.store._committer.run_on_committer(broken)
    bench.store._committer.run_on_helper(broken)
    bench.store._committer.run_on_owner(broken)
    assert isinstance(bench.append(batch(0))[0], Receipt)


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
        return Files.pwritev(bench.files, fd, buffers, position)  # type: ignore[arg-type]

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


def publish_rounds(bench: Bench) -> None:
    """A round of small appends to eight partitions, then a large one, all acknowledged."""
    for size in (40, LARGE):
        bench.files.gate = threading.Event()
        bench.files.is_flushing.clear()
        first = bench.start(batch(0), index=20)
        assert bench.files.is_flushing.wait(DEADLINE_S)  # what follows gathers in one round
        outcomes = [bench.start(batch(1, size), index=index) for index in range(8)]
        bench.files.gate.set()
        for outcome in [first, *outcomes]:
            bench.turn(partial(bool, outcome))
            assert isinstance(outcome[0], Receipt)


def end_committer(bench: Bench) -> None:
    """Raise what no guard inside the committer catches."""

    def end() -> None:
        raise SystemExit

    bench.store._committer.run_on_committer(end)
    bench.store._committer._thread.join(DEADLINE_S)
    assert not bench.store._committer._thread.is_alive()


def test_helpers_start_with_the_store_and_no_thread_is_started_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = threading.active_count()
    bench = Bench(tmp_path)
    assert threading.active_count() == before + 1 + FLUSH_HELPERS
    refuse_threads(monkeypatch)
    publish_rounds(bench)
    bench.store.drop("hub")
    assert bench.store.health().is_alive
    bench.store.close()
    assert threading.active_count() == before


def test_store_without_a_single_helper_commits_in_the_committer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refuse_threads(monkeypatch, named="penstock-flush")
    bench = Bench(tmp_path)
    assert "flush helpers not started started=0 requested=8" in caplog.text
    publish_rounds(bench)
    bench.store.drop("hub")
    bench.store.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["format.json", "lock"]


def test_store_without_a_committer_thread_does_not_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        refuse_threads(patched, named="penstock-commit")
        with pytest.raises(DataDirectoryError, match="committer thread could not be started"):
            Bench(tmp_path)
    Bench(tmp_path).store.close()  # the lock was released


def test_jobs_that_no_helper_has_begun_are_run_by_the_caller() -> None:
    helpers = HelperThreads(2)
    is_blocked, may_go = threading.Semaphore(0), threading.Event()

    def block() -> None:
        is_blocked.release()
        assert may_go.wait(DEADLINE_S)

    for _ in range(2):
        helpers.submit(block)
        assert is_blocked.acquire(timeout=DEADLINE_S)
    ran: list[int] = []
    helpers.run_all([lambda: ran.append(1), lambda: ran.append(2), lambda: ran.append(3)])
    assert ran == [1, 2, 3]
    may_go.set()
    helpers.close()
    assert ran == [1, 2, 3]


def test_payloads_do_not_wait_for_a_busy_helper() -> None:
    """On a busy machine, helpers found jobs that the caller had run, with all payloads, later."""
    helpers = HelperThreads(1)
    is_blocked, may_go = threading.Event(), threading.Event()

    def block() -> None:
        is_blocked.set()
        assert may_go.wait(DEADLINE_S)

    class Payload:
        def write(self) -> None:
            pass

    helpers.submit(block)
    assert is_blocked.wait(DEADLINE_S)
    payloads = [Payload() for _ in range(3)]
    references = [weakref.ref(payload) for payload in payloads]
    helpers.run_all([payload.write for payload in payloads])
    payloads.clear()
    assert [reference() for reference in references] == [None] * 3
    may_go.set()
    helpers.close()


def test_job_that_raises_ends_no_helper() -> None:
    helpers = HelperThreads(1)

    def fail() -> None:
        raise SystemExit

    helpers.submit(fail).future.result(DEADLINE_S)
    ran: list[int] = []
    helpers.submit(lambda: ran.append(1)).future.result(DEADLINE_S)
    assert ran == [1]
    helpers.close()


@pytest.mark.parametrize("step", ["_write_runs", "_flush", "_commit"])
@pytest.mark.parametrize("error", [AssertionError("a bug"), MemoryError()])
def test_failure_inside_one_partition_fails_that_partition_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, error: Exception
) -> None:
    bench = Bench(tmp_path)
    for index in range(3):
        bench.append(batch(0), index=index)
    broken = bench.partition(1).writer

    def fail() -> None:
        raise error

    monkeypatch.setattr(broken, step, fail)
    outcomes = [bench.append(batch(1), index=index)[0] for index in range(3)]
    assert [type(o) for o in outcomes] == [Receipt, LogFailed, Receipt]
    assert bench.store.health().is_alive
    assert bench.partition(1).status().last_sequence == 0
    monkeypatch.undo()
    assert isinstance(bench.append(batch(2), index=1)[0], LogFailed)  # until a restart
    bench.store.close()
    again = Bench(tmp_path)
    assert again.partition(1).status().last_sequence == 0
    assert isinstance(again.append(batch(2), index=1)[0], Receipt)
    again.store.close()


def test_mark_or_flush_observer_that_raises_is_logged_and_the_round_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(tmp_path)

    def fail(*_: object) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr(PartitionWriter, "write_mark_if_due", fail)
    monkeypatch.setattr(bench.store._committer, "_on_flush", fail)
    for number in range(3):
        assert isinstance(bench.append(batch(number))[0], Receipt)
    assert "a bug" in caplog.text
    assert bench.store.health().is_alive
    bench.store.close()


def test_ended_committer_fails_what_is_queued_and_what_comes_later(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.append(batch(0))
    bench.append(batch(0), index=1)
    bench.files.gate = threading.Event()
    bench.files.is_flushing.clear()
    acknowledged = bench.start(batch(1))
    assert bench.files.is_flushing.wait(DEADLINE_S)

    def end() -> None:
        raise SystemExit

    bench.store._committer.run_on_committer(end)
    queued = bench.start(batch(2))  # in the round with the chore, which comes after it
    bench.files.gate.set()
    bench.store._committer._thread.join(DEADLINE_S)
    assert not bench.store.health().is_alive
    later = [bench.start(batch(3)), bench.start(batch(3), index=1), bench.start(batch(3), index=2)]
    bench.turn(lambda: all(len(o) == 1 for o in [acknowledged, queued, *later]))
    assert [type(o[0]) for o in (acknowledged, queued)] == [Receipt, Receipt]
    assert all(isinstance(o[0], LogFailed) for o in later)
    assert all("committer ended" in str(o[0]) for o in later)
    failed = bench.partition(1).status().failed
    assert failed is not None
    assert "restarted" in failed
    assert bench.store.pending_bytes == 0
    assert [b.first_sequence for b in bench.partition().read(0, bytes_max=1 << 20)] == [0, 1, 2]
    bench.store.close()
    again = Bench(tmp_path)
    assert again.partition().status().last_sequence == 2
    assert isinstance(again.append(batch(4))[0], Receipt)
    again.store.close()


@pytest.mark.parametrize("step", ["begin", "finish"])
def test_committer_that_ends_in_a_round_fails_the_appends_of_that_round_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    bench = Bench(tmp_path)
    for index in range(2):
        bench.append(batch(0), index=index)
    broken = bench.partition(1).writer

    def end(*_: object) -> None:
        raise SystemExit

    monkeypatch.setattr(broken, step, end)
    bench.files.gate = threading.Event()
    bench.files.is_flushing.clear()
    bench.start(batch(1), index=20)
    assert bench.files.is_flushing.wait(DEADLINE_S)
    outcomes = [bench.start(batch(1), index=index) for index in range(2)]
    bench.files.gate.set()
    bench.store._committer._thread.join(DEADLINE_S)
    bench.store.close()
    assert [len(o) for o in outcomes] == [1, 1]
    assert isinstance(outcomes[0][0], LogFailed if step == "begin" else Receipt)
    assert isinstance(outcomes[1][0], LogFailed)


def test_append_after_the_committer_ended_fails_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path)
    end_committer(bench)
    for number in range(3):
        [outcome] = bench.append(batch(number))
        assert isinstance(outcome, LogFailed)
    bench.store.close()


def test_idle_committer_shows_that_it_is_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committer, "IDLE_WAKE_S", 0.001)
    bench = Bench(tmp_path)

    def wait_until(is_reached: Callable[[], bool]) -> None:
        step = threading.Event()
        for _ in range(DEADLINE_S * 1000):
            if is_reached():
                return
            step.wait(0.001)
        raise AssertionError("the committer did not wake up")

    wait_until(lambda: bench.store.health().last_round_ms is not None)
    first = bench.store.health().last_round_ms
    assert first is not None
    wait_until(lambda: (bench.store.health().last_round_ms or 0) > first)
    assert bench.store.health().queued == 0
    bench.store.close()
    assert not bench.store.health().is_alive


def test_append_that_waits_for_the_disk_is_counted_as_queued(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.append(batch(0))
    bench.files.gate = threading.Event()
    bench.files.is_flushing.clear()
    bench.start(batch(1))
    assert bench.files.is_flushing.wait(DEADLINE_S)
    bench.start(batch(2), batch(3))
    health = bench.store.health()
    assert (health.is_alive, health.queued) == (True, 2)
    bench.files.gate.set()
    bench.store.close()
