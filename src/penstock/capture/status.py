"""What the capture job, the service, its clients, the CLI and the portal tell each other about
Capture: assignments of runs, reports of the job, status of a hub."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import msgspec

from penstock.model.capture import CaptureHistory, CaptureRun, FileLocation, RunProgress

RECENT_FILES_MAX = 10
_RETENTION_PERCENT = 50  # a backlog older than this part of the retention time is a warning
Number = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class CaptureState(StrEnum):
    OFF = "Off"
    STARTING = "Starting"
    RUNNING = "Running"
    WAITING = "Waiting"  # for storage, for the service, or for the job: retried
    FAILED = "Failed"  # needs an operator


class DestinationSummary(msgspec.Struct, frozen=True):
    """A configured destination, without credentials."""

    name: str
    url: str


class RunAssignment(msgspec.Struct, frozen=True, kw_only=True):
    """One run that the capture job has to work at. Contains no key."""

    namespace: str
    hub: str
    hub_id: str
    run: CaptureRun
    description: dict[str, Any]
    retention_hours: int = 0
    captured: dict[str, int] = {}  # per partition the next event that is in no file, as reported


class RecentFile(msgspec.Struct, frozen=True):
    """A new file: when its window closed, and when it was complete at the destination (0:
    unknown)."""

    url: str
    ms: Number
    events: Number
    bytes: Number
    written_ms: Number = 0


class CaptureReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The job's report on one run. `captured` is as in `RunAssignment`."""

    run: Annotated[str, msgspec.Meta(max_length=64)]
    state: CaptureState = CaptureState.RUNNING
    captured: dict[str, Number] = {}
    reached: dict[str, RunProgress] = {}
    backlog_seconds: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    last_file: str = ""
    last_file_ms: Number = 0
    recent_files: list[RecentFile] = []  # the newest first
    files: Number = 0
    events: Number = 0
    lost: Number = 0  # events that retention removed before they were captured
    last_error: str = ""
    is_finished: bool = False  # the run is over, and all of it is in files


class CaptureStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How Capture of one hub is. Fields with defaults are missing in answers of version 0.1."""

    namespace: str
    hub: str
    state: CaptureState
    destination: str  # a URL without credentials
    encoding: str
    interval_seconds: int
    size_limit_bytes: int
    backlog_events: int
    backlog_seconds: float
    last_file: str
    last_file_ms: int
    files: int
    events: int
    lost_events: int
    last_error: str
    updated_ms: int
    retention_hours: int
    created_ms: int = 0  # of the hub: files with earlier names belong to a deleted one
    recent_files: list[RecentFile] = []
    past: CaptureHistory = CaptureHistory()
    places: list[FileLocation] = []  # where files are: the current location first

    @property
    def warning_text(self) -> str | None:
        """What an operator should look at."""
        problems = []
        if self.state in (CaptureState.FAILED, CaptureState.WAITING):
            problems.append(f"is {self.state.lower()}: {self.last_error or 'no reason is known'}")
        limit_s = self.retention_hours * 36 * _RETENTION_PERCENT
        if self.backlog_events > 0 and self.backlog_seconds >= limit_s:
            left_h = max(0.0, self.retention_hours - self.backlog_seconds / 3600)
            problems.append(
                f"is {self.backlog_seconds / 3600:.1f} hours behind: in {left_h:.1f} hours "
                "retention begins to drop events that are in no file"
            )
        if not problems:
            return None
        return f"Capture of {self.namespace}/{self.hub} {'; it '.join(problems)}"
