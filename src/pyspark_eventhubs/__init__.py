"""Spark finds the format `eventhubs` here: it looks for `DefaultSource` in modules `pyspark_*`.

Spark imports this module whenever it looks up any format. An ImportError here would make Spark skip
every Python data source, so an older PySpark gets a source that fails only when it is used.
"""

from collections.abc import Mapping

import pyspark
from pyspark.sql.datasource import DataSource

try:
    from penstock.spark.eventhubs.data_source import EventHubsDataSource as DefaultSource
except ImportError:

    class DefaultSource(DataSource):  # type: ignore[no-redef]
        """Has a name, for which Spark asks every source, and refuses every use."""

        @classmethod
        def name(cls) -> str:
            return "eventhubs"

        def __init__(self, options: Mapping[str, str]) -> None:
            raise ImportError(
                "The format eventhubs needs PySpark 4.2 or newer; this is PySpark "
                f"{pyspark.__version__}."
            )


__all__ = ["DefaultSource"]
