"""Sessions by device: readings that follow each other within a gap are one session.

    penstock pipeline run examples/pipelines/sessions.py --set gap="5 minutes" --checkpoint DIR

The state contains the open sessions. A session is written once, when the watermark shows that no
reading can extend it. A late reading between two sessions merges them.
"""

from __future__ import annotations

from pyspark.sql import functions as F
from readings import readings


def pipeline(spark, hubs, hub="telemetry", into="sessions", gap="30 seconds", late="10 seconds"):
    sessions = (
        readings(hubs.read(hub))
        .withWatermark("time", late)
        .groupBy(F.session_window("time", gap), "device")
        .agg(F.count("*").alias("readings"), F.round(F.avg("temperature"), 2).alias("average"))
        .select(
            "device",
            F.col("session_window.start").alias("from"),
            # Spark's end is the last reading and the gap.
            F.expr(f"session_window.end - INTERVAL {gap}").alias("to"),
            "readings",
            "average",
        )
        .withColumn("seconds", F.expr("timestampdiff(SECOND, `from`, `to`)"))
    )
    return hubs.write(sessions.withColumn("partitionKey", F.col("device")), into)
