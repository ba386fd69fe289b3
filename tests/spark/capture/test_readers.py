"""What others read of captured files: events, and files that hold none.

DuckDB (with its Avro extension) and spark-avro are used where this machine has them.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars
import pytest
from tests.spark.capture.conftest import (
    avro_files,
    bodies,
    drained,
    records,
    settings,
    wait_for_files,
)

import penstock.capture
from penstock.capture.container import EMPTY_BYTES_MAX
from penstock.spark.capture.run_query import start_query

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from tests.conftest import Server
    from tests.spark.conftest import TestHub

BODIES = [f"event {number}".encode() for number in range(200)]
PROPERTIES = {"n": 7, "x": 1.5, "t": "ä", "b": b"\x01"}
AVRO_JARS = "org/apache/spark/spark-avro_2.13"


AVRO = pytest.mark.parametrize("captured", ["AvroDeflate"], indirect=True, scope="module")
PARQUET = pytest.mark.parametrize("captured", ["Parquet"], indirect=True, scope="module")
BOTH = pytest.mark.parametrize(
    "captured", ["AvroDeflate", "Parquet"], indirect=True, scope="module"
)


@pytest.fixture(scope="module")
def captured(
    request: pytest.FixtureRequest,
    spark: SparkSession,
    broker: Server,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Path]:
    """A hub's files, one with events and some without."""
    from tests.spark.conftest import new_hub

    folder = tmp_path_factory.mktemp("readers")
    hub: TestHub = new_hub(broker, 2)
    hub.send(BODIES, partition_id="0", properties=PROPERTIES)
    given = settings(interval_s=1, encoding=request.param)
    query = start_query(
        spark, drained(hub, folder, stops=None, settings=given), trigger="100 milliseconds"
    )
    try:
        wait_for_files(folder, 4, query, kind="parquet" if request.param == "Parquet" else "avro")
    finally:
        query.stop()
    yield folder


def parquet_files(folder: Path) -> list[Path]:
    return sorted((folder / "files" / "captured").rglob("*.parquet"))


@AVRO
def test_fastavro_reads_events_and_files_without_any(captured: Path) -> None:
    files = avro_files(captured)
    empty = [file for file in files if file.stat().st_size <= EMPTY_BYTES_MAX]
    assert len(empty) >= 2 and all(records(file) == [] for file in empty)
    (full,) = [file for file in files if file not in empty]
    assert [each["Body"] for each in records(full)] == BODIES
    assert records(full)[0]["Properties"] == PROPERTIES


@PARQUET  # polars reads no Avro with maps
def test_polars_reads_parquet_with_and_without_events(captured: Path) -> None:
    frames = [polars.read_parquet(file) for file in parquet_files(captured)]
    assert sum(frame.height == 0 for frame in frames) >= 2
    assert [body for frame in frames for body in frame["Body"].to_list()] == BODIES
    assert len({tuple(frame.schema.items()) for frame in frames}) == 1


@BOTH
def test_duckdb_reads_events_and_files_without_any(captured: Path) -> None:
    duckdb: Any = pytest.importorskip("duckdb", reason="duckdb is not installed")
    database = duckdb.connect(config={"allow_unsigned_extensions": "true"})
    function, files = "read_parquet", parquet_files(captured)
    if not files:
        function, files = "read_avro", avro_files(captured)
        try:
            importlib.import_module("duckdb_extensions").import_extension("avro")
            database.execute("LOAD avro")
        except (ImportError, duckdb.Error) as error:
            pytest.skip(f"DuckDB's extension avro is not here: {error}")
    for file in files:
        rows = database.execute(
            f"SELECT SequenceNumber, Body FROM {function}(?)", [str(file)]
        ).fetchall()
        assert rows == [] or rows == list(enumerate(BODIES))
    found = database.execute(f"SELECT count(*) FROM {function}(?)", [[*map(str, files)]])
    assert found.fetchall() == [(len(BODIES),)]


@AVRO
def test_spark_avro_reads_events_and_files_without_any(spark: SparkSession, captured: Path) -> None:
    repository = Path(os.environ.get("MAVEN_REPOSITORY", Path.home() / ".m2" / "repository"))
    jars = sorted((repository / AVRO_JARS).glob("4.*/spark-avro_2.13-4.*.jar"))
    if not jars:
        pytest.skip(f"spark-avro is not in {repository}: mvn dependency:get fetches it")
    spark.sql(f"ADD JAR {jars[-1]}")
    frame = spark.read.format("avro").load([str(file) for file in avro_files(captured)])
    rows = frame.orderBy("SequenceNumber").collect()
    assert [bytes(row["Body"]) for row in rows] == BODIES
    assert rows[0]["Properties"]["t"]["member2"] == "ä"
    for file in avro_files(captured):
        if file.stat().st_size <= EMPTY_BYTES_MAX:
            assert spark.read.format("avro").load(str(file)).count() == 0


@BOTH
def test_our_own_reader_reads_all_of_them(spark: SparkSession, captured: Path) -> None:
    root = captured / "files" / "captured"
    namespace, hub = (
        (avro_files(captured) or parquet_files(captured))[0].relative_to(root).parts[:2]
    )
    frame = penstock.capture.read(
        spark, hub, url=(captured / "files").as_uri(), container="captured", namespace=namespace
    )
    assert sorted(bodies(frame)) == sorted(BODIES)
