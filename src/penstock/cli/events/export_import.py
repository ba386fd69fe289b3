"""`penstock export HUB FILE` and `penstock import HUB FILE`: Capture's Avro, or JSON lines."""

from __future__ import annotations

import json
import os
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Annotated, BinaryIO, Literal

import typer

from penstock.capture.container import (
    MAGIC,
    SCHEMA,
    SYNC_BYTES,
    AvroContainerReader,
    DamagedAvroFile,
    encode_block_header,
    encode_header,
)
from penstock.capture.records import read_capture_records
from penstock.cli.confirm import DryRun
from penstock.cli.events.event_range import GroupOption, RangeOptions
from penstock.cli.events.event_sender import (
    EventCopy,
    EventSender,
    PartitionRouter,
    PublishOptions,
    PublishRate,
    QuietOption,
)
from penstock.cli.events_options import EventsEndpoint, run, with_events
from penstock.cli.options import argument, option
from penstock.cli.output import print_message
from penstock.cli.progress_bar import ProgressBar
from penstock.cli.service_options import HubName
from penstock.cli.stdio import STDIO, ignore_broken_pipe, open_input
from penstock.formats.amqp_values import InvalidEvent
from penstock.formats.avro import encode_capture_records, parse_capture_record
from penstock.formats.event_record import read_line, to_json_lines
from penstock.kernels import Columns

_CHUNK_EVENTS = 5000
_LINE_BYTES_MAX = 64 * 1024 * 1024  # more than a body of 1 MB as base64 with its properties
_DEFLATE_LEVEL = 6


FileFormat = Literal["avro", "jsonl"]
FileArgument = Annotated[
    Path, argument("FILE", "A name that ends in .avro or .jsonl; - for a pipe")
]


@with_events
def export(
    wire: EventsEndpoint,
    hub: HubName,
    file: FileArgument,
    selection: RangeOptions,
    group: GroupOption = "$Default",
    format_: Annotated[
        FileFormat | None, option("--format", "Format, if the file name does not determine it")
    ] = None,
    deflate: Annotated[bool, option("--deflate", "Avro: compress the blocks")] = False,
    force: Annotated[bool, option("--force -f", "Replace an existing file")] = False,
    quiet: QuietOption = False,
) -> None:
    """Write events to a file: Capture's Avro records, or JSON lines.

    The file gets the events that are stored now, from --from up to and without --to, partition by
    partition. It appears when it is complete. `penstock import` publishes it again, byte for byte.

    Examples:
        penstock export orders orders.avro
        penstock export orders orders.jsonl --from -1d --partition 0
    """
    file_format = format_ or _choose_format(file)
    if file != STDIO and file.exists() and not force:
        raise typer.BadParameter(f"{file} exists. --force replaces it.")
    counter = ProgressBar("Exported", total=0, quiet=quiet)

    async def work(write: Callable[[Columns, str], None]) -> None:
        async with wire.consumer(hub, group) as consumer:
            ranges = await selection.resolve(consumer)
            counter.expect(sum(span.events for span in ranges))
            for span in ranges:
                chunks = consumer.read_range(span.partition, span.first, span.stop - 1)
                async with aclosing(chunks):
                    async for columns in chunks:
                        write(columns, span.partition)
                        counter.add(len(columns.bodies), sum(map(len, columns.bodies)))

    try:
        with counter, _open_target(file) as target:
            run(work(_open_writer(target, file_format, deflate=deflate)))
    except BrokenPipeError:
        ignore_broken_pipe()


@with_events
def import_(
    wire: EventsEndpoint,
    hub: HubName,
    file: FileArgument,
    *,
    partition: Annotated[
        str | None, option("--partition -p N", "Publish all events to this partition")
    ] = None,
    publish: PublishOptions,
    dry_run: DryRun = False,
) -> None:
    """Publish the events of a file.

    The file is from `penstock export` or `tail -o jsonl`, or an Avro file of Event Hubs Capture.
    Events with a key go to the partition of the key, others to the partition from which they came,
    if the file tells it.

    Examples:
        penstock import orders orders.avro
        penstock import orders orders.jsonl --dry-run
    """
    pace = PublishRate(publish.rate)
    verb, on_error = "Read", ""
    if not dry_run:
        verb, on_error = "Imported", "Events imported before this error"
    counter = ProgressBar(verb, quiet=publish.quiet, on_error=on_error)

    async def work(source: BinaryIO) -> None:
        if dry_run:
            for events in _read_events(source, file):
                counter.add(len(events), sum(len(event.body) for event in events))
            return
        async with wire.producer(hub) as producer:
            ids = await producer.get_partition_ids()
            if partition is not None and partition not in ids:
                raise typer.BadParameter(f"'{hub}' has no partition '{partition}'.")
            publisher = EventSender(producer, counter, patience_s=publish.patience, pace=pace)
            router = PartitionRouter(
                publisher, ids, only=partition, batch_events=pace.batch_events(publish.batch)
            )
            for events in _read_events(source, file):
                await router.send(events)

    with counter, open_input(file) as source:
        run(work(source))
    if dry_run:
        print_message(f"All events can be imported into '{hub}'. Dry run: nothing was published.")


# --- writing --------------------------------------------------------------------------------------


def _choose_format(file: Path) -> FileFormat:
    suffix = file.suffix.lower()
    if suffix == ".avro":
        return "avro"
    if suffix in (".jsonl", ".ndjson") or file == STDIO:
        return "jsonl"
    raise typer.BadParameter(f"{file} ends neither in .avro nor in .jsonl: add --format.")


def _open_writer(
    target: BinaryIO, file_format: FileFormat, *, deflate: bool
) -> Callable[[Columns, str], None]:
    """Write the header of the file; return the function that writes a chunk of events."""
    sync = os.urandom(SYNC_BYTES)
    if file_format == "avro":
        target.write(encode_header(sync, deflate=deflate))

    def write(columns: Columns, partition: str) -> None:
        rows = range(len(columns.bodies))
        if file_format == "jsonl":
            target.write(to_json_lines(columns, partition, rows))
        elif rows:
            records = encode_capture_records(columns, partition, rows)
            if deflate:
                compressor = zlib.compressobj(_DEFLATE_LEVEL, zlib.DEFLATED, -15)
                records = compressor.compress(records) + compressor.flush()
            target.write(encode_block_header(len(rows), len(records)) + records + sync)

    return write


@contextmanager
def _open_target(file: Path) -> Iterator[BinaryIO]:
    """A file that appears complete or not at all, and that only its owner may read."""
    if file == STDIO:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    part = file.with_name(f".{file.name}.{os.getpid()}.part")
    try:
        descriptor = os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with os.fdopen(descriptor, "wb", buffering=1024 * 1024) as target:
            yield target
            target.flush()
            os.fsync(descriptor)
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)


# --- reading --------------------------------------------------------------------------------------


def _read_events(source: BinaryIO, file: Path) -> Iterator[list[EventCopy]]:
    """The events of the file in chunks. Raises InvalidEvent, which names the line or event."""
    head = source.peek(len(MAGIC))[: len(MAGIC)]  # type: ignore[attr-defined]  # it is buffered
    yield from _read_avro(source, file) if head == MAGIC else _read_lines(source, file)


def _read_avro(source: BinaryIO, file: Path) -> Iterator[list[EventCopy]]:
    count_before = 0
    try:
        container = AvroContainerReader(source)
        if _schema_fields(container.schema) != _CAPTURE_FIELDS:
            raise InvalidEvent("its Avro schema is not that of Event Hubs Capture.")
        for count, block in container.blocks():
            yield [
                EventCopy(parse_capture_record(record.system, record.properties, record.body))
                for record in read_capture_records(count, block)
            ]
            count_before += count
    except (InvalidEvent, DamagedAvroFile) as error:
        text = str(error).removesuffix(".")
        raise InvalidEvent(f"{file}, after event {count_before:,}: {text}.") from None


def _schema_fields(schema: object) -> object:
    """The names and types of the fields: names of the record itself do not matter."""
    fields = schema.get("fields") if isinstance(schema, dict) else None
    if not isinstance(fields, list) or not all(isinstance(field, dict) for field in fields):
        return None
    return [(field.get("name"), field.get("type")) for field in fields]


_CAPTURE_FIELDS = _schema_fields(json.loads(SCHEMA))


def _read_lines(source: BinaryIO, file: Path) -> Iterator[list[EventCopy]]:
    events: list[EventCopy] = []
    number = 0
    while line := source.readline(_LINE_BYTES_MAX):
        number += 1
        if not line.strip():
            continue
        try:
            events.append(EventCopy(read_line(line)))
        except InvalidEvent as error:
            text = str(error).removesuffix(".")
            raise InvalidEvent(f"{file}, line {number}: {text}.") from None
        if len(events) >= _CHUNK_EVENTS:
            yield events
            events = []
    if events:
        yield events
