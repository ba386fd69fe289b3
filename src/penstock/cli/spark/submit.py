"""`penstock spark submit|shell`: Spark's own programs with Java found and the service wired.

Options of ours come first; whatever follows, or stands behind `--`, is Spark's.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.command_tree import CONTEXT_SETTINGS, CommandGroup, PenstockCommand
from penstock.cli.events_options import EventsEndpoint, with_events
from penstock.cli.output import print_message
from penstock.model.errors import ConfigurationError, NotFound, PenstockError

app = CommandGroup("Spark's own programs, with Java, source and service wired.")

_THEIRS = {**CONTEXT_SETTINGS, "ignore_unknown_options": True, "allow_interspersed_args": False}
Words = Annotated[
    list[str] | None, typer.Argument(metavar="[ARGS]...", help="For Spark's own program, as it is")
]


@app.command(cls=PenstockCommand, context_settings=_THEIRS)
@with_events
def submit(wire: EventsEndpoint, words: Words = None) -> None:
    """Run spark-submit: `penstock spark submit --master local[4] job.py`.

    The format `eventhubs` is there, Java is found, and PENSTOCK_CONNECTION_STRING is set for the
    driver: in the job, `.option("eventHubName", "orders")` is enough.
    """
    if not words:
        raise typer.BadParameter("Say what is to be run: penstock spark submit job.py")
    _become("spark-submit", words, wire)


@app.command(cls=PenstockCommand, context_settings=_THEIRS)
@with_events
def shell(wire: EventsEndpoint, words: Words = None) -> None:
    """Start PySpark's shell: `spark` is a session, and reads the service's hubs.

    `spark.read.format("eventhubs").option("eventHubName", "orders").load().show()`
    """
    print_message(
        'spark.read.format("eventhubs").option("eventHubName", "NAME").load() reads a hub.'
    )
    _become("pyspark", words or [], wire)


def _become(program: str, words: list[str], wire: EventsEndpoint) -> None:
    """This process is Spark's from here on: its signals and its exit code are the user's."""
    found = find_spec("pyspark")
    if found is None or found.origin is None:
        raise ConfigurationError("pyspark is not installed: pip install 'penstock[spark]'.")
    path = Path(found.origin).parent / "bin" / program
    if not path.is_file():
        raise NotFound(f"{path} is not there: pyspark is not installed whole.")
    from penstock.spark.spark_session import prepare_environment

    try:
        prepare_environment(_master(words))
    except RuntimeError as error:
        raise PenstockError(str(error)) from error
    os.environ["PENSTOCK_CONNECTION_STRING"] = wire.connection_string
    if wire.ca_file is not None:
        os.environ["PENSTOCK_CA_FILE"] = wire.ca_file
    if wire.data is not None:
        os.environ["PENSTOCK_DATA"] = str(wire.data.absolute())
    os.environ.setdefault("SPARK_HOME", str(path.parent.parent))
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(path, [str(path), *words])  # noqa: S606  # the user's own words, and no shell


def _master(words: list[str]) -> str | None:
    for number, word in enumerate(words):
        if word == "--master" and number + 1 < len(words):
            return words[number + 1]
        if word.startswith("--master="):
            return word.partition("=")[2]
    return None
