"""Starts and stops the JVM of a Spark session, in a session of its own and with its log in a file.

Ctrl-C signals every process in the foreground of the terminal, also Python workers in the middle of
a batch. The JVM and its workers run in another session (setsid), so that this process can stop them
after the batch. The JVM ends with this process, however that ends: its stdin is a pipe from here.

This module reads and sets attributes of PySpark that are not public; no public API starts the JVM
in another session, or starts another JVM after one has died. pyproject.toml bounds the version of
PySpark, and tests/unit/spark/test_pyspark_internals.py names the attributes.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from penstock.model.errors import PenstockError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOG_LINES = 20
_END_S = 30.0  # for a JVM whose stdin is closed
# Attributes of PySpark's classes that refer to the JVM; SparkContext uses the gateway that is set.
CONTEXT_ATTRIBUTES = ("_gateway", "_jvm", "_active_spark_context")
SESSION_ATTRIBUTES = ("_instantiatedSession", "_activeSession")


@dataclass(kw_only=True)
class JvmLauncher:
    """Starts one session at a time, and another one after its JVM has ended. As a context manager
    it stops the last one. Spark, its JVM and its workers log to the file `log`; None: to stderr."""

    app_name: str
    master: str | None
    remote: str | None = None
    conf: Mapping[str, str]
    log: Path | None
    _spark: SparkSession | None = field(default=None, init=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._spark is not None:
            _stop(self._spark)
            self._spark = None

    def start(self) -> SparkSession:
        """Start a session. Raises PenstockError with the last lines of the log."""
        from penstock.spark.spark_session import session

        if self._spark is not None:
            _forget(self._spark)
            self._spark = None
        logging.getLogger().addFilter(_is_not_from_py4j)
        if self.remote is None:
            _launch(self.master, self.conf, self.log)
        try:
            self._spark = session(
                app_name=self.app_name, master=self.master, remote=self.remote, **self.conf
            )
        except Exception as error:
            text = f"Spark did not start: {_first_line(error)}{_read_tail(self.log)}"
            raise PenstockError(text) from error
        return self._spark


def _is_not_from_py4j(record: logging.LogRecord) -> bool:
    """py4j logs the traces of a lost JVM to the root logger; our callers report one sentence."""
    return record.msg != "Exception while sending command."


def _launch(master: str | None, conf: Mapping[str, str], log: Path | None) -> None:
    """Start the JVM, unless this process has one already."""
    from penstock.spark.spark_session import prepare_environment

    prepare_environment(master, conf.get("spark.pyspark.python"))
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    context: Any = SparkContext
    if context._gateway is not None:  # noqa: SLF001
        return
    settings = SparkConf(loadDefaults=False)
    for name, value in conf.items():
        settings.set(name, value)
    launch: Any = launch_gateway
    try:
        with nullcontext() if log is None else log.open("ab") as stderr:
            gateway = launch(settings, {"start_new_session": True, "stderr": stderr})
    except Exception as error:
        raise PenstockError(f"Java did not start: {_first_line(error)}{_read_tail(log)}") from error
    context._gateway, context._jvm = gateway, gateway.jvm  # noqa: SLF001


def _stop(spark: SparkSession) -> None:
    """Stop the session, also if its JVM has ended already."""
    try:
        spark.stop()
    except Exception as error:
        if not is_gone(error):
            raise


def _forget(spark: SparkSession) -> None:
    """Remove PySpark's references to a JVM that ended: PySpark would try to use it again."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # that it could not be stopped cleanly
        _stop(spark)
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    accumulators = getattr(spark.sparkContext, "_accumulatorServer", None)
    if accumulators is not None:
        accumulators.shutdown()
    gateway: Any = getattr(SparkContext, "_gateway", None)
    if gateway is not None:
        with suppress(Exception):
            gateway.shutdown()
        process = getattr(gateway, "proc", None)
        if process is not None:
            process.stdin.close()
            process.wait(_END_S)
    for name in CONTEXT_ATTRIBUTES:
        setattr(SparkContext, name, None)
    for name in SESSION_ATTRIBUTES:
        setattr(SparkSession, name, None)


def is_gone(error: BaseException) -> bool:
    """Whether a call failed because the JVM has ended."""
    return is_unreachable(error) or type(error).__name__ == "Py4JError"


def is_unreachable(error: BaseException) -> bool:
    """Whether py4j could not connect to the JVM."""
    return isinstance(error, ConnectionError) or type(error).__name__ == "Py4JNetworkError"


def _first_line(error: BaseException) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _read_tail(log: Path | None) -> str:
    if log is None or not log.exists():
        return ""
    lines = log.read_text(errors="replace").splitlines()[-_LOG_LINES:]
    text = "\n  ".join(line for line in lines if line.strip())
    return f"\n{log} says:\n  {text}" if text else ""
