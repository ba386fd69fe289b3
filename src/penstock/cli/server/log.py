"""`penstock log verify|dump`: look into a data directory without running it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from penstock.cli.command_tree import CommandGroup
from penstock.cli.output import Format, OutputFormat, print_rows

if TYPE_CHECKING:
    from penstock.log.embedded.verify import LogFinding, PartitionSummary

app = CommandGroup("Check and read the partition logs offline.")

Directory = Annotated[
    Path, typer.Argument(metavar="DIR", help="Data directory, or a copy of one; it may be in use")
]


@app.verb()
def verify(
    directory: Directory = Path("penstock-data"),
    output: Format = OutputFormat.TABLE,
) -> None:
    """Compare every checksum, number and index. Exit code 1 where stored events cannot be read."""
    from penstock.catalog.offline import hub_names
    from penstock.log.embedded.verify import PartitionSummary, verify_directory

    log = _log_of(directory)
    names = hub_names(log.parent)
    findings: list[LogFinding] = []
    summaries: list[PartitionSummary] = []
    for item in verify_directory(log):
        if isinstance(item, PartitionSummary):
            summaries.append(item)
        else:
            findings.append(item)
    rows = [
        {"hub": names.get(summary.hub_id), **msgspec.structs.asdict(summary)}
        for summary in summaries
    ]
    if output is OutputFormat.TABLE:
        for row in rows:
            hub_id = row.pop("hub_id")
            row["hub"] = row["hub"] or f"{hub_id} (not in the catalog)"
        print_rows(rows, output, title=f"{directory}: {len(summaries)} partitions")
        for finding in findings:
            word = "LOST" if finding.is_loss else "note"
            place = _partition_of(Path(finding.path), names)
            typer.echo(f"{word}: {place}{finding.path}: {finding.text}", err=True)
    else:
        print_rows([*rows, *(msgspec.structs.asdict(f) for f in findings)], output, title="")
    if any(finding.is_loss for finding in findings):
        raise typer.Exit(1)
    typer.echo("Every stored event can be read.", err=True)


@app.verb()
def dump(
    segment: Annotated[Path, typer.Argument(metavar="SEGMENT", help="A segment file (….log)")],
    output: Format = OutputFormat.TABLE,
) -> None:
    """List the records of one segment: sequence numbers, offsets, times, sizes."""
    from penstock.log.embedded.verify import DumpedRecord, DumpedSegment, dump_segment

    rows: list[dict[str, object]] = []
    damaged = 0
    for item in dump_segment(segment):
        if isinstance(item, DumpedSegment):
            typer.echo(
                f"partition {item.partition}, from offset {item.base_offset}, "
                f"sequence number {item.first_sequence}",
                err=True,
            )
        elif isinstance(item, DumpedRecord):
            row = msgspec.structs.asdict(item)
            row["enqueued"] = format_time(row.pop("enqueued_ms"))
            row["producer"] = None if item.producer is None else item.producer.id
            rows.append(row)
        else:
            damaged += 1
            typer.echo(f"DAMAGED: {item}", err=True)
    print_rows(rows, output, title=str(segment))
    if damaged:
        raise typer.Exit(1)


def _partition_of(path: Path, names: dict[str, str]) -> str:
    """The hub's name and the partition of a file, for a text; empty where the name is unknown."""
    name = names.get(path.parent.parent.name)
    return "" if name is None else f"{name}, partition {path.parent.name}: "


def _log_of(directory: Path) -> Path:
    """The log's own directory below a data directory; or that one itself."""
    below = directory / "log"
    return below if below.is_dir() else directory


def format_time(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")
