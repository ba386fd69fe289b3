"""Capture: the Avro encoder by itself, and whether a service that captures keeps up with ingress.

    python -m benchmarks.scenarios.capture encoder
    python -m benchmarks.scenarios.capture ingress --rate 40 --seconds 180
    python -m benchmarks.scenarios.capture idle --interval 60

`ingress` runs broker, load and Spark together on this machine: 1 KB events at so many MB/s, codec
deflate, 4 partitions; it prints the backlog every few seconds. It goes up and down with the open
windows (4 of 100 MB); it has kept up when the second half's average is no larger than the first's.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from penstock.capture.container import BLOCK_BYTES, deflate
from penstock.client.ranges import RangeSettings, read_chunks
from penstock.formats.amqp_values import avro_value
from penstock.kernels import AvroRecordWriter
from penstock.management.client import ManagementClient

ROOT = Path(__file__).resolve().parents[2]
PENSTOCK = ROOT / ".venv" / "bin" / "penstock"
KB, MB = 1024, 1024 * 1024
HUB = "events"
EVENTS = 40_000


@contextlib.contextmanager
def served(place: Path) -> Iterator[dict[str, str]]:
    ports = [w for door in ("amqp", "amqps", "https", "admin") for w in (f"--{door}-port", "0")]
    config = place / "penstock.toml"
    url = (place / "files").as_uri()
    config.write_text(f'[capture.destinations.here]\nurl = "{url}"\n')
    command = [str(PENSTOCK), "serve", "--json", "--data", str(place / "data"), "--no-portal"]
    with (place / "log").open("w") as log:
        process = subprocess.Popen(
            [*command, *ports, "--hub", f"{HUB}:4", "--config", str(config)],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    assert process.stdout is not None
    try:
        yield json.loads(process.stdout.readline())
    finally:
        process.terminate()
        process.wait(30)


def json_body(chance: random.Random) -> bytes:
    """What devices send, about 1 KB of it."""
    readings = [
        {"sensor": f"{chance.getrandbits(40):010x}", "value": chance.gauss(20, 5)}
        for _ in range(20)
    ]
    record = {"device": f"device-{chance.randrange(10_000):05}", "readings": readings}
    return json.dumps(record).encode().ljust(KB, b" ")[:KB]


def encoder(place: Path) -> dict[str, float]:
    """Delivered messages in memory -> records -> deflate, by CPU time of this process; MB of bodies
    per CPU second by codec."""
    import asyncio

    from penstock.client import EventData, EventHubProducerClient

    chance = random.Random(1)

    async def publish(facts: dict[str, str]) -> None:
        text = facts["emulator_connection_string"]
        async with EventHubProducerClient(text, eventhub_name=HUB) as producer:
            left = EVENTS
            while left:
                batch = await producer.create_batch(partition_id="0")
                properties = {"site": "north", "kind": "reading"}
                while left and batch.try_add(EventData(json_body(chance), properties=properties)):
                    left -= 1
                await producer.send_batch(batch)

    with served(place) as facts:
        asyncio.run(publish(facts))
        ranges = RangeSettings(facts["emulator_connection_string"], HUB)
        chunks = list(read_chunks(ranges, "0", 0, EVENTS - 1))
    found = {}
    for name, is_deflated in (("null", False), ("deflate", True)):
        rows, size = AvroRecordWriter(avro_value), 0
        began = time.process_time()
        for chunk in chunks:
            rows.add(chunk.data, chunk.bounds)
            if rows.size >= BLOCK_BYTES:
                block = rows.take()
                size += len(deflate(block)) if is_deflated else len(block)
        spent = time.process_time() - began
        found[name] = EVENTS * KB / spent / MB
        print(
            f"codec {name}: {EVENTS / spent / 1000:,.0f} k events/s, "
            f"{found[name]:,.0f} MB/s of bodies per core, {size / MB:.1f} MB"
        )
    return found


def capture(client: ManagementClient, namespace: str, *, size: int, interval: int) -> None:
    properties = {"storageAccountResourceId": "here", "blobContainer": "box"}
    client.put_hub(
        namespace,
        HUB,
        capture={
            "enabled": True,
            "encoding": "AvroDeflate",
            "intervalInSeconds": interval,
            "sizeLimitInBytes": size,
            "destination": {"properties": properties},
        },
    )


def status(client: ManagementClient) -> Any:
    return client.capture_status()[0]


def ingress(place: Path, rate: float, seconds: float, size: int) -> dict[str, float]:
    """MB behind, on average of each half and at most; MB of the job's memory at most; seconds from
    the load's end to the last file."""
    with served(place) as facts:
        client = ManagementClient(facts["admin"], facts["admin_token"])
        capture(client, facts["namespace"], size=size, interval=60)
        environ = {**os.environ, "PENSTOCK_DATA": facts["data"]}
        # The job is there before the load is: what is measured is that it keeps up.
        while status(client).state != "Running":
            time.sleep(0.5)
        words = ["--hub", HUB, "--size", str(KB), "--batch", "200", "--connections", "4"]
        words += ["--rate", str(int(rate * 1000)), "--duration", str(seconds), "-o", "json"]
        load = subprocess.Popen(
            [str(PENSTOCK), "bench", "send", *words],
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        backlogs: list[tuple[float, int]] = []
        root = next(each["pid"] for each in client.jobs() if each["name"] == "capture")
        memory_mb = 0.0
        began = time.monotonic()
        while load.poll() is None:
            found = status(client)
            backlogs.append((time.monotonic() - began, found.backlog_events))
            print(
                f"{backlogs[-1][0]:5.0f} s: {found.events:>10,} captured in {found.files} files, "
                f"{found.backlog_events * KB / MB:8.1f} MB behind, {found.last_error}",
                flush=True,
            )
            memory_mb = max(memory_mb, sum(map(_pss_mb, _tree(root))))
            time.sleep(2)
        said, _ = load.communicate()
        print(said.strip())
        half = backlogs[-1][0] / 2
        halves = {
            "first": [events for at, events in backlogs if at < half] or [0],
            "second": [events for at, events in backlogs if at >= half],
        }
        means = {which: statistics.fmean(behind) * KB / MB for which, behind in halves.items()}
        most = max(events for _, events in backlogs) * KB / MB
        print(
            f"behind on average: {means['first']:.0f} MB in the first half, "
            f"{means['second']:.0f} MB in the second; {most:.0f} MB at most"
        )
        ended = time.monotonic()
        description = client.hub(facts["namespace"], HUB).capture or {}
        client.put_hub(facts["namespace"], HUB, capture=description | {"enabled": False})
        while status(client).state != "Off" and time.monotonic() - ended < 120:
            time.sleep(0.5)
        drained_s = time.monotonic() - ended
        print(f"all of it in files {drained_s:.1f} s after the load ended")
        client.close()
    return {**means, "most": most, "memory_mb": memory_mb, "drained_s": drained_s}


def idle(
    place: Path, interval: int, seconds: float = 120, settle_s: float = 120
) -> tuple[float, float, float]:
    """Processor time and memory of the job's processes, of a captured hub that had events once:
    every window since is empty, and has its file. The share of a core, MB in the median and at
    most."""
    with served(place) as facts:
        client = ManagementClient(facts["admin"], facts["admin_token"])
        capture(client, facts["namespace"], size=10 * MB, interval=interval)
        subprocess.run(
            [str(PENSTOCK), "send", HUB, "--text", "hello"],
            env={**os.environ, "PENSTOCK_DATA": facts["data"]},
            stderr=subprocess.DEVNULL,
            check=True,
        )
        while not status(client).files:
            time.sleep(0.5)
        time.sleep(settle_s)  # what is let go when nothing happens is gone
        root = next(each["pid"] for each in client.jobs() if each["name"] == "capture")
        before = {pid: _cpu_s(pid) for pid in _tree(root)}
        seen, memory = dict(before), []
        began = time.monotonic()
        # Processes come and go, and nobody adds up what they used: each is looked at often.
        while time.monotonic() - began < seconds:
            tree = _tree(root)
            seen |= {pid: spent for pid in tree if (spent := _cpu_s(pid))}
            memory.append(sum(map(_pss_mb, tree)))
            time.sleep(0.25)
        spent = sum(seen.values()) - sum(before.values())
        print(
            f"{spent / seconds:.1%} of a core, {statistics.median(memory):.0f} MB in the median, "
            f"{max(memory):.0f} MB while a window closes"
        )
        client.close()
    return spent / seconds, statistics.median(memory), max(memory)


def _tree(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                stat = (entry / "stat").read_text().rpartition(")")[2].split()
                children.setdefault(int(stat[1]), []).append(int(entry.name))
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found


def _cpu_s(pid: int) -> float:
    with contextlib.suppress(OSError, IndexError):
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, stat[11:13])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def _pss_mb(pid: int) -> float:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / KB
    return 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=("encoder", "ingress", "idle"))
    parser.add_argument("--rate", type=float, default=40, help="MB/s")
    parser.add_argument("--seconds", type=float, default=180)
    parser.add_argument("--window", type=int, default=100, help="MB")
    parser.add_argument("--interval", type=int, default=60, help="of idle's windows, seconds")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="penstock-capture-") as folder:
        place = Path(folder)
        if given.part == "encoder":
            encoder(place)
        elif given.part == "idle":
            idle(place, given.interval)
        else:
            ingress(place, given.rate, given.seconds, given.window * MB)


if __name__ == "__main__":
    main()
