"""`penstock serve`: one process, from the flags to SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from penstock.service.settings import Settings


def serve(
    data: Annotated[
        Path | None, typer.Option(help="Data directory [default: ./penstock-data]")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="TOML file, or the official emulator's Config.json")
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to bind [default: 127.0.0.1]")] = None,
    amqp_port: Annotated[int | None, typer.Option(help="Plain AMQP [default: 5672]")] = None,
    amqps_port: Annotated[int | None, typer.Option(help="AMQP over TLS [default: 5671]")] = None,
    https_port: Annotated[
        int | None, typer.Option(help="HTTPS and WebSocket [default: 8443]")
    ] = None,
    admin_port: Annotated[
        int | None, typer.Option(help="Health and administration [default: 5300]")
    ] = None,
    portal_port: Annotated[int | None, typer.Option(help="The web portal [default: 5380]")] = None,
    no_portal: Annotated[bool, typer.Option("--no-portal", help="Without the web portal")] = False,
    hub: Annotated[
        list[str] | None, typer.Option(metavar="NAME[:PARTITIONS]", help="Create if absent")
    ] = None,
    throughput_units: Annotated[
        str | None, typer.Option(metavar="N", help="Enforce N units [default: unlimited]")
    ] = None,
    flush: Annotated[
        str | None,
        typer.Option(metavar="disk|os", help="What an acknowledgement waits for [default: disk]"),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="One JSON line on stdout instead of the banner")
    ] = False,
    log_level: Annotated[
        str | None, typer.Option(metavar="LEVEL", help="debug, info, warning or error")
    ] = None,
) -> None:
    """Run Penstock.

    Every --*-port takes 0: any free one.
    """
    from penstock.model.clock import SystemClock
    from penstock.service import logs
    from penstock.service.config import load_settings

    settings = load_settings(
        flags={
            "data": data,
            "config": config,
            "host": host,
            "amqp_port": amqp_port,
            "amqps_port": amqps_port,
            "https_port": https_port,
            "admin_port": admin_port,
            "portal_port": portal_port,
            "portal": False if no_portal else None,
            "hubs": hub,
            "throughput_units": throughput_units,
            "flush": flush,
            "json": True if json else None,
            "log_level": log_level,
        },
        environ=os.environ,
    )
    logs.set_up(settings.log_level, SystemClock().monotonic_ms)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_serve(settings))


async def _serve(settings: Settings) -> None:
    from penstock.service.wiring import Penstock

    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for wanted in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(wanted, stopping.set)
    first = not settings.data.exists()
    service = Penstock(settings)
    facts = await service.start()
    try:
        if settings.json:
            sys.stdout.write(facts.as_json() + "\n")
            sys.stdout.flush()
        else:
            # Imported late: the doors are open before the tables of the banner are loaded.
            from penstock.cli.banner import print_banner

            print_banner(facts, settings, first_start=first)
        await stopping.wait()
    finally:
        for wanted in (signal.SIGTERM, signal.SIGINT):
            with contextlib.suppress(ValueError):
                loop.remove_signal_handler(wanted)
        await service.stop()


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where it is installed (performance.md 3); the standard loop works too."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
