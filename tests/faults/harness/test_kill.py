"""kill -9 of a broker under load, again and again on one data directory."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.faults.harness.history import AnomalyKind, History
from tests.faults.harness.traffic import Clients, Shape, read_everything

from penstock.client import ClientError

if TYPE_CHECKING:
    from tests.conftest import Sized
    from tests.faults.harness.conftest import BrokerProcess, Brokers, Patched, StartRun

pytestmark = pytest.mark.full("faults")

HUB, PARTITIONS = "faults", 4
LARGE = Shape(events_max=4, bytes_max=40_000, in_flight=6)


async def live(
    broker: BrokerProcess, connection_string: str, history: History, chance: random.Random
) -> None:
    """Read what the last life left, judge it, publish, and die at a moment nobody chose."""
    async with Clients(connection_string, HUB, history, chance=chance) as clients:
        await clients.read()
        await clients.catch_up()
        history.check()
        await clients.publish(shape=chance.choice([Shape(), Shape(), LARGE]))
        await clients.until_acknowledged(chance.randint(0, 150))
        await asyncio.sleep(chance.random() * 0.03)  # anywhere between two rounds of the log
        if chance.random() < 0.1:
            os.kill(broker.pid, signal.SIGTERM)  # while it drains
            await asyncio.sleep(chance.random() * 0.2)
        broker.kill()
        await clients.until_gone()


@pytest.mark.sized("faults")
@pytest.mark.timeout(3600)
def test_killed_broker_keeps_what_it_acknowledged(
    tmp_path: Path,
    brokers: Brokers,
    start_run: StartRun,
    small_segments: tuple[str, ...],
    sized: Sized,
) -> None:
    run = start_run(sized(short=10, full=200, long=1_000))
    history, data = History(PARTITIONS), tmp_path / "data"
    for number in range(run.count):
        # What the system holds survives a process, flushed or not.
        options = ("--flush=os",) if number % 5 == 4 else ()
        command = {"command": small_segments} if number % 2 else {}
        broker = brokers(data, *options, **command)
        if run.chance.random() < 0.06:
            kill_within(broker, run.chance.random() * 0.6)  # while it starts and recovers
        else:
            facts = broker.facts()
            asyncio.run(live(broker, facts["emulator_connection_string"], history, run.chance))
        assert history.anomalies == []
        history.crash()
        run.progress(number + 1, history.summary())
    broker = brokers(data)
    string = broker.facts()["emulator_connection_string"]
    assert asyncio.run(read_everything(string, HUB, history)) == []
    broker.stop()
    run.report(f"{run.count} kills; {history.summary()}")
    assert history.acknowledged_events > 20 * run.count


def kill_within(broker: BrokerProcess, seconds: float) -> None:
    try:
        broker.process.wait(seconds)
    except subprocess.TimeoutExpired:
        broker.kill()
    else:
        pytest.fail(f"penstock serve ended by itself:\n{broker.log.read_text()[-4000:]}")


# A log that acknowledges a write and makes it when the next one comes.
LATE = (
    "from penstock.log.embedded.files import Files\n"
    "write, kept = Files.pwritev, {}\n"
    "def pwritev(files, fd, buffers, position):\n"
    "    if position < 128:\n"
    "        return write(files, fd, buffers, position)\n"
    "    if fd in kept:\n"
    "        write(files, fd, *kept.pop(fd))\n"
    "    kept[fd] = ([b''.join(buffers)], position)\n"
    "    return len(kept[fd][0][0])\n"
    "Files.pwritev = pwritev"
)
CONTROL_KILLS = 5


def test_kill_shows_loss_when_writes_are_acknowledged_before_they_are_made(
    tmp_path: Path, brokers: Brokers, patched: Patched
) -> None:
    """The negative control."""
    chance = random.Random(2)
    for number in range(CONTROL_KILLS):
        history, data = History(PARTITIONS), tmp_path / f"data-{number}"
        broker = brokers(data, command=patched(LATE))
        string = broker.facts()["emulator_connection_string"]
        asyncio.run(live(broker, string, history, chance))
        history.crash()
        broker = brokers(data)
        string = broker.facts()["emulator_connection_string"]
        try:
            asyncio.run(read_everything(string, HUB, history))
        except ClientError as error:
            # Acknowledged records that are half there are a loss that the log itself names.
            assert "cannot be read" in str(error)
            return
        broker.stop()
        if AnomalyKind.LOST in history.kinds():
            return
    pytest.fail(
        f"{CONTROL_KILLS} kills of a broker that acknowledges too early lost nothing: then this "
        "harness cannot see a loss, and its other results prove nothing."
    )
