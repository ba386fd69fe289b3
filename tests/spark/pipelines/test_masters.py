"""The same pipeline elsewhere than in its own process: a Spark Connect server, a cluster."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.spark.cluster import JAVA_OPTIONS, cluster, free_port

if TYPE_CHECKING:
    from tests.conftest import Server
    from tests.spark.conftest import MakeHub, TestHub

PENSTOCK = Path(sys.executable).parent / "penstock"
EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "pipelines"
DEADLINE_S = 180.0


# A session of ours over Connect, and a writer that names no mode.
SAVING = """
import sys
from penstock.spark import session

spark = session(remote=sys.argv[1])
rows = spark.range(3).selectExpr("cast(id as string) as body")
rows.write.format("eventhubs").option("connectionString", sys.argv[2]).save()
read = spark.read.format("eventhubs").option("connectionString", sys.argv[2]).load()
print("rows", read.count())
spark.stop()
"""


@contextmanager
def daemon(
    program: str, *words: str, port: int, log: Path, environ: dict[str, str] | None = None
) -> Iterator[None]:
    """One of Spark's own servers, from the pip package, until the block ends."""
    from penstock.spark.java import java_home

    spec = find_spec("pyspark")
    assert spec is not None and spec.origin is not None
    home = Path(spec.origin).parent
    known = {name: v for name, v in os.environ.items() if not name.startswith("PENSTOCK_")}
    known |= {"JAVA_HOME": java_home() or "", "SPARK_HOME": str(home)}
    known |= {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    with log.open("wb") as file:
        process = subprocess.Popen(
            [str(home / "bin" / program), *words],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env=known | (environ or {}),
            start_new_session=True,
        )
    try:
        _wait_for(port, process, log)
        yield
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    pause = threading.Event()
    for _ in range(int(DEADLINE_S / 0.025)):
        assert process.poll() is None, log.read_text()[-2000:]
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        pause.wait(0.025)
    pytest.fail(f"nobody listens on {port}:\n{log.read_text()[-2000:]}")


def enrich(
    server: Server, hub: TestHub, out: TestHub, *words: str
) -> subprocess.CompletedProcess[str]:
    bodies = [
        json.dumps({"device": "a", "time": "2026-11-16T12:00:00Z", "temperature": number})
        for number in range(50)
    ]
    hub.send(bodies, partition_key="a")
    clean = {name: v for name, v in os.environ.items() if not name.startswith("PENSTOCK_")}
    return subprocess.run(
        [
            *(str(PENSTOCK), "pipeline", "run", str(EXAMPLES / "enrich.py"), "-o", "jsonl"),
            *("--set", f"hub={hub.name}", "--set", f"into={out.name}", "--from", "earliest"),
            *("--available-now", *words),
        ],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S * 1.5,
        env={**clean, "PENSTOCK_CONNECTION_STRING": server.connection_string()},
        check=False,
    )


def check(ended: subprocess.CompletedProcess[str], server: Server, out: TestHub) -> None:
    assert ended.returncode == 0, ended.stdout + ended.stderr
    last = json.loads(ended.stdout.splitlines()[-1])
    assert (last["event"], last["state"], last["rows_total"]) == ("ended", "Stopped", 50)
    rows = [json.loads(body) for bodies in out.read().values() for body in bodies]
    assert [row["temperature"] for row in rows] == list(range(50))
    assert server.key not in ended.stdout + ended.stderr


@pytest.mark.full("spark")
@pytest.mark.timeout(500)
def test_a_pipeline_runs_on_a_spark_connect_server(
    broker: Server, make_hub: MakeHub, tmp_path: Path
) -> None:
    pytest.importorskip("grpc", reason="the extra `connect` is not installed")
    port, log = free_port(), tmp_path / "connect.log"
    hub, out = make_hub(2), make_hub(2)
    words = (
        *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
        *("--master", "local[2]", "--name", "connect"),
        *("--conf", f"spark.connect.grpc.binding.port={port}", "--conf", "spark.ui.port=0"),
        *("--conf", "spark.connect.grpc.binding.address=127.0.0.1"),
        # At INFO Spark Connect itself may write a request, options and all, as it ends a session.
        *("--conf", "spark.log.level=WARN"),
        *("--conf", f"spark.driver.extraJavaOptions={JAVA_OPTIONS}", "spark-internal"),
    )
    address = f"sc://127.0.0.1:{port}"
    with daemon("spark-submit", *words, port=port, log=log):
        ended = enrich(broker, hub, out, "--remote", address)
        check(ended, broker, out)
        saved = subprocess.run(
            [sys.executable, "-c", SAVING, address, f"{out.connection_string}"],
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
    assert (saved.returncode, saved.stdout.split()) == (0, ["rows", "53"]), saved.stderr
    assert broker.key not in log.read_text(), "the server's log is no place for a key"


@pytest.mark.full("spark")
@pytest.mark.timeout(500)
def test_a_pipeline_runs_on_a_cluster(broker: Server, make_hub: MakeHub, tmp_path: Path) -> None:
    hub, out = make_hub(2), make_hub(2)
    with cluster(tmp_path, workers=1) as address:
        ended = enrich(
            *(broker, hub, out, "--master", address),
            *("--checkpoint", str(tmp_path / "checkpoint")),
            *("--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.ui.port=0"),
            *("--conf", "spark.executor.memory=512m"),
            *("--conf", f"spark.driver.extraJavaOptions={JAVA_OPTIONS}"),
            *("--conf", f"spark.executor.extraJavaOptions={JAVA_OPTIONS}"),
            *("--conf", f"spark.pyspark.python={sys.executable}"),
        )
    check(ended, broker, out)
