"""`penstock log verify|dump`: the partition logs of a data directory, with or without a service."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from penstock.cli.command_tree import CommandGroup
from penstock.cli.exit_codes import ExitCode
from penstock.cli.options import argument
from penstock.cli.output import TABLE, Format, print_message
from penstock.formats.quantities import format_time
from penstock.model.errors import NotFound

if TYPE_CHECKING:
    from penstock.log.embedded.verify import LogFinding

app = CommandGroup("Verify and inspect the partition logs on disk.")


@app.verb()
def verify(
    directory: Annotated[
        Path, argument("DIR", "Data directory or a copy of one; it may be in use")
    ] = Path("penstock-data"),
    output: Format = TABLE,
) -> None:
    """Verify every checksum, sequence number and index.

    Exit code 1 when stored events cannot be read, 3 when there is no such directory.

    Examples:
        penstock log verify
        penstock log verify /var/lib/penstock -o json
    """
    from penstock.catalog.offline import hub_names
    from penstock.log.embedded.verify import PartitionSummary, verify_directory

    if not directory.is_dir():
        raise NotFound(f"There is no directory {directory}.")
    below = directory / "log"
    log = below if below.is_dir() else directory
    names = hub_names(log.parent)
    findings: list[LogFinding] = []
    rows: list[dict[str, object]] = []
    for item in verify_directory(log):
        if isinstance(item, PartitionSummary):
            rows.append({"hub": names.get(item.hub_id), **msgspec.structs.asdict(item)})
        else:
            findings.append(item)
    if output is TABLE:
        for row in rows:
            hub_id = row.pop("hub_id")
            row["hub"] = row["hub"] or f"{hub_id} (not in the catalog)"
        shown = {"size_bytes": "{:,}".format}
        output.print_rows(rows, title=f"Partitions in {directory}", shown=shown)
        for finding in findings:
            word = "LOST" if finding.is_loss else "note"
            partition = _describe_partition(Path(finding.path), names)
            print_message(f"{word}: {partition}{finding.path}: {finding.text}")
    else:
        output.print_rows([*rows, *map(msgspec.structs.asdict, findings)], title="")
    if any(finding.is_loss for finding in findings):
        raise typer.Exit(ExitCode.FAILED)
    print_message("Every stored event can be read.")


@app.verb()
def dump(
    segment: Annotated[Path, argument("SEGMENT", "A segment file (….log)")], output: Format = TABLE
) -> None:
    """List the records of one segment: sequence numbers, offsets, times, sizes.

    Exit code 1 when a record is damaged, 3 when there is no such file.

    Examples:
        penstock log dump penstock-data/log/HUB_ID/0/00000000000000000000.log
    """
    from penstock.log.embedded.verify import RecordHeader, SegmentHeader, dump_segment

    rows: list[dict[str, object]] = []
    is_damaged = False
    for item in dump_segment(segment):
        if isinstance(item, SegmentHeader):
            print_message(
                f"partition {item.partition}, from offset {item.base_offset}, "
                f"sequence number {item.first_sequence}"
            )
        elif isinstance(item, RecordHeader):
            rows.append(
                {
                    "offset": item.base_offset,
                    "first_sequence": item.first_sequence,
                    "count": item.count,
                    "length": item.length,
                    "producer": None if item.producer is None else item.producer.id,
                    "flushed_offset": item.flushed_offset,
                    "enqueued": format_time(item.enqueued_ms),
                }
            )
        else:
            is_damaged = True
            print_message(f"DAMAGED: {item}")
    output.print_rows(rows, title=str(segment))
    if is_damaged:
        raise typer.Exit(ExitCode.FAILED)


def _describe_partition(file: Path, names: dict[str, str]) -> str:
    """Hub and partition of a log file, as the beginning of a message; empty if unknown."""
    name = names.get(file.parent.parent.name)
    return "" if name is None else f"{name}, partition {file.parent.name}: "
