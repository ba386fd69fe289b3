"""Capture: how it is for every hub, and one hub's switch, window, destination and names."""

from __future__ import annotations

from typing import Any

import msgspec
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
from penstock.management.client import ManagementClient
from penstock.management.resources import EventHubResource
from penstock.model.errors import ArgumentError
from penstock.portal.page_request import ActionCompleted, PageRequest
from penstock.portal.shell import page

_MB = 1024 * 1024
_DAY_S = 86_400
_TONES = {"Running": "good", "Starting": "info", "Waiting": "warn", "Failed": "bad"}


class CaptureRow(msgspec.Struct, frozen=True):
    hub: EventHubResource
    status: CaptureStatus | None


class CaptureForm(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a hub, or the defaults. `example` is the name of a file."""

    enabled: bool
    interval_s: int
    size_mb: int
    account: str
    container: str
    encoding: str
    skip_empty: bool
    name_format: str
    example: str
    files_a_day: int
    destinations: dict[str, str]


async def capture_list(visit: PageRequest) -> Response:
    statuses = await _statuses(visit)
    rows = [
        CaptureRow(hub, statuses.get(hub.name.casefold())) for hub in await visit.visible_hubs()
    ]
    return await page(
        visit,
        "capture.html",
        rows=rows,
        destinations=await _destinations(visit),
        tones=_TONES,
    )


async def _statuses(visit: PageRequest) -> dict[str, CaptureStatus]:
    statuses = await visit.backend.read(ManagementClient.capture_status)
    here = visit.namespace.casefold()
    return {each.hub.casefold(): each for each in statuses if each.namespace.casefold() == here}


async def _destinations(visit: PageRequest) -> list[DestinationSummary]:
    return await visit.backend.read(ManagementClient.capture_destinations)


async def hub_capture(visit: PageRequest) -> Response:
    hub = await visit.hub()
    return await page(
        visit,
        "hub_capture.html",
        capture=(await _statuses(visit)).get(hub.name.casefold()),
        form=capture_form(visit, hub, await _destinations(visit)),
        tones=_TONES,
        encodings=[(each, each) for each in ENCODINGS],
        interval_s=INTERVAL_S,
        size_mb=tuple(bound // _MB for bound in SIZE_BYTES),
    )


def capture_form(
    visit: PageRequest, hub: EventHubResource, destinations: list[DestinationSummary]
) -> CaptureForm:
    capture = hub.capture or {}
    properties = dict(capture.get("destination", {}).get("properties", {}))
    account = str(properties.get("storageAccountResourceId", "")).rpartition("/")[2]
    choices = {each.name: f"{each.name} ({each.url})" for each in destinations}
    if account and account not in choices:
        choices[account] = f"{account} (not configured)"
    interval_s = capture.get("intervalInSeconds", INTERVAL_S_DEFAULT)
    name_format = properties.get("archiveNameFormat", NAME_FORMAT_DEFAULT)
    encoding = visit.form_value("encoding", capture.get("encoding", ENCODINGS[0]))
    example = format_file_path(
        name_format,
        namespace=visit.namespace,
        hub=hub.name,
        partition="0",
        at_s=visit.portal.clock.now_ms() // 1000,
        file_type="parquet" if encoding == "Parquet" else "avro",
    )
    return CaptureForm(
        enabled=bool(capture.get("enabled")),
        interval_s=interval_s,
        size_mb=capture.get("sizeLimitInBytes", SIZE_BYTES_DEFAULT) // _MB,
        account=account,
        container=properties.get("blobContainer", "capture"),
        encoding=encoding,
        skip_empty=bool(capture.get("skipEmptyArchives")),
        name_format=name_format,
        example=example,
        files_a_day=-(-_DAY_S // max(1, interval_s)) * hub.partition_count,
        destinations=choices,
    )


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
