"""`penstock capture status|enable|disable|verify|backfill|compact|run`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.command_tree import Noun
from penstock.cli.confirm import DryRun, Yes, confirm
from penstock.cli.output import Format, Output, print_record, print_rows, seconds_shown, talk
from penstock.cli.service_options import HubName, Service, with_service, with_whole_service
from penstock.cli.units import seconds
from penstock.model.errors import ConfigurationError, NotFound, PenstockError

if TYPE_CHECKING:
    from penstock.management.client import CaptureStatusInfo

app = Noun("Capture: events as files, window by window.")

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
    service: Service,
    hub: Annotated[str | None, typer.Argument(metavar="HUB", help="One of them")] = None,
    output: Format = Output.TABLE,
) -> None:
    """How Capture is: state, backlog, last file, last error."""
    found = [each for each in service.client.capture_status() if _is_of(each, service, hub)]
    if hub is not None and not found:
        service.client.hub(service.namespace, hub)  # NotFound, unless it was never captured
    rows = [_row(each) for each in found]
    if hub is not None and rows:
        print_record(rows[0], output, shown={"backlog_seconds": seconds_shown})
        return
    print_rows(
        rows,
        output,
        title="Captured event hubs",
        columns=_COLUMNS,
        shown={"backlog_seconds": seconds_shown},
        elided=("destination", "last_error"),
    )
    if output is Output.TABLE:
        for row in rows:
            if row["last_error"]:  # the table has no room for a sentence
                talk(f"{row['hub']}: {row['last_error']}")


@app.verb()
@with_service
def enable(
    service: Service,
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
    output: Format = Output.TABLE,
) -> None:
    """Capture an event hub from the next event on, or change how it is captured."""
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
        "intervalInSeconds": int(seconds(interval, option="--interval")),
        "sizeLimitInBytes": _bytes(size),
        "skipEmptyArchives": skip_empty,
        "destination": {"name": "EventHubArchive.AzureBlockBlob", "properties": properties},
    }
    client, namespace = service.client, service.namespace
    client.hub(namespace, hub)  # it is not made by this
    client.put_hub(namespace, hub, capture=description)
    (found,) = [each for each in client.capture_status() if _is_of(each, service, hub)]
    if found.state == "Failed" and found.last_error:
        talk(f"Capture of '{found.hub}' is switched on, but it cannot run: {found.last_error}")
        raise typer.Exit(1)
    talk(
        f"'{found.hub}' is captured to {found.destination} from the next event on: a window closes "
        f"after {seconds_shown(found.interval_seconds)} or {found.size_limit_bytes:,} bytes."
    )
    if output is not Output.TABLE:
        print_record(_row(found), output)


@app.verb()
@with_service
def disable(service: Service, hub: HubName, yes: Yes = False, dry_run: DryRun = False) -> None:
    """Stop capturing an event hub. What was published before is still written."""
    client, namespace = service.client, service.namespace
    found = client.hub(namespace, hub)
    if found.capture is None or not found.capture.get("enabled"):
        talk(f"'{found.name}' is not captured.")
        return
    what = f"Events that are published to '{found.name}' from now on are not captured."
    if dry_run and not confirm(what, found.name, yes=yes, dry_run=dry_run):
        return  # nothing is lost by it, so nobody is asked
    client.put_hub(namespace, hub, capture={**found.capture, "enabled": False})
    talk(f"Capture of '{found.name}' is off.")


@app.verb()
@with_service
def backfill(
    service: Service,
    hub: HubName,
    since: Annotated[
        str, typer.Option("--from", metavar="POSITION", help="earliest, a number, an ISO time")
    ] = "earliest",
    output: Format = Output.TABLE,
) -> None:
    """Capture what is retained from before Capture was switched on."""
    rows = service.client.backfill_capture(service.namespace, hub, since)
    count = sum(row["events"] for row in rows)
    talk(
        f"{count:,} events of '{hub}' from before are captured now; see 'penstock capture status'."
    )
    if output is not Output.TABLE:
        print_rows(rows, output, title="Partitions")


@app.verb()
@with_service
def verify(
    service: Service,
    hub: HubName,
    config: Config = None,
    connection_string: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Read the log with this one")
    ] = None,
    output: Format = Output.TABLE,
) -> None:
    """Prove that log and files are the same, event by event; exit code 1 when they are not."""
    from penstock.cli.spark.capture_target import find_shelves, range_settings
    from penstock.spark.capture.verify import verify as compare

    told = _told(service, hub)
    shelves, troubles = find_shelves(service, told, config)
    result = compare(
        shelves,
        namespace=told.namespace,
        hub=told.hub,
        runs=[*_captured(service, told)],
        ranges=range_settings(service, told.hub, connection_string),
    )
    print_record(result.row(), output)
    for line in [*troubles, *result.problems][:20]:
        talk(line)
    if not result.is_fine:
        raise PenstockError(
            f"Log and files of '{told.hub}' differ: {result.missing} missing, {result.double} "
            f"double, {result.different} different, {result.damaged_files} files damaged, "
            f"{result.unlike_manifest} not as their manifest says."
        )
    waiting = f" {result.waiting:,} more are in no file yet." if result.waiting else ""
    talk(f"Log and files of '{told.hub}' are the same: {result.events:,} events.{waiting}")


@app.verb()
@with_service
def compact(
    service: Service,
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
    output: Format = Output.TABLE,
) -> None:
    """Join captured files into Parquet, a directory for each hour (Spark)."""
    from penstock.cli.spark.capture_target import find_shelves, known_destinations, named_target
    from penstock.spark.capture.compact import compact as join

    told = _told(service, hub)
    shelves, troubles = find_shelves(service, told, config)
    target = named_target(to, known_destinations(service, config))
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
        talk(line)
    print_rows(rows, output, title=f"Files in {target.url}")
    count = sum(int(row["events"]) for row in rows)
    talk(f"{count:,} events of '{told.hub}' stand in {target.url}, by hour.")


@app.verb()
@with_whole_service
def run(
    service: Service,
    config: Config = None,
    state: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Checkpoints and spool [PENSTOCK_CAPTURE_STATE]"),
    ] = None,
    master: Annotated[
        str | None, typer.Option(metavar="MASTER", help="Spark's [default: the configuration's]")
    ] = None,
) -> None:
    """Run the capture job here. `penstock serve` does so by itself; one job at a time may run."""
    from penstock.cli.spark.capture_job import run_job

    ca_file = service.admin.ca_file
    run_job(service.client, ca_file=ca_file, config=config, state=state, master=master)


def _is_of(found: CaptureStatusInfo, service: Service, hub: str | None) -> bool:
    if found.namespace.casefold() != service.namespace.casefold():
        return False
    return hub is None or found.hub.casefold() == hub.casefold()


def _told(service: Service, hub: str) -> CaptureStatusInfo:
    for each in service.client.capture_status():
        if _is_of(each, service, hub):
            return each
    service.client.hub(service.namespace, hub)
    raise NotFound(f"The event hub '{hub}' was never captured.")


def _captured(service: Service, told: CaptureStatusInfo) -> Iterator[dict[str, Any]]:
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


def _row(found: CaptureStatusInfo) -> dict[str, object]:
    from penstock.capture.captured_file import time_text

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
        "last_file_at": time_text(found.last_file_ms) if found.last_file_ms else None,
        "files": found.files,
        "events": found.events,
        "lost_events": found.lost_events,
        "last_error": found.last_error or None,
    }


def _destination(service: Service, name: str | None) -> dict[str, str]:
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
    from penstock.capture.addresses import address_of

    return address_of(url).container or _CONTAINER


def _encoding(text: str) -> str:
    found = _ENCODINGS.get(text.strip().lower().replace("_", "-"))
    if found is None:
        raise typer.BadParameter(
            f"'{text}' is no format: {', '.join(_ENCODINGS)} are.", param_hint="--encoding"
        )
    return found


def _bytes(text: str) -> int:
    match = re.fullmatch(r"([0-9]{1,12}) ?([a-z]{0,2})", text.strip().lower())
    if match is None or match[2] not in _UNITS:
        raise typer.BadParameter(
            f"'{text}' is no size: 10MB or 314572800 are.", param_hint="--size"
        )
    return int(match[1]) * _UNITS[match[2]]
