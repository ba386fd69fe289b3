"""Rows of Arrow batches as events: bodies, properties, partition keys, partition ids."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.model.errors import ArgumentError
from penstock.spark.eventhubs.options import WriteOptions

_KEY_CHARACTERS_MAX = 128


class SinkBodies:
    """A column of bodies in Arrow's layout: `data`, and where each row ends."""

    def __init__(self, column: Any) -> None:
        _, ends, data = column.buffers()
        self.count = len(column)
        self.data = memoryview(data if data is not None else b"").cast("B")
        first = 4 * column.offset  # a slice has the offsets of the whole column
        self.ends = memoryview(ends).cast("B")[first : first + 4 * (self.count + 1)]
        self._ends = self.ends.cast("i")

    def size(self, row: int, rows: int = 1) -> int:
        return self._ends[row + rows] - self._ends[row]

    def rows_within(self, row: int, size: int) -> int:
        """How many rows from `row` on have at most `size` bytes together."""
        ends = self._ends
        return bisect_right(ends, ends[row] + size, row + 1, self.count + 1) - row - 1


class SinkColumns:
    """The rows of one Arrow batch as events. Iterating yields body, properties, partition key and
    partition id; raises ArgumentError for a row that cannot be an event."""

    def __init__(self, rows: pa.RecordBatch, options: WriteOptions) -> None:
        self._rows = rows
        self._options = options
        self._columns = {
            name.lower(): rows.column(index) for index, name in enumerate(rows.schema.names)
        }

    def bodies_only(self) -> SinkBodies | None:
        """The bodies if no row has a key, a partition or properties of its own; None if one has, or
        if there are no rows."""
        names = ("partitionkey", "partitionid", "properties")
        others = [self._columns[name] for name in names if name in self._columns]
        if not self._rows.num_rows or any(column.null_count < len(column) for column in others):
            return None
        return SinkBodies(self._body())

    def __iter__(self) -> Iterator[tuple[bytes, dict[str, object] | None, str | None, str | None]]:
        body = self._body()
        keys = self._texts("partitionkey", self._options.partition_key)
        ids = self._texts("partitionid", self._options.partition_id)
        return zip(body.to_pylist(), self._properties(), keys, ids, strict=False)

    def _body(self) -> Any:
        body = self._columns["body"]
        if not pa.types.is_binary(body.type):
            body = body.cast(pa.binary())
        if body.null_count:
            raise ArgumentError("A row's body is null: every event needs one (it may be empty).")
        return body

    def _texts(self, name: str, default: str | None) -> Iterator[str | None]:
        column = self._columns.get(name)
        if column is None:
            return itertools.repeat(default)
        if not pa.types.is_string(column.type):
            column = column.cast(pa.string())
        if default is not None:
            column = column.fill_null(default)
        if name == "partitionkey":
            self._check_keys(column)
        return iter(column.to_pylist())

    def _check_keys(self, keys: Any) -> None:
        longest = pc.max(pc.utf8_length(keys)).as_py() or 0
        if longest > _KEY_CHARACTERS_MAX:
            raise ArgumentError(
                f"A partitionKey has {longest} characters: at most {_KEY_CHARACTERS_MAX} are "
                "allowed."
            )
        ids = self._columns.get("partitionid")
        if ids is not None and pc.any(pc.and_(pc.is_valid(keys), pc.is_valid(ids))).as_py():
            raise ArgumentError(
                "A row has a partitionKey and a partitionId: only one of them may be set."
            )

    def _properties(self) -> Iterator[dict[str, object] | None]:
        column = self._columns.get("properties")
        if column is None:
            return itertools.repeat(None)
        return (dict(pairs) if pairs else None for pairs in column.to_pylist())
