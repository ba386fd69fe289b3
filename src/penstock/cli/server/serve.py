"""`penstock serve` and `penstock init`, and what `serve` prints when it has started."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.events_options import run
from penstock.cli.options import option
from penstock.cli.output import TABLE, Format, print_message, record_table

if TYPE_CHECKING:
    from penstock.service.config.settings import Settings
    from penstock.service.runtime_description import RuntimeDescription

log = logging.getLogger("penstock.serve")

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_EMULATOR_WARNING = (
    "emulator_mode host=%s: the key that the emulator publishes opens every address, without TLS"
)
_LOGGED = ("namespace", "amqp", "amqps", "https", "admin", "portal", "data", "pid")

Data = Annotated[Path | None, option("DIR", "Data directory [default: ./penstock-data]")]
Config = Annotated[Path | None, option("FILE", "TOML file, or the emulator's Config.json")]
PublicHosts = Annotated[
    list[str] | None, option("--public-host NAME", "Host name that clients use; repeatable")
]
Hubs = Annotated[
    list[str] | None, option("--hub NAME[:PARTITIONS]", "Event hub to create if absent")
]
Units = Annotated[str | None, option("N", "Throughput units to enforce [default: unlimited]")]
Limits = Annotated[
    str | None,
    option(
        "specification|current",
        "256 KB publications and 2-32 partitions, or Azure's 1 MB and 1-32 "
        "[default: specification]",
    ),
]
Flush = Annotated[
    str | None, option("disk|os", "What an acknowledgement waits for [default: disk]")
]
Json = Annotated[
    bool | None, option("--json", "When ready, print one JSON line with keys and the admin token")
]
LogLevel = Annotated[
    str | None, option("LEVEL", "Lowest level of log lines: debug, info, warning, error")
]
NoPortal = Annotated[bool | None, typer.Option(" /--no-portal", help="Run without the web portal")]


def serve(
    ctx: typer.Context,
    data: Data = None,
    config: Config = None,
    host: Annotated[str | None, option("ADDRESS", "Address to bind [default: 127.0.0.1]")] = None,
    public_hosts: PublicHosts = None,
    amqp_port: Annotated[int | None, option("N", "Plain AMQP [default: 5672]")] = None,
    amqps_port: Annotated[int | None, option("N", "AMQP over TLS [default: 5671]")] = None,
    https_port: Annotated[int | None, option("N", "HTTPS and WebSocket [default: 8443]")] = None,
    admin_port: Annotated[
        int | None, option("N", "Health and administration [default: 5300]")
    ] = None,
    portal_port: Annotated[int | None, option("N", "Web portal [default: 5380]")] = None,
    portal: NoPortal = None,
    hubs: Hubs = None,
    throughput_units: Units = None,
    limits: Limits = None,
    flush: Flush = None,
    json: Json = None,
    log_level: LogLevel = None,
) -> None:
    """Run the service.

    Every --*-port accepts 0 for any free port. On a terminal a banner shows addresses, connection
    strings and a link that signs in to the portal once. Without a terminal and without --json the
    service logs one line `ready ...` and prints no key or token.

    Examples:
        penstock serve
        penstock serve --data /var/lib/penstock --hub orders:8 --throughput-units 4
        penstock serve --config penstock.toml --json
    """
    from penstock.model.clock import SystemClock
    from penstock.service import logging_setup
    from penstock.service.config.loader import load_settings

    # The parameters have the names of the settings; None means that the flag is absent.
    settings = load_settings(flags=ctx.params, environ=os.environ)
    logging_setup.set_up(settings.log_level, SystemClock().monotonic_ms)
    run(_serve(settings))


async def _serve(settings: Settings) -> None:
    from penstock.model.clock import SystemClock
    from penstock.service.garbage_collection import GarbageCollection
    from penstock.service.wiring import Penstock

    loop = asyncio.get_running_loop()
    stopping: asyncio.Future[str] = loop.create_future()
    for number in _SIGNALS:
        loop.add_signal_handler(number, _request_stop, stopping, number.name)
    is_first_start = not settings.data.exists()
    clock = SystemClock()
    began_ms = clock.monotonic_ms()
    service = Penstock(settings, clock=clock)
    runtime = await service.start()
    collection = GarbageCollection(loop)
    collection.start()
    try:
        _notify_manager("READY=1")
        if settings.json:
            sys.stdout.write(runtime.as_json() + "\n")
            sys.stdout.flush()
        if not settings.json and sys.stdout.isatty():
            _print_banner(runtime, settings, service.sign_in_link(), is_first_start=is_first_start)
        else:
            took_ms = clock.monotonic_ms() - began_ms
            log.info("ready %s start_ms=%d", _format_ready_fields(runtime), took_ms)
        if settings.emulator:
            log.warning(_EMULATOR_WARNING, settings.host)
            log.info("Emulator Service is Successfully Up!")
        log.info("stopping reason=%s", await stopping)
        _notify_manager("STOPPING=1")
    finally:
        for number in _SIGNALS:
            with contextlib.suppress(ValueError):
                loop.remove_signal_handler(number)
        collection.close()
        await service.stop()
    log.info("stopped")


def _request_stop(stopping: asyncio.Future[str], reason: str) -> None:
    if not stopping.done():
        stopping.set_result(reason)


def _notify_manager(state: str) -> None:
    """Report the state to systemd (sd_notify(3)); its variable is absent elsewhere."""
    if path := os.environ.get("NOTIFY_SOCKET"):
        address = "\0" + path[1:] if path.startswith("@") else path
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as unix:
            unix.sendto(state.encode(), address)


def _format_ready_fields(runtime: RuntimeDescription) -> str:
    """Addresses only: log lines end up in journals and CI logs, which hold no keys or tokens."""
    from penstock import __version__

    fields = {"version": __version__} | {name: getattr(runtime, name) for name in _LOGGED}
    return " ".join(f"{name}={_format_log_value(value)}" for name, value in fields.items())


def _format_log_value(value: object) -> str:
    """`-` means absent. Text with a blank is quoted, so that the line can be split."""
    text = "-" if value is None else str(value)
    return repr(text) if " " in text else text


# --- banner ---------------------------------------------------------------------------------------


def _print_banner(
    runtime: RuntimeDescription,
    settings: Settings,
    sign_in_link: str | None,
    *,
    is_first_start: bool,
) -> None:
    """For terminals only: it holds secrets. Long strings have their own lines, to be copied."""
    # Imported late: the listeners are open before rich is loaded.
    from rich.console import Console
    from rich.panel import Panel

    from penstock import __version__

    console = Console(highlight=False, soft_wrap=True)
    units = settings.throughput_units
    rows = {
        "Namespace": runtime.namespace,
        "AMQP": f"{runtime.amqp}  (plain TCP)" if runtime.amqp else "off",
        "AMQP over TLS": f"{runtime.amqps}  (CA: {runtime.ca_file})",
        "HTTPS, WebSocket": runtime.https,
        "Administration": f"{runtime.admin}/health",
        "Portal": runtime.portal or "off",
        "Data": f"{runtime.data}  (flush: {settings.flush})",
        "Throughput units": "unlimited (counted, not enforced)" if units is None else str(units),
    }
    title = f"Penstock {__version__}"
    console.print(Panel.fit(record_table(rows, {}), title=title, border_style="cyan"))
    plain = runtime.emulator_connection_string
    if plain is not None:
        console.print("[bold]Connection string[/bold] (plain TCP)")
        console.out(plain)
    console.print("[bold]Connection string[/bold] (TLS)")
    console.out(runtime.connection_string)
    console.print("azure-eventhub for Python also needs these two arguments with it:", style="dim")
    console.out(f'custom_endpoint_address="sb://{runtime.amqps}"')
    console.out(f'connection_verify="{runtime.ca_file}"')
    if sign_in_link is not None:
        console.print("[bold]Portal sign-in[/bold] (works once, within 10 minutes)")
        console.out(sign_in_link)
        console.print("A new link: penstock portal url --sign-in", style="dim")
    hubs = settings.namespaces[0].hubs
    if is_first_start and hubs and plain is not None:
        hub = hubs[0].name
        console.print("\n[bold]Three things to try in another terminal[/bold]")
        console.out(f"penstock send {hub} --text hello --data {runtime.data}")
        console.out(f"penstock tail {hub} --from earliest --data {runtime.data}")
        console.out(f"penstock bench send --hub {hub} --duration 5 --data {runtime.data}")
    console.print("Ctrl-C stops the service.", style="dim")


# --- init -----------------------------------------------------------------------------------------


def init(
    data: Data = None,
    config: Config = None,
    hubs: Hubs = None,
    throughput_units: Units = None,
    output: Format = TABLE,
) -> None:
    """Create or update a data directory without serving it.

    It contains the certificate, the root policy with its key, the namespace and the event hubs, as
    after a first start of `penstock serve`. An existing directory is updated to the configuration.

    Examples:
        penstock init --data /var/lib/penstock --hub orders:8
    """
    from penstock.service.config.loader import load_settings

    flags = {"data": data, "config": config, "hubs": hubs, "throughput_units": throughput_units}
    settings = load_settings(flags=flags, environ=os.environ)
    is_update = (settings.data / "catalog.sqlite").exists()
    runtime = run(_create_data_directory(settings))
    record = {
        "data": runtime.data,
        "namespace": runtime.namespace,
        "hubs": [hub.name for hub in settings.namespaces[0].hubs],
        "policy": "RootManageSharedAccessKey",
        "ca_file": runtime.ca_file,
    }
    output.print_record(record)
    flag = "" if data is None else f" --data {data}"
    done = "Updated" if is_update else "Created"
    print_message(f"{done} the data directory. Next: penstock serve{flag}")


async def _create_data_directory(settings: Settings) -> RuntimeDescription:
    """Start the service and stop it, on loopback and free ports, so that no client connects."""
    import msgspec

    from penstock.service.wiring import Penstock

    ports = {"amqp_port": None, "amqps_port": 0, "https_port": 0, "admin_port": 0}
    service = Penstock(msgspec.structs.replace(settings, host="127.0.0.1", **ports))
    runtime = await service.start()
    await service.stop()
    return runtime
