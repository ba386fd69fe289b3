"""`penstock backup` and `penstock restore`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.confirm import DryRun
from penstock.cli.exit_codes import ExitCode
from penstock.cli.options import argument, option
from penstock.cli.output import TABLE, Format, OutputFormat, console, print_message
from penstock.cli.service_options import with_data_directory

if TYPE_CHECKING:
    from penstock.service.backup import BackupManifest


@with_data_directory
def backup(
    data: Path,
    directory: Annotated[Path, argument("DIR", "A new or empty directory")],
    output: Format = TABLE,
) -> None:
    """Copy a data directory, also while its service runs.

    The copy is verified, checksum by checksum. It contains the keys, so its mode is 0700. Exit code
    1 when the data directory is damaged: the copy contains what can be read. Exit code 3 when there
    is no data directory.

    Examples:
        penstock backup /backups/2026-11-16
        penstock backup /backups/2026-11-16 --data /var/lib/penstock
    """
    from penstock import __version__
    from penstock.service.backup import back_up, data_size

    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    with _progress("Backing up", lambda: data_size(data)) as report:
        manifest = back_up(data, directory, created_at=now, penstock=__version__, report=report)
    _print_manifest(directory, manifest, {}, output)
    for finding in manifest.findings:
        print_message(f"LOST in the source: {finding}")
    if manifest.findings:
        raise typer.Exit(ExitCode.FAILED)
    print_message("Verified: every event of the copy can be read.")


def restore(
    directory: Annotated[Path, argument("DIR", "Directory that `penstock backup` wrote")],
    data: Annotated[
        Path | None, option("DIR", "New or empty data directory [default: ./penstock-data]")
    ] = None,
    dry_run: DryRun = False,
    output: Format = TABLE,
) -> None:
    """Create a data directory from a backup.

    The target must be new or empty. Every file must be as it was backed up, and every event
    readable. --dry-run only checks the backup. Exit code 3 when there is no backup.

    Examples:
        penstock restore /backups/2026-11-16 --dry-run
        penstock restore /backups/2026-11-16 --data /var/lib/penstock
    """
    from penstock.cli.service_options import ServiceFlags, data_directory
    from penstock.service.backup import check_backup, read_manifest, restore_to

    target = data_directory(ServiceFlags(data=data))
    manifest = read_manifest(directory)
    changes: dict[str, object] = {"data": str(target)}
    size = sum(file.size for file in manifest.files)
    with _progress("Checking" if dry_run else "Restoring", lambda: size) as report:
        if dry_run:
            check_backup(directory, manifest, report)
        else:
            restored = restore_to(directory, manifest, target, report)
            changes |= {"partitions": restored.partitions, "events": restored.events}
    _print_manifest(directory, manifest, changes, output)
    if dry_run:
        print_message("Every file is as it was backed up. (Dry run: nothing was changed.)")
    else:
        print_message(f"Verified: every event can be read. Next: penstock serve --data {target}")


def _print_manifest(
    directory: Path, manifest: BackupManifest, changes: dict[str, object], output: OutputFormat
) -> None:
    record = {
        "backup": str(directory),
        "created_at": manifest.created_at,
        "partitions": manifest.partitions,
        "events": manifest.events,
        "files": len(manifest.files),
        "size_bytes": sum(file.size for file in manifest.files),
        "damage": len(manifest.findings),
    }
    output.print_record(record | changes)


@contextmanager
def _progress(title: str, total: Callable[[], int]) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal. What it yields is called with the number of bytes that were copied."""
    screen = console(stderr=True)
    if not screen.is_terminal:
        yield lambda _: None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn(title), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=screen, transient=True) as progress:
        task = progress.add_task("", total=total())
        yield lambda size: progress.advance(task, size)
