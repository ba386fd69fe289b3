"""`penstock hub create|list|show|alter|delete|partitions`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.command_tree import CommandGroup
from penstock.cli.confirm import DryRun, Yes, confirm
from penstock.cli.options import argument, option, parse_hours
from penstock.cli.output import TABLE, Format, format_bytes, format_hours, print_message
from penstock.cli.service_options import AdminSession, HubName, with_service
from penstock.formats.quantities import format_time
from penstock.model.errors import AlreadyExists, NotFound

if TYPE_CHECKING:
    from penstock.management.resources import EventHubResource

app = CommandGroup("Event hubs and their partitions.", with_service)

_CAPTURE_BYTES_MAX = 64 * 1024
_FIELDS = (
    *("name", "partition_count", "retention_hours", "status"),
    *("user_metadata", "capture", "created_at", "updated_at"),
)


@dataclass(frozen=True, kw_only=True)
class HubProperties:
    """The properties of an event hub that can be changed; None leaves one as it is."""

    retention: Annotated[
        str | None, option("TIME", "How long events are kept: 7d, 36h; a number is hours")
    ] = None
    status: Annotated[
        str | None, option("STATUS", "Status: Active, Disabled, SendDisabled or ReceiveDisabled")
    ] = None
    metadata: Annotated[str | None, option("TEXT", "A note of up to 1,024 characters")] = None
    capture: Annotated[
        Path | None, option("FILE", "JSON file with a captureDescription as in Azure")
    ] = None

    def read(self) -> dict[str, Any]:
        """The arguments of `put_hub`. Raises typer.BadParameter."""
        hours = None
        if self.retention is not None:
            hours = parse_hours(self.retention, option="--retention")
        return {
            "retention_hours": hours,
            "status": self.status,
            "user_metadata": self.metadata,
            "capture": _read_capture_description(self.capture),
        }


@app.verb()
def create(
    service: AdminSession,
    name: Annotated[str, argument("NAME", "Letters, digits, _ - . /")],
    *,
    partitions: Annotated[
        int | None,
        option("--partitions -p N", "Number of partitions; cannot be changed later [default: 4]"),
    ] = None,
    properties: HubProperties,
    if_absent: Annotated[
        bool, option("--if-absent", "Leave an existing event hub as it is")
    ] = False,
    output: Format = TABLE,
) -> None:
    """Create an event hub.

    Examples:
        penstock hub create orders --partitions 8 --retention 7d
        penstock hub create orders --if-absent
    """
    values = properties.read()
    existing = _find_hub(service, name)
    if existing is not None and not if_absent:
        raise AlreadyExists(f"The event hub '{existing.name}' exists already.")
    hub = existing or service.client.put_hub(
        service.namespace, name, partition_count=partitions, **values
    )
    message = f"Created the event hub '{hub.name}'"
    if existing is not None:
        message = f"The event hub '{hub.name}' exists already"
    output.print_result(f"{message}: {_describe_hub(hub)}.", _hub_row(hub))


@app.verb("list")
def list_(service: AdminSession, output: Format = TABLE) -> None:
    """List the event hubs of a namespace.

    Examples:
        penstock hub list
        penstock hub list -o json
    """
    output.print_rows(
        [_hub_row(hub) for hub in service.client.hubs(service.namespace)],
        title=f"Event hubs of {service.namespace}",
        columns=("name", "partition_count", "retention_hours", "status", "created_at"),
    )


@app.verb()
def show(service: AdminSession, hub: HubName, output: Format = TABLE) -> None:
    """Show one event hub with its number of events, its size and its groups.

    Examples:
        penstock hub show orders
    """
    client, namespace = service.client, service.namespace
    record = _hub_row(client.hub(namespace, hub))
    partitions = client.partitions(namespace, hub)
    record["events"] = sum(map(count_retained, partitions))
    record["size_bytes"] = sum(row["size_bytes"] for row in partitions)
    record["groups"] = [group.name for group in client.groups(namespace, hub)]
    output.print_record(record)


@app.verb()
def alter(
    service: AdminSession,
    hub: HubName,
    properties: HubProperties,
    yes: Yes = False,
    dry_run: DryRun = False,
    output: Format = TABLE,
) -> None:
    """Change retention, status, note or Capture of an event hub.

    A shorter retention deletes older events, so it has to be confirmed. The number of partitions
    cannot be changed.

    Examples:
        penstock hub alter orders --retention 3d --yes
        penstock hub alter orders --status SendDisabled
    """
    values = properties.read()
    if all(value is None for value in values.values()):
        raise typer.BadParameter("Pass --retention, --status, --metadata or --capture.")
    hours = values["retention_hours"]
    old = service.client.hub(service.namespace, hub)
    is_shorter = hours is not None and hours < old.retention_hours
    change = _describe_change(old, hours, properties.status)
    what = f"This changes the event hub '{old.name}' to {change}."
    if is_shorter:
        what += f" Events older than {format_hours(hours)} are deleted. It cannot be undone."
    if (is_shorter or dry_run) and not confirm(what, old.name, yes=yes, dry_run=dry_run):
        return
    new = service.client.put_hub(service.namespace, hub, **values)
    message = f"Changed the event hub '{new.name}': {_describe_hub(new)}."
    output.print_result(message, _hub_row(new))


@app.verb()
def delete(service: AdminSession, hub: HubName, yes: Yes = False, dry_run: DryRun = False) -> None:
    """Delete an event hub with its events, groups and policies.

    Examples:
        penstock hub delete orders --dry-run
        penstock hub delete orders --yes
    """
    client, namespace = service.client, service.namespace
    entity = client.hub(namespace, hub)
    partitions = client.partitions(namespace, hub)
    size = format_bytes(sum(row["size_bytes"] for row in partitions))
    events = sum(map(count_retained, partitions))
    what = (
        f"This deletes the event hub '{entity.name}' with {events:,} events ({size}) "
        f"in {entity.partition_count} partitions. It cannot be undone."
    )
    if confirm(what, entity.name, yes=yes, dry_run=dry_run):
        client.delete_hub(namespace, hub)
        print_message(f"Deleted the event hub '{entity.name}'.")


@app.verb()
def partitions(service: AdminSession, hub: HubName, output: Format = TABLE) -> None:
    """Show sequence numbers, last offset, last time and size of each partition.

    Examples:
        penstock hub partitions orders
    """
    rows = [_partition_row(row) for row in service.client.partitions(service.namespace, hub)]
    hidden = () if any(row["failed"] for row in rows) else ("failed",)
    output.print_rows(
        rows,
        title=f"Partitions of {hub}",
        columns=[name for name in (rows[0] if rows else ()) if name not in hidden],
    )


def _find_hub(service: AdminSession, name: str) -> EventHubResource | None:
    try:
        return service.client.hub(service.namespace, name)
    except NotFound:
        service.client.namespace(service.namespace)  # raises NotFound if that one is missing
        return None


def _read_capture_description(file: Path | None) -> dict[str, Any] | None:
    if file is None:
        return None
    try:
        with file.open("rb") as opened:
            content = json.loads(opened.read(_CAPTURE_BYTES_MAX))
    except ValueError as error:
        raise typer.BadParameter(f"{file} is not JSON: {error}.", param_hint="--capture") from error
    if isinstance(content, dict) and isinstance(content.get("captureDescription"), dict):
        content = content["captureDescription"]
    if not isinstance(content, dict):
        raise typer.BadParameter(f"{file} holds no JSON object.", param_hint="--capture")
    return content


def _hub_row(hub: EventHubResource) -> dict[str, object]:
    return {name: getattr(hub, name) for name in _FIELDS}


def _partition_row(partition: dict[str, Any]) -> dict[str, object]:
    is_unused = partition["last_sequence"] < 0  # nothing was ever published
    first = partition["begin_sequence"]
    return {
        "partition": partition["id"],
        "first_sequence_number": None if first < 0 else first,
        "last_sequence_number": None if is_unused else partition["last_sequence"],
        "events": count_retained(partition),
        "last_offset": None if is_unused else partition["last_offset"],
        "last_enqueued": None if is_unused else format_time(partition["last_enqueued_ms"]),
        "size_bytes": partition["size_bytes"],
        "failed": partition["failed"],
    }


def count_retained(partition: dict[str, Any]) -> int:
    """The number of events in a partition. Its first sequence number is -1 if it has none, also
    after retention removed all of them; the last one stays as it was."""
    first, last = int(partition["begin_sequence"]), int(partition["last_sequence"])
    return 0 if first < 0 else last - first + 1


def _describe_hub(hub: EventHubResource) -> str:
    retention = format_hours(hub.retention_hours)
    return f"{hub.partition_count} partitions, retention {retention}, {hub.status}"


def _describe_change(old: EventHubResource, retention_hours: int | None, status: str | None) -> str:
    parts = []
    if retention_hours is not None:
        before, after = format_hours(old.retention_hours), format_hours(retention_hours)
        parts.append(f"retention {after} instead of {before}")
    if status is not None:
        parts.append(f"{status} instead of {old.status}")
    return ", ".join(parts) or "the new note or Capture"
