"""Routes of Capture below /providers/Penstock: how it is, what a job has to do and tells."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query, Response
from pydantic import Field, StrictBool, StrictStr

from penstock.capture.runs import RunProgress
from penstock.management import bodies, shapes
from penstock.management.bodies import ArmStruct, Number, Rate
from penstock.management.capture_registry import (
    RECENT_FILES_MAX,
    CaptureReport,
    CaptureState,
    RecentFile,
)
from penstock.management.routes.parameters import Asked, HubName, NamespaceName, Responses
from penstock.management.shapes import Shape, format_time

OWN = "/providers/Penstock"
_HUB_CAPTURE = OWN + "/namespaces/{namespace}/eventhubs/{hub}/capture"
_LIST: Responses = {200: {"model": bodies.ArmResourceList}}

_Job = Annotated[str | None, Query(max_length=256)]

router = APIRouter()


class RecentFileBody(ArmStruct):
    url: StrictStr
    ms: Number = 0
    written_ms: Number = 0
    events: Number = 0
    bytes: Number = 0


class CaptureReportBody(ArmStruct):
    run: Annotated[StrictStr, Field(max_length=64)]
    state: CaptureState = CaptureState.RUNNING
    captured: dict[StrictStr, Number] = Field(default_factory=dict)
    reached: dict[StrictStr, tuple[Number, Number, Number, Number]] = Field(default_factory=dict)
    backlog_seconds: Rate = 0.0
    last_file: StrictStr = ""
    last_file_ms: Number = 0
    recent_files: Annotated[list[RecentFileBody], Field(max_length=RECENT_FILES_MAX)] = Field(
        default_factory=list
    )
    files: Number = 0
    events: Number = 0
    lost: Number = 0
    last_error: StrictStr = ""
    is_finished: StrictBool = False

    def report(self) -> CaptureReport:
        told = {name: getattr(self, name) for name in type(self).model_fields}
        files = [
            RecentFile(each.url, each.ms, each.events, each.bytes, each.written_ms)
            for each in told["recent_files"]
        ]
        reached = {key: RunProgress(*each) for key, each in told["reached"].items()}
        return CaptureReport(**told | {"recent_files": files, "reached": reached})


class BackfillRequest(ArmStruct):
    since: Annotated[StrictStr, Field(max_length=64, examples=["earliest"])] = "earliest"


@router.get(f"{OWN}/capture", responses=_LIST)
async def list_captures(asked: Asked) -> Shape:
    """Of every hub that has a captureDescription."""
    found = asked.operations.captures.list()
    return shapes.to_page(
        [msgspec.to_builtins(each) | {"updated": format_time(each.updated_ms)} for each in found]
    )


@router.get(f"{OWN}/captureDestinations", responses=_LIST)
async def list_capture_destinations(asked: Asked) -> Shape:
    """What `storageAccountResourceId` may name."""
    found = asked.operations.captures.destinations()
    return shapes.to_page([msgspec.to_builtins(each) for each in found])


@router.get(f"{OWN}/captureRuns", responses=_LIST)
async def list_capture_runs(asked: Asked, job: _Job = None) -> Shape:
    """What a capture job has to do. One job at a time says that it is at it."""
    found = asked.operations.captures.runs(job)
    return shapes.to_page([msgspec.to_builtins(each) for each in found])


@router.put(_HUB_CAPTURE, response_class=Response)
async def report_capture(
    asked: Asked, namespace: NamespaceName, hub: HubName, body: CaptureReportBody
) -> Response:
    asked.operations.captures.report(namespace, hub, body.report())
    return Response(status_code=200)


@router.post(f"{_HUB_CAPTURE}/backfill")
async def backfill_capture(
    asked: Asked, namespace: NamespaceName, hub: HubName, body: BackfillRequest
) -> Any:
    """Capture what is retained from before Capture was switched on."""
    counts = await asked.operations.captures.backfill(namespace, hub, body.since)
    return {"value": [{"partition": key, "events": count} for key, count in counts.items()]}
