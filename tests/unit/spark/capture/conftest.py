"""The capture job on a stage: a service and a Spark that are played by the test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.capture.destinations import Destination
from penstock.capture.status import CaptureReport, RunAssignment
from penstock.management.resources import AccessKeys, AuthorizationRuleResource, RuleProperties
from penstock.model.capture import CaptureRun
from penstock.model.errors import AlreadyExists, InternalError
from penstock.spark.capture.job import CaptureJob
from penstock.spark.capture.plan import CapturePlan, write_plan
from penstock.spark.capture.run_query import CaptureJobSettings

DESCRIPTION = {
    "enabled": True,
    "intervalInSeconds": 60,
    "destination": {"properties": {"storageAccountResourceId": "here", "blobContainer": "box"}},
}


class FakeQuery:
    def __init__(self, plan: CapturePlan) -> None:
        self.plan = plan
        self.isActive = True
        self.error = ""
        self.lastProgress = {"batchId": 0}

    def exception(self) -> str:
        return self.error

    def stop(self) -> None:
        self.isActive = False

    def fail(self, text: str) -> None:
        self.error = f"Traceback\npenstock.x.DestinationError: {text}"
        self.isActive = False


class FakeService:
    """As much of ManagementClient as the job uses."""

    def __init__(self) -> None:
        self.runs: list[RunAssignment] = []
        self.reports: list[CaptureReport] = []
        self.rights = ["Listen", "Manage", "Send"]
        self.is_away = False
        self.other_job = ""

    def want(self, **changes: Any) -> None:
        self.runs = [self.assignment(**changes)]

    def assignment(self, **changes: Any) -> RunAssignment:
        run = {"id": "r1", "on_ms": 1_000, "starts": {"0": 0, "1": 5}} | changes
        return RunAssignment(
            namespace="ns",
            hub="h",
            hub_id="id",
            run=msgspec.convert(run, CaptureRun),
            description=DESCRIPTION,
        )

    def capture_runs(self, job: str) -> list[RunAssignment]:
        if self.other_job:
            raise AlreadyExists(self.other_job)
        if self.is_away:
            raise InternalError("away")
        return self.runs

    def rules(self, namespace: str) -> list[AuthorizationRuleResource]:
        return [
            AuthorizationRuleResource(name="a", properties=RuleProperties(rights=["Send"])),
            AuthorizationRuleResource(name="root", properties=RuleProperties(rights=self.rights)),
        ]

    def keys(self, namespace: str, hub: str | None, name: str) -> AccessKeys:
        return AccessKeys(
            key_name=name,
            primary_key="key",
            secondary_key="",
            primary_connection_string="Endpoint=sb://h/;SharedAccessKeyName=root;SharedAccessKey=key",
            secondary_connection_string="",
        )

    def partitions(self, namespace: str, hub: str) -> list[dict[str, Any]]:
        return [{"id": "0", "last_sequence": 9}, {"id": "1", "last_sequence": 4}]

    def report_capture(self, namespace: str, hub: str, report: CaptureReport) -> None:
        self.reports.append(report)

    def put_job(self, name: str, **_: Any) -> None:
        if self.is_away:
            raise InternalError("away")


class Stage:
    def __init__(self, folder: Path, **settings: Any) -> None:
        self.service = FakeService()
        self.queries: list[FakeQuery] = []
        self.now_s = 1000.0
        self.is_spark_broken = False
        settings_ = CaptureJobSettings(
            state=folder / "state",
            destinations=(Destination(name="here", url=(folder / "files").as_uri()),),
            **settings,
        )
        self.job = CaptureJob(
            settings_,
            self.service,  # type: ignore[arg-type]
            lambda: None,  # type: ignore[arg-type,return-value]
            start=self._start,
            monotonic=lambda: self.now_s,
        )

    def _start(self, spark: Any, plan: CapturePlan, trigger: str) -> Any:
        if self.is_spark_broken:
            raise RuntimeError("java.lang.OutOfMemoryError: heap")
        write_plan(plan)
        self.queries.append(FakeQuery(plan))
        return self.queries[-1]

    def round(self, seconds: float = 10.0) -> None:
        self.now_s += seconds
        self.job.look()


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path, amqp="localhost:5672")
