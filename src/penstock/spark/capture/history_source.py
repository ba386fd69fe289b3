"""Classes that PySpark requires for reading captured files: each task opens some of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from penstock.capture.hub_files import ListedFile
from penstock.spark.capture.history_rows import (
    SCHEMA,
    HistoryPlan,
    read_batches,
    read_captured_plan,
)

SOURCE = "penstock-captured"


class HistoryDataSource(DataSource):
    """`spark.read.format("penstock-captured").option("plan", file)`, used by `capture.read`."""

    @classmethod
    def name(cls) -> str:
        return SOURCE

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: Any) -> HistoryReader:
        return HistoryReader(read_captured_plan(self.options.get("plan")))


class CapturedFilesPartition(InputPartition):
    def __init__(self, files: Sequence[ListedFile]) -> None:
        super().__init__(list(files))
        self.files = list(files)


class HistoryReader(DataSourceReader):
    def __init__(self, plan: HistoryPlan) -> None:
        self._plan = plan

    def partitions(self) -> Sequence[InputPartition]:
        return [CapturedFilesPartition(files) for files in self._plan.shares()] or [
            CapturedFilesPartition([])
        ]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, CapturedFilesPartition)
        for file in partition.files:
            yield from read_batches(self._plan, file)
