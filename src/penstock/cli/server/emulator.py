"""`penstock emulator import Config.json`: the emulator's hubs and groups in a running service."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.command_tree import CommandGroup
from penstock.cli.confirm import DryRun
from penstock.cli.output import Format, OutputFormat, print_message, print_rows
from penstock.cli.service_options import AdminSession, with_service
from penstock.model.errors import ConfigurationError, PenstockError

if TYPE_CHECKING:
    from penstock.management.client import ManagementClient
    from penstock.service.config.settings import HubSettings, NamespaceSettings

app = CommandGroup("Take over from the official emulator.")

_FILE_BYTES_MAX = 1024 * 1024
Row = dict[str, object]


@app.verb("import")
@with_service
def import_(
    service: AdminSession,
    file: Annotated[Path, typer.Argument(metavar="CONFIG.JSON", help="The emulator's own file")],
    dry_run: DryRun = False,
    output: Format = OutputFormat.TABLE,
) -> None:
    """Make the event hubs and consumer groups of an emulator's Config.json in a running service.

    What is there stays. They go into the namespace named by --namespace, else into the service's
    own. (`penstock serve --config Config.json` serves the file as it is, the emulator's published
    key included.) Exit code 1 when something could not be made.
    """
    rows: list[Row] = []
    for wanted in _read(file):
        for hub in wanted.hubs:
            rows += _import_hub(service.client, service.namespace, hub, dry_run=dry_run)
    print_rows(rows, output, title=str(file))
    if dry_run:
        print_message("Dry run: nothing was done.")
    if any(row["state"] == "refused" for row in rows):
        raise typer.Exit(1)


def _read(file: Path) -> tuple[NamespaceSettings, ...]:
    from penstock.service.config.emulator import is_emulator_config, read_namespaces

    try:
        with file.open("rb") as opened:
            text = opened.read(_FILE_BYTES_MAX).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{file} is no text in UTF-8.") from error
    if not is_emulator_config(text):
        raise ConfigurationError(f"{file} is no Config.json of the emulator: it is no JSON object.")
    return read_namespaces(file, text)


def _import_hub(
    client: ManagementClient, namespace: str, wanted: HubSettings, *, dry_run: bool
) -> list[Row]:
    known = {each.name.casefold(): each for each in client.hubs(namespace)}
    found = known.get(wanted.name.casefold())
    count = wanted.partition_count
    row: Row = {
        "kind": "hub",
        "name": wanted.name,
        "state": "made",
        "detail": f"{count} partitions",
    }
    if found is not None:
        same = found.partition_count == count
        row["state"] = "there" if same else "there, differs"
        row["detail"] = f"{found.partition_count} partitions" + ("" if same else f", not {count}")
    elif dry_run:
        row["state"] = "to be made"
    else:
        try:
            client.put_hub(namespace, wanted.name, partition_count=count)
        except PenstockError as error:
            return [{**row, "state": "refused", "detail": str(error)}]
    groups: set[str] = set()
    if found is not None:
        groups = {each.name.casefold() for each in client.groups(namespace, found.name)}
    return [
        row,
        *(
            _import_group(client, namespace, wanted.name, name, groups, dry_run=dry_run)
            for name in wanted.groups
        ),
    ]


def _import_group(
    client: ManagementClient,
    namespace: str,
    hub: str,
    name: str,
    known: set[str],
    *,
    dry_run: bool,
) -> Row:
    row: Row = {"kind": "group", "name": f"{hub}/{name}", "state": "made", "detail": ""}
    if name.casefold() in known:
        row["state"] = "there"
    elif dry_run:
        row["state"] = "to be made"
    else:
        try:
            client.put_group(namespace, hub, name)
        except PenstockError as error:
            row |= {"state": "refused", "detail": str(error)}
    return row
