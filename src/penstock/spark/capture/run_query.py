"""One capture run: plan, query, restart after failures, report."""

from __future__ import annotations

import contextlib
import logging
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from penstock.capture import status
from penstock.capture.description import parse_description
from penstock.capture.destinations import Destination, resolve_destination
from penstock.capture.state import CaptureStateFile
from penstock.capture.status import CaptureState, RunAssignment
from penstock.capture.windows import WindowStart, start_after
from penstock.management.client import ManagementClient
from penstock.model import names
from penstock.model.backoff import Backoff
from penstock.model.capture import CaptureRun, RunProgress
from penstock.model.errors import NotFound, PenstockError
from penstock.spark.capture.announcements import NotificationTarget, announce_files, write_manifests
from penstock.spark.capture.plan import (
    OPTION,
    SINK,
    SOURCE,
    CapturePlan,
    find_reading_rule,
    open_run_state,
    write_plan,
)
from penstock.spark.capture.query_checkpoint import set_aside_if_unusable
from penstock.spark.errors import explain_failure
from penstock.spark.launcher import is_gone

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

TRIGGER = "2 seconds"  # windows last at least a minute
_BACKOFF = Backoff(1.0, 60.0)
STEADY_S = 120.0  # a query that ran this long did not fail at its start
_ERROR_MAX = 1000  # characters
_log = logging.getLogger("penstock.capture")


class CaptureJobSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`amqp` is host:port of plain AMQP, where the service is on this machine."""

    state: Path
    destinations: tuple[Destination, ...]
    notify: NotificationTarget | None = None
    amqp: str | None = None
    ca_file: str | None = None
    trigger: str = TRIGGER
    master: str = ""
    look_s: float = 2.0  # between two rounds


def start_query(
    spark: SparkSession, plan: CapturePlan, *, trigger: str = TRIGGER
) -> StreamingQuery:
    """Continue from the query checkpoint, else from the job's state. Only one query at a time may
    use a plan's state directory."""
    from penstock.spark.capture.stream import CaptureSink, CaptureSource

    file = str(write_plan(plan))
    shutil.rmtree(plan.spool, ignore_errors=True)  # files of a killed job
    with contextlib.closing(plan.open_state()) as state:
        set_aside_if_unusable(plan.checkpoint, state.starts())
    spark.dataSource.register(CaptureSource)
    spark.dataSource.register(CaptureSink)
    blocks = spark.readStream.format(SOURCE).option(OPTION, file).load()
    return (
        blocks.writeStream.format(SINK)
        .option(OPTION, file)
        .option("checkpointLocation", str(plan.checkpoint))
        # Several runs of a hub may be active: a backfill and the current one.
        .queryName(f"capture {plan.namespace}/{plan.hub} ({Path(plan.state).name})")
        .trigger(processingTime=trigger)
        .start()
    )


@dataclass
class CaptureRunQuery:
    """One run and its query. Used on the job's thread."""

    _settings: CaptureJobSettings
    _client: ManagementClient
    _spark: Callable[[], SparkSession]
    _start: Callable[..., StreamingQuery]
    _assignment: RunAssignment
    _plan: CapturePlan | None = None
    _query: StreamingQuery | None = None
    _state: CaptureStateFile | None = None
    _started_s: float = 0.0
    _next_s: float = 0.0  # no start before this time
    _failures: int = 0  # in a row
    _query_error: str = ""
    _failed_at: dict[str, int] = field(default_factory=dict)  # captured, when the query failed
    _announce_error: str = ""
    _reported: tuple[dict[str, int], str] | None = None  # captured positions and error
    is_finished: bool = False  # all events are in files, which are listed and announced
    backlog_events: int = 0

    @property
    def last_error(self) -> str:
        return self._query_error or self._announce_error

    @property
    def hub_id(self) -> str:
        return self._assignment.hub_id

    @property
    def takes_turns(self) -> bool:
        """Whether other backfills of its hub wait until it is finished."""
        return self._run.is_backfill and not self.is_finished

    @property
    def _run(self) -> CaptureRun:
        return self._assignment.run

    @property
    def _directory(self) -> Path:
        return self._settings.state / f"{self.hub_id}-{self._run.id}"

    def update_assignment(self, assignment: RunAssignment) -> None:
        """The service's present description of the run. A query with another one is restarted."""
        before, self._assignment = self._assignment, assignment
        if _query_definition(before) != _query_definition(assignment):
            with self._state_errors():
                self.stop()
            self._next_s = 0.0

    def keep(self, now_s: float) -> None:
        """Start or restart the query if it is time. Raises only when Spark is gone."""
        with self._state_errors():
            self._keep_running(now_s)

    def _keep_running(self, now_s: float) -> None:
        if self.is_finished:
            return
        if self._is_captured():
            self._stop_query()
            return  # `report` writes the manifests
        query = self._query
        if query is not None and query.isActive:
            if now_s - self._started_s >= STEADY_S:
                self._failures = 0
            if self._captured_positions() != self._failed_at:
                self._query_error = ""
            return
        if query is not None:
            self._query = None
            self._schedule_retry(explain_failure(str(query.exception())).text, now_s)
        if now_s < self._next_s:
            return
        try:
            self._plan = self._build_plan()
            self._query = self._start(self._spark(), self._plan, trigger=self._settings.trigger)
            self._started_s = now_s
        except PenstockError as error:
            self._schedule_retry(str(error).partition("\n")[0], now_s)
        except sqlite3.Error:
            raise
        except Exception as error:  # of any kind from Spark
            if is_gone(error):
                raise
            self._schedule_retry(explain_failure(str(error)).text, now_s)

    def stop(self) -> None:
        self._stop_query()
        if self._state is not None:
            self._state.close()
            self._state = None

    def _stop_query(self) -> None:
        query, self._query = self._query, None
        if query is not None:
            with contextlib.suppress(Exception):  # it may have ended already
                query.stop()

    def forget(self) -> None:
        """Delete the state of a finished run."""
        with contextlib.suppress(OSError, sqlite3.Error):
            with contextlib.closing(open_run_state(self._directory, self.hub_id)) as state:
                state.forget_run()
            shutil.rmtree(self._directory)

    def has_news(self) -> bool:
        """Whether more is in files than the last report said, or something failed since."""
        with self._state_errors():
            return (self._captured_positions(), self._query_error) != self._reported
        return False

    def report(self) -> None:
        """Write manifests, announce files, and report to the service. Raises PenstockError."""
        with self._state_errors():
            captured = self._captured_positions()
            self._reported = (captured, self._query_error)
            report = self._build_report(captured)
            self._client.report_capture(self._assignment.namespace, self._assignment.hub, report)

    def _build_report(self, captured: dict[str, int]) -> status.CaptureReport:
        self._announce()
        state = self._open_state()
        # A run is not forgotten before its files are listed and announced.
        if self._is_captured() and not self._announce_error and state.is_settled():
            self.is_finished = True
            self._stop_query()
        totals, newest = state.totals(), state.newest_files(status.RECENT_FILES_MAX)
        return status.CaptureReport(
            run=self._run.id,
            state=self._judge_state(),
            captured=captured,
            reached={
                key: RunProgress(start.sequence, start.opened_ms, start.named_s, start.window)
                for key, start in self._starts().items()
            },
            backlog_seconds=self._measure_backlog(captured),
            last_file=newest[0].url if newest else "",
            last_file_ms=newest[0].named_s * 1000 if newest else 0,
            recent_files=[
                status.RecentFile(
                    file.url, file.named_s * 1000, file.count, file.bytes, file.written_ms
                )
                for file in newest
            ],
            files=totals.files,
            events=totals.events,
            lost=max(0, totals.lost),
            last_error=self.last_error[:_ERROR_MAX],
            is_finished=self.is_finished,
        )

    def _judge_state(self) -> CaptureState:
        if self._query is not None and self._query.isActive and self._query.lastProgress:
            return CaptureState.RUNNING
        is_captured = self._is_captured()
        if self._query_error or (is_captured and self._announce_error):
            return CaptureState.WAITING
        return CaptureState.RUNNING if is_captured else CaptureState.STARTING

    def _build_plan(self) -> CapturePlan:
        settings = parse_description(self._assignment.description)
        resolve_destination(self._settings.destinations, settings.account, settings.container)
        connection_string, consumer_group = self._connection_string_and_group()
        return CapturePlan(
            namespace=self._assignment.namespace,
            hub=self._assignment.hub,
            settings=settings,
            destinations=list(self._settings.destinations),
            connection_string=connection_string,
            ca_file=None if self._settings.amqp else self._settings.ca_file,
            consumer_group=consumer_group,
            state=str(self._directory),
            hub_id=self.hub_id,
            **msgspec.structs.asdict(self._run),
        )

    def _connection_string_and_group(self) -> tuple[str, str]:
        """A connection string with a key of the namespace that may listen. With the Manage right
        Capture has a consumer group of its own."""
        namespace = self._assignment.namespace
        rule = find_reading_rule(self._client, namespace, preferred="Manage")
        if rule is None:
            raise NotFound(
                f"No shared access policy of the namespace '{namespace}' may listen: Capture needs "
                "one to read with."
            )
        keys = self._client.keys(namespace, None, rule.name)
        group = names.CAPTURE_GROUP if "Manage" in rule.rights else names.DEFAULT_GROUP
        if self._settings.amqp is None:
            return keys.primary_connection_string, group
        text = (
            f"Endpoint=sb://{self._settings.amqp};SharedAccessKeyName={keys.key_name};"
            f"SharedAccessKey={keys.primary_key};UseDevelopmentEmulator=true"
        )
        return text, group

    def _open_state(self) -> CaptureStateFile:
        """Checked for damage once, before the first query of the run starts."""
        if self._state is None:
            self._state = open_run_state(self._directory, self.hub_id, check=True)
        return self._state

    def _starts(self) -> dict[str, WindowStart]:
        """From the job's own state; where that was lost, from the progress in the catalog."""
        reported = {key: start_after(progress) for key, progress in self._run.reached.items()}
        return reported | self._open_state().starts()

    def _captured_positions(self) -> dict[str, int]:
        starts = self._starts()
        return {
            key: max(first, starts[key].sequence) if key in starts else first
            for key, first in self._run.starts.items()
        }

    def _is_captured(self) -> bool:
        """Whether the run is over and all of its events are in files."""
        stops, captured = self._run.stops, self._captured_positions()
        return stops is not None and all(captured[key] >= stop for key, stop in stops.items())

    def _announce(self) -> None:
        """Announce files and write manifests. Failures are retried at the next report."""
        if self._plan is None and not self._is_captured():
            return
        errors = []
        for step in (partial(announce_files, target=self._settings.notify), write_manifests):
            try:
                # A restarted job has no plan of a run that has only manifests left.
                self._plan = self._plan or self._build_plan()
                step(self._plan, self._open_state())
            except PenstockError as error:
                errors.append(str(error))
        text = " ".join(dict.fromkeys(errors))
        if text and text != self._announce_error:
            self._log_problem("announcement failed", text)
        self._announce_error = text

    @contextlib.contextmanager
    def _state_errors(self) -> Iterator[None]:
        """With a state file that fails, this run cannot continue; the others can."""
        try:
            yield
        except sqlite3.Error as error:
            self._set_query_error(
                "state unusable",
                f"The state of this run cannot be read or written ({error}): check the disk of "
                f"{self._settings.state}. Without the file, Capture continues from what the "
                "service stored.",
            )

    def _measure_backlog(self, captured: Mapping[str, int]) -> float:
        """About how old the oldest event is that may be in no file yet, in seconds."""
        ends = self._run.stops
        if ends is None:
            partitions = self._client.partitions(self._assignment.namespace, self._assignment.hub)
            ends = {partition["id"]: partition["last_sequence"] + 1 for partition in partitions}
        starts = self._starts()
        waiting = [key for key in captured if ends.get(key, 0) > captured[key]]
        self.backlog_events = sum(ends[key] - captured[key] for key in waiting)
        since_ms = [
            starts[key].named_s * 1000 if key in starts else self._run.on_ms for key in waiting
        ]
        return max(0.0, time.time() - min(since_ms) / 1000) if since_ms else 0.0

    def _schedule_retry(self, text: str, now_s: float) -> None:
        self._set_query_error("query failed", text)
        self._failed_at = self._captured_positions()
        self._failures += 1
        self._next_s = now_s + _BACKOFF.pause_s(self._failures)

    def _set_query_error(self, what: str, text: str) -> None:
        if text != self._query_error:
            self._log_problem(what, text)
        self._query_error = text

    def _log_problem(self, what: str, text: str) -> None:
        hub = f"{self._assignment.namespace}/{self._assignment.hub}"
        _log.warning("capture %s: hub=%s run=%s error=%s", what, hub, self._run.id, text)


def _query_definition(assignment: RunAssignment) -> tuple[CaptureRun, dict[str, object]]:
    """What a query is started with: not its progress."""
    return msgspec.structs.replace(assignment.run, reached={}), assignment.description
