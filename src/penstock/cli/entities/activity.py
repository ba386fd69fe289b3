"""`penstock connections list|kill` and `penstock audit`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import typer

from penstock.cli.command_tree import CommandGroup
from penstock.cli.confirm import DryRun, Yes, confirm
from penstock.cli.options import argument, option
from penstock.cli.output import TABLE, Format, print_message
from penstock.cli.service_options import AdminSession, with_whole_service
from penstock.model.errors import NotFound

app = CommandGroup("List and close AMQP connections.", with_whole_service)

_COLUMNS = (
    *("id", "peer", "namespace", "container_id"),
    *("age_seconds", "links", "events_in", "events_out"),
)
_AUDIT_MAX = 1000


@app.verb("list")
def list_(
    service: AdminSession,
    namespace: Annotated[str | None, option("TEXT", "Only those of this namespace")] = None,
    output: Format = TABLE,
) -> None:
    """List the AMQP connections with their links and events.

    Examples:
        penstock connections list
        penstock connections list --namespace penstock -o json
    """
    rows = service.client.connections()
    if namespace is not None:
        rows = [row for row in rows if row["namespace"].casefold() == namespace.casefold()]
    output.print_rows(
        rows,
        title="Connections",
        columns=[name for name in _COLUMNS if rows and name in rows[0]],
        elided=("id", "container_id"),
    )


@app.verb()
def kill(
    service: AdminSession,
    connection: Annotated[list[str], argument("ID...", "Connection id, or its beginning")],
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Close connections. A client whose token is still valid may connect again.

    Examples:
        penstock connections kill 5f2c81 --yes
    """
    client = service.client
    rows = {str(row["id"]): row for row in client.connections()}
    for id_ in [_find_id(rows.keys(), text) for text in connection]:
        row = rows[id_]
        described = (
            f"connection {id_} of {row['peer']} ({row['links']} links, "
            f"{row['events_in']:,} events in, {row['events_out']:,} out)."
        )
        if confirm(f"This closes the {described}", id_, yes=yes, dry_run=dry_run):
            client.kill_connection(id_)
            print_message(f"Closed the {described}")


@with_whole_service
def audit(
    service: AdminSession,
    newest: Annotated[int, option("-n --newest N", "Number of rows", min=1, max=_AUDIT_MAX)] = 50,
    who: Annotated[str | None, option("TEXT", "Only actions of this actor")] = None,
    what: Annotated[
        str | None, option("TEXT", "Only actions whose name contains this text")
    ] = None,
    output: Format = TABLE,
) -> None:
    """Show administrative actions, newest first.

    Examples:
        penstock audit -n 20
        penstock audit --what eventhubs/delete
    """
    count = newest if who is what is None else _AUDIT_MAX
    rows = [
        {name: row[name] for name in ("at", "who", "what", "detail")}
        for row in service.client.audit(newest=count)
        if (who is None or row["who"] == who)
        and (what is None or what.casefold() in row["what"].casefold())
    ]
    output.print_rows(rows[:newest], title="Audit log")


def _find_id(ids: Iterable[str], text: str) -> str:
    matches = [id_ for id_ in ids if id_.startswith(text)]
    if text in matches:
        return text
    if len(matches) > 1:
        raise typer.BadParameter(f"{len(matches)} connection ids begin with '{text}': give more.")
    if not matches:
        raise NotFound(f"There is no connection '{text}'.")
    return matches[0]
