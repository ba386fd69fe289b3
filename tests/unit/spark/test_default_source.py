"""What Spark finds when it looks for formats: an older PySpark keeps its other Python sources."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator

import pytest

OURS = ("pyspark_eventhubs", "penstock.spark.eventhubs.data_source")


@pytest.fixture
def older_pyspark(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """PySpark 4.0 as far as this matters: it has data sources, but not all classes of 4.2."""
    import pyspark
    import pyspark.sql.datasource as datasource

    monkeypatch.delattr(datasource, "DataSourceStreamArrowWriter")
    monkeypatch.setattr(pyspark, "__version__", "4.0.1")
    for name in OURS:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield
    for name in OURS:
        sys.modules.pop(name, None)


def test_present_pyspark_gets_the_source() -> None:
    from penstock.spark.eventhubs.data_source import EventHubsDataSource

    assert importlib.import_module("pyspark_eventhubs").DefaultSource is EventHubsDataSource


def test_older_pyspark_gets_an_error_from_this_source_alone(older_pyspark: None) -> None:
    source = importlib.import_module("pyspark_eventhubs").DefaultSource
    assert source.name() == "eventhubs"  # Spark asks every source for its name
    with pytest.raises(ImportError, match=r"needs PySpark 4\.2 or newer; this is PySpark 4\.0\.1"):
        source({})
