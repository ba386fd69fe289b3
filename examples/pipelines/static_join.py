"""Joins readings with a table of devices.

    penstock pipeline run examples/pipelines/static_join.py --set devices=FILE.csv

The table is read again for each batch, so a replaced file takes effect with the next batch.
Readings of unknown devices are written without a room.
"""

from __future__ import annotations

from pathlib import Path

from pyspark.sql.functions import broadcast, col
from readings import readings

DEVICES = Path(__file__).parent / "devices.csv"


def pipeline(spark, hubs, hub="telemetry", into="placed", devices=str(DEVICES)):
    known = spark.read.csv(
        Path(devices).absolute().as_uri(),
        header=True,
        schema="device STRING, room STRING, floor INT",
    )
    placed = readings(hubs.read(hub)).join(broadcast(known), "device", "left")
    return hubs.write(
        placed.select("device", "room", "floor", "time", "temperature").withColumn(
            "partitionKey", col("device")
        ),
        into,
    )
