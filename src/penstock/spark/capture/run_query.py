"""One hub's capture as a Structured Streaming query."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from penstock.capture.window_file import remove_stale_spools
from penstock.spark.capture.plan import OPTION, SINK, SOURCE, CapturePlan, write_plan
from penstock.spark.capture.query_checkpoint import set_aside_if_unusable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

TRIGGER = "2 seconds"  # windows are a minute at least: who looks more often only spends more


def start_query(
    spark: SparkSession, plan: CapturePlan, *, trigger: str = TRIGGER
) -> StreamingQuery:
    """From where its checkpoint says, or from where Capture was switched on. One query at a time
    may have a plan's state directory."""
    from penstock.spark.capture.source import CaptureSink, CaptureSource

    file = str(write_plan(plan))
    remove_stale_spools(plan.spool)  # what a job that was killed left
    set_aside_if_unusable(plan.checkpoint, plan.ledger)
    spark.dataSource.register(CaptureSource)
    spark.dataSource.register(CaptureSink)
    blocks = spark.readStream.format(SOURCE).option(OPTION, file).load()
    return (
        blocks.writeStream.format(SINK)
        .option(OPTION, file)
        .option("checkpointLocation", str(plan.checkpoint))
        # Several runs of one hub go on at once: events from before, and what comes.
        .queryName(f"capture {plan.namespace}/{plan.hub} ({Path(plan.state).name})")
        .trigger(processingTime=trigger)
        .start()
    )
