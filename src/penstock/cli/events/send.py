"""`penstock send HUB`: publish a file, stdin or a text as one event, or each line as one."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import msgspec
import typer

from penstock.cli.events.event_sender import (
    BATCH_EVENTS,
    PATIENCE_S,
    BatchOption,
    EventCopy,
    EventSender,
    PatienceOption,
    PublishRate,
    QuietOption,
    RateOption,
    event_too_large,
)
from penstock.cli.events_options import EventsEndpoint, run, with_events
from penstock.cli.output import print_message
from penstock.cli.progress_bar import ProgressBar
from penstock.cli.service_options import HubName
from penstock.formats.event_sections import (
    EventContent,
    EventSections,
    encode_fields,
    encode_properties,
)

if TYPE_CHECKING:
    from penstock.cli.stdio import StdinReader
    from penstock.client import EventDataBatch

_STDIN = Path("-")
_FILE_BYTES_MAX = 64 * 1024 * 1024  # larger than any service allows


def parse_property(text: str) -> tuple[str, Any]:
    """`name=text` or `name:=JSON`. Raises typer.BadParameter."""
    name, mark, value = text.partition("=")
    if not mark or not name.strip(":"):
        raise typer.BadParameter(f"'{text}' is not NAME=VALUE.")
    if not name.endswith(":"):
        return name, value
    try:
        parsed = json.loads(value)
    except ValueError:
        parsed = {}
    if not isinstance(parsed, str | int | float | bool | None):
        raise typer.BadParameter(f"'{value}' is not a number, boolean, null or text in JSON.")
    return name[:-1], parsed


PropertyOption = Annotated[
    list[Any] | None,
    typer.Option(
        "--property",
        "-P",
        metavar="A=B",
        parser=parse_property,
        help="A=B for text, A:=JSON for a number or boolean; may be repeated",
    ),
]


TextOption = Annotated[
    list[str] | None, typer.Option("--text", "-t", help="Text to send; may be repeated")
]
LinesOption = Annotated[
    bool, typer.Option("--lines", "-l", help="Send each line as one event, without its line end")
]


class _SendOptions(msgspec.Struct, frozen=True):
    hub: str
    source: Path | None  # None: `texts` are sent
    texts: list[bytes]
    lines: bool
    repeat: int
    key: str | None
    partition: str | None
    properties: dict[str, Any]
    content_type: str | None
    batch: int
    rate: float | None
    patience_s: float


@with_events
def send(
    wire: EventsEndpoint,
    hub: HubName,
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="File to send; - for stdin", show_default=False),
    ] = None,
    text: TextOption = None,
    lines: LinesOption = False,
    key: Annotated[
        str | None,
        typer.Option("--key", "-k", help="Partition key; events with the same key stay in order"),
    ] = None,
    partition: Annotated[
        str | None, typer.Option("--partition", "-p", metavar="N", help="Send to this partition")
    ] = None,
    property_: PropertyOption = None,
    content_type: Annotated[
        str | None,
        typer.Option("--content-type", metavar="TYPE", help="Content type, such as text/plain"),
    ] = None,
    repeat: Annotated[int, typer.Option("--repeat", min=1, help="Send everything N times")] = 1,
    batch: BatchOption = BATCH_EVENTS,
    rate: RateOption = None,
    patience: PatienceOption = PATIENCE_S,
    quiet: QuietOption = False,
) -> None:
    """Publish events.

    A file, stdin or --text is one event; with --lines each line is one. Lines that arrive slowly
    on stdin are sent as they arrive. Without a key or partition the service distributes
    publications over the partitions, so --batch 1 distributes single events. The order is kept.
    Events that a busy service refuses are sent again.

    Examples:
        penstock send orders --text hello
        penstock send orders --lines - < readings.jsonl
        penstock send orders reading.json --key meter-1 --property kind=reading
    """
    if key is not None and partition is not None:
        raise typer.BadParameter("A key and a partition exclude each other.")
    if text and file is not None:
        raise typer.BadParameter("A file and --text exclude each other.")
    source = None if text else file or _STDIN
    if source == _STDIN and sys.stdin.isatty():
        lines = True
        print_message("Each line is one event. Ctrl-D ends the input.")
    job = _SendOptions(
        hub=hub,
        source=source,
        texts=_text_bodies(text or [], lines=lines),
        lines=lines,
        repeat=repeat,
        key=key,
        partition=partition,
        properties=dict(property_ or []),
        content_type=content_type,
        batch=batch,
        rate=rate,
        patience_s=patience,
    )
    counter = ProgressBar("Sent", total=_total(job), total_bytes=_total_bytes(job), quiet=quiet)
    try:
        with counter:
            run(_send(wire, job, counter))
    except BaseException:
        if counter.events:
            print_message(f"Events sent before this error: {counter.events:,}.")
        raise
    counter.tell()


async def _send(wire: EventsEndpoint, job: _SendOptions, counter: ProgressBar) -> None:
    pace = PublishRate(job.rate)
    async with wire.producer(job.hub) as producer:
        publisher = EventSender(producer, counter, patience_s=job.patience_s, pace=pace)
        filler = _BatchFiller(publisher, job, pace.batch_events(job.batch))
        stored: list[list[bytes]] = []  # stdin can be read only once
        for turn in range(job.repeat):
            if turn and job.source == _STDIN:
                for bodies in stored:
                    await filler.add(bodies)
                continue
            async for bodies, is_quiet in _read_bodies(job, await filler.event_bytes_max()):
                await filler.add(bodies)
                if job.repeat > 1 and job.source == _STDIN:
                    stored.append(bodies)
                elif is_quiet:
                    await filler.flush()
        await filler.flush()
        await publisher.finish()


class _BatchFiller:
    """Collects bodies in batches and sends them."""

    def __init__(self, publisher: EventSender, job: _SendOptions, batch_events: int) -> None:
        self._publisher = publisher
        self._job = job
        content_type = {} if job.content_type is None else {"content-type": job.content_type}
        sections = EventSections(encode_properties(job.properties), encode_fields(content_type))
        self._event = EventCopy(EventContent(b"", sections, key=job.key))
        self._batch_events = batch_events
        self._batch: EventDataBatch | None = None
        self._size = 0
        self._count = 0  # for the error that names a line

    async def event_bytes_max(self) -> int:
        return (await self._open()).max_size_in_bytes

    async def add(self, bodies: list[bytes]) -> None:
        # One object for all events: their common sections are encoded once.
        event, most = self._event, self._batch_events
        batch = await self._open()
        room = most - len(batch)
        for body in bodies:
            event.body = body
            if room <= 0 or not batch.try_add(event):
                await self.flush()
                batch = await self._open()
                room = most
                if not batch.try_add(event):
                    what = f"Line {self._count + 1:,}" if self._job.lines else "The event"
                    await self._publisher.finish()
                    raise event_too_large(what, len(body), batch)
            room -= 1
            self._count += 1
            self._size += len(body)

    async def flush(self) -> None:
        batch, size = self._batch, self._size
        if batch is not None and len(batch):
            self._batch, self._size = None, 0
            await self._publisher.begin(batch, size)

    async def _open(self) -> EventDataBatch:
        if self._batch is None:
            self._batch = await self._publisher.create_batch(
                partition_id=self._job.partition, partition_key=self._job.key
            )
        return self._batch


async def _read_bodies(
    job: _SendOptions, bytes_max: int
) -> AsyncIterator[tuple[list[bytes], bool]]:
    """Bodies as they arrive, and whether no more input is available at the moment."""
    from penstock.cli.stdio import StdinReader

    if job.source is None:
        yield job.texts, False
        return
    with ExitStack() as stack:
        file: BinaryIO = sys.stdin.buffer
        if job.source != _STDIN:
            file = stack.enter_context(job.source.open("rb"))
        inlet = StdinReader(file)
        parts = _read_lines(inlet, bytes_max) if job.lines else _read_whole(inlet, bytes_max)
        async for bodies in parts:
            yield bodies, inlet.is_quiet


async def _read_lines(inlet: StdinReader, bytes_max: int) -> AsyncIterator[list[bytes]]:
    begun = b""
    async for chunk in inlet:
        *lines, begun = (begun + chunk).split(b"\n")
        if lines:
            yield lines
        if len(begun) > bytes_max:
            break  # the line is too long already
    if begun:
        yield [begun]


async def _read_whole(inlet: StdinReader, bytes_max: int) -> AsyncIterator[list[bytes]]:
    parts: list[bytes] = []
    size = 0
    async for chunk in inlet:
        parts.append(chunk)
        size += len(chunk)
        if size > max(bytes_max, _FILE_BYTES_MAX):
            break
    yield [b"".join(parts)]


def _text_bodies(texts: list[str], *, lines: bool) -> list[bytes]:
    encoded = [text.encode("utf-8", "surrogateescape") for text in texts]
    return [line for text in encoded for line in text.split(b"\n")] if lines else encoded


def _total(job: _SendOptions) -> int | None:
    """The number of events; None if it is not known."""
    if job.source is None:
        return len(job.texts) * job.repeat
    return None if job.lines else job.repeat


def _total_bytes(job: _SendOptions) -> int | None:
    """The number of bytes of all lines; None if it is not known."""
    if job.source is None or job.source == _STDIN or not job.source.is_file():
        return None
    return job.source.stat().st_size * job.repeat
