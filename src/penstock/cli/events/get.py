"""`penstock get HUB -p 0 --seq 123`: one event."""

from __future__ import annotations

import sys
from contextlib import aclosing
from typing import Annotated

import typer

from penstock.cli.events.render import escape_control_bytes, format_renderer, read_body
from penstock.cli.events_options import EventsEndpoint, run, with_events
from penstock.cli.output import OutputFormat
from penstock.cli.places import select_partitions
from penstock.cli.records import to_json_lines, to_records
from penstock.cli.service_options import HubName
from penstock.kernels import Columns
from penstock.model.errors import NotFound


@with_events
def get(
    wire: EventsEndpoint,
    hub: HubName,
    partition: Annotated[str, typer.Option("--partition", "-p", metavar="N", help="Where it is")],
    seq: Annotated[int, typer.Option("--seq", "-s", min=0, help="Its sequence number")],
    group: Annotated[str, typer.Option("--group", "-g", help="Consumer group")] = "$Default",
    format_: Annotated[
        str | None, typer.Option("--format", metavar="TEXT", help="As of `penstock tail`")
    ] = None,
    output: Annotated[
        OutputFormat | None, typer.Option("-o", "--output", help="json or jsonl: all of it")
    ] = None,
) -> None:
    """Print one event.

    Its body goes to stdout byte for byte, without a line end; on a terminal control characters
    are shown as escapes. -o json gives properties, key and place too. Exit code 3 when it is not
    there (any more).

    Examples:
        penstock get orders --partition 0 --seq 123 > body.bin
    """
    if output is OutputFormat.TABLE or (output is not None and format_ is not None):
        raise typer.BadParameter("-o gives json or jsonl, and not with --format.")
    render = None
    if format_ is not None:
        render = format_renderer(format_, is_terminal=sys.stdout.isatty())
    found = run(_get(wire, hub, group, partition, seq))
    if output is not None:
        data = to_json_lines(to_records(found, partition))
        data = b"[" + data.rstrip(b"\n") + b"]\n" if output is OutputFormat.JSON else data
    elif render is not None:
        data = render(found, partition, [0])
    elif sys.stdout.isatty():
        data = escape_control_bytes(read_body(found, 0)).encode() + b"\n"
    else:
        data = read_body(found, 0)
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


async def _get(wire: EventsEndpoint, hub: str, group: str, partition: str, seq: int) -> Columns:
    async with wire.consumer(hub, group) as consumer:
        await select_partitions(consumer, [partition])
        async with aclosing(consumer.read_range(partition, seq, seq)) as found:
            async for columns in found:
                return columns
        known = await consumer.get_partition_properties(partition)
    held = "it is empty"
    if not known["is_empty"]:
        first, last = known["beginning_sequence_number"], known["last_enqueued_sequence_number"]
        held = f"it holds {first} to {last}"
    raise NotFound(f"Partition {partition} of '{hub}' has no event {seq}: {held}.")
