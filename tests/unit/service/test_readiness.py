"""`/health` and `/ready`: what makes each of them fail, and what is only a warning."""

from __future__ import annotations

import json
import resource
import shutil
from collections import namedtuple
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from starlette.requests import Request

from penstock.log.api import LogHealth
from penstock.model.clock import ManualClock
from penstock.service.certificates import CertificateValidity
from penstock.service.periodic_tasks import PassReport, PeriodicTask
from penstock.service.readiness import (
    Finding,
    Readiness,
    State,
    committer_report,
    health_routes,
    raise_open_files_limit,
    run_checks,
    summarize,
)

NO_REQUEST = cast(Request, None)  # no route looks at the request
NOW_MS = 1_790_000_000_000
DAY_MS = 86_400_000
SERVICE: dict[str, Any] = {
    "is_open": True,
    "log_problem": None,
    "portal": Finding("portal", State.OK, "running"),
    "capture": Finding("capture", State.OFF, "no event hub is captured"),
    "passes": [PassReport("retention", 12.34, None)],
    "warnings": [],
}
Subject = dict[str, Any]  # what `run_checks` is called with
Usage = namedtuple("Usage", "total used free")  # as shutil's


@pytest.fixture(autouse=True)
def _roomy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(100 << 30, 50 << 30, 50 << 30))
    monkeypatch.setattr(resource, "getrlimit", lambda which: (20_000, 20_000))


@pytest.fixture
def subject(tmp_path: Path) -> Subject:
    certificate = CertificateValidity(
        file=tmp_path / "server.pem",
        not_before_ms=0,
        not_after_ms=NOW_MS + 300 * DAY_MS,
        is_own=True,
    )
    return {"data": tmp_path, "now_ms": NOW_MS, "certificate": certificate}


def judged(subject: Subject, **service: object) -> Readiness:
    return summarize(run_checks(**subject), **SERVICE | service)


async def ask(found: Readiness, ended: str | None = None) -> dict[str, tuple[int, dict[str, Any]]]:
    """Path -> status and body."""

    async def ready() -> Readiness:
        return found

    routes = health_routes(lambda: ended, ready)
    answers = {route.path: await route.endpoint(NO_REQUEST) for route in routes}
    return {path: (each.status_code, json.loads(each.body)) for path, each in answers.items()}


async def test_service_that_runs_is_healthy_and_ready(subject: Subject) -> None:
    answers = await ask(judged(subject))
    assert answers["/health"] == (200, {"status": "healthy", "message": "Penstock is running."})
    status, body = answers["/ready"]
    assert (status, body["status"], body["warnings"]) == (200, "ready", [])
    assert body["checks"]["portal"] == "ok"
    assert body["checks"]["capture"] == "off"
    assert body["passes"] == {"retention": 12.3}


async def test_committer_that_ended_needs_a_restart(subject: Subject) -> None:
    answers = await ask(judged(subject, log_problem="It ended."), "The committer has ended.")
    assert answers["/health"][0] == 503
    assert answers["/health"][1]["message"] == "The committer has ended."
    assert answers["/ready"][0] == 503


@pytest.mark.parametrize(
    ("check", "changed"),
    [
        ("log", {"log_problem": "partition 2 of contoso/events takes no events: ENOSPC"}),
        ("listeners", {"is_open": False}),
    ],
)
async def test_required_check_that_fails_makes_the_service_unready_but_not_unhealthy(
    subject: Subject, check: str, changed: dict[str, object]
) -> None:
    answers = await ask(judged(subject, **changed))
    status, body = answers["/ready"]
    assert (status, body["status"]) == (503, "not ready")
    assert body["checks"][check] not in ("ok", "off")
    assert answers["/health"][0] == 200


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"passes": [PassReport("retention", 400.0, "retention: late")]}, "retention: late"),
        ({"portal": Finding("portal", State.FAIL, "ended with 1")}, "ended with 1"),
        ({"capture": Finding("capture", State.FAIL, "cannot run: no Spark")}, "cannot run"),
        ({"warnings": ["damaged"]}, "damaged"),
    ],
)
async def test_everything_else_is_a_warning(
    subject: Subject, changed: dict[str, object], text: str
) -> None:
    status, body = (await ask(judged(subject, **changed)))["/ready"]
    assert (status, body["status"]) == (200, "ready")
    assert any(text in warning for warning in body["warnings"])


@pytest.mark.parametrize("name", ["portal", "capture"])
def test_part_that_does_not_run_is_not_called_ok(subject: Subject, name: str) -> None:
    found = judged(subject, **{name: Finding(name, State.FAIL, "it cannot run")})
    assert found.checks[name] == "it cannot run"


@pytest.mark.parametrize(
    ("days", "state", "text"),
    [(300, State.OK, "valid until"), (20, State.WARN, "20 days"), (-1, State.FAIL, "expired on")],
)
async def test_certificate_is_judged_by_its_end(
    subject: Subject, days: int, state: State, text: str
) -> None:
    subject["certificate"] = msgspec.structs.replace(
        subject["certificate"], not_after_ms=NOW_MS + days * DAY_MS + 1000
    )
    (finding,) = (each for each in run_checks(**subject) if each.check == "certificate")
    assert finding.state is state
    assert text in finding.text
    status, body = (await ask(judged(subject)))["/ready"]
    assert status == 200
    assert bool(body["warnings"]) is (state is not State.OK)


def test_disk_below_ten_percent_is_a_warning(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Operators need a warning before the disk is full."""
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(100 << 30, 91 << 30, 9 << 30))
    found = judged(subject)
    assert found.is_ready
    assert found.checks["disk space"] == "warning"
    assert "9.0 GB free of 100.0 GB (9%)" in found.warnings[0]


def test_log_directories_that_no_hub_owns_are_a_warning(subject: Subject) -> None:
    names = [f"{number:032}" for number in range(5)]
    found = judged({**subject, "unclaimed": names})
    assert found.is_ready
    assert names[0] in found.warnings[0]
    assert "and 2 more" in found.warnings[0]


def test_texts_name_no_path(subject: Subject, tmp_path: Path) -> None:
    """`/ready` needs no token, so it must not show paths."""
    old = msgspec.structs.replace(subject["certificate"], not_after_ms=0)
    found = judged({**subject, "certificate": old, "data": tmp_path / "gone"})
    assert len(found.warnings) >= 2
    assert str(tmp_path) not in msgspec.json.encode(found).decode()


def test_open_files_are_named_with_both_limits(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (256, 1024))
    (finding,) = (each for each in run_checks(**subject) if each.check == "open files")
    assert finding.state is State.WARN
    assert "soft limit 256, hard limit 1,024" in finding.text


def test_soft_limit_on_open_files_becomes_the_hard_one(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [(1024, 524_288)]
    monkeypatch.setattr(resource, "getrlimit", lambda which: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda which, pair: limits.append(pair))
    raise_open_files_limit()
    assert limits[-1] == (524_288, 524_288)


def test_committer_without_a_round_for_a_minute_is_late() -> None:
    clock = ManualClock()
    clock.advance(1_000_000)
    now_ms = clock.monotonic_ms()
    well = committer_report(LogHealth(True, now_ms - 5_000, 0), clock)
    assert (well.seconds_ago, well.warning) == (5, None)
    late = committer_report(LogHealth(True, now_ms - 61_000, 7), clock)
    assert late.warning is not None
    assert "61 s ago" in late.warning
    ended = committer_report(LogHealth(False, now_ms, 0), clock)
    assert ended.warning is not None


@pytest.mark.parametrize(
    "name", ["retention", "metering", "metric history", "certificate reload", "capture supervision"]
)
async def test_every_task_whose_passes_fail_is_named(subject: Subject, name: str) -> None:
    async def work() -> None:
        raise RuntimeError("unexpected")

    task = PeriodicTask(name, work, ManualClock(), interval_s=60)
    await task.run_once()
    found = judged(subject, passes=[task.report()])
    assert found.is_ready
    assert found.checks[name] == "warning"
    assert "unexpected" in found.warnings[0]
