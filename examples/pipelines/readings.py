"""Columns of the simulated devices' readings, shared by the pipelines in this directory.

{"id": "7c0e…", "device": "device-07", "time": "2026-…Z", "temperature": 21.4, "humidity": 40.2}
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql.functions import col, from_json

SCHEMA = "id STRING, device STRING, time TIMESTAMP, temperature DOUBLE, humidity DOUBLE"


def readings(events: DataFrame) -> DataFrame:
    """One row per valid reading; other events become rows of nulls, which `where` removes."""
    parsed = events.select(
        from_json(col("body").cast("string"), SCHEMA).alias("reading"), "enqueuedTime"
    )
    return parsed.select("reading.*", "enqueuedTime").where(
        "device IS NOT NULL AND time IS NOT NULL"
    )
