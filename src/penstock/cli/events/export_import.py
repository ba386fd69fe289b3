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

from penstock.cli.avro import AvroContainerWriter, read_container
from penstock.cli.capture_rows import SCHEMA, capture_record_reader, encode_capture_records
from penstock.cli.confirm import DryRun
from penstock.cli.events.event_sender import (
    BATCH_EVENTS,
    BatchOption,
    EventSender,
    PartitionRouter,
    PatienceOption,
    PublishRate,
    QuietOption,
    RateOption,
    parse_rate,
)
from penstock.cli.events_options import EventsEndpoint, run, with_events
from penstock.cli.output import print_message
from penstock.cli.places import (
    FromOption,
    Partitions,
    ToOption,
    parse_position,
    resolve_ranges,
    select_partitions,
)
from penstock.cli.progress_bar import ProgressBar
from penstock.cli.records import read_line, to_json_lines, to_records
from penstock.cli.sections import EventCopy, InvalidEvent
from penstock.cli.service_options import HubName
from penstock.cli.stdio import ignore_broken_pipe
from penstock.cli.units import parse_seconds

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
    wire: EventsEndpoint,
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

    Examples:
        penstock export orders orders.avro
        penstock export orders orders.jsonl --from -1d --partition 0
    """
    start, stop = parse_position(from_), parse_position(to, option="--to")
    kind = format_ or _kind(file)
    if file != _STDIO and file.exists() and not force:
        raise typer.BadParameter(f"{file} is there already: say --force to write over it.")
    counter = ProgressBar("Exported", total=0, quiet=quiet)

    async def work(write: Callable[[Columns, str], None]) -> None:
        async with wire.consumer(hub, group) as consumer:
            ids = await select_partitions(consumer, partition)
            planned = await resolve_ranges(consumer, ids, start, stop)
            counter.expect(sum(each.events for each in planned))
            for span in planned:
                found = consumer.read_range(span.partition, span.first, span.stop - 1)
                async with aclosing(found):
                    async for columns in found:
                        write(columns, span.partition)
                        counter.add(len(columns.bodies), sum(map(len, columns.bodies)))

    try:
        with counter, _open_target(file) as target:
            run(work(_writer(target, kind, deflate=deflate)))
    except BrokenPipeError:
        ignore_broken_pipe()
        return
    counter.tell()


@with_events
def import_(
    wire: EventsEndpoint,
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

    Examples:
        penstock import orders orders.avro
        penstock import orders orders.jsonl --dry-run
    """
    pace = PublishRate(parse_rate(rate))
    patience_s = parse_seconds(patience, option="--patience")
    counter = ProgressBar("Read" if dry_run else "Imported", quiet=quiet)

    async def work(source: BinaryIO) -> None:
        if dry_run:
            for events in _events(source, file):
                counter.add(len(events), sum(len(each.body) for each in events))
            return
        async with wire.producer(hub) as producer:
            ids = await producer.get_partition_ids()
            if partition is not None and partition not in ids:
                raise typer.BadParameter(f"'{hub}' has no partition '{partition}'.")
            publisher = EventSender(producer, counter, patience_s=patience_s, pace=pace)
            router = PartitionRouter(
                publisher, ids, only=partition, batch_events=pace.batch_events(batch)
            )
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
            print_message(f"Events that were imported before this: {counter.events:,}.")
        raise
    counter.tell()
    if dry_run:
        print_message(f"All of them can go into '{hub}'. Dry run: nothing was done.")


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
        return lambda columns, partition: _write_output(
            target, to_json_lines(to_records(columns, partition))
        )
    container = AvroContainerWriter(target, SCHEMA, deflate=deflate)
    return lambda columns, partition: container.write_block(
        len(columns.bodies), encode_capture_records(columns, partition)
    )


def _write_output(target: BinaryIO, data: bytes) -> None:
    target.write(data)


@contextmanager
def _open_target(file: Path) -> Iterator[BinaryIO]:
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


def _events(source: BinaryIO, file: Path) -> Iterator[list[EventCopy]]:
    """The file's events, some at a time. A BadEvent says where."""
    head = source.peek(len(_MAGIC))[: len(_MAGIC)]  # type: ignore[attr-defined]  # buffered both
    yield from _avro_events(source, file) if head == _MAGIC else _line_events(source, file)


def _avro_events(source: BinaryIO, file: Path) -> Iterator[list[EventCopy]]:
    before = 0
    try:
        schema, blocks = read_container(source)
        read = capture_record_reader(schema)
        for count, block in blocks:
            yield read(count, block)
            before += count
    except InvalidEvent as error:
        raise InvalidEvent(f"{file}, behind event {before:,}: {error}.") from None


def _line_events(source: BinaryIO, file: Path) -> Iterator[list[EventCopy]]:
    events: list[EventCopy] = []
    number = 0
    while line := source.readline(_LINE_BYTES_MAX):
        number += 1
        if not line.strip():
            continue
        try:
            events.append(read_line(line))
        except InvalidEvent as error:
            raise InvalidEvent(f"{file}, line {number}: {error}.") from None
        if len(events) >= _CHUNK_EVENTS:
            yield events
            events = []
    if events:
        yield events
