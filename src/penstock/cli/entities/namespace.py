"""`penstock namespace create|list|show|delete|set-units` and `penstock grant`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.command_tree import CommandGroup
from penstock.cli.confirm import DryRun, Yes, confirm
from penstock.cli.entities.hub import count_retained
from penstock.cli.options import argument, option
from penstock.cli.output import TABLE, Format, print_message
from penstock.cli.service_options import (
    AdminSession,
    complete_namespaces,
    with_data_directory,
    with_whole_service,
)
from penstock.model.errors import AlreadyExists, NotFound

if TYPE_CHECKING:
    from penstock.management.client import ManagementClient
    from penstock.management.resources import NamespaceResource
    from penstock.model.quotas import QuotaKind

app = CommandGroup("Namespaces and their throughput units.", with_whole_service)

Name = Annotated[str, argument("NAME", "Namespace", autocompletion=complete_namespaces)]
MaxUnits = Annotated[int | None, option("N", "Auto-inflate up to N units; 0 switches it off")]


@app.verb()
def create(
    service: AdminSession,
    name: Annotated[str, argument("NAME", "6 to 50 letters, digits, hyphens")],
    units: Annotated[
        str | None, option("N|unlimited", "Throughput units; unlimited: counted, not enforced")
    ] = None,
    max_units: MaxUnits = None,
    sku: Annotated[str | None, option("TEXT", "Tier: Standard, Premium or Dedicated")] = None,
    resource_group: Annotated[
        str, option("TEXT", "Resource group in the management API")
    ] = "penstock",
    output: Format = TABLE,
) -> None:
    """Create a namespace.

    Examples:
        penstock namespace create second-one
        penstock namespace create second-one --units 2 --max-units 8
    """
    number, is_unlimited = _parse_units(units)
    client = service.client
    if any(entity.name.casefold() == name.casefold() for entity in client.namespaces()):
        raise AlreadyExists(f"The namespace '{name}' exists already.")
    namespace = client.put_namespace(
        name,
        units=number,
        unlimited=is_unlimited or (number is None and sku is None),
        sku=sku,
        maximum_units=max_units,
        resource_group=resource_group,
    )
    message = f"Created the namespace '{namespace.name}': {_describe_units(namespace)}."
    output.print_result(message, _namespace_row(namespace))


@app.verb("list")
def list_(service: AdminSession, output: Format = TABLE) -> None:
    """List the namespaces of the service.

    Examples:
        penstock namespace list
    """
    output.print_rows(
        [_namespace_row(namespace) for namespace in service.client.namespaces()],
        title="Namespaces",
        columns=("name", "sku", "units", "enforced", "maximum_units", "created_at"),
    )


@app.verb()
def show(service: AdminSession, name: Name, output: Format = TABLE) -> None:
    """Show one namespace and its event hubs.

    Examples:
        penstock namespace show penstock
    """
    client = service.client
    record = _namespace_row(client.namespace(name))
    hubs = client.hubs(name)
    record["hubs"] = [hub.name for hub in hubs]
    record["partitions"] = sum(hub.partition_count for hub in hubs)
    output.print_record(record)


@app.verb()
def delete(service: AdminSession, name: Name, yes: Yes = False, dry_run: DryRun = False) -> None:
    """Delete a namespace with its event hubs, events, groups and policies.

    Examples:
        penstock namespace delete second-one --dry-run
        penstock namespace delete second-one --yes
    """
    name = service.client.namespace(name).name
    what = (
        f"This deletes the namespace '{name}' with {_describe_content(service.client, name)}. It "
        "cannot be undone."
    )
    if confirm(what, name, yes=yes, dry_run=dry_run):
        service.client.delete_namespace(name)
        print_message(f"Deleted the namespace '{name}'.")


@app.verb("set-units")
def set_units(
    service: AdminSession,
    name: Name,
    units: Annotated[str, argument("N|unlimited", "Throughput units")],
    max_units: MaxUnits = None,
    output: Format = TABLE,
) -> None:
    """Set the throughput units that are enforced; unlimited enforces none.

    Examples:
        penstock namespace set-units penstock 4
        penstock namespace set-units penstock unlimited
    """
    number, is_unlimited = _parse_units(units)
    service.client.namespace(name)
    namespace = service.client.put_namespace(
        name, units=number, unlimited=is_unlimited, maximum_units=max_units
    )
    message = f"The namespace '{namespace.name}' has {_describe_units(namespace)}."
    output.print_result(message, _namespace_row(namespace))


app.verb("set-tu", hidden=True)(set_units)


@with_data_directory
def grant(
    data: Path,
    namespace: Annotated[str, argument("NAMESPACE", "Namespace")],
    by: Annotated[str, option("TEXT", "Your name, for the audit log")],
    throughput_units: Annotated[
        int | None, option("N", "New maximum: 40, 60, 80, 100 or a multiple of 100")
    ] = None,
    partitions: Annotated[
        int | None, option("N", "New maximum for each event hub: 33 to 1024")
    ] = None,
    note: Annotated[str, option("TEXT", "Reason, for the audit log")] = "",
) -> None:
    """Allow a namespace more units or partitions.

    It takes effect at once where a service runs on the data directory, otherwise at the next start.

    Examples:
        penstock grant penstock --throughput-units 60 --by anna --note "Black Friday"
    """
    from penstock.model.quotas import QuotaKind

    limits = {QuotaKind.THROUGHPUT_UNITS: throughput_units, QuotaKind.PARTITIONS: partitions}
    requested = {kind: value for kind, value in limits.items() if value is not None}
    if not requested:
        raise typer.BadParameter("Pass --throughput-units or --partitions.")
    for kind, value in requested.items():
        _grant(data, namespace, kind, value, by, note)
        print_message(f"{namespace} may have up to {value} {kind}.")


def _grant(data: Path, namespace: str, kind: QuotaKind, value: int, by: str, note: str) -> None:
    from penstock.catalog import offline
    from penstock.io.runtime_file import read_runtime
    from penstock.management.client import ManagementClient
    from penstock.model.clock import SystemClock
    from penstock.model.names import NamespaceName
    from penstock.model.quotas import QuotaGrant

    if read_runtime(data) is not None:  # a running service does not see changes of its files
        with ManagementClient.find({}, data=data) as client:
            client.grant(namespace, kind, value, note=note, by=by)
        return
    offline.store_grant_offline(
        data,
        QuotaGrant(
            namespace=NamespaceName(namespace),
            kind=kind,
            value=value,
            granted_by=by,
            granted_ms=SystemClock().now_ms(),
            note=note,
        ),
    )


def _parse_units(text: str | None) -> tuple[int | None, bool]:
    """The number of units, and whether they are unlimited."""
    if text is None or text.casefold() == "unlimited":
        return None, text is not None
    if not (text.isascii() and text.isdigit()):
        raise typer.BadParameter(f"'{text}' is neither a number nor unlimited.")
    return int(text), False


def _namespace_row(namespace: NamespaceResource) -> dict[str, object]:
    return {
        "name": namespace.name,
        "sku": namespace.sku.name,
        "limits": namespace.properties.limits,
        "units": namespace.capacity,
        "enforced": not namespace.unlimited,
        "maximum_units": namespace.maximum_units or None,
        "created_at": namespace.created_at,
        "updated_at": namespace.updated_at,
        "location": namespace.location,
        "tags": namespace.tags,
        "id": namespace.id,
    }


def _describe_units(namespace: NamespaceResource) -> str:
    if namespace.unlimited:
        return "unlimited throughput units (counted, not enforced)"
    units = f"{namespace.capacity} throughput unit{'s' * (namespace.capacity != 1)}"
    return f"{units}, up to {namespace.maximum_units}" if namespace.maximum_units else units


def _describe_content(client: ManagementClient, name: str) -> str:
    hubs = client.hubs(name)
    events = 0
    for hub in hubs:
        try:
            events += sum(map(count_retained, client.partitions(name, hub.name)))
        except NotFound:  # another client deleted it meanwhile
            continue
    return f"{len(hubs)} event hub{'s' * (len(hubs) != 1)} and {events:,} events"
