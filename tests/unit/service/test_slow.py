"""Operations that take long stand in the log, one line each, and others do not."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pytest

from penstock.model import limits, slow_operations
from penstock.model.clock import ManualClock
from penstock.service.logging_setup import BURST, RepeatLimit
from penstock.service.read_threads import ReadThreads


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.WARNING, "penstock.slow")
    return caplog


@pytest.fixture
def everything_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow_operations, "threshold_ms", 0)


@pytest.fixture
def reads() -> Iterator[ReadThreads]:
    with ReadThreads(1, "read") as threads:
        yield threads


def test_slow_operation_is_one_line_with_its_facts(told: pytest.LogCaptureFixture) -> None:
    slow_operations.warn_if_slow("commit", limits.SLOW_OPERATION_MS - 0.1, hub="a")
    slow_operations.warn_if_slow("commit", limits.SLOW_OPERATION_MS + 234.5, hub="b", events=3)
    assert told.messages == ["slow operation: what=commit ms=1234 hub=b events=3"]


def test_flood_of_one_kind_does_not_hide_another(told: pytest.LogCaptureFixture) -> None:
    thinning = RepeatLimit(ManualClock().monotonic_ms)
    for _ in range(1000):
        slow_operations.warn_if_slow("commit", 5000)
    slow_operations.warn_if_slow("read", 5000)
    let_through = [record.getMessage() for record in told.records if thinning.filter(record)]
    assert len(let_through) == BURST + 1
    assert "what=read" in let_through[-1]


def test_facts_with_a_percent_sign_are_only_text(told: pytest.LogCaptureFixture) -> None:
    slow_operations.warn_if_slow("attach", 5000, peer="fe80::1%eth0:5")
    assert told.messages == ["slow operation: what=attach ms=5000 peer=fe80::1%eth0:5"]


@pytest.mark.usefixtures("everything_is_slow")
def test_reads_are_measured_on_their_thread(
    told: pytest.LogCaptureFixture, reads: ReadThreads
) -> None:
    assert reads.submit(threading.current_thread).result(30) is not threading.current_thread()
    assert reads.submit(int, "2a", base=16).result(30) == 42
    with pytest.raises(ValueError, match="invalid literal"):
        reads.submit(int, "nothing").result(30)
    assert [message.partition(" ms=")[0] for message in told.messages] == [
        "slow operation: what=read"
    ] * 3
