"""Exactly once, whatever is killed when: driver, job, Python workers, broker, storage.

PENSTOCK_SEED repeats the choices of a series.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.conftest import Azurite
from tests.spark.conftest import TestHub, new_hub
from tests.support.toolchains import NODE

from penstock.capture.description import parse_description
from penstock.capture.destinations import Destination, resolve_destination
from penstock.capture.hub_files import FileLocationFilter
from penstock.capture.status import CaptureStatus
from penstock.client.ranges import RangeSettings
from penstock.management.client import ManagementClient
from penstock.model.errors import PenstockError
from penstock.spark.capture.verify import ExpectedRange, verify

if TYPE_CHECKING:
    from tests.conftest import NodeTools, Server, ServerFactory, Sized

SEED = int(os.environ.get("PENSTOCK_SEED", random.SystemRandom().randrange(2**32)))
VICTIMS = ("jvm", "job", "workers", "broker", "storage")
DEADLINE_S = 300.0  # a job that begins anew on a busy machine, at the lowest priority of all
BODY = 20_000
DESCRIPTION = {
    "enabled": True,
    "encoding": "AvroDeflate",
    "intervalInSeconds": 60,
    "sizeLimitInBytes": 10 * 1024 * 1024,
    "destination": {"properties": {"storageAccountResourceId": "store", "blobContainer": "killed"}},
}


class Storage:
    """Azurite on disk, which can be killed and comes back on the same port."""

    def __init__(self, node: NodeTools, folder: Path) -> None:
        self._node = node
        self._folder = folder
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        self.connection_string = Azurite(self._port).connection_string
        self.start()

    def start(self) -> None:
        script = NODE / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
        words = ["--blobHost", "127.0.0.1", "--blobPort", str(self._port), "--location", "."]
        self._process = subprocess.Popen(
            [self._node.node, str(script), *words, "--skipApiVersionCheck", "--silent"],
            cwd=self._folder,
            env=self._node.environ,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(20)


class Publisher:
    """Publishes on and on, from a thread; a broker that is away is waited for."""

    def __init__(self, hub: Callable[[], TestHub]) -> None:
        self._hub = hub
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._stopping.wait(0.04):
            bodies = [f"{number + n}".encode().ljust(BODY, b".") for n in range(12)]
            with contextlib.suppress(PenstockError, OSError):
                self._hub().send(bodies, partition_id=str(number // 12 % 2))
            number += 12

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(60)


class Scene:
    def __init__(self, start: ServerFactory, storage: Storage, chance: random.Random) -> None:
        self._start = start
        self.storage = storage
        self.chance = chance
        self.config = """
        [capture.destinations.store]
        url = "abfs://"
        connection_string_env = "STORE"
        """
        self.server = self._serve(None)
        self.hub = new_hub(self.server, 2, name="killed")
        with self.client() as client:
            client.put_hub(self.server["namespace"], "killed", capture=DESCRIPTION)

    def _serve(self, data: Path | None) -> Server:
        environ = {"STORE": self.storage.connection_string}
        return self._start(config=self.config, data=data, environ=environ)

    def client(self) -> ManagementClient:
        return ManagementClient(self.server["admin"], self.server["admin_token"])

    def status(self) -> CaptureStatus | None:
        try:
            with self.client() as client:
                (found,) = client.capture_status()
                return found
        except (PenstockError, OSError):
            return None

    def wait(self, what: str, is_so: Callable[[CaptureStatus], bool]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while (found := self.status()) is None or not is_so(found):
            log = self.server.log.read_text()[-2000:]
            assert time.monotonic() < deadline, f"seed {SEED}, {what}: {found}\n{log}"
            time.sleep(0.04)

    def kill(self, victim: str) -> None:
        if victim == "broker":
            data = self.server.data
            self.server.kill()
            self.server = self._serve(data)
            self.hub = TestHub(self.server, "killed", 2)
        elif victim == "storage":
            self.storage.kill()
            self.storage.start()
        else:
            for pid in self._processes(victim):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _processes(self, victim: str) -> list[int]:
        """Among the descendants of this test's own server. A job that was killed a moment ago is
        waited for: a kill of nothing is none."""
        words = {"jvm": "org.apache.spark", "job": "capture\0run", "workers": "idle_daemon"}
        deadline = time.monotonic() + DEADLINE_S
        while True:
            pids = list(descendants(self.server.process.pid))
            if found := [pid for pid in pids if words[victim] in command_of(pid)]:
                return found
            assert time.monotonic() < deadline, f"seed {SEED}: no {victim} to kill"
            time.sleep(0.04)


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def descendants(root: int) -> Iterator[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                stat = (entry / "stat").read_text().rpartition(")")[2].split()
                children.setdefault(int(stat[1]), []).append(int(entry.name))
    waiting = [root]
    while waiting:
        for child in children.get(waiting.pop(), []):
            waiting.append(child)
            yield child


@pytest.mark.full("spark")
@pytest.mark.timeout(7200)
def test_every_event_is_captured_once_whatever_is_killed(
    start_server: ServerFactory, node: NodeTools, tmp_path: Path, sized: Sized
) -> None:
    chance = random.Random(SEED)
    folder = tmp_path / "azurite"
    folder.mkdir()
    storage = Storage(node, folder)
    scene = Scene(start_server, storage, chance)
    publisher = Publisher(lambda: scene.hub)
    try:
        scene.wait("the first file", lambda found: found.files >= 1)
        victims = [VICTIMS[n % len(VICTIMS)] for n in range(sized(short=1, full=5, long=100))]
        chance.shuffle(victims)
        for victim in victims:
            before = scene.status()
            files = before.files if before else 0
            # At any moment: between batches, while files are written, or long before.
            wanted = files + chance.randrange(0, 3)
            scene.wait(f"{wanted} files", lambda found, wanted=wanted: found.files >= wanted)  # type: ignore[misc]
            threading.Event().wait(chance.random() * 2)
            scene.kill(victim)
        before = scene.status()
        files = before.files if before else 0
        scene.wait("files after the last kill", lambda found: found.files > files)
        publisher.stop()
        with scene.client() as client:
            namespace = scene.server["namespace"]
            client.put_hub(namespace, "killed", capture=DESCRIPTION | {"enabled": False})
        scene.wait("all of it", lambda found: found.state == "Off")
        _prove(scene)
    finally:
        publisher.stop()
        storage.kill()


def _prove(scene: Scene) -> None:
    """Every event of the log stands in one file, and nothing else stands anywhere."""
    counts = {key: len(bodies) for key, bodies in scene.hub.read().items()}
    destination = Destination(
        name="store",
        url="abfs://",
        options={"connection_string": scene.storage.connection_string},
    )
    settings = parse_description(DESCRIPTION)
    target = resolve_destination([destination], settings.account, settings.container)
    found = verify(
        [FileLocationFilter(target=target, name_format=settings.name_format)],
        namespace=scene.server["namespace"],
        hub="killed",
        expected=[ExpectedRange(key, 0, count, count) for key, count in counts.items()],
        ranges=RangeSettings(scene.hub.connection_string),
    )
    assert found.is_fine, f"seed {SEED}: {found.row()} {found.problems[:5]}"
    assert found.events == found.compared == sum(counts.values()) > 0
