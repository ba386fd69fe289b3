"""A disk without room: publishers hear why, readers go on, and room brings the broker back."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.faults.harness.history import AnomalyKind, History
from tests.faults.harness.traffic import Clients, Shape, read_everything

from penstock.client import ClientError

if TYPE_CHECKING:
    from tests.faults.harness.conftest import Brokers, MakeDisk, Patched, Ready

pytestmark = pytest.mark.full("faults")

HUB, PARTITIONS = "faults", 4
MB = 1024 * 1024
DISK_BYTES = 64 * MB
LEFT_BYTES = 6 * MB  # what the ballast leaves: quickly used up
SHAPE = Shape(events_max=8, bytes_max=20_000, in_flight=8)
CONDITION = "amqp:internal-error: The disk is full"


def load_ballast(path: Path) -> None:
    """Take nearly all the room that is left."""
    free = os.statvfs(path.parent)
    with path.open("wb") as ballast:
        os.posix_fallocate(ballast.fileno(), 0, free.f_bavail * free.f_frsize - LEFT_BYTES)


async def fill_and_free(
    facts: dict[str, str], ballast: Path, history: History, ask_ready: Ready
) -> None:
    async with clients_of(facts, history) as clients:
        await clients.read()
        await clients.catch_up()
        load_ballast(ballast)
        await clients.publish(shape=SHAPE, is_ordered=False)
        await clients.until(lambda: clients.refused >= 200)

        assert all(text.startswith(CONDITION) for text in clients.refusals()), clients.refusals()
        assert not any(str(ballast.parent) in text for text in clients.refusals())
        status, told = await asyncio.to_thread(ask_ready, facts["admin"])
        assert (status, told["status"]) == (503, "not ready")
        assert re.fullmatch(
            r"partition \d of penstock/faults: The disk is full: events are accepted again when "
            r"there is free space; what is stored can be read\.( \(and \d more\))?",
            told["checks"]["log"],
        )
        await clients.drain()
        await read_all_again(facts, history, clients.acknowledged_events)

        await asyncio.to_thread(ballast.unlink)
        refused = clients.refused
        for publisher in clients.publishers:
            publisher.start()
        await clients.until_acknowledged(300)
        await clients.drain()
        assert clients.refused == refused
        await clients.catch_up()
        assert history.check() == []
        assert clients.reader_errors == {}
        status, told = await asyncio.to_thread(ask_ready, facts["admin"])
        assert (status, told["checks"]["log"]) == (200, "ok")


async def read_all_again(facts: dict[str, str], history: History, events: int) -> None:
    """A reader that comes while the disk is full gets everything that was acknowledged."""
    async with clients_of(facts, history) as late:
        connection = await late.connect()
        for partition in range(PARTITIONS):
            await late.read_from(connection, partition, 0)
        await late.until(lambda: late.events_read >= events)


def clients_of(facts: dict[str, str], history: History) -> Clients:
    return Clients(facts["emulator_connection_string"], HUB, history)


def test_full_disk_refuses_reads_go_on_and_room_brings_it_back_without_restart(
    brokers: Brokers, make_disk: MakeDisk, ask_ready: Ready, small_segments: tuple[str, ...]
) -> None:
    """Segments are so small that the disk is full when a new one is due, too; smaller records may
    then still fit into the old one."""
    disk, history = make_disk(DISK_BYTES), History(PARTITIONS)
    broker = brokers(disk.path / "data", command=small_segments)
    asyncio.run(fill_and_free(broker.facts(), disk.path / "ballast", history, ask_ready))
    broker.stop()
    broker = brokers(disk.path / "data")
    string = broker.facts()["emulator_connection_string"]
    assert asyncio.run(read_everything(string, HUB, history)) == []
    broker.stop()
    assert history.acknowledged_events > 500


def fill_to_the_last_block(path: Path) -> None:
    """Until the file system has no free block at all, also after it has settled."""
    with path.open("wb", buffering=0) as file:
        for _ in range(3):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(4096))
                    os.fsync(file.fileno())
            os.sync()


@pytest.mark.parametrize("end", ["killed", "stopped"])
def test_broker_that_ended_on_a_full_disk_starts_there_and_loses_nothing(
    brokers: Brokers, make_disk: MakeDisk, end: str
) -> None:
    disk, history = make_disk(DISK_BYTES), History(PARTITIONS)
    ballast = disk.path / "ballast"
    broker = brokers(disk.path / "data")
    asyncio.run(fill(broker.facts(), ballast, history))
    if end == "killed":
        broker.kill()
    else:
        broker.stop()
    history.crash()
    rest = disk.path / "rest"
    fill_to_the_last_block(rest)
    for _ in range(3):  # the blocks of a start are there for the next one
        broker = brokers(disk.path / "data")
        facts = broker.facts()
        broker.kill()
    broker = brokers(disk.path / "data")
    facts = broker.facts()
    asyncio.run(read_all_again(facts, history, history.acknowledged_so_far()))
    ballast.unlink()
    rest.unlink()
    string = facts["emulator_connection_string"]
    assert asyncio.run(read_everything(string, HUB, history)) == []
    broker.stop()


async def fill(facts: dict[str, str], ballast: Path, history: History) -> None:
    async with clients_of(facts, history) as clients:
        await clients.read()
        await clients.catch_up()
        load_ballast(ballast)
        await clients.publish(shape=SHAPE, is_ordered=False)
        await clients.until(lambda: clients.refused >= 200)


# A log that does not look at what a write returns: everything is acknowledged.
CARELESS = (
    "from penstock.log.embedded.files import Files\n"
    "write = Files.pwritev\n"
    "def pwritev(files, fd, buffers, position):\n"
    "    try:\n"
    "        return write(files, fd, buffers, position)\n"
    "    except OSError:\n"
    "        return sum(map(len, buffers))\n"
    "Files.pwritev = pwritev"
)


def test_full_disk_shows_loss_when_failed_writes_are_ignored(
    brokers: Brokers, make_disk: MakeDisk, patched: Patched
) -> None:
    """The negative control."""
    disk, history = make_disk(DISK_BYTES), History(PARTITIONS)
    broker = brokers(disk.path / "data", command=patched(CARELESS))
    asyncio.run(overfill(broker.facts(), disk.path / "ballast", history))
    broker.kill()
    history.crash()
    (disk.path / "ballast").unlink()
    broker = brokers(disk.path / "data")
    string = broker.facts()["emulator_connection_string"]
    try:
        asyncio.run(read_everything(string, HUB, history))
    except ClientError as error:  # a hole between events that were stored
        assert "cannot be read" in str(error)
    else:
        assert AnomalyKind.LOST in history.kinds()
    broker.stop()


async def overfill(facts: dict[str, str], ballast: Path, history: History) -> None:
    """Publish twice as much as there is room for."""
    async with clients_of(facts, history) as clients:
        await clients.connect()
        load_ballast(ballast)
        await clients.publish(shape=SHAPE, is_ordered=False)
        room = 2 * LEFT_BYTES // (SHAPE.bytes_max // 2)
        await clients.until(lambda: clients.acknowledged_events >= room)
