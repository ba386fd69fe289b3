"""`penstock bench send|recv|e2e`: what this service and this machine can do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.command_tree import CommandGroup

if TYPE_CHECKING:
    from penstock.client.load.measurements import LatencySamples, LoadResult
    from penstock.client.load.producer import Report

app = CommandGroup("Measure publishing, delivery and latency.")

_PROGRESS_FROM_S = 2.0
_BATCHES_IN_FLIGHT = 64
_SINGLES_IN_FLIGHT = 10_000  # the service's credit and window bound it


class BenchOutput(StrEnum):
    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"


Hub = Annotated[str, typer.Option(help="Event hub")]
Group = Annotated[str, typer.Option(help="Consumer group")]
Batch = Annotated[int, typer.Option(min=1, max=10_000, help="Events per publication")]
Connections = Annotated[int, typer.Option(min=1, max=1000)]
InFlight = Annotated[
    int | None,
    typer.Option(min=1, max=100_000, help="Unacknowledged each [64; 1 x: as credit allows]"),
]
Strings = Annotated[
    str | None, typer.Option("--connection-string", help="Instead of the service found here")
]
Data = Annotated[Path | None, typer.Option(help="Data directory of a service on this machine")]
Duration = Annotated[float, typer.Option(min=0.1, max=86400, help="Seconds")]
Format = Annotated[BenchOutput, typer.Option("-o", "--output", help="table, json or jsonl")]


@app.verb()
def send(
    hub: Hub = "events",
    size: Annotated[int, typer.Option(min=0, max=1_000_000, help="Bytes per body")] = 100,
    batch: Batch = 100,
    in_flight: InFlight = None,
    connections: Connections = 1,
    partition: Annotated[str | None, typer.Option(help="To one partition")] = None,
    rate: Annotated[float | None, typer.Option(min=0.1, help="Events a second [most]")] = None,
    count: Annotated[int | None, typer.Option(min=1, help="Stop after so many events")] = None,
    duration: Duration = 5.0,
    connection_string: Strings = None,
    data: Data = None,
    output: Format = BenchOutput.TABLE,
) -> None:
    """Publish as fast as the service acknowledges; --batch 1 sends single events, pipelined.

    Examples:
        penstock bench send --hub orders --duration 5
        penstock bench send --batch 1 --count 100000 -o json
    """
    from penstock.cli.service_lookup import find_endpoint
    from penstock.client.load.producer import LoadProfile, publish

    endpoint, tls = find_endpoint(connection_string, data)
    load = LoadProfile(
        hub=hub,
        partition=partition,
        size=size,
        batch=batch,
        in_flight=in_flight or (_SINGLES_IN_FLIGHT if batch == 1 else _BATCHES_IN_FLIGHT),
        connections=connections,
        duration_s=duration,
        events_max=count,
        rate=rate,
    )
    result = _run(lambda report: publish(endpoint, load, tls=tls, report=report), duration)
    _show(f"send {batch} x {size} B", result, output)


@app.verb()
def recv(
    hub: Hub = "events",
    group: Group = "$Default",
    partition: Annotated[list[str] | None, typer.Option(help="Partitions to read [0]")] = None,
    connections: Connections = 1,
    credit: Annotated[int, typer.Option(min=1, max=100_000, help="Link credit")] = 20_000,
    count: Annotated[int | None, typer.Option(min=1, help="Stop after so many events")] = None,
    duration: Duration = 60.0,
    connection_string: Strings = None,
    data: Data = None,
    output: Format = BenchOutput.TABLE,
) -> None:
    """Read from the start, as fast as the service delivers.

    Examples:
        penstock bench recv --hub orders --count 100000
    """
    from penstock.cli.service_lookup import find_endpoint
    from penstock.client.load.producer import receive

    endpoint, tls = find_endpoint(connection_string, data)
    result = _run(
        lambda report: receive(
            endpoint,
            hub,
            group=group,
            partitions=partition or ["0"],
            connections=connections,
            credit=credit,
            events_max=count,
            duration_s=duration,
            tls=tls,
            report=report,
        ),
        duration,
    )
    _show("recv", result, output)


@app.verb()
def e2e(
    hub: Hub = "events",
    group: Group = "$Default",
    partition: Annotated[str, typer.Option(help="Published to and read from")] = "0",
    size: Annotated[int, typer.Option(min=16, max=1_000_000, help="Bytes per body")] = 100,
    batch: Batch = 1,
    in_flight: InFlight = None,
    connections: Annotated[int, typer.Option(min=1, max=1000, help="That publish")] = 1,
    rate: Annotated[float, typer.Option(min=0.1, help="Events a second")] = 1000.0,
    duration: Duration = 5.0,
    connection_string: Strings = None,
    data: Data = None,
    output: Format = BenchOutput.TABLE,
) -> None:
    """Publish at a fixed rate, read at the same time: from sending to reading.

    Examples:
        penstock bench e2e --hub orders --rate 1000
    """
    from penstock.cli.service_lookup import find_endpoint
    from penstock.client.load.producer import LoadProfile, end_to_end

    endpoint, tls = find_endpoint(connection_string, data)
    load = LoadProfile(
        hub=hub,
        partition=partition,
        size=size,
        batch=batch,
        in_flight=in_flight or (_SINGLES_IN_FLIGHT if batch == 1 else _BATCHES_IN_FLIGHT),
        connections=connections,
        duration_s=duration,
        rate=rate,
    )
    result = _run(
        lambda report: end_to_end(endpoint, load, group=group, tls=tls, report=report), duration
    )
    _show(f"e2e {batch} x {size} B at {rate:g}/s", result, output)


def _run(
    work: Callable[[Report | None], Coroutine[Any, Any, LoadResult]], duration_s: float
) -> LoadResult:
    from penstock.cli.server.serve import event_loop_factory

    with asyncio.Runner(loop_factory=event_loop_factory()) as runner:
        if duration_s <= _PROGRESS_FROM_S:
            return runner.run(work(None))
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (BarColumn(), TextColumn("{task.fields[events]:,} events"), TimeRemainingColumn())
        console = Console(stderr=True)  # stdout is for the result
        if not console.is_terminal:
            return runner.run(work(None))
        with Progress(*columns, console=console, transient=True, refresh_per_second=4) as progress:
            task = progress.add_task("", total=duration_s, events=0)

            def report(seconds: float, events: int) -> None:
                progress.update(task, completed=seconds, events=events)

            return runner.run(work(report))


def _show(what: str, result: LoadResult, output: BenchOutput) -> None:
    facts = _result_fields(what, result)
    if output is BenchOutput.JSON:
        typer.echo(json.dumps([facts]))
    elif output is BenchOutput.JSONL:
        typer.echo(json.dumps(facts))
    else:
        _print_table(facts)
    _exit_if_failed(result)


def _result_fields(what: str, result: LoadResult) -> dict[str, object]:
    facts: dict[str, object] = {
        "what": what,
        "events": result.events,
        "seconds": round(result.seconds, 3),
        "events_per_s": round(result.events_per_s),
        "mb_per_s": round(result.mb_per_s, 1),
        "generator_cpu_share": round(result.cpu_seconds / max(result.seconds, 1e-9), 2),
        "errors": result.errors,
        "first_error": result.first_error,
    }
    _add_percentiles(facts, "", result.latencies)
    if result.deliveries.count:
        facts["events_read"] = result.events_read
        _add_percentiles(facts, "e2e_", result.deliveries)
    return facts


def _add_percentiles(facts: dict[str, object], prefix: str, latencies: LatencySamples) -> None:
    for name, share in (("p50", 0.5), ("p99", 0.99), ("p999", 0.999)):
        value = latencies.percentile(share)
        facts[f"{prefix}{name}_ms"] = None if value is None else round(value, 3)


def _print_table(facts: dict[str, object]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(show_header=False)
    table.add_column("what", style="bold")
    table.add_column("figure", justify="right")
    for name, value in facts.items():
        if value is not None:
            figure = f"{value:,}" if isinstance(value, int | float) else str(value)
            table.add_row(name.replace("_", " "), figure)
    Console().print(table)


def _exit_if_failed(result: LoadResult) -> None:
    """Figures were shown; a script must still notice that not everything was taken."""
    from penstock.amqp.performatives import Error
    from penstock.cli.exit_codes import exit_code
    from penstock.client.connection import failure

    if result.errors and result.first_condition is not None:
        wire = Error(condition=result.first_condition)
        raise typer.Exit(exit_code(failure(result.first_error or "", wire)))
