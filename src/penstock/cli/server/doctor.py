"""`penstock doctor`: the checks of `/ready`, and those that only this machine can make."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.exit_codes import ExitCode
from penstock.cli.options import option
from penstock.cli.output import Format, OutputFormat
from penstock.cli.service_options import with_data_directory
from penstock.model.errors import PenstockError

if TYPE_CHECKING:
    from penstock.service.readiness import Finding

_READY_S = 10.0


@with_data_directory
def doctor(
    data: Path,
    config: Annotated[
        Path | None, option("FILE", "Configuration file [default: PENSTOCK_CONFIG]")
    ] = None,
    output: Format = OutputFormat.TABLE,
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
    from penstock.io.runtime_file import read_runtime
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
    from penstock.cli.server.status import probe_readiness
    from penstock.cli.service_lookup import AdminEndpoint
    from penstock.service.readiness import Finding, State

    admin = AdminEndpoint(str(runtime["admin"]), None, str(runtime["ca_file"]), None)
    try:
        is_ready, body = probe_readiness(admin, timeout_s=_READY_S)
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
