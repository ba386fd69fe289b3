"""`penstock send HUB`: publish a file, stdin or a text as one event, or each line as one."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.cli.events.event_sender import (
    BatchFiller,
    EventCopy,
    EventSender,
    PublishOptions,
    PublishRate,
)
from penstock.cli.events_options import EventsEndpoint, run, with_events
from penstock.cli.options import argument, option
from penstock.cli.output import print_message
from penstock.cli.progress_bar import ProgressBar
from penstock.cli.service_options import HubName
from penstock.cli.stdio import STDIO, StdinReader, open_input
from penstock.formats.event_sections import (
    EventContent,
    EventSections,
    encode_fields,
    encode_properties,
)

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


@dataclass(frozen=True, kw_only=True)
class _SendOptions:
    hub: HubName
    file: Annotated[
        Path | None, argument("FILE", "File to send; - for stdin", show_default=False)
    ] = None
    text: Annotated[list[str] | None, option("--text -t TEXT", "Text to send; may be repeated")] = (
        None
    )
    lines: Annotated[
        bool, option("--lines -l", "Send each line as one event, without its line end")
    ] = False
    key: Annotated[
        str | None, option("--key -k TEXT", "Partition key; events with the same key stay in order")
    ] = None
    partition: Annotated[str | None, option("--partition -p N", "Send to this partition")] = None
    property_: Annotated[
        list[Any] | None,
        option(
            "--property -P A=B",
            "A=B for text, A:=JSON for a number or boolean; may be repeated",
            parser=parse_property,
        ),
    ] = None
    content_type: Annotated[str | None, option("TYPE", "Content type, such as text/plain")] = None
    repeat: Annotated[int, option("N", "Send everything N times", min=1)] = 1

    @property
    def source(self) -> Path | None:
        """None: the texts are sent."""
        return None if self.text else self.file or STDIO

    @property
    def bodies(self) -> list[bytes]:
        """The texts as events."""
        encoded = [text.encode("utf-8", "surrogateescape") for text in self.text or ()]
        return [line for text in encoded for line in text.split(b"\n")] if self.lines else encoded

    @property
    def total(self) -> int | None:
        """The number of events; None if it is not known."""
        if self.source is None:
            return len(self.bodies) * self.repeat
        return None if self.lines else self.repeat

    @property
    def total_bytes(self) -> int | None:
        """The number of bytes of all lines; None if it is not known."""
        if self.source is None or self.source == STDIO or not self.source.is_file():
            return None
        return self.source.stat().st_size * self.repeat


@with_events
def send(wire: EventsEndpoint, job: _SendOptions, publish: PublishOptions) -> None:
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
    if job.key is not None and job.partition is not None:
        raise typer.BadParameter("A key and a partition exclude each other.")
    if job.text and job.file is not None:
        raise typer.BadParameter("A file and --text exclude each other.")
    if job.source == STDIO and sys.stdin.isatty():
        job = replace(job, lines=True)
        print_message("Each line is one event. Ctrl-D ends the input.")
    counter = ProgressBar(
        "Sent",
        total=job.total,
        total_bytes=job.total_bytes,
        quiet=publish.quiet,
        on_error="Events sent before this error",
    )
    with counter:
        run(_send(wire, job, publish, counter))


async def _send(
    wire: EventsEndpoint, job: _SendOptions, publish: PublishOptions, counter: ProgressBar
) -> None:
    pace = PublishRate(publish.rate)
    async with wire.producer(job.hub) as producer:
        publisher = EventSender(producer, counter, patience_s=publish.patience, pace=pace)
        filler = BatchFiller(
            publisher,
            pace.batch_events(publish.batch),
            event_name="Line {:,}" if job.lines else "The event",
            partition_id=job.partition,
            partition_key=job.key,
        )
        event = _event_template(job)
        bytes_max = (await filler.open()).max_size_in_bytes
        stored: list[list[bytes]] = []  # stdin can be read only once
        for turn in range(job.repeat):
            if turn and job.source == STDIO:
                for bodies in stored:
                    await filler.add(_with_bodies(event, bodies))
                continue
            async for bodies, is_quiet in _read_bodies(job, bytes_max):
                await filler.add(_with_bodies(event, bodies))
                if job.repeat > 1 and job.source == STDIO:
                    stored.append(bodies)
                elif is_quiet:
                    await filler.flush()
        await filler.flush()
        await publisher.finish()


def _event_template(job: _SendOptions) -> EventCopy:
    content_type = {} if job.content_type is None else {"content-type": job.content_type}
    properties = encode_properties(dict(job.property_ or []))
    sections = EventSections(properties, encode_fields(content_type))
    return EventCopy(EventContent(b"", sections, key=job.key))


def _with_bodies(event: EventCopy, bodies: list[bytes]) -> Iterator[EventCopy]:
    """The same object with one body after the other: its sections are encoded once."""
    for body in bodies:
        event.body = body
        yield event


async def _read_bodies(
    job: _SendOptions, bytes_max: int
) -> AsyncIterator[tuple[list[bytes], bool]]:
    """Bodies as they arrive, and whether no more input is available at the moment."""
    if job.source is None:
        yield job.bodies, False
        return
    with open_input(job.source) as file:
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
