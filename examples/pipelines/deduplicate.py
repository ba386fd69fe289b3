"""Writes each reading once: a device that gets no answer sends the same id again.

    penstock pipeline run examples/pipelines/deduplicate.py --set into=clean --checkpoint DIR

An id is kept until the watermark is `within` past its time, so the state stays bounded. A copy
that arrives later than that counts as new.
"""

from __future__ import annotations

from pyspark.sql.functions import col, struct, to_json
from readings import readings


def pipeline(spark, hubs, hub="telemetry", into="clean", within="10 minutes"):
    once = (
        readings(hubs.read(hub)).withWatermark("time", within).dropDuplicatesWithinWatermark(["id"])
    )
    events = once.select(
        to_json(struct("id", "device", "time", "temperature", "humidity")).alias("body"),
        col("device").alias("partitionKey"),
    )
    return hubs.write(events, into)
