"""Captured files as rows: a batch source that opens each file in a task."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from penstock.capture.hub_files import Listed
from penstock.spark.capture.history_rows import SCHEMA, CapturedPlan, batches_of, read_captured_plan

SOURCE = "penstock-captured"


class CapturedSource(DataSource):
    """`spark.read.format("penstock-captured").option("plan", file)`: made by `capture.read`."""

    @classmethod
    def name(cls) -> str:
        return SOURCE

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: Any) -> CapturedReader:
        return CapturedReader(read_captured_plan(self.options.get("plan")))


class Files(InputPartition):
    def __init__(self, files: Sequence[Listed]) -> None:
        super().__init__(list(files))
        self.files = list(files)


class CapturedReader(DataSourceReader):
    def __init__(self, plan: CapturedPlan) -> None:
        self._plan = plan

    def partitions(self) -> Sequence[InputPartition]:
        return [Files(files) for files in self._plan.shares()] or [Files([])]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, Files)
        for file in partition.files:
            yield from batches_of(self._plan, file)
