"""`penstock group create|list|show|delete|lag|seek`."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.command_tree import CommandGroup
from penstock.cli.confirm import DryRun, Yes, confirm
from penstock.cli.options import argument, option, parse_seconds
from penstock.cli.output import TABLE, Format, OutputFormat, print_message
from penstock.cli.service_options import (
    AdminSession,
    HubName,
    complete_groups,
    complete_hubs,
    with_service,
)
from penstock.model.errors import AlreadyExists, NotFound, PenstockError

app = CommandGroup("Consumer groups, their lag and their checkpoints.", with_service)

_INTERVAL_S_MIN = 0.2

GroupName = Annotated[str, argument("GROUP", "Consumer group", autocompletion=complete_groups)]
OptionalHubName = Annotated[
    str | None, argument("HUB", "Event hub [default: all of them]", autocompletion=complete_hubs)
]


@app.verb()
def create(
    service: AdminSession,
    hub: HubName,
    group: Annotated[str, argument("GROUP", "Name of the new group")],
    metadata: Annotated[str | None, option("TEXT", "A note")] = None,
    if_absent: Annotated[bool, option("--if-absent", "Leave an existing group as it is")] = False,
    output: Format = TABLE,
) -> None:
    """Create a consumer group.

    Examples:
        penstock group create orders billing
        penstock group create orders billing --if-absent
    """
    client, namespace = service.client, service.namespace
    groups = {entity.name.casefold(): entity for entity in client.groups(namespace, hub)}
    existing = groups.get(group.casefold())
    if existing is not None and not if_absent:
        raise AlreadyExists(f"The consumer group '{group}' of '{hub}' exists already.")
    entity = existing or client.put_group(namespace, hub, group, user_metadata=metadata)
    message = f"Created the consumer group '{entity.name}' of '{hub}'."
    if existing is not None:
        message = f"The consumer group '{entity.name}' of '{hub}' exists already."
    record = {"hub": hub, "name": entity.name, "user_metadata": entity.user_metadata}
    output.print_result(message, record)


@app.verb("list")
def list_(service: AdminSession, hub: OptionalHubName = None, output: Format = TABLE) -> None:
    """List the consumer groups of one event hub or of all.

    Examples:
        penstock group list orders
    """
    rows = [
        {
            "hub": name,
            "name": entity.name,
            "user_metadata": entity.user_metadata,
            "created_at": entity.created_at,
        }
        for name in _list_hubs(service, hub)
        for entity in service.client.groups(service.namespace, name)
    ]
    output.print_rows(rows, title="Consumer groups")


@app.verb()
def show(service: AdminSession, hub: HubName, group: GroupName, output: Format = TABLE) -> None:
    """Show one consumer group: its total lag and its readers.

    Examples:
        penstock group show orders billing
    """
    client, namespace = service.client, service.namespace
    entity = client.group(namespace, hub, group)
    rows = client.lag(namespace, hub, group)
    owners = [str(row["owner"]) for row in rows if row.get("owner") is not None]

    def values(name: str) -> list[float]:
        return [value for row in rows if isinstance(value := row.get(name), int | float)]

    record: dict[str, object] = {
        "hub": hub,
        "name": entity.name,
        "user_metadata": entity.user_metadata,
        "created_at": entity.created_at,
        "updated_at": entity.updated_at,
        "partitions": len(rows),
        "partitions_owned": len(owners),
        "owners": sorted(set(owners)),
        **{
            name: sum(values(name)) if values(name) else None
            for name in ("readers", "lag_events", "lag_bytes")
        },
        "lag_seconds": max(values("lag_seconds"), default=None),
    }
    output.print_record(record)


@app.verb()
def delete(
    service: AdminSession, hub: HubName, group: GroupName, yes: Yes = False, dry_run: DryRun = False
) -> None:
    """Delete a consumer group with the checkpoints that the service stores for it.

    Examples:
        penstock group delete orders billing --yes
    """
    client, namespace = service.client, service.namespace
    name = client.group(namespace, hub, group).name
    what = f"This deletes the consumer group '{name}' of '{hub}' with its checkpoints."
    if confirm(what, name, yes=yes, dry_run=dry_run):
        client.delete_group(namespace, hub, group)
        print_message(f"Deleted the consumer group '{name}' of '{hub}'.")


@app.verb()
def lag(
    service: AdminSession,
    hub: OptionalHubName = None,
    group: Annotated[str | None, option("--group -g TEXT", "Only this consumer group")] = None,
    watch: Annotated[
        bool, option("--watch -w", "Repeat until Ctrl-C; -o jsonl adds the time")
    ] = False,
    interval: Annotated[str, option("TIME", "With --watch: time between two updates")] = "2s",
    count: Annotated[int | None, option("N", "With --watch: end after N updates", min=1)] = None,
    output: Format = TABLE,
) -> None:
    """Show how far consumer groups are behind, partition by partition.

    Lag is counted from the checkpoint that the service stores. Without one it is what the slowest
    connected reader has not received yet. `-` means unknown.

    Examples:
        penstock group lag orders
        penstock group lag orders --group billing --watch
    """
    from penstock.cli.entities.lag_view import LagView, lag_row, print_lag

    def read_lag() -> list[dict[str, object]]:
        try:
            return [
                lag_row(row)
                for name in _list_hubs(service, hub)
                for row in service.client.lag(service.namespace, name, group)
            ]
        except PenstockError:
            service.forget()
            raise

    every_s = max(_INTERVAL_S_MIN, parse_seconds(interval, option="--interval"))
    if not watch:
        print_lag(read_lag(), output)
        return
    if output is OutputFormat.JSON:
        raise typer.BadParameter("--watch needs -o table or -o jsonl: a JSON list has an end.")
    title = f"{service.namespace}/{hub or '*'}"
    LagView(read_lag, title=title, every_s=every_s, updates_max=count).run(output)


@app.verb()
def seek(
    service: AdminSession,
    hub: HubName,
    group: GroupName,
    to: Annotated[
        str, option("POSITION", "earliest, latest, a sequence number, or a time (ISO 8601)")
    ],
    partition: Annotated[str | None, option("--partition -p TEXT", "Only this partition")] = None,
    force: Annotated[bool, option("--force", "Also while an owner or a reader is active")] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    output: Format = TABLE,
) -> None:
    """Move the checkpoints of a consumer group, backward to read events again or forward to skip.

    It concerns checkpoints that the service stores. --dry-run shows where each one would move.

    Examples:
        penstock group seek orders billing --to earliest --dry-run
        penstock group seek orders billing --to 2026-11-16T06:00:00Z --yes
    """
    client, namespace = service.client, service.namespace
    target = (namespace, hub, group, to)
    title = f"Checkpoints of {group}"
    planned = client.seek(*target, partition=partition, dry_run=True, force=force)
    if dry_run:
        output.print_rows(planned, title=title)
        print_message("Dry run: nothing was changed.")
        return
    moved = sum(row["from_sequence_number"] != row["to_sequence_number"] for row in planned)
    described = f"{moved} of {len(planned)} checkpoints of '{group}' on '{hub}' to {to}."
    if confirm(f"This moves {described}", group, yes=yes, dry_run=False):
        rows = client.seek(*target, partition=partition, dry_run=False, force=force)
        output.print_rows(rows, title=title)
        print_message(f"Moved {described}")


def _list_hubs(service: AdminSession, hub: str | None) -> list[str]:
    """The hub of the command line, or every hub of the namespace."""
    if hub is not None:
        return [hub]
    names = [entity.name for entity in service.client.hubs(service.namespace)]
    if not names:
        raise NotFound(f"The namespace '{service.namespace}' has no event hub.")
    return names
