"""`penstock emulator import`: create the event hubs of an emulator's Config.json in a service."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.command_tree import CommandGroup
from penstock.cli.confirm import DryRun
from penstock.cli.exit_codes import ExitCode
from penstock.cli.options import argument
from penstock.cli.output import TABLE, Format, print_message
from penstock.cli.service_options import AdminSession, with_service
from penstock.model.errors import ConfigurationError, PenstockError

if TYPE_CHECKING:
    from penstock.service.config.settings import HubSettings, NamespaceSettings

app = CommandGroup("Migrate from the official emulator.", with_service)

_FILE_BYTES_MAX = 1024 * 1024
Row = dict[str, object]


@app.verb("import")
def import_(
    service: AdminSession,
    file: Annotated[Path, argument("CONFIG.JSON", "Configuration file of the emulator")],
    dry_run: DryRun = False,
    output: Format = TABLE,
) -> None:
    """Create the event hubs and consumer groups of an emulator's Config.json in a running service.

    Existing ones are not changed. They are created in the namespace of --namespace, by default the
    service's own. (`penstock serve --config Config.json` serves the file as it is, with the key
    that the emulator publishes.) Exit code 1 when the service refused one of them.

    Examples:
        penstock emulator import Config.json --dry-run
        penstock emulator import Config.json --namespace penstock
    """
    namespaces = _read_config(file)
    rows = [
        row
        for namespace in namespaces
        for hub in namespace.hubs
        for row in _import_hub(service, hub, dry_run=dry_run)
    ]
    output.print_rows(rows, title=str(file))
    if dry_run:
        print_message("Dry run: nothing was changed.")
    if any(row["state"] == "refused" for row in rows):
        raise typer.Exit(ExitCode.FAILED)


def _read_config(file: Path) -> tuple[NamespaceSettings, ...]:
    from penstock.service.config.emulator import is_emulator_config, read_namespaces

    try:
        with file.open("rb") as opened:
            text = opened.read(_FILE_BYTES_MAX).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{file} is not UTF-8 text.") from error
    if not is_emulator_config(text):
        raise ConfigurationError(f"{file} is not a Config.json of the emulator: no JSON object.")
    return read_namespaces(file, text)


def _import_hub(service: AdminSession, hub: HubSettings, *, dry_run: bool) -> Iterator[Row]:
    client, namespace = service.client, service.namespace
    existing = {entity.name.casefold(): entity for entity in client.hubs(namespace)}.get(
        hub.name.casefold()
    )
    count = hub.partition_count
    groups: set[str] = set()
    row: Row = {"kind": "hub", "name": hub.name, "state": "", "detail": f"{count} partitions"}
    if existing is None:
        row |= _create(
            lambda: client.put_hub(namespace, hub.name, partition_count=count), dry_run=dry_run
        )
    else:
        is_same = existing.partition_count == count
        row["state"] = "there" if is_same else "there, differs"
        if not is_same:
            row["detail"] = f"{existing.partition_count} partitions, not {count}"
        groups = {group.name.casefold() for group in client.groups(namespace, existing.name)}
    yield row
    if row["state"] == "refused":
        return
    for name in hub.groups:
        result: Row = {"state": "there"}
        if name.casefold() not in groups:
            put_group = functools.partial(client.put_group, namespace, hub.name, name)
            result = _create(put_group, dry_run=dry_run)
        yield {"kind": "group", "name": f"{hub.name}/{name}", "state": "", "detail": ""} | result


def _create(create: Callable[[], object], *, dry_run: bool) -> Row:
    """The columns of a row that say what happened."""
    if dry_run:
        return {"state": "to be made"}
    try:
        create()
    except PenstockError as error:
        return {"state": "refused", "detail": str(error)}
    return {"state": "made"}
