"""Capture: what closes a window, what its file is called and holds, where it goes.

`penstock.capture.read(spark, ...)` gives captured history as a DataFrame. It loads
`penstock.spark` when it is called: everything else here works without Spark.
"""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["bridge", "read"]


def read(spark: Any, hub: str, **options: Any) -> Any:
    """Captured events of a hub as a DataFrame, see `penstock.spark.capture.history.read`."""
    # Upstairs, and only now: the caller hands in a session, so Spark is there.
    module = importlib.import_module("penstock.spark.capture.history")
    return module.read(spark, hub, **options)


def bridge(spark: Any, hub: str, **options: Any) -> tuple[Any, Any]:
    """Captured history, and a stream that goes on behind it in the live hub: no event is in both,
    none in neither. See `penstock.spark.capture.history.bridge`."""
    module = importlib.import_module("penstock.spark.capture.history")
    history, stream = module.bridge(spark, hub, **options)
    return history, stream
