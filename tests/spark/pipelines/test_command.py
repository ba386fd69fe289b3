"""`penstock pipeline run`, `penstock spark submit` and the demo, as users start them."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.management.client import ManagementClient

if TYPE_CHECKING:
    from tests.conftest import Server
    from tests.spark.conftest import MakeHub

ROOT = Path(__file__).resolve().parents[3]
PENSTOCK = Path(sys.executable).parent / "penstock"
EXAMPLES = ROOT / "examples" / "pipelines"
DEADLINE_S = 200.0
# Short lives: the first compiler is enough, and no port is taken.
QUICK = tuple(
    word
    for setting in (
        "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -Xss4m",
        "spark.driver.memory=1g",
        "spark.sql.shuffle.partitions=2",
        "spark.ui.port=0",
    )
    for word in ("--conf", setting)
)


def environment(server: Server) -> dict[str, str]:
    clean = {name: v for name, v in os.environ.items() if not name.startswith("PENSTOCK_")}
    return {
        **clean,
        "PENSTOCK_CONNECTION_STRING": server.connection_string(),
        "PENSTOCK_ADMIN_URL": server["admin"],
        "PENSTOCK_ADMIN_TOKEN": server["admin_token"],
    }


class Command:
    """A command whose stdout is lines of JSON."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.seen: list[dict[str, Any]] = []
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def until(self, event: str, **fields: object) -> dict[str, Any]:
        """The next line of this kind, or the end."""
        while line := self._lines.get(timeout=DEADLINE_S):
            found: dict[str, Any] = json.loads(line)
            self.seen.append(found)
            if found["event"] == event and fields.items() <= found.items():
                return found
        pytest.fail(f"it ended without {event}: {self.seen[-5:]}")


@contextmanager
def started(*words: str, server: Server, log: Path) -> Iterator[Command]:
    with log.open("w") as stderr:
        process = subprocess.Popen(
            [str(PENSTOCK), *words],
            stdout=subprocess.PIPE,
            stderr=stderr,
            stdin=subprocess.DEVNULL,
            text=True,
            env=environment(server),
            start_new_session=True,
        )
    try:
        yield Command(process)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(DEADLINE_S)
        assert process.stdout is not None
        process.stdout.close()


def run(*words: str, server: Server, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(PENSTOCK), *words],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        env=environment(server),
        check=False,
        **options,
    )


@pytest.mark.timeout(500)
def test_a_pipeline_is_a_job_until_a_signal_ends_it(
    broker: Server, make_hub: MakeHub, tmp_path: Path
) -> None:
    hub = make_hub(4)
    log, checkpoint = tmp_path / "stderr", tmp_path / "checkpoint"
    words = ("pipeline", "run", str(EXAMPLES / "windows.py"), "-o", "jsonl", "--name", "job-1")
    more = ("--set", f"hub={hub.name}", "--checkpoint", str(checkpoint), "--from", "earliest")
    hub.send([_reading(number) for number in range(50)])
    with started(*words, *more, *QUICK, server=broker, log=log) as command:
        ui_url = command.until("started")["ui_url"]
        assert ui_url.startswith("http://127.0.0.1:")
        # By the total: how many micro-batches the events are cut into is the machine's business.
        progress = command.until("progress", rows_total=50)
        assert (progress["query"], progress["lag_events"]) == ("job-1", 0)
        # Later batches too; and a Ctrl-C on its terminal, which every process there would hear.
        hub.send([_reading(number) for number in range(50, 70)])
        command.until("progress", rows_total=70)
        job = _job(broker, "job-1", state="Running")
        assert (job["kind"], job["ui_url"], job["pid"]) == ("pipeline", ui_url, command.process.pid)
        os.killpg(command.process.pid, signal.SIGINT)
        ended = command.until("ended")
        assert command.process.wait(DEADLINE_S) == 0, log.read_text()
    assert (ended["state"], ended["rows_total"]) == ("Stopped", 70)
    shown = {(r["row"]["device"], r["row"]["from"]): r["row"] for r in _rows(command)}
    assert sum(row["readings"] for row in shown.values()) == 70
    assert _job(broker, "job-1", state="Stopped")["last_error"] == ""
    assert (checkpoint / "job-1" / "commits").is_dir()
    _no_secret(broker, log.read_text(), checkpoint)


@pytest.mark.full("spark")  # test_running.py has the error without a process of its own
@pytest.mark.timeout(500)
def test_a_hub_that_is_missing_is_told_in_a_sentence(broker: Server, tmp_path: Path) -> None:
    ended = run(
        *("pipeline", "run", str(EXAMPLES / "enrich.py"), "--set", "hub=nowhere", *QUICK),
        server=broker,
    )
    assert ended.returncode == 3, ended.stderr
    last = ended.stderr.strip().splitlines()[-1]
    assert last.startswith("penstock: ") and "nowhere" in last
    assert "Traceback" not in ended.stderr and "WARN" not in ended.stderr
    assert ended.stdout == ""


@pytest.mark.timeout(500)
def test_spark_submit_is_wired_to_the_service(
    broker: Server, make_hub: MakeHub, tmp_path: Path
) -> None:
    hub = make_hub(2)
    hub.send([b"one", b"two"])
    job = tmp_path / "job.py"
    job.write_text(
        "from pyspark.sql import SparkSession\n"
        "spark = SparkSession.builder.getOrCreate()\n"
        f"events = spark.read.format('eventhubs').option('eventHubName', {hub.name!r}).load()\n"
        "print('bodies', sorted(bytes(row.body).decode() for row in events.collect()))\n"
    )
    ended = run("spark", "submit", "--master", "local[2]", *QUICK, str(job), server=broker)
    assert ended.returncode == 0, ended.stderr
    assert "bodies ['one', 'two']" in ended.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--restart", "often"), "neither a number nor 'always'"),
        (("--conf", "executor.memory=1g"), "'executor.memory' is not spark.NAME=VALUE"),
        (("--set", "hub"), "'hub' is not NAME=VALUE"),
        (("--master", "local[1]", "--remote", "sc://x"), "exclude each other"),
        (("--trigger", "5s", "--available-now"), "exclude each other"),
        (("--trigger", "soon"), "is not a duration"),
    ],
)
def test_options_that_make_no_sense_are_refused_at_once(
    broker: Server, words: tuple[str, ...], said: str
) -> None:
    ended = run("pipeline", "run", str(EXAMPLES / "windows.py"), *words, server=broker)
    assert ended.returncode == 2
    assert said in " ".join(ended.stderr.split())


@pytest.mark.full("spark")  # a service, its Capture, a fleet and a pipeline: two JVMs
@pytest.mark.timeout(500)
def test_the_demo_loses_nothing_by_a_kill_and_cleans_up(tmp_path: Path) -> None:
    clean = {name: v for name, v in os.environ.items() if not name.startswith("PENSTOCK_")}
    ended = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "demo.py"), "--seconds", "3", "--devices", "5"],
        capture_output=True,
        text=True,
        timeout=400,
        env={**clean, "TMPDIR": str(tmp_path)},
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "every stored reading is in exactly one of them" in ended.stdout
    assert "* kill -9" in ended.stdout and "acknowledged, 0 lost" in ended.stdout
    assert ended.stdout.count("Portal with live charts: http://localhost:") == 2
    assert "Capture on" in ended.stdout
    assert "device-04" in ended.stdout and "Look next" in ended.stdout
    assert ended.stderr == ""
    assert [each.name for each in tmp_path.glob("penstock-*")] == []


def _reading(number: int) -> str:
    body = {
        "device": f"d-{number % 3}",
        "time": f"2026-11-16T12:{number // 60:02d}:{number % 60:02d}Z",
    }
    return json.dumps(body | {"temperature": 20.5})


def _rows(command: Command) -> list[dict[str, Any]]:
    return [line for line in command.seen if line["event"] == "row"]


def _job(server: Server, name: str, *, state: str) -> dict[str, Any]:
    """As the service has it, within the few seconds between two reports."""
    waited = threading.Event()
    with ManagementClient(server["admin"], server["admin_token"]) as management:
        for _ in range(int(DEADLINE_S / 0.05)):
            found = {job["name"]: job for job in management.jobs()}.get(name)
            if found is not None and found["state"] == state:
                return found
            waited.wait(0.05)
    pytest.fail(f"{name} is not {state}: {found}")


def _no_secret(server: Server, text: str, checkpoint: Path) -> None:
    files = [each.read_bytes() for each in checkpoint.rglob("*") if each.is_file()]
    assert files
    assert [data for data in [text.encode(), *files] if server.key.encode() in data] == []
