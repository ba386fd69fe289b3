"""How Spark finds the format `eventhubs`: it looks for `DefaultSource` in modules `pyspark_*`.

Spark imports this whenever it looks up any format. An ImportError here would make Spark skip every
Python data source, so an older PySpark gets a source that fails only when it is used.
"""

try:
    from penstock.spark.eventhubs.data_source import EventHubsDataSource as DefaultSource
except ImportError:
    from penstock.spark.eventhubs.unsupported import (  # type: ignore[assignment]
        UnsupportedDataSource as DefaultSource,
    )

__all__ = ["DefaultSource"]
