"""`penstock backup DIR` and `penstock restore DIR`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.confirm import DryRun
from penstock.cli.output import (
    Format,
    OutputFormat,
    console,
    format_bytes,
    print_message,
    print_record,
)
from penstock.cli.service_options import ContextOption, DataOption

Report = Callable[[int], None]


def backup(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A new or empty directory")],
    data: DataOption = None,
    context: ContextOption = None,
    output: Format = OutputFormat.TABLE,
) -> None:
    """Copy a data directory, also while its service runs.

    The copy is verified afterwards, checksum by checksum. It holds the keys too: its mode is 0700.
    Exit code 1 when the data directory itself is damaged; what can be read is in the copy.
    """
    from penstock import __version__
    from penstock.cli.service_lookup import ServiceFlags, data_directory
    from penstock.service.backup import back_up, data_size

    source = data_directory(ServiceFlags(data=data, context=context))
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    with _progress("Backing up", lambda: data_size(source)) as report:
        made = back_up(source, directory, created_at=now, penstock=__version__, report=report)
    size = sum(file.size for file in made.files)
    print_record(
        {
            "backup": str(directory),
            "created_at": made.created_at,
            "partitions": made.partitions,
            "events": made.events,
            "files": len(made.files),
            "size_bytes": size,
            "damage": len(made.findings),
        },
        output,
        shown={"size_bytes": format_bytes},
    )
    for finding in made.findings:
        print_message(f"LOST in the source: {finding}")
    if made.findings:
        raise typer.Exit(1)
    print_message("Verified: every event of the copy can be read.")


def restore(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="What `penstock backup` made")],
    data: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="A new or empty one [default: ./penstock-data]"),
    ] = None,
    dry_run: DryRun = False,
    output: Format = OutputFormat.TABLE,
) -> None:
    """Make a data directory of a backup.

    Into an empty or new directory only, and only when every file is as it was backed up and every
    event can be read. --dry-run checks the backup alone.
    """
    from penstock.cli.service_lookup import ServiceFlags, data_directory
    from penstock.service.backup import check_backup, read_manifest, restore_to

    target = data_directory(ServiceFlags(data=data))
    manifest = read_manifest(directory)
    size = sum(file.size for file in manifest.files)
    record: dict[str, object] = {
        "backup": str(directory),
        "created_at": manifest.created_at,
        "data": str(target),
        "partitions": manifest.partitions,
        "events": manifest.events,
        "files": len(manifest.files),
        "size_bytes": size,
        "damage": len(manifest.findings),
    }
    with _progress("Checking" if dry_run else "Restoring", lambda: size) as report:
        if dry_run:
            check_backup(directory, manifest, report)
        else:
            restored = restore_to(directory, manifest, target, report)
            record |= {"partitions": restored.partitions, "events": restored.events}
    print_record(record, output, shown={"size_bytes": format_bytes})
    if dry_run:
        print_message("Every file is as it was backed up. (Dry run: nothing was done.)")
    else:
        print_message(f"Verified: every event can be read. Next: penstock serve --data {target}")


@contextmanager
def _progress(what: str, total: Callable[[], int]) -> Iterator[Report]:
    """A bar on a terminal, nothing in a pipe."""
    screen = console(stderr=True)
    if not screen.is_terminal:
        yield lambda _: None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn(what), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=screen, transient=True) as progress:
        task = progress.add_task("", total=total())
        yield lambda size: progress.advance(task, size)
