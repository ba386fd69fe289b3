"""`penstock serve`: the service, from the flags to SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from penstock.service.config.settings import Settings
    from penstock.service.runtime_description import RuntimeDescription

log = logging.getLogger("penstock.serve")


_PublicHosts = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="Name that clients reach it by; repeatable"),
]
_Hubs = Annotated[
    list[str] | None, typer.Option(metavar="NAME[:PARTITIONS]", help="Create if absent")
]
_Units = Annotated[
    str | None, typer.Option(metavar="N", help="Enforce N units [default: unlimited]")
]
_Limits = Annotated[
    str | None,
    typer.Option(
        metavar="specification|current",
        help="256 KB publications and 2-32 partitions, or Azure's 1 MB and 1-32 "
        "[default: specification]",
    ),
]
_Flush = Annotated[
    str | None,
    typer.Option(metavar="disk|os", help="What an acknowledgement waits for [default: disk]"),
]
_Json = Annotated[
    bool,
    typer.Option(
        "--json", help="One JSON line on stdout, with keys and the admin token, when ready"
    ),
]


def serve(
    data: Annotated[
        Path | None, typer.Option(help="Data directory [default: ./penstock-data]")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="TOML file, or the official emulator's Config.json")
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to bind [default: 127.0.0.1]")] = None,
    public_host: _PublicHosts = None,
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
    hub: _Hubs = None,
    throughput_units: _Units = None,
    limits: _Limits = None,
    flush: _Flush = None,
    json: _Json = False,
    log_level: Annotated[
        str | None, typer.Option(metavar="LEVEL", help="debug, info, warning or error")
    ] = None,
) -> None:
    """Run Penstock.

    Every --*-port takes 0: any free one. On a terminal a banner shows addresses, connection
    strings and a portal link for one sign-in. Without a terminal and without --json the service
    logs one line `ready ...` and prints no key or token.
    """
    from penstock.io.event_loop import new_event_loop
    from penstock.model.clock import SystemClock
    from penstock.service import logging_setup
    from penstock.service.config.loader import load_settings

    settings = load_settings(
        flags={
            "data": data,
            "config": config,
            "host": host,
            "public_hosts": public_host,
            "amqp_port": amqp_port,
            "amqps_port": amqps_port,
            "https_port": https_port,
            "admin_port": admin_port,
            "portal_port": portal_port,
            "portal": False if no_portal else None,
            "hubs": hub,
            "throughput_units": throughput_units,
            "limits": limits,
            "flush": flush,
            "json": True if json else None,
            "log_level": log_level,
        },
        environ=os.environ,
    )
    logging_setup.set_up(settings.log_level, SystemClock().monotonic_ms)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_serve(settings))


async def _serve(settings: Settings) -> None:
    from penstock.model.clock import SystemClock
    from penstock.service.garbage_collection import GarbageCollection
    from penstock.service.wiring import Penstock

    stopping: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    loop = asyncio.get_running_loop()
    for wanted in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(wanted, _request_stop, stopping, wanted.name)
    first = not settings.data.exists()
    clock = SystemClock()
    began_ms = clock.monotonic_ms()
    service = Penstock(settings, clock=clock)
    facts = await service.start()
    collection = GarbageCollection(loop)
    collection.start()
    try:
        if settings.json:
            sys.stdout.write(facts.as_json() + "\n")
            sys.stdout.flush()
        if not settings.json and sys.stdout.isatty():
            # Imported late: the listeners are open before the banner's tables are loaded.
            from penstock.cli.server.banner import print_banner

            print_banner(facts, settings, service.sign_in_link(), first_start=first)
        else:
            took_ms = clock.monotonic_ms() - began_ms
            log.info("ready %s start_ms=%d", _ready_fields(facts), took_ms)
        log.info("stopping reason=%s", await stopping)
    finally:
        for wanted in (signal.SIGTERM, signal.SIGINT):
            with contextlib.suppress(ValueError):
                loop.remove_signal_handler(wanted)
        collection.close()
        await service.stop()
    log.info("stopped")


def _request_stop(stopping: asyncio.Future[str], reason: str) -> None:
    if not stopping.done():
        stopping.set_result(reason)


def _ready_fields(facts: RuntimeDescription) -> str:
    """Addresses only: log lines end up in journals and CI logs, which hold no keys or tokens."""
    from penstock import __version__

    fields = {
        "version": __version__,
        "namespace": facts.namespace,
        "amqp": facts.amqp,
        "amqps": facts.amqps,
        "https": facts.https,
        "admin": facts.admin,
        "portal": facts.portal,
        "data": facts.data,
        "pid": facts.pid,
    }
    return " ".join(f"{name}={_log_value(value)}" for name, value in fields.items())


def _log_value(value: object) -> str:
    """`-` means absent. Text with a blank is quoted, so that the line can be split."""
    text = "-" if value is None else str(value)
    return repr(text) if " " in text else text
