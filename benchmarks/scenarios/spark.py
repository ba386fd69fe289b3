"""Spark through the format `eventhubs`: batch and streaming reads, and the sink, on this machine.

    python -m benchmarks.scenarios.spark                     everything, medians of 5
    python -m benchmarks.scenarios.spark --rounds 1 --scale 0.2     a look

Broker, Spark (local[2]) and client share the same cores. Reads go to `noop` with all nine columns
from a hub of 4 partitions. Beside them, in the same run and in turn, a source that yields one ready
Arrow batch again and again: what Spark's transport takes at most. Spark's own Kafka source is
measured too where PENSTOCK_SPARK_KAFKA_JARS (a directory or a list of jars) and
PENSTOCK_BENCH_KAFKA (host:port of a broker whose topics have 4 partitions) say where it is.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

from penstock.client import EventData, EventHubProducerClient
from penstock.spark import session
from penstock.spark.eventhubs.options import EventHubsOptions

ROOT = Path(__file__).resolve().parents[2]
PENSTOCK = ROOT / ".venv" / "bin" / "penstock"
PARTITIONS = 4
KB = 1024
SIZES = {"100 B": (100, 4_000_000), "1 KB": (KB, 1_200_000)}
SINK_EVENTS = 1_000_000
WANTED = {"100 B": 500_000, "1 KB": 250_000}
START_S = 60


@contextlib.contextmanager
def served(place: Path) -> Iterator[str]:
    """The connection string of a service of its own, durable as by default."""
    ports = [w for door in ("amqp", "amqps", "https", "admin") for w in (f"--{door}-port", "0")]
    command = [str(PENSTOCK), "serve", "--json", "--no-portal", "--data", str(place / "data")]
    hubs = [w for name in (*map(hub_name, SIZES), "sink") for w in ("--hub", f"{name}:4")]
    with (place / "log").open("w") as log:
        process = subprocess.Popen(
            [*command, *ports, *hubs], stdout=subprocess.PIPE, stderr=log, text=True
        )
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["emulator_connection_string"].rstrip(";")
    finally:
        process.terminate()
        process.wait(START_S)


def hub_name(size: str) -> str:
    return "hub-" + size.replace(" ", "").lower()


async def fill(connection: str, size: int, count: int) -> int:
    """`count` events, about, in full publications to every partition at once."""

    async def partition(number: int) -> int:
        async with EventHubProducerClient(connection) as producer:
            batch = await producer.create_batch(partition_id=str(number))
            body = bytes(32 + index % 90 for index in range(size))
            while batch.try_add(EventData(body)):
                pass
            sends = -(-count // PARTITIONS // len(batch))
            for _ in range(sends):
                await producer.send_batch(batch)
            return sends * len(batch)

    return sum(await asyncio.gather(*map(partition, range(PARTITIONS))))


def ready_batch(connection: str, place: Path) -> Path:
    """One batch as the source makes it, kept for the source that yields nothing else."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    from penstock.spark.eventhubs.data_source import spark_schema
    from penstock.spark.eventhubs.planner import SequenceRange, range_settings
    from penstock.spark.eventhubs.rows import record_batches

    options = EventHubsOptions({"connectionString": connection})
    schema = to_arrow_schema(spark_schema(options.rows()), timezone="UTC")
    batches = record_batches(
        range_settings(options.read()),
        SequenceRange("0", 0, 20_000),
        options.rows(),
        schema,
        fail_on_data_loss=True,
    )
    file = place / f"{options.target().eventhub_name}.arrow"
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        writer.write(next(batches))
    batches.close()  # type: ignore[attr-defined]
    return file


def register_ceiling(spark: Any) -> None:
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
    from pyspark.sql.types import StructType

    from penstock.spark.eventhubs.data_source import spark_schema
    from penstock.spark.eventhubs.options import RowOptions

    class Ready(DataSourceReader):
        def __init__(self, file: str, rows: int) -> None:
            self.file, self.rows = file, rows

        def partitions(self) -> list[InputPartition]:
            return [InputPartition(number) for number in range(PARTITIONS)]

        def read(self, partition: InputPartition) -> Iterator[Any]:
            import pyarrow as pa

            with pa.memory_map(self.file) as opened:
                batch = pa.ipc.open_file(opened).get_batch(0)
                for _ in range(self.rows // PARTITIONS // batch.num_rows):
                    yield batch

    class Ceiling(DataSource):
        @classmethod
        def name(cls) -> str:
            return "ceiling"

        def schema(self) -> StructType:
            return spark_schema(RowOptions())

        def reader(self, schema: StructType) -> DataSourceReader:
            return Ready(self.options["file"], int(self.options["rows"]))

    spark.dataSource.register(Ceiling)


def rate(rows: int, act: Callable[[], None]) -> float:
    began_s = time.perf_counter()
    act()
    return rows / (time.perf_counter() - began_s)


def batch_read(spark: Any, connection: str) -> None:
    frame = spark.read.format("eventhubs").option("connectionString", connection).load()
    frame.write.format("noop").mode("overwrite").save()


def ceiling_read(spark: Any, file: Path, rows: int) -> None:
    frame = spark.read.format("ceiling").options(file=str(file), rows=rows).load()
    frame.write.format("noop").mode("overwrite").save()


def stream_rate(spark: Any, connection: str, rows: int, place: Path) -> float:
    """Rows by the time of the micro-batches that had any: what a running query sustains."""
    frame = (
        spark.readStream.format("eventhubs")
        .options(connectionString=connection, startingPosition="earliest", commitToService="false")
        .option("maxEventsPerTrigger", max(1, rows // 3))
        .load()
    )
    checkpoint = tempfile.mkdtemp(dir=place)
    query = (
        frame.writeStream.format("noop")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    told = [each for each in query.recentProgress if each["numInputRows"] > 0]
    seen = sum(each["numInputRows"] for each in told)
    assert seen == rows, (seen, rows)
    return float(seen / sum(each["durationMs"]["triggerExecution"] for each in told) * 1000)


def sink_write(spark: Any, connection: str, count: int) -> None:
    # A literal behind a number: `rpad` alone would cost Spark more than sending the row does.
    rest = "." * 1014
    rows = spark.range(0, count, 1, PARTITIONS).selectExpr(
        f"concat(cast(id + 1000000000 as string), '{rest}') body"
    )
    rows.write.format("eventhubs").option("connectionString", connection).mode("append").save()


def kafka_rates(spark: Any, size: int, rows: int, rounds: int) -> float | None:
    broker = os.environ.get("PENSTOCK_BENCH_KAFKA")
    if not broker or not kafka_jars():
        return None
    topic = f"penstock-bench-{size}-{int(time.time())}"
    kafka = {"kafka.bootstrap.servers": broker, "subscribe": topic}
    made = spark.range(0, rows, 1, PARTITIONS).selectExpr(f"rpad(cast(id as string), {size}) value")
    made.write.format("kafka").options(**kafka).option("topic", topic).save()

    def read() -> None:
        frame = spark.read.format("kafka").options(**kafka, startingOffsets="earliest").load()
        frame.write.format("noop").mode("overwrite").save()

    read()
    return median(rate(rows, read) for _ in range(rounds))


def kafka_jars() -> str:
    place = os.environ.get("PENSTOCK_SPARK_KAFKA_JARS", "")
    if place and Path(place).is_dir():
        return ",".join(str(jar) for jar in sorted(Path(place).glob("*.jar")))
    return place


def measure(
    spark: Any, connection: str, place: Path, scale: float, rounds: int
) -> dict[str, dict[str, float]]:
    """Events per second, by size: the ceiling, batch read, stream, and Spark's Kafka source; of the
    sink under "sink"."""
    found: dict[str, dict[str, float]] = {}
    for name, (size, count) in SIZES.items():
        hub = f"{connection};EntityPath={hub_name(name)}"
        rows = asyncio.run(fill(hub, size, int(count * scale)))
        file = ready_batch(hub, place)
        batch_read(spark, hub)  # warm: the JIT, the page cache, Python's workers
        ceiling_read(spark, file, rows)
        ours, most, streamed = [], [], []
        for _ in range(rounds):
            most.append(rate(rows, lambda f=file, n=rows: ceiling_read(spark, f, n)))  # type: ignore[misc]
            ours.append(rate(rows, lambda h=hub: batch_read(spark, h)))  # type: ignore[misc]
            streamed.append(stream_rate(spark, hub, rows, place))
        found[name] = {
            "events": rows,
            "ceiling": median(most),
            "batch": median(ours),
            "batch_min": min(ours),
            "batch_max": max(ours),
            "stream": median(streamed),
        }
        kafka = kafka_rates(spark, size, rows, rounds)
        if kafka is not None:
            found[name]["kafka"] = kafka
    sink = f"{connection};EntityPath=sink"
    written = int(SINK_EVENTS * scale)
    sink_write(spark, sink, written // 4)
    stored = median(rate(written, lambda: sink_write(spark, sink, written)) for _ in range(rounds))
    found["sink"] = {"batch": stored}
    return found


def report(found: dict[str, dict[str, float]]) -> list[str]:
    lines: list[str] = []
    for name in SIZES:
        rates = found[name]
        read, ceiling, stream = rates["batch"], rates["ceiling"], rates["stream"]
        lines += [
            f"{name}: batch read {read / ceiling:.0%} of the transport's ceiling (wanted: 50 %), "
            f"stream {stream / read:.0%} of the batch read (wanted: 70 %)",
            f"{name}: batch read {read / 1000:.0f} k events/s (wanted: {WANTED[name] // 1000} k), "
            f"ceiling {ceiling / 1000:.0f} k, stream {stream / 1000:.0f} k; "
            f"{rates['events']:.0f} events, "
            f"rounds {rates['batch_min'] / 1000:.0f}-{rates['batch_max'] / 1000:.0f} k",
            f"{name}: {read / rates['kafka']:.2f} of Spark's Kafka source "
            f"({rates['kafka'] / 1000:.0f} k)"
            if "kafka" in rates
            else f"{name}: Spark's Kafka source is not here (PENSTOCK_SPARK_KAFKA_JARS, "
            "PENSTOCK_BENCH_KAFKA)",
        ]
    stored = found["sink"]["batch"]
    lines.append(
        f"1 KB: sink {stored / 1000:.0f} k events/s, durable, exactly once (wanted: 100 k)"
    )
    return lines


def run(place: Path, scale: float, rounds: int) -> dict[str, dict[str, float]]:
    """Start a service and Spark, and measure."""
    conf: dict[str, Any] = {
        "spark.driver.memory": "3g",
        "spark.ui.enabled": False,
        "spark.log.level": "ERROR",
    }
    if jars := kafka_jars():
        conf["spark.jars"] = jars
    with served(place) as connection:
        spark = session(app_name="bench", master="local[2]", **conf)
        register_ceiling(spark)
        try:
            return measure(spark, connection, place, scale, rounds)
        finally:
            spark.stop()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of events")
    parser.add_argument("--place", type=Path, default=None, help="where data lies meanwhile")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.place, prefix="penstock-bench-") as name:
        found = run(Path(name), given.scale, given.rounds)
    print("\n".join(report(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
