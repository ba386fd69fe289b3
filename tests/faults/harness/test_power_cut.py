"""Loss of power under load: what was acknowledged is on the disk, and the control shows loss.

The data directory lies on ext4 in a file. EXT4_IOC_SHUTDOWN ends that file system as a power cut
does: nothing more reaches the disk, neither pages nor the journal. The broker is frozen a moment
before, as a power cut takes the processor too: the kernel lets a flush that is under way at the
ioctl end with success although its bytes are lost (seen without Penstock, about one in twenty).
Frozen is what answers; the flush itself is still cut wherever it is.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.faults.harness.history import AnomalyKind, History
from tests.faults.harness.traffic import Clients, Shape, read_everything

if TYPE_CHECKING:
    from tests.conftest import Sized
    from tests.faults.harness.conftest import BrokerProcess, Brokers, LoopDisk, MakeDisk, StartRun

pytestmark = pytest.mark.full("faults")

HUB, PARTITIONS = "faults", 4
DISK_BYTES = 256 * 1024 * 1024
CUTS_PER_DISK = 10  # then a new one: the first cut of a disk's life is the hardest
CONTROL_CUTS = 5
LARGE = Shape(events_max=4, bytes_max=40_000, in_flight=6)


async def live(
    broker: BrokerProcess,
    disk: LoopDisk,
    connection_string: str,
    history: History,
    chance: random.Random,
) -> None:
    """Read what the last cut left, judge it, publish, and lose the power."""
    async with Clients(connection_string, HUB, history, chance=chance) as clients:
        await clients.read()
        await clients.catch_up()
        history.check()
        await clients.publish(shape=chance.choice([Shape(), Shape(), LARGE]))
        await clients.until_acknowledged(chance.randint(0, 150))
        await asyncio.sleep(chance.random() * 0.03)
        broker.freeze()
        disk.cut_power()
        broker.kill()
        await clients.until_gone()  # what was said before the cut is heard


def restore_power(disk: LoopDisk) -> None:
    disk.unmount()
    disk.mount()


@pytest.mark.sized("faults")
@pytest.mark.timeout(3600)
def test_power_cut_takes_nothing_that_was_acknowledged(
    brokers: Brokers,
    make_disk: MakeDisk,
    start_run: StartRun,
    small_segments: tuple[str, ...],
    sized: Sized,
) -> None:
    run = start_run(sized(short=6, full=100, long=500))
    events = 0
    for first in range(0, run.count, CUTS_PER_DISK):
        disk, history = make_disk(DISK_BYTES), History(PARTITIONS)
        data = disk.path / "data"
        for number in range(first, min(first + CUTS_PER_DISK, run.count)):
            command = {"command": small_segments} if number % 2 else {}
            broker = brokers(data, **command)
            facts = broker.facts()
            string = facts["emulator_connection_string"]
            asyncio.run(live(broker, disk, string, history, run.chance))
            restore_power(disk)
            history.crash()
            assert history.anomalies == []
            run.progress(number + 1, history.summary())
        broker = brokers(data)
        string = broker.facts()["emulator_connection_string"]
        assert asyncio.run(read_everything(string, HUB, history)) == []
        broker.stop()
        events += history.acknowledged_events
        disk.remove()
    run.report(f"{run.count} power cuts, {events} acknowledged events, none lost")
    assert events > 20 * run.count


def test_power_cut_shows_loss_when_flushing_is_left_to_the_system(
    brokers: Brokers, make_disk: MakeDisk
) -> None:
    """The negative control: without flushes the same cuts must lose what was acknowledged."""
    chance = random.Random(1)
    for _ in range(CONTROL_CUTS):
        disk, history = make_disk(DISK_BYTES), History(PARTITIONS)
        broker = brokers(disk.path / "data", "--flush=os")
        string = broker.facts()["emulator_connection_string"]
        asyncio.run(live(broker, disk, string, history, chance))
        restore_power(disk)
        history.crash()
        broker = brokers(disk.path / "data", "--flush=os")
        string = broker.facts()["emulator_connection_string"]
        asyncio.run(read_everything(string, HUB, history))
        broker.kill()
        disk.remove()
        if history.kinds() & {AnomalyKind.LOST, AnomalyKind.VANISHED}:
            return
    pytest.fail(
        f"{CONTROL_CUTS} power cuts with --flush=os lost nothing that was acknowledged: then this "
        "harness cannot see a loss, and its other results prove nothing."
    )


def test_first_start_survives_a_power_cut_right_after_it(
    brokers: Brokers, make_disk: MakeDisk
) -> None:
    """The keys that were printed are the keys: a client that has them gets in again."""
    disk = make_disk(DISK_BYTES)
    broker = brokers(disk.path / "data")
    before = broker.facts()
    disk.cut_power()
    broker.kill()
    restore_power(disk)
    broker = brokers(disk.path / "data")
    after = broker.facts()
    broker.stop()
    assert _key(after) == _key(before)
    assert Path(after["ca_file"]).exists()


def _key(facts: dict[str, str]) -> str:
    return facts["connection_string"].partition("SharedAccessKey=")[2]
