"""kill -9 of whole drivers, and the same job on a real cluster: programs as users run them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.spark.cluster import JAVA_OPTIONS, STARTS_MAX, TOO_BUSY, cluster

if TYPE_CHECKING:
    from tests.conftest import Sized
    from tests.spark.conftest import MakeHub, TestHub

DEADLINE_S = 240

# From hub to hub, keyed, in small micro-batches, until there is nothing more.
PROGRAM = """
import os, sys
from pyspark.sql import SparkSession

master, source, target, checkpoint, trigger = sys.argv[1:]
builder = SparkSession.builder.master(master).config("spark.ui.enabled", "false")
for pair in os.environ.get("TEST_SPARK_CONF", "").split("\\n"):
    if pair:
        builder = builder.config(*pair.split("=", 1))
spark = builder.getOrCreate()
spark.sparkContext.setLogLevel("OFF")
frame = (
    spark.readStream.format("eventhubs")
    .options(**{"connectionString.env": source, "startingPosition": "earliest"})
    .options(maxEventsPerTrigger="400", minPartitions="4")
    .load()
)
query = (
    frame.selectExpr("body", "rtrim(cast(body as string)) as partitionKey")
    .writeStream.format("eventhubs")
    .options(**{"connectionString.env": target, "checkpointLocation": checkpoint})
    .trigger(**({"availableNow": True} if trigger == "now" else {"processingTime": trigger}))
    .start()
)
print("started", flush=True)
query.awaitTermination()
print("rows", spark.read.format("eventhubs").option("connectionString.env", target).load().count())
spark.stop()
"""


class Driver:
    """A user's program in a process group of its own: Python, the JVM, and all their workers."""

    def __init__(
        self, folder: Path, hubs: tuple[TestHub, TestHub], master: str, trigger: str, **conf: str
    ) -> None:
        program = folder / "program.py"
        program.write_text(PROGRAM)
        self._log = folder / "driver.log"
        conf = {"spark.driver.extraJavaOptions": JAVA_OPTIONS} | conf
        environ = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(folder),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SOURCE": hubs[0].connection_string,
            "TARGET": hubs[1].connection_string,
            "TEST_SPARK_CONF": "\n".join(f"{name}={value}" for name, value in conf.items()),
        }
        arguments = [master, "SOURCE", "TARGET", str(folder / "checkpoint"), trigger]
        self._folder = folder
        self._environ = environ
        self._command = [sys.executable, str(program), *arguments]
        self._starts = 1
        self._read = 0  # characters of the log that are of earlier programs
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            self._read = len(self.words)
            return subprocess.Popen(
                self._command,
                cwd=self._folder,
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def words(self) -> str:
        return self._log.read_text(errors="replace")

    def is_running(self) -> bool:
        """Started again where the machine was so busy that a Python process of Spark's did not
        come up within the ten seconds that Spark has for it."""
        if self.process.poll() is None:
            return True
        words = self.words[self._read :]
        if TOO_BUSY not in words or self.process.returncode == 0 or self._starts >= STARTS_MAX:
            return False
        self._starts += 1
        self.process = self._start()
        return True

    def kill(self) -> None:
        """kill -9 of everything that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(30)

    def finish(self) -> str:
        deadline_s = time.monotonic() + DEADLINE_S
        while self.is_running():
            if time.monotonic() > deadline_s:
                self.kill()
                raise AssertionError(f"the driver did not finish: {self.words[-3000:]}")
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(1)
        assert self.process.returncode == 0, self.words[-3000:]
        return self.words


def stored(hub: TestHub) -> list[bytes]:
    return sorted(body for bodies in hub.read().values() for body in bodies)


def wait_for_more(hub: TestHub, driver: Driver, than: int) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline_s:
        if len(stored(hub)) > than:
            return
        assert driver.is_running(), driver.words[-3000:]
        time.sleep(0.02)
    raise AssertionError(f"nothing came: {driver.words[-3000:]}")


@pytest.mark.full("spark")
@pytest.mark.timeout(3600)
def test_every_event_arrives_once_whatever_is_killed(
    make_hub: MakeHub, tmp_path: Path, sized: Sized
) -> None:
    hubs = source, target = make_hub(4), make_hub(4)
    sent = source.spread(4000, size=120)
    for _ in range(sized(short=1, full=3, long=20)):
        driver = Driver(tmp_path, hubs, "local[2,4]", "50 milliseconds")
        try:
            wait_for_more(target, driver, len(stored(target)))
        finally:
            driver.kill()
    left = len(sent) - len(stored(target))
    Driver(tmp_path, hubs, "local[2,4]", "now").finish()
    assert stored(target) == sorted(sent)
    assert left >= 0


@pytest.mark.full("spark")
@pytest.mark.timeout(600)
def test_the_same_job_runs_on_a_cluster(make_hub: MakeHub, tmp_path: Path) -> None:
    """Executors get everything from the query alone: their environment has no connection string."""
    hubs = source, target = make_hub(4), make_hub(4)
    sent = source.spread(1200)
    folder = tmp_path / "driver"
    folder.mkdir()
    executor = {
        "spark.executor.memory": "600m",
        "spark.executor.extraJavaOptions": JAVA_OPTIONS,
        "spark.driver.host": "127.0.0.1",
        "spark.pyspark.python": sys.executable,
        "spark.cores.max": "2",
    }
    with cluster(tmp_path, workers=2) as address:
        driver = Driver(folder, hubs, address, "now", **executor)
        try:
            words = driver.finish()
        finally:
            driver.kill()
    assert f"rows {len(sent)}" in words
    assert stored(target) == sorted(sent)
    executors = [log for log in tmp_path.rglob("stderr") if "worker-" in str(log)]
    assert len({log.parts[-4] for log in executors}) == 2, "both workers took part"
    for log in executors:
        assert source.server.key not in log.read_text(errors="replace")
