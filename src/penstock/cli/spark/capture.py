"""`penstock capture status|enable|disable|verify|backfill|compact|run`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.command_tree import CommandGroup
from penstock.cli.confirm import DryRun, Yes, confirm
from penstock.cli.output import (
    Format,
    OutputFormat,
    format_seconds,
    print_message,
    print_record,
    print_rows,
)
from penstock.cli.service_options import AdminSession, HubName, with_service, with_whole_service
from penstock.cli.units import parse_seconds
from penstock.model.errors import ConfigurationError, NotFound, PenstockError

if TYPE_CHECKING:
    from penstock.management.client import CaptureStatus

app = CommandGroup("Capture: events as files, window by window.")

_CONTAINER = "capture"
_ENCODINGS = {"avro": "Avro", "avro-deflate": "AvroDeflate", "parquet": "Parquet"}
_UNITS = {"": 1, "kb": 1024, "mb": 1024**2, "gb": 1024**3}
_COLUMNS = (
    *("hub", "state", "destination", "backlog_events", "backlog_seconds"),
    *("last_file_at", "files", "events", "last_error"),
)

Config = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="The service's configuration, for credentials [PENSTOCK_CONFIG]"
    ),
]


@app.verb()
@with_service
def status(
    service: AdminSession,
    hub: Annotated[str | None, typer.Argument(metavar="HUB", help="One of them")] = None,
    output: Format = OutputFormat.TABLE,
) -> None:
    """How Capture is: state, backlog, last file, last error.

    Examples:
        penstock capture status
        penstock capture status orders -o json
    """
    found = [each for each in service.client.capture_status() if _is_of(each, service, hub)]
    if hub is not None and not found:
        service.client.hub(service.namespace, hub)  # NotFound, unless it was never captured
    rows = [_status_row(each) for each in found]
    if hub is not None and rows:
        print_record(rows[0], output, shown={"backlog_seconds": format_seconds})
        return
    print_rows(
        rows,
        output,
        title="Captured event hubs",
        columns=_COLUMNS,
        shown={"backlog_seconds": format_seconds},
        elided=("destination", "last_error"),
    )
    if output is OutputFormat.TABLE:
        for row in rows:
            if row["last_error"]:  # the table has no room for a sentence
                print_message(f"{row['hub']}: {row['last_error']}")


@app.verb()
@with_service
def enable(
    service: AdminSession,
    hub: HubName,
    destination: Annotated[
        str | None, typer.Option(metavar="NAME", help="One of the configuration's destinations")
    ] = None,
    container: Annotated[
        str | None, typer.Option(metavar="NAME", help="Container or directory in it")
    ] = None,
    interval: Annotated[
        str, typer.Option(metavar="TIME", help="Close a window after this time: 1m to 15m")
    ] = "5m",
    size: Annotated[
        str, typer.Option(metavar="SIZE", help="or when it has so much: 10MB to 500MB")
    ] = "300MB",
    encoding: Annotated[
        str, typer.Option(metavar="FORMAT", help="avro, avro-deflate or parquet")
    ] = "avro",
    name_format: Annotated[
        str | None, typer.Option(metavar="FORMAT", help="All nine tokens, in any order")
    ] = None,
    skip_empty: Annotated[
        bool, typer.Option("--skip-empty", help="No file for a window without events")
    ] = False,
    output: Format = OutputFormat.TABLE,
) -> None:
    """Capture an event hub from the next event on, or change how it is captured.

    Examples:
        penstock capture enable orders --interval 1m --encoding parquet
    """
    chosen = _destination(service, destination)
    properties = {
        "storageAccountResourceId": chosen["name"],
        "blobContainer": container or _container(chosen["url"]),
    }
    if name_format is not None:
        properties["archiveNameFormat"] = name_format
    description = {
        "enabled": True,
        "encoding": _encoding(encoding),
        "intervalInSeconds": int(parse_seconds(interval, option="--interval")),
        "sizeLimitInBytes": parse_size(size),
        "skipEmptyArchives": skip_empty,
        "destination": {"name": "EventHubArchive.AzureBlockBlob", "properties": properties},
    }
    client, namespace = service.client, service.namespace
    client.hub(namespace, hub)  # it is not made by this
    client.put_hub(namespace, hub, capture=description)
    (found,) = [each for each in client.capture_status() if _is_of(each, service, hub)]
    if found.state == "Failed" and found.last_error:
        print_message(
            f"Capture of '{found.hub}' is switched on, but it cannot run: {found.last_error}"
        )
        raise typer.Exit(1)
    print_message(
        f"'{found.hub}' is captured to {found.destination} from the next event on: a window closes "
        f"after {format_seconds(found.interval_seconds)} or {found.size_limit_bytes:,} bytes."
    )
    if output is not OutputFormat.TABLE:
        print_record(_status_row(found), output)


@app.verb()
@with_service
def disable(service: AdminSession, hub: HubName, yes: Yes = False, dry_run: DryRun = False) -> None:
    """Stop capturing an event hub. What was published before is still written.

    Examples:
        penstock capture disable orders
    """
    client, namespace = service.client, service.namespace
    found = client.hub(namespace, hub)
    if found.capture is None or not found.capture.get("enabled"):
        print_message(f"'{found.name}' is not captured.")
        return
    what = f"Events that are published to '{found.name}' from now on are not captured."
    if dry_run and not confirm(what, found.name, yes=yes, dry_run=dry_run):
        return  # nothing is lost by it, so nobody is asked
    client.put_hub(namespace, hub, capture={**found.capture, "enabled": False})
    print_message(f"Capture of '{found.name}' is off.")


@app.verb()
@with_service
def backfill(
    service: AdminSession,
    hub: HubName,
    since: Annotated[
        str, typer.Option("--from", metavar="POSITION", help="earliest, a number, an ISO time")
    ] = "earliest",
    output: Format = OutputFormat.TABLE,
) -> None:
    """Capture what is retained from before Capture was switched on.

    Examples:
        penstock capture backfill orders --from earliest
    """
    rows = service.client.backfill_capture(service.namespace, hub, since)
    count = sum(row["events"] for row in rows)
    print_message(
        f"{count:,} events of '{hub}' from before are captured now; see 'penstock capture status'."
    )
    if output is not OutputFormat.TABLE:
        print_rows(rows, output, title="Partitions")


@app.verb()
@with_service
def verify(
    service: AdminSession,
    hub: HubName,
    config: Config = None,
    connection_string: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Read the log with this one")
    ] = None,
    output: Format = OutputFormat.TABLE,
) -> None:
    """Prove that log and files are the same, event by event; exit code 1 when they are not.

    Examples:
        penstock capture verify orders
    """
    from penstock.cli.spark.capture_target import find_shelves, range_settings
    from penstock.spark.capture.verify import verify as compare

    told = _get_status(service, hub)
    shelves, troubles = find_shelves(service, told, config)
    result = compare(
        shelves,
        namespace=told.namespace,
        hub=told.hub,
        runs=[*_expected_ranges(service, told)],
        ranges=range_settings(service, told.hub, connection_string),
    )
    print_record(result.row(), output)
    for line in [*troubles, *result.problems][:20]:
        print_message(line)
    if not result.is_fine:
        raise PenstockError(
            f"Log and files of '{told.hub}' differ: {result.missing} missing, {result.double} "
            f"double, {result.different} different, {result.damaged_files} files damaged, "
            f"{result.unlike_manifest} not as their manifest says."
        )
    waiting = f" {result.waiting:,} more are in no file yet." if result.waiting else ""
    print_message(f"Log and files of '{told.hub}' are the same: {result.events:,} events.{waiting}")


@app.verb()
@with_service
def compact(
    service: AdminSession,
    hub: HubName,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="PLACE",
            help="Where the Parquet files go: DESTINATION/DIRECTORY, a path or a URL",
        ),
    ],
    since: Annotated[
        str | None,
        typer.Option("--from", metavar="TIME", help="From the hour of this time on (UTC)"),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option("--until", metavar="TIME", help="Up to the hour that ends then or later"),
    ] = None,
    config: Config = None,
    master: Annotated[str, typer.Option(metavar="MASTER", help="Spark's")] = "local[*]",
    output: Format = OutputFormat.TABLE,
) -> None:
    """Join captured files into Parquet, a directory for each hour (Spark).

    Examples:
        penstock capture compact orders --to lake/orders --from 2026-11-16T00
    """
    from penstock.cli.spark.capture_target import find_shelves, load_destinations, parse_target
    from penstock.spark.capture.compact import compact as join

    told = _get_status(service, hub)
    shelves, troubles = find_shelves(service, told, config)
    target = parse_target(to, load_destinations(service, config))
    rows = join(
        shelves,
        namespace=told.namespace,
        hub=told.hub,
        to=target,
        since=since,
        until=until,
        master=master,
    )
    for line in troubles:
        print_message(line)
    print_rows(rows, output, title=f"Files in {target.url}")
    count = sum(int(row["events"]) for row in rows)
    print_message(f"{count:,} events of '{told.hub}' stand in {target.url}, by hour.")


@app.verb()
@with_whole_service
def run(
    service: AdminSession,
    config: Config = None,
    state: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Checkpoints and spool [PENSTOCK_CAPTURE_STATE]"),
    ] = None,
    master: Annotated[
        str | None, typer.Option(metavar="MASTER", help="Spark's [default: the configuration's]")
    ] = None,
) -> None:
    """Run the capture job here. `penstock serve` does so by itself; one job at a time may run.

    Examples:
        penstock capture run --config penstock.toml
    """
    from penstock.cli.spark.capture_job import run_job

    ca_file = service.admin.ca_file
    run_job(service.client, ca_file=ca_file, config=config, state=state, master=master)


def _is_of(found: CaptureStatus, service: AdminSession, hub: str | None) -> bool:
    if found.namespace.casefold() != service.namespace.casefold():
        return False
    return hub is None or found.hub.casefold() == hub.casefold()


def _get_status(service: AdminSession, hub: str) -> CaptureStatus:
    for each in service.client.capture_status():
        if _is_of(each, service, hub):
            return each
    service.client.hub(service.namespace, hub)
    raise NotFound(f"The event hub '{hub}' was never captured.")


def _expected_ranges(service: AdminSession, told: CaptureStatus) -> Iterator[dict[str, Any]]:
    """What should be in files by now: of runs that are done, and of those that go on."""
    for partition, spans in told.past.get("covered", {}).items():
        for first, end in spans:
            stops = {partition: end}
            yield {"starts": {partition: first}, "captured": stops, "stops": stops}
    for each in service.client.capture_runs():
        if (each["namespace"], each["hub"]) == (told.namespace, told.hub):
            run = each["run"]
            yield {
                "starts": run["starts"],
                "captured": each["captured"],
                "stops": run.get("stops"),
            }


def _status_row(found: CaptureStatus) -> dict[str, object]:
    from penstock.capture.captured_file import format_time

    return {
        "namespace": found.namespace,
        "hub": found.hub,
        "state": found.state,
        "destination": found.destination,
        "encoding": found.encoding,
        "interval_seconds": found.interval_seconds,
        "size_limit_bytes": found.size_limit_bytes,
        "backlog_events": found.backlog_events,
        "backlog_seconds": found.backlog_seconds,
        "last_file": found.last_file or None,
        "last_file_at": format_time(found.last_file_ms) if found.last_file_ms else None,
        "files": found.files,
        "events": found.events,
        "lost_events": found.lost_events,
        "last_error": found.last_error or None,
    }


def _destination(service: AdminSession, name: str | None) -> dict[str, str]:
    known = service.client.capture_destinations()
    names = ", ".join(each["name"] for each in known)
    if name is None:
        if len(known) == 1:
            return known[0]
        raise ConfigurationError(f"There are several destinations ({names}): give --destination.")
    for each in known:
        if each["name"].casefold() == name.casefold():
            return each
    raise NotFound(f"There is no destination '{name}'. Configured: {names}.")


def _container(url: str) -> str:
    """A URL's own container, which is not added twice; else a directory of ours."""
    from penstock.capture.addresses import parse_destination_url

    return parse_destination_url(url).container or _CONTAINER


def _encoding(text: str) -> str:
    found = _ENCODINGS.get(text.strip().lower().replace("_", "-"))
    if found is None:
        raise typer.BadParameter(
            f"'{text}' is no format: {', '.join(_ENCODINGS)} are.", param_hint="--encoding"
        )
    return found


def parse_size(text: str) -> int:
    match = re.fullmatch(r"([0-9]{1,12}) ?([a-z]{0,2})", text.strip().lower())
    if match is None or match[2] not in _UNITS:
        raise typer.BadParameter(
            f"'{text}' is no size: 10MB or 314572800 are.", param_hint="--size"
        )
    return int(match[1]) * _UNITS[match[2]]
