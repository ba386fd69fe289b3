"""The capture job where the service is not: `penstock capture run`, on a cluster."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.spark.cluster import JAVA_OPTIONS, cluster
from tests.spark.conftest import new_hub

from penstock.management.client import ManagementClient

if TYPE_CHECKING:
    from tests.conftest import Server, ServerFactory

PENSTOCK = Path(sys.executable).parent / "penstock"
DEADLINE_S = 240.0
EVENTS = 1200


@contextmanager
def job(server: Server, config: Path, folder: Path, master: str) -> Iterator[None]:
    """As an operator runs it on a machine of its own: by the doors with TLS, and a token that
    allows no more than Capture needs."""
    with ManagementClient(server["admin"], server["admin_token"]) as client:
        issued = client.issue_admin_token("far", role="Capture", lifetime_s=3600)
    clean = {name: v for name, v in os.environ.items() if not name.startswith("PENSTOCK_")}
    environ = {
        "PENSTOCK_ADMIN_URL": server["admin"],
        "PENSTOCK_ADMIN_TOKEN": issued["token"],
        "PENSTOCK_CA_FILE": server["ca_file"],
    }
    words = ("--config", str(config), "--state", str(folder / "state"), "--master", master)
    log = folder / "job.log"
    with log.open("w") as said:
        process = subprocess.Popen(
            [str(PENSTOCK), "capture", "run", *words],
            env=clean | environ,
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
    try:
        yield
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, log.read_text()[-3000:]
    except BaseException:
        sys.stderr.write(log.read_text()[-3000:])
        raise
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.mark.full("spark")
@pytest.mark.timeout(600)
def test_a_job_on_a_cluster_captures_what_the_service_says(
    start_server: ServerFactory, tmp_path: Path
) -> None:
    config = f"""
    [capture]
    run = false
    [capture.spark]
    "spark.driver.host" = "127.0.0.1"
    "spark.executor.memory" = "600m"
    "spark.executor.extraJavaOptions" = "{JAVA_OPTIONS}"
    "spark.pyspark.python" = "{sys.executable}"
    [capture.destinations.here]
    url = "{(tmp_path / "files").as_uri()}"
    """
    file = tmp_path / "job.toml"
    file.write_text(config)
    server = start_server(config=config)
    hub = new_hub(server, 2, name="far")
    properties = {"storageAccountResourceId": "here", "blobContainer": "box"}
    description = {
        "encoding": "AvroDeflate",
        "intervalInSeconds": 900,
        "sizeLimitInBytes": 10 * 1024 * 1024,
        "destination": {"properties": properties},
    }
    client = ManagementClient(server["admin"], server["admin_token"])

    def switch(*, on: bool) -> None:
        client.put_hub(server["namespace"], "far", capture=description | {"enabled": on})

    def wait(what: str) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while (found := client.capture_status()[0]).state != what or not found.files:
            assert time.monotonic() < deadline, found
            time.sleep(0.04)

    with client, cluster(tmp_path, workers=1) as address, job(server, file, tmp_path, address):
        switch(on=True)
        hub.send([b"%06d" % n + b"." * 10_000 for n in range(EVENTS)], partition_id="0")
        hub.send([b"few"] * 5, partition_id="1")
        wait("Running")
        switch(on=False)
        wait("Off")
        (capture,) = [each for each in client.jobs() if each["name"] == "capture"]
    assert capture["master"] == address
    environ = {"PATH": os.environ["PATH"], "PENSTOCK_DATA": str(server.data)}
    proven = subprocess.run(
        [str(PENSTOCK), "capture", "verify", "far", "--config", str(file), "-o", "json"],
        capture_output=True,
        text=True,
        env=environ,
        timeout=120,
        check=False,
    )
    assert proven.returncode == 0, proven.stderr
    (proof,) = json.loads(proven.stdout)
    told = [proof[name] for name in ("events", "compared", "waiting", "missing", "double")]
    assert told == [EVENTS + 5, EVENTS + 5, 0, 0, 0]
    executors = [*(tmp_path / "worker-1").rglob("stderr")]
    assert executors, "the worker had nothing to do"
    said = "".join(log.read_text(errors="replace") for log in executors)
    said += (tmp_path / "job.log").read_text() + (tmp_path / "state" / "spark.log").read_text()
    assert [each for each in (server.key, server["admin_token"]) if each in said] == []
