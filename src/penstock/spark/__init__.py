"""Spark: the `eventhubs` source and sink, and sessions that are ready for them.

`spark.read.format("eventhubs")` needs no import: Spark finds the format by the module
`pyspark_eventhubs`, which is installed with this package. `session()` returns a SparkSession with
Java found and with suitable settings. PySpark is imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock import lazy_names
from penstock.model.extras import require_extra

if TYPE_CHECKING:
    from penstock.spark.eventhubs.data_source import EventHubsDataSource as EventHubsDataSource
    from penstock.spark.java import java_home as java_home
    from penstock.spark.spark_session import session as session

_NAMES = {
    "spark.eventhubs.data_source": "EventHubsDataSource",
    "spark.java": "java_home",
    "spark.spark_session": "session",
}
_get_name, __dir__, __all__ = lazy_names(__name__, _NAMES)


def __getattr__(name: str) -> object:
    if name == "EventHubsDataSource":
        require_extra("spark")
    return _get_name(name)
