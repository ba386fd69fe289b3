"""The capture job: one Spark application, one query for each run of a captured hub.

It asks the service what is to be captured, keeps a query at it, starts it again when it fails
(later each time), and tells every few seconds how things are. All that it knows is in its state
directory and at the destination; killed at any moment, the next one goes on.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import secrets
import shutil
import socket
import sqlite3
import time
from collections.abc import Callable, Container, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from penstock.capture.description import CaptureDescription
from penstock.capture.destinations import Destination, resolve_destination
from penstock.capture.ledger import CaptureStateFile
from penstock.capture.runs import CaptureRun
from penstock.capture.taken import FileNameRegistry
from penstock.capture.windows import WindowStart
from penstock.io.files import make_private
from penstock.management.client import ManagementClient
from penstock.management.jobs import CAPTURE_JOB
from penstock.model import names
from penstock.model.errors import AlreadyExists, InternalError, NotFound, PenstockError
from penstock.spark.capture.announcements import NotificationTarget, announce_files, write_manifests
from penstock.spark.capture.plan import CapturePlan
from penstock.spark.capture.run_query import TRIGGER, start_query
from penstock.spark.errors import explain_failure
from penstock.spark.launcher import is_gone

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

LOOK_S = 2.0  # between two looks at what is to be done
REPORT_S = 5.0  # at the latest; what has news reports at once
BACKOFF_S = (1.0, 60.0)
STEADY_S = 120.0  # a query that lived so long did not fail at its start
_FORGOTTEN_S = 8 * 24 * 3600  # more than the longest retention of a standard namespace
_FILES_TOLD = 10  # the last ones, for people who look
_JOB_ID = re.compile(rb"[!-~]{1,256}")
_log = logging.getLogger("penstock.capture")

# Small: the job waits most of the time. What it moves are blocks of a megabyte, a few at a time.
SPARK_CONF = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": (
        # Java would begin with a 64th of the machine's memory.
        "-XX:+UseSerialGC -Xms64m -XX:MaxNewSize=32m -XX:MinHeapFreeRatio=10 "
        "-XX:MaxHeapFreeRatio=20 -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=64m -Xss1m "
        # A Java whose threads died one by one would look alive: it ends, and the job starts anew.
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


class CaptureJobSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`amqp` is host:port of plain AMQP, where the service is on this machine."""

    state: Path
    destinations: tuple[Destination, ...]
    notify: NotificationTarget | None = None
    amqp: str | None = None
    ca_file: str | None = None
    trigger: str = TRIGGER
    master: str = ""
    look_s: float = LOOK_S


class StopRequest(Protocol):
    """As much of `threading.Event` as the job waits by."""

    def is_set(self) -> bool: ...

    def wait(self, timeout: float) -> bool: ...


class CaptureJob:
    """Made with a way to the service and a way to Spark, which is started when it is needed."""

    def __init__(
        self,
        settings: CaptureJobSettings,
        client: ManagementClient,
        spark: Callable[[], SparkSession],
        *,
        start: Callable[..., StreamingQuery] = start_query,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._client = client
        self._spark = spark
        self._start = start
        self._monotonic = monotonic
        self._captures: dict[str, CaptureRunQuery] = {}
        self._reported_s = -REPORT_S
        self._has_swept = False
        self.last_error = ""

    def run(self, stopping: StopRequest) -> None:
        """Until told to stop. Queries are stopped then, their windows stay open."""
        try:
            while not stopping.is_set():
                self.look()
                stopping.wait(self._settings.look_s)
        finally:
            for capture in self._captures.values():
                capture.stop()
            self._report_job("Stopped")

    def look(self) -> None:
        """One round: what is to be done, how it goes, who has to hear of it."""
        try:
            wanted = self._client.capture_runs(job_id(self._settings.state))
        except AlreadyExists as error:
            self._note(str(error))
            for capture in self._captures.values():
                capture.stop()
            self._captures.clear()
            return
        except PenstockError as error:
            self._note(f"The service does not say what to capture: {error}")
            return
        self._follow(wanted)
        try:
            for capture in self._due_runs():
                capture.keep(self._monotonic())
        except Exception as error:
            if is_gone(error):
                raise InternalError("Spark ended under the capture job.") from None
            raise
        is_due = self._monotonic() - self._reported_s >= REPORT_S
        self._report([each for each in self._captures.values() if is_due or each.has_news()])
        if is_due:
            self._reported_s = self._monotonic()
            self._report_job("Running")

    def _follow(self, wanted: list[dict[str, Any]]) -> None:
        known = {each["run"]["id"]: each for each in wanted}
        if not self._has_swept:
            self._has_swept = True
            _remove_stale_state(self._settings.state, known.keys())
        for run_id in self._captures.keys() - known.keys():
            capture = self._captures.pop(run_id)
            capture.stop()
            if capture.is_finished:
                capture.forget()
        for run_id, told in known.items():
            if run_id not in self._captures:
                self._captures[run_id] = CaptureRunQuery(
                    self._settings, self._client, self._spark, self._start
                )
            self._captures[run_id].update_assignment(told)

    def _due_runs(self) -> list[CaptureRunQuery]:
        """Of a hub's runs of events from before one at a time: each looks for names that no other
        has taken."""
        chosen: list[CaptureRunQuery] = []
        hubs: set[str] = set()
        for capture in self._captures.values():
            if capture.takes_turns and capture.hub_id in hubs:
                continue
            chosen.append(capture)
            if capture.takes_turns:
                hubs.add(capture.hub_id)
        return chosen

    def _report(self, captures: list[CaptureRunQuery]) -> None:
        for capture in captures:
            try:
                capture.report()
            except NotFound:
                continue  # deleted a moment ago: the next look knows
            except PenstockError as error:
                self._note(f"A report did not reach the service: {error}")

    def _report_job(self, state: str) -> None:
        errors = [each.last_error for each in self._captures.values() if each.last_error]
        with contextlib.suppress(PenstockError):
            self._client.put_job(
                CAPTURE_JOB,
                kind="capture",
                state=state,
                pid=os.getpid(),
                master=self._settings.master,
                lag_events=sum(each.backlog_events for each in self._captures.values()),
                last_error=errors[0] if errors else self.last_error,
            )

    def _note(self, text: str) -> None:
        if text != self.last_error:
            _log.warning("%s", text)
        self.last_error = text


def job_id(state: Path) -> str:
    """The id of the job that works with this directory, also after a restart. A job with another
    id has to wait until the service takes the earlier one for ended."""
    file = state / "job-id"
    state.mkdir(parents=True, exist_ok=True, mode=0o700)
    make_private(file)
    content = file.read_bytes().strip()
    if _JOB_ID.fullmatch(content):
        return content.decode()
    if content:
        _log.warning("capture job gets a new id: file=%s reason=damaged", file)
    made = f"{socket.gethostname()}-{secrets.token_hex(8)}"
    file.write_text(made)
    return made


def _remove_stale_state(state: Path, known: Container[str]) -> None:
    """Remove what runs have left that nobody has asked for as long as any event is retained: their
    hubs are gone."""
    before_s = time.time() - _FORGOTTEN_S
    for ledger in state.glob("*-*/ledger.sqlite"):
        folder = ledger.parent
        files = [*folder.iterdir()]
        newest_s = max((file.stat().st_mtime for file in files), default=before_s)
        if folder.name.rpartition("-")[2] not in known and newest_s < before_s:
            shutil.rmtree(folder, ignore_errors=True)


def _query_definition(told: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
    """What a query works by: not how far it is."""
    run = {key: value for key, value in told["run"].items() if key != "reached"}
    return run, told["description"]


class CaptureRunQuery:
    """One run, and the query that works at it."""

    def __init__(
        self,
        settings: CaptureJobSettings,
        client: ManagementClient,
        spark: Callable[[], SparkSession],
        start: Callable[..., StreamingQuery],
    ) -> None:
        self._settings = settings
        self._client = client
        self._spark = spark
        self._start = start
        self._told: dict[str, Any] = {}
        self._run = CaptureRun(id="", on_ms=0, starts={})
        self._plan: CapturePlan | None = None
        self._query: StreamingQuery | None = None
        self._ledger: CaptureStateFile | None = None
        self._started_s = 0.0
        self._next_s = 0.0
        self._pause_s = BACKOFF_S[0]
        self._is_changed = False
        self.is_finished = False  # all of it is in files, listed and told of
        self._query_error = ""
        self._failed_at: dict[str, int] = {}  # how far it was when it failed
        self._after_error = ""
        self._reported_news: tuple[dict[str, int], str] = ({}, "")
        self.backlog_events = 0

    @property
    def last_error(self) -> str:
        return self._query_error or self._after_error

    @property
    def hub_id(self) -> str:
        return str(self._told["hub_id"])

    @property
    def takes_turns(self) -> bool:
        """Whether others of its hub wait until it is done."""
        return self._run.is_backfill and not self.is_finished

    @property
    def _where(self) -> str:
        return f"{self._told['namespace']}/{self._told['hub']}"

    def update_assignment(self, told: dict[str, Any]) -> None:
        """What the service wants now. A query that works at something else is started anew."""
        before, self._told = self._told, told
        self._run = msgspec.convert(told["run"], CaptureRun)
        if before and _query_definition(before) == _query_definition(told):
            return
        self._is_changed = bool(before)
        self._next_s = 0.0

    def keep(self, now_s: float) -> None:
        """Start the query, or start it again, if it is time."""
        try:
            self._keep_running(now_s)
        except sqlite3.Error as error:  # this one cannot go on; the others can
            self._on_state_lost(error)

    def _keep_running(self, now_s: float) -> None:
        if self.is_finished:
            return
        if self._is_changed:
            self._is_changed = False
            self.stop()
        if self._is_captured():
            self._stop_query()
            return  # the rest is done when it reports
        query = self._query
        if query is not None and query.isActive:
            if now_s - self._started_s >= STEADY_S:
                self._pause_s = BACKOFF_S[0]
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
            FileNameRegistry(self._plan.names_file, check=True).close()
            self._query = self._start(self._spark(), self._plan, trigger=self._settings.trigger)
            self._started_s = now_s
        except PenstockError as error:
            self._schedule_retry(str(error).partition("\n")[0], now_s)
        except Exception as error:
            if is_gone(error):
                raise
            self._schedule_retry(
                explain_failure(str(error)).text, now_s
            )  # whatever Spark throws: tried again

    def stop(self) -> None:
        self._stop_query()
        if self._ledger is not None:
            self._ledger.close()
            self._ledger = None

    def _stop_query(self) -> None:
        query, self._query = self._query, None
        if query is not None:
            with contextlib.suppress(Exception):  # it may have died already
                query.stop()

    def forget(self) -> None:
        """The run is over and done: nobody needs its state."""
        with contextlib.suppress(OSError):
            shutil.rmtree(self._state)

    def has_news(self) -> bool:
        """Whether more is in files than the last report said, or something failed since."""
        try:
            return self._news() != self._reported_news
        except sqlite3.Error as error:
            self._on_state_lost(error)
            return False

    def _news(self) -> tuple[dict[str, int], str]:
        return self._captured_positions(), self._query_error

    def report(self) -> None:
        """Raises PenstockError."""
        try:
            self._reported_news = self._news()
            self._client.report_capture(
                self._told["namespace"], self._told["hub"], self._build_report()
            )
        except sqlite3.Error as error:
            self._on_state_lost(error)

    def _build_report(self) -> dict[str, Any]:
        captured = self._captured_positions()
        self._after()
        ledger = self._open_state()
        # Whoever hears of files, and manifests, are not forgotten with the run.
        if self._is_captured() and not self._after_error and ledger.is_settled():
            self.is_finished = True
            self._stop_query()
        totals, newest = ledger.totals(), ledger.newest(_FILES_TOLD)
        backlog_s = self._backlog(captured)
        return {
            "run": self._run.id,
            "state": self._state_text(),
            "captured": captured,
            "reached": {
                key: [each.sequence, each.opened_ms, each.named_s, each.window]
                for key, each in self._places().items()
            },
            "backlogSeconds": backlog_s,
            "lastFile": newest[0].url if newest else "",
            "lastFileMs": newest[0].named_s * 1000 if newest else 0,
            "recentFiles": [
                {
                    "url": each.url,
                    "ms": each.named_s * 1000,
                    "writtenMs": each.written_ms,
                    "events": each.count,
                    "bytes": each.bytes,
                }
                for each in newest
            ],
            "files": totals.files,
            "events": totals.events,
            "lost": max(0, totals.lost),
            "lastError": self.last_error[:1000],
            "isFinished": self.is_finished,
        }

    # --- inside -----------------------------------------------------------------------------------

    @property
    def _state(self) -> Path:
        return self._settings.state / f"{self._told['hub_id']}-{self._run.id}"

    def _state_text(self) -> str:
        if self._query is not None and self._query.isActive and self._query.lastProgress:
            return "Running"
        if self._query_error or (self._is_captured() and self._after_error):
            return "Waiting"
        return "Running" if self._is_captured() else "Starting"

    def _build_plan(self) -> CapturePlan:
        settings = CaptureDescription.of(self._told["description"])
        resolve_destination(self._settings.destinations, settings.account, settings.container)
        run = self._run
        connection_string, group = self._connection_string_and_group()
        return CapturePlan(
            namespace=self._told["namespace"],
            hub=self._told["hub"],
            settings=settings,
            destinations=list(self._settings.destinations),
            connection_string=connection_string,
            ca_file=None if self._settings.amqp else self._settings.ca_file,
            consumer_group=group,
            state=str(self._state),
            hub_id=self.hub_id,
            starts=run.starts,
            reached=run.reached,
            named_s=run.named_s,
            stops=run.stops,
            stopped_ms=run.off_ms or 0,
            is_backfill=run.is_backfill,
        )

    def _connection_string_and_group(self) -> tuple[str, str]:
        """A connection string with a key of the namespace that may read, and the consumer group:
        who may manage has one for Capture alone."""
        namespace = self._told["namespace"]
        rules = self._client.rules(namespace)
        able = [rule for rule in rules if {"Listen", "Manage"} & set(rule.rights)]
        if not able:
            raise NotFound(
                f"No shared access policy of the namespace '{namespace}' may listen: Capture needs "
                "one to read with."
            )
        able.sort(key=lambda rule: ("Manage" not in rule.rights, rule.name))
        keys = self._client.keys(namespace, None, able[0].name)
        group = names.CAPTURE_GROUP if "Manage" in able[0].rights else names.DEFAULT_GROUP
        if self._settings.amqp is None:
            return keys.primary_connection_string, group
        text = (
            f"Endpoint=sb://{self._settings.amqp};SharedAccessKeyName={keys.key_name};"
            f"SharedAccessKey={keys.primary_key};UseDevelopmentEmulator=true"
        )
        return text, group

    def _open_state(self) -> CaptureStateFile:
        if self._ledger is None:
            self._ledger = CaptureStateFile(self._state / "ledger.sqlite", check=True)
        return self._ledger

    def _places(self) -> dict[str, WindowStart]:
        """By our own notes, and where those were lost by the service's."""
        told = {key: each.place for key, each in self._run.reached.items()}
        return told | self._open_state().places()

    def _captured_positions(self) -> dict[str, int]:
        places = self._places()
        return {
            key: max(first, places[key].sequence) if key in places else first
            for key, first in self._run.starts.items()
        }

    def _is_captured(self) -> bool:
        """Whether a run that is over has all that it wants."""
        stops, captured = self._run.stops, self._captured_positions()
        return stops is not None and all(captured[key] >= stop for key, stop in stops.items())

    def _after(self) -> None:
        """Manifests and word to others; what fails is tried again at the next report."""
        ledger = self._open_state()
        errors = []
        acts: tuple[Callable[[CapturePlan], int], ...] = (
            lambda plan: announce_files(plan, ledger, self._settings.notify),
            lambda plan: write_manifests(plan, ledger),
        )
        for act in acts:
            try:
                if self._plan is None:
                    # A job that was started anew, for a run that has nothing else left to do.
                    if not self._is_captured():
                        return
                    self._plan = self._build_plan()
                act(self._plan)
            except PenstockError as error:
                errors.append(str(error))
        text = " ".join(dict.fromkeys(errors))
        if text and text != self._after_error:
            _log.warning("capture of %s: %s", self._where, text)
        self._after_error = text

    def _on_state_lost(self, error: sqlite3.Error) -> None:
        text = (
            f"The notes of this run cannot be read or written ({error}): look at the disk of "
            f"{self._state}. Without that directory Capture goes on from what the service knows."
        )
        if text != self._query_error:
            _log.error("capture of %s: %s", self._where, text)
        self._query_error = text

    def _backlog(self, captured: Mapping[str, int]) -> float:
        """How old the oldest event is that may be in no file yet, in seconds, about."""
        ends = {
            each["id"]: each["last_sequence"] + 1
            for each in self._client.partitions(self._told["namespace"], self._told["hub"])
        }
        if self._run.stops is not None:
            ends = self._run.stops
        places = self._places()
        waiting = [key for key in captured if ends.get(key, 0) > captured[key]]
        self.backlog_events = sum(ends[key] - captured[key] for key in waiting)
        since_ms = [
            places[key].named_s * 1000 if key in places else self._run.on_ms for key in waiting
        ]
        return max(0.0, time.time() - min(since_ms) / 1000) if since_ms else 0.0

    def _schedule_retry(self, text: str, now_s: float) -> None:
        if text != self._query_error:
            _log.warning("capture of %s: %s", self._where, text)
        self._query_error = text
        self._failed_at = self._captured_positions()
        self._next_s = now_s + self._pause_s
        self._pause_s = min(self._pause_s * 2, BACKOFF_S[1])
