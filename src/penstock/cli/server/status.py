"""`penstock status`, `health` and `doctor`, and requests to the administration port."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from penstock.cli.exit_codes import ExitCode
from penstock.cli.options import option, parse_seconds
from penstock.cli.output import TABLE, Format, print_message
from penstock.cli.service_options import (
    AdminEndpoint,
    AdminSession,
    with_data_directory,
    with_whole_service,
)
from penstock.io.http_client import HttpClient, HttpResponse
from penstock.io.runtime_file import read_runtime
from penstock.model.errors import InternalError, NotFound, OperationTimedOut, PenstockError

if TYPE_CHECKING:
    from penstock.service.readiness import Finding

_PROBE_S = 5.0
_DOCTOR_PROBE_S = 10.0
_EVERY_S = 0.2
_RUNTIME_FIELDS = ("amqp", "amqps", "https", "portal", "data", "pid")


class ReadyAnswer(NamedTuple):
    """The answer of `/ready`."""

    is_ready: bool
    body: dict[str, Any]

    @property
    def problems(self) -> list[str]:
        checks = self.body.get("checks")
        rows = checks.items() if isinstance(checks, dict) else ()
        return [f"{part}: {state}" for part, state in rows if state not in ("ok", "off")]


@with_whole_service
def status(service: AdminSession, output: Format = TABLE) -> None:
    """Show what runs and whether it is ready.

    Exit code 0 when every part is ready, 1 when one is not, 3 when no service is known.

    Examples:
        penstock status
        penstock status --data /var/lib/penstock -o json
    """
    readiness = probe_readiness(service.admin, timeout_s=_PROBE_S)
    record: dict[str, object] = {
        "status": readiness.body.get("status"),
        "url": service.admin.url,
        **{name: service.runtime[name] for name in _RUNTIME_FIELDS if name in service.runtime},
        "checks": readiness.body.get("checks", {}),
        "warnings": readiness.body.get("warnings", []),
        **_count_entities(service),
    }
    output.print_record(
        record, shown={"checks": _format_checks, "warnings": _format_lines, "pid": str}
    )
    if not readiness.is_ready:
        raise typer.Exit(ExitCode.FAILED)


@with_whole_service
def health(
    service: AdminSession,
    wait: Annotated[str | None, option("TIME", "Wait up to this time until it is ready")] = None,
    output: Format = TABLE,
) -> None:
    """Check that the service is ready, or wait until it is.

    For compose files and CI. Exit code 0 when it is ready, 1 when a part is not or the service does
    not answer, 3 when no service is known, 6 when --wait ended first.

    Examples:
        penstock health
        penstock health --wait 30s
    """
    wait_s = None if wait is None else parse_seconds(wait, option="--wait")
    if wait_s is None:
        readiness = probe_readiness(service.admin, timeout_s=_PROBE_S)
    else:
        readiness = _wait_until_ready(service, wait_s)
    if output is not TABLE:
        output.print_record(readiness.body)
    else:
        print_message(f"{service.admin.url}: {readiness.body.get('status')}")
        for problem in readiness.problems:
            print_message(problem)
    if not readiness.is_ready:
        raise typer.Exit(ExitCode.FAILED)


def fetch(admin: AdminEndpoint, path: str, *, timeout_s: float) -> HttpResponse:
    """GET a page of the administration port. Raises OSError if there is no answer."""
    # Beyond loopback /metrics needs the token; the other pages do not, so it is not sent to them.
    is_token_needed = path == "/metrics" and admin.token is not None
    headers = {"Authorization": f"Bearer {admin.token}"} if is_token_needed else {}
    with HttpClient(admin.url, ca_file=admin.ca_file, timeout_s=timeout_s) as client:
        return client.request("GET", path, headers=headers)


def probe_readiness(admin: AdminEndpoint, *, timeout_s: float) -> ReadyAnswer:
    """Ask `/ready`. Raises OperationTimedOut, or InternalError if the service cannot be reached."""
    try:
        answer = fetch(admin, "/ready", timeout_s=timeout_s)
        body = json.loads(answer.body)
        if isinstance(body, dict):
            return ReadyAnswer(answer.status == 200, body)
    except TimeoutError:
        text = f"{admin.url} did not answer within {timeout_s:g} seconds."
        raise OperationTimedOut(text) from None
    except OSError as error:
        raise InternalError(f"{admin.url} cannot be reached: {error}.") from None
    except ValueError:
        pass
    raise InternalError(f"{admin.url} is not a Penstock service: /ready answers {answer.status}.")


def _wait_until_ready(service: AdminSession, wait_s: float) -> ReadyAnswer:
    deadline = time.monotonic() + wait_s
    while True:
        try:
            service.forget()  # a service that starts may have other ports
            left_s = max(0.1, min(_PROBE_S, deadline - time.monotonic()))
            readiness = probe_readiness(service.admin, timeout_s=left_s)
            if readiness.is_ready:
                return readiness
            problem = "; ".join(readiness.problems)
        except (NotFound, InternalError, OperationTimedOut) as error:
            problem = str(error)
        if time.monotonic() + _EVERY_S > deadline:
            raise OperationTimedOut(f"Not ready within {wait_s:g} seconds: {problem}")
        time.sleep(_EVERY_S)


def _count_entities(service: AdminSession) -> dict[str, object]:
    if service.admin.token is None:
        return {}
    client = service.client
    names = [namespace.name for namespace in client.namespaces()]
    hubs = [hub for name in names for hub in client.hubs(name)]
    return {
        "namespaces": names,
        "hubs": len(hubs),
        "partitions": sum(hub.partition_count for hub in hubs),
        "connections": len(client.connections()),
    }


def _format_checks(value: object) -> str:
    if not isinstance(value, dict):
        return str(value)
    return ", ".join(f"{part} {state}" for part, state in value.items())


def _format_lines(value: object) -> str:
    return "\n".join(map(str, value)) if isinstance(value, list) and value else "none"


# --- doctor ---------------------------------------------------------------------------------------


@with_data_directory
def doctor(
    data: Path,
    config: Annotated[
        Path | None, option("FILE", "Configuration file [default: PENSTOCK_CONFIG]")
    ] = None,
    output: Format = TABLE,
) -> None:
    """Find problems of the service and of this machine.

    It checks the service, ports, certificate, clock, disk and checkpoints: the checks of `/ready`,
    and some that take longer. Exit code 1 when a check fails.

    Examples:
        penstock doctor
        penstock doctor --data /var/lib/penstock --config penstock.toml
    """
    rows = check_rows(data, config)
    output.print_rows(rows, title="penstock doctor")
    if any(row["state"] == "fail" for row in rows):
        raise typer.Exit(ExitCode.FAILED)


def check_rows(data: Path, config: Path | None = None) -> list[dict[str, object]]:
    """One row per check of a data directory, its service and this machine."""
    from penstock.service.diagnostics import check_data, check_environment

    runtime = read_runtime(data)
    findings = list(check_environment(data, config, runtime))
    if runtime is not None:
        findings += _check_running_service(runtime, {finding.check for finding in findings})
    findings += check_data(data, runtime)
    return [
        {"check": finding.check, "state": finding.state.value, "seen": finding.text}
        for finding in findings
    ]


def _check_running_service(
    runtime: Mapping[str, object], checked: Collection[str]
) -> Iterator[Finding]:
    """The checks that the service reports, except those of `checked`."""
    from penstock.service.readiness import Finding, State

    admin = AdminEndpoint(str(runtime["admin"]), None, str(runtime["ca_file"]), None)
    try:
        is_ready, body = probe_readiness(admin, timeout_s=_DOCTOR_PROBE_S)
    except PenstockError as error:
        yield Finding("ready", State.FAIL, str(error))
        return
    yield Finding("ready", State.OK if is_ready else State.FAIL, str(body.get("status")))
    for name, value in body.get("checks", {}).items():
        if name not in checked and value != "warning":
            is_fine = value in ("ok", "off", "starting")
            yield Finding(name, State.OK if is_fine else State.FAIL, str(value))
    for text in body.get("warnings", []):
        yield Finding("warning", State.WARN, str(text))
    passes = body.get("passes", {})
    if passes:
        ages = (f"{name} {_format_age(seconds)}" for name, seconds in passes.items())
        yield Finding("last passes", State.OK, ", ".join(ages))


def _format_age(seconds: object) -> str:
    return f"{seconds:,.0f} s ago" if isinstance(seconds, int | float) else "never"
