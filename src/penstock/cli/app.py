"""The `penstock` command: the table of its commands, and how an error ends it.

A new command is one row of `_SECTIONS`: its name, module and function, and one sentence.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from penstock import __version__
from penstock.cli.command_tree import CONTEXT_SETTINGS, CommandEntry, RootGroup
from penstock.cli.exit_codes import ExitCode, exit_code
from penstock.model.errors import PenstockError

_VERBOSE = ("-v", "--verbose")
_PASSED_ON = "spark"  # its arguments belong to Spark's own programs

_SECTIONS = {
    "Run": (
        ("serve", "server.serve:serve", "Run the service."),
        ("init", "server.serve:init", "Create or update a data directory without serving it."),
        ("status", "server.status:status", "Show what runs and whether it is ready."),
        ("health", "server.status:health", "Check that the service is ready, or wait until it is."),
        ("doctor", "server.status:doctor", "Find problems of the service and of this machine."),
    ),
    "Event hubs": (
        ("namespace", "entities.namespace:app", "Namespaces and their throughput units."),
        ("hub", "entities.hub:app", "Event hubs and their partitions."),
        ("group", "entities.group:app", "Consumer groups, their lag and their checkpoints."),
        ("policy", "entities.policy:app", "Shared access policies, keys, connection strings."),
        ("token", "entities.policy:token_app", "SAS tokens and admin tokens."),
        ("grant", "entities.namespace:grant", "Allow a namespace more units or partitions."),
        ("capture", "spark.capture:app", "Capture: events as files, window by window."),
        ("usage", "entities.usage:usage", "Show units, events and bytes by hour, day or month."),
    ),
    "Events": (
        ("send", "events.send:send", "Publish events."),
        ("tail", "events.tail:tail", "Show events as they arrive, or stored events."),
        ("get", "events.tail:get", "Print one event."),
        (
            "replay",
            "events.replay:replay",
            "Publish a range of events again, into another event hub.",
        ),
        (
            "export",
            "events.export_import:export",
            "Write events to a file: Capture's Avro records, or JSON lines.",
        ),
        ("import", "events.export_import:import_", "Publish the events of a file."),
        ("soak", "events.soak:soak", "Publish and read for a long time, and check every event."),
        ("bench", "events.bench:app", "Measure publishing, delivery and latency."),
    ),
    "Spark": (
        ("pipeline", "spark.pipeline:app", "Stream processing on Spark."),
        ("spark", "spark.submit:app", "Spark's own programs, connected to the service."),
    ),
    "Operate": (
        ("portal", "server.portal:app", "The web portal: its address and its users."),
        ("connections", "entities.activity:app", "List and close AMQP connections."),
        ("audit", "entities.activity:audit", "Show administrative actions, newest first."),
        ("backup", "server.backup:backup", "Copy a data directory, also while its service runs."),
        ("restore", "server.backup:restore", "Create a data directory from a backup."),
        ("log", "server.log:app", "Verify and inspect the partition logs on disk."),
        ("debug", "server.debug_bundle:app", "Collect information for a support request."),
        ("config", "server.config:app", "Show, validate and describe the service's configuration."),
        ("emulator", "server.emulator:app", "Migrate from the official emulator."),
    ),
    "This command line": (
        ("context", "contexts:app", "Named services."),
        ("completion", "help:completion", "Print the completion script for a shell."),
        ("version", "help:version", "Show the version."),
        ("help", "help:help_", "Show the help of a command, or the usage of all commands."),
    ),
}
COMMANDS = tuple(
    CommandEntry(name, f"penstock.cli.{where}", summary, section)
    for section, commands in _SECTIONS.items()
    for name, where, summary in commands
)
RootGroup.entries = {entry.name: entry for entry in COMMANDS}

app = typer.Typer(
    name="penstock",
    cls=RootGroup,
    help="Azure Event Hubs that you run yourself. Start the service in one terminal, publish and "
    "read in another:\n\n\b\n  penstock serve\n  penstock send events --text hello\n"
    "  penstock tail events --from earliest -n 1",
    epilog="Data is written to stdout, messages to stderr. Exit codes: 0 done, 1 failed, 2 usage, "
    "3 not found (also: no service), 4 denied, 5 throttled, 6 timed out. "
    "-v shows errors with the text of the protocol.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    add_completion=False,
    context_settings=CONTEXT_SETTINGS,
)


def _show_version(is_requested: bool) -> None:
    if is_requested:
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
    """Run the command of `sys.argv` and exit. An error is one sentence on stderr and an exit code
    of `penstock.cli.exit_codes`."""
    if "_PENSTOCK_COMPLETE" in os.environ:
        from typer.completion import get_completion_inspect_parameters

        # Registers the shells. Typer does so only for its own options, which `app` does not have.
        get_completion_inspect_parameters()
    arguments, is_verbose = take_verbose(sys.argv[1:])
    try:
        code = app(arguments, prog_name="penstock", standalone_mode=False)
    except BrokenPipeError:
        # The reader of the output is gone; Python would fail again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(ExitCode.FAILED)
    except (typer.TyperException, typer.Abort, PenstockError, OSError) as error:
        typer.echo(f"penstock: {describe_error(error, is_verbose=is_verbose)}", err=True)
        sys.exit(exit_code(error))
    sys.exit(code if isinstance(code, int) else ExitCode.DONE)


def take_verbose(arguments: list[str]) -> tuple[list[str], bool]:
    """The arguments without -v and --verbose, and whether one of them occurs before `--`."""
    if arguments[:1] == [_PASSED_ON]:
        return arguments, False
    end = arguments.index("--") if "--" in arguments else len(arguments)
    own = [argument for argument in arguments[:end] if argument not in _VERBOSE]
    return own + arguments[end:], len(own) < end


def describe_error(error: BaseException, *, is_verbose: bool = False) -> str:
    """What is shown to the user for an error; with `is_verbose` the protocol's own text."""
    if isinstance(error, typer.Abort):
        return "Aborted."
    if isinstance(error, typer.TyperException):
        text = error.format_message().replace(": Value error, ", ": ")  # typer's prefix
        text = text if text.endswith((".", "?", "!")) else f"{text}."
        if error.exit_code != ExitCode.USAGE:
            return text
        context = getattr(error, "ctx", None)  # None where the command itself raised it
        return f"{text} See `{context.command_path if context else 'penstock'} --help`."
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}."
    text = str(error)
    if is_verbose and isinstance(error.__cause__, PenstockError):
        return f"{text}\n{error.__cause__}"
    if is_verbose or not isinstance(error, PenstockError):
        return text
    from penstock.client.errors import plain_text

    return plain_text(text)
