"""`penstock hub create|list|show|alter|delete|partitions`."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.command_tree import CommandGroup
from penstock.cli.confirm import DryRun, Yes, confirm
from penstock.cli.output import (
    Format,
    OutputFormat,
    format_bytes,
    format_hours,
    print_message,
    print_record,
    print_rows,
)
from penstock.cli.service_options import AdminSession, HubName, with_service
from penstock.cli.units import parse_hours
from penstock.model.errors import AlreadyExists, NotFound

if TYPE_CHECKING:
    from penstock.management.client import EventHubResource

app = CommandGroup("Event hubs and their partitions.")

_CAPTURE_BYTES_MAX = 64 * 1024

Retention = Annotated[
    str | None, typer.Option(metavar="TIME", help="7d, 36h; a bare number is hours")
]
Status = Annotated[
    str | None,
    typer.Option(metavar="STATUS", help="Active, Disabled, SendDisabled or ReceiveDisabled"),
]
Metadata = Annotated[str | None, typer.Option(metavar="TEXT", help="Your own note, 1024 at most")]
Capture = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="JSON file with a captureDescription as in Azure"),
]


@app.verb()
@with_service
def create(
    service: AdminSession,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Letters, digits, _ - . /")],
    partitions: Annotated[
        int | None, typer.Option("--partitions", "-p", help="Fixed from now on [default: 4]")
    ] = None,
    retention: Retention = None,
    status: Status = None,
    metadata: Metadata = None,
    capture: Capture = None,
    if_absent: Annotated[
        bool, typer.Option("--if-absent", help="One that is there is fine, and stays as it is")
    ] = False,
    output: Format = OutputFormat.TABLE,
) -> None:
    """Make an event hub."""
    wanted = None if retention is None else parse_hours(retention, option="--retention")
    found = _find_hub(service, name)
    if found is not None and not if_absent:
        raise AlreadyExists(f"The event hub '{found.name}' exists already.")
    made = found or service.client.put_hub(
        service.namespace,
        name,
        partition_count=partitions,
        retention_hours=wanted,
        status=status,
        user_metadata=metadata,
        capture=_capture(capture),
    )
    print_message(
        f"The event hub '{made.name}' {'was' if found else 'is'} there: {_describe_hub(made)}."
    )
    if output is not OutputFormat.TABLE:
        print_record(_hub_row(made), output)


@app.verb("list")
@with_service
def list_(service: AdminSession, output: Format = OutputFormat.TABLE) -> None:
    """The event hubs of a namespace."""
    rows = [_hub_row(each) for each in service.client.hubs(service.namespace)]
    print_rows(
        rows,
        output,
        title=f"Event hubs of {service.namespace}",
        columns=("name", "partition_count", "retention_hours", "status", "created_at"),
        shown={"retention_hours": format_hours},
    )


@app.verb()
@with_service
def show(service: AdminSession, hub: HubName, output: Format = OutputFormat.TABLE) -> None:
    """One event hub, with what it holds."""
    client, namespace = service.client, service.namespace
    record = _hub_row(client.hub(namespace, hub))
    partitions = client.partitions(namespace, hub)
    record["events"] = sum(count_retained(each) for each in partitions)
    record["size_bytes"] = sum(each["size_bytes"] for each in partitions)
    record["groups"] = [each.name for each in client.groups(namespace, hub)]
    print_record(
        record, output, shown={"size_bytes": format_bytes, "retention_hours": format_hours}
    )


@app.verb()
@with_service
def alter(
    service: AdminSession,
    hub: HubName,
    retention: Retention = None,
    status: Status = None,
    metadata: Metadata = None,
    capture: Capture = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    output: Format = OutputFormat.TABLE,
) -> None:
    """Change retention, status, note or Capture. The number of partitions stays.

    A shorter retention deletes the events that are older, so that is asked about.
    """
    if all(each is None for each in (retention, status, metadata, capture)):
        raise typer.BadParameter(
            "Nothing is changed: give --retention, --status, --metadata or --capture."
        )
    wanted = None if retention is None else parse_hours(retention, option="--retention")
    old = service.client.hub(service.namespace, hub)
    shorter = wanted is not None and wanted < old.retention_hours
    what = f"The event hub '{old.name}' becomes {_difference(old, wanted, status)}."
    if shorter:
        what += f" Events older than {format_hours(wanted)} are deleted, for good."
    if (shorter or dry_run) and not confirm(what, old.name, yes=yes, dry_run=dry_run):
        return
    made = service.client.put_hub(
        service.namespace,
        hub,
        retention_hours=wanted,
        status=status,
        user_metadata=metadata,
        capture=_capture(capture),
    )
    print_message(f"The event hub '{made.name}': {_describe_hub(made)}.")
    if output is not OutputFormat.TABLE:
        print_record(_hub_row(made), output)


@app.verb()
@with_service
def delete(service: AdminSession, hub: HubName, yes: Yes = False, dry_run: DryRun = False) -> None:
    """Delete an event hub with its events, groups and policies, at once and for good."""
    client, namespace = service.client, service.namespace
    found = client.hub(namespace, hub)
    partitions = client.partitions(namespace, hub)
    size = format_bytes(sum(each["size_bytes"] for each in partitions))
    events = sum(map(count_retained, partitions))
    what = (
        f"The event hub '{found.name}' goes with {events:,} events ({size}) "
        f"in {found.partition_count} partitions, for good."
    )
    if confirm(what, found.name, yes=yes, dry_run=dry_run):
        client.delete_hub(namespace, hub)
        print_message(f"The event hub '{found.name}' is deleted.")


@app.verb()
@with_service
def partitions(service: AdminSession, hub: HubName, output: Format = OutputFormat.TABLE) -> None:
    """First and last sequence number, last offset, time and size of each partition."""
    found = service.client.partitions(service.namespace, hub)
    rows = [_partition(each) for each in found]
    print_rows(
        rows,
        output,
        title=f"Partitions of {hub}",
        columns=[name for name in rows[0] if name != "failed" or any(r["failed"] for r in rows)]
        if rows
        else (),
        shown={"size_bytes": format_bytes},
    )


def _find_hub(service: AdminSession, name: str) -> EventHubResource | None:
    try:
        return service.client.hub(service.namespace, name)
    except NotFound:
        service.client.namespace(service.namespace)  # that one has to be there
        return None


def _capture(file: Path | None) -> dict[str, Any] | None:
    if file is None:
        return None
    try:
        with file.open("rb") as opened:
            found = json.loads(opened.read(_CAPTURE_BYTES_MAX))
    except ValueError as error:
        raise typer.BadParameter(f"{file} is no JSON: {error}.", param_hint="--capture") from error
    if isinstance(found, dict) and isinstance(found.get("captureDescription"), dict):
        found = found["captureDescription"]
    if not isinstance(found, dict):
        raise typer.BadParameter(f"{file} holds no object.", param_hint="--capture")
    return found


def _hub_row(hub: EventHubResource) -> dict[str, object]:
    return {
        "name": hub.name,
        "partition_count": hub.partition_count,
        "retention_hours": hub.retention_hours,
        "status": hub.status,
        "user_metadata": hub.user_metadata,
        "capture": hub.capture,
        "created_at": hub.created_at,
        "updated_at": hub.updated_at,
    }


def _partition(found: dict[str, Any]) -> dict[str, object]:
    is_unused = found["last_sequence"] < 0  # nothing was ever published
    return {
        "partition": found["id"],
        "first_sequence_number": None if found["begin_sequence"] < 0 else found["begin_sequence"],
        "last_sequence_number": None if is_unused else found["last_sequence"],
        "events": count_retained(found),
        "last_offset": None if is_unused else found["last_offset"],
        "last_enqueued": None if is_unused else format_time(found["last_enqueued_ms"]),
        "size_bytes": found["size_bytes"],
        "failed": found["failed"],
    }


def count_retained(partition: dict[str, Any]) -> int:
    """Events that a partition holds. Its first sequence number is -1 when it holds none, also when
    retention removed all of them; the last one stays what it was."""
    first, last = int(partition["begin_sequence"]), int(partition["last_sequence"])
    return 0 if first < 0 else last - first + 1


def format_time(milliseconds: int) -> str:
    moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _describe_hub(hub: EventHubResource) -> str:
    return (
        f"{hub.partition_count} partitions, events stay {format_hours(hub.retention_hours)}, "
        f"{hub.status}"
    )


def _difference(old: EventHubResource, retention_hours: int | None, status: str | None) -> str:
    parts = []
    if retention_hours is not None:
        parts.append(
            f"{format_hours(retention_hours)} of retention instead of "
            f"{format_hours(old.retention_hours)}"
        )
    if status is not None:
        parts.append(f"{status} instead of {old.status}")
    return ", ".join(parts) or "the same with another note or Capture"
