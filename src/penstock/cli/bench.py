"""`penstock bench send|recv`: what this service and this machine can do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from penstock.client.load import Result

app = typer.Typer(help="Measure publishing and delivery.", no_args_is_help=True)


class Output(StrEnum):
    TABLE = "table"
    JSON = "json"


Hub = Annotated[str, typer.Option(help="Event hub")]
Strings = Annotated[
    str | None, typer.Option("--connection-string", help="Instead of the service found here")
]
Data = Annotated[Path | None, typer.Option(help="Data directory of a service on this machine")]
Duration = Annotated[float, typer.Option(min=0.1, max=86400, help="Seconds")]
Format = Annotated[Output, typer.Option("-o", "--output", help="table or json")]


@app.command()
def send(
    hub: Hub = "events",
    size: Annotated[int, typer.Option(min=0, max=1_000_000, help="Bytes per body")] = 100,
    batch: Annotated[int, typer.Option(min=1, max=10_000, help="Events per publication")] = 100,
    in_flight: Annotated[int, typer.Option(min=1, max=10_000, help="Unacknowledged each")] = 64,
    connections: Annotated[int, typer.Option(min=1, max=1000)] = 1,
    partition: Annotated[str | None, typer.Option(help="To one partition")] = None,
    duration: Duration = 5.0,
    connection_string: Strings = None,
    data: Data = None,
    output: Format = Output.TABLE,
) -> None:
    """Publish as fast as the service acknowledges."""
    from penstock.cli.target import find_endpoint
    from penstock.client.load import publish

    endpoint, tls = find_endpoint(connection_string, data)
    result = _run(
        publish(
            endpoint,
            hub,
            partition=partition,
            size=size,
            batch=batch,
            in_flight=in_flight,
            connections=connections,
            duration_s=duration,
            tls=tls,
        )
    )
    _show(f"send {batch} x {size} B", result, output)


@app.command()
def recv(
    hub: Hub = "events",
    group: Annotated[str, typer.Option(help="Consumer group")] = "$Default",
    partition: Annotated[list[str] | None, typer.Option(help="Partitions to read [0]")] = None,
    credit: Annotated[int, typer.Option(min=1, max=100_000, help="Link credit")] = 5000,
    count: Annotated[int | None, typer.Option(min=1, help="Stop after so many events")] = None,
    duration: Duration = 60.0,
    connection_string: Strings = None,
    data: Data = None,
    output: Format = Output.TABLE,
) -> None:
    """Read from the start, as fast as the service delivers."""
    from penstock.cli.target import find_endpoint
    from penstock.client.load import receive

    endpoint, tls = find_endpoint(connection_string, data)
    result = _run(
        receive(
            endpoint,
            hub,
            group=group,
            partitions=partition or ["0"],
            credit=credit,
            events_max=count,
            duration_s=duration,
            tls=tls,
        )
    )
    _show("recv", result, output)


def _run(work: Coroutine[Any, Any, Result]) -> Result:
    from penstock.cli.serve import loop_factory

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(work)


def _show(what: str, result: Result, output: Output) -> None:
    facts: dict[str, object] = {
        "what": what,
        "events": result.events,
        "seconds": round(result.seconds, 3),
        "events_per_s": round(result.events_per_s),
        "mb_per_s": round(result.mb_per_s, 1),
        "errors": result.errors,
        "first_error": result.first_error,
    }
    for name, share in (("p50_ms", 0.5), ("p99_ms", 0.99), ("p999_ms", 0.999)):
        value = result.percentile(share)
        facts[name] = None if value is None else round(value, 3)
    if output is Output.JSON:
        typer.echo(json.dumps([facts]))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"penstock bench: {what}")
    for name in facts:
        if name != "what" and facts[name] is not None:
            table.add_column(name.replace("_", " "), justify="right")
    table.add_row(
        *(
            f"{value:,}" if isinstance(value, int | float) else str(value)
            for name, value in facts.items()
            if name != "what" and value is not None
        )
    )
    Console().print(table)
