"""Spark's JVM as a pipeline wants it: apart from the terminal, and its log in a file.

Ctrl-C reaches every process in the terminal's foreground, Python workers in the midst of a batch
among them. In a session of its own the JVM hears of it from us, when the batch is done. It ends
when we end, however that happens: its stdin is a pipe that we hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.model.errors import PenstockError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LINES_SHOWN = 20
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
    from penstock.spark.sessions import session

    if remote is None:
        _launch(master, conf, log)
    try:
        spark = session(app_name=app_name, master=master, remote=remote, **conf)
    except Exception as error:
        raise PenstockError(f"Spark did not start: {_first_line(error)}{_tail(log)}") from error
    try:
        yield spark
    finally:
        _stop(spark)


def _launch(master: str | None, conf: Mapping[str, str], log: Path | None) -> None:
    """The JVM, unless this process has one already."""
    from penstock.spark.sessions import prepare_environment

    prepare_environment(master)
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


def is_gone(error: BaseException) -> bool:
    """The JVM ended under us: py4j finds nobody at the other end."""
    return isinstance(error, ConnectionError) or type(error).__name__ in (
        "Py4JNetworkError",
        "Py4JError",
    )


def _first_line(error: BaseException) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _tail(log: Path | None) -> str:
    if log is None or not log.exists():
        return ""
    lines = log.read_text(errors="replace").splitlines()[-_LINES_SHOWN:]
    said = "\n  ".join(line for line in lines if line.strip())
    return f"\n{log} says:\n  {said}" if said else ""
