"""Ranges as a task of Spark reads them: the broker on one core, the reader on the other.

    .venv/bin/python -m benchmarks.scenarios.ranges [EVENTS] [ROUNDS]

Each figure is the median of the rounds: events a second, and events per second of the reader's CPU,
which is what other work on the same machine leaves of it.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.systems.penstock import HUB, Penstock
from benchmarks.systems.process import pin_generator

from penstock.client.ranges import HubReader, MessageChunk, RangeSettings, read_chunks
from penstock.formats.amqp_values import avro_value, json_text
from penstock.kernels import KERNEL, ArrowColumnBuilder, AvroRecordWriter

SIZES = (100, 1024)
_TAKE_BYTES = 8 * 1024 * 1024  # a record batch, or an Avro block or eight
_FILL_S = 60.0

Way = Callable[[], Callable[[MessageChunk], None]]


def only_read() -> Callable[[MessageChunk], None]:
    return lambda chunk: None


def gather() -> Callable[[MessageChunk], None]:
    rows = ArrowColumnBuilder(json_text)

    def take(chunk: MessageChunk) -> None:
        rows.add(chunk.data, chunk.bounds)
        if rows.size >= _TAKE_BYTES:
            rows.take()

    return take


def write_avro() -> Callable[[MessageChunk], None]:
    rows = AvroRecordWriter(avro_value)

    def take(chunk: MessageChunk) -> None:
        rows.add(chunk.data, chunk.bounds)
        if rows.size >= _TAKE_BYTES:
            rows.take()

    return take


WAYS: dict[str, Way] = {"chunks": only_read, "columns": gather, "Avro records": write_avro}


async def fill(penstock: Penstock, size: int, events: int) -> str:
    """At least so many events in one partition; which."""
    stored, until = 0, time.monotonic() + _FILL_S
    while stored < events and time.monotonic() < until:
        result = await penstock.publish(size, 100, seconds=1.0)
        stored += result.events
    return penstock._partition_of[size, 100]  # noqa: SLF001  # this benchmark is of the family


def read_all(settings: RangeSettings, partition: str, events: int, way: Way) -> tuple[float, float]:
    """Events a second, and per second of CPU."""
    take = way()
    seen = 0
    began_s, cpu_s = time.perf_counter(), time.process_time()
    for chunk in read_chunks(settings, partition, 0, events - 1):
        take(chunk)
        seen += chunk.count
    assert seen == events
    return events / (time.perf_counter() - began_s), events / (time.process_time() - cpu_s)


def main() -> None:
    events = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    pin_generator()
    print(f"{KERNEL} kernels, {events:,} events a round, medians of {rounds}; k events a second")
    print(f"{'':<24}{'':>10}{'per CPU s':>12}{'MB/s':>10}")
    with tempfile.TemporaryDirectory(prefix="penstock-ranges-") as folder:
        penstock = Penstock(Path(folder) / "data", flush="os")
        penstock.start()
        try:
            settings = RangeSettings(str(penstock.facts["emulator_connection_string"]), HUB)
            for size in SIZES:
                partition = asyncio.run(fill(penstock, size, events))
                with HubReader(settings) as hub:
                    told = hub.partitions()[partition]
                count = min(events, told["last_enqueued_sequence_number"] + 1)
                for name, way in WAYS.items():
                    figures = [read_all(settings, partition, count, way) for _ in range(rounds)]
                    rate, cpu = (statistics.median(each) for each in zip(*figures, strict=True))
                    shown = f"{size} B, {name}"
                    mb = rate * size / 1e6
                    print(f"{shown:<24}{rate / 1000:>10,.0f}{cpu / 1000:>12,.0f}{mb:>10,.0f}")
        finally:
            penstock.close()


if __name__ == "__main__":
    main()
