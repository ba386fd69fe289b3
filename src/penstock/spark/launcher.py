"""Spark's JVM as a pipeline wants it: apart from the terminal, and its log in a file.

Ctrl-C reaches every process in the terminal's foreground, Python workers in the midst of a batch
among them. In a session of its own the JVM hears of it from us, when the batch is done. It ends
when we end, however that happens: its stdin is a pipe that we hold.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from penstock.model.errors import PenstockError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LINES_SHOWN = 20
_END_S = 30.0  # for a JVM whose stdin is closed
# Where PySpark keeps the JVM of this process, and looks before it starts one: there is no other way
# to say how it is started.
_GATEWAY, _JVM = "_gateway", "_jvm"


@contextmanager
def spark_session(
    *,
    app_name: str,
    master: str | None,
    remote: str | None,
    conf: Mapping[str, str],
    log: Path | None,
) -> Iterator[SparkSession]:
    """A session for as long as the block lasts. What Spark, its JVM and its workers say goes into
    `log` and not onto the terminal; None: onto stderr, as usual."""
    launcher = JvmLauncher(app_name=app_name, master=master, remote=remote, conf=conf, log=log)
    with launcher:
        yield launcher.start()


class JvmLauncher:
    """One session at a time: `start`, and again when its JVM has ended. Closed by `with`."""

    def __init__(
        self,
        *,
        app_name: str,
        master: str | None,
        remote: str | None,
        conf: Mapping[str, str],
        log: Path | None,
    ) -> None:
        self._app_name = app_name
        self._master = master
        self._remote = remote
        self._conf = dict(conf)
        self._log = log
        self._spark: SparkSession | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        spark, self._spark = self._spark, None
        if spark is not None:
            _stop(spark)

    def start(self) -> SparkSession:
        """Raises PenstockError with the last lines of the log."""
        from penstock.spark.spark_session import session

        if self._spark is not None:
            _forget(self._spark)
            self._spark = None
        logging.getLogger().addFilter(_is_not_of_py4j)
        if self._remote is None:
            _launch(self._master, self._conf, self._log)
        try:
            self._spark = session(
                app_name=self._app_name, master=self._master, remote=self._remote, **self._conf
            )
        except Exception as error:
            said = f"{_first_line(error)}{_tail(self._log)}"
            raise PenstockError(f"Spark did not start: {said}") from error
        return self._spark


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    """py4j puts the traces of a lost JVM straight into the root logger; we say it in a sentence."""
    return record.msg != "Exception while sending command."


def _launch(master: str | None, conf: Mapping[str, str], log: Path | None) -> None:
    """The JVM, unless this process has one already."""
    from penstock.spark.spark_session import prepare_environment

    prepare_environment(master, conf.get("spark.pyspark.python"))
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    context: Any = SparkContext
    if getattr(context, _GATEWAY) is not None:
        return
    settings = SparkConf(loadDefaults=False)
    for name, value in conf.items():
        settings.set(name, value)
    launch: Any = launch_gateway
    apart = {"start_new_session": True}
    try:
        if log is None:
            gateway = launch(settings, apart)
        else:
            with log.open("ab") as file:
                gateway = launch(settings, {**apart, "stderr": file})
    except Exception as error:
        raise PenstockError(f"Java did not start: {_first_line(error)}{_tail(log)}") from error
    setattr(context, _GATEWAY, gateway)
    setattr(context, _JVM, gateway.jvm)


def _stop(spark: SparkSession) -> None:
    """Also when its JVM is gone already."""
    try:
        spark.stop()
    except Exception as error:
        if not is_gone(error):
            raise


def _forget(spark: SparkSession) -> None:
    """What PySpark keeps of a JVM that ended: it would go on looking for it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # that it could not be stopped cleanly
        _stop(spark)
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    context: Any = SparkContext
    sessions: Any = SparkSession
    kept = getattr(spark, "_sc", None)
    accumulators = getattr(kept, "_accumulatorServer", None)
    if accumulators is not None:
        accumulators.shutdown()
    gateway = getattr(context, _GATEWAY)
    if gateway is not None:
        with suppress(Exception):
            gateway.shutdown()
        process = getattr(gateway, "proc", None)
        if process is not None:
            process.stdin.close()
            process.wait(_END_S)
    for name in (_GATEWAY, _JVM, "_active_spark_context"):
        setattr(context, name, None)
    for name in ("_instantiatedSession", "_activeSession"):
        setattr(sessions, name, None)


def is_gone(error: BaseException) -> bool:
    """The JVM ended under us, as far as a call of ours can tell."""
    return is_unreachable(error) or type(error).__name__ == "Py4JError"


def is_unreachable(error: BaseException) -> bool:
    """py4j finds nobody at the other end."""
    return isinstance(error, ConnectionError) or type(error).__name__ == "Py4JNetworkError"


def _first_line(error: BaseException) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _tail(log: Path | None) -> str:
    if log is None or not log.exists():
        return ""
    lines = log.read_text(errors="replace").splitlines()[-_LINES_SHOWN:]
    said = "\n  ".join(line for line in lines if line.strip())
    return f"\n{log} says:\n  {said}" if said else ""
