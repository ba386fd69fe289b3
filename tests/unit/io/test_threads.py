"""Thread pools that start their threads at construction."""

from __future__ import annotations

import threading

import pytest
from tests.unit.log.embedded.bench import refuse_threads

from penstock.io import threads as threads_module
from penstock.io.threads import StartedThreads
from penstock.model.errors import InternalError

DEADLINE_S = 10


def test_all_threads_are_there_before_they_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    with StartedThreads(3, "started") as threads:
        refuse_threads(monkeypatch)
        together = threading.Barrier(3)
        results = [threads.submit(together.wait, DEADLINE_S) for _ in range(3)]
        assert sorted(result.result(DEADLINE_S) for result in results) == [0, 1, 2]


def test_system_that_starts_too_few_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    before = threading.active_count()
    refuse_threads(monkeypatch, named="started_2")
    with pytest.raises(InternalError, match="The threads started could not be started: can't"):
        StartedThreads(3, "started")
    assert threading.active_count() == before


def test_threads_that_do_not_run_are_not_waited_for_forever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(threads_module, "_START_S", 0.01)
    monkeypatch.setattr(StartedThreads, "_adjust_thread_count", lambda self: None)
    with pytest.raises(InternalError, match=r"they did not run within 0\.01 s"):
        StartedThreads(1, "started")
