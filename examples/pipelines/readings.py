"""What the simulated devices send, as columns; the pipelines beside this file share it.

{"id": "7c0e…", "device": "device-07", "time": "2026-…Z", "temperature": 21.4, "humidity": 40.2}
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql.functions import col, from_json

SCHEMA = "id STRING, device STRING, time TIMESTAMP, temperature DOUBLE, humidity DOUBLE"


def readings(events: DataFrame) -> DataFrame:
    """One row an event; what is no reading becomes a row of nulls, which `where` leaves out."""
    parsed = events.select(
        from_json(col("body").cast("string"), SCHEMA).alias("reading"), "enqueuedTime"
    )
    return parsed.select("reading.*", "enqueuedTime").where(
        "device IS NOT NULL AND time IS NOT NULL"
    )
