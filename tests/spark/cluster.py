"""Spark's own cluster manager, started as an operator would: for jobs that run elsewhere."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

DEADLINE_S = 240
TOO_BUSY = "Python worker failed to connect back"  # within ten seconds, on a machine at work
STARTS_MAX = 3
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -Xss4m"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    return port


class Daemon:
    """Spark's master or a worker from the pip package, as an operator would start it."""

    def __init__(self, folder: Path, name: str, *arguments: str) -> None:
        self._log = folder / f"{name}.log"
        spark_class = Path(sys.executable).parent / "spark-class"
        # Nothing of this process: neither its connection strings nor its paths.
        environ = {
            "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(folder),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_JAVA_OPTS": JAVA_OPTIONS,
            "SPARK_DAEMON_MEMORY": "256m",
            "PYSPARK_PYTHON": sys.executable,
        }
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [str(spark_class), *arguments],
                cwd=folder,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def words(self) -> str:
        return self._log.read_text(errors="replace")

    def wait_for(self, words: str, times: int = 1) -> None:
        deadline_s = time.monotonic() + DEADLINE_S
        while self.words.count(words) < times:
            assert self.process.poll() is None and time.monotonic() < deadline_s, self.words[-2000:]
            time.sleep(0.03)

    def stop(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(20)
            return
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(20)


@contextlib.contextmanager
def cluster(folder: Path, *, workers: int) -> Iterator[str]:
    """A standalone master and workers on this machine, who work in `worker-1` and so on below the
    folder; its address."""
    port = free_port()
    address = f"spark://127.0.0.1:{port}"
    places = ["--host", "127.0.0.1", "--webui-port", "0"]
    deploy = "org.apache.spark.deploy"
    started: list[Daemon] = []
    try:
        master = Daemon(folder, "master", f"{deploy}.master.Master", *places, "--port", str(port))
        started.append(master)
        master.wait_for("Starting Spark master at")
        for name in (f"worker-{number + 1}" for number in range(workers)):
            work = folder / name
            work.mkdir()
            resources = ["-c", "1", "-m", "900m", "-d", str(work)]
            worker = f"{deploy}.worker.Worker"
            started.append(Daemon(folder, name, worker, *places, *resources, address))
        master.wait_for("Registering worker", times=workers)
        yield address
    finally:
        for daemon in reversed(started):
            daemon.stop()
