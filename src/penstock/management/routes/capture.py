"""Routes of Capture below /providers/Penstock: its status, the runs and reports of a job."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from penstock.capture.runs import RunProgress
from penstock.management.capture_registry import (
    RECENT_FILES_MAX,
    CaptureReport,
    CaptureState,
    DestinationSummary,
    RecentFile,
)
from penstock.management.operations.capture import RunAssignment
from penstock.management.resources import ArmStruct, Number, Page, Rate
from penstock.management.routes.entities import format_time
from penstock.management.routes.router import OWN, ApiRequest, RouteTable

_HUB_CAPTURE = OWN + "/namespaces/{namespace}/eventhubs/{hub}/capture"

ROUTES = RouteTable()


class RecentFileBody(ArmStruct):
    url: str
    ms: Number = 0
    written_ms: Number = 0
    events: Number = 0
    bytes: Number = 0


class CaptureReportBody(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    run: Annotated[str, Meta(max_length=64)]
    state: CaptureState = CaptureState.RUNNING
    captured: dict[str, Number] = {}
    reached: dict[str, tuple[Number, Number, Number, Number]] = {}
    backlog_seconds: Rate = 0.0
    last_file: str = ""
    last_file_ms: Number = 0
    recent_files: Annotated[list[RecentFileBody], Meta(max_length=RECENT_FILES_MAX)] = []
    files: Number = 0
    events: Number = 0
    lost: Number = 0
    last_error: str = ""
    is_finished: bool = False

    def report(self) -> CaptureReport:
        files = [RecentFile(**msgspec.structs.asdict(file)) for file in self.recent_files]
        reached = {key: RunProgress(*progress) for key, progress in self.reached.items()}
        fields = msgspec.structs.asdict(self) | {"recent_files": files, "reached": reached}
        return CaptureReport(**fields)


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
async def report_capture(request: ApiRequest, body: CaptureReportBody) -> None:
    request.operations.captures.report(
        request.names["namespace"], request.names["hub"], body.report()
    )


@ROUTES.add("POST", f"{_HUB_CAPTURE}/backfill")
async def backfill_capture(request: ApiRequest, body: BackfillRequest) -> Page[dict[str, Any]]:
    """Capture the retained events from before Capture was switched on."""
    namespace, hub = request.names["namespace"], request.names["hub"]
    counts = await request.operations.captures.backfill(namespace, hub, body.since)
    return Page([{"partition": key, "events": count} for key, count in counts.items()])
