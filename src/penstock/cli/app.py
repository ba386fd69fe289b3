"""The command tree, and how errors become exit codes."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from penstock import __version__
from penstock.cli import bench, doctor, grant, log, serve, usage
from penstock.model import errors

DONE, FAILED, USAGE, NOT_FOUND, DENIED, THROTTLED, TIMED_OUT = range(7)

_EXIT_CODES: tuple[tuple[type[BaseException], int], ...] = (
    (errors.NotFound, NOT_FOUND),
    (errors.AuthFailed, DENIED),
    (errors.Unauthorized, DENIED),
    (errors.ServerBusy, THROTTLED),
    (errors.OperationTimedOut, TIMED_OUT),
    (TimeoutError, TIMED_OUT),
    (errors.ConfigurationError, USAGE),
    (errors.PenstockError, FAILED),
    (OSError, FAILED),
)

app = typer.Typer(
    name="penstock",
    help="Azure Event Hubs that you run yourself.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(serve.serve)
app.command()(doctor.doctor)
app.command()(usage.usage)
app.command()(grant.grant)
app.add_typer(log.app, name="log")
app.add_typer(bench.app, name="bench")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"penstock {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Azure Event Hubs that you run yourself."""


def run() -> None:
    """One clear sentence on stderr and a documented exit code, never a traceback of ours."""
    try:
        app()
    except (errors.PenstockError, OSError, TimeoutError) as error:
        typer.echo(f"penstock: {error}", err=True)
        sys.exit(exit_code(error))


def exit_code(error: BaseException) -> int:
    return next((code for kind, code in _EXIT_CODES if isinstance(error, kind)), FAILED)
