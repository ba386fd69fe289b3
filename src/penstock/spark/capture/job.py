"""The capture job: one Spark application with one query per capture run.

It asks the service which runs there are, keeps a query active for each, and reports every few
seconds. All that it knows is in its state directory and at the destination: killed at any moment,
the next job continues.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import secrets
import shutil
import socket
import time
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.capture.status import RunAssignment
from penstock.io.files import make_private
from penstock.management.client import ManagementClient
from penstock.management.jobs import CAPTURE_JOB
from penstock.model.errors import AlreadyExists, InternalError, NotFound, PenstockError
from penstock.spark.capture.run_query import CaptureJobSettings, CaptureRunQuery, start_query
from penstock.spark.launcher import is_gone

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

REPORT_S = 5.0  # at the latest; a run with news reports at once
_STALE_S = 8 * 24 * 3600  # more than the longest retention of a standard namespace
_RUN_FILES = ("plan.json", "ledger.sqlite")  # the second is of version 0.1
_JOB_ID = re.compile(rb"[!-~]{1,256}")
_log = logging.getLogger("penstock.capture")

# Small: the job waits most of the time, and moves a few blocks of a megabyte.
SPARK_CONF = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": (
        # Java would begin with a 64th of the machine's memory.
        "-XX:+UseSerialGC -Xms64m -XX:MaxNewSize=32m -XX:MinHeapFreeRatio=10 "
        "-XX:MaxHeapFreeRatio=20 -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=64m -Xss1m "
        # A Java process whose threads died one by one would look alive: end it, and start again.
        "-XX:+ExitOnOutOfMemoryError"
    ),
    "spark.sql.execution.arrow.maxRecordsPerBatch": "8",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.streaming.stopTimeout": "30s",
    "spark.sql.streaming.numRecentProgressUpdates": "2",
    "spark.sql.streaming.minBatchesToRetain": "10",
    "spark.sql.streaming.stateStore.maintenanceInterval": "1h",
    "spark.cleaner.periodicGC.interval": "1min",
}


@dataclass
class CaptureJob:
    """`spark` starts Spark when it is first called."""

    settings: CaptureJobSettings
    client: ManagementClient
    spark: Callable[[], SparkSession]
    start: Callable[..., StreamingQuery] = start_query
    monotonic: Callable[[], float] = time.monotonic
    last_error: str = ""
    _runs: dict[str, CaptureRunQuery] = field(default_factory=dict)
    _reported_s: float = -REPORT_S
    _has_swept: bool = False

    def run(self, wait_for_stop: Callable[[float], bool]) -> None:
        """Work until a stop is requested: `wait_for_stop` waits for that up to the given seconds
        and returns whether it happened. Then queries stop; their windows stay open."""
        try:
            while not wait_for_stop(0):
                self.look()
                wait_for_stop(self.settings.look_s)
        finally:
            for run in self._runs.values():
                run.stop()
            self._report_job("Stopped")

    def look(self) -> None:
        """One round: fetch assignments, keep queries active, report. Raises InternalError when
        Spark is gone."""
        try:
            assignments = self.client.capture_runs(job_id(self.settings.state))
        except AlreadyExists as error:
            self._note_error(str(error))
            for run in self._runs.values():
                run.stop()
            self._runs.clear()
            return
        except PenstockError as error:
            self._note_error(f"The service does not say what to capture: {error}")
            return
        self._update_runs({assignment.run.id: assignment for assignment in assignments})
        try:
            for run in self._due_runs():
                run.keep(self.monotonic())
        except Exception as error:
            if is_gone(error):
                raise InternalError("Spark ended while the capture job used it.") from None
            raise
        is_due = self.monotonic() - self._reported_s >= REPORT_S
        for run in self._runs.values():
            if is_due or run.has_news():
                self._report(run)
        if is_due:
            self._reported_s = self.monotonic()
            self._report_job("Running")

    def _update_runs(self, assignments: dict[str, RunAssignment]) -> None:
        if not self._has_swept:
            self._has_swept = True
            _remove_stale_state(self.settings.state, assignments)
        for run_id in self._runs.keys() - assignments.keys():
            run = self._runs.pop(run_id)
            run.stop()
            if run.is_finished:
                run.forget()
        for run_id, assignment in assignments.items():
            if run_id in self._runs:
                self._runs[run_id].update_assignment(assignment)
            else:
                self._runs[run_id] = CaptureRunQuery(
                    self.settings, self.client, self.spark, self.start, assignment
                )

    def _due_runs(self) -> list[CaptureRunQuery]:
        """One backfill of a hub at a time: each looks for names that no file has."""
        runs: list[CaptureRunQuery] = []
        hubs: set[str] = set()
        for run in self._runs.values():
            if run.takes_turns:
                if run.hub_id in hubs:
                    continue
                hubs.add(run.hub_id)
            runs.append(run)
        return runs

    def _report(self, run: CaptureRunQuery) -> None:
        try:
            run.report()
        except NotFound:
            pass  # the hub was deleted: the next round has no such run
        except PenstockError as error:
            self._note_error(f"A report did not reach the service: {error}")

    def _report_job(self, state: str) -> None:
        errors = [run.last_error for run in self._runs.values() if run.last_error]
        with contextlib.suppress(PenstockError):
            self.client.put_job(
                CAPTURE_JOB,
                kind="capture",
                state=state,
                pid=os.getpid(),
                master=self.settings.master,
                lag_events=sum(run.backlog_events for run in self._runs.values()),
                last_error=errors[0] if errors else self.last_error,
            )

    def _note_error(self, text: str) -> None:
        if text != self.last_error:
            _log.warning("%s", text)
        self.last_error = text


def job_id(state: Path) -> str:
    """The id of the job that uses this directory, the same after a restart. A job with another id
    has to wait until the service considers the earlier one ended."""
    file = state / "job-id"
    state.mkdir(parents=True, exist_ok=True, mode=0o700)
    make_private(file)
    content = file.read_bytes().strip()
    if _JOB_ID.fullmatch(content):
        return content.decode()
    if content:
        _log.warning("capture job gets a new id: file=%s reason=damaged", file)
    new_id = f"{socket.gethostname()}-{secrets.token_hex(8)}"
    file.write_text(new_id)
    return new_id


def _remove_stale_state(state: Path, assigned: Container[str]) -> None:
    """Remove what runs of deleted hubs left: unassigned, and unchanged for longer than any event is
    retained. A service that was started with the wrong directory thus costs nothing."""
    before_s = time.time() - _STALE_S
    for folder in {file.parent for file in state.glob("*-*/*") if file.name in _RUN_FILES}:
        hub_id, _, run_id = folder.name.rpartition("-")
        hub_files = [*state.glob(f"{hub_id}.*")]
        changed_s = max(file.stat().st_mtime for file in (*folder.iterdir(), *hub_files))
        if run_id not in assigned and changed_s < before_s:
            shutil.rmtree(folder, ignore_errors=True)
            if not [*state.glob(f"{hub_id}-*")]:
                for file in hub_files:
                    file.unlink(missing_ok=True)
