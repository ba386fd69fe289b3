"""Python workers that end when nothing is to be done."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.capture.description import INTERVAL_S
from penstock.spark import idle_daemon
from penstock.spark.idle_daemon import (
    DAEMON_IDLE_S,
    IdlePoller,
    idle_s,
    wait_for_task,
    write_python,
)


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(idle_daemon, "time", made)
    return made


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Those that live."""
    made: list[int] = []
    monkeypatch.setattr(idle_daemon, "_has_children", lambda: bool(made))
    return made


def test_a_daemon_without_workers_ends_after_a_while(clock: Clock, workers: list[int]) -> None:
    poller = IdlePoller()
    workers.append(1)
    clock.now_s += 10 * DAEMON_IDLE_S
    assert poller.poll(0) == []
    workers.clear()
    clock.now_s += DAEMON_IDLE_S - 1
    assert poller.poll(0) == []
    clock.now_s += 1
    with pytest.raises(SystemExit):
        poller.poll(0)


def test_a_daemon_that_is_asked_for_a_worker_stays(clock: Clock, workers: list[int]) -> None:
    poller = IdlePoller()
    one, other = socket.socketpair()
    with one, other:
        poller.register(one, select.POLLIN)
        clock.now_s += 2 * DAEMON_IDLE_S
        other.send(b"a task")
        assert poller.poll(0) == [(one.fileno(), select.POLLIN)]
        one.recv(100)
        clock.now_s += DAEMON_IDLE_S - 1
        assert poller.poll(0) == []
        poller.unregister(one)


def test_children_are_seen_as_long_as_they_live() -> None:
    """As in the daemon, which ignores SIGCHLD: in a process of its own."""
    program = """
import os, signal
from penstock.spark.idle_daemon import _has_children
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
print(_has_children())
reading, writing = os.pipe()
if os.fork() == 0:
    os.close(writing)
    os.read(reading, 1)
    os._exit(0)
os.close(reading)
print(_has_children())
os.close(writing)
while _has_children():
    pass
print("gone")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["False", "True", "gone"]


def test_a_worker_waits_for_a_task_and_hears_when_spark_is_gone() -> None:
    one, other = socket.socketpair()
    with one:
        assert not wait_for_task(one, 0)
        other.send(b"a task")
        assert wait_for_task(one, 0)
        one.recv(100)
        other.close()
        assert wait_for_task(one, 0)


def test_the_python_that_spark_runs_is_ours(tmp_path: Path) -> None:
    folder = tmp_path / "it's a directory"
    folder.mkdir()
    script = write_python(folder)
    assert script.stat().st_mode & 0o777 == 0o700
    program = "import sys; print(sys.executable, sys.argv[1:])"
    done = subprocess.run(
        [str(script), "-c", program, "a b"], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == f"{sys.executable} ['a b']"
    # Whoever starts a daemon closes its stdin to end it, and reads its port first.
    daemon = subprocess.run(
        [str(script), "-m", "pyspark.daemon", "pyspark.worker"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env={**os.environ, "PYTHON_WORKER_FACTORY_SECRET": "x"},
        timeout=60,
        check=False,
    )
    assert len(daemon.stdout) == 4, daemon.stderr


def test_workers_wait_as_long_as_it_pays() -> None:
    shortest_s = INTERVAL_S[0]
    assert idle_s("pyspark.worker", 1) == idle_s("pyspark.worker", 9) > shortest_s
    assert idle_s("pyspark.sql.worker.any", 1) < idle_s("pyspark.sql.worker.any", 2) < shortest_s
    assert shortest_s < DAEMON_IDLE_S


def test_pandas_is_not_taken_along() -> None:
    program = """
import sys
from penstock.spark.idle_daemon import forget_pandas
forget_pandas()
import pyarrow, pyspark.sql
print(pyarrow.array([1, 2]).to_pylist(), sys.modules.get("pandas"))
try:
    import pandas.core
except ImportError:
    print("no pandas")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines() == ["[1, 2] None", "no pandas"]
