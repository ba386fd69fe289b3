"""Temperature by device and time window, with a watermark.

    penstock pipeline run examples/pipelines/windows.py --checkpoint /var/lib/windows
    penstock pipeline run examples/pipelines/windows.py --set window="5 minutes" --set into=averages

A reading that is late by less than `late` counts; later ones are dropped. Without `into` the
windows are shown as they change. With `into` each window is written once, when the watermark has
passed its end and it cannot change any more.
"""

from __future__ import annotations

from pyspark.sql import functions as F
from readings import readings


def pipeline(spark, hubs, hub="telemetry", into="", window="10 seconds", late="10 seconds"):
    windows = (
        readings(hubs.read(hub))
        .withWatermark("time", late)
        .groupBy(F.window("time", window), "device")
        .agg(
            F.count("*").alias("readings"),
            F.round(F.avg("temperature"), 2).alias("average"),
            F.min("temperature").alias("lowest"),
            F.max("temperature").alias("highest"),
        )
        .select(
            "device",
            F.col("window.start").alias("from"),
            F.col("window.end").alias("to"),
            "readings",
            "average",
            "lowest",
            "highest",
        )
    )
    if not into:
        return hubs.show(windows, output_mode="update")
    return hubs.write(windows.withColumn("partitionKey", F.col("device")), into)
