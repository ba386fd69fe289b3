"""`penstock audit`: who did what."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.output import Format, OutputFormat, print_rows
from penstock.cli.service_options import AdminSession, with_whole_service


@with_whole_service
def audit(
    service: AdminSession,
    newest: Annotated[int, typer.Option("-n", "--newest", min=1, max=1000, help="So many")] = 50,
    who: Annotated[str | None, typer.Option(help="Of one actor alone")] = None,
    what: Annotated[str | None, typer.Option(help="Acts whose name holds this text")] = None,
    output: Format = OutputFormat.TABLE,
) -> None:
    """Who did what, newest first."""
    asked = newest if who is what is None else 1000
    found = [
        {"at": each["at"], "who": each["who"], "what": each["what"], "detail": each["detail"]}
        for each in service.client.audit(newest=asked)
        if (who is None or each["who"] == who)
        and (what is None or what.casefold() in each["what"].casefold())
    ]
    print_rows(found[:newest], output, title="Audit log")
