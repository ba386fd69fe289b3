"""A standby that starts on a snapshot of the volume (docs/guides/production.md)."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import pytest
from tests.faults.harness.history import History
from tests.faults.harness.traffic import Clients, read_everything

if TYPE_CHECKING:
    from tests.faults.harness.conftest import BrokerProcess, Brokers, LoopDisk, MakeDisk, StartRun

pytestmark = pytest.mark.full("faults")

HUB, PARTITIONS = "faults", 4
DISK_BYTES = 64 * 1024 * 1024
TAKEOVERS = 5


async def live(
    broker: BrokerProcess,
    string: str,
    disks: tuple[LoopDisk, LoopDisk],
    history: History,
    chance: random.Random,
) -> None:
    """Publish, take a snapshot under load, and lose the machine right after it."""
    async with Clients(string, HUB, history, chance=chance) as clients:
        await clients.publish()
        await clients.until_acknowledged(chance.randint(20, 100))
        broker.freeze()  # what is acknowledged from here on is not in the snapshot
        disks[0].copy_snapshot_to(disks[1])
        broker.kill()
        await clients.until_gone()


def test_standby_on_a_snapshot_has_what_was_acknowledged(
    brokers: Brokers, make_disk: MakeDisk, start_run: StartRun
) -> None:
    """The machines take over from each other; keys, events and numbers stay."""
    run = start_run(TAKEOVERS)
    disks, history = (make_disk(DISK_BYTES), make_disk(DISK_BYTES)), History(PARTITIONS)
    keys = set()
    for number in range(TAKEOVERS + 1):
        broker = brokers(disks[0].path / "data")
        facts = broker.facts()
        keys.add(facts["connection_string"].partition("SharedAccessKey=")[2])
        string = facts["emulator_connection_string"]
        assert asyncio.run(read_everything(string, HUB, history)) == []
        run.progress(number, history.summary())
        if number < TAKEOVERS:
            asyncio.run(live(broker, string, disks, history, run.chance))
            disks = disks[1], disks[0]
            history.crash()
    broker.stop()
    run.report(f"{TAKEOVERS} takeovers, {history.acknowledged_events} events, none lost")
    assert len(keys) == 1
    assert history.acknowledged_events > 20 * TAKEOVERS
