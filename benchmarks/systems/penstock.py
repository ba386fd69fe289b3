"""Penstock as a user runs it: `penstock serve`, durable, with its own load generator."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.systems.process import Broker

from penstock.client import Endpoint, parse_connection_string
from penstock.client.load.consumer import receive
from penstock.client.load.measurements import LoadResult
from penstock.client.load.producer import LoadProfile, publish

PENSTOCK = Path(sys.executable).with_name("penstock")
HUB = "bench"
PARTITIONS = 32
SINGLES_IN_FLIGHT = 10_000  # what the broker's credit allows is less
BATCHES_IN_FLIGHT = 64
_ACKNOWLEDGES = {
    "disk": "fdatasync before every acknowledgement",
    "os": "no fsync: given to the operating system (--flush os)",
}


class Penstock:
    """`data` is kept between starts until `fresh`."""

    kinds: tuple[int, ...] = (100, 1)

    def __init__(
        self, data: Path, *, flush: str = "disk", executable: Path = PENSTOCK, name: str = ""
    ) -> None:
        self.name = name or ("Penstock" if flush == "disk" else "Penstock, no fsync")
        self._executable = executable
        self.acknowledges = _ACKNOWLEDGES[flush]
        self.data = data
        self._flush = flush
        self._broker: Broker | None = None
        self._partition_of: dict[tuple[int, int], str] = {}
        self.endpoint: Endpoint | None = None
        self.facts: dict[str, object] = {}

    @property
    def broker(self) -> Broker:
        assert self._broker is not None
        return self._broker

    def start(self) -> float:
        """Seconds from the command to the line that says it is ready."""
        assert self._broker is None
        ports = [f"--{door}-port=0" for door in ("amqp", "amqps", "https", "admin")]
        command: list[str | Path] = [
            self._executable,
            "serve",
            "--json",
            f"--data={self.data}",
            "--log-level=warning",
            "--no-portal",  # benchmarks/scenarios/portal.py measures what that takes
        ]
        started_s = time.perf_counter()
        self._broker = Broker(
            [*command, f"--hub={HUB}:{PARTITIONS}", f"--flush={self._flush}", *ports],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self._broker.process.stdout is not None
        line = self._broker.process.stdout.readline()
        took_s = time.perf_counter() - started_s
        if not line:
            raise RuntimeError("penstock serve did not start; run it by hand to see why")
        self.facts = json.loads(line)
        self.endpoint = parse_connection_string(str(self.facts["emulator_connection_string"]))
        return took_s

    def close(self) -> None:
        if self._broker is not None:
            self._broker.close()
            self._broker = None

    def fresh(self) -> None:
        self.close()
        shutil.rmtree(self.data, ignore_errors=True)
        self._partition_of.clear()
        self.start()

    async def publish(
        self, size: int, batch: int, *, seconds: float, connections: int = 1, in_flight: int = 0
    ) -> LoadResult:
        """One connection fills one partition of its own; several spread over all."""
        assert self.endpoint is not None
        partition = None
        if connections == 1:
            number = len(self._partition_of)
            partition = self._partition_of.setdefault((size, batch), str(number))
        load = LoadProfile(
            hub=HUB,
            partition=partition,
            size=size,
            batch=batch,
            in_flight=in_flight or (SINGLES_IN_FLIGHT if batch == 1 else BATCHES_IN_FLIGHT),
            connections=connections,
            duration_s=seconds,
        )
        return await publish(self.endpoint, load, tls=None)

    async def deliver(self, size: int, *, events: int, batch: int = 100) -> LoadResult:
        assert self.endpoint is not None
        return await receive(
            self.endpoint,
            HUB,
            partitions=[self._partition_of[size, batch]],
            events_max=events,
            duration_s=60.0,
            tls=None,
        )
