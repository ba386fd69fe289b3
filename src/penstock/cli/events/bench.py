"""`penstock bench send|recv|e2e`: measure what a service and this machine can do."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.command_tree import CommandGroup
from penstock.cli.events_options import EventsEndpoint, run
from penstock.cli.exit_codes import exit_code
from penstock.cli.options import option
from penstock.cli.output import TABLE, Format, OutputFormat, console

if TYPE_CHECKING:
    from penstock.client.load.measurements import LatencySamples, LoadResult

app = CommandGroup("Measure publishing, delivery and latency.")

_PROGRESS_FROM_S = 2.0
_BATCHES_IN_FLIGHT = 64
_SINGLES_IN_FLIGHT = 10_000  # the service's credit and session window limit it further

Hub = Annotated[str, option("TEXT", "Event hub")]
Group = Annotated[str, option("TEXT", "Consumer group")]
Batch = Annotated[int, option("N", "Events per publication", min=1, max=10_000)]
Connections = Annotated[int, option("N", "Number of connections", min=1, max=1000)]
Count = Annotated[int | None, option("N", "Stop after this many events", min=1)]
InFlight = Annotated[
    int | None,
    option(
        "N",
        "Unacknowledged publications per connection "
        "[default: 64; with --batch 1 as many as the service permits]",
        min=1,
        max=100_000,
    ),
]
Strings = Annotated[
    str | None,
    option(
        "--connection-string TEXT",
        "Connection string of the service [default: found as by other commands]",
    ),
]
Data = Annotated[Path | None, option("PATH", "Data directory of a service on this machine")]
Duration = Annotated[float, option("N", "Duration in seconds", min=0.1, max=86400)]


@app.verb()
def send(
    hub: Hub = "events",
    size: Annotated[int, option("N", "Bytes per body", min=0, max=1_000_000)] = 100,
    batch: Batch = 100,
    in_flight: InFlight = None,
    connections: Connections = 1,
    partition: Annotated[str | None, option("TEXT", "Only this partition")] = None,
    rate: Annotated[
        float | None, option("N", "Events per second [default: no limit]", min=0.1)
    ] = None,
    count: Count = None,
    duration: Duration = 5.0,
    connection_string: Strings = None,
    data: Data = None,
    output: Format = TABLE,
) -> None:
    """Publish as fast as the service acknowledges; --batch 1 sends single events, pipelined.

    Examples:
        penstock bench send --hub orders --duration 5
        penstock bench send --batch 1 --count 100000 -o json
    """
    from penstock.client.load.producer import LoadProfile, publish

    wire = EventsEndpoint(connection_string_flag=connection_string, data=data)
    load = LoadProfile(
        hub=hub,
        partition=partition,
        size=size,
        batch=batch,
        in_flight=_in_flight(in_flight, batch),
        connections=connections,
        duration_s=duration,
        rate=rate,
        events_max=count,
    )
    result = _run(partial(publish, load=load), wire, duration)
    _show(f"send {batch} x {size} B", result, output)


@app.verb()
def recv(
    hub: Hub = "events",
    group: Group = "$Default",
    partition: Annotated[
        list[str] | None, option("TEXT", "Partition to read; may be repeated [default: 0]")
    ] = None,
    connections: Connections = 1,
    credit: Annotated[int, option("N", "Link credit", min=1, max=100_000)] = 20_000,
    count: Count = None,
    duration: Duration = 60.0,
    connection_string: Strings = None,
    data: Data = None,
    output: Format = TABLE,
) -> None:
    """Read from the earliest event, as fast as the service delivers.

    Examples:
        penstock bench recv --hub orders --count 100000
    """
    from penstock.client.load.consumer import receive

    wire = EventsEndpoint(connection_string_flag=connection_string, data=data)
    work = partial(
        receive,
        hub=hub,
        group=group,
        partitions=partition or ["0"],
        connections=connections,
        credit=credit,
        events_max=count,
        duration_s=duration,
    )
    result = _run(work, wire, duration)
    _show("recv", result, output)


@app.verb()
def e2e(
    hub: Hub = "events",
    group: Group = "$Default",
    partition: Annotated[str, option("TEXT", "Partition to publish to and to read")] = "0",
    size: Annotated[int, option("N", "Bytes per body", min=16, max=1_000_000)] = 100,
    batch: Batch = 1,
    in_flight: InFlight = None,
    connections: Connections = 1,
    rate: Annotated[float, option("N", "Events per second", min=0.1)] = 1000.0,
    duration: Duration = 5.0,
    connection_string: Strings = None,
    data: Data = None,
    output: Format = TABLE,
) -> None:
    """Publish at a fixed rate and read at the same time: latency from sending to reading.

    Examples:
        penstock bench e2e --hub orders --rate 1000
    """
    from penstock.client.load.consumer import end_to_end
    from penstock.client.load.producer import LoadProfile

    wire = EventsEndpoint(connection_string_flag=connection_string, data=data)
    load = LoadProfile(
        hub=hub,
        partition=partition,
        size=size,
        batch=batch,
        in_flight=_in_flight(in_flight, batch),
        connections=connections,
        duration_s=duration,
        rate=rate,
    )
    result = _run(partial(end_to_end, load=load, group=group), wire, duration)
    _show(f"e2e {batch} x {size} B at {rate:g}/s", result, output)


def _in_flight(requested: int | None, batch: int) -> int:
    return requested or (_SINGLES_IN_FLIGHT if batch == 1 else _BATCHES_IN_FLIGHT)


def _run(
    work: Callable[..., Coroutine[Any, Any, LoadResult]], wire: EventsEndpoint, duration_s: float
) -> LoadResult:
    work = partial(work, wire.endpoint, tls=wire.ssl_context)
    screen = console(stderr=True)  # stdout is for the result
    if duration_s <= _PROGRESS_FROM_S or not screen.is_terminal:
        return run(work())
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), TextColumn("{task.fields[events]:,} events"), TimeRemainingColumn())
    with Progress(*columns, console=screen, transient=True, refresh_per_second=4) as progress:
        task = progress.add_task("", total=duration_s, events=0)

        def report(seconds: float, events: int) -> None:
            progress.update(task, completed=seconds, events=events)

        return run(work(report=report))


def _show(what: str, result: LoadResult, output: OutputFormat) -> None:
    """Print the results, then exit with the code of the first refused publication."""
    from penstock.amqp.performatives import Error
    from penstock.client.errors import condition_error

    record: dict[str, object] = {
        "what": what,
        "events": result.events,
        "seconds": round(result.seconds, 3),
        "events_per_s": round(result.events_per_s),
        "mb_per_s": round(result.mb_per_s, 1),
        "generator_cpu_share": round(result.cpu_seconds / max(result.seconds, 1e-9), 2),
        "errors": result.errors,
        "first_error": result.first_error,
        **_percentiles("", result.latencies),
    }
    if result.deliveries:
        record["events_read"] = result.events_read
        record |= _percentiles("e2e_", result.deliveries)
    output.print_record(record)
    if result.errors and result.first_condition is not None:
        wire = Error(condition=result.first_condition)
        raise typer.Exit(exit_code(condition_error(result.first_error or "", wire)))


def _percentiles(prefix: str, latencies: LatencySamples) -> dict[str, object]:
    shares = (("p50", 0.5), ("p99", 0.99), ("p999", 0.999))
    values = {f"{prefix}{name}_ms": latencies.percentile(share) for name, share in shares}
    return {name: None if value is None else round(value, 3) for name, value in values.items()}
