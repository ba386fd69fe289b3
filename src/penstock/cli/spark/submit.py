"""`penstock spark submit|shell`: Spark's own programs with Java and the service's connection.

Penstock's options come first; the first other argument, or `--`, begins those of Spark.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.command_tree import CONTEXT_SETTINGS, CommandGroup, PenstockCommand
from penstock.cli.events_options import EventsEndpoint, with_events
from penstock.cli.options import argument
from penstock.cli.output import print_message
from penstock.model.errors import PenstockError
from penstock.model.extras import require_extra

app = CommandGroup("Spark's own programs, connected to the service.")

_PASS_THROUGH = {
    **CONTEXT_SETTINGS,
    "ignore_unknown_options": True,
    "allow_interspersed_args": False,
}
Words = Annotated[list[str] | None, argument("[ARGS]...", "Arguments of Spark's program")]


@app.command(cls=PenstockCommand, context_settings=_PASS_THROUGH)
@with_events
def submit(wire: EventsEndpoint, words: Words = None) -> None:
    """Run spark-submit: `penstock spark submit --master local[4] job.py`.

    The format `eventhubs` is installed, Java is found, and PENSTOCK_CONNECTION_STRING is set for
    the driver: in the job, `.option("eventHubName", "orders")` is enough.

    Examples:
        penstock spark submit --master local[4] job.py
    """
    if not words:
        raise typer.BadParameter("Name the job to run: penstock spark submit job.py")
    _execute("spark-submit", words, wire)


@app.command(cls=PenstockCommand, context_settings=_PASS_THROUGH)
@with_events
def shell(wire: EventsEndpoint, words: Words = None) -> None:
    """Start PySpark's shell: `spark` is a session that reads the service's hubs.

    `spark.read.format("eventhubs").option("eventHubName", "orders").load().show()`

    Examples:
        penstock spark shell
    """
    print_message(
        'spark.read.format("eventhubs").option("eventHubName", "NAME").load() reads a hub.'
    )
    _execute("pyspark", words or [], wire)


def _execute(program: str, words: list[str], wire: EventsEndpoint) -> None:
    """Replace this process by Spark's program, so that signals and exit code are the program's."""
    require_extra("spark")
    import pyspark

    path = Path(pyspark.__file__).parent / "bin" / program
    from penstock.spark.spark_session import prepare_environment

    try:
        prepare_environment(_find_master(words))
    except RuntimeError as error:
        raise PenstockError(str(error)) from error
    os.environ["PENSTOCK_CONNECTION_STRING"] = wire.connection_string
    if wire.resolved_ca_file is not None:
        os.environ["PENSTOCK_CA_FILE"] = wire.resolved_ca_file
    if wire.data is not None:
        os.environ["PENSTOCK_DATA"] = str(wire.data.absolute())
    os.environ.setdefault("SPARK_HOME", str(path.parent.parent))
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(path, [str(path), *words])  # noqa: S606  # the user's own arguments, no shell


def _find_master(words: list[str]) -> str | None:
    for number, word in enumerate(words):
        if word == "--master" and number + 1 < len(words):
            return words[number + 1]
        if word.startswith("--master="):
            return word.partition("=")[2]
    return None
