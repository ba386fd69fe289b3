"""Spark's daemon of Python workers, as a job wants it that waits most of the time.

Spark keeps a daemon for each kind of worker as long as it lives, and workers for a minute, and
workers that take turns every minute for ever: half of what the capture job would hold while nothing
happens. So here a worker that got no task for a while ends, and a daemon without workers too. Spark
looks whether a worker lives before it gives it a task, and starts a daemon anew that is gone.

Spark runs `python -m pyspark.daemon KIND` for most kinds, whatever its settings say, so it is given
a Python that makes this of it: a script, as for Java (`penstock.spark.java`).
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

TASK_IDLE_S = 75.0  # of workers that do tasks: more than the shortest window
PLAN_IDLE_S = 15.0  # of those that plan and commit, when they had several batches: more will come
PLAN_ONCE_S = 3.0  # when they had a single one, as for a window without events
DAEMON_IDLE_S = 90.0  # more than the shortest window: those that are needed each time stay


_SCRIPT = """#!/bin/sh
# Made by Penstock: daemons of Python workers that end when nothing is to be done.
if [ "$1 $2" = "-m pyspark.daemon" ]; then
    shift 2
    exec {python} -m penstock.spark.idle_daemon "$@"
fi
exec {python} "$@"
"""


def write_python(folder: Path) -> Path:
    """The Python that Spark is to run, made in a directory of ours. Raises OSError."""
    script = folder / "python"
    aside = folder / f"python.{os.getpid()}"
    aside.write_text(_SCRIPT.format(python=shlex.quote(sys.executable)))
    aside.chmod(0o700)
    aside.replace(script)
    return script


class _NoPandas(importlib.abc.MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> None:
        if name.partition(".")[0] == "pandas":
            raise ModuleNotFoundError("The capture job does without pandas.", name=name)


def forget_pandas() -> None:
    """PySpark takes pandas along where it is installed, 40 MB in each process; nothing here uses
    it. For a process that is all ours."""
    sys.meta_path.insert(0, _NoPandas())


class IdlePoller:
    """`select.poll` for the daemon's loop: ends the process when nobody came for long and no
    worker is left. `register` and `unregister` as usual."""

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
    """The daemon ignores SIGCHLD: children that ended are gone, and waiting for none fails."""
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return False
    return True


def wait_for_task(sock: socket.socket, seconds: float) -> bool:
    """Whether Spark has something for this worker, or is gone."""
    poller = select.poll()
    poller.register(sock, select.POLLIN)
    return bool(poller.poll(seconds * 1000))


def idle_s(kind: str, served: int) -> float:
    """How long a worker of this kind waits for its next task. Starting one costs half a second of a
    core, keeping one 60 MB."""
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
