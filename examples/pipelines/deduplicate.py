"""Each reading once: devices that send again when they hear no answer send the same id again.

    penstock pipeline run examples/pipelines/deduplicate.py --set into=clean --checkpoint DIR

An id is remembered until the watermark is `within` past its time: state stays bounded, and a copy
that comes later than that is taken for new.
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
