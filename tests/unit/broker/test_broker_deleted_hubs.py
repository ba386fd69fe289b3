"""Deleted hubs are collected and their memory is given back, over the log on disk."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from queue import Empty, SimpleQueue

import pytest
from tests.unit.broker.conftest import HUB, NAMESPACE, Probe, World, section

from penstock.broker.broker import Broker
from penstock.log.embedded.files import Files
from penstock.log.embedded.store import EmbeddedLogStore
from penstock.model.errors import PenstockError
from penstock.model.events import EventBatch, Receipt
from penstock.model.positions import EARLIEST

DEADLINE_S = 30
PARTITIONS = 4
HUBS = 500
RSS_GROWTH_MAX = 10 * 1024 * 1024


class QuickFiles(Files):
    def fdatasync(self, fd: int) -> None:
        pass

    def fsync_directory(self, path: Path) -> None:
        pass


class DiskWorld(World):
    """The broker of these tests over a log on disk."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._turns: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.store = EmbeddedLogStore(directory, wake=self._turns.put, files=QuickFiles())
        self.broker.close()
        self.set_units(None)
        self.broker = Broker(
            self.catalog, self.store, self.clock, producer_ids=self.producer_ids.__next__
        )

    def put_hub(self, number: int) -> str:
        name = f"hub-{number}"
        self.catalog.put_hub(self.hub_entity(name, f"id{number}"))
        return name

    def publish_to_all(self, name: str, contents: Iterable[bytes]) -> None:
        """One publication to each partition."""
        hub = self.broker.hub(NAMESPACE, name)
        outcomes: list[Receipt | PenstockError] = []
        for index, content in enumerate(contents):
            batch = EventBatch(content, 1)
            hub.publish(batch, size_bytes=len(content), partition=index, done=outcomes.append)
        while len(outcomes) < PARTITIONS:
            self._turns.get(timeout=DEADLINE_S)()
        assert all(isinstance(outcome, Receipt) for outcome in outcomes)

    def use_hub(self, name: str, content: bytes) -> None:
        """Publish, and leave a consumer attached that has read it."""
        self.publish_to_all(name, [content] * PARTITIONS)
        probe = Probe()
        probe.reader = self.broker.hub(NAMESPACE, name).open_reader(
            group="$Default",
            partition=0,
            position=EARLIEST,
            epoch=None,
            name=None,
            on_end=probe.on_end,
            on_ready=probe.on_ready,
        )
        assert len(probe.take()) == 1

    def delete_hub(self, name: str) -> None:
        self.catalog.delete_hub(NAMESPACE, name)

    def settle(self) -> None:
        """The committer works in order: a later answer means that it has let go of the rest."""
        for _ in range(2):
            self.publish_to_all(HUB, [section(b"x")] * PARTITIONS)
        try:
            while True:
                self._turns.get_nowait()()
        except Empty:
            gc.collect()


@pytest.fixture
def disk_world(tmp_path: Path) -> Iterator[DiskWorld]:
    world = DiskWorld(tmp_path)
    yield world
    world.store.close()


def test_deleted_hub_and_its_partitions_are_collected(disk_world: DiskWorld) -> None:
    references: list[weakref.ref[object]] = []
    for number in range(20):
        name = disk_world.put_hub(number)
        disk_world.use_hub(name, section(b"y" * 5000))
        hub = disk_world.broker.hub(NAMESPACE, name)
        references.append(weakref.ref(hub))
        references += [weakref.ref(hub.log(index)) for index in range(PARTITIONS)]
        del hub
        disk_world.delete_hub(name)
    disk_world.settle()
    assert [reference() for reference in references if reference() is not None] == []


PROGRAM = """
import gc, json, sys
from pathlib import Path
from tests.unit.broker.test_broker_deleted_hubs import DiskWorld, section

def resident_bytes():
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

world = DiskWorld(Path(sys.argv[1]))
world.settle()
sizes = [resident_bytes()]
content = section(b"y" * 100_000)
for number in range(int(sys.argv[2])):
    name = world.put_hub(number)
    world.use_hub(name, bytes(bytearray(content)))
    world.delete_hub(name)
    if number % 100 == 99:
        world.settle()
        sizes.append(resident_bytes())
world.store.close()
print(json.dumps(sizes))
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="resident memory: Linux only")
def test_memory_after_many_hubs_came_and_went_is_that_of_the_start(tmp_path: Path) -> None:
    """In a process of its own, whose memory nothing else changes."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path), str(HUBS)],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=Path(__file__).parents[3],
    )
    assert done.returncode == 0, done.stderr
    sizes = json.loads(done.stdout)
    print([size >> 10 for size in sizes])
    assert sizes[-1] - sizes[0] <= RSS_GROWTH_MAX, sizes
