"""Brokers in processes of their own, disks that lose power, and what became of the events.

Counts are small in `make test`, larger in `make test-full ARGS=faults` and largest with
`make test-full ARGS="faults --long"`; then a line of progress goes to stderr now and then.
PENSTOCK_SEED repeats a run's choices (not the machine's timing).
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import queue
import random
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock.log.embedded.files import Files
from penstock.log.embedded.store import EmbeddedLogStore
from penstock.model.clock import Clock
from penstock.model.names import HubName
from penstock.service.config.settings import (
    DEFAULT_NAMESPACE,
    HubSettings,
    NamespaceSettings,
    Settings,
)
from penstock.service.wiring import Penstock

HUB = "faults"
PARTITIONS = 4
PENSTOCK = (str(Path(sys.executable).with_name("penstock")),)
ANY_PORT = (
    *(f"--{door}-port=0" for door in ("amqp", "amqps", "https", "admin")),
    "--no-portal",
)
START_DEADLINE_S = 60.0
STOP_DEADLINE_S = 30.0
PROGRESS_S = 10.0

# So small that segments are closed all the time.
SMALL_SEGMENTS = "from penstock.model import limits\nlimits.SEGMENT_BYTES = 200_000"


# --- a broker -----------------------------------------------------------------------------------


_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1


def _die_with_parent() -> None:
    """Between fork and exec: a broker must not outlive tests that were killed themselves."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class BrokerProcess:
    """One `penstock serve` on a data directory, from start to its end, whichever way."""

    def __init__(
        self, data: Path, log: Path, *options: str, command: Sequence[str] = PENSTOCK
    ) -> None:
        self.log = log
        self.pid = 0  # the broker's own, once it has told it: strace may stand before it
        clean = {name: v for name, v in os.environ.items() if not name.startswith("PENSTOCK_")}
        serve = ("serve", "--json", f"--data={data}", f"--hub={HUB}:{PARTITIONS}", *ANY_PORT)
        with log.open("a") as stderr:
            self.process = subprocess.Popen(
                [*command, *serve, *options],
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=clean,
                start_new_session=True,  # with strace in front there are two to end
                preexec_fn=_die_with_parent,
            )

    def facts(self) -> dict[str, Any]:
        """Wait until every door is open; the JSON line."""
        stdout = self.process.stdout
        assert stdout is not None
        lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        reading = threading.Thread(target=lambda: lines.put(stdout.readline()), daemon=True)
        reading.start()
        try:
            line = lines.get(timeout=START_DEADLINE_S)
        except queue.Empty:
            line = b""
        if not line:
            reading.join(1.0)  # its end is seen a moment later
            code = self.process.poll()
            self.kill()
            pytest.fail(
                f"penstock serve did not start (exit code {code}):\n{self.log.read_text()[-4000:]}"
            )
        facts: dict[str, Any] = json.loads(line)
        self.pid = facts["pid"]
        return facts

    def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self._reap()

    def freeze(self) -> None:
        """SIGSTOP, and wait until nothing more is answered. A flush that is under way goes on in
        the kernel, but nobody hears of its end."""
        os.kill(self.pid, signal.SIGSTOP)
        deadline_s = time.monotonic() + STOP_DEADLINE_S
        while _thread_state(self.pid) != "T":
            assert time.monotonic() < deadline_s, "the broker does not stop"

    def stop(self) -> None:
        """SIGTERM; it must leave by itself, and well."""
        os.kill(self.pid, signal.SIGTERM)
        code = self._reap()
        assert code == 0, self.log.read_text()[-4000:]

    def _reap(self) -> int:
        code = self.process.wait(STOP_DEADLINE_S)
        if self.process.stdout is not None:
            self.process.stdout.close()
        return code


def _thread_state(pid: int) -> str:
    """Of the thread that answers: the event loop's."""
    stat = Path(f"/proc/{pid}/task/{pid}/stat").read_text()
    return stat.rpartition(") ")[2][0]


class Brokers:
    """Starts brokers; whatever still runs when the test ends is killed."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "brokers.log"
        self._started: list[BrokerProcess] = []

    def __call__(
        self, data: Path, *options: str, command: Sequence[str] = PENSTOCK
    ) -> BrokerProcess:
        self._started = [b for b in self._started if b.process.poll() is None]
        broker = BrokerProcess(data, self.log, *options, command=command)
        self._started.append(broker)
        return broker

    def close(self) -> None:
        for broker in self._started:
            if broker.process.poll() is None:
                broker.kill()


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[Brokers]:
    made = Brokers(tmp_path)
    yield made
    made.close()


def ready(admin_url: str) -> tuple[int, dict[str, Any]]:
    """What /ready answers."""
    try:
        with urllib.request.urlopen(f"{admin_url}/ready", timeout=10) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


Ready = Callable[[str], tuple[int, dict[str, Any]]]


@pytest.fixture
def ask_ready() -> Ready:
    return ready


StartInside = Callable[..., AbstractAsyncContextManager[dict[str, Any]]]


@pytest.fixture
def serve_inside(monkeypatch: pytest.MonkeyPatch) -> StartInside:
    """`async with serve_inside(data, files=..., clock=...) as facts`: a broker in this process."""

    @asynccontextmanager
    async def serve(
        data: Path, *, files: Files | None = None, clock: Clock | None = None
    ) -> AsyncIterator[dict[str, Any]]:
        store = partial(EmbeddedLogStore, files=files)
        monkeypatch.setattr("penstock.service.wiring.EmbeddedLogStore", store)
        hub = HubSettings(name=HubName(HUB), partition_count=PARTITIONS)
        namespace = NamespaceSettings(name=DEFAULT_NAMESPACE, hubs=(hub,))
        settings = Settings(
            data=data,
            namespaces=(namespace,),
            amqp_port=0,
            amqps_port=0,
            https_port=0,
            admin_port=0,
        )
        service = Penstock(settings, clock=clock)
        facts = await service.start()
        try:
            yield facts.as_dict()
        finally:
            await service.stop()

    return serve


Patched = Callable[[str], tuple[str, ...]]


@pytest.fixture
def patched() -> Patched:
    """`patched(source)`: the `command` of a broker that runs this before all else."""
    return lambda source: (sys.executable, "-c", f"{source}\nfrom penstock.cli import main\nmain()")


@pytest.fixture
def small_segments(patched: Patched) -> tuple[str, ...]:
    return patched(SMALL_SEGMENTS)


# --- a disk -------------------------------------------------------------------------------------

EXT4_IOC_SHUTDOWN = 0x8004587D
FIFREEZE, FITHAW = 0xC0045877, 0xC0045878
NO_LOG_FLUSH = struct.pack("I", 2)  # neither data nor journal that is only in memory arrives


class LoopDisk:
    """An ext4 file system in a file: one that can lose power, or be full."""

    def __init__(self, folder: Path, size_bytes: int) -> None:
        self.path = folder / "disk"
        self._image = folder / "disk.img"
        self._is_mounted = False
        self.path.mkdir()
        with self._image.open("wb") as image:
            image.truncate(size_bytes)
        _run("mkfs.ext4", "-q", "-F", "-m", "0", "-E", "nodiscard", str(self._image))
        self.mount()

    def mount(self) -> None:
        _run("mount", "-o", "loop", str(self._image), str(self.path))
        self._is_mounted = True

    def unmount(self) -> None:
        _run("umount", str(self.path))
        self._is_mounted = False

    def cut_power(self) -> None:
        """From now on every call fails; after the next mount there is only what was flushed."""
        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(fd, EXT4_IOC_SHUTDOWN, NO_LOG_FLUSH)
        finally:
            os.close(fd)

    def copy_snapshot_to(self, other: LoopDisk) -> None:
        """Replace the content of a disk of the same size by this one's, as of one moment."""
        other.unmount()
        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(fd, FIFREEZE, 0)
            try:
                shutil.copyfile(self._image, other._image)
            finally:
                fcntl.ioctl(fd, FITHAW, 0)
        finally:
            os.close(fd)
        other.mount()

    def remove(self) -> None:
        if self._is_mounted:
            subprocess.run(["umount", "-l", str(self.path)], check=False, capture_output=True)
        self._image.unlink(missing_ok=True)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OSError(f"{command[0]}: {done.stderr.strip() or done.returncode}")


MakeDisk = Callable[[int], LoopDisk]


@pytest.fixture
def make_disk(tmp_path: Path) -> Iterator[MakeDisk]:
    """`make_disk(bytes)`: a new ext4 file system. Skips where the machine cannot have one."""
    missing = [tool for tool in ("mkfs.ext4", "mount", "umount") if shutil.which(tool) is None]
    if os.geteuid() != 0 or missing or not Path("/dev/loop-control").exists():
        pytest.skip("needs root, loop devices, mkfs.ext4 and mount: no disk to take the power of")
    made: list[LoopDisk] = []

    def make(size_bytes: int) -> LoopDisk:
        folder = tmp_path / f"disk-{len(made)}"
        folder.mkdir()
        try:
            made.append(LoopDisk(folder, size_bytes))
        except OSError as error:
            pytest.skip(f"no ext4 on a loop device here: {error}")
        return made[-1]

    yield make
    for disk in made:
        disk.remove()


# --- the run ------------------------------------------------------------------------------------


class Run:
    """A count, a seeded chance, and a line of progress in long runs."""

    def __init__(self, count: int, say: Callable[[str], None]) -> None:
        self.count = count
        self.seed = int(os.environ.get("PENSTOCK_SEED", random.SystemRandom().randrange(2**32)))
        self.chance = random.Random(self.seed)
        self._say = say
        self._started_s = self._told_s = time.monotonic()

    def report(self, text: str) -> None:
        self._say(f"{text} (seed {self.seed}, {time.monotonic() - self._started_s:.0f} s)")

    def progress(self, done: int, text: str) -> None:
        now_s = time.monotonic()
        if now_s >= self._told_s + PROGRESS_S or done == self.count:
            self._told_s = now_s
            self._say(f"{done} of {self.count} in {now_s - self._started_s:.0f} s: {text}")


StartRun = Callable[[int], Run]


@pytest.fixture
def start_run(request: pytest.FixtureRequest) -> StartRun:
    """`start_run(count)`; the seed is in the report of a test that failed."""
    is_long = request.config.getoption("--full") is not None
    capture = request.config.pluginmanager.getplugin("capturemanager")

    def say(line: str) -> None:
        if not is_long:
            return
        with contextlib.nullcontext() if capture is None else capture.global_and_fixture_disabled():
            print(f"{request.node.name}: {line}", file=sys.stderr, flush=True)

    def start(count: int) -> Run:
        run = Run(count, say)
        print(f"PENSTOCK_SEED={run.seed}")
        return run

    return start
