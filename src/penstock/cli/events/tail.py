"""`penstock tail HUB`: the events of all partitions, as they arrive or as they were."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, aclosing, suppress
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from penstock.cli.events.event_sender import QuietOption
from penstock.cli.events.render import (
    PIPE_FORMAT,
    EventRenderer,
    format_renderer,
    json_renderer,
    terminal_renderer,
)
from penstock.cli.events_options import EventsEndpoint, run, run_together, with_events
from penstock.cli.output import Format, OutputFormat, print_message
from penstock.cli.places import (
    Partitions,
    Position,
    PositionKind,
    parse_position,
    position_before_sequence,
    resolve_ranges,
    select_partitions,
)
from penstock.cli.service_options import HubName, complete_groups
from penstock.cli.stdio import StdoutClosed, StdoutWriter, ignore_broken_pipe
from penstock.client.retry import RetryPolicy
from penstock.kernels import Columns

if TYPE_CHECKING:
    from penstock.cli.filtering import FilteredEvent
    from penstock.client import EventHubConsumerClient

_QUEUED_MAX = 16  # chunks between readers and stdout
_WAIT_S = 3600.0  # silence is no error
# A service that restarts is waited for, about a minute and a half.
_PATIENT = RetryPolicy(retry_total=14, backoff_s=0.5, backoff_max_s=8.0)
_QUICK = RetryPolicy(retry_total=1)  # a service that is not there is told at once

Chunk = tuple[str, Columns]


FormatOption = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="TEXT",
        help="%p partition, %s sequence number, %o offset, %t time, %T in ms, %k key, %b body, "
        "%S its size, %h properties, %c content type; \\n \\t \\0 \\xHH, \\c no line end",
    ),
]


class _TailOptions(msgspec.Struct, frozen=True):
    hub: str
    group: str
    start: Position
    partitions: list[str] | None
    count: int | None
    follow: bool
    wanted: Callable[[FilteredEvent], bool] | None
    template: str | None
    output: OutputFormat
    quiet: bool


@with_events
def tail(
    wire: EventsEndpoint,
    hub: HubName,
    group: Annotated[
        str,
        typer.Option("--group", "-g", help="Consumer group", autocompletion=complete_groups),
    ] = "$Default",
    from_: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="WHERE",
            help="earliest, latest, -100 (the last hundred of each partition), -15m, a time, SEQ "
            "or @OFFSET [default: latest; earliest with --no-follow]",
        ),
    ] = None,
    partition: Partitions = None,
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, help="End after so many events")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow/--no-follow", help="Wait for more, or end at the end")
    ] = True,
    filter_: Annotated[
        str | None,
        typer.Option("--filter", metavar="EXPR", help="Such as 'json.temperature > 30'"),
    ] = None,
    format_: FormatOption = None,
    output: Format = OutputFormat.TABLE,
    quiet: QuietOption = False,
) -> None:
    """Show events as they arrive, or as they were.

    A terminal gets a line of each event in which nothing of a body can do harm; a pipe gets the
    bodies as they are, one a line. Ctrl-C ends it, and so does a reader that goes (`| head`).

    Examples:
        penstock tail orders
        penstock tail orders --from earliest -n 10 --format %b
        penstock tail orders --filter 'json.temperature > 30' -o jsonl
    """
    if format_ is not None and output is not OutputFormat.TABLE:
        raise typer.BadParameter("--format and -o exclude each other.")
    if output is OutputFormat.JSON and follow and count is None:
        raise typer.BadParameter("A list has an end: say -n, --no-follow, or -o jsonl.")
    wanted = None
    if filter_ is not None:
        from penstock.cli.filtering import compile_filter

        wanted = compile_filter(filter_)
    job = _TailOptions(
        hub=hub,
        group=group,
        start=parse_position(from_ or ("latest" if follow else "earliest")),
        partitions=partition,
        count=count,
        follow=follow,
        wanted=wanted,
        template=format_,
        output=output,
        quiet=quiet,
    )
    if format_ is not None:
        format_renderer(format_, is_terminal=False)  # refused before anybody is asked
    try:
        run(_tail(wire, job))
    except KeyboardInterrupt:
        return  # the way to end it
    except StdoutClosed:
        ignore_broken_pipe()


async def _tail(wire: EventsEndpoint, job: _TailOptions) -> None:
    outlet = StdoutWriter()
    printer = _EventPrinter(job, outlet)
    async with (
        wire.consumer(job.hub, job.group, retry=_QUICK) as asked,
        wire.consumer(job.hub, job.group, retry=_PATIENT) as consumer,
    ):
        ids = await select_partitions(asked, job.partitions)
        reading = _follow(asked, consumer, job, ids) if job.follow else _range(asked, job, ids)
        showing = asyncio.create_task(printer.show(reading))
        try:
            # A reader that left is noticed also while no event comes.
            await asyncio.wait((showing, outlet.gone), return_when=asyncio.FIRST_COMPLETED)
            if not showing.done():
                raise StdoutClosed
        finally:
            if not showing.done():
                showing.cancel()
                # Whatever it ends with: the reason why it ends is known.
                await asyncio.gather(showing, return_exceptions=True)
        await showing


class _EventPrinter:
    """Filters, counts, renders and writes."""

    def __init__(self, job: _TailOptions, outlet: StdoutWriter) -> None:
        self._job = job
        self._outlet = outlet
        self._render = _renderer(job, is_terminal=outlet.is_terminal)
        self._left = job.count
        self._is_first = True

    async def show(self, chunks: AsyncGenerator[Chunk, None]) -> None:
        """Until no more come, or as many as are wanted were shown."""
        is_list = self._job.output is OutputFormat.JSON
        if is_list:
            await self._outlet.write(b"[")
        async with aclosing(chunks):
            async for partition, columns in chunks:
                rows = self._rows(columns, partition)
                if rows:
                    data = self._render(columns, partition, rows)
                    await self._outlet.write(self._to_list_items(data) if is_list else data)
                if self._left == 0:
                    break
        if is_list:
            await self._outlet.write(b"]\n")

    def _rows(self, columns: Columns, partition: str) -> list[int] | range:
        rows: list[int] | range = range(len(columns.bodies))
        if self._job.wanted is not None:
            from penstock.cli.filtering import FilteredEvent

            wanted = self._job.wanted
            rows = [row for row in rows if wanted(FilteredEvent(columns, partition, row))]
        if self._left is not None:
            rows = rows[: self._left]
            self._left -= len(rows)
        return rows

    def _to_list_items(self, data: bytes) -> bytes:
        """Lines of JSON as items of a list."""
        items = data.rstrip(b"\n").replace(b"\n", b",\n")
        begun, self._is_first = not self._is_first, False
        return b",\n" + items if begun else items


def _renderer(job: _TailOptions, *, is_terminal: bool) -> EventRenderer:
    if job.output is not OutputFormat.TABLE:
        return json_renderer
    if job.template is None and is_terminal:
        return terminal_renderer
    return format_renderer(job.template or PIPE_FORMAT, is_terminal=is_terminal)


async def _range(
    consumer: EventHubConsumerClient, job: _TailOptions, ids: list[str]
) -> AsyncGenerator[Chunk, None]:
    """What is there now, partition by partition."""
    for span in await resolve_ranges(consumer, ids, job.start, Position(PositionKind.LATEST)):
        if span.events:
            found = consumer.read_range(span.partition, span.first, span.stop - 1)
            async with aclosing(found):
                async for columns in found:
                    yield span.partition, columns


async def _follow(
    asked: EventHubConsumerClient,
    consumer: EventHubConsumerClient,
    job: _TailOptions,
    ids: list[str],
) -> AsyncGenerator[Chunk, None]:
    """What comes, of all partitions as it comes."""
    if job.start.kind in (PositionKind.LAST, PositionKind.LATEST):
        # As numbers: a reader that is reopened goes on where it was, not at the new end.
        found = await resolve_ranges(asked, ids, job.start, Position(PositionKind.LATEST))
        starts = [position_before_sequence(each.first) for each in found]
    else:
        starts = [job.start.position] * len(ids)
    queued: asyncio.Queue[Chunk] = asyncio.Queue(_QUEUED_MAX)
    async with AsyncExitStack() as stack:
        readers = [consumer.open_partition(*each) for each in zip(ids, starts, strict=True)]
        await asyncio.gather(*(stack.enter_async_context(each) for each in readers))
        if not job.quiet:
            many = "1 partition" if len(ids) == 1 else f"{len(ids)} partitions"
            print_message(f"Reading {many} of {job.hub}; Ctrl-C ends.")

        async def read(number: int) -> None:
            while True:
                columns = await readers[number].receive_columns(_WAIT_S)
                if columns.bodies:
                    await queued.put((ids[number], columns))

        reading = asyncio.create_task(run_together(*(read(number) for number in range(len(ids)))))
        try:
            async for chunk in _queued_chunks(queued, reading):
                yield chunk
        finally:
            reading.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await reading


async def _queued_chunks(
    queued: asyncio.Queue[Chunk], reading: asyncio.Task[None]
) -> AsyncGenerator[Chunk, None]:
    """From the queue, until reading failed and nothing is left."""
    while True:
        if queued.empty():
            taking = asyncio.create_task(queued.get())
            try:
                await asyncio.wait((taking, reading), return_when=asyncio.FIRST_COMPLETED)
            finally:
                if not taking.done():
                    taking.cancel()
            if not taking.done():
                await reading  # raises why
                return
            yield taking.result()
        else:
            yield queued.get_nowait()
