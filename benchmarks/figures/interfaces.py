"""The parts `https`, `client`, `checkpoints`, `portal` and `log`."""

from __future__ import annotations

import argparse
import gc
import logging
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.figures.run import Tell
from benchmarks.micro import log
from benchmarks.scenarios import client, http_publish, portal
from benchmarks.systems.penstock import HUB, Penstock
from benchmarks.systems.process import pin_generator

from penstock.checkpoints import ServiceCheckpointStore, SqliteCheckpointStore
from penstock.checkpoints.stores import BlockingStore
from penstock.log.embedded.files import Files

MB = 1024**2
THREADS = 8


def measure_https(place: Path, trial: bool, tell: Tell) -> dict[str, Any]:
    runs, seconds = (1, 1.0) if trial else (3, 5.0)
    found = {}
    for batch in (0, 200):
        tell(f"HTTPS, {batch or 1} events in a request")
        given = argparse.Namespace(connections=32, seconds=seconds, size=1024, batch=batch)
        rows = []
        for number in range(runs):
            directory = place / f"{batch}-{number}"
            directory.mkdir()
            rows.append(http_publish.measure(directory, given))
        rows.sort(key=lambda row: row["requests_per_s"])
        found[batch] = rows[len(rows) // 2]
    return {
        "requests_per_s": found[0]["requests_per_s"],
        "p50_ms": found[0]["p50_ms"],
        "p99_ms": found[0]["p99_ms"],
        "batch_events_per_s": found[200]["events_per_s"],
    }


def measure_client(place: Path, trial: bool, tell: Tell) -> dict[str, Any]:
    logging.disable(logging.WARNING)  # the SDK's, of connections that it closes
    pin_generator()
    rounds, events = (1, 50_000) if trial else (3, 300_000)
    rates = {
        name: statistics.median(measure.rate for measure in measures)
        for name, measures in client.run(rounds, events, "disk").items()
    }
    send, official_send = rates["send, batches"], rates["send, azure-eventhub"]
    events_rate, columns = rates["receive, EventData"], rates["receive, columns"]
    official_receive = rates["receive, azure-eventhub"]
    return {
        "send_per_s": send,
        "receive_per_s": events_rate,
        "receive_columns_per_s": columns,
        "official_send_per_s": official_send,
        "official_receive_per_s": official_receive,
        "send_ratio": send / official_send,
        "receive_ratio": events_rate / official_receive,
        "receive_columns_ratio": columns / official_receive,
    }


# --- checkpoints ----------------------------------------------------------------------------------


def measure_checkpoints(place: Path, trial: bool, tell: Tell) -> dict[str, Any]:
    count = 50 if trial else 500
    penstock = Penstock(place / "data")
    found = {}
    try:
        penstock.fresh()
        stores: dict[str, BlockingStore] = {
            "file": SqliteCheckpointStore(place / "checkpoints.sqlite"),
            "service": ServiceCheckpointStore(
                str(penstock.facts["emulator_connection_string"]),
                https_url=str(penstock.facts["https"]),
                ca_file=str(penstock.facts["ca_file"]),
            ),
        }
        for name, store in stores.items():
            tell(f"checkpoints in the {name}")
            with store, ThreadPoolExecutor(THREADS) as threads:
                _save(store, 0, 10)
                took_s = _save(store, 0, count)
                began_s = time.perf_counter()
                list(threads.map(lambda number: _save(store, number, count), range(THREADS)))  # noqa: B023
                together_s = time.perf_counter() - began_s
            found[f"{name}_ms"] = took_s / count * 1000
            found[f"{name}_per_s"] = THREADS * count / together_s
    finally:
        penstock.close()
    return found


def _save(store: BlockingStore, partition: int, count: int) -> float:
    """Seconds of `count` checkpoints, one after the other."""
    began_s = time.perf_counter()
    for number in range(count):
        store.update_checkpoint(
            {
                "fully_qualified_namespace": "localhost",
                "eventhub_name": HUB,
                "consumer_group": "$Default",
                "partition_id": str(partition),
                "offset": str(number * 100),
                "sequence_number": number,
            }
        )
    return time.perf_counter() - began_s


# --- portal, log ----------------------------------------------------------------------------------


def measure_portal(place: Path, trial: bool, tell: Tell) -> dict[str, Any]:
    tell("ten open tabs of the portal")
    found = portal.measure(10, *((1, 1) if trial else (4, 5)))
    return {
        # Below the noise of the machine either may come out negative.
        "publish_share": max(0.0, 1 - found["with"] / found["without"]),
        "broker_cpu": max(0.0, found["busy"] - found["idle"]),
    }


def measure_log(place: Path, trial: bool, tell: Tell) -> dict[str, Any]:
    gc.freeze()
    data = place / "data"
    tell("the log: appending")
    rates = [
        log.append_rate(
            data, Files(), "disk", partitions=4, in_flight=64, seconds=0.5 if trial else 3.0
        )
        for _ in range(1 if trial else 3)
    ]
    append_us = log.append_cost(data, 50 if trial else 400)
    tell("the log: reading and opening")
    read_mb, clean_ms, crash_ms = log.read_and_open(data, (64 if trial else 1024) * MB)
    return {
        "append_us": append_us,
        "read_gb_per_cpu_s": read_mb / 1024,
        "open_clean_ms": clean_ms,
        "open_crash_ms": crash_ms,
        "four_partitions_per_s": statistics.median(rates),
    }
