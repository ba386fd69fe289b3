"""The parts `start`, `memory`, `disk` and `backup`: what a running service takes."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.figures.run import Tell
from benchmarks.report.results import Results
from benchmarks.scenarios.comparison import require_success
from benchmarks.scenarios.idle_connections import idle_connections
from benchmarks.systems.base import run
from benchmarks.systems.penstock import BATCHES_IN_FLIGHT, HUB, PENSTOCK, Penstock
from benchmarks.systems.process import Broker, pin_generator

from penstock.client import EventData, EventHubProducerClient
from penstock.client.load.measurements import LoadResult
from penstock.client.load.producer import LoadProfile, publish
from penstock.management.client import ManagementClient

KB, MB, GB = 1024, 1024**2, 1024**3
STARTS = 5
PORTAL_S = 30.0
HUB_PARTITIONS = 32
_PORTS = [f"--{door}-port=0" for door in ("amqp", "amqps", "https", "admin", "portal")]


# --- start ----------------------------------------------------------------------------------------


def measure_start(place: Path, trial: bool, tell: Tell) -> dict[str, Any]:
    """Medians of five starts after one that warms the page cache; all with new directories."""
    pin_generator()
    empty, portal, broker_mb, portal_mb = [], [], [], []
    for number in range(1 + (1 if trial else STARTS)):
        tell(f"start {number + 1}")
        penstock = Penstock(place / "broker")
        try:
            empty_s = penstock.start()
            rss_mb = penstock.broker.rss_kb() / KB
        finally:
            penstock.close()
            shutil.rmtree(place / "broker")
        portal_s, portal_rss_mb = _start_with_portal(place / "portal")
        shutil.rmtree(place / "portal")
        if number:
            empty.append(empty_s)
            broker_mb.append(rss_mb)
            portal.append(portal_s)
            portal_mb.append(portal_rss_mb)
    return {
        "empty_s": statistics.median(empty),
        "portal_s": statistics.median(portal),
        "broker_mb": statistics.median(broker_mb),
        "portal_mb": statistics.median(portal_mb),
    }


def _start_with_portal(data: Path) -> tuple[float, float]:
    """Seconds until the portal answers, and the memory of its process in MB."""
    began_s = time.perf_counter()
    broker = Broker(
        [PENSTOCK, "serve", "--json", f"--data={data}", *_PORTS], stdout=subprocess.PIPE
    )
    try:
        assert broker.process.stdout is not None
        facts = json.loads(broker.process.stdout.readline())
        while not _answers(facts["portal"] + "/signin"):
            if time.perf_counter() - began_s > PORTAL_S:
                raise TimeoutError(f"the portal did not answer within {PORTAL_S:.0f} s")
            time.sleep(0.01)
        took_s = time.perf_counter() - began_s
        return took_s, sum(map(_rss_kb, _children(int(facts["pid"])))) / KB
    finally:
        broker.close()


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, ConnectionError):
        return False


def _children(pid: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            if int(stat.read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(stat.parent.name))
    return found


def _rss_kb(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    return 0


# --- memory ---------------------------------------------------------------------------------------


def measure_memory(place: Path, trial: bool, tell: Tell) -> dict[str, Any]:
    pin_generator()
    results = Results()
    idle_connections(place, results, count=200 if trial else 2000, tell=tell)
    per_connection = results.facts["kb_per_idle_connection"]
    assert isinstance(per_connection, float)
    hubs = 4 if trial else 32
    tell(f"{hubs * HUB_PARTITIONS} partitions")
    per_partition = _kb_per_partition(place / "partitions", hubs)
    return {
        "connection_kb": per_connection,
        "per_1000_connections_mb": per_connection * 1000 / KB,
        "partition_kb": per_partition,
        "per_1000_partitions_mb": per_partition * 1000 / KB,
    }


def _kb_per_partition(data: Path, hubs: int) -> float:
    """Each partition holds one event; the clients are gone when the memory is read."""
    penstock = Penstock(data)
    try:
        penstock.fresh()
        facts = {name: str(value) for name, value in penstock.facts.items()}
        with ManagementClient(facts["admin"], facts["admin_token"]) as client:
            namespace = facts["namespace"]
            for number in range(hubs + 1):
                client.put_hub(namespace, f"hub-{number:03}", partition_count=HUB_PARTITIONS)
                run(_one_event_each(penstock, f"hub-{number:03}"))
                if number == 0:  # the first one loads code
                    before_kb = penstock.broker.rss_kb()
        return (penstock.broker.rss_kb() - before_kb) / (hubs * HUB_PARTITIONS)
    finally:
        penstock.close()


async def _one_event_each(penstock: Penstock, hub: str) -> None:
    string = str(penstock.facts["emulator_connection_string"])
    async with EventHubProducerClient(string, eventhub_name=hub) as producer:
        for partition in range(HUB_PARTITIONS):
            await producer.send_event(EventData(b"x" * 100), partition_id=str(partition))


# --- disk -----------------------------------------------------------------------------------------


def measure_disk(place: Path, trial: bool, tell: Tell) -> dict[str, Any]:
    pin_generator()
    events = 50_000 if trial else 1_000_000
    penstock = Penstock(place / "data")
    try:
        penstock.fresh()
        log = penstock.data / "log"
        tell("one small event")
        run(_publish(penstock, "2", 100, 1, 1))
        small = next(log.glob("*/2"))
        open_kb = disk_bytes(small) / KB
        for partition, batch in (("0", 100), ("1", 1)):
            tell(f"{events:,} events of 1 KB, {batch} in a publication")
            run(_publish(penstock, partition, KB, batch, events))
    finally:
        penstock.close()
    batches, singles = (disk_bytes(next(log.glob(f"*/{name}"))) / events for name in "01")
    return {
        "gb_per_million_1kb": batches * 1e6 / GB,
        "gb_per_million_1kb_singles": singles * 1e6 / GB,
        "overhead_bytes": batches - KB,
        "partition_kb": open_kb,
        "partition_stopped_kb": disk_bytes(small) / KB,
    }


def disk_bytes(directory: Path) -> int:
    """As `du` counts: blocks, not lengths."""
    return sum(file.stat().st_blocks * 512 for file in (directory, *directory.rglob("*")))


async def _publish(
    penstock: Penstock, partition: str | None, size: int, batch: int, events: int
) -> LoadResult:
    assert penstock.endpoint is not None
    load = LoadProfile(
        hub=HUB,
        partition=partition,
        size=size,
        batch=batch,
        in_flight=BATCHES_IN_FLIGHT if batch > 1 else 5_000,
        duration_s=600.0,
        events_max=events,
    )
    return require_success(await publish(penstock.endpoint, load, tls=None), "publish")


# --- backup, verify, restore, restart -------------------------------------------------------------


def measure_backup(place: Path, trial: bool, tell: Tell) -> dict[str, Any]:
    pin_generator()
    events = 30_000 if trial else 1_000_000
    penstock = Penstock(place / "data")
    copy, back = place / "copy", place / "back"
    try:
        penstock.fresh()
        tell(f"a directory with {events:,} events of 1 KB")
        run(_publish(penstock, None, KB, 100, events))
        size = disk_bytes(penstock.data)
        tell("backup, verify, restore")
        backup_s = _timed(PENSTOCK, "backup", copy, "--data", penstock.data)
        verify_s = _timed(PENSTOCK, "log", "verify", copy)
        restore_s = _timed(PENSTOCK, "restore", copy, "--data", back)
        shutil.rmtree(back)
        killed, clean = [], []
        for number in range(2 if trial else STARTS):
            tell(f"kill -9 and restart, {number + 1}")
            killed.append(_restart_after_kill(penstock))
            penstock.close()
            clean.append(penstock.start())
    finally:
        penstock.close()
    return {
        "data_gb": size / GB,
        "backup_s": backup_s,
        "backup_mb_per_s": size / MB / backup_s,
        "verify_s": verify_s,
        "verify_mb_per_s": size / MB / verify_s,
        "restore_s": restore_s,
        "restore_mb_per_s": size / MB / restore_s,
        "restart_kill_s": statistics.median(killed),
        "restart_kill_max_s": max(killed),
        "restart_clean_s": statistics.median(clean),
    }


def _timed(*command: str | Path) -> float:
    began_s = time.perf_counter()
    subprocess.run(list(map(str, command)), check=True, stdout=subprocess.DEVNULL, timeout=600)
    return time.perf_counter() - began_s


def _restart_after_kill(penstock: Penstock) -> float:
    """Killed while events are published as fast as it acknowledges them."""
    load = subprocess.Popen(
        [
            *(str(PENSTOCK), "bench", "send", "--hub", HUB, "--size", str(KB)),
            *("--duration", "60", "--data", str(penstock.data)),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        written = disk_bytes(penstock.data / "log")
        _wait(lambda: disk_bytes(penstock.data / "log") > written + MB)
        os.kill(int(str(penstock.facts["pid"])), signal.SIGKILL)
    finally:
        load.kill()
        load.wait(30)
    penstock.close()
    return penstock.start()


def _wait(is_so: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline_s = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"nothing was published within {seconds:.0f} s")
        time.sleep(0.01)
