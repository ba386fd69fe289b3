"""Registry of pipeline jobs, in memory.

A job (a Spark query, Capture) reports itself every few seconds. A job without a report for a minute
is lost, and is removed a day later. After a restart of the service the jobs report again.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from penstock.model import names
from penstock.model.errors import ArgumentError, ArgumentOutOfRange, NotFound

CAPTURE_JOB = "capture"  # the name of the capture job
JOBS_MAX = 256  # a new job replaces the one with the oldest report
LOST_AFTER_MS = 60_000  # jobs report at least every 15 seconds
KEPT_MS = 24 * 3_600_000
NAME_MAX = 128
TEXT_MAX = 512
ERROR_MAX = 4096


class JobState(StrEnum):
    STARTING = "Starting"
    RUNNING = "Running"
    STOPPING = "Stopping"
    STOPPED = "Stopped"
    FAILED = "Failed"
    LOST = "Lost"  # set by the registry for a job that stopped reporting without an end


_ENDED = (JobState.STOPPED, JobState.FAILED)


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """The last report of a job."""

    name: str
    kind: str = ""  # capture, pipeline, ...
    state: JobState = JobState.RUNNING
    pid: int | None = None
    master: str = ""
    ui_url: str = ""
    rows_per_second: float | None = None
    batch_seconds: float | None = None
    lag_events: int | None = None
    last_error: str = ""
    updated_ms: int = 0


class JobRegistry:
    """Jobs by name, in any letter case. Used on the event loop's thread only."""

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}

    def put(self, job: Job, *, now_ms: int) -> bool:
        """Store a report. True for the first one of a job. Raises ArgumentError,
        ArgumentOutOfRange."""
        _check(job)
        self._expire(now_ms)
        is_new = self._jobs.pop(names.fold_name(job.name), None) is None
        if len(self._jobs) >= JOBS_MAX:
            del self._jobs[next(iter(self._jobs))]  # the dict is in the order of last reports
        self._jobs[names.fold_name(job.name)] = msgspec.structs.replace(job, updated_ms=now_ms)
        return is_new

    def list(self, *, now_ms: int) -> list[Job]:
        self._expire(now_ms)
        return [_mark_lost(job, now_ms) for _, job in sorted(self._jobs.items())]

    def delete(self, name: str) -> None:
        """Raises NotFound. A job that still runs returns with its next report."""
        if self._jobs.pop(names.fold_name(name), None) is None:
            raise NotFound(f"There is no job '{names.quote_text(name)}'.")

    def _expire(self, now_ms: int) -> None:
        old = [key for key, job in self._jobs.items() if now_ms - job.updated_ms >= KEPT_MS]
        for key in old:
            del self._jobs[key]


def _mark_lost(job: Job, now_ms: int) -> Job:
    if job.state in _ENDED or now_ms - job.updated_ms < LOST_AFTER_MS:
        return job
    return msgspec.structs.replace(job, state=JobState.LOST)


def _check(job: Job) -> None:
    bounds = (
        ("name", job.name, NAME_MAX),
        ("kind", job.kind, TEXT_MAX),
        ("master", job.master, TEXT_MAX),
        ("uiUrl", job.ui_url, TEXT_MAX),
        ("lastError", job.last_error, ERROR_MAX),
    )
    for field, text, most in bounds:
        if len(text) > most:
            raise ArgumentOutOfRange(
                f"A job's {field} has {len(text)} characters: at most {most} are allowed."
            )
    if not job.name.strip():
        raise ArgumentError("A job needs a name.")
    if job.state is JobState.LOST:
        raise ArgumentError("A job cannot report the state Lost.")
    if job.ui_url and not job.ui_url.startswith(("http://", "https://")):
        raise ArgumentError("A job's uiUrl begins with http:// or https://.")
