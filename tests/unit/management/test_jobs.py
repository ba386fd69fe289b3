"""Pipeline jobs report themselves, are listed, fall silent and are forgotten."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penstock.management import resources as arm
from penstock.management.jobs import (
    ERROR_MAX,
    JOBS_MAX,
    KEPT_MS,
    LOST_AFTER_MS,
    NAME_MAX,
    Job,
    JobRegistry,
    JobState,
)
from penstock.model.errors import ArgumentError, ArgumentOutOfRange, NotFound, PenstockError

if TYPE_CHECKING:
    from tests.unit.management.conftest import Caller, Plane

JOBS = "/providers/Penstock/jobs"
REPORT = {
    "kind": "capture",
    "state": "Running",
    "pid": 42,
    "master": "local[2]",
    "uiUrl": "http://localhost:4040",
    "rowsPerSecond": 1500.5,
    "batchSeconds": 2,
    "lagEvents": 7,
    "lastError": "",
}


def states(jobs: JobRegistry, now_ms: int) -> dict[str, str]:
    return {job.name: job.state.value for job in jobs.list(now_ms=now_ms)}


def test_report_replaces_the_one_before() -> None:
    jobs = JobRegistry()
    assert jobs.put(Job(name="Capture", lag_events=1), now_ms=1)
    assert not jobs.put(Job(name="capture", lag_events=2), now_ms=5)
    (job,) = jobs.list(now_ms=6)
    assert (job.name, job.lag_events, job.updated_ms) == ("capture", 2, 5)


def test_silent_job_is_lost_unless_it_said_that_it_ended() -> None:
    jobs = JobRegistry()
    for state in (JobState.STARTING, JobState.RUNNING, JobState.STOPPED, JobState.FAILED):
        jobs.put(Job(name=state.value, state=state), now_ms=0)
    assert set(states(jobs, LOST_AFTER_MS - 1).values()) == {
        "Starting",
        "Running",
        "Stopped",
        "Failed",
    }
    assert states(jobs, LOST_AFTER_MS) == {
        "Starting": "Lost",
        "Running": "Lost",
        "Stopped": "Stopped",
        "Failed": "Failed",
    }
    jobs.put(Job(name="Running"), now_ms=LOST_AFTER_MS)
    assert states(jobs, LOST_AFTER_MS)["Running"] == "Running"


def test_old_jobs_are_forgotten_and_too_many_make_room() -> None:
    jobs = JobRegistry()
    jobs.put(Job(name="old"), now_ms=0)
    jobs.put(Job(name="young"), now_ms=1)
    assert list(states(jobs, KEPT_MS)) == ["young"]
    for number in range(JOBS_MAX):
        jobs.put(Job(name=f"job-{number:04}"), now_ms=KEPT_MS)
    known = list(states(jobs, KEPT_MS))
    assert len(known) == JOBS_MAX
    assert "young" not in known


def test_deleted_job_is_gone() -> None:
    jobs = JobRegistry()
    jobs.put(Job(name="a"), now_ms=0)
    jobs.delete("A")
    with pytest.raises(NotFound, match="'A'"):
        jobs.delete("A")


@pytest.mark.parametrize(
    ("job", "kind"),
    [
        (Job(name=" "), ArgumentError),
        (Job(name="n" * (NAME_MAX + 1)), ArgumentOutOfRange),
        (Job(name="n", last_error="e" * (ERROR_MAX + 1)), ArgumentOutOfRange),
        (Job(name="n", ui_url="javascript:alert(1)"), ArgumentError),
        (Job(name="n", state=JobState.LOST), ArgumentError),
    ],
)
def test_report_that_cannot_be_kept_is_refused(job: Job, kind: type[PenstockError]) -> None:
    jobs = JobRegistry()
    with pytest.raises(kind):
        jobs.put(job, now_ms=0)
    assert jobs.list(now_ms=0) == []


def test_only_the_first_report_is_recorded(full: Plane) -> None:
    before = len(full.audit())
    for _ in range(3):
        full.admin.activity.report_job("capture", arm.JobBody(kind="capture"))
    assert full.audit()[before:] == [("admin", "jobs/write", "capture: capture")]


async def test_jobs_over_the_api(call: Caller) -> None:
    assert (await call("PUT", f"{JOBS}/my%2Fjob", REPORT, query="")).status == 200
    (job,) = (await call("GET", JOBS, query="")).json["value"]
    assert (job["name"], job["state"], job["rows_per_second"]) == ("my/job", "Running", 1500.5)
    assert job["updated"].endswith("Z")
    assert (await call("DELETE", f"{JOBS}/my%2Fjob", query="")).status == 200
    assert (await call("DELETE", f"{JOBS}/my%2Fjob", query="")).status == 404
    assert (await call("PUT", f"{JOBS}/j", {}, token="viewer-token", query="")).status == 403


@pytest.mark.parametrize(
    "wrong",
    [
        {"state": "Sleeping"},
        {"pid": -1},
        {"pid": "1"},
        {"rowsPerSecond": -0.5},
        {"rowsPerSecond": "fast"},
        {"lagEvents": 2**60},
        {"lastError": "e" * (ERROR_MAX + 1)},
    ],
)
async def test_wrong_reports_are_refused_over_the_api(call: Caller, wrong: dict[str, Any]) -> None:
    assert (await call("PUT", f"{JOBS}/j", REPORT | wrong, query="")).status == 400
    assert (await call("GET", JOBS, query="")).json["value"] == []
