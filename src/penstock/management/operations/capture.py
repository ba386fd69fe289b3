"""Capture: how it is, what a job has to do, what the job reports."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from penstock.broker.seek import checkpoint_for_position
from penstock.capture import runs as capture_runs
from penstock.capture.runs import CaptureRun, load_runs
from penstock.formats.positions import parse_log_position
from penstock.management.capture_registry import CaptureReport, CaptureStatus, DestinationSummary
from penstock.management.operations.base import OperationGroup, format_path
from penstock.management.permissions import Action
from penstock.model import names
from penstock.model.entities import Hub
from penstock.model.errors import NotAllowed


class RunAssignment(msgspec.Struct, frozen=True, kw_only=True):
    """What a job needs to know of one run. No key is in it."""

    namespace: str
    hub: str
    hub_id: str
    run: CaptureRun
    description: dict[str, Any]
    retention_hours: int
    captured: dict[str, int]  # the next event of each partition that is in no file, as reported


_KEEP_EVERY_MS = 15_000  # how far a run is: for a job that has lost its own notes


class CaptureOperations(OperationGroup):
    def list(self) -> Sequence[CaptureStatus]:
        """Of every hub that has a captureDescription."""
        self._permit(Action.CAPTURE_READ)
        registry, now_ms = self._administration.captures, self._now_ms()
        return [
            registry.status(hub, self._ends(hub), now_ms=now_ms)
            for hub in self._hubs()
            if "capture" in hub.metadata
        ]

    def destinations(self) -> Sequence[DestinationSummary]:
        self._permit(Action.CAPTURE_READ)
        return self._administration.captures.infos()

    def runs(self, job: str | None = None) -> Sequence[RunAssignment]:
        """What is to be captured now: runs that go on, and those that are over and not done. A
        job that asks says who it is: AlreadyExists while another one is at it."""
        self._permit(Action.CAPTURE_RUN)
        if job is not None:
            self._administration.captures.claim(job, now_ms=self._now_ms())
        return [
            RunAssignment(
                namespace=hub.namespace,
                hub=hub.name,
                hub_id=hub.id,
                run=run,
                description=run.description or hub.metadata["capture"],
                retention_hours=hub.retention_hours,
                captured=self._administration.captures.captured_positions(hub, run),
            )
            for hub in self._hubs()
            for run in load_runs(hub.metadata.get("captureRuns"))
        ]

    def report(self, namespace: str, name: str, report: CaptureReport) -> None:
        """What the job tells now replaces what it told before. The first report is recorded."""
        self._permit(Action.CAPTURE_RUN, namespace, name)
        hub = self._hub(namespace, name)
        registry, now_ms = self._administration.captures, self._now_ms()
        if registry.put(hub, report, now_ms=now_ms):
            path = format_path(hub.namespace, hub.name)
            self._record(Action.CAPTURE_RUN, f"{path}: {report.state}")
        known = load_runs(hub.metadata.get("captureRuns"))
        if report.is_finished:
            left, done = capture_runs.remove_finished_run(known, report.run)
            if done is not None:
                self._keep(hub, left, capturePast=_with_done(hub, done, report))
                return
        run = next((each for each in known if each.id == report.run), None)
        if run is None or run.reached == report.reached:
            return
        if registry.is_due(hub, report.run, now_ms=now_ms, every_ms=_KEEP_EVERY_MS):
            new = msgspec.structs.replace(run, reached=report.reached)
            self._keep(hub, [new if each is run else each for each in known])

    async def backfill(self, namespace: str, name: str, since: str) -> Mapping[str, int]:
        """Capture what lies before the moment when Capture was switched on, as far as it is
        retained and was never captured: from `since` (earliest, a sequence number, an ISO time)
        on. How many events of each partition that are. NotAllowed when Capture is off."""
        self._permit(Action.CAPTURE_BACKFILL, namespace, name)
        self._hub(namespace, name)
        position = parse_log_position(since)
        runtime = self._administration.broker.hub(namespace, name)
        asked = [
            (runtime.log(index), runtime.status(index), partition)
            for index, partition in enumerate(runtime.partition_ids)
        ]

        def locate() -> dict[str, int]:
            found = [checkpoint_for_position(*each, position) for each in asked]
            return {each.partition_id: each.sequence_number + 1 for each in found}

        loop = asyncio.get_running_loop()
        starts = await loop.run_in_executor(self._administration.reads, locate)
        hub = self._hub(namespace, name)
        known = load_runs(hub.metadata.get("captureRuns"))
        if all(run.is_over for run in known):
            raise NotAllowed(
                f"Capture of '{names.quote_text(name)}' is off: switch it on before its history is "
                "captured."
            )
        made = capture_runs.plan_backfill(
            known,
            capture_runs.load_history(hub.metadata.get("capturePast")),
            starts,
            new_id=self._administration.new_hub_id,
            at_ms=self._now_ms(),
            created_ms=hub.created_ms,
        )
        if len(made) + len(known) > capture_runs.RUNS_MAX:
            raise NotAllowed(
                f"{len(known)} runs of Capture of '{names.quote_text(name)}' are not finished, and "
                f"{len(made)} more are asked for: {capture_runs.RUNS_MAX} are allowed. Try again "
                "when 'penstock capture status' shows no backlog."
            )
        self._record(
            Action.CAPTURE_BACKFILL,
            f"{format_path(hub.namespace, hub.name)}: from {names.quote_text(since)}",
        )
        if made:
            self._keep(hub, [*made, *known])
        return {
            key: sum(run.stops[key] - run.starts[key] for run in made if run.stops is not None)
            for key in starts
        }

    def _keep(self, hub: Hub, known: Sequence[CaptureRun], **more: object) -> None:
        metadata = hub.metadata | {"captureRuns": capture_runs.dump_runs(known)} | more
        self._catalog.put_hub(msgspec.structs.replace(hub, metadata=metadata))

    def _hubs(self) -> Sequence[Hub]:
        return [
            hub
            for namespace in self._catalog.namespaces()
            for hub in self._catalog.hubs(namespace.name)
        ]

    def _ends(self, hub: Hub) -> dict[str, int]:
        """The next event of each partition."""
        runtime = self._administration.broker.hub(hub.namespace, hub.name)
        return {
            partition: runtime.status(index).last_sequence + 1
            for index, partition in enumerate(runtime.partition_ids)
        }


def _with_done(hub: Hub, done: CaptureRun, report: CaptureReport) -> object:
    return capture_runs.add_to_history(
        capture_runs.load_history(hub.metadata.get("capturePast")),
        done,
        files=report.files,
        events=report.events,
        lost=report.lost,
        last_file=report.last_file,
        last_file_ms=report.last_file_ms,
    )
