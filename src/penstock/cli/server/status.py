"""`penstock status` and `penstock health [--wait 30s]`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.output import Format, OutputFormat, print_message, print_record
from penstock.cli.server.probe import readiness
from penstock.cli.service_options import AdminSession, with_whole_service
from penstock.cli.units import parse_seconds
from penstock.model.errors import InternalError, NotFound, OperationTimedOut, PenstockError

if TYPE_CHECKING:
    from penstock.cli.service_lookup import AdminEndpoint

_PROBE_S = 5.0
_EVERY_S = 0.2


@with_whole_service
def status(service: AdminSession, output: Format = OutputFormat.TABLE) -> None:
    """Show what runs, and how it is.

    Exit code 0 when every part is well, 1 when one is not, 3 when no service is known.
    """
    ready, told = _get_readiness(service.admin, _PROBE_S)
    record: dict[str, object] = {"status": told.get("status"), "url": service.admin.url}
    record |= _service_fields(service)
    checks: Any = told.get("checks", {})
    record["checks"] = checks
    record["warnings"] = told.get("warnings", [])
    record |= _counts(service)
    print_record(
        record, output, shown={"checks": _checks_shown, "warnings": _lines_shown, "pid": str}
    )
    if not ready:
        raise typer.Exit(1)


@with_whole_service
def health(
    service: AdminSession,
    wait: Annotated[
        str | None, typer.Option(metavar="TIME", help="Wait up to so long for it to be well")
    ] = None,
    output: Format = OutputFormat.TABLE,
) -> None:
    """Exit code 0 when the service is well; --wait waits for it.

    For compose files and CI: exit code 1 when a part is not well or nobody answers, 3 when no
    service is known, 6 when the wait ended first.
    """
    if wait is None:
        ready, told = _get_readiness(service.admin, _PROBE_S)
    else:
        ready, told = _wait_until_ready(service, parse_seconds(wait, option="--wait"))
    if output is not OutputFormat.TABLE:
        print_record(told, output)
    else:
        print_message(f"{service.admin.url}: {told.get('status')}")
        for part, state in _troubles(told):
            print_message(f"{part}: {state}")
    if not ready:
        raise typer.Exit(1)


def _get_readiness(admin: AdminEndpoint, timeout_s: float) -> tuple[bool, dict[str, object]]:
    try:
        return readiness(admin, timeout_s=timeout_s)
    except TimeoutError:
        raise OperationTimedOut(
            f"{admin.url} did not answer within {timeout_s:g} seconds."
        ) from None
    except OSError as error:
        raise InternalError(f"{admin.url} cannot be reached: {error}.") from None


def _wait_until_ready(service: AdminSession, wait_s: float) -> tuple[bool, dict[str, object]]:
    """Asked again until it is well: a service that starts has nobody to tell us."""
    deadline = time.monotonic() + wait_s
    trouble = ""
    while True:
        left_s = deadline - time.monotonic()
        try:
            service.forget()  # a service that comes up may have other ports
            ready, told = _get_readiness(service.admin, max(0.1, min(_PROBE_S, left_s)))
            if ready:
                return True, told
            trouble = "; ".join(f"{part}: {state}" for part, state in _troubles(told))
        except (NotFound, InternalError, OperationTimedOut) as error:
            trouble = str(error)
        if time.monotonic() + _EVERY_S > deadline:
            raise OperationTimedOut(f"Not well within {wait_s:g} seconds: {trouble}")
        time.sleep(_EVERY_S)


def _troubles(told: dict[str, object]) -> list[tuple[str, object]]:
    checks = told.get("checks")
    if not isinstance(checks, dict):
        return []
    return [(part, state) for part, state in checks.items() if state not in ("ok", "off")]


def _service_fields(service: AdminSession) -> dict[str, object]:
    """What the service on this machine tells about itself, where it is that one."""
    from penstock.cli.service_lookup import data_directory
    from penstock.io.runtime_file import read_runtime

    try:
        facts = read_runtime(data_directory(service.where)) or {}
    except PenstockError:
        facts = {}
    if facts.get("admin") != service.admin.url:
        return {}
    names = ("amqp", "amqps", "https", "portal", "data", "pid")
    return {name: facts.get(name) for name in names}


def _counts(service: AdminSession) -> dict[str, object]:
    if service.admin.token is None:
        return {}
    client = service.client
    namespaces = client.namespaces()
    hubs = [hub for each in namespaces for hub in client.hubs(each.name)]
    return {
        "namespaces": [each.name for each in namespaces],
        "hubs": len(hubs),
        "partitions": sum(hub.partition_count for hub in hubs),
        "connections": len(client.connections()),
    }


def _checks_shown(value: object) -> str:
    if not isinstance(value, dict):
        return str(value)
    return ", ".join(f"{part} {state}" for part, state in value.items())


def _lines_shown(value: object) -> str:
    return "\n".join(map(str, value)) if isinstance(value, list) and value else "none"
