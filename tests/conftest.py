"""Real processes for tests: `penstock serve` as users start it, tools of other languages."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Generator, Iterator
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Protocol

import hypothesis
import pytest
from tests.support import spark_classes, toolchains
from tests.support.toolchains import NODE

AZURITE_DEADLINE_S = 30
PENSTOCK = Path(sys.executable).parent / "penstock"
START_DEADLINE_S = 30.0  # a loaded machine; the promise (1 s) is measured elsewhere
STOP_DEADLINE_S = 20.0
ANY_PORT = tuple(
    part for door in ("amqp", "amqps", "https", "admin") for part in (f"--{door}-port", "0")
)


pytest_plugins = ["tests.support.selection"]
# How fast examples are drawn says something about the machine's load, not about the code.
hypothesis.settings.register_profile(
    "penstock", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("penstock")


class Sized(Protocol):
    """Chooses the count of a test marked `sized`."""

    def __call__(self, *, short: int, full: int, long: int | None = None) -> int: ...


@pytest.fixture(scope="session")
def sized(pytestconfig: pytest.Config) -> Sized:
    """`sized(short=200, full=5_000, long=50_000)`: the count for this run."""

    def choose(*, short: int, full: int, long: int | None = None) -> int:
        if pytestconfig.getoption("--full") is None:
            return short
        return long if long is not None and pytestconfig.getoption("--long") else full

    return choose


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
        program: tuple[str, ...] = (str(PENSTOCK),),
    ) -> Server:
        """`config` is the text of a TOML file; the same `data` again is a restart; `program` is the
        command, where it is to be another one than users have."""
        self._count += 1
        data = data or self._folder / f"data-{self._count}"
        log = self._folder / f"server-{self._count}.log"
        command = [*program, "serve", "--json", "--data", str(data), *ANY_PORT, *options]
        if not any(option.startswith("--portal-port") for option in options):
            command.append("--no-portal")  # few tests look at it, and every start would pay for it
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
            assert rest == "", "stdout holds one line of JSON and nothing else"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """The official asynchronous SDK leaves sockets open when a task of its is cancelled: they are
    collected here, with the loop, or the garbage collector would blame a later test."""
    result = yield
    if item.get_closest_marker("sdk") and iscoroutinefunction(getattr(item, "obj", None)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()
    return result


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


# --- other languages ------------------------------------------------------------------------------


def pytest_configure() -> None:
    """Started in the background of a script, as CI may do, this process ignores SIGINT; every
    program that a test starts and interrupts would inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # For every Spark driver, also those that a service or a command starts.
    os.environ.setdefault("SPARK_SUBMIT_OPTS", spark_classes.driver_options())
    for name in ("COLUMNS", "LINES"):  # of a worker; programs on a test's terminal would obey them
        os.environ.pop(name, None)


@pytest.fixture(scope="session")
def java_command() -> list[str]:
    toolchains.require("java")
    java = shutil.which("java")
    assert java is not None, "javac is installed, java is not"
    libraries, classes = toolchains.JAVA_LIBRARIES, toolchains.JAVA_CLASSES
    return [java, "-cp", f"{libraries}/*:{classes}", "Compatibility"]


@pytest.fixture(scope="session")
def go_program() -> Path:
    toolchains.require("go")
    return toolchains.GO_PROGRAM


class NodeTools:
    """Node.js with the packages of node/package-lock.json."""

    def __init__(self, node: str) -> None:
        self.node = node
        self.environ = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}


@pytest.fixture(scope="session")
def node() -> NodeTools:
    return NodeTools(toolchains.require("node"))


class Azurite:
    """Azure Storage on this machine, kept in memory: where the Blob checkpoint stores write."""

    # The emulator's published account (every copy of it has this key).
    ACCOUNT = "devstoreaccount1"
    KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="

    def __init__(self, port: int) -> None:
        self.connection_string = (
            f"DefaultEndpointsProtocol=http;AccountName={self.ACCOUNT};AccountKey={self.KEY};"
            f"BlobEndpoint=http://127.0.0.1:{port}/{self.ACCOUNT};"
        )


@pytest.fixture(scope="session")
def azurite(node: NodeTools, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Azurite]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    script = NODE / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
    flags = ["--skipApiVersionCheck", "--inMemoryPersistence"]
    process = subprocess.Popen(
        [node.node, str(script), "--blobHost", "127.0.0.1", "--blobPort", str(port), *flags],
        cwd=tmp_path_factory.mktemp("azurite"),
        env=node.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    # `with` closes its output too; the listener has read all of it once the process is gone.
    with process:
        try:
            listener = _wait_for_azurite(process)
            yield Azurite(port)
        finally:
            process.terminate()
            process.wait(20)
            listener.join(20)


def _wait_for_azurite(process: subprocess.Popen[bytes]) -> threading.Thread:
    """Wait until it listens; returns the thread that reads its output from then on."""
    lines: queue.Queue[bytes] = queue.Queue()
    stdout = process.stdout
    assert stdout is not None

    def read() -> None:
        for line in stdout:
            lines.put(line)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    line = b""
    while b"successfully listens" not in line:
        try:
            line = lines.get(timeout=AZURITE_DEADLINE_S)
        except queue.Empty:
            pytest.fail(f"Azurite did not start within {AZURITE_DEADLINE_S} s")
    return reader
