"""Joins two hubs by command id: commands to devices, and the answers of the devices.

    penstock pipeline run examples/pipelines/stream_join.py --set into=outcomes --checkpoint DIR

A command waits for its answer for `wait`; then it is written without one. Both sides have a
watermark, so rows that cannot match any more leave the state.

commands  {"command": "c-1", "device": "device-07", "action": "restart", "time": "2026-…Z"}
answers   {"command": "c-1", "outcome": "done", "time": "2026-…Z"}
"""

from __future__ import annotations

from pyspark.sql.functions import col, expr, from_json

COMMAND = "command STRING, device STRING, action STRING, time TIMESTAMP"
ANSWER = "command STRING, outcome STRING, time TIMESTAMP"


def pipeline(
    spark,
    hubs,
    commands="commands",
    answers="answers",
    into="outcomes",
    wait="30 seconds",
    late="10 seconds",
):
    asked = rows(hubs.read(commands), COMMAND).withWatermark("time", late).alias("asked")
    said = rows(hubs.read(answers), ANSWER).withWatermark("time", late).alias("said")
    matched = asked.join(
        said,
        expr(
            f"""
            asked.command = said.command
            AND said.time >= asked.time
            AND said.time <= asked.time + INTERVAL {wait}
            """
        ),
        "leftOuter",
    )
    return hubs.write(
        matched.select(
            "asked.command",
            "asked.device",
            "asked.action",
            col("asked.time").alias("asked_at"),
            "said.outcome",
            expr("timestampdiff(MILLISECOND, asked.time, said.time)").alias("took_ms"),
            col("asked.device").alias("partitionKey"),
        ),
        into,
    )


def rows(events, schema):
    parsed = events.select(from_json(col("body").cast("string"), schema).alias("row"))
    return parsed.select("row.*").where("command IS NOT NULL AND time IS NOT NULL")
