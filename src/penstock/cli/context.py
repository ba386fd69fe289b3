"""`penstock context add|use|list|show|delete`: services by name."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from penstock.cli.command_tree import CommandGroup
from penstock.cli.confirm import DryRun, Yes, confirm
from penstock.cli.contexts import (
    ServiceContext,
    ServiceContexts,
    contexts_file,
    read_contexts,
    write_contexts,
)
from penstock.cli.output import Format, OutputFormat, print_message, print_record, print_rows
from penstock.model.errors import AlreadyExists

app = CommandGroup("Remember services by name.")

_HIDDEN = "(hidden; --reveal shows it)"
_SECRETS = ("connection_string", "admin_token")
_STDIN_BYTES_MAX = 16 * 1024


def _names() -> list[str]:
    return sorted(read_contexts(contexts_file()).contexts)


Name = Annotated[str, typer.Argument(metavar="NAME", autocompletion=_names)]


@app.verb()
def add(
    name: Annotated[str, typer.Argument(metavar="NAME")],
    connection_string: Annotated[
        str | None, typer.Option(metavar="TEXT|-", help="-: read it from stdin, where it is unseen")
    ] = None,
    admin_url: Annotated[
        str | None, typer.Option(metavar="URL", help="Such as http://localhost:5300")
    ] = None,
    admin_token: Annotated[
        str | None, typer.Option(metavar="TOKEN|-", help="-: read it from stdin")
    ] = None,
    ca_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="What its certificate is verified with")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="A data directory: whatever service runs on it"),
    ] = None,
    namespace: Annotated[str | None, typer.Option(metavar="NAME", help="Which is meant")] = None,
    use: Annotated[bool, typer.Option("--use", help="Use it from now on")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="One of that name goes")] = False,
) -> None:
    """Remember a service: its data directory, or its addresses and keys."""
    from penstock.model.connection_string import parse_connection_string

    if connection_string is None and admin_url is None and data is None:
        raise typer.BadParameter("Give --data, --admin-url or --connection-string.")
    if connection_string == admin_token == "-":
        raise typer.BadParameter("stdin holds one of them: give the other by its option.")
    made = ServiceContext(
        connection_string=_read_secret_option(connection_string),
        admin_url=admin_url,
        admin_token=_read_secret_option(admin_token),
        ca_file=None if ca_file is None else str(ca_file.absolute()),
        data=None if data is None else str(data.absolute()),
        namespace=namespace,
    )
    if made.connection_string is not None:
        parse_connection_string(made.connection_string)  # refused now, not at the next command
    file = contexts_file()
    known = read_contexts(file)
    if name in known.contexts and not replace:
        raise AlreadyExists(f"There is a context '{name}' already: --replace puts this in place.")
    current = name if use else known.current
    write_contexts(file, ServiceContexts(current=current, contexts={**known.contexts, name: made}))
    print_message(f"Context '{name}' is kept in {file}{' and used from now on' if use else ''}.")


@app.verb()
def use(
    name: Annotated[str | None, typer.Argument(metavar="NAME", autocompletion=_names)] = None,
    none: Annotated[bool, typer.Option("--none", help="No context from now on")] = False,
) -> None:
    """Use a context from now on, where neither flags nor environment say otherwise."""
    if (name is None) != none:
        raise typer.BadParameter("Give the name of a context, or --none.")
    file = contexts_file()
    known = read_contexts(file)
    if name is not None:
        known.get(name)
    write_contexts(file, msgspec.structs.replace(known, current=name))
    print_message(
        "No context is used." if name is None else f"Context '{name}' is used from now on."
    )


@app.verb("list")
def list_(output: Format = OutputFormat.TABLE) -> None:
    """Every context, without its secrets."""
    known = read_contexts(contexts_file())
    rows = [
        {
            "name": name,
            "current": name == known.current,
            "where": each.admin_url or each.data or "(events only)",
            "namespace": each.namespace,
        }
        for name, each in sorted(known.contexts.items())
    ]
    print_rows(rows, output, title="Contexts")


@app.verb()
def show(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="[default: the current]", autocompletion=_names),
    ] = None,
    reveal: Annotated[bool, typer.Option("--reveal", help="Show keys and tokens")] = False,
    output: Format = OutputFormat.TABLE,
) -> None:
    """One context; keys and tokens only with --reveal."""
    known = read_contexts(contexts_file())
    name = name or known.current
    if name is None:
        raise typer.BadParameter("No context is used: name one.")
    record: dict[str, object] = {"name": name, "current": name == known.current}
    for field, value in msgspec.structs.asdict(known.get(name)).items():
        record[field] = _HIDDEN if value and field in _SECRETS and not reveal else value
    print_record(record, output)


@app.verb()
def delete(name: Name, yes: Yes = False, dry_run: DryRun = False) -> None:
    """Forget a context, with the keys in it."""
    file = contexts_file()
    known = read_contexts(file)
    known.get(name)
    if confirm(f"Context '{name}' is forgotten.", name, yes=yes, dry_run=dry_run):
        kept = {each: found for each, found in known.contexts.items() if each != name}
        current = None if known.current == name else known.current
        write_contexts(file, ServiceContexts(current=current, contexts=kept))
        print_message(f"Context '{name}' is forgotten.")


def _read_secret_option(text: str | None) -> str | None:
    if text != "-":
        return text
    found = sys.stdin.read(_STDIN_BYTES_MAX).strip()
    if not found:
        raise typer.BadParameter("stdin is empty.")
    return found
