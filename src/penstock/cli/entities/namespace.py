"""`penstock namespace create|list|show|delete|set-units`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.command_tree import CommandGroup
from penstock.cli.confirm import DryRun, Yes, confirm
from penstock.cli.entities.hub import count_retained
from penstock.cli.output import Format, OutputFormat, print_message, print_record, print_rows
from penstock.cli.service_options import AdminSession, complete_namespaces, with_whole_service
from penstock.model.errors import AlreadyExists, NotFound

if TYPE_CHECKING:
    from penstock.management.client import ManagementClient, NamespaceResource

app = CommandGroup("Namespaces and their throughput units.")

Name = Annotated[str, typer.Argument(metavar="NAME", autocompletion=complete_namespaces)]
Units = Annotated[
    str | None,
    typer.Option(metavar="N|unlimited", help="Throughput units; unlimited: counted, not enforced"),
]


@app.verb()
@with_whole_service
def create(
    service: AdminSession,
    name: Annotated[str, typer.Argument(metavar="NAME", help="6 to 50 letters, digits, hyphens")],
    units: Units = None,
    max_units: Annotated[
        int | None, typer.Option(help="Auto-inflate up to so many units; 0: off")
    ] = None,
    sku: Annotated[str | None, typer.Option(help="Standard, Premium or Dedicated")] = None,
    resource_group: Annotated[str, typer.Option(help="Where the management API finds it")] = (
        "penstock"
    ),
    output: Format = OutputFormat.TABLE,
) -> None:
    """Make a namespace."""
    client = service.client
    if any(each.name.casefold() == name.casefold() for each in client.namespaces()):
        raise AlreadyExists(f"The namespace '{name}' exists already.")
    number, unlimited = _units(units)
    made = client.put_namespace(
        name,
        units=number,
        unlimited=unlimited or (number is None and sku is None),
        sku=sku,
        maximum_units=max_units,
        resource_group=resource_group,
    )
    print_message(f"The namespace '{made.name}' is there: {_describe_units(made)}.")
    if output is not OutputFormat.TABLE:
        print_record(_namespace_row(made), output)


@app.verb("list")
@with_whole_service
def list_(service: AdminSession, output: Format = OutputFormat.TABLE) -> None:
    """Every namespace of the service."""
    rows = [_namespace_row(each) for each in service.client.namespaces()]
    print_rows(
        rows,
        output,
        title="Namespaces",
        columns=("name", "sku", "units", "enforced", "maximum_units", "created_at"),
    )


@app.verb()
@with_whole_service
def show(service: AdminSession, name: Name, output: Format = OutputFormat.TABLE) -> None:
    """One namespace, with what is in it."""
    client = service.client
    record = _namespace_row(client.namespace(name))
    hubs = client.hubs(name)
    record["hubs"] = [hub.name for hub in hubs]
    record["partitions"] = sum(hub.partition_count for hub in hubs)
    print_record(record, output)


@app.verb()
@with_whole_service
def delete(service: AdminSession, name: Name, yes: Yes = False, dry_run: DryRun = False) -> None:
    """Delete a namespace with its hubs, their events, groups and policies, for good."""
    found = service.client.namespace(name)
    what = f"The namespace '{found.name}' goes with {_content(service.client, name)}, for good."
    if confirm(what, found.name, yes=yes, dry_run=dry_run):
        service.client.delete_namespace(name)
        print_message(f"The namespace '{found.name}' is deleted.")


@app.verb("set-units")
@with_whole_service
def set_units(
    service: AdminSession,
    name: Name,
    units: Annotated[str, typer.Argument(metavar="N|unlimited", help="Throughput units")],
    max_units: Annotated[
        int | None, typer.Option(help="Auto-inflate up to so many units; 0: off")
    ] = None,
    output: Format = OutputFormat.TABLE,
) -> None:
    """Enforce so many throughput units from now on, or none."""
    service.client.namespace(name)
    number, unlimited = _units(units)
    made = service.client.put_namespace(
        name, units=number, unlimited=unlimited, maximum_units=max_units
    )
    print_message(f"The namespace '{made.name}': {_describe_units(made)}.")
    if output is not OutputFormat.TABLE:
        print_record(_namespace_row(made), output)


app.verb("set-tu", hidden=True)(set_units)


def _units(text: str | None) -> tuple[int | None, bool]:
    if text is None or text.casefold() == "unlimited":
        return None, text is not None
    if not (text.isascii() and text.isdigit()):
        raise typer.BadParameter(f"'{text}' is neither a number nor unlimited.")
    return int(text), False


def _namespace_row(found: NamespaceResource) -> dict[str, object]:
    return {
        "name": found.name,
        "sku": found.sku.name,
        "limits": found.properties.limits,
        "units": found.capacity,
        "enforced": not found.unlimited,
        "maximum_units": found.maximum_units or None,
        "created_at": found.created_at,
        "updated_at": found.updated_at,
        "location": found.location,
        "tags": found.tags,
        "id": found.id,
    }


def _describe_units(found: NamespaceResource) -> str:
    if found.unlimited:
        return "throughput units are counted, not enforced"
    units = f"{found.capacity} throughput unit{'s' * (found.capacity != 1)}"
    return f"{units}, up to {found.maximum_units}" if found.maximum_units else units


def _content(client: ManagementClient, name: str) -> str:
    hubs = client.hubs(name)
    events = sum(
        count_retained(part) for hub in hubs for part in _partitions(client, name, hub.name)
    )
    return f"{len(hubs)} event hub{'s' * (len(hubs) != 1)} and {events:,} events"


def _partitions(client: ManagementClient, namespace: str, hub: str) -> list[dict[str, int]]:
    try:
        return client.partitions(namespace, hub)
    except NotFound:  # deleted while we looked
        return []
