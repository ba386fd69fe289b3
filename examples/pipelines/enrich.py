"""From hub to hub: adds fields to each reading and keeps its key and properties.

    penstock pipeline run examples/pipelines/enrich.py --set into=enriched --checkpoint DIR

There is no state and no shuffle: events of a partition are written at once, in order.
"""

from __future__ import annotations

from pyspark.sql.functions import (
    col,
    create_map,
    expr,
    from_json,
    lit,
    map_concat,
    struct,
    to_json,
    when,
)
from readings import SCHEMA


def pipeline(spark, hubs, hub="telemetry", into="enriched", hot=30.0):
    events = hubs.read(hub, propertiesFormat="string")
    parsed = events.withColumn("reading", from_json(col("body").cast("string"), SCHEMA))
    temperature = col("reading.temperature")
    level = when(temperature >= hot, "hot").when(temperature < 0, "frozen").otherwise("normal")
    enriched = parsed.where("reading.device IS NOT NULL").select(
        to_json(
            struct(
                "reading.*",
                (temperature * 9 / 5 + 32).alias("fahrenheit"),
                level.alias("level"),
                expr("timestampdiff(MILLISECOND, reading.time, enqueuedTime)").alias("delay_ms"),
            )
        ).alias("body"),
        col("reading.device").alias("partitionKey"),
        map_concat(
            "properties",
            create_map(
                lit("level"), level, lit("from"), expr("concat(partition, '/', sequenceNumber)")
            ),
        ).alias("properties"),
    )
    return hubs.write(enriched, into)
