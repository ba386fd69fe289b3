"""Capture: how it is for every hub, and one hub's switch, window, destination and names."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from penstock.capture.description import (
    ENCODINGS,
    INTERVAL_S,
    INTERVAL_S_DEFAULT,
    NAME_FORMAT_DEFAULT,
    SIZE_BYTES,
    SIZE_BYTES_DEFAULT,
)
from penstock.capture.file_names import format_file_path
from penstock.capture.status import CaptureStatus, DestinationSummary
from penstock.formats.quantities import (
    format_age,
    format_count,
    format_duration,
    format_moment,
    format_moment_with_age,
    format_size,
)
from penstock.management.client import ManagementClient
from penstock.management.permissions import AdminRole
from penstock.management.resources import EventHubResource
from penstock.model.errors import ArgumentError
from penstock.portal import components as ui
from penstock.portal.html import Html, el
from penstock.portal.layout import page
from penstock.portal.page_request import ActionCompleted, PageRequest

_MB = 1024 * 1024
_DAY_S = 86_400
_TONES = {"Running": "good", "Starting": "warn", "Waiting": "warn", "Failed": "bad"}


async def capture_list(visit: PageRequest) -> Response:
    statuses = await _statuses(visit)
    now_ms = visit.portal.clock.now_ms()
    rows = []
    for hub in await visit.visible_hubs():
        status = statuses.get(hub.name.casefold())
        link = el("a", hub.name, href=visit.link("hubs", hub.name, "capture"))
        rows.append({"Event hub": link, **_cells(status, now_ms)})
    table = ui.table(rows, empty="No event hub yet.", numbers=("Files",))
    destinations = ui.table(
        [{"Name": each.name, "Address": each.url} for each in await _destinations(visit)],
        empty="None is configured: [capture.destinations.NAME] with a url in the configuration "
        "file makes one.",
    )
    return await page(
        visit, ui.card("", ui.live_element("capture", table)), ui.card("Destinations", destinations)
    )


def _cells(status: CaptureStatus | None, now_ms: int) -> dict[str, object]:
    if status is None:
        unknown = ("Destination", "Waiting", "Last file", "Files", "Last error")
        return {"State": ui.badge("Off"), **dict.fromkeys(unknown, "")}
    late, age = format_duration(status.backlog_seconds), format_age(status.last_file_ms, now_ms)
    return {
        "State": ui.badge(status.state, _TONES.get(status.state, "")),
        "Destination": status.destination,
        "Waiting": f"{format_count(status.backlog_events)} events, {late}",
        "Last file": f"{status.last_file} ({age})" if status.last_file else "none yet",
        "Files": status.files,
        "Last error": status.last_error,
    }


async def _statuses(visit: PageRequest) -> dict[str, CaptureStatus]:
    statuses = await visit.backend.read(ManagementClient.capture_status)
    here = visit.namespace.casefold()
    return {each.hub.casefold(): each for each in statuses if each.namespace.casefold() == here}


async def _destinations(visit: PageRequest) -> list[DestinationSummary]:
    return await visit.backend.read(ManagementClient.capture_destinations)


async def hub_capture(visit: PageRequest) -> Response:
    hub = await visit.hub()
    status = (await _statuses(visit)).get(hub.name.casefold())
    settings = None
    if visit.may(AdminRole.OPERATOR):
        settings = _form(visit, hub, await _destinations(visit))
    elif hub.capture:
        settings = ui.card("Settings", _settings(hub.capture))
    return await page(visit, ui.live_element("status", _status(visit, status)), settings)


def _status(visit: PageRequest, status: CaptureStatus | None) -> Html:
    if status is None or status.state == "Off":
        return ui.tiles(ui.tile("State", "Off", "events stay in the log alone"))
    now_ms = visit.portal.clock.now_ms()
    files = status.recent_files
    waiting_note = f"events, {format_duration(status.backlog_seconds)}"
    lost, lost_tone = status.lost_events, "bad" if status.lost_events else "good"
    tiles = ui.tiles(
        ui.tile("State", status.state, tone=_TONES.get(status.state, "")),
        ui.tile("Waiting", format_count(status.backlog_events), waiting_note),
        ui.tile("Files", status.files, "since it was switched on"),
        ui.tile("Events in files", format_count(status.events)),
        ui.tile("Lost", lost, "fell out of retention", tone=lost_tone),
    )
    written_ms = files[0].written_ms if files else 0
    last = ui.facts(
        ("File", ui.mono(status.last_file or "none yet", id="last-file")),
        ("Window closed (UTC)", format_moment_with_age(status.last_file_ms, now_ms)),
        ("Written (UTC)", format_moment_with_age(written_ms, now_ms)),
        ("Destination", status.destination),
        ("Last error", status.last_error or "none"),
        ("Last heard of (UTC)", format_moment(status.updated_ms)),
    )
    rows = [
        {
            "File": ui.mono(file.url),
            "Window closed (UTC)": format_moment(file.ms),
            "Written (UTC)": format_moment(file.written_ms),
            "Events": file.events,
            "Size": format_size(file.bytes),
        }
        for file in files
    ]
    recent = ui.table(rows, empty="None was written yet.", numbers=("Events", "Size"))
    return el("div", tiles, ui.card("Last file", last), ui.card("The last files", recent))


def _settings(capture: dict[str, Any]) -> Html:
    properties = _destination_properties(capture)
    size = format_size(capture.get("sizeLimitInBytes"))
    return ui.facts(
        ("Switched on", "yes" if capture.get("enabled") else "no"),
        ("Window", f"{capture.get('intervalInSeconds')} s or {size}"),
        ("Encoding", str(capture.get("encoding", ""))),
        ("Destination", str(properties.get("storageAccountResourceId", ""))),
        ("Container", str(properties.get("blobContainer", ""))),
        ("Names", str(properties.get("archiveNameFormat", ""))),
    )


def _destination_properties(capture: dict[str, Any]) -> dict[str, Any]:
    return dict(capture.get("destination", {}).get("properties", {}))


def _form(
    visit: PageRequest, hub: EventHubResource, destinations: list[DestinationSummary]
) -> Html:
    capture = hub.capture or {}
    properties = _destination_properties(capture)
    account = str(properties.get("storageAccountResourceId", "")).rpartition("/")[2]
    choices = {each.name: f"{each.name} ({each.url})" for each in destinations}
    if account and account not in choices:
        choices[account] = f"{account} (not configured)"
    warning = (
        "No destination is configured: Capture needs [capture.destinations.NAME] in the "
        "configuration file of the service."
    )
    container = properties.get("blobContainer", "capture")
    encodings = {word: word for word in ENCODINGS}
    is_without_empty = bool(capture.get("skipEmptyArchives"))
    return ui.card(
        "Settings",
        None if choices else el("p", warning, class_="flash note"),
        ui.form(
            visit,
            visit.hub_link("capture"),
            ui.check("Capture is on", "enabled", bool(capture.get("enabled"))),
            *_window_fields(visit, capture),
            ui.select(visit, "Destination", "destination", choices, account, wide=True),
            ui.field(visit, "Container or folder", "container", container),
            ui.select(visit, "Encoding", "encoding", encodings, _encoding(visit, capture)),
            ui.check("No files for empty windows", "skip_empty", is_without_empty),
            *_name_fields(visit, hub, capture),
            ui.submit("Save"),
        ),
    )


def _encoding(visit: PageRequest, capture: dict[str, Any]) -> str:
    return visit.form_value("encoding", capture.get("encoding", ENCODINGS[0]))


def _window_fields(visit: PageRequest, capture: dict[str, Any]) -> list[Html]:
    seconds = capture.get("intervalInSeconds", INTERVAL_S_DEFAULT)
    megabytes = capture.get("sizeLimitInBytes", SIZE_BYTES_DEFAULT) // _MB
    (shortest, longest), (least, most) = INTERVAL_S, (bound // _MB for bound in SIZE_BYTES)
    time_help = f"{shortest} to {longest}"
    size_help, size_mb = f"{least} to {most}; whichever is first closes a file", (least, most)
    return [
        ui.number(visit, "Time window (s)", "interval_s", seconds, INTERVAL_S, help_=time_help),
        ui.number(visit, "Size window (MB)", "size_mb", megabytes, size_mb, help_=size_help),
    ]


def _name_fields(visit: PageRequest, hub: EventHubResource, capture: dict[str, Any]) -> list[Html]:
    """With what a file would be called, and how many there would be: the script keeps both up."""
    interval = capture.get("intervalInSeconds", INTERVAL_S_DEFAULT)
    properties = _destination_properties(capture)
    name_format = properties.get("archiveNameFormat", NAME_FORMAT_DEFAULT)
    files = -(-_DAY_S // max(1, interval)) * hub.partition_count
    help_ = "all nine words in braces, in any order"
    example = format_file_path(
        name_format,
        namespace=visit.namespace,
        hub=hub.name,
        partition="0",
        at_s=visit.portal.clock.now_ms() // 1000,
        file_type="parquet" if _encoding(visit, capture) == "Parquet" else "avro",
    )
    name = ui.field(visit, "Name format", "name_format", name_format, help_=help_)
    return [
        el("div", name, class_="wide"),
        el(
            "p",
            "A file would be called ",
            el("code", example, data_name=True),
            "; up to ",
            el("strong", files, data_files=True),
            " files a day by the time window alone.",
            data_capture_preview=True,
            data_namespace=visit.namespace,
            data_hub=hub.name,
            data_partitions=hub.partition_count,
        ),
    ]


async def save(visit: PageRequest) -> Response:
    hub = visit.words["hub"]
    enabled, destination = visit.text("enabled") == "yes", visit.text("destination")
    if enabled and not destination:
        raise ArgumentError("Capture needs a destination: none is configured.")
    description: dict[str, Any] = {
        "enabled": enabled,
        "encoding": visit.text("encoding") or ENCODINGS[0],
        "intervalInSeconds": visit.integer("interval_s", "The time window"),
        "sizeLimitInBytes": visit.integer("size_mb", "The size window") * _MB,
        "skipEmptyArchives": visit.text("skip_empty") == "yes",
    }
    if destination:
        description["destination"] = {
            "name": "EventHubArchive.AzureBlockBlob",
            "properties": {
                "storageAccountResourceId": destination,
                "blobContainer": visit.text("container"),
                "archiveNameFormat": visit.text("name_format"),
            },
        }
    await visit.act(lambda client: client.put_hub(visit.namespace, hub, capture=description))
    word = "on" if enabled else "off"
    raise ActionCompleted(visit.hub_link("capture"), f"Saved: Capture is {word}.")
