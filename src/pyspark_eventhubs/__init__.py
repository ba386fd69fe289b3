"""How Spark finds the format `eventhubs`: it looks for `DefaultSource` in modules `pyspark_*`.

Spark imports this whenever it looks for any format, so it must be light and must not fail.
"""

from penstock.spark.sources.eventhubs import EventHubsDataSource as DefaultSource

__all__ = ["DefaultSource"]
