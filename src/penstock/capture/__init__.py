"""Capture policy and state: windows, file names, Avro, destinations, state of the job.

`penstock.capture.read(spark, ...)` returns captured history as a DataFrame. It loads
`penstock.spark` when it is called; everything else here works without Spark.
"""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["bridge", "read"]


def read(spark: Any, hub: str, **options: Any) -> Any:
    """Captured events of a hub as a DataFrame, see `penstock.spark.capture.history.read`."""
    # A higher layer, loaded late.
    return importlib.import_module("penstock.spark.capture.history").read(spark, hub, **options)


def bridge(spark: Any, hub: str, **options: Any) -> Any:
    """Captured history, and a stream that continues it from the live hub: each event is in exactly
    one of them. See `penstock.spark.capture.history.bridge`."""
    return importlib.import_module("penstock.spark.capture.history").bridge(spark, hub, **options)
