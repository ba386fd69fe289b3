"""What throttle, meter and metrics cost: one service with and without them, in turns, in one run.

    python -m benchmarks.scenarios.metering [--seconds 12]

The service is `penstock serve` with a switch (`--switched`, for this script alone): on SIGUSR1 they
are cut out, on the next one they are back. It is thrown thirty times a second while one workload
flows; compared is the CPU time of the broker per event of each turn and the next. So what else the
machine does disturbs both kinds alike.
"""

# ruff: noqa: SLF001 - it takes the broker apart

from __future__ import annotations

import argparse
import asyncio
import math
import os
import signal
import statistics
import sys
import tempfile
import timeit
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from benchmarks.scenarios.comparison import require_success
from benchmarks.systems.penstock import BATCHES_IN_FLIGHT, HUB, SINGLES_IN_FLIGHT, Penstock
from benchmarks.systems.process import pin_generator

from penstock.broker.broker import Broker
from penstock.broker.hub import HubRuntime
from penstock.broker.reader import Reader
from penstock.catalog.api import Catalog
from penstock.client.load import producer as generator
from penstock.client.load.consumer import receive
from penstock.client.load.measurements import LoadResult
from penstock.client.load.producer import LoadProfile, publish
from penstock.log.api import AppendDone, PartitionLog
from penstock.log.memory import MemoryLogStore
from penstock.model import limits
from penstock.model.clock import SystemClock
from penstock.model.entities import Hub, Namespace
from penstock.model.events import EventBatch, Receipt
from penstock.model.names import HubName, NamespaceName

ROOT = Path(__file__).resolve().parents[2]
WORKLOADS = ((100, 1), (100, 100), (1000, 100))  # bytes, events in a publication
_TURN_S = 0.033
_NAMESPACE = NamespaceName("benchmark")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=12.0, help="of each workload")
    parser.add_argument("--switched", nargs=argparse.REMAINDER, help="serve with the switch")
    given = parser.parse_args()
    if given.switched is not None:
        _serve_switched(given.switched)
        return
    print(f"by themselves: {_alone():.0f} ns a publication")
    pin_generator()
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as place:
        _compare(Path(place), given.seconds)


# --- in turns -----------------------------------------------------------------------------------


class Turns:
    """Called thirty times a second: what the turn cost that is over, and the switch is thrown."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._is_on = True
        self._cpu_ns, self._events = _cpu_ns(pid), 0
        self._fresh = True  # the first turn has connections and caches to warm
        self.found: dict[bool, list[tuple[int, int]]] = {True: [], False: []}

    def __call__(self, seconds: float, events: int) -> None:
        cpu_ns = _cpu_ns(self._pid)
        if not self._fresh and events > self._events:
            self.found[self._is_on].append((cpu_ns - self._cpu_ns, events - self._events))
        self._fresh = False
        self._cpu_ns, self._events = cpu_ns, events
        self.throw()

    def throw(self) -> None:
        os.kill(self._pid, signal.SIGUSR1)
        self._is_on = not self._is_on

    def end(self) -> None:
        if not self._is_on:
            self.throw()

    def row(self, name: str) -> str:
        each = {kind: [c / e for c, e in turns] for kind, turns in self.found.items()}
        ratios = sorted(
            math.log(on / off) for on, off in zip(each[True], each[False], strict=False)
        )
        cut = len(ratios) // 5  # a turn in which the machine did something else
        kept = ratios[cut : len(ratios) - cut]
        mean, error = statistics.mean(kept), statistics.stdev(ratios) / len(ratios) ** 0.5
        without = statistics.median(each[False])
        return (
            f"{name}: {without:.0f} ns of CPU an event without them, {math.expm1(mean):+.1%} with "
            f"them (± {error:.1%}, {len(ratios)} turns each)"
        )


def _cpu_ns(pid: int) -> int:
    """Of all threads, to the nanosecond."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks)


def _compare(place: Path, seconds: float) -> None:
    program = place / "penstock-switched"
    this = f"{sys.executable} -m benchmarks.scenarios.metering"
    program.write_text(f'#!/bin/sh\ncd {ROOT} && exec {this} --switched "$@"\n')
    program.chmod(0o755)
    generator._REPORT_S = _TURN_S
    penstock = Penstock(place / "data", flush="os", executable=program)  # the disk is not measured
    try:
        penstock.fresh()
        for number, (size, batch) in enumerate(WORKLOADS):
            load = LoadProfile(
                hub=HUB,
                partition=str(number),
                size=size,
                batch=batch,
                in_flight=SINGLES_IN_FLIGHT if batch == 1 else BATCHES_IN_FLIGHT,
                duration_s=seconds,
            )
            endpoint = penstock.endpoint
            assert endpoint is not None
            turns = Turns(penstock.broker.process.pid)
            result = _run(publish(endpoint, load, tls=None, report=turns))
            _tell(turns, f"publish {batch} x {size} B", result)
        assert penstock.endpoint is not None
        turns = Turns(penstock.broker.process.pid)
        reading = receive(
            penstock.endpoint,
            HUB,
            partitions=["1"],
            duration_s=seconds,
            tls=None,
            report=turns,
        )
        _tell(turns, "deliver 100 B", _run(reading))
    finally:
        penstock.close()


def _run(work: Coroutine[Any, Any, LoadResult]) -> LoadResult:
    from penstock.io.event_loop import new_event_loop

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(work)


def _tell(turns: Turns, name: str, result: LoadResult) -> None:
    require_success(result, name)
    turns.end()
    print(turns.row(name))


# --- the switch ---------------------------------------------------------------------------------


def _serve_switched(words: list[str]) -> None:
    from penstock.cli.app import run as penstock

    switch = Switch()
    signal.signal(signal.SIGUSR1, lambda number, frame: switch.throw())
    sys.argv = ["penstock", *words]
    penstock()


class Switch:
    """Off: publications are neither judged nor counted, deliveries neither paced nor counted."""

    def __init__(self) -> None:
        self._other = (_bare_publish, _bare_allowance, _bare_advance)

    def throw(self) -> None:
        kept = (HubRuntime.publish, Reader.allowance, Reader.advance)
        HubRuntime.publish, Reader.allowance, Reader.advance = self._other  # type: ignore[method-assign]
        self._other = kept


def _bare_publish(
    self: HubRuntime,
    batch: EventBatch,
    *,
    size_bytes: int,
    partition: int | None,
    done: AppendDone,
    publisher: str | None = None,
    sender: object = None,
) -> None:
    """`HubRuntime.publish` to a named partition, without them."""
    if publisher is not None:
        self.check_publisher(publisher)
    assert partition is not None
    if not 0 <= partition < self.partition_count:
        raise IndexError
    _bare_append(self, self._partitions[partition], batch, done)


def _bare_append(self: HubRuntime, partition: Any, batch: EventBatch, done: AppendDone) -> None:
    if self._send_refusal is not None:
        raise self._send_refusal()
    if not 0 < batch.count <= limits.BATCH_EVENTS_MAX:
        raise ValueError
    partition.log.append(batch, now_ms=self._now_ms(), done=done)


def _bare_allowance(self: Reader, bytes_max: int) -> int:
    return bytes_max


def _bare_advance(self: Reader, events: int, position: int) -> None:
    assert self._batch is not None
    assert 0 < events <= self.remaining
    self.sequence += events
    self.remaining -= events
    self.position = position
    if self.remaining == 0:
        self._next_batch()


# --- the calls by themselves --------------------------------------------------------------------


class _NoLog:
    """Acknowledges at once."""

    def __init__(self, inner: PartitionLog) -> None:
        self.status = inner.status

    def append(self, batch: EventBatch, *, now_ms: int, done: AppendDone) -> None:
        done(Receipt(0, 0, 0, now_ms))


def _alone() -> float:
    catalog = Catalog()
    catalog.put_namespace(Namespace(name=_NAMESPACE, created_ms=0, updated_ms=0))
    catalog.put_hub(
        Hub(
            id="h",
            namespace=_NAMESPACE,
            name=HubName("events"),
            partition_count=2,
            created_ms=0,
            updated_ms=0,
        )
    )
    broker = Broker(
        catalog, MemoryLogStore(lambda work: None), SystemClock(), producer_ids=lambda: 1
    )
    hub = broker.hub(_NAMESPACE, "events")
    for partition in hub._partitions:
        partition.log = _NoLog(partition.log)  # type: ignore[assignment]  # what publish needs
    batch = EventBatch(b"\x00\x53\x75\xa0\x01a", 1)

    def send() -> None:
        hub.publish(batch, size_bytes=6, partition=0, done=lambda outcome: None)

    def nanoseconds() -> float:
        return min(timeit.repeat(send, number=3_000, repeat=100)) / 3_000 * 1e9

    switch = Switch()
    on = nanoseconds()
    switch.throw()
    off = nanoseconds()
    switch.throw()
    return on - off


if __name__ == "__main__":
    main()
