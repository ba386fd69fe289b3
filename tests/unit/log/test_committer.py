"""The committer's threads: what one failure touches, and what happens when a thread is missing."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from tests.unit.log.test_embedded import DEADLINE_S, Bench, batch

from penstock.log.embedded import committer
from penstock.log.embedded.committer import FLUSH_HELPERS, HelperThreads
from penstock.log.embedded.writer import PartitionWriter
from penstock.model.errors import DataDirectoryError, LogFailed
from penstock.model.events import Receipt

LARGE = 150_000  # two of them in four partitions are a large round


def refuse_threads(monkeypatch: pytest.MonkeyPatch, *, named: str = "") -> None:
    """As a limit on processes (RLIMIT_NPROC, a container's pids limit) does."""
    start = threading.Thread.start

    def refused(self: threading.Thread) -> None:
        if named in self.name:
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", refused)


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

    bench.store._committer.do(end)
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
    assert "only 0 of 8 flush helper threads" in caplog.text
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

    monkeypatch.setattr(PartitionWriter, "tidy", fail)
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

    bench.store._committer.do(end)
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


def test_append_behind_an_ended_committer_is_answered_and_not_left_waiting(
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
