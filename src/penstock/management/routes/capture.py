"""Routes of Capture below /providers/Penstock: status, runs for the job, its reports, backfill."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from penstock.capture.status import CaptureReport, DestinationSummary, RunAssignment
from penstock.management.resources import ArmStruct, Page
from penstock.management.routes.entities import format_time
from penstock.management.routes.router import OWN, ApiRequest, RouteTable

_HUB_CAPTURE = OWN + "/namespaces/{namespace}/eventhubs/{hub}/capture"

ROUTES = RouteTable()


class BackfillRequest(ArmStruct):
    since: Annotated[str, Meta(max_length=64, examples=["earliest"])] = "earliest"


class CaptureRunsQuery(msgspec.Struct, frozen=True):
    job: Annotated[str, Meta(max_length=256)] | None = None


@ROUTES.add("GET", f"{OWN}/capture")
async def list_captures(request: ApiRequest) -> Page[dict[str, Any]]:
    """Every hub that has a captureDescription."""
    statuses = request.operations.captures.list()
    return Page(
        [
            msgspec.to_builtins(status) | {"updated": format_time(status.updated_ms)}
            for status in statuses
        ]
    )


@ROUTES.add("GET", f"{OWN}/captureDestinations")
async def list_capture_destinations(request: ApiRequest) -> Page[DestinationSummary]:
    """The destinations that `storageAccountResourceId` may name."""
    return Page(list(request.operations.captures.destinations()))


@ROUTES.add("GET", f"{OWN}/captureRuns")
async def list_capture_runs(request: ApiRequest, query: CaptureRunsQuery) -> Page[RunAssignment]:
    """The runs that a capture job has to work on. Only one job at a time gets them."""
    return Page(list(request.operations.captures.runs(query.job)))


@ROUTES.add("PUT", _HUB_CAPTURE)
async def report_capture(request: ApiRequest, body: CaptureReport) -> None:
    """Replace the job's last report on one run."""
    request.operations.captures.report(request.names["namespace"], request.names["hub"], body)


@ROUTES.add("POST", f"{_HUB_CAPTURE}/backfill")
async def backfill_capture(request: ApiRequest, body: BackfillRequest) -> Page[dict[str, Any]]:
    """Capture the retained events from before Capture was switched on."""
    namespace, hub = request.names["namespace"], request.names["hub"]
    counts = await request.operations.captures.backfill(namespace, hub, body.since)
    return Page([{"partition": key, "events": count} for key, count in counts.items()])
