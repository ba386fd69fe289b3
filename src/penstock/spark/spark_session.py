"""`session()`: a SparkSession with Java found, workers that run this Python, and quiet logs."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from penstock.model.errors import ArgumentError
from penstock.model.extras import require_extra
from penstock.spark.eventhubs.options import REDACTED_VARIABLE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Defaults; the user's own settings win.
_EVERYWHERE = {
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "WARN",
    # By default Spark hides no option named sasKey. The second one is for a running session.
    "spark.redaction.regex": "(?i)secret|password|token|access[.]?key|sas.?key|connection.?string",
    "spark.sql.redaction.options.regex": "(?i)url|sas.?key|connection.?string",
}
_LOCAL = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # Spark's default of 200 would start 200 tasks per micro-batch on one machine. A fixed number,
    # since a query checkpoint stores it.
    "spark.sql.shuffle.partitions": "8",
}


def session(
    *, app_name: str = "penstock", master: str | None = None, remote: str | None = None, **conf: Any
) -> SparkSession:
    """Return the running session, or a new one. `conf` are Spark's own settings:
    `session(**{"spark.sql.shuffle.partitions": 4})`. `master` is `local[*]` unless it is given
    here, in `conf`, by spark-submit or by Spark's own configuration. `remote` is the address of a
    Spark Connect server, which needs no Java here. Raises ArgumentError, MissingPackage."""
    require_extra("spark" if remote is None else "connect")
    for name in conf:
        if not name.startswith("spark."):
            raise ArgumentError(
                f"session() got the setting {name!r}: Spark's settings begin with 'spark.'; other "
                "arguments are app_name, master and remote."
            )
    settings = option_texts(conf)
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
    return builder.getOrCreate()


def prepare_environment(master: str | None = None, python: str | None = None) -> None:
    """Set what the JVM and the Python workers of this process need: JAVA_HOME, and this Python,
    which has Penstock. The workers of a cluster have their own: `python`, if the setting
    spark.pyspark.python names it."""
    from penstock.spark.java import ensure_java

    ensure_java()
    os.environ.setdefault(REDACTED_VARIABLE, "1")
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if python is not None:
        # Data sources in Python use this variable, not the setting.
        os.environ.setdefault("PYSPARK_PYTHON", python)
    if master is None or master.startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        # Without this, Spark's UI listens on every address of the machine.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


def option_texts(options: Mapping[str, object]) -> dict[str, str]:
    """As Spark writes them; without those that are None."""
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in options.items()
        if value is not None
    }


def _is_submitted() -> bool:
    """Whether spark-submit, a notebook or spark-defaults decides on the master."""
    return (
        "PYSPARK_GATEWAY_PORT" in os.environ
        or "--master" in os.environ.get("PYSPARK_SUBMIT_ARGS", "")
        or "SPARK_CONF_DIR" in os.environ
    )


def _is_configured(name: str) -> bool:
    """spark-submit and notebooks pass settings in PYSPARK_SUBMIT_ARGS."""
    return f"{name}=" in os.environ.get("PYSPARK_SUBMIT_ARGS", "")
