"""`penstock group create|list|show|delete|lag|seek`."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.command_tree import CommandGroup
from penstock.cli.confirm import DryRun, Yes, confirm
from penstock.cli.entities.lag_view import LagView, lag_row, print_lag
from penstock.cli.output import (
    Format,
    OutputFormat,
    format_bytes,
    format_seconds,
    print_message,
    print_record,
    print_rows,
)
from penstock.cli.service_options import (
    AdminSession,
    HubName,
    complete_groups,
    complete_hubs,
    with_service,
)
from penstock.cli.units import parse_seconds
from penstock.model.errors import AlreadyExists, NotFound, PenstockError

app = CommandGroup("Consumer groups: how far behind they are, and where they go on.")

GroupName = Annotated[
    str, typer.Argument(metavar="GROUP", help="Consumer group", autocompletion=complete_groups)
]
_INTERVAL_S_MIN = 0.2


@app.verb()
@with_service
def create(
    service: AdminSession,
    hub: HubName,
    group: Annotated[str, typer.Argument(metavar="GROUP", help="Its name")],
    metadata: Annotated[str | None, typer.Option(metavar="TEXT", help="Your own note")] = None,
    if_absent: Annotated[
        bool, typer.Option("--if-absent", help="One that is there is fine, and stays as it is")
    ] = False,
    output: Format = OutputFormat.TABLE,
) -> None:
    """Make a consumer group."""
    client, namespace = service.client, service.namespace
    known = {each.name.casefold(): each for each in client.groups(namespace, hub)}
    found = known.get(group.casefold())
    if found is not None and not if_absent:
        raise AlreadyExists(f"The consumer group '{group}' of '{hub}' exists already.")
    made = found or client.put_group(namespace, hub, group, user_metadata=metadata)
    print_message(f"The consumer group '{made.name}' of '{hub}' {'was' if found else 'is'} there.")
    if output is not OutputFormat.TABLE:
        print_record({"hub": hub, "name": made.name, "user_metadata": made.user_metadata}, output)


@app.verb("list")
@with_service
def list_(
    service: AdminSession,
    hub: Annotated[
        str | None,
        typer.Argument(metavar="HUB", help="Of one event hub", autocompletion=complete_hubs),
    ] = None,
    output: Format = OutputFormat.TABLE,
) -> None:
    """The consumer groups of one event hub, or of all."""
    client, namespace = service.client, service.namespace
    rows = [
        {
            "hub": name,
            "name": each.name,
            "user_metadata": each.user_metadata,
            "created_at": each.created_at,
        }
        for name in _hubs(service, hub)
        for each in client.groups(namespace, name)
    ]
    print_rows(rows, output, title="Consumer groups")


@app.verb()
@with_service
def show(
    service: AdminSession, hub: HubName, group: GroupName, output: Format = OutputFormat.TABLE
) -> None:
    """One consumer group: how far behind it is in all, and who reads."""
    client, namespace = service.client, service.namespace
    found = client.group(namespace, hub, group)
    rows = [lag_row(each) for each in client.lag(namespace, hub, group)]
    ages = [row["lag_seconds"] for row in rows if isinstance(row["lag_seconds"], int | float)]
    record: dict[str, object] = {
        "hub": hub,
        "name": found.name,
        "user_metadata": found.user_metadata,
        "created_at": found.created_at,
        "updated_at": found.updated_at,
        "partitions": len(rows),
        "partitions_owned": sum(row["owner"] is not None for row in rows),
        "owners": sorted({str(row["owner"]) for row in rows if row["owner"] is not None}),
        "readers": _sum(rows, "readers"),
        "lag_events": _sum(rows, "lag_events"),
        "lag_bytes": _sum(rows, "lag_bytes"),
        "lag_seconds": max(ages, default=None),
    }
    print_record(record, output, shown={"lag_bytes": format_bytes, "lag_seconds": format_seconds})


@app.verb()
@with_service
def delete(
    service: AdminSession, hub: HubName, group: GroupName, yes: Yes = False, dry_run: DryRun = False
) -> None:
    """Delete a consumer group with the checkpoints that the service keeps of it."""
    client, namespace = service.client, service.namespace
    found = client.group(namespace, hub, group)
    what = f"The consumer group '{found.name}' of '{hub}' goes with its checkpoints."
    if confirm(what, found.name, yes=yes, dry_run=dry_run):
        client.delete_group(namespace, hub, group)
        print_message(f"The consumer group '{found.name}' of '{hub}' is deleted.")


@app.verb()
@with_service
def lag(
    service: AdminSession,
    hub: Annotated[
        str | None,
        typer.Argument(metavar="HUB", help="Of one event hub", autocompletion=complete_hubs),
    ] = None,
    group: Annotated[str | None, typer.Option("--group", "-g", help="Of one group alone")] = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Go on until Ctrl-C; with jsonl, a line each")
    ] = False,
    interval: Annotated[str, typer.Option(metavar="TIME", help="Between two looks")] = "2s",
    count: Annotated[
        int | None, typer.Option(min=1, help="With --watch: so many looks, then end")
    ] = None,
    output: Format = OutputFormat.TABLE,
) -> None:
    """How far each consumer group is behind, partition by partition.

    Events, bytes and seconds after the checkpoint that the service keeps; without one, what the
    reader that is furthest behind was not yet sent. A dash is what nobody knows.
    """

    def look() -> list[dict[str, object]]:
        try:
            return [
                lag_row(each)
                for name in _hubs(service, hub)
                for each in service.client.lag(service.namespace, name, group)
            ]
        except PenstockError:
            service.forget()  # one that comes back may have other ports
            raise

    if not watch:
        print_lag(look(), output)
        return
    if output is OutputFormat.JSON:
        raise typer.BadParameter("--watch gives a table or jsonl: a list has an end.")
    every_s = max(_INTERVAL_S_MIN, parse_seconds(interval, option="--interval"))
    title = f"{service.namespace}/{hub or '*'}"
    LagView(look, title=title, every_s=every_s, looks_max=count).run(output)


@app.verb()
@with_service
def seek(
    service: AdminSession,
    hub: HubName,
    group: GroupName,
    to: Annotated[
        str,
        typer.Option(
            metavar="WHERE", help="earliest, latest, a sequence number, or a time (ISO 8601)"
        ),
    ],
    partition: Annotated[
        str | None, typer.Option("--partition", "-p", help="One alone [default: all]")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Although an owner or a reader is active")
    ] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    output: Format = OutputFormat.TABLE,
) -> None:
    """Set a consumer group's checkpoints: backwards reads events again, forwards skips some.

    It concerns checkpoints that the service keeps. --dry-run shows where each would go.
    """
    client, namespace = service.client, service.namespace
    title = f"Checkpoints of {group}"
    planned = client.seek(namespace, hub, group, to, partition=partition, dry_run=True, force=force)
    if dry_run:
        print_rows(planned, output, title=title)
        print_message("Dry run: nothing was done.")
        return
    moved = sum(each["from_sequence_number"] != each["to_sequence_number"] for each in planned)
    what = f"{moved} of {len(planned)} checkpoints of '{group}' on '{hub}' go to {to}."
    if confirm(what, group, yes=yes, dry_run=False):
        done = client.seek(
            namespace, hub, group, to, partition=partition, dry_run=False, force=force
        )
        print_rows(done, output, title=title)
        print_message(what)


def _hubs(service: AdminSession, hub: str | None) -> list[str]:
    if hub is not None:
        return [hub]
    found = [each.name for each in service.client.hubs(service.namespace)]
    if not found:
        raise NotFound(f"The namespace '{service.namespace}' has no event hub.")
    return found


def _sum(rows: list[dict[str, object]], name: str) -> int | None:
    known = [value for row in rows if isinstance(value := row[name], int)]
    return sum(known) if known else None
