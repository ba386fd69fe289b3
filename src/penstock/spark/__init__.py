"""Spark: the `eventhubs` source and sink, and sessions that are ready for them.

`spark.read.format("eventhubs")` needs no import: Spark finds the format by the module
`pyspark_eventhubs`, which is installed with this package. `session()` returns a SparkSession with
Java found and with suitable settings. PySpark is imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.spark.eventhubs.data_source import EventHubsDataSource
    from penstock.spark.java import java_home
    from penstock.spark.spark_session import session

_MODULES = {
    "EventHubsDataSource": "penstock.spark.eventhubs.data_source",
    "java_home": "penstock.spark.java",
    "session": "penstock.spark.spark_session",
}

__all__ = ["EventHubsDataSource", "java_home", "session"]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_MODULES[name]), name)
