"""`penstock export HUB FILE` and `penstock import HUB FILE`: Avro as of Capture, or JSON lines."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, aclosing, contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from penstock.cli.avro import Writer, read_container
from penstock.cli.capture_rows import SCHEMA, encode_rows, rows_reader
from penstock.cli.confirm import DryRun
from penstock.cli.events.event_sender import (
    BATCH_EVENTS,
    BatchOption,
    Pace,
    PatienceOption,
    Publisher,
    QuietOption,
    RateOption,
    Router,
    parse_rate,
)
from penstock.cli.events_options import Wire, run, with_events
from penstock.cli.output import talk
from penstock.cli.places import (
    FromOption,
    Partitions,
    ToOption,
    chosen_partitions,
    parse_place,
    spans,
)
from penstock.cli.progress_bar import Counter
from penstock.cli.records import lines, read_line, records
from penstock.cli.sections import BadEvent, Copy
from penstock.cli.service_options import HubName
from penstock.cli.stdio import leave_quietly
from penstock.cli.units import seconds

if TYPE_CHECKING:
    from penstock.kernels import Columns

_STDIO = Path("-")
_MAGIC = b"Obj\x01"
_CHUNK_EVENTS = 5000
_LINE_BYTES_MAX = 64 * 1024 * 1024  # a body of 1 MB as base64, and all that belongs to it


class FileFormat(StrEnum):
    AVRO = "avro"
    JSONL = "jsonl"


FileArgument = Annotated[
    Path, typer.Argument(metavar="FILE", help="With .avro or .jsonl at its end; - is a pipe")
]


@with_events
def export(
    wire: Wire,
    hub: HubName,
    file: FileArgument,
    from_: FromOption = "earliest",
    to: ToOption = "latest",
    partition: Partitions = None,
    group: Annotated[str, typer.Option("--group", "-g", help="Consumer group")] = "$Default",
    format_: Annotated[
        FileFormat | None, typer.Option("--format", help="Where the name does not say it")
    ] = None,
    deflate: Annotated[bool, typer.Option("--deflate", help="Avro: compress the blocks")] = False,
    force: Annotated[bool, typer.Option("--force", "-f", help="Write over a file")] = False,
    quiet: QuietOption = False,
) -> None:
    """Write events into a file: Avro as of Capture, or JSON lines.

    What is there now, from --from on and before --to, partition by partition. The file appears
    when it is whole. `penstock import` publishes it again, byte for byte.
    """
    start, stop = parse_place(from_), parse_place(to, option="--to")
    kind = format_ or _kind(file)
    if file != _STDIO and file.exists() and not force:
        raise typer.BadParameter(f"{file} is there already: say --force to write over it.")
    counter = Counter("Exported", total=0, quiet=quiet)

    async def work(write: Callable[[Columns, str], None]) -> None:
        async with wire.consumer(hub, group) as consumer:
            ids = await chosen_partitions(consumer, partition)
            planned = await spans(consumer, ids, start, stop)
            counter.expect(sum(each.events for each in planned))
            for span in planned:
                found = consumer.read_range(span.partition, span.first, span.stop - 1)
                async with aclosing(found):
                    async for columns in found:
                        write(columns, span.partition)
                        counter.add(len(columns.bodies), sum(map(len, columns.bodies)))

    try:
        with counter, _opened(file) as target:
            run(work(_writer(target, kind, deflate=deflate)))
    except BrokenPipeError:
        leave_quietly()
        return
    counter.tell()


@with_events
def import_(
    wire: Wire,
    hub: HubName,
    file: FileArgument,
    partition: Annotated[
        str | None,
        typer.Option("--partition", "-p", metavar="N", help="All of them to this one"),
    ] = None,
    batch: BatchOption = BATCH_EVENTS,
    rate: RateOption = None,
    patience: PatienceOption = "60s",
    quiet: QuietOption = False,
    dry_run: DryRun = False,
) -> None:
    """Publish the events of a file.

    One of `penstock export` or `tail -o jsonl`, or an Avro file of Event Hubs Capture. Events with
    a key go where it leads, others to the partition they came from, where that is known.
    """
    pace = Pace(parse_rate(rate))
    patience_s = seconds(patience, option="--patience")
    counter = Counter("Read" if dry_run else "Imported", quiet=quiet)

    async def work(source: BinaryIO) -> None:
        if dry_run:
            for events in _events(source, file):
                counter.add(len(events), sum(len(each.body) for each in events))
            return
        async with wire.producer(hub) as producer:
            ids = await producer.get_partition_ids()
            if partition is not None and partition not in ids:
                raise typer.BadParameter(f"'{hub}' has no partition '{partition}'.")
            publisher = Publisher(producer, counter, patience_s=patience_s, pace=pace)
            router = Router(publisher, ids, only=partition, batch_events=pace.batch_events(batch))
            for events in _events(source, file):
                await router.send(events)

    try:
        with ExitStack() as stack:
            stack.enter_context(counter)
            source: BinaryIO = sys.stdin.buffer
            if file != _STDIO:
                source = stack.enter_context(file.open("rb"))
            run(work(source))
    except BaseException:
        if counter.events and not dry_run:
            talk(f"Events that were imported before this: {counter.events:,}.")
        raise
    counter.tell()
    if dry_run:
        talk(f"All of them can go into '{hub}'. Dry run: nothing was done.")


# --- writing --------------------------------------------------------------------------------------


def _kind(file: Path) -> FileFormat:
    suffix = file.suffix.lower()
    if suffix == ".avro":
        return FileFormat.AVRO
    if suffix in (".jsonl", ".ndjson") or file == _STDIO:
        return FileFormat.JSONL
    raise typer.BadParameter(f"{file} ends neither in .avro nor in .jsonl: say --format.")


def _writer(target: BinaryIO, kind: FileFormat, *, deflate: bool) -> Callable[[Columns, str], None]:
    if kind is FileFormat.JSONL:
        return lambda columns, partition: _put(target, lines(records(columns, partition)))
    container = Writer(target, SCHEMA, deflate=deflate)
    return lambda columns, partition: container.write_block(
        len(columns.bodies), encode_rows(columns, partition)
    )


def _put(target: BinaryIO, data: bytes) -> None:
    target.write(data)


@contextmanager
def _opened(file: Path) -> Iterator[BinaryIO]:
    """A file that appears whole, or not at all; events are for their owner's eyes."""
    if file == _STDIO:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    part = file.with_name(f".{file.name}.{os.getpid()}.part")
    try:
        opened = os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with os.fdopen(opened, "wb", buffering=1024 * 1024) as target:
            yield target
            target.flush()
            os.fsync(opened)
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)


# --- reading --------------------------------------------------------------------------------------


def _events(source: BinaryIO, file: Path) -> Iterator[list[Copy]]:
    """The file's events, some at a time. A BadEvent says where."""
    head = source.peek(len(_MAGIC))[: len(_MAGIC)]  # type: ignore[attr-defined]  # buffered both
    yield from _avro_events(source, file) if head == _MAGIC else _line_events(source, file)


def _avro_events(source: BinaryIO, file: Path) -> Iterator[list[Copy]]:
    before = 0
    try:
        schema, blocks = read_container(source)
        read = rows_reader(schema)
        for count, block in blocks:
            yield read(count, block)
            before += count
    except BadEvent as error:
        raise BadEvent(f"{file}, behind event {before:,}: {error}.") from None


def _line_events(source: BinaryIO, file: Path) -> Iterator[list[Copy]]:
    events: list[Copy] = []
    number = 0
    while line := source.readline(_LINE_BYTES_MAX):
        number += 1
        if not line.strip():
            continue
        try:
            events.append(read_line(line))
        except BadEvent as error:
            raise BadEvent(f"{file}, line {number}: {error}.") from None
        if len(events) >= _CHUNK_EVENTS:
            yield events
            events = []
    if events:
        yield events
