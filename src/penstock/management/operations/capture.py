"""Capture: status, runs for the job, the job's reports, backfill."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from penstock.capture.destinations import redact_url
from penstock.capture.runs import RUNS_MAX, finish_run, plan_backfill
from penstock.capture.status import (
    CaptureReport,
    CaptureStatus,
    DestinationSummary,
    RunAssignment,
)
from penstock.formats.positions import parse_log_position
from penstock.management.operations.base import OWN_HUB, OperationGroup, format_path
from penstock.management.permissions import Action
from penstock.management.resources import ArmStruct, format_time
from penstock.management.router import OWN, RouteTable
from penstock.model import names
from penstock.model.capture import CaptureRun
from penstock.model.entities import Hub
from penstock.model.errors import NotAllowed

_STORE_EVERY_MS = 15_000  # a run's progress: only a job that has lost its own state needs it


ROUTES = RouteTable("captures")


class BackfillRequest(ArmStruct):
    since: Annotated[str, Meta(max_length=64, examples=["earliest"])] = "earliest"


class CaptureRunsQuery(msgspec.Struct, frozen=True):
    job: Annotated[str, Meta(max_length=256)] | None = None


class TimedCaptureStatus(CaptureStatus, frozen=True, kw_only=True):
    updated: str


class CaptureOperations(OperationGroup):
    @ROUTES.add("GET", f"{OWN}/capture")
    def list_captures(self) -> list[TimedCaptureStatus]:
        """The status of every hub that has a captureDescription."""
        self._permit(Action.CAPTURE_READ)
        registry, broker, now_ms = self._context.captures, self._context.broker, self._now_ms()
        statuses = [
            registry.status(
                hub, broker.hub(hub.namespace, hub.name).next_sequences(), now_ms=now_ms
            )
            for hub in self._catalog.hubs()
            if hub.capture_description is not None
        ]
        return [
            TimedCaptureStatus(
                **msgspec.structs.asdict(status), updated=format_time(status.updated_ms)
            )
            for status in statuses
        ]

    @ROUTES.add("GET", f"{OWN}/captureDestinations")
    def list_capture_destinations(self) -> list[DestinationSummary]:
        """The destinations that `storageAccountResourceId` may name."""
        self._permit(Action.CAPTURE_READ)
        return [
            DestinationSummary(destination.name, redact_url(destination.url))
            for destination in self._context.captures.destinations
        ]

    @ROUTES.add("GET", f"{OWN}/captureRuns")
    def list_capture_runs(self, query: CaptureRunsQuery) -> list[RunAssignment]:
        """All unfinished runs. A job gives its id and holds the claim from then on; raises
        AlreadyExists while another job holds it."""
        self._permit(Action.CAPTURE_RUN)
        registry = self._context.captures
        if query.job is not None:
            registry.claim(query.job, now_ms=self._now_ms())
        return [
            RunAssignment(
                namespace=hub.namespace,
                hub=hub.name,
                hub_id=hub.id,
                run=run,
                description=capture.description_of(run),
                retention_hours=hub.retention_hours,
                captured=registry.captured_positions(hub, run),
            )
            for hub in self._catalog.hubs()
            for capture in [hub.capture]
            for run in capture.runs
        ]

    @ROUTES.add("PUT", f"{OWN_HUB}/capture")
    def report_capture(self, namespace: str, hub: str, body: CaptureReport) -> None:
        """Replace the job's last report on a run. The first one is recorded in the audit log."""
        entity = self._find_hub(Action.CAPTURE_RUN, namespace, hub)
        registry, now_ms = self._context.captures, self._now_ms()
        if registry.put(entity, body, now_ms=now_ms):
            path = format_path(entity.namespace, entity.name)
            self._record(Action.CAPTURE_RUN, f"{path}: {body.state}")
        capture = entity.capture
        run = next((run for run in capture.runs if run.id == body.run), None)
        if run is None:
            return
        if body.is_finished and run.is_over:
            capture = finish_run(
                capture,
                run,
                files=body.files,
                events=body.events,
                lost=body.lost,
                last_file=body.last_file,
                last_file_ms=body.last_file_ms,
            )
            self._catalog.put_hub(entity.replace_capture(capture))
        elif run.reached != body.reached and registry.is_due(
            entity, body.run, now_ms=now_ms, every_ms=_STORE_EVERY_MS
        ):
            new = msgspec.structs.replace(run, reached=body.reached)
            self._put_runs(entity, [new if other is run else other for other in capture.runs])

    @ROUTES.add("POST", f"{OWN_HUB}/capture/backfill")
    async def backfill_capture(
        self, namespace: str, hub: str, body: BackfillRequest
    ) -> list[dict[str, Any]]:
        """Capture the retained events from `since` (earliest, a sequence number, an ISO time) on
        that precede the current run and were never captured. Returns their number per partition.
        Raises NotAllowed when Capture is off."""
        self._find_hub(Action.CAPTURE_BACKFILL, namespace, hub)
        position = parse_log_position(body.since)
        runtime = self._context.broker.hub(namespace, hub)
        checkpoints = await self._checkpoints_at(runtime, position)
        starts = {each.partition_id: each.sequence_number + 1 for each in checkpoints}
        entity = self._hub(namespace, hub)
        capture = entity.capture
        if all(run.is_over for run in capture.runs):
            raise NotAllowed(
                f"Capture of '{names.quote_text(hub)}' is off: switch it on before its history is "
                "captured."
            )
        new_runs = plan_backfill(
            capture,
            starts,
            new_id=self._context.new_hub_id,
            at_ms=self._now_ms(),
            created_ms=entity.created_ms,
        )
        if len(new_runs) + len(capture.runs) > RUNS_MAX:
            raise NotAllowed(
                f"Capture of '{names.quote_text(hub)}' has {len(capture.runs)} unfinished runs, "
                f"and this backfill needs {len(new_runs)} more: {RUNS_MAX} are allowed. Try again "
                "when 'penstock capture status' shows no backlog."
            )
        self._record(
            Action.CAPTURE_BACKFILL,
            f"{format_path(entity.namespace, entity.name)}: from {names.quote_text(body.since)}",
        )
        if new_runs:
            self._put_runs(entity, [*new_runs, *capture.runs])
        return [
            {
                "partition": key,
                "events": sum(run.stops[key] - run.starts[key] for run in new_runs if run.stops),
            }
            for key in starts
        ]

    def _put_runs(self, hub: Hub, runs: Sequence[CaptureRun]) -> None:
        capture = msgspec.structs.replace(hub.capture, runs=[*runs])
        self._catalog.put_hub(hub.replace_capture(capture))
