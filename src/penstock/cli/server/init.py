"""`penstock init`: everything that a first start makes, without the doors staying open."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from penstock.cli.output import Format, OutputFormat, print_message, print_record

if TYPE_CHECKING:
    from penstock.service.config.settings import Settings
    from penstock.service.runtime_description import RuntimeDescription


def init(
    data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="[default: ./penstock-data]")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="TOML file, or the official emulator's Config.json")
    ] = None,
    hub: Annotated[
        list[str] | None, typer.Option(metavar="NAME[:PARTITIONS]", help="Create if absent")
    ] = None,
    throughput_units: Annotated[
        str | None, typer.Option(metavar="N", help="Enforce N units [default: unlimited]")
    ] = None,
    output: Format = OutputFormat.TABLE,
) -> None:
    """Make a data directory ready, without serving it.

    Certificate, root policy with its key, namespace and event hubs, as `penstock serve` makes
    them on its first start. One that is ready already is brought up to the configuration.
    """
    from penstock.io.event_loop import new_event_loop
    from penstock.service.config.loader import load_settings

    settings = load_settings(
        flags={
            "data": data,
            "config": config,
            "hubs": hub,
            "throughput_units": throughput_units,
        },
        environ=os.environ,
    )
    was_there = (settings.data / "catalog.sqlite").exists()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        facts = runner.run(_create_data_directory(settings))
    first = settings.namespaces[0]
    record = {
        "data": facts.data,
        "namespace": facts.namespace,
        "hubs": [each.name for each in first.hubs],
        "policy": "RootManageSharedAccessKey",
        "ca_file": facts.ca_file,
    }
    print_record(record, output)
    place = "" if data is None else f" --data {data}"
    state = "was ready, and is up to date" if was_there else "is ready"
    print_message(f"The data directory {state}. Next: penstock serve{place}")


async def _create_data_directory(settings: Settings) -> RuntimeDescription:
    """On loopback and any port, whatever the configuration says: nobody shall come in yet."""
    from penstock.service.wiring import Penstock

    quiet = msgspec.structs.replace(
        settings,
        host="127.0.0.1",
        amqp_port=None,
        amqps_port=0,
        https_port=0,
        admin_port=0,
    )
    service = Penstock(quiet)
    facts = await service.start()
    await service.stop()
    return facts
