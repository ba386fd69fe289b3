"""The format `eventhubs` where PySpark is too old for it: every use is refused with the reason."""

from __future__ import annotations

from collections.abc import Mapping

import pyspark
from pyspark.sql.datasource import DataSource


class UnsupportedDataSource(DataSource):
    """Has a name, which Spark asks of every source, and nothing else."""

    @classmethod
    def name(cls) -> str:
        return "eventhubs"

    def __init__(self, options: Mapping[str, str]) -> None:
        raise ImportError(
            "The format eventhubs needs PySpark 4.2 or newer; this is PySpark "
            f"{pyspark.__version__}."
        )
