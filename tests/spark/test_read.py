"""Batch reads: what was sent, in nine columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from tests.spark.conftest import MakeHub, TestHub


def read(spark: SparkSession, hub: TestHub, **options: Any) -> DataFrame:
    return spark.read.format("eventhubs").options(**hub.options, **options).load()


def bodies(frame: DataFrame) -> list[bytes]:
    return [bytes(row.body) for row in frame.select("body").collect()]


@pytest.mark.parametrize("partitions", [4, 32])
def test_a_batch_read_equals_what_was_sent(
    spark: SparkSession, make_hub: MakeHub, partitions: int
) -> None:
    hub = make_hub(partitions)
    sent = hub.spread(partitions * 50)
    rows = read(spark, hub).collect()
    assert sorted(bytes(row.body) for row in rows) == sorted(sent)
    by_partition: dict[str, list[Any]] = {}
    for row in rows:
        by_partition.setdefault(row.partition, []).append(row)
    assert {key: [bytes(r.body) for r in each] for key, each in by_partition.items()} == hub.read()
    for each in by_partition.values():
        assert [row.sequenceNumber for row in each] == list(range(len(each)))
