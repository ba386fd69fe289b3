"""`penstock serve` as a user starts it, for every test that wants a real process."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

PENSTOCK = Path(sys.executable).parent / "penstock"
START_DEADLINE_S = 30.0  # a loaded machine; the promise (1 s) is measured elsewhere
STOP_DEADLINE_S = 20.0
ANY_PORT = tuple(
    part for door in ("amqp", "amqps", "https", "admin") for part in (f"--{door}-port", "0")
)


class Server:
    """One running `penstock serve --json`: its process and the facts of its JSON line."""

    def __init__(self, process: subprocess.Popen[str], data: Path, log: Path) -> None:
        self.process = process
        self.data = data
        self.log = log
        self.facts = self._read_facts()

    def _read_facts(self) -> dict[str, str]:
        lines: queue.Queue[str] = queue.Queue()
        stdout = self.process.stdout
        assert stdout is not None
        threading.Thread(target=lambda: lines.put(stdout.readline()), daemon=True).start()
        try:
            line = lines.get(timeout=START_DEADLINE_S)
        except queue.Empty:
            line = ""
        if not line:
            self.kill()
            pytest.fail(f"penstock serve did not start:\n{self.log.read_text()[-4000:]}")
        facts: dict[str, str] = json.loads(line)
        return facts

    def __getitem__(self, fact: str) -> str:
        return self.facts[fact]

    @property
    def key(self) -> str:
        """The root policy's primary key."""
        return self["connection_string"].partition("SharedAccessKey=")[2].partition(";")[0]

    def port(self, door: str) -> int:
        return int(self[door].rpartition(":")[2])

    def connection_string(
        self, *, policy: str | None = None, key: str | None = None, tls: bool = False
    ) -> str:
        """As printed, or the same endpoint with another policy and key."""
        printed = self["connection_string" if tls else "emulator_connection_string"]
        parts = dict(part.split("=", 1) for part in printed.split(";") if part)
        parts["SharedAccessKeyName"] = policy or parts["SharedAccessKeyName"]
        parts["SharedAccessKey"] = key or parts["SharedAccessKey"]
        return ";".join(f"{name}={value}" for name, value in parts.items())

    def stop(self) -> int:
        """SIGTERM, as a supervisor does; the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.process.wait(STOP_DEADLINE_S)
        self.kill()
        pytest.fail(f"penstock serve did not stop on SIGTERM:\n{self.log.read_text()[-4000:]}")

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.process.wait(STOP_DEADLINE_S)


StartServer = Callable[..., Server]


class ServerFactory:
    """Starts servers, and at the end stops them: each must leave with 0 and a clean stdout."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0
        self._running: list[Server] = []

    def __call__(
        self,
        *options: str,
        config: str | None = None,
        data: Path | None = None,
        environ: dict[str, str] | None = None,
    ) -> Server:
        """`config` is the text of a TOML file; the same `data` again is a restart."""
        self._count += 1
        data = data or self._folder / f"data-{self._count}"
        log = self._folder / f"server-{self._count}.log"
        command = [str(PENSTOCK), "serve", "--json", "--data", str(data), *ANY_PORT, *options]
        if config is not None:
            file = self._folder / f"penstock-{self._count}.toml"
            file.write_text(config)
            command += ["--config", str(file)]
        clean = {name: v for name, v in os.environ.items() if not name.startswith("PENSTOCK_")}
        with log.open("w") as stderr:
            process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env=clean | (environ or {}),
            )
        server = Server(process, data, log)
        self._running.append(server)
        return server

    def close(self) -> None:
        for server in self._running:
            assert server.process.stdout is not None
            killed = server.process.poll() == -signal.SIGKILL
            code = server.stop()
            with server.process.stdout as stdout:
                rest = stdout.read()
            assert killed or code == 0, server.log.read_text()[-4000:]
            assert rest == "", "stdout holds one line of JSON and nothing else (design.md 7)"


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[ServerFactory]:
    """`start_server(*options, config=..., data=...)`; stopped when the test ends."""
    factory = ServerFactory(tmp_path)
    yield factory
    factory.close()


@pytest.fixture(scope="session")
def start_session_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerFactory]:
    """The same, stopped when the session ends."""
    factory = ServerFactory(tmp_path_factory.mktemp("servers"))
    yield factory
    factory.close()
