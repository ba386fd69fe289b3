"""Hub to hub: each reading goes on with what can be said of it, its key and properties kept.

    penstock pipeline run examples/pipelines/enrich.py --set into=enriched --checkpoint DIR

No state and no shuffle: what is read in a partition is written at once, in its order.
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
