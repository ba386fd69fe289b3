"""Routes of Capture below /providers/Penstock: status, runs for the job, its reports, backfill."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query, Response
from pydantic import Field, StrictStr

from penstock.capture.status import CaptureReport
from penstock.management import bodies, shapes
from penstock.management.bodies import ArmStruct
from penstock.management.routes.parameters import Asked, HubName, NamespaceName, Responses
from penstock.management.shapes import Shape, format_time
from penstock.model.errors import ArgumentError

OWN = "/providers/Penstock"
_HUB_CAPTURE = OWN + "/namespaces/{namespace}/eventhubs/{hub}/capture"
_LIST: Responses = {200: {"model": bodies.ArmResourceList}}

_Job = Annotated[str | None, Query(max_length=256)]

router = APIRouter()


class BackfillRequest(ArmStruct):
    since: Annotated[StrictStr, Field(max_length=64, examples=["earliest"])] = "earliest"


@router.get(f"{OWN}/capture", responses=_LIST)
async def list_captures(asked: Asked) -> Shape:
    """The status of every hub that has a captureDescription."""
    return shapes.to_page(
        [
            msgspec.to_builtins(status) | {"updated": format_time(status.updated_ms)}
            for status in asked.operations.captures.list()
        ]
    )


@router.get(f"{OWN}/captureDestinations", responses=_LIST)
async def list_capture_destinations(asked: Asked) -> Shape:
    """What `storageAccountResourceId` may name."""
    return shapes.to_page(msgspec.to_builtins(asked.operations.captures.destinations()))


@router.get(f"{OWN}/captureRuns", responses=_LIST)
async def list_capture_runs(asked: Asked, job: _Job = None) -> Shape:
    """All unfinished runs. One job at a time may claim them with its id."""
    return shapes.to_page(msgspec.to_builtins(asked.operations.captures.runs(job)))


@router.put(_HUB_CAPTURE, response_class=Response)
async def report_capture(
    asked: Asked, namespace: NamespaceName, hub: HubName, body: dict[str, Any]
) -> Response:
    """Replace the job's last report on one run."""
    try:
        report = msgspec.convert(body, CaptureReport)
    except msgspec.ValidationError as error:
        raise ArgumentError(f"The capture report is invalid: {error}.") from None
    asked.operations.captures.report(namespace, hub, report)
    return Response(status_code=200)


@router.post(f"{_HUB_CAPTURE}/backfill")
async def backfill_capture(
    asked: Asked, namespace: NamespaceName, hub: HubName, body: BackfillRequest
) -> Any:
    """Capture retained events from before Capture was switched on."""
    counts = await asked.operations.captures.backfill(namespace, hub, body.since)
    return {"value": [{"partition": key, "events": count} for key, count in counts.items()]}
