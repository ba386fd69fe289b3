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
import tempfile
import threading
import warnings
from collections.abc import Callable, Generator, Iterator
from inspect import iscoroutinefunction
from pathlib import Path

import pytest

COMPATIBILITY = Path(__file__).parent / "compatibility"
NODE = COMPATIBILITY / "node"
GO = COMPATIBILITY / "go"
GO_PROGRAM = Path(sys.prefix) / "compatibility-go"
JAVA = COMPATIBILITY / "java"
JAVA_BUILT = Path(sys.prefix) / "compatibility-java"
PREPARATION_DEADLINE_S = 100
AZURITE_DEADLINE_S = 30
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
            assert rest == "", "stdout holds one line of JSON and nothing else (design.md 7)"


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


class Preparation:
    """A long command that begins when tests were collected and is waited for by those who need it.

    Packages for Node.js come over the network, Go compiles: meanwhile the Python tests run.
    """

    def __init__(self, name: str, command: list[str], folder: Path, *, log: Path) -> None:
        self._name = name
        self._log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(command, cwd=folder, stdout=output, stderr=output)

    def wait(self) -> None:
        """Skips the test, with one reason, when it failed."""
        try:
            code = self._process.wait(PREPARATION_DEADLINE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            pytest.skip(f"{self._name} did not finish within {PREPARATION_DEADLINE_S} s")
        if code != 0:
            lines = self._log.read_text(errors="replace").splitlines()
            reason = next((line for line in lines if "error" in line.lower()), "no reason given")
            pytest.skip(f"{self._name} failed: {reason[:200]}")


_preparations: dict[str, Preparation] = {}


def pytest_configure() -> None:
    """Started in the background of a script, as CI may do, this process ignores SIGINT; every
    program that a test starts and interrupts would inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish(session: pytest.Session) -> None:
    if session.config.option.collectonly:
        return
    files = {item.path.name for item in session.items if item.path.parent == COMPATIBILITY}
    if files & {"test_javascript.py", "test_python_processor.py", "test_checkpoint_stores.py"}:
        _prepare_node()
    if "test_go.py" in files:
        _prepare_go()
    if "test_java.py" in files:
        _prepare_java()


def _prepare_node() -> None:
    npm, lock = shutil.which("npm"), NODE / "package-lock.json"
    installed = NODE / "node_modules" / ".package-lock.json"
    if npm is None or (installed.exists() and installed.stat().st_mtime >= lock.stat().st_mtime):
        return
    command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    log = Path(tempfile.gettempdir()) / f"penstock-npm-{os.getpid()}.log"
    _preparations["node"] = Preparation("npm ci", command, NODE, log=log)


def _prepare_go() -> None:
    if go := shutil.which("go"):
        # Quick when nothing changed: Go keeps what it compiled.
        command = [go, "build", "-mod=readonly", "-o", str(GO_PROGRAM), "."]
        log = Path(tempfile.gettempdir()) / f"penstock-go-{os.getpid()}.log"
        _preparations["go"] = Preparation("go build", command, GO, log=log)


def _prepare_java() -> None:
    maven, javac = shutil.which("mvn"), shutil.which("javac")
    if maven is None or javac is None:
        return
    libraries, classes = JAVA_BUILT / "lib", JAVA_BUILT / "classes"
    script = f"""
        if [ ! "{libraries}" -nt pom.xml ]; then
            "{maven}" -q -B dependency:copy-dependencies -DoutputDirectory="{libraries}" || exit 1
            touch "{libraries}"
        fi
        "{javac}" -cp "{libraries}/*" -d "{classes}" Compatibility.java
    """
    log = Path(tempfile.gettempdir()) / f"penstock-java-{os.getpid()}.log"
    _preparations["java"] = Preparation("mvn and javac", ["sh", "-c", script], JAVA, log=log)


@pytest.fixture(scope="session")
def java_command() -> list[str]:
    java = shutil.which("java")
    if java is None or "java" not in _preparations:
        pytest.skip("Java and Maven are not installed")
    _preparations["java"].wait()
    return [java, "-cp", f"{JAVA_BUILT / 'lib'}/*:{JAVA_BUILT / 'classes'}", "Compatibility"]


@pytest.fixture(scope="session")
def go_program() -> Path:
    if "go" not in _preparations:
        pytest.skip("Go is not installed")
    _preparations["go"].wait()
    return GO_PROGRAM


class NodeTools:
    """Node.js with the packages of node/package-lock.json."""

    def __init__(self, node: str) -> None:
        self.node = node
        self.environ = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}


@pytest.fixture(scope="session")
def node() -> NodeTools:
    node = shutil.which("node")
    if node is None or shutil.which("npm") is None:
        pytest.skip("Node.js and npm are not installed")
    if "node" in _preparations:
        _preparations["node"].wait()
        (NODE / "node_modules" / ".package-lock.json").touch()  # newer than the lock: done
    return NodeTools(node)


class Azurite:
    """Azure Storage on this machine, kept in memory: where the Blob checkpoint stores write."""

    # The emulator's published account (every copy of it has this key).
    ACCOUNT = "devstoreaccount1"
    KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="

    def __init__(self, process: subprocess.Popen[bytes] | None, port: int, why_not: str) -> None:
        self._process = process
        self.why_not = why_not
        self.connection_string = (
            f"DefaultEndpointsProtocol=http;AccountName={self.ACCOUNT};AccountKey={self.KEY};"
            f"BlobEndpoint=http://127.0.0.1:{port}/{self.ACCOUNT};"
        )

    @property
    def is_running(self) -> bool:
        return self._process is not None


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
            reason, listener = _wait_for_azurite(process)
            yield Azurite(process if reason is None else None, port, reason or "")
        finally:
            process.terminate()
            process.wait(20)
            listener.join(20)


def _wait_for_azurite(process: subprocess.Popen[bytes]) -> tuple[str | None, threading.Thread]:
    """It says that it listens: None, or why it does not run; and who goes on reading its words."""
    said: queue.Queue[bytes] = queue.Queue()
    stdout = process.stdout
    assert stdout is not None

    def listen() -> None:
        for line in stdout:
            said.put(line)

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    line = b""
    while b"successfully listens" not in line:
        try:
            line = said.get(timeout=AZURITE_DEADLINE_S)
        except queue.Empty:
            return f"Azurite did not start within {AZURITE_DEADLINE_S} s", listener
    return None, listener
