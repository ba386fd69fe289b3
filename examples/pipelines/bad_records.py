"""Writes valid readings to one hub and invalid ones to another, with the reason.

    penstock pipeline run examples/pipelines/bad_records.py --set into=clean --set bad=rejected

The file defines two queries; each reads the hub and has its own progress. A rejected event keeps
its original bytes and its position, so that it can be repaired and sent again.
"""

from __future__ import annotations

from pyspark.sql.functions import col, create_map, expr, from_json, lit, struct, to_json, when

SCHEMA = (
    "id STRING, device STRING, time TIMESTAMP, temperature DOUBLE, humidity DOUBLE, broken STRING"
)
WARMEST, COLDEST = 150, -90


def pipeline(spark, hubs, hub="telemetry", into="clean", bad="rejected"):
    judged = judge(hubs.read(hub))
    good = judged.where("reason IS NULL").select(
        to_json(
            struct("reading.id", "reading.device", "reading.time", "reading.temperature")
        ).alias("body"),
        col("reading.device").alias("partitionKey"),
    )
    rejected = judged.where("reason IS NOT NULL").select(
        "body",
        create_map(
            lit("reason"),
            col("reason"),
            lit("from"),
            expr("concat(partition, '/', sequenceNumber)"),
        ).alias("properties"),
    )
    return {"good": hubs.write(good, into), "rejected": hubs.write(rejected, bad)}


def judge(events):
    """Add the reason why an event is not a valid reading; null for a valid one."""
    parsed = events.withColumn(
        "reading",
        from_json(col("body").cast("string"), SCHEMA, {"columnNameOfCorruptRecord": "broken"}),
    )
    reading = col("reading")
    return parsed.withColumn(
        "reason",
        when(reading.isNull() | reading.broken.isNotNull(), "no JSON of a reading")
        .when(reading.device.isNull(), "no device")
        .when(reading.time.isNull(), "no time")
        .when(reading.temperature.isNull(), "no temperature")
        .when(~reading.temperature.between(COLDEST, WARMEST), "temperature out of range"),
    )
