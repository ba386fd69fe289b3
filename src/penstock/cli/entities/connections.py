"""`penstock connections list|kill`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import typer

from penstock.cli.command_tree import CommandGroup
from penstock.cli.confirm import DryRun, Yes, confirm
from penstock.cli.output import Format, OutputFormat, format_seconds, print_message, print_rows
from penstock.cli.service_options import AdminSession, with_whole_service
from penstock.model.errors import NotFound

app = CommandGroup("Who is connected; end a connection.")

_COLUMNS = (
    "id",
    "peer",
    "namespace",
    "container_id",
    "age_seconds",
    "links",
    "events_in",
    "events_out",
)


@app.verb("list")
@with_whole_service
def list_(
    service: AdminSession,
    namespace: Annotated[str | None, typer.Option(help="Of one namespace alone")] = None,
    output: Format = OutputFormat.TABLE,
) -> None:
    """AMQP connections, with their links and events."""
    found = service.client.connections()
    if namespace is not None:
        found = [each for each in found if each["namespace"].casefold() == namespace.casefold()]
    print_rows(
        found,
        output,
        title="Connections",
        columns=[name for name in _COLUMNS if found and name in found[0]],
        shown={"age_seconds": format_seconds},
        elided=("id", "container_id"),
    )


@app.verb()
@with_whole_service
def kill(
    service: AdminSession,
    connection: Annotated[list[str], typer.Argument(metavar="ID...", help="Or its beginning")],
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """End connections; a client that is allowed to comes back by itself."""
    client = service.client
    known = {str(each["id"]): each for each in client.connections()}
    chosen = [_one(known.keys(), wanted) for wanted in connection]
    for each in chosen:
        found = known[each]
        what = (
            f"Connection {each} of {found['peer']} ({found['links']} links, "
            f"{found['events_in']:,} events in, {found['events_out']:,} out) is ended."
        )
        if confirm(what, each, yes=yes, dry_run=dry_run):
            client.kill_connection(each)
            print_message(what)


def _one(known: Iterable[str], wanted: str) -> str:
    matches = [each for each in known if each.startswith(wanted)]
    if len(matches) == 1 or wanted in matches:
        return wanted if wanted in matches else matches[0]
    if matches:
        raise typer.BadParameter(f"'{wanted}' begins {len(matches)} connections' ids: say more.")
    raise NotFound(f"There is no connection '{wanted}'.")
