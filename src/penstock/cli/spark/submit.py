"""`penstock spark submit|shell`: Spark's own programs, with Java and the service configured.

The options of Penstock come first; what follows them, or `--`, belongs to Spark.
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

app = CommandGroup("Spark's own programs, configured for the service.")

_PASS_ON = {**CONTEXT_SETTINGS, "ignore_unknown_options": True, "allow_interspersed_args": False}
Arguments = Annotated[
    list[str] | None,
    typer.Argument(metavar="[ARGS]...", help="Arguments of Spark's program, unchanged"),
]


@app.command(cls=PenstockCommand, context_settings=_PASS_ON)
@with_events
def submit(endpoint: EventsEndpoint, arguments: Arguments = None) -> None:
    """Run spark-submit.

    The format `eventhubs` is available, Java is found, and PENSTOCK_CONNECTION_STRING is set for
    the driver: in the job `.option("eventHubName", "orders")` is enough.

    Examples:
        penstock spark submit --master local[4] job.py
    """
    if not arguments:
        raise typer.BadParameter("There is nothing to run: penstock spark submit job.py")
    _replace_process("spark-submit", arguments, endpoint)


@app.command(cls=PenstockCommand, context_settings=_PASS_ON)
@with_events
def shell(endpoint: EventsEndpoint, arguments: Arguments = None) -> None:
    """Start the PySpark shell with a session that reads the service's event hubs.

    In the shell: `spark.read.format("eventhubs").option("eventHubName", "orders").load().show()`

    Examples:
        penstock spark shell
    """
    print_message(
        'spark.read.format("eventhubs").option("eventHubName", "NAME").load() reads a hub.'
    )
    _replace_process("pyspark", arguments or [], endpoint)


def _replace_process(program: str, arguments: list[str], endpoint: EventsEndpoint) -> None:
    """Become Spark's program: its signals and its exit code are those of the command."""
    package = find_spec("pyspark")
    if package is None or package.origin is None:
        raise ConfigurationError("pyspark is not installed: pip install 'penstock[spark]'.")
    path = Path(package.origin).parent / "bin" / program
    if not path.is_file():
        raise NotFound(f"There is no {path}: the installation of pyspark is not complete.")
    from penstock.spark.spark_session import prepare_environment

    try:
        prepare_environment(_find_master(arguments))
    except RuntimeError as error:
        raise PenstockError(str(error)) from error
    os.environ["PENSTOCK_CONNECTION_STRING"] = endpoint.connection_string
    if endpoint.ca_file is not None:
        os.environ["PENSTOCK_CA_FILE"] = endpoint.ca_file
    if endpoint.data is not None:
        os.environ["PENSTOCK_DATA"] = str(endpoint.data.absolute())
    os.environ.setdefault("SPARK_HOME", str(path.parent.parent))
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(path, [str(path), *arguments])  # noqa: S606  # the user's own arguments, without a shell


def _find_master(arguments: list[str]) -> str | None:
    for number, argument in enumerate(arguments):
        if argument == "--master" and number + 1 < len(arguments):
            return arguments[number + 1]
        if argument.startswith("--master="):
            return argument.partition("=")[2]
    return None
