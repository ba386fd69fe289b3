"""How Capture is, hub by hub: what the job reports, beside what the service knows itself.

Nothing of it is kept over a restart: whoever runs tells again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

import msgspec

from penstock.capture.description import CaptureDescription
from penstock.capture.destinations import Destination, redact_url, resolve_destination
from penstock.capture.runs import (
    CaptureHistory,
    CaptureRun,
    FileLocation,
    RunProgress,
    load_history,
    load_locations,
    load_runs,
)
from penstock.model import names
from penstock.model.entities import Hub
from penstock.model.errors import AlreadyExists, ArgumentError, PenstockError

REPORTS_MAX = 4096
RECENT_FILES_MAX = 10
TEXT_MAX = 2048
SILENT_MS = 60_000  # the job reports every few seconds
STARTING_MS = 120_000  # Spark takes its time to start
CLAIM_MS = 90_000  # a job that did not ask for so long is gone: it asks nothing while Spark starts
RETENTION_PERCENT = 50  # of it: behind further than that is worth a warning
_PARTITIONS_MAX = 4096


class CaptureState(StrEnum):
    OFF = "Off"
    STARTING = "Starting"
    RUNNING = "Running"
    WAITING = "Waiting"  # for storage, for the service, or for the job: it is tried again
    FAILED = "Failed"  # somebody has to do something


class DestinationSummary(msgspec.Struct, frozen=True):
    """One that may be captured to; without credentials."""

    name: str
    url: str


class RecentFile(msgspec.Struct, frozen=True):
    """One of the last that were written: when its window closed, and when it was complete at the
    destination (0: unknown)."""

    url: str
    ms: int
    events: int
    bytes: int
    written_ms: int = 0


class CaptureReport(msgspec.Struct, frozen=True, kw_only=True):
    """What the job tells of one run. `captured` is the next event of each partition that is in no
    file yet."""

    run: str
    state: CaptureState = CaptureState.RUNNING
    captured: dict[str, int] = {}
    reached: dict[str, RunProgress] = {}
    backlog_seconds: float = 0.0
    last_file: str = ""
    last_file_ms: int = 0
    recent_files: list[RecentFile] = []  # the newest first
    files: int = 0
    events: int = 0
    lost: int = 0
    last_error: str = ""
    is_finished: bool = False  # of a run that is over: all of it is in files


class CaptureStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Of one hub, for people and programs."""

    namespace: str
    hub: str
    state: CaptureState
    destination: str
    encoding: str
    interval_seconds: int
    size_limit_bytes: int
    backlog_events: int
    backlog_seconds: float
    last_file: str
    last_file_ms: int
    recent_files: list[RecentFile]
    files: int
    events: int
    lost_events: int
    last_error: str
    updated_ms: int
    retention_hours: int
    created_ms: int  # of the hub: files named before that are of one that was deleted
    past: CaptureHistory  # all runs that are over and done
    places: list[FileLocation]  # where files lie: as it is now, then as it was before

    @property
    def warning_text(self) -> str | None:
        """What an operator should look at."""
        told = []
        if self.state in (CaptureState.FAILED, CaptureState.WAITING):
            told.append(f"is {self.state.lower()}: {self.last_error or 'no reason was told'}")
        if self.is_endangered:
            left_h = max(0.0, self.retention_hours - self.backlog_seconds / 3600)
            told.append(
                f"is {self.backlog_seconds / 3600:.1f} hours behind: in {left_h:.1f} hours "
                "retention begins to drop events that are in no file"
            )
        return f"Capture of {self.namespace}/{self.hub} {'; it '.join(told)}" if told else None

    @property
    def is_endangered(self) -> bool:
        limit_s = self.retention_hours * 36 * RETENTION_PERCENT
        return self.backlog_events > 0 and self.backlog_seconds >= limit_s


class CaptureRegistry:
    """What is known of all captures. `trouble` is the service's own word, where no job can run."""

    def __init__(self, destinations: Sequence[Destination] = ()) -> None:
        self.destinations = list(destinations)
        self.trouble = ""
        self._reports: dict[tuple[str, str], tuple[CaptureReport, int]] = {}
        self._done_ms: dict[tuple[str, str], int] = {}
        self._job: tuple[str, int] | None = None  # whose turn it is, and when it last asked
        self._since_ms: int | None = None  # when it was first looked at: a job needs time to come

    def claim(self, job: str, *, now_ms: int) -> None:
        """One job at a time: two would write each other's files. AlreadyExists."""
        if len(job) > TEXT_MAX:
            raise ArgumentError(f"A job's id is above {TEXT_MAX} characters.")
        if self._job is not None and self._job[0] != job and now_ms - self._job[1] < CLAIM_MS:
            raise AlreadyExists(
                f"Another capture job ({names.quote_text(self._job[0])}) is at work: stop "
                "it; where "
                "'penstock serve' runs it, with 'run = false' in [capture]."
            )
        self._job = (job, now_ms)

    def infos(self) -> list[DestinationSummary]:
        return [DestinationSummary(each.name, redact_url(each.url)) for each in self.destinations]

    def put(self, hub: Hub, report: CaptureReport, *, now_ms: int) -> bool:
        """True if nothing was known of the run. Raises ArgumentError."""
        files = [each.url for each in report.recent_files]
        if len(files) > RECENT_FILES_MAX:
            raise ArgumentError(f"A report tells of {RECENT_FILES_MAX} files at most.")
        for text in (report.run, report.last_file, report.last_error, *files):
            if len(text) > TEXT_MAX:
                raise ArgumentError(f"A text of a capture's report is above {TEXT_MAX} characters.")
        if len(report.captured) > _PARTITIONS_MAX:
            raise ArgumentError(f"A report of more than {_PARTITIONS_MAX} partitions.")
        key = (hub.id, report.run)
        is_new = self._reports.pop(key, None) is None
        if len(self._reports) >= REPORTS_MAX:
            del self._reports[next(iter(self._reports))]
        self._reports[key] = (report, now_ms)
        return is_new

    def is_due(self, hub: Hub, run: str, *, now_ms: int, every_ms: int) -> bool:
        """Whether something that is done so often for each run is to be done now."""
        since_ms = self._done_ms.get((hub.id, run))
        if since_ms is not None and 0 <= now_ms - since_ms < every_ms:
            return False
        if len(self._done_ms) >= REPORTS_MAX:
            del self._done_ms[next(iter(self._done_ms))]
        self._done_ms[hub.id, run] = now_ms
        return True

    def asked_ms_ago(self, now_ms: int) -> int | None:
        """How long ago a job asked what there is to do; None when none ever did."""
        return None if self._job is None else now_ms - self._job[1]

    def status(self, hub: Hub, ends: Mapping[str, int], *, now_ms: int) -> CaptureStatus:
        """`ends` is the next event of each partition."""
        if self._since_ms is None:
            self._since_ms = now_ms
        description = hub.metadata.get("capture", {})
        runs = load_runs(hub.metadata.get("captureRuns"))
        told = [self._reports[key] for run in runs if (key := (hub.id, run.id)) in self._reports]
        newest = _worst(told)
        state, error = self._judge_state(description, runs, newest, now_ms)
        report = told[-1][0] if told else CaptureReport(run="")
        settings = CaptureDescription.of(description)
        past = load_history(hub.metadata.get("capturePast"))
        wrote: list[CaptureHistory | CaptureReport] = [past, *(each for each, _ in told)]
        if past.last_file_ms > report.last_file_ms:
            report = msgspec.structs.replace(
                report, last_file=past.last_file, last_file_ms=past.last_file_ms
            )
        return CaptureStatus(
            namespace=hub.namespace,
            hub=hub.name,
            state=state,
            destination=self._destination(settings),
            encoding=settings.encoding,
            interval_seconds=settings.interval_s,
            size_limit_bytes=settings.size_bytes,
            backlog_events=sum(self._backlog(hub, run, ends) for run in runs),
            backlog_seconds=self._backlog_seconds(hub, runs, ends, now_ms),
            last_file=report.last_file,
            last_file_ms=report.last_file_ms,
            recent_files=report.recent_files,
            files=sum(each.files for each in wrote),
            events=sum(each.events for each in wrote),
            lost_events=sum(each.lost for each in wrote),
            last_error=error,
            updated_ms=newest[1] if newest else 0,
            retention_hours=hub.retention_hours,
            created_ms=hub.created_ms,
            past=past,
            places=[settings.place, *reversed(load_locations(hub.metadata.get("capturePlaces")))],
        )

    def _judge_state(
        self,
        description: Mapping[str, object],
        runs: Sequence[CaptureRun],
        newest: tuple[CaptureReport, int] | None,
        now_ms: int,
    ) -> tuple[CaptureState, str]:
        if not runs or not (description.get("enabled") or any(run.is_over for run in runs)):
            return CaptureState.OFF, ""
        for each in [run.description or description for run in runs]:
            if wrong := self._unusable(each):
                return CaptureState.FAILED, wrong
        if self.trouble:
            return CaptureState.FAILED, self.trouble
        if newest is None:
            silent_ms = now_ms - max(runs[-1].on_ms, self._since_ms or 0)
            if silent_ms < STARTING_MS:
                return CaptureState.STARTING, ""
            return CaptureState.WAITING, "No capture job has reported yet."
        report, at_ms = newest
        if now_ms - at_ms >= SILENT_MS:
            seconds = (now_ms - at_ms) // 1000
            text = f"The capture job has not reported for {seconds} s. {report.last_error}"
            return CaptureState.WAITING, text.strip()
        # A job keeps its last error for its own log; one that runs again has recovered from it.
        return report.state, "" if report.state is CaptureState.RUNNING else report.last_error

    def _unusable(self, description: Mapping[str, object]) -> str:
        settings = CaptureDescription.of(description)
        try:
            resolve_destination(self.destinations, settings.account, settings.container)
        except PenstockError as error:
            return str(error)
        return ""

    def _destination(self, settings: CaptureDescription) -> str:
        try:
            return resolve_destination(self.destinations, settings.account, settings.container).url
        except PenstockError:
            return names.quote_text(settings.account)

    def captured_positions(self, hub: Hub, run: CaptureRun) -> dict[str, int]:
        """How far the run's job has told that it is, also before the service was started anew."""
        report, _ = self._reports.get((hub.id, run.id), (None, 0))
        kept = {key: each.sequence for key, each in run.reached.items()}
        return run.starts | kept | ({} if report is None else report.captured)

    def _backlog(self, hub: Hub, run: CaptureRun, ends: Mapping[str, int]) -> int:
        captured = self.captured_positions(hub, run)
        wanted = run.stops if run.stops is not None else ends
        return sum(
            max(0, wanted.get(key, first) - max(first, captured.get(key, first)))
            for key, first in run.starts.items()
        )

    def _backlog_seconds(
        self, hub: Hub, runs: Sequence[CaptureRun], ends: Mapping[str, int], now_ms: int
    ) -> float:
        """How old the oldest event is that is in no file, about: as reported, and what passed since
        in silence. Where no job ever came, since Capture was switched on."""
        ages = [0.0]
        for run in runs:
            report, at_ms = self._reports.get((hub.id, run.id), (None, 0))
            if not self._backlog(hub, run, ends):
                continue
            if report is None:
                silent_ms = now_ms - max(run.on_ms, self._since_ms or 0)
                ages.append((now_ms - run.on_ms) / 1000 if silent_ms >= STARTING_MS else 0.0)
            else:
                silent_ms = now_ms - at_ms
                ages.append(
                    report.backlog_seconds + (silent_ms / 1000 if silent_ms >= SILENT_MS else 0.0)
                )
        return max(ages)


def _worst(told: Sequence[tuple[CaptureReport, int]]) -> tuple[CaptureReport, int] | None:
    """Of several runs the one that waits or failed speaks for all; else the newest."""
    for each in reversed(told):
        if each[0].state in (CaptureState.WAITING, CaptureState.FAILED):
            return each
    return told[-1] if told else None
