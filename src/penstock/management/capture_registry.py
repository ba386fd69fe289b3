"""What capture jobs reported, and the status of each hub that follows from it.

Kept in memory: after a restart the job reports again within seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from penstock.capture.description import parse_description
from penstock.capture.destinations import Destination, resolve_destination
from penstock.capture.status import (
    RECENT_FILES_MAX,
    CaptureReport,
    CaptureState,
    CaptureStatus,
)
from penstock.model import names
from penstock.model.capture import CaptureDescription, CaptureHistory, CaptureRun, HubCapture
from penstock.model.entities import Hub
from penstock.model.errors import AlreadyExists, ArgumentError, PenstockError

REPORTS_MAX = 4096
TEXT_MAX = 2048
SILENT_MS = 60_000  # the job reports every few seconds
STARTING_MS = 120_000  # time for Spark to start
# A job that sent no request for this long is gone; it sends none while Spark starts.
CLAIM_MS = 90_000
_PARTITIONS_MAX = 4096


class _TimedReport(msgspec.Struct):
    report: CaptureReport
    at_ms: int  # when it came
    stored_ms: int | None = None  # when the run's progress was last stored


class CaptureRegistry:
    """Used on the event loop's thread. `trouble` is why the service itself can run no job."""

    def __init__(self, destinations: Sequence[Destination] = ()) -> None:
        self.destinations = list(destinations)
        self.trouble = ""
        self._reports: dict[tuple[str, str], _TimedReport] = {}  # by hub id and run id
        self._job: tuple[str, int] | None = None  # the job that holds the claim, its last request
        self._since_ms: int | None = None  # first status request: a job needs time to start

    def claim(self, job: str, *, now_ms: int) -> None:
        """Let one job at a time work: two would overwrite each other's files. Raises
        AlreadyExists."""
        if len(job) > TEXT_MAX:
            raise ArgumentError(f"The id of a capture job has more than {TEXT_MAX} characters.")
        if self._job is not None and self._job[0] != job and now_ms - self._job[1] < CLAIM_MS:
            raise AlreadyExists(
                f"Another capture job ({names.quote_text(self._job[0])}) is running: stop it. The "
                "job of 'penstock serve' is switched off by 'run = false' in [capture]."
            )
        self._job = (job, now_ms)

    def last_poll_age_ms(self, now_ms: int) -> int | None:
        """How long ago a job asked for its runs; None when none ever did."""
        return None if self._job is None else now_ms - self._job[1]

    def put(self, hub: Hub, report: CaptureReport, *, now_ms: int) -> bool:
        """Replace the run's last report. Returns whether it had none. Raises ArgumentError."""
        urls = [file.url for file in report.recent_files]
        if len(urls) > RECENT_FILES_MAX:
            raise ArgumentError(f"A capture report has more than {RECENT_FILES_MAX} files.")
        for text in (report.run, report.last_file, report.last_error, *urls):
            if len(text) > TEXT_MAX:
                raise ArgumentError(f"A text of a capture report is above {TEXT_MAX} characters.")
        if len(report.captured) > _PARTITIONS_MAX:
            raise ArgumentError(f"A capture report has more than {_PARTITIONS_MAX} partitions.")
        key = (hub.id, report.run)
        old = self._reports.pop(key, None)
        if len(self._reports) >= REPORTS_MAX:
            del self._reports[next(iter(self._reports))]
        self._reports[key] = _TimedReport(report, now_ms, None if old is None else old.stored_ms)
        return old is None

    def is_due(self, hub: Hub, run: str, *, now_ms: int, every_ms: int) -> bool:
        """Whether the progress of a run with a report was not stored for `every_ms`. Counts as
        stored from now on if so."""
        timed = self._reports[hub.id, run]
        if timed.stored_ms is not None and 0 <= now_ms - timed.stored_ms < every_ms:
            return False
        timed.stored_ms = now_ms
        return True

    def status(self, hub: Hub, ends: Mapping[str, int], *, now_ms: int) -> CaptureStatus:
        """`ends` is the next event of each partition."""
        if self._since_ms is None:
            self._since_ms = now_ms
        capture = hub.capture
        reports = [
            self._reports[key] for run in capture.runs if (key := (hub.id, run.id)) in self._reports
        ]
        newest = _select_report(reports)
        state, error = self._judge_state(capture, newest, now_ms)
        settings = parse_description(capture.description or {})
        past = capture.past or CaptureHistory()
        written: list[CaptureHistory | CaptureReport] = [past, *(timed.report for timed in reports)]
        last = written[-1] if written[-1].last_file_ms >= past.last_file_ms else past
        return CaptureStatus(
            namespace=hub.namespace,
            hub=hub.name,
            state=state,
            destination=self._destination_url(settings),
            encoding=settings.encoding,
            interval_seconds=settings.interval_s,
            size_limit_bytes=settings.size_bytes,
            backlog_events=sum(self._backlog(hub, run, ends) for run in capture.runs),
            backlog_seconds=self._backlog_seconds(hub, capture.runs, ends, now_ms),
            last_file=last.last_file,
            last_file_ms=last.last_file_ms,
            recent_files=reports[-1].report.recent_files if reports else [],
            files=sum(source.files for source in written),
            events=sum(source.events for source in written),
            lost_events=sum(source.lost for source in written),
            last_error=error,
            updated_ms=newest.at_ms if newest else 0,
            retention_hours=hub.retention_hours,
            created_ms=hub.created_ms,
            past=past,
            places=[settings.location, *reversed(capture.places)],
        )

    def captured_positions(self, hub: Hub, run: CaptureRun) -> dict[str, int]:
        """Per partition the next event that is in no file, by the job's last report; after a
        restart of the service by the progress in the catalog."""
        timed = self._reports.get((hub.id, run.id))
        stored = {key: progress.sequence for key, progress in run.reached.items()}
        return run.starts | stored | ({} if timed is None else timed.report.captured)

    def _judge_state(
        self, capture: HubCapture, newest: _TimedReport | None, now_ms: int
    ) -> tuple[CaptureState, str]:
        runs = capture.runs
        if not runs or not (capture.is_enabled or any(run.is_over for run in runs)):
            return CaptureState.OFF, ""
        for run in runs:
            settings = parse_description(capture.description_of(run))
            try:
                resolve_destination(self.destinations, settings.account, settings.container)
            except PenstockError as error:
                return CaptureState.FAILED, str(error)
        if self.trouble:
            return CaptureState.FAILED, self.trouble
        if newest is None:
            silent_ms = now_ms - max(runs[-1].on_ms, self._since_ms or 0)
            if silent_ms < STARTING_MS:
                return CaptureState.STARTING, ""
            return CaptureState.WAITING, "No capture job has reported yet."
        report = newest.report
        if now_ms - newest.at_ms >= SILENT_MS:
            seconds = (now_ms - newest.at_ms) // 1000
            text = f"The capture job has not reported for {seconds} s. {report.last_error}"
            return CaptureState.WAITING, text.strip()
        # A job keeps its last error for its own log; one that runs again has recovered from it.
        return report.state, "" if report.state is CaptureState.RUNNING else report.last_error

    def _destination_url(self, settings: CaptureDescription) -> str:
        try:
            return resolve_destination(self.destinations, settings.account, settings.container).url
        except PenstockError:
            return names.quote_text(settings.account)

    def _backlog(self, hub: Hub, run: CaptureRun, ends: Mapping[str, int]) -> int:
        captured = self.captured_positions(hub, run)
        stops = run.stops if run.stops is not None else ends
        return sum(
            max(0, stops.get(key, first) - max(first, captured.get(key, first)))
            for key, first in run.starts.items()
        )

    def _backlog_seconds(
        self, hub: Hub, runs: Sequence[CaptureRun], ends: Mapping[str, int], now_ms: int
    ) -> float:
        """About how old the oldest event is that is in no file: as reported, plus the time without
        a report. Without any report, the time since Capture was switched on."""
        ages = [0.0]
        for run in runs:
            timed = self._reports.get((hub.id, run.id))
            if not self._backlog(hub, run, ends):
                continue
            if timed is None:
                silent_ms = now_ms - max(run.on_ms, self._since_ms or 0)
                ages.append((now_ms - run.on_ms) / 1000 if silent_ms >= STARTING_MS else 0.0)
            else:
                silent_ms = now_ms - timed.at_ms
                silent_s = silent_ms / 1000 if silent_ms >= SILENT_MS else 0.0
                ages.append(timed.report.backlog_seconds + silent_s)
        return max(ages)


def _select_report(reports: Sequence[_TimedReport]) -> _TimedReport | None:
    """The report of a run that waits or failed, if there is one; else the newest run's."""
    for timed in reversed(reports):
        if timed.report.state in (CaptureState.WAITING, CaptureState.FAILED):
            return timed
    return reports[-1] if reports else None
