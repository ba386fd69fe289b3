"""`/ready` and `penstock doctor` share one list of checks. The service runs it itself, `doctor` on
a data directory. Texts name no path: `/ready` needs no token.

`/health` fails only when a restart helps. A check that is required makes `/ready` answer 503;
everything else is a warning of a 200.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import resource
import shutil
from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from pathlib import Path

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from penstock.broker.broker import Broker
from penstock.log.api import LogHealth
from penstock.model.clock import Clock
from penstock.service.certificates import EXPIRY_WARNING_DAYS, CertificateValidity
from penstock.service.periodic_tasks import PassReport, TurnBudget

_WARNINGS_MAX = 20
_NAMED_MAX = 3  # directories that one warning names
_FREE_SHARE_LOW = 0.10
_FREE_BYTES_LOW = 1 << 30
_OPEN_FILES_LOW = 4096
_COMMITTER_LATE_S = 60.0  # it completes a round, or wakes up idle, every few seconds
_DAY_MS = 86_400_000
_GB = 1 << 30


class State(StrEnum):
    OK = "ok"
    OFF = "off"
    PENDING = "pending"  # it is starting; no action is needed
    WARN = "warn"
    FAIL = "fail"


class Finding(msgspec.Struct, frozen=True):
    """The result of one check, and what to do about it."""

    check: str
    state: State
    text: str
    is_required: bool = False  # the service is not ready while this check fails


class Readiness(msgspec.Struct, frozen=True):
    """The body of `/ready`."""

    status: str
    checks: dict[str, str]
    warnings: list[str]
    passes: dict[str, float | None]  # seconds since the last complete pass; None: none yet

    @property
    def is_ready(self) -> bool:
        return self.status == "ready"


def run_checks(
    data: Path,
    *,
    now_ms: int,
    certificate: CertificateValidity | str | None,
    unclaimed: Sequence[str] = (),
    open_files: tuple[int, int] | None = None,
) -> list[Finding]:
    """The checks that need no service, in order. May stat the disk: a few microseconds each.

    `certificate` is a text where it cannot be read, None where there is none yet; `unclaimed` are
    log directories that belong to no event hub; `open_files` are the soft and the hard limit, by
    default those of this process."""
    return [
        _check_data_directory(data),
        _check_disk_space(data),
        _check_open_files(*(open_files or resource.getrlimit(resource.RLIMIT_NOFILE))),
        _check_certificate(certificate, now_ms),
        _check_unclaimed(unclaimed),
    ]


def summarize(
    findings: Sequence[Finding],
    *,
    is_open: bool,
    log_problem: str | None,
    portal: Finding,
    capture: Finding,
    passes: Sequence[PassReport],
    warnings: Sequence[str],
) -> Readiness:
    """The findings of `run_checks`, and those that only a running service has. `log_problem` is a
    partition that takes no events, or a committer that ended; `warnings` are about damage, idle
    throughput units, hubs that are not captured."""
    listeners = "open" if is_open else "starting or stopping"
    log = log_problem or "every partition takes events"
    findings = [
        Finding("listeners", State.OK if is_open else State.FAIL, listeners, is_required=True),
        Finding("log", State.FAIL if log_problem else State.OK, log, is_required=True),
        *(portal, capture),
        *findings,
        # Late or failed passes of long-lived tasks; `/ready` names the others by their age.
        *(Finding(each.name, State.WARN, each.warning) for each in passes if each.warning),
        *(Finding("notes", State.WARN, text) for text in warnings),
    ]
    is_ready = not any(each.is_required and each.state is State.FAIL for each in findings)
    checks: dict[str, str] = {}
    texts: list[str] = []
    for each in findings:
        is_fine = each.state in (State.OK, State.OFF)
        if each.state is State.WARN:
            checks.setdefault(each.check, "warning")
        else:
            checks[each.check] = each.state.value if is_fine else each.text
        if each.state is State.WARN or (each.state is State.FAIL and not each.is_required):
            texts.append(each.text)
    return Readiness(
        status="ready" if is_ready else "not ready",
        checks=checks,
        warnings=list(dict.fromkeys(texts))[:_WARNINGS_MAX],
        passes={
            each.name: None if each.seconds_ago is None else round(each.seconds_ago, 1)
            for each in passes
        },
    )


def health_routes(
    ended: Callable[[], str | None], readiness: Callable[[], Awaitable[Readiness]]
) -> list[Route]:
    """`ended` returns None, or why only a restart helps."""

    async def health(request: Request) -> JSONResponse:
        reason = ended()
        body = {
            "status": "healthy" if reason is None else "unhealthy",
            "message": reason or "Penstock is running.",
        }
        return JSONResponse(body, status_code=200 if reason is None else 503)

    async def ready(request: Request) -> JSONResponse:
        found = await readiness()
        return JSONResponse(msgspec.to_builtins(found), status_code=200 if found.is_ready else 503)

    return [Route("/health", health), Route("/ready", ready)]


def raise_open_files_limit() -> None:
    """Raise the soft limit on open files to the hard limit. Every connection and every open segment
    needs a descriptor, and the usual soft limit is 1,024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # macOS has an infinite hard limit that cannot be set.
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def committer_report(health: LogHealth, clock: Clock) -> PassReport:
    """The committer wakes up at least every few seconds, also when nothing is published."""
    name = "committer"
    ago_s: float | None = None
    if health.last_round_ms is not None:
        ago_s = max(0, clock.monotonic_ms() - health.last_round_ms) / 1000
    if health.is_alive and (ago_s is None or ago_s <= _COMMITTER_LATE_S):
        return PassReport(name, ago_s, None)
    last = "never" if ago_s is None else f"{ago_s:,.0f} s ago"
    text = f"{name}: the last complete round was {last}; {health.queued:,} tasks wait for it. "
    return PassReport(name, ago_s, text + "Is the disk slow? `penstock doctor` measures a flush.")


async def find_log_problem(broker: Broker) -> str | None:
    """The first partition that takes no events, and how many there are; a bounded number of
    partitions per event-loop turn."""
    first, count = "", 0
    budget = TurnBudget()
    for hub in broker.hubs():
        for index, reason in hub.failed_partitions():
            entity = hub.entity
            first = first or f"partition {index} of {entity.namespace}/{entity.name}: {reason}"
            count += 1
        await budget.spend(hub.partition_count)
    more = f" (and {count - 1} more)" if count > 1 else ""
    return f"{first}{more}" if count else None


# --- the checks ---------------------------------------------------------------------------------


def _check_data_directory(data: Path) -> Finding:
    if not data.is_dir():
        text = "The data directory does not exist yet; `penstock serve` creates it."
        return Finding("data directory", State.WARN, text)
    if not os.access(data, os.W_OK | os.X_OK):
        text = "The data directory cannot be written by this user."
        return Finding("data directory", State.FAIL, text)
    return Finding("data directory", State.OK, str(data.resolve()))


def _check_disk_space(data: Path) -> Finding:
    try:
        usage = shutil.disk_usage(data if data.is_dir() else data.absolute().parent)
    except OSError as error:
        text = f"The free disk space cannot be read: {error.strerror}."
        return Finding("disk space", State.WARN, text)
    share = usage.free / usage.total if usage.total else 0.0
    text = f"{usage.free / _GB:,.1f} GB free of {usage.total / _GB:,.1f} GB ({share:.0%})"
    if share >= _FREE_SHARE_LOW and usage.free >= _FREE_BYTES_LOW:
        return Finding("disk space", State.OK, text)
    remedy = "publications are refused when it is full: free some, or shorten retention."
    return Finding("disk space", State.WARN, f"The data directory's disk has {text}: {remedy}")


def _check_open_files(soft: int, hard: int) -> Finding:
    text = f"soft limit {_limit(soft)}, hard limit {_limit(hard)}"
    if hard not in (-1, resource.RLIM_INFINITY) and hard < _OPEN_FILES_LOW:
        remedy = "every connection needs one: raise it (systemd: LimitNOFILE=)."
        return Finding("open files", State.WARN, f"Open files have the {text}: {remedy}")
    return Finding("open files", State.OK, f"{text}; the service raises the soft one")


def _check_certificate(validity: CertificateValidity | str | None, now_ms: int) -> Finding:
    if validity is None:
        return Finding("certificate", State.OK, "none yet; the first start creates one")
    if isinstance(validity, str):
        return Finding("certificate", State.FAIL, validity)
    return judge_certificate(validity, now_ms=now_ms)


def judge_certificate(validity: CertificateValidity, *, now_ms: int) -> Finding:
    """For `/ready`, `doctor`, `config validate` and the start."""
    days = (validity.not_after_ms - now_ms) / _DAY_MS
    name = f"The certificate {validity.file.name}"
    since, until = _format_time(validity.not_before_ms), _format_time(validity.not_after_ms)
    remedy = (
        "replace the files; they are loaded without a restart."
        if validity.is_own
        else "it is renewed by itself; see the log lines if it is not."
    )
    if now_ms < validity.not_before_ms:
        text = f"{name} is valid from {since} on, which is in the future."
        return Finding("certificate", State.FAIL, text)
    if days < 0:
        return Finding("certificate", State.FAIL, f"{name} expired on {until}: {remedy}")
    text = f"{name} is valid until {until} ({days:.0f} days)"
    if days < EXPIRY_WARNING_DAYS:
        return Finding("certificate", State.WARN, f"{text}: {remedy}")
    return Finding("certificate", State.OK, f"{text}.")


def _format_time(ms: int) -> str:
    return f"{datetime.datetime.fromtimestamp(ms / 1000, tz=datetime.UTC):%Y-%m-%d %H:%M} UTC"


def _check_unclaimed(names: Sequence[str]) -> Finding:
    if not names:
        return Finding("log directories", State.OK, "each belongs to an event hub")
    more = f" and {len(names) - _NAMED_MAX} more" if len(names) > _NAMED_MAX else ""
    text = (
        f"No event hub of the catalog owns the log directories {', '.join(names[:_NAMED_MAX])}"
        f"{more}: the catalog may have lost a hub. See docs/guides/operations.md, unclaimed log "
        "directories."
    )
    return Finding("log directories", State.WARN, text)


def _limit(number: int) -> str:
    return "unlimited" if number in (-1, resource.RLIM_INFINITY) else f"{number:,}"
