"""The command tree, and how errors become exit codes.

A new command is one line of `COMMANDS`: its name, where it is written, one sentence, its section.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from penstock import __version__
from penstock.cli.command_tree import CONTEXT_SETTINGS, CommandEntry, RootGroup
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


_VERBOSE = ("-v", "--verbose")
_PASSED_ON = ("spark",)  # its arguments belong to Spark's own programs


def _section(title: str, *commands: tuple[str, str, str]) -> list[CommandEntry]:
    return [
        CommandEntry(name, f"penstock.cli.{where}", summary, title)
        for name, where, summary in commands
    ]


COMMANDS = (
    *_section(
        "Run",
        ("serve", "server.serve:serve", "Run Penstock."),
        ("init", "server.init:init", "Make a data directory ready, without serving it."),
        ("status", "server.status:status", "Show what runs, and how it is."),
        (
            "health",
            "server.status:health",
            "Exit code 0 when the service is well; --wait waits for it.",
        ),
        (
            "doctor",
            "server.doctor:doctor",
            "Check service, ports, certificate, clock, disk, checkpoints.",
        ),
    ),
    *_section(
        "Event hubs",
        ("namespace", "entities.namespace:app", "Namespaces and their throughput units."),
        ("hub", "entities.hub:app", "Event hubs and their partitions."),
        (
            "group",
            "entities.group:app",
            "Consumer groups: how far behind they are, and where they go on.",
        ),
        (
            "policy",
            "entities.policy:app",
            "Shared access policies, their keys and connection strings.",
        ),
        ("token", "entities.token:app", "Shared access signatures and admin tokens."),
        ("grant", "entities.grant:grant", "Let a namespace have more units or partitions."),
        ("capture", "spark.capture:app", "Capture: events as files, window by window."),
        (
            "usage",
            "entities.usage:usage",
            "Units, events and bytes by the hour: what a bill is made of.",
        ),
    ),
    *_section(
        "Events",
        ("send", "events.send:send", "Publish events."),
        ("tail", "events.tail:tail", "Show events as they arrive, or as they were."),
        ("get", "events.tail:get", "Print one event."),
        (
            "replay",
            "events.replay:replay",
            "Publish a range of events again, into another event hub.",
        ),
        (
            "export",
            "events.export_import:export",
            "Write events into a file: Avro as of Capture, or JSON lines.",
        ),
        ("import", "events.export_import:import_", "Publish the events of a file."),
        ("soak", "events.soak:soak", "Publish and read for a long time, and check every event."),
        ("bench", "events.bench:app", "Measure publishing, delivery and latency."),
    ),
    *_section(
        "Spark",
        ("pipeline", "spark.pipeline:app", "Stream processing on Spark."),
        ("spark", "spark.submit:app", "Spark's own programs, connected to the service."),
    ),
    *_section(
        "Operate",
        ("portal", "server.portal:app", "The web portal: where it is, who may sign in."),
        ("connections", "entities.connections:app", "Who is connected; end a connection."),
        ("audit", "entities.audit:audit", "Who did what, newest first."),
        ("backup", "server.backup:backup", "Copy a data directory, also while its service runs."),
        ("restore", "server.backup:restore", "Make a data directory of a backup."),
        ("log", "server.log:app", "Check and read the partition logs offline."),
        ("debug", "server.debug_bundle:app", "Gather what a person who helps needs to see."),
        ("config", "server.config:app", "Show, validate and describe the service's configuration."),
        ("emulator", "server.emulator:app", "Take over from the official emulator."),
    ),
    *_section(
        "This command line",
        ("context", "context:app", "Remember services by name."),
        ("completion", "help:completion", "Print the shell's completion script."),
        ("version", "help:version", "Show the version."),
        ("help", "help:help_", "Show the help of a command, or --all of it."),
    ),
)
RootGroup.entries = {entry.name: entry for entry in COMMANDS}

app = typer.Typer(
    name="penstock",
    cls=RootGroup,
    help="Azure Event Hubs that you run yourself.",
    epilog="Data goes to stdout, talk to stderr. Exit codes: 0 done, 1 failed, 2 usage, "
    "3 not found (also: no service), 4 denied, 5 throttled, 6 timed out. "
    "-v shows errors with the protocol's own text.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    add_completion=False,
    context_settings=CONTEXT_SETTINGS,
)


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
    if "_PENSTOCK_COMPLETE" in os.environ:
        from typer._completion_classes import completion_init

        completion_init()  # typer does it for its own options, which we have as a command
    from typer._click.exceptions import ClickException, UsageError

    arguments, is_verbose = take_verbose(sys.argv[1:])
    try:
        code = app(arguments, prog_name="penstock", standalone_mode=False)
    except UsageError as error:
        command = error.ctx.command_path if error.ctx is not None else "penstock"
        message = error.format_message()
        typer.echo(f"penstock: {_ended(message)} See `{command} --help`.", err=True)
        sys.exit(USAGE)
    except ClickException as error:
        typer.echo(f"penstock: {_ended(error.format_message())}", err=True)
        sys.exit(error.exit_code)
    except typer.Abort:
        typer.echo("penstock: Aborted.", err=True)
        sys.exit(FAILED)
    except BrokenPipeError:
        # The reader of our output has gone; Python would complain when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(FAILED)
    except (errors.PenstockError, OSError, TimeoutError) as error:
        typer.echo(f"penstock: {sentence(error, is_verbose=is_verbose)}", err=True)
        sys.exit(exit_code(error))
    sys.exit(code if isinstance(code, int) else DONE)


def take_verbose(arguments: list[str]) -> tuple[list[str], bool]:
    """Remove -v or --verbose, which may stand anywhere before `--`."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    if arguments[:1] and arguments[0] in _PASSED_ON:
        return arguments, False
    own = [argument for argument in arguments[:end] if argument not in _VERBOSE]
    return own + arguments[end:], len(own) < end


def sentence(error: BaseException, *, is_verbose: bool = False) -> str:
    """An error for a person; with `is_verbose` as the protocol said it."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}."
    text = str(error)
    if is_verbose and isinstance(error.__cause__, errors.PenstockError):
        return f"{text}\n{error.__cause__}"
    if is_verbose or not isinstance(error, errors.PenstockError):
        return text
    from penstock.client.errors import plain_text

    return plain_text(text)


def _ended(text: str) -> str:
    """With a full stop, as every message has."""
    return text if text.endswith((".", "?", "!")) else f"{text}."


def exit_code(error: BaseException) -> int:
    return next((code for kind, code in _EXIT_CODES if isinstance(error, kind)), FAILED)
