"""What Spark's own writers lack for this format, in sessions that `penstock.spark.session()` made.

`df.write.format("eventhubs").save()` without a mode: Spark's default is "errorifexists", which it
refuses for every data source written in Python. For this one format a writer that names no mode
appends, as the old connector's documents have it.

Writers in threads: Spark looks for formats written in Python in the thread's active session, and a
new thread has none. Each is given the session of its own DataFrame.
"""

from __future__ import annotations

import functools
from typing import Any

_FORMAT = "eventhubs"
_MARK = "_penstock_appends"


def complete_writers() -> None:
    """Harmless when done before."""
    from pyspark.sql.readwriter import DataFrameWriter
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    _append_by_default(DataFrameWriter)
    _activate_first(DataStreamWriter, "start")


def complete_writers_over_connect() -> None:
    from pyspark.sql.connect.readwriter import DataFrameWriter

    _append_by_default(DataFrameWriter)


def activate(spark: Any) -> None:
    """Unless this thread has a session already."""
    jvm, session = getattr(spark, "_jvm", None), getattr(spark, "_jsparkSession", None)
    if jvm is None or session is None:
        return  # a server has it (Spark Connect)
    if jvm.SparkSession.getActiveSession().isEmpty():
        jvm.SparkSession.setActiveSession(session)


def _activate_first(writer: Any, name: str) -> None:
    if getattr(writer, _MARK, False):
        return
    setattr(writer, _MARK, True)
    plain = getattr(writer, name)

    @functools.wraps(plain)
    def act(self: Any, *given: Any, **named: Any) -> Any:
        activate(self._df.sparkSession)
        return plain(self, *given, **named)

    setattr(writer, name, act)


def _append_by_default(writer: Any) -> None:
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
        if str(named).lower() == _FORMAT:
            activate(getattr(self, "_spark", None))
            mode = mode if chosen is not None else "append"
        plain_save(self, path, format, mode, partitionBy, **options)

    writer.format, writer.mode, writer.save = format_, mode, save
