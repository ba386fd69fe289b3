"""`df.write.format("eventhubs").save()` without a mode, as the old connector's documents have it.

Spark's default mode is "errorifexists", which it refuses for every data source written in Python.
For this one format a writer that names no mode appends, as it always did. Only in sessions that
`penstock.spark.session()` made: elsewhere Spark's own words ask for `.mode("append")`.
"""

from __future__ import annotations

import functools
from typing import Any

_FORMAT = "eventhubs"
_MARK = "_penstock_appends"


def append_by_default() -> None:
    """Harmless when done before."""
    from pyspark.sql.readwriter import DataFrameWriter

    _change(DataFrameWriter)


def append_by_default_over_connect() -> None:
    from pyspark.sql.connect.readwriter import DataFrameWriter

    _change(DataFrameWriter)


def _change(writer: Any) -> None:
    if getattr(writer, _MARK, False):
        return
    setattr(writer, _MARK, True)
    plain_format, plain_mode, plain_save = writer.format, writer.mode, writer.save

    @functools.wraps(plain_format)
    def format_(self: Any, source: str) -> Any:
        self._penstock_format = source
        return plain_format(self, source)

    @functools.wraps(plain_mode)
    def mode(self: Any, saveMode: str | None) -> Any:
        self._penstock_mode = saveMode
        return plain_mode(self, saveMode)

    @functools.wraps(plain_save)
    def save(
        self: Any,
        path: str | None = None,
        format: str | None = None,
        mode: str | None = None,
        partitionBy: Any = None,
        **options: Any,
    ) -> None:
        named = format or getattr(self, "_penstock_format", None)
        chosen = mode or getattr(self, "_penstock_mode", None)
        if chosen is None and str(named).lower() == _FORMAT:
            mode = "append"
        plain_save(self, path, format, mode, partitionBy, **options)

    writer.format, writer.mode, writer.save = format_, mode, save
