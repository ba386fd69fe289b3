"""What a person sees when Penstock has started: where it is, and the next three things to try."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.panel import Panel
from rich.syntax import Syntax
from rich.table import Table

from penstock import __version__
from penstock.kernels import KERNEL

if TYPE_CHECKING:
    from penstock.service.config.settings import Settings
    from penstock.service.runtime_description import RuntimeDescription


def print_banner(
    facts: RuntimeDescription, settings: Settings, sign_in_link: str | None, *, first_start: bool
) -> None:
    """Facts as a table; long strings are on lines of their own, so that they can be copied.
    For terminals only: the connection strings and the link are secrets."""
    console = Console(highlight=False, soft_wrap=True)
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    units = settings.throughput_units
    rows = [
        ("Namespace", facts.namespace),
        ("AMQP", f"{facts.amqp}  (plain, this machine only)" if facts.amqp else "off"),
        ("AMQP over TLS", f"{facts.amqps}  (CA: {facts.ca_file})"),
        ("HTTPS, WebSocket", facts.https),
        ("Administration", f"{facts.admin}/health"),
        ("Portal", facts.portal or "off"),
        ("Data", f"{facts.data}  (flush: {settings.flush})"),
        ("Throughput units", "unlimited (counted, not enforced)" if units is None else str(units)),
        ("Kernel", KERNEL),
    ]
    for name, value in rows:
        table.add_row(name, value)
    console.print(Panel.fit(table, title=f"Penstock {__version__}", border_style="cyan"))
    console.print("[bold]Connection string[/bold] (TLS)")
    console.out(facts.connection_string)
    if facts.emulator_connection_string is not None:
        console.print("[bold]Connection string[/bold] (plain TCP, for development)")
        console.out(facts.emulator_connection_string)
    if sign_in_link is not None:
        console.print("[bold]Portal sign-in[/bold] (works once, within 10 minutes)")
        console.out(sign_in_link)
        console.print("A new one: penstock portal url --sign-in", style="dim")
    if first_start:
        _print_first_steps(console, facts, settings)
    console.print("Ctrl-C stops it.", style="dim")


def _print_first_steps(console: Console, facts: RuntimeDescription, settings: Settings) -> None:
    string = facts.emulator_connection_string
    hubs = settings.namespaces[0].hubs
    if string is None or not hubs:
        return
    hub = hubs[0].name
    console.print("\n[bold]Three things to try[/bold]")
    steps = (
        (
            "1. Send with the official SDK (pip install azure-eventhub)",
            "from azure.eventhub import EventHubProducerClient, EventData\n"
            f'cs = "{string}"\n'
            f'p = EventHubProducerClient.from_connection_string(cs, eventhub_name="{hub}")\n'
            'with p: p.send_batch([EventData("hello"), EventData("world")])',
        ),
        (
            "2. Receive (Ctrl-C ends it)",
            "from azure.eventhub import EventHubConsumerClient\n"
            f'cs = "{string}"\n'
            f'c = EventHubConsumerClient.from_connection_string(cs, "$Default", '
            f'eventhub_name="{hub}")\n'
            "with c: c.receive(lambda p, e: print(p.partition_id, e.sequence_number, "
            'e.body_as_str()), starting_position="-1")',
        ),
    )
    for title, code in steps:
        console.print(f"[cyan]{title}[/cyan]")
        console.print(Syntax(code, "python", background_color="default", word_wrap=False))
    console.print("[cyan]3. Measure this machine[/cyan]")
    console.out(f"penstock bench send --hub {hub} --duration 5")
