"""`penstock tail HUB`: events of all partitions. `penstock get HUB -p 0 --seq 123`: one event."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from penstock.cli.events.event_range import (
    EARLIEST,
    LATEST,
    GroupOption,
    OptionalFromOption,
    Partitions,
    position_before_sequence,
    resolve_ranges,
    select_partitions,
)
from penstock.cli.events.event_sender import QuietOption
from penstock.cli.events_options import EventsEndpoint, run, run_beside, with_events
from penstock.cli.options import option, parse_option
from penstock.cli.output import TABLE, Format, OutputFormat, print_message
from penstock.cli.service_options import HubName
from penstock.cli.stdio import StdoutClosed, StdoutWriter, ignore_broken_pipe
from penstock.client.event_position import EventPosition
from penstock.client.retry import RetryPolicy
from penstock.formats.amqp_values import display_body, to_json_value
from penstock.formats.body_view import escape_line, escape_line_bytes
from penstock.formats.event_record import to_json_lines
from penstock.formats.event_sections import DATA
from penstock.formats.event_view import EventView
from penstock.formats.filters import compile_filter
from penstock.formats.positions import StartKind, StartPosition
from penstock.formats.quantities import format_time
from penstock.kernels import Columns
from penstock.model.errors import NotFound

if TYPE_CHECKING:
    from penstock.client import EventHubConsumerClient

_WAIT_S = 3600.0  # a partition without events is not an error
# A reader waits about a minute and a half for a service that restarts.
_READ_RETRY = RetryPolicy(retry_total=14, backoff_s=0.5, backoff_max_s=8.0)
_START_RETRY = RetryPolicy(retry_total=1)  # a service that does not run is reported at once
_PIPE_FORMAT = "%b"
_SHOWN_BYTES_MAX = 4096  # bytes of a body in a terminal line
_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "e": b"\x1b", "\\": b"\\", "c": b""}
_TOKEN = re.compile(r"%(?P<field>.)|\\x(?P<hex>[0-9a-fA-F]{2})|\\(?P<escape>.)", re.DOTALL)

EventTest = Callable[[EventView], bool]
Cell = Callable[[EventView], bytes]
# The output for rows of the columns, which came from a partition, in their order.
EventRenderer = Callable[[Columns, str, Sequence[int]], bytes]

FormatOption = Annotated[
    str | None,
    option(
        "--format TEXT",
        "%p partition, %s sequence number, %o offset, %t time, %T time in ms, %k key, "
        "%b body, %S size of the body, %h properties, %c content type; \\n \\t \\0 \\xHH, "
        "\\c no line end",
    ),
]
FilterOption = Annotated[
    EventTest | None,
    option(
        "--filter EXPR",
        "Only events for which this is true, such as 'json.temperature > 30'",
        parser=lambda text: parse_option(compile_filter, text),
    ),
]


@dataclass(frozen=True, kw_only=True)
class _TailOptions:
    hub: HubName
    group: GroupOption = "$Default"
    from_: OptionalFromOption = None
    partition: Partitions = None
    count: Annotated[int | None, option("--count -n N", "Stop after this many events", min=1)] = (
        None
    )
    follow: Annotated[
        bool, option("--follow/--no-follow", "Wait for new events, or stop at the end")
    ] = True
    filter_: FilterOption = None
    format_: FormatOption = None
    output: Format = TABLE
    quiet: QuietOption = False

    @property
    def start(self) -> StartPosition:
        return self.from_ or (LATEST if self.follow else EARLIEST)


@with_events
def tail(wire: EventsEndpoint, options: _TailOptions) -> None:
    """Show events as they arrive, or stored events.

    A terminal gets one line per event, with control characters escaped. A pipe gets the bodies
    unchanged, one per line. Ctrl-C stops it; so does the end of the program that reads its output.

    Examples:
        penstock tail orders
        penstock tail orders --from earliest -n 10 --format %b
        penstock tail orders --filter 'json.temperature > 30' -o jsonl
    """
    if options.format_ is not None:
        if options.output is not TABLE:
            raise typer.BadParameter("--format and -o exclude each other.")
        format_renderer(options.format_, is_terminal=False)  # refuse a bad template now
    if options.output is OutputFormat.JSON and options.follow and options.count is None:
        raise typer.BadParameter(
            "A JSON list needs an end: add -n or --no-follow, or use -o jsonl."
        )
    try:
        run(_tail(wire, options))
    except KeyboardInterrupt:
        return
    except StdoutClosed:
        ignore_broken_pipe()


async def _tail(wire: EventsEndpoint, options: _TailOptions) -> None:
    stdout = StdoutWriter()
    printer = _EventPrinter(options, stdout)
    is_list = options.output is OutputFormat.JSON
    async with (
        wire.consumer(options.hub, options.group, retry=_START_RETRY) as starter,
        wire.consumer(options.hub, options.group, retry=_READ_RETRY) as consumer,
    ):
        ids = await select_partitions(starter, options.partition)
        if is_list:
            await stdout.write(b"[")
        if options.follow:
            printing = _follow(starter, consumer, printer, ids)
        else:
            printing = _print_stored(starter, printer, ids)
        await run_beside(printing, stdout.wait_closed())
        if is_list:
            await stdout.write(b"]\n")


class _EventPrinter:
    """Filters, counts, renders and writes events. `finished` is set when the requested number of
    events is written."""

    def __init__(self, options: _TailOptions, stdout: StdoutWriter) -> None:
        self.options = options
        self.finished = asyncio.Event()
        self._stdout = stdout
        self._render = _choose_renderer(options, is_terminal=stdout.is_terminal)
        self._remaining = options.count
        self._is_first = True

    async def print(self, columns: Columns, partition: str) -> None:
        rows = self._select_rows(columns, partition)
        has_last = bool(rows) and self._remaining == 0
        if rows:
            data = self._render(columns, partition, rows)
            if self.options.output is OutputFormat.JSON:
                data = self._to_list_items(data)
            # The writer keeps the order of calls, so other partitions have written before.
            await self._stdout.write(data)
        if has_last:
            self.finished.set()

    def _select_rows(self, columns: Columns, partition: str) -> list[int] | range:
        rows: list[int] | range = range(len(columns.bodies))
        is_selected = self.options.filter_
        if is_selected is not None:
            rows = [row for row in rows if is_selected(EventView(columns, partition, row))]
        if self._remaining is not None:
            rows = rows[: self._remaining]
            self._remaining -= len(rows)
        return rows

    def _to_list_items(self, lines: bytes) -> bytes:
        """JSON lines as items of a list."""
        items = lines.rstrip(b"\n").replace(b"\n", b",\n")
        separator, self._is_first = b"" if self._is_first else b",\n", False
        return separator + items


def _choose_renderer(options: _TailOptions, *, is_terminal: bool) -> EventRenderer:
    if options.output is not TABLE:
        return to_json_lines
    if options.format_ is None and is_terminal:
        return terminal_renderer
    return format_renderer(options.format_ or _PIPE_FORMAT, is_terminal=is_terminal)


async def _print_stored(
    consumer: EventHubConsumerClient, printer: _EventPrinter, ids: list[str]
) -> None:
    """The events that are stored now, partition by partition."""
    for span in await resolve_ranges(consumer, ids, printer.options.start):
        if span.events:
            chunks = consumer.read_range(span.partition, span.first, span.stop - 1)
            async with aclosing(chunks):
                async for columns in chunks:
                    await printer.print(columns, span.partition)
                    if printer.finished.is_set():
                        return


async def _follow(
    starter: EventHubConsumerClient,
    consumer: EventHubConsumerClient,
    printer: _EventPrinter,
    ids: list[str],
) -> None:
    """The events of all partitions in the order in which they arrive."""
    options = printer.options
    if options.start.kind in (StartKind.LAST, StartKind.LATEST):
        # Sequence numbers: a reader that is opened again continues and does not skip to the end.
        ranges = await resolve_ranges(starter, ids, options.start)
        starts = [position_before_sequence(span.first) for span in ranges]
    else:
        starts = [EventPosition.from_start(options.start)] * len(ids)
    async with AsyncExitStack() as stack:
        readers = [consumer.open_partition(*start) for start in zip(ids, starts, strict=True)]
        await asyncio.gather(*(stack.enter_async_context(reader) for reader in readers))
        if not options.quiet:
            count = "1 partition" if len(ids) == 1 else f"{len(ids)} partitions"
            print_message(f"Reading {count} of {options.hub}. Ctrl-C stops.")

        async def read(index: int) -> None:
            while True:
                await printer.print(await readers[index].receive_columns(_WAIT_S), ids[index])

        finished = printer.finished.wait()
        await run_beside(finished, *(read(index) for index in range(len(ids))))


# --- one event ------------------------------------------------------------------------------------


@with_events
def get(
    wire: EventsEndpoint,
    hub: HubName,
    partition: Annotated[str, option("--partition -p N", "Partition of the event")],
    seq: Annotated[int, option("--seq -s N", "Sequence number of the event", min=0)],
    group: GroupOption = "$Default",
    format_: FormatOption = None,
    output: Annotated[
        OutputFormat | None, option("-o --output", "json or jsonl: the whole event")
    ] = None,
) -> None:
    """Print one event.

    The body goes to stdout byte for byte, without a line end. On a terminal control characters
    are escaped. -o json also prints properties, key and position. The exit code is 3 if the event
    does not exist or is no longer retained.

    Examples:
        penstock get orders --partition 0 --seq 123 > body.bin
    """
    if output is TABLE or (output is not None and format_ is not None):
        raise typer.BadParameter("-o takes json or jsonl, and excludes --format.")
    is_terminal = sys.stdout.isatty()
    render = None if format_ is None else format_renderer(format_, is_terminal=is_terminal)
    columns = run(_get(wire, hub, group, partition, seq))
    body = read_body(EventView(columns, partition, 0))
    if output is not None:
        data = to_json_lines(columns, partition, [0])
        data = b"[" + data.rstrip(b"\n") + b"]\n" if output is OutputFormat.JSON else data
    elif render is not None:
        data = render(columns, partition, [0])
    else:
        data = escape_line_bytes(body).encode() + b"\n" if is_terminal else body
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


async def _get(wire: EventsEndpoint, hub: str, group: str, partition: str, seq: int) -> Columns:
    async with wire.consumer(hub, group) as consumer:
        await select_partitions(consumer, [partition])
        async with aclosing(consumer.read_range(partition, seq, seq)) as chunks:
            async for columns in chunks:
                return columns
        state = await consumer.get_partition_properties(partition)
    stored = "it is empty"
    if not state["is_empty"]:
        first, last = state["beginning_sequence_number"], state["last_enqueued_sequence_number"]
        stored = f"it holds {first} to {last}"
    raise NotFound(f"Partition {partition} of '{hub}' has no event {seq}: {stored}.")


# --- output ---------------------------------------------------------------------------------------
#
# On a terminal, text of an event must not move the cursor, change the title or answer for the user:
# control characters and characters that change the direction of text are escaped. A pipe gets the
# bytes unchanged. A body that is an AMQP value or sequence is written as its text.


def format_renderer(template: str, *, is_terminal: bool) -> EventRenderer:
    """The renderer of `--format`. Raises typer.BadParameter for an unknown field or escape."""
    parts = _parse_template(template, is_terminal=is_terminal)
    if parts == [_CELLS["b"], b"\n"]:
        return _render_bodies
    cells = [part if callable(part) else _constant(part) for part in parts]

    def render(columns: Columns, partition: str, rows: Sequence[int]) -> bytes:
        events = [EventView(columns, partition, row) for row in rows]
        return b"".join([cell(event) for event in events for cell in cells])

    return render


def _parse_template(template: str, *, is_terminal: bool) -> list[bytes | Cell]:
    parts: list[bytes | Cell] = []
    position = 0
    for token in _TOKEN.finditer(template):
        parts.append(template[position : token.start()].encode())
        position = token.end()
        if token["field"] is not None:
            parts.append(_find_cell(token["field"], is_terminal=is_terminal))
        elif token["hex"] is not None:
            parts.append(bytes.fromhex(token["hex"]))
        elif token["escape"] in _ESCAPES:
            parts.append(_ESCAPES[token["escape"]])
        else:
            allowed = "\\n \\t \\r \\0 \\e \\c \\xHH \\\\"
            raise _template_error(f"\\{token['escape']}", allowed)
    parts.append(template[position:].encode())
    # A line end follows unless the template ends with one, with \0 or with \c (no end).
    if not re.search(r"(?:^|[^\\])(?:\\\\)*\\[n0c]$", template):
        parts.append(b"\n")
    return [part for part in parts if part != b""]


def _find_cell(field: str, *, is_terminal: bool) -> bytes | Cell:
    if field == "%":
        return b"%"
    cell = _CELLS.get(field)
    if cell is None:
        raise _template_error(f"%{field}", " ".join(f"%{name}" for name in (*_CELLS, "%")))
    if is_terminal and field in "bkhc":
        return lambda event: escape_line_bytes(cell(event)).encode()
    return cell


def _template_error(token: str, allowed: str) -> typer.BadParameter:
    return typer.BadParameter(f"There is no '{token}'. Use {allowed}", param_hint="--format")


def _constant(value: bytes) -> Cell:
    return lambda event: value


def _render_bodies(columns: Columns, partition: str, rows: Sequence[int]) -> bytes:
    bodies = columns.bodies
    if columns.body_kinds.count(DATA) != len(bodies):
        bodies = [read_body(EventView(columns, partition, row)) for row in range(len(bodies))]
    chosen = bodies if len(rows) == len(bodies) else [bodies[row] for row in rows]
    return b"\n".join(chosen) + b"\n" if chosen else b""


def read_body(event: EventView) -> bytes:
    """The bytes of the body that people read."""
    return display_body(event.body, event.body_type)


_CELLS: dict[str, Cell] = {
    "p": lambda event: event.partition.encode(),
    "s": lambda event: b"%d" % event.sequence_number,
    "o": lambda event: event.offset.encode(),
    "t": lambda event: format_time(event.enqueued_ms).encode(),
    "T": lambda event: b"%d" % event.enqueued_ms,
    "k": lambda event: (event.partition_key or "").encode(),
    "b": read_body,
    "S": lambda event: b"%d" % len(event.body),
    "h": lambda event: msgspec.json.encode(
        {name: to_json_value(value) for name, value in event.properties.items()}
    ),
    "c": lambda event: str(event.fields.get("content-type", "")).encode(),
}


def terminal_renderer(columns: Columns, partition: str, rows: Sequence[int]) -> bytes:
    """One line per event: position and time, the key, the beginning of the body."""
    lines = []
    for row in rows:
        event = EventView(columns, partition, row)
        key = event.partition_key
        shown_key = "" if key is None else f"\x1b[36m{escape_line(key)}\x1b[0m "
        time = format_time(event.enqueued_ms)[11:-1]
        position = f"\x1b[2m{partition}:{event.sequence_number} {time}\x1b[0m"
        body = read_body(event)
        shown_body = escape_line_bytes(body[:_SHOWN_BYTES_MAX])
        if len(body) > _SHOWN_BYTES_MAX:
            shown_body += f"\x1b[2m… {len(body):,} bytes\x1b[0m"
        lines.append(f"{position} {shown_key}{shown_body}\n")
    return "".join(lines).encode()
