"""`penstock grant`: an operator raises a limit of one namespace, while its service is stopped."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer


def grant(
    namespace: Annotated[str, typer.Argument(metavar="NAMESPACE", help="Who may have more")],
    by: Annotated[str, typer.Option(help="Who grants it, for the audit log")],
    throughput_units: Annotated[
        int | None, typer.Option(help="40, 60, 80, 100 or a multiple of 100")
    ] = None,
    partitions: Annotated[int | None, typer.Option(help="Of each event hub: 33 to 1024")] = None,
    note: Annotated[str, typer.Option(help="Why")] = "",
    data: Annotated[
        Path | None, typer.Option(help="Data directory [default: ./penstock-data]")
    ] = None,
) -> None:
    """Let a namespace have more units or partitions.

    The service that runs on the data directory must be stopped; or write [[namespaces.grants]]
    into its configuration instead.
    """
    from penstock.catalog import offline
    from penstock.model.clock import SystemClock
    from penstock.model.errors import DataDirectoryError
    from penstock.model.ledger import QuotaGrant, QuotaKind
    from penstock.model.names import NamespaceName
    from penstock.service.data_directory import read_runtime

    wanted = {QuotaKind.THROUGHPUT_UNITS: throughput_units, QuotaKind.PARTITIONS: partitions}
    if all(value is None for value in wanted.values()):
        raise typer.BadParameter("Nothing is granted: give --throughput-units or --partitions.")
    place = data or Path(os.environ.get("PENSTOCK_DATA") or "penstock-data")
    runtime = read_runtime(place)
    if runtime is not None:
        raise DataDirectoryError(
            f"A service runs on {place} (process {runtime['pid']}) and would not see the grant: "
            "stop it first, or write [[namespaces.grants]] into its configuration and restart it."
        )
    for kind, value in wanted.items():
        if value is not None:
            given = QuotaGrant(
                namespace=NamespaceName(namespace),
                kind=kind,
                value=value,
                granted_by=by,
                granted_ms=SystemClock().now_ms(),
                note=note,
            )
            offline.grant(place, given)
            typer.echo(f"{namespace} may have up to {value} {kind}.", err=True)
