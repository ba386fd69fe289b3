"""A large log: how long the start takes, how fast segments come from a cold disk."""

from __future__ import annotations

import os
import queue
import shutil
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.report.machine import MB, drop_page_cache
from benchmarks.report.results import Results
from benchmarks.scenarios.comparison import Tell, require_success
from benchmarks.systems.base import run
from benchmarks.systems.penstock import BATCHES_IN_FLIGHT, HUB, Penstock
from benchmarks.systems.process import measured

from penstock.client.load.consumer import receive
from penstock.client.load.measurements import LoadResult
from penstock.client.load.producer import LoadProfile, publish
from penstock.client.transfer_frames import encode_publication
from penstock.kernels import split_batch
from penstock.log.embedded.store import EmbeddedLogStore
from penstock.model.events import EventBatch

_GB = 1024 * MB
_FILLED = ("0", "1", "2", "3")
_SIZE, _BATCH = 1024, 100
_PENDING_BYTES_MAX = 64 * MB
_STARTS = 3
_REPLAY_EVENTS_MAX = 700_000
_ROOM_FACTOR = 1.5  # of the log's size, that the disk must have free


def large_log(
    place: Path, results: Results, *, log_gb: float, tell: Tell, starts: int = _STARTS
) -> None:
    free_gb = shutil.disk_usage(place).free / _GB
    if free_gb < log_gb * _ROOM_FACTOR:
        results.skipped.append(
            f"Large log: skipped, {log_gb:g} GB need more than the {free_gb:.1f} GB that are free."
        )
        return
    penstock = Penstock(place / "large")
    try:
        tell(f"a log of {log_gb:g} GB is written")
        penstock.fresh()
        run(_seed(penstock))
        penstock.close()
        events = _fill(penstock.data / "log", int(log_gb * _GB))
        cold = drop_page_cache()
        if not cold:
            results.skipped.append(
                "Cold disk: only root can drop the page cache; start and replay were warm."
            )
        results.facts.update(log_gb=log_gb, log_events=events, page_cache_dropped=cold)
        tell(f"start with {log_gb:g} GB")
        _measure_start(penstock, results, starts)
        tell("replay of cold segments")
        _measure_replay(penstock, results, events // len(_FILLED), starts)
    finally:
        penstock.close()
        shutil.rmtree(place / "large", ignore_errors=True)


async def _seed(penstock: Penstock) -> None:
    """One batch in each partition that will be filled, so that its directory is there."""
    assert penstock.endpoint is not None
    for partition in _FILLED:
        load = LoadProfile(
            hub=HUB,
            partition=partition,
            size=_SIZE,
            batch=_BATCH,
            in_flight=BATCHES_IN_FLIGHT,
            events_max=_BATCH,
        )
        require_success(await publish(penstock.endpoint, load, tls=None), "seed")


def _fill(directory: Path, size: int) -> int:
    """Append to the log itself, past the broker; the events that it holds at the end."""
    acts: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
    store = EmbeddedLogStore(directory, wake=acts.put, flush="os")
    payload, _ = encode_publication(_SIZE, _BATCH)
    sections = split_batch(payload, 0, len(payload), publisher=None).sections
    batch = EventBatch(sections, _BATCH)
    hub = next(path.name for path in directory.iterdir() if path.is_dir())
    partitions = [store.partition(hub, int(index)) for index in _FILLED]
    failed: list[object] = []

    def done(outcome: object) -> None:
        if isinstance(outcome, Exception):
            failed.append(outcome)

    for number in range(size // len(sections)):
        while store.pending_bytes > _PENDING_BYTES_MAX:
            acts.get(timeout=60)()
        now_ms = int(time.time() * 1000)
        partitions[number % len(partitions)].append(batch, now_ms=now_ms, done=done)
    while store.pending_bytes:
        acts.get(timeout=60)()
    events = sum(partition.status().last_sequence + 1 for partition in partitions)
    store.close()
    os.sync()
    if failed:
        raise RuntimeError(f"The log could not be filled: {failed[0]}")
    return events


def _measure_start(penstock: Penstock, results: Results, starts: int) -> None:
    took = []
    for _ in range(starts):
        drop_page_cache()
        took.append(penstock.start())
        penstock.close()
    results.facts["start_s"] = round(statistics.median(took), 2)
    results.facts["start_s_range"] = [round(min(took), 2), round(max(took), 2)]


def _measure_replay(penstock: Penstock, results: Results, events: int, starts: int) -> None:
    results.facts["disk_read_mb_per_s"] = round(_disk_read(penstock.data / "log"), 1)
    row = results.row("replay 1 KB from cold segments", penstock.name, size=_SIZE)
    for _ in range(starts):
        penstock.start()
        drop_page_cache()
        with measured(penstock.broker) as cpu_s:
            result = run(_replay(penstock, min(events, _REPLAY_EVENTS_MAX)))
            row.add(require_success(result, row.workload), broker_cpu_s=cpu_s())
        penstock.close()


async def _replay(penstock: Penstock, events: int) -> LoadResult:
    assert penstock.endpoint is not None
    return await receive(
        penstock.endpoint, HUB, partitions=[_FILLED[0]], events_max=events, tls=None
    )


def _disk_read(directory: Path) -> float:
    """MB/s of reading the first segments in large pieces, as cold as they can be."""
    drop_page_cache()
    total, started_s = 0, time.perf_counter()
    for segment in sorted(directory.glob(f"*/{_FILLED[-1]}/*.log"))[:8]:
        with segment.open("rb", buffering=0) as file:
            while piece := file.read(MB):
                total += len(piece)
    return total / MB / (time.perf_counter() - started_s)
