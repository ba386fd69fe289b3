"""A SparkSession that is ready: Java found, this Python for its workers, quiet, only for us."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from penstock.model.errors import ArgumentError
from penstock.spark.default_write_mode import complete_writers, complete_writers_over_connect
from penstock.spark.eventhubs.options import REDACTED_VARIABLE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A user's own settings win. Local masters only: 200 shuffle partitions are a cluster's default,
# and on one machine each micro-batch would start 200 tasks; a fixed number, since a checkpoint
# remembers it.
_EVERYWHERE = {
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "WARN",
    # Spark hides no option named sasKey by itself. The second is for a session that runs already.
    "spark.redaction.regex": "(?i)secret|password|token|access[.]?key|sas.?key|connection.?string",
    "spark.sql.redaction.options.regex": "(?i)url|sas.?key|connection.?string",
}
_LOCAL = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "8",
}


def session(
    *,
    app_name: str = "penstock",
    master: str | None = None,
    remote: str | None = None,
    **conf: Any,
) -> SparkSession:
    """The running session, or a new one. `conf` are Spark's own settings:
    `session(**{"spark.sql.shuffle.partitions": 4})`. `master` is `local[*]` unless it is given
    here, in `conf`, by spark-submit or by Spark's own configuration; `remote` is a Spark Connect
    server's address, which needs no Java here."""
    for name in conf:
        if not name.startswith("spark."):
            raise ArgumentError(
                f"session() got the setting {name!r}: Spark's settings begin with 'spark.'; "
                "beside them there are app_name, master and remote."
            )
    settings = {name: _conf_text(value) for name, value in conf.items()}
    if remote is None or remote.startswith("local"):
        prepare_environment(remote or master or settings.get("spark.master"))
    from pyspark.sql import SparkSession

    builder: SparkSession.Builder = SparkSession.builder
    builder = builder.appName(app_name)
    if remote is not None:
        builder = builder.remote(remote)
    else:
        chosen = master or settings.get("spark.master")
        if chosen is None and not _is_submitted():
            chosen = "local[*]"
        if chosen is not None:
            builder = builder.master(chosen)
        is_local = chosen is not None and chosen.startswith("local")
        defaults = _EVERYWHERE | (_LOCAL if is_local else {})
        settings = {k: v for k, v in defaults.items() if not _is_configured(k)} | settings
    for name, value in settings.items():
        builder = builder.config(name, value)
    made = builder.getOrCreate()
    if remote is None:
        complete_writers()
    else:
        complete_writers_over_connect()
    return made


def prepare_environment(master: str | None = None, python: str | None = None) -> None:
    """What the JVM and the Python workers that this process starts will need: JAVA_HOME, and this
    Python, which has Penstock. A cluster's workers have Pythons of their own: `python`, where a
    setting (spark.pyspark.python) names it."""
    from penstock.spark.java import ensure_java

    ensure_java()
    os.environ.setdefault(REDACTED_VARIABLE, "1")
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if python is not None:
        # Sources that are registered in a session run by this variable and not by the setting.
        os.environ.setdefault("PYSPARK_PYTHON", python)
    if master is None or master.startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        # Spark's UI would else listen on every address of the machine.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


def _conf_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _is_submitted() -> bool:
    """Whether somebody else says which master it is: spark-submit, a notebook, spark-defaults."""
    return (
        "PYSPARK_GATEWAY_PORT" in os.environ
        or "--master" in os.environ.get("PYSPARK_SUBMIT_ARGS", "")
        or "SPARK_CONF_DIR" in os.environ
    )


def _is_configured(name: str) -> bool:
    """PYSPARK_SUBMIT_ARGS is how spark-submit and notebooks hand settings to a session."""
    return f"{name}=" in os.environ.get("PYSPARK_SUBMIT_ARGS", "")
