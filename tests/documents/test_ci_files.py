"""The CI files of docs/guides/testing.md: their commands run in an environment that has nothing."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.documents.page import read_blocks
from tests.documents.syntax import yaml
from tests.support import toolchains

ROOT = Path(__file__).resolve().parents[2]
PAGE = "docs/guides/testing.md"
NODE = ROOT / "tests" / "compatibility" / "node"
STEP_DEADLINE_S = 300
PORTS = ("AMQP", "AMQPS", "HTTPS", "ADMIN", "PORTAL")
JAVASCRIPT_TEST = """
import assert from "node:assert/strict";
import test from "node:test";
import { EventHubProducerClient } from "@azure/event-hubs";

test("events are sent", async () => {
  const producer = new EventHubProducerClient(process.env.EVENTHUB_CONNECTION_STRING, "orders");
  await producer.sendBatch([{ body: "one" }]);
  assert.equal((await producer.getPartitionIds()).length, 4);
  await producer.close();
});
"""

pytestmark = [pytest.mark.full("documents"), pytest.mark.timeout(900)]


class Machine:
    """What a CI job starts with: the sources, Python without packages, and the wheel to find."""

    def __init__(self, directory: Path, dist: Path) -> None:
        self.project = directory / "project"
        self.project.mkdir(parents=True)
        venv.create(directory / "python", with_pip=True, symlinks=True)
        self._github_env = directory / "github-env"
        self._github_env.touch()
        ports = {f"PENSTOCK_{name}_PORT": "0" for name in PORTS}
        pip = {name: v for name, v in os.environ.items() if name.startswith("PIP_")}
        self.environ = (
            pip
            | ports
            | {
                "PATH": f"{directory / 'python' / 'bin'}:{os.environ['PATH']}",
                "HOME": str(directory),
                "GITHUB_ENV": str(self._github_env),
                "PIP_FIND_LINKS": str(dist),
                "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            }
        )

    def run(self, script: str) -> str:
        """What the script prints; then what it added to GITHUB_ENV is in the environment."""
        output = self.project.parent / "output"
        with output.open("wb") as file:  # a pipe would stay open in the background service
            done = subprocess.run(
                ["bash", "-e", "-o", "pipefail", "-c", script],
                cwd=self.project,
                env=self.environ,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                timeout=STEP_DEADLINE_S,
                check=False,
            )
        text = output.read_text()
        assert done.returncode == 0, f"{script}\n{text[-4000:]}\n{self._log()}"
        for line in self._github_env.read_text().splitlines():
            name, _, value = line.partition("=")
            self.environ[name] = value
        return text

    def close(self) -> None:
        """End the service, as the end of a job does."""
        runtime = self.project / "penstock-data" / "runtime.json"
        if runtime.exists():
            os.kill(json.loads(runtime.read_text())["pid"], signal.SIGTERM)

    def _log(self) -> str:
        log = self.project / "penstock.log"
        return log.read_text() if log.exists() else ""


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make wheel` builds."""
    directory = tmp_path_factory.mktemp("dist")
    done = subprocess.run(
        [sys.executable, "-m", "tools.wheel", directory],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=STEP_DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return directory


@pytest.fixture
def machine(tmp_path: Path, dist: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path, dist)
    yield machine
    machine.close()


def github_job(name: str) -> list[str]:
    steps = _file("jobs")["jobs"][name]["steps"]
    return [step["run"] for step in steps if "run" in step and "if" not in step]


def gitlab_job(name: str) -> list[str]:
    """All lines run in one shell. Without apt-get: the machine has Python."""
    job = _file("python")[name]
    lines = [*job.get("before_script", ()), *job["script"]]
    return ["\n".join(line for line in lines if not line.startswith("apt-get"))]


@pytest.mark.parametrize("job", [github_job, gitlab_job])
def test_python_job(job: Any, machine: Machine) -> None:
    for block in read_blocks(PAGE, ROOT / PAGE):
        if block.language == "python" and block.file is not None:
            (machine.project / block.file).write_text(block.text)
    assert "7 passed" in [machine.run(script) for script in job("python")][-1]


@pytest.mark.parametrize("job", [github_job, gitlab_job])
def test_javascript_job(job: Any, machine: Machine) -> None:
    toolchains.require("node")
    package = json.loads((NODE / "package.json").read_text()) | {
        "scripts": {"test": "node --test"},
        "type": "module",
    }
    (machine.project / "package.json").write_text(json.dumps(package))
    shutil.copy(NODE / "package-lock.json", machine.project)
    (machine.project / "orders.test.js").write_text(JAVASCRIPT_TEST)
    assert "pass 1" in [machine.run(script) for script in job("javascript")][-1]


def _file(key: str) -> Any:
    """The YAML block that has this key at its top."""
    files = [yaml.safe_load(b.text) for b in read_blocks(PAGE, ROOT / PAGE) if b.language == "yaml"]
    (file,) = (file for file in files if key in file)
    return file
