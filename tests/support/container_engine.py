"""An image built and run by docker or podman, where one of them answers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.toolchains import ROOT

ENGINES = ("docker", "podman")
INFO_DEADLINE_S = 20
BUILD_DEADLINE_S = 2400
START_DEADLINE_S = 60


class EngineImage(NamedTuple):
    engine: str
    tag: str


def find() -> str | None:
    """The engine that answers, if any."""
    for name in ENGINES:
        if shutil.which(name) is None:
            continue
        try:
            done = subprocess.run([name, "info"], capture_output=True, timeout=INFO_DEADLINE_S)
        except subprocess.TimeoutExpired:
            continue
        if done.returncode == 0:
            return name
    return None


def build(engine: str, target: str) -> EngineImage:
    """Layers that did not change come from the engine's cache."""
    image = EngineImage(engine, f"penstock-test:{target}")
    options = ["--file", "deploy/Dockerfile", "--target", target, "--tag", image.tag]
    if base := os.environ.get("PENSTOCK_TEST_BASE_IMAGE"):  # of a machine without a registry
        options += ["--build-arg", f"PYTHON={base}"]
    done = subprocess.run(
        [engine, "build", *options, "."],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=BUILD_DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    return image


class EngineContainer:
    """A running container with a read-only root. Programs of this machine reach it by its address
    on the engine's network, under the names that `run` gives it."""

    def __init__(
        self,
        image: EngineImage,
        log: Path,
        *,
        environ: Mapping[str, str],
        volumes: Mapping[Path, str],
        command: Sequence[str] = (),
    ) -> None:
        self._engine = image.engine
        self.log = log
        words = ["--detach", "--read-only"]
        if self._engine == "podman":  # which would mount a writable /tmp
            words.append("--read-only-tmpfs=false")
        for name, value in environ.items():
            words += ["--env", f"{name}={value}"]
        for source, place in volumes.items():
            words += ["--volume", f"{source}:{place}"]
        self._id = self._call("run", *words, image.tag, *command).stdout.strip()

    def wait_for(self, text: str) -> None:
        """Until the log has the text."""
        deadline = time.monotonic() + START_DEADLINE_S
        while text not in self._read_log():
            is_running = self._inspect("State")["Running"]
            assert is_running and time.monotonic() < deadline, self._read_log()
            time.sleep(0.04)

    def execute(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        return self._call("exec", self._id, *command, check=False)

    def run(self, program: Path, *arguments: str, names: str = "penstock") -> str:
        """Run a Python program of this machine; `names` in its arguments is the container."""
        networks = self._inspect("NetworkSettings")
        address = networks["IPAddress"] or next(
            each["IPAddress"] for each in networks["Networks"].values()
        )
        words = [argument.replace(names, address) for argument in arguments]
        done = subprocess.run(
            [sys.executable, str(program), *words],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr + self._read_log()
        return done.stdout

    def stop(self) -> int:
        """SIGTERM, as every user stops it; the exit code. The container is removed."""
        self._call("stop", "--time", "30", self._id)
        self._read_log()
        code: int = self._inspect("State")["ExitCode"]
        self._call("rm", self._id)
        return code

    def _read_log(self) -> str:
        done = self._call("logs", self._id)
        self.log.write_text(done.stdout + done.stderr)
        return self.log.read_text()

    def _inspect(self, part: str) -> Any:
        return json.loads(self._call("inspect", self._id).stdout)[0][part]

    def _call(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [self._engine, *words], capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0 or not check, done.stdout + done.stderr
        return done
