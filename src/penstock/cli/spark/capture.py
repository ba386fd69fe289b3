"""`penstock capture status|enable|disable|verify|backfill|compact|run`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.command_tree import CommandGroup
from penstock.cli.confirm import DryRun, Yes, confirm
from penstock.cli.options import argument, option, parse_seconds
from penstock.cli.output import TABLE, Format, format_seconds, print_message
from penstock.cli.service_options import AdminSession, HubName, with_service, with_whole_service
from penstock.model.errors import ConfigurationError, NotFound, PenstockError
from penstock.model.extras import require_extra

if TYPE_CHECKING:
    from penstock.capture.destinations import Destination, DestinationFolder
    from penstock.capture.hub_files import FileLocationFilter
    from penstock.capture.status import CaptureStatus, DestinationSummary
    from penstock.client.ranges import RangeSettings
    from penstock.spark.capture.verify import ExpectedRange

app = CommandGroup("Capture: events as files, window by window.", with_service)

_CONTAINER = "capture"
_ENCODINGS = {"avro": "Avro", "avro-deflate": "AvroDeflate", "parquet": "Parquet"}
_UNITS = {"": 1, "kb": 1024, "mb": 1024**2, "gb": 1024**3}
_FIELDS = (
    *("namespace", "hub", "state", "destination", "encoding", "interval_seconds"),
    *("size_limit_bytes", "backlog_events", "backlog_seconds", "last_file", "last_file_at"),
    *("files", "events", "lost_events", "last_error"),
)
_COLUMNS = (
    *("hub", "state", "destination", "backlog_events", "backlog_seconds"),
    *("last_file_at", "files", "events", "last_error"),
)

Config = Annotated[
    Path | None, option("FILE", "The service's configuration, for credentials [PENSTOCK_CONFIG]")
]


@app.verb()
def status(
    service: AdminSession,
    hub: Annotated[str | None, argument("HUB", "Only this one")] = None,
    output: Format = TABLE,
) -> None:
    """Show state, backlog, last file and last error of Capture.

    Examples:
        penstock capture status
        penstock capture status orders -o json
    """
    rows = [_status_row(status) for status in _statuses(service, hub)]
    if hub is not None and not rows:
        service.client.hub(service.namespace, hub)  # raises NotFound, unless never captured
    if hub is not None and rows:
        output.print_record(rows[0])
        return
    output.print_rows(
        rows, title="Captured event hubs", columns=_COLUMNS, elided=("destination", "last_error")
    )
    if output is TABLE:
        for row in rows:
            if row["last_error"]:  # the table shortens it
                print_message(f"{row['hub']}: {row['last_error']}")


@app.verb()
def enable(
    service: AdminSession,
    hub: HubName,
    destination: Annotated[str | None, option("NAME", "Name of a configured destination")] = None,
    container: Annotated[
        str | None, option("NAME", "Container or directory in the destination")
    ] = None,
    interval: Annotated[str, option("TIME", "Close a window after this time: 1m to 15m")] = "5m",
    size: Annotated[str, option("SIZE", "Close a window at this size: 10MB to 500MB")] = "300MB",
    encoding: Annotated[
        str, option("FORMAT", "Format of the files: avro, avro-deflate or parquet")
    ] = "avro",
    name_format: Annotated[
        str | None, option("FORMAT", "Format of file names: all nine tokens, in any order")
    ] = None,
    skip_empty: Annotated[
        bool, option("--skip-empty", "No file for a window without events")
    ] = False,
    output: Format = TABLE,
) -> None:
    """Capture an event hub from the next event on, or change how it is captured.

    Examples:
        penstock capture enable orders --interval 1m --encoding parquet
    """
    from penstock.capture.destinations import parse_destination_url

    chosen = _choose_destination(service, destination)
    properties = {
        "storageAccountResourceId": chosen.name,
        "blobContainer": container or parse_destination_url(chosen.url).container or _CONTAINER,
    }
    if name_format is not None:
        properties["archiveNameFormat"] = name_format
    description = {
        "enabled": True,
        "encoding": _parse_encoding(encoding),
        "intervalInSeconds": int(parse_seconds(interval, option="--interval")),
        "sizeLimitInBytes": parse_size(size),
        "skipEmptyArchives": skip_empty,
        "destination": {"name": "EventHubArchive.AzureBlockBlob", "properties": properties},
    }
    client, namespace = service.client, service.namespace
    client.hub(namespace, hub)  # raises NotFound: put_hub would create it
    client.put_hub(namespace, hub, capture=description)
    (status,) = _statuses(service, hub)
    if status.state == "Failed" and status.last_error:
        print_message(
            f"Capture of '{status.hub}' is switched on, but it cannot run: {status.last_error}"
        )
        raise typer.Exit(1)
    message = (
        f"'{status.hub}' is captured to {status.destination} from the next event on: a window "
        f"closes after {format_seconds(status.interval_seconds)} or "
        f"{status.size_limit_bytes:,} bytes."
    )
    output.print_result(message, _status_row(status))


@app.verb()
def disable(service: AdminSession, hub: HubName, yes: Yes = False, dry_run: DryRun = False) -> None:
    """Stop capturing an event hub. Events published before are still written to files.

    Examples:
        penstock capture disable orders
    """
    client, namespace = service.client, service.namespace
    resource = client.hub(namespace, hub)
    if resource.capture is None or not resource.capture.get("enabled"):
        print_message(f"'{resource.name}' is not captured.")
        return
    what = f"Events that are published to '{resource.name}' from now on are not captured."
    if dry_run and not confirm(what, resource.name, yes=yes, dry_run=dry_run):
        return  # without --dry-run there is no question: nothing is lost
    client.put_hub(namespace, hub, capture={**resource.capture, "enabled": False})
    print_message(f"Capture of '{resource.name}' is off.")


@app.verb()
def backfill(
    service: AdminSession,
    hub: HubName,
    since: Annotated[
        str, option("--from POSITION", "earliest, a sequence number, or a time (ISO 8601)")
    ] = "earliest",
    output: Format = TABLE,
) -> None:
    """Capture retained events from before Capture was switched on.

    Examples:
        penstock capture backfill orders --from earliest
    """
    rows = service.client.backfill_capture(service.namespace, hub, since)
    count = sum(row["events"] for row in rows)
    print_message(
        f"{count:,} older events of '{hub}' are captured now; see 'penstock capture status'."
    )
    if output is not TABLE:
        output.print_rows(rows, title="Partitions")


@app.verb()
def verify(
    service: AdminSession,
    hub: HubName,
    config: Config = None,
    connection_string: Annotated[
        str | None, option("TEXT", "Read the log with this connection string")
    ] = None,
    output: Format = TABLE,
) -> None:
    """Compare log and files, event by event; exit code 1 when they differ.

    Examples:
        penstock capture verify orders
    """
    require_extra("capture")
    from penstock.spark.capture.verify import verify as compare

    status = _get_status(service, hub)
    locations, warnings = _find_locations(service, status, config)
    result = compare(
        locations,
        namespace=status.namespace,
        hub=status.hub,
        expected=[*_expected_ranges(service, status)],
        ranges=_range_settings(service, status.hub, connection_string),
    )
    output.print_record(result.row())
    for line in [*warnings, *result.problems][:20]:
        print_message(line)
    if not result.is_fine:
        raise PenstockError(
            f"Log and files of '{status.hub}' differ: {result.missing} missing, {result.double} "
            f"double, {result.different} different, {result.damaged_files} files damaged, "
            f"{result.unlike_manifest} not as their manifest says."
        )
    waiting = f" {result.waiting:,} more are in no file yet." if result.waiting else ""
    print_message(
        f"Log and files of '{status.hub}' are the same: {result.events:,} events.{waiting}"
    )


@app.verb()
def compact(
    service: AdminSession,
    hub: HubName,
    to: Annotated[
        str, option("PLACE", "Target of the Parquet files: DESTINATION/DIRECTORY, a path or a URL")
    ],
    since: Annotated[
        str | None, option("--from TIME", "Start with the hour of this time (UTC)")
    ] = None,
    until: Annotated[
        str | None, option("TIME", "End before this time, rounded up to a full hour (UTC)")
    ] = None,
    config: Config = None,
    master: Annotated[str, option("MASTER", "Spark master")] = "local[*]",
    output: Format = TABLE,
) -> None:
    """Merge captured files into Parquet, one directory per hour (Spark).

    Examples:
        penstock capture compact orders --to lake/orders --from 2026-11-16T00
    """
    require_extra("capture")
    from penstock.spark.capture.compact import compact as merge

    status = _get_status(service, hub)
    locations, warnings = _find_locations(service, status, config)
    target = parse_target(to, _load_destinations(service, config))
    rows = merge(
        locations,
        namespace=status.namespace,
        hub=status.hub,
        to=target,
        since=since,
        until=until,
        master=master,
    )
    for line in warnings:
        print_message(line)
    output.print_rows(rows, title=f"Files in {target.url}")
    count = sum(int(row["events"]) for row in rows)
    print_message(f"{count:,} events of '{status.hub}' are in {target.url}, by hour.")


@app.verb(options=with_whole_service)
def run(
    service: AdminSession,
    config: Config = None,
    state: Annotated[
        Path | None, option("DIR", "Directory for checkpoints and spool [PENSTOCK_CAPTURE_STATE]")
    ] = None,
    master: Annotated[str | None, option("MASTER", "Spark master [default: as configured]")] = None,
) -> None:
    """Run the capture job here. `penstock serve` starts one by itself; only one may run.

    Examples:
        penstock capture run --config penstock.toml
    """
    require_extra("capture")
    from penstock.cli.spark.capture_job import run_job

    run_job(service, config=config, state=state, master=master)


def _statuses(service: AdminSession, hub: str | None) -> list[CaptureStatus]:
    return [
        status
        for status in service.client.capture_status()
        if status.namespace.casefold() == service.namespace.casefold()
        and (hub is None or status.hub.casefold() == hub.casefold())
    ]


def _get_status(service: AdminSession, hub: str) -> CaptureStatus:
    """Raises NotFound."""
    for status in _statuses(service, hub):
        return status
    service.client.hub(service.namespace, hub)
    raise NotFound(f"The event hub '{hub}' was never captured.")


def _expected_ranges(service: AdminSession, status: CaptureStatus) -> Iterator[ExpectedRange]:
    """What finished runs and the others should have in files."""
    from penstock.spark.capture.verify import ExpectedRange

    for partition, ranges in status.past.covered.items():
        for first, end in ranges:
            yield ExpectedRange(partition, first, end, end)
    for assignment in service.client.capture_runs():
        if (assignment.namespace, assignment.hub) == (status.namespace, status.hub):
            stops = assignment.run.stops
            for partition, first in assignment.run.starts.items():
                captured = max(first, assignment.captured.get(partition, first))
                stop = None if stops is None else stops.get(partition, captured)
                yield ExpectedRange(partition, first, captured, stop)


def _find_locations(
    service: AdminSession, status: CaptureStatus, config: Path | None
) -> tuple[list[FileLocationFilter], list[str]]:
    """Present and earlier locations of a hub's files, and a warning for each that cannot be read.
    Raises PenstockError."""
    from penstock.capture.hub_files import resolve_locations

    destinations = _load_destinations(service, config)
    return resolve_locations(status.places, destinations, created_ms=status.created_ms)


def _load_destinations(service: AdminSession, config: Path | None) -> list[Destination]:
    """From the service's configuration where this machine has it; else from the service, with
    credentials of the environment. Raises PenstockError."""
    from penstock.capture.destinations import environment_destination
    from penstock.service.config.loader import load_settings

    settings = load_settings(flags={"config": config}, environ=os.environ)
    return list(settings.capture.destinations) or [
        environment_destination(summary.name, summary.url, os.environ)
        for summary in service.client.capture_destinations()
    ]


def parse_target(text: str, destinations: Sequence[Destination]) -> DestinationFolder:
    """A destination with a container or directory in it, a directory of this machine, or a URL
    with credentials of the environment (PENSTOCK_CAPTURE_TO_ACCOUNT_KEY, ...). Raises
    PenstockError."""
    from penstock.capture.destinations import environment_destination, resolve_destination

    name, _, below = text.partition("/")
    if any(destination.name.casefold() == name.casefold() for destination in destinations):
        return resolve_destination(destinations, name, below.strip("/"))
    url = text if "://" in text else Path(text).expanduser().resolve().as_uri()
    return resolve_destination([environment_destination("to", url, os.environ)], "to", "")


def _range_settings(
    service: AdminSession, hub: str, connection_string: str | None
) -> RangeSettings:
    """With this connection string, the environment's, or a key from the management API."""
    from penstock.client.ranges import RangeSettings
    from penstock.model import names

    text = connection_string or os.environ.get("PENSTOCK_CONNECTION_STRING")
    if text is None:
        rules = [
            rule.name
            for rule in service.client.rules(service.namespace)
            if {"Listen", "Manage"} & set(rule.rights)
        ]
        if not rules:
            raise ConfigurationError("No policy of the namespace may listen.")
        rule = names.ROOT_RULE if names.ROOT_RULE in rules else rules[0]
        text = service.client.keys(service.namespace, None, rule).primary_connection_string
    return RangeSettings(text, hub, ca_file=service.admin.ca_file)


def _status_row(status: CaptureStatus) -> dict[str, object]:
    from penstock.formats.quantities import format_time

    values = {name: getattr(status, name, None) for name in _FIELDS}
    at = format_time(status.last_file_ms) if status.last_file_ms else None
    texts = {"last_file": status.last_file or None, "last_error": status.last_error or None}
    return values | texts | {"last_file_at": at}


def _choose_destination(service: AdminSession, name: str | None) -> DestinationSummary:
    destinations = service.client.capture_destinations()
    names = ", ".join(destination.name for destination in destinations)
    if name is None:
        if len(destinations) == 1:
            return destinations[0]
        raise ConfigurationError(f"There are several destinations ({names}): give --destination.")
    for destination in destinations:
        if destination.name.casefold() == name.casefold():
            return destination
    raise NotFound(f"There is no destination '{name}'. Configured: {names}.")


def _parse_encoding(text: str) -> str:
    encoding = _ENCODINGS.get(text.strip().lower().replace("_", "-"))
    if encoding is None:
        raise typer.BadParameter(
            f"'{text}' is not one of {', '.join(_ENCODINGS)}.", param_hint="--encoding"
        )
    return encoding


def parse_size(text: str) -> int:
    match = re.fullmatch(r"([0-9]{1,12}) ?([a-z]{0,2})", text.strip().lower())
    if match is None or match[2] not in _UNITS:
        raise typer.BadParameter(
            f"'{text}' is not a size like 10MB or 314572800.", param_hint="--size"
        )
    return int(match[1]) * _UNITS[match[2]]
