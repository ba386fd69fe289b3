"""Queries of the old connector's public documentation, unchanged but for EventHubsUtils.encrypt,
which is dropped: the PySpark guide and the structured streaming guide."""

from __future__ import annotations

import datetime
import json
from datetime import datetime as dt
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from tests.spark.conftest import MakeHub, TestHub

SCHEMA = (
    "struct<body:binary,partition:string,offset:string,sequenceNumber:bigint,"
    "enqueuedTime:timestamp,publisher:string,partitionKey:string,"
    "properties:map<string,string>,systemProperties:map<string,string>>"
)


@pytest.fixture
def hub(make_hub: MakeHub) -> TestHub:
    made = make_hub(4)
    for index in range(4):
        made.send([f"{index}-{number}" for number in range(150)], partition_id=str(index))
    return made


def test_the_schema_is_the_old_one(spark: SparkSession, hub: TestHub) -> None:
    ehConf = {"eventhubs.connectionString": hub.connection_string}
    assert spark.read.format("eventhubs").options(**ehConf).load().schema.simpleString() == SCHEMA
    streaming = spark.readStream.format("eventhubs").options(**ehConf).load()
    assert streaming.schema.simpleString() == SCHEMA
    assert all(field.nullable for field in streaming.schema)


def test_a_simple_batch_query(spark: SparkSession, hub: TestHub) -> None:
    ehConf = {"eventhubs.connectionString": hub.connection_string}
    df = spark.read.format("eventhubs").options(**ehConf).load()
    df = df.withColumn("body", df["body"].cast("string"))
    assert sorted(row.body for row in df.collect()) == sorted(
        f"{index}-{number}" for index in range(4) for number in range(150)
    )


def test_event_positions_from_the_start_to_a_time(spark: SparkSession, hub: TestHub) -> None:
    ehConf: dict[str, Any] = {}
    ehConf["eventhubs.connectionString"] = hub.connection_string
    ehConf["eventhubs.consumerGroup"] = "$Default"
    startOffset = "-1"
    endTime = dt.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    startingEventPosition = {
        "offset": startOffset,
        "seqNo": -1,
        "enqueuedTime": None,
        "isInclusive": True,
    }
    endingEventPosition = {
        "offset": None,
        "seqNo": -1,
        "enqueuedTime": endTime,
        "isInclusive": True,
    }
    ehConf["eventhubs.startingPosition"] = json.dumps(startingEventPosition)
    ehConf["eventhubs.endingPosition"] = json.dumps(endingEventPosition)
    receiverTimeoutDuration = datetime.time(0, 3, 20).strftime("PT%HH%MM%SS")
    operationTimeoutDuration = datetime.time(0, 1, 0).strftime("PT%HH%MM%SS")
    ehConf["eventhubs.receiverTimeout"] = receiverTimeoutDuration
    ehConf["eventhubs.operationTimeout"] = operationTimeoutDuration
    ehConf["eventhubs.prefetchCount"] = 500
    ehConf["eventhubs.threadPoolSize"] = 16
    assert spark.read.format("eventhubs").options(**ehConf).load().count() == 600


def test_positions_of_single_partitions(spark: SparkSession, hub: TestHub) -> None:
    ehName = hub.name
    positionKey1 = {"ehName": ehName, "partitionId": 0}
    eventPosition1 = {
        "offset": "@latest",
        "seqNo": -1,
        "enqueuedTime": None,
        "isInclusive": True,
    }
    positionKey2 = {"ehName": ehName, "partitionId": 2}
    eventPosition2 = {
        "offset": None,
        "seqNo": 100,
        "enqueuedTime": None,
        "isInclusive": True,
    }
    positionMap = {
        json.dumps(positionKey1): eventPosition1,
        json.dumps(positionKey2): eventPosition2,
    }
    ehConf = {"eventhubs.connectionString": hub.connection_string}
    ehConf["eventhubs.startingPositions"] = json.dumps(positionMap)
    df = spark.read.format("eventhubs").options(**ehConf).load()
    counts = {row.partition: row["count"] for row in df.groupBy("partition").count().collect()}
    assert counts == {"1": 150, "2": 50, "3": 150}
    first = df.where("partition = '2'").selectExpr("min(sequenceNumber)").first()
    assert first is not None and first[0] == 100


def test_ends_of_single_partitions_are_exclusive(spark: SparkSession, hub: TestHub) -> None:
    def position(**used: Any) -> dict[str, Any]:
        return {"offset": None, "seqNo": -1, "enqueuedTime": None, "isInclusive": True} | used

    def key(partition: int) -> str:
        return json.dumps({"ehName": hub.name, "partitionId": partition})

    offset = (
        spark.read.format("eventhubs")
        .options(**hub.options)
        .load()
        .where("partition = '1' and sequenceNumber = 120")
        .first()
    )
    assert offset is not None
    ehConf = hub.options | {
        "eventhubs.startingPositions": json.dumps(
            {key(0): position(seqNo=10), key(1): position(offset=offset.offset)}
        ),
        "eventhubs.startingPosition": json.dumps(position(offset="@latest")),
        "eventhubs.endingPositions": json.dumps({key(0): position(seqNo=20)}),
    }
    rows = spark.read.format("eventhubs").options(**ehConf).load().collect()
    found = {
        part: sorted(row.sequenceNumber for row in rows if row.partition == part)
        for part in ("0", "1", "2")
    }
    assert found == {"0": list(range(10, 20)), "1": list(range(120, 150)), "2": []}


def test_a_stream_into_memory_and_into_another_hub(
    spark: SparkSession, hub: TestHub, make_hub: MakeHub, tmp_path: Path
) -> None:
    other = make_hub(4)
    ehConf: dict[str, Any] = {
        "eventhubs.connectionString": hub.connection_string,
        "eventhubs.startingPosition": json.dumps(
            {"offset": "-1", "seqNo": -1, "enqueuedTime": None, "isInclusive": True}
        ),
        "maxEventsPerTrigger": 250,
    }
    df = spark.readStream.format("eventhubs").options(**ehConf).load()
    ehWriteConf = {"eventhubs.connectionString": other.connection_string}
    ds = (
        df.select("body")
        .writeStream.format("eventhubs")
        .options(**ehWriteConf)
        .option("checkpointLocation", str(tmp_path / "output.txt"))
        .start()
    )
    counted = (
        df.groupBy("partition")
        .count()
        .writeStream.outputMode("complete")
        .option("checkpointLocation", str(tmp_path / "counts"))
        .format("memory")
        .queryName("old_counts")
        .start()
    )
    try:
        counted.processAllAvailable()
        ds.processAllAvailable()
        counts = {row[0]: row[1] for row in spark.table("old_counts").collect()}
    finally:
        counted.stop()
        ds.stop()
    assert counts == {"0": 150, "1": 150, "2": 150, "3": 150}
    assert sum(map(len, other.read().values())) == 600


def test_batches_are_written_with_the_mode_append(
    spark: SparkSession, hub: TestHub, make_hub: MakeHub, tmp_path: Path
) -> None:
    other = make_hub(4)
    df = spark.read.format("eventhubs").options(**hub.options).load()
    ehWriteConf = {"eventhubs.connectionString": other.connection_string}
    (
        df.select("body")
        .write.format("eventhubs")
        .options(**ehWriteConf)
        .option("checkpointLocation", str(tmp_path / "unused"))
        .mode("append")
        .save()
    )
    (
        df.selectExpr("partition as partitionKey", "body")
        .write.format("eventhubs")
        .options(**ehWriteConf)
        .mode("append")
        .save()
    )
    assert sum(map(len, other.read().values())) == 1200
