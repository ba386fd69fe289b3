"""A flush that fails, and one that takes its time: in this process, and in a real one by strace."""

from __future__ import annotations

import asyncio
import errno
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.faults.harness.faulty_files import Fault, FaultyFiles
from tests.faults.harness.history import History
from tests.faults.harness.traffic import Clients, Publisher, Shape, read_everything

from penstock.log.embedded.files import Files
from penstock.log.embedded.writer import PartitionWriter

if TYPE_CHECKING:
    from tests.faults.harness.conftest import BrokerProcess, Brokers, Patched, Ready, StartInside

HUB, PARTITIONS = "faults", 4
FAILED = 0  # the partition whose flush fails
OTHERS = (1, 2, 3)
MB = 1024 * 1024
STOPPED = "stopped after a failed write"


class Life:
    """Publishers to every partition and to none in particular, and readers of all."""

    def __init__(self, facts: dict[str, str], history: History, *, shape: Shape | None = None):
        self.facts = facts
        self.clients = Clients(facts["emulator_connection_string"], HUB, history)
        self.to: list[Publisher] = []
        self.anywhere: list[Publisher] = []
        self._shape = shape or Shape()

    async def begin(self) -> None:
        """Read what is there, and be ready to publish."""
        await self.clients.read()
        await self.clients.catch_up()
        await self.connect()

    async def connect(self) -> None:
        for partition in range(PARTITIONS):
            connection = await self.clients.connect()
            publish = self.clients.publisher
            self.to.append(await publish(connection, partition=partition, shape=self._shape))
            # What a failed partition refuses goes elsewhere, behind what was sent later.
            self.anywhere.append(await publish(connection, is_ordered=False, shape=self._shape))

    def start(self) -> None:
        for publisher in (*self.to, *self.anywhere):
            publisher.start()


async def fail_one_flush(
    facts: dict[str, str],
    history: History,
    ask_ready: Ready,
    arrange: Callable[[], object] = lambda: None,
) -> None:
    """Publish until the partition's flush fails; see who goes on and who does not."""
    life = Life(facts, history)
    async with life.clients as clients:
        await life.begin()
        life.start()
        await clients.until_acknowledged(50)
        arrange()
        victim = life.to[FAILED]
        await clients.until(lambda: victim.refusals.total() >= 30)
        await clients.until_acknowledged(200)
        # Nobody else was refused anything, and what may go anywhere goes elsewhere.
        assert clients.refused == victim.refusals.total()
        assert all(STOPPED in text for text in victim.refusals), victim.refusals
        status, told = await asyncio.to_thread(ask_ready, facts["admin"])
        assert status == 503
        assert told["checks"]["log"].startswith(
            f"partition {FAILED} of penstock/{HUB}: The log stopped"
        )
        await clients.drain()
        await clients.catch_up(partitions=OTHERS)
        await read_all_again(facts, history, clients.acknowledged_events)
        assert clients.reader_errors == {}


async def read_all_again(facts: dict[str, str], history: History, events: int) -> None:
    """Readers that come now get all that was acknowledged, of the stopped partition too."""
    async with Clients(facts["emulator_connection_string"], HUB, history) as late:
        connection = await late.connect()
        for partition in range(PARTITIONS):
            await late.read_from(connection, partition, 0)
        await late.until(lambda: late.events_read >= events)


# --- in this process ----------------------------------------------------------------------------


def once(files: FaultyFiles) -> Fault:
    """The next flush of the one partition fails, and then the disk is as good as ever."""
    return files.fail("fdatasync", f"/{FAILED}/0", code=errno.EIO, times=1)


async def test_failed_flush_is_not_repeated_and_stops_that_partition_alone(
    tmp_path: Path, serve_inside: StartInside, ask_ready: Ready
) -> None:
    files, history = FaultyFiles(Files()), History(PARTITIONS)
    faults: list[Fault] = []
    async with serve_inside(tmp_path / "data", files=files) as facts:
        await fail_one_flush(facts, history, ask_ready, lambda: faults.append(once(files)))
    [fault] = faults
    # Not at once, not for those who published again, and not when the log was closed.
    assert (fault.hits, fault.later) == (1, 0)
    history.crash()
    async with serve_inside(tmp_path / "data") as facts:
        assert (await asyncio.to_thread(ask_ready, facts["admin"]))[0] == 200
        string = facts["emulator_connection_string"]
        assert await read_everything(string, HUB, history) == []
    assert history.acknowledged_events > 250


async def test_flush_that_is_repeated_is_counted(
    tmp_path: Path, serve_inside: StartInside, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: a log that flushes again is seen to, and acknowledges what it should
    not."""

    def again(writer: PartitionWriter) -> None:
        try:
            flush(writer)
        except OSError:
            flush(writer)

    flush = PartitionWriter._flush
    monkeypatch.setattr(PartitionWriter, "_flush", again)
    files, history = FaultyFiles(Files()), History(PARTITIONS)
    async with serve_inside(tmp_path / "data", files=files) as facts:
        life = Life(facts, history)
        async with life.clients as clients:
            await life.begin()
            life.start()
            fault = once(files)
            await clients.until_acknowledged(100)
            assert clients.refused == 0
    assert fault.hits == 1
    assert fault.later > 0


async def test_acknowledgements_wait_for_a_slow_flush_and_nothing_is_lost(
    tmp_path: Path, serve_inside: StartInside
) -> None:
    files, history = FaultyFiles(Files()), History(PARTITIONS)
    async with serve_inside(tmp_path / "data", files=files) as facts:
        life = Life(facts, history)
        async with life.clients as clients:
            await life.begin()
            acknowledged, read = clients.acknowledged, clients.events_read
            gate = files.hold("fdatasync")
            life.start()
            assert await asyncio.to_thread(gate.entered.wait, 30)
            await clients.connect()  # all that the broker had to say was heard before this
            assert clients.acknowledged == acknowledged
            assert clients.events_read == read  # nor is shown what may still be lost
            assert all(publisher.under_way > 0 for publisher in life.to)
            files.heal()
            await clients.until_acknowledged(200)
            await clients.drain()
            assert clients.refused == 0
            await clients.catch_up()
            assert history.check() == []


# --- in a process of its own --------------------------------------------------------------------


@pytest.fixture(scope="module")
def strace() -> str:
    """Its path; skips where it is not there, or may not trace."""
    found = shutil.which("strace")
    if found is None:
        pytest.skip("strace is not installed: flushes of a real process cannot be made to fail")
    tried = subprocess.run([found, "-qq", "-e", "trace=none", "true"], capture_output=True)
    if tried.returncode != 0:
        pytest.skip(f"strace may not trace here: {tried.stderr.decode()[:100].strip()}")
    return found


def traced(
    strace: str, trace: Path, *options: str, command: tuple[str, ...] = ()
) -> tuple[str, ...]:
    """The command of a broker under strace, its flushes written to `trace`."""
    flags = ("-f", "--seccomp-bpf", "-qq", "-y", "-o", str(trace), "-e", "trace=fdatasync")
    penstock = (str(Path(sys.executable).with_name("penstock")),)
    return (strace, *flags, *options, *(command or penstock))


@pytest.mark.full("faults")
def test_failed_flush_of_a_real_process_is_not_repeated(
    tmp_path: Path, brokers: Brokers, ask_ready: Ready, strace: str
) -> None:
    data, trace, history = tmp_path / "data", tmp_path / "trace", History(PARTITIONS)
    broker = brokers(data)
    string = broker.facts()["emulator_connection_string"]
    assert asyncio.run(read_everything(string, HUB, history)) == []  # every segment has a record
    broker.stop()
    history.crash()

    [segment] = data.glob(f"log/*/{FAILED}/*.log")
    options = ("-P", str(segment), "-e", "inject=fdatasync:error=EIO:when=3")
    broker = brokers(data, command=traced(strace, trace, *options))
    asyncio.run(fail_one_flush(broker.facts(), history, ask_ready))
    broker.stop()
    flushes = [line for line in trace.read_text().splitlines() if "fdatasync(" in line]
    # The third of some thread (so strace counts): no flush of that file came after it.
    assert [number for number, line in enumerate(flushes) if "INJECTED" in line] == [
        len(flushes) - 1
    ]

    history.crash()
    broker = brokers(data)
    string = broker.facts()["emulator_connection_string"]
    assert asyncio.run(read_everything(string, HUB, history)) == []
    broker.stop()


DELAY_S = 3.0
# Four connections offer about 300 MB while the first flush takes its time. Each may have 16 MB
# that wait for the disk (model.limits), half as much for copies and buffers, and something is
# Python's own.
OFFERED = Shape(events_max=4, bytes_max=60_000, in_flight=500)
MEMORY_MAX = 4 * 24 * MB + 24 * MB
BOUNDLESS = (
    "from penstock.model import limits\n"
    "limits.UNSETTLED_BYTES_PER_CONNECTION_MAX = limits.UNSETTLED_BYTES_MAX = 1 << 40"
)


@pytest.mark.full("faults")
def test_slow_flush_of_a_real_process_keeps_memory_bounded_and_loses_nothing(
    tmp_path: Path, brokers: Brokers, strace: str
) -> None:
    history = History(PARTITIONS)
    prepare(tmp_path, brokers, history)
    broker = brokers(tmp_path / "data", command=slow(strace, tmp_path))
    grown = asyncio.run(press(broker, history))
    assert grown <= MEMORY_MAX, f"the broker grew by {grown / MB:.0f} MB"
    history.crash()
    broker = brokers(tmp_path / "data")
    string = broker.facts()["emulator_connection_string"]
    assert asyncio.run(read_everything(string, HUB, history)) == []
    broker.stop()


@pytest.mark.full("faults")
def test_memory_grows_when_nothing_bounds_what_waits_for_the_disk(
    tmp_path: Path, brokers: Brokers, strace: str, patched: Patched
) -> None:
    """The negative control."""
    history = History(PARTITIONS)
    prepare(tmp_path, brokers, history)
    broker = brokers(tmp_path / "data", command=slow(strace, tmp_path, *patched(BOUNDLESS)))
    grown = asyncio.run(press(broker, history))
    assert grown > MEMORY_MAX, f"the broker grew by {grown / MB:.0f} MB only: too little is offered"


def prepare(folder: Path, brokers: Brokers, history: History) -> None:
    """One event in each partition, so that a slow broker has no file to make."""
    broker = brokers(folder / "data")
    string = broker.facts()["emulator_connection_string"]
    assert asyncio.run(read_everything(string, HUB, history)) == []
    broker.stop()
    history.crash()


def slow(strace: str, folder: Path, *command: str) -> tuple[str, ...]:
    delay = f"inject=fdatasync:delay_enter={int(DELAY_S * 1_000_000)}"
    return traced(strace, folder / "trace", "-e", delay, command=command)


async def press(broker: BrokerProcess, history: History) -> int:
    """Far more than the disk takes, from publishers that do not wait, until the first answer; then
    it is killed. The bytes by which it grew."""
    life = Life(broker.facts(), history, shape=OFFERED)
    async with life.clients as clients:
        await life.connect()
        before = memory(broker.pid)
        started_s = asyncio.get_running_loop().time()
        life.start()
        await clients.until_acknowledged(1)
        assert asyncio.get_running_loop().time() - started_s >= DELAY_S
        grown = memory(broker.pid) - before
        print(f"grown by {grown / MB:.0f} MB")
        assert clients.refused == 0
        broker.kill()
        await clients.until_gone()
        return grown


def memory(pid: int) -> int:
    """The most that the process has ever held, in bytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024
