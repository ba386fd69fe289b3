"""Spark's daemon of Python workers for a job that is idle most of the time: idle processes end.

Spark keeps one daemon per kind of worker for its whole life, and an idle worker for a minute, so
that workers used once a minute never end: half of the memory of an idle capture job. Here a worker
ends after some time without a task, and so does a daemon without workers. Spark checks that a
worker is alive before it gives it a task, and starts a daemon again that has ended.

Spark runs `python -m pyspark.daemon KIND` for most kinds, whatever its settings are. So
PYSPARK_PYTHON names a script that runs this module instead, as `penstock.spark.java` does for Java.

This module replaces `worker` and `select` of `pyspark.daemon`, which are not public; pyproject.toml
bounds the version of PySpark, and tests/unit/spark/test_pyspark_internals.py names them.
"""

from __future__ import annotations

import importlib.abc
import os
import select
import shlex
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace

TASK_IDLE_S = 75.0  # for workers that run tasks: longer than the shortest capture window
PLAN_IDLE_S = 15.0  # for workers that plan and commit, after several batches: more will follow
PLAN_ONCE_S = 3.0  # for these after one batch, as in a window without events
DAEMON_IDLE_S = 90.0  # longer than the shortest window: daemons that are used each time stay


_SCRIPT = """#!/bin/sh
# Written by Penstock: daemons of Python workers that end when they are idle.
if [ "$1 $2" = "-m pyspark.daemon" ]; then
    shift 2
    exec {python} -m penstock.spark.idle_daemon "$@"
fi
exec {python} "$@"
"""


def write_python(folder: Path) -> Path:
    """Write the script for PYSPARK_PYTHON to a directory, atomically. Raises OSError."""
    script = folder / "python"
    temporary = folder / f"python.{os.getpid()}"
    temporary.write_text(_SCRIPT.format(python=shlex.quote(sys.executable)))
    temporary.chmod(0o700)
    temporary.replace(script)
    return script


class _NoPandas(importlib.abc.MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> None:
        if name.partition(".")[0] == "pandas":
            raise ModuleNotFoundError("The capture job does without pandas.", name=name)


def forget_pandas() -> None:
    """Make `import pandas` fail in this process. PySpark imports pandas if it is installed, which
    takes 40 MB in each process; the capture job does not use it."""
    sys.meta_path.insert(0, _NoPandas())


class IdlePoller:
    """`select.poll` for the daemon's loop. Ends the process after DAEMON_IDLE_S without a request
    and without workers."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._since_s = time.monotonic()
        self.register = self._poll.register
        self.unregister = self._poll.unregister

    def poll(self, timeout_ms: float) -> list[tuple[int, int]]:
        events = self._poll.poll(timeout_ms)
        now_s = time.monotonic()
        if events or _has_children():
            self._since_s = now_s
        elif now_s - self._since_s >= DAEMON_IDLE_S:
            raise SystemExit(0)
        return events


def _has_children() -> bool:
    """The daemon ignores SIGCHLD, so ended children leave no zombie, and waitpid fails without
    any child."""
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return False
    return True


def wait_for_task(sock: socket.socket, seconds: float) -> bool:
    """Whether Spark sends something to this worker within that time, or has closed the socket."""
    poller = select.poll()
    poller.register(sock, select.POLLIN)
    return bool(poller.poll(seconds * 1000))


def idle_s(kind: str, served: int) -> float:
    """How long a worker of this kind waits for its next task. Starting one takes half a second of
    CPU time; an idle one takes 60 MB."""
    if kind == "pyspark.worker":
        return TASK_IDLE_S
    return PLAN_ONCE_S if served == 1 else PLAN_IDLE_S


def main() -> None:
    forget_pandas()
    from pyspark import daemon

    kind = sys.argv[1] if len(sys.argv) > 1 else ""

    serve = daemon.worker
    served = 0  # by this process: a worker is a fork

    def worker(sock: socket.socket, authenticated: bool) -> int:
        nonlocal served
        if served and not wait_for_task(sock, idle_s(kind, served)):
            os._exit(0)
        served += 1
        return serve(sock, authenticated)

    daemon.worker = worker
    daemon.select = SimpleNamespace(  # type: ignore[attr-defined,assignment]
        poll=IdlePoller, POLLIN=select.POLLIN, POLLHUP=select.POLLHUP, select=select.select
    )
    daemon.manager()


if __name__ == "__main__":
    main()
