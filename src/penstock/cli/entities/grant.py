"""`penstock grant`: an operator raises a limit of one namespace."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from penstock.model.quotas import QuotaKind


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

    It holds at once where a service runs on the data directory, else from its next start on.
    """
    from penstock.model.quotas import QuotaKind

    wanted = {QuotaKind.THROUGHPUT_UNITS: throughput_units, QuotaKind.PARTITIONS: partitions}
    given = {kind: value for kind, value in wanted.items() if value is not None}
    if not given:
        raise typer.BadParameter("Nothing is granted: give --throughput-units or --partitions.")
    place = data or Path(os.environ.get("PENSTOCK_DATA") or "penstock-data")
    for kind, value in given.items():
        _grant(place, namespace, kind, value, by, note)
        typer.echo(f"{namespace} may have up to {value} {kind}.", err=True)


def _grant(place: Path, namespace: str, kind: QuotaKind, value: int, by: str, note: str) -> None:
    from penstock.catalog import offline
    from penstock.io.runtime_file import read_runtime
    from penstock.management.client import ManagementClient
    from penstock.model.clock import SystemClock
    from penstock.model.names import NamespaceName
    from penstock.model.quotas import QuotaGrant

    if read_runtime(place) is not None:  # the service would not see what others write
        with ManagementClient.find({}, data=place) as client:
            client.grant(namespace, kind, value, note=note, by=by)
        return
    offline.store_grant_offline(
        place,
        QuotaGrant(
            namespace=NamespaceName(namespace),
            kind=kind,
            value=value,
            granted_by=by,
            granted_ms=SystemClock().now_ms(),
            note=note,
        ),
    )
