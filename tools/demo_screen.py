"""What `make demo` shows: a live table on a terminal, a line now and then elsewhere."""

from __future__ import annotations

from collections import deque
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

WINDOWS_SHOWN = 5
DEVICES_SHOWN = 12
EVERY_S = 5.0
RATE_S = 5.0
_PIPE_WIDTH = 120


class View:
    """The demo at one moment, from what its parts said."""

    def __init__(self, *, folder: str, devices: int, rate: float) -> None:
        self.folder = folder
        self.devices, self.rate = devices, rate
        self.endpoint = self.ui_url = ""
        self.seconds = 0.0
        self.sent = self.bytes = self.readings = 0
        self.sent_s = 0.0
        self.is_fleet_done = False
        self.is_ending = False
        self.rows = self.batches = self.late = 0
        self.batch_seconds: float | None = None
        self.lag: int | None = None
        self.state_rows: int | None = None
        self.first_row_s: float | None = None
        self.windows: dict[tuple[str, str], dict[str, Any]] = {}  # by start, then device
        self._sent: deque[tuple[float, int]] = deque(maxlen=64)
        self._read: deque[tuple[float, int]] = deque(maxlen=64)

    @property
    def counted(self) -> int:
        """Readings in all windows."""
        return sum(int(row["readings"]) for row in self.windows.values())

    @property
    def is_exact(self) -> bool:
        return self.is_fleet_done and self.counted == self.readings > 0

    @property
    def sent_rate(self) -> float:
        return _rate(self._sent)

    @property
    def read_rate(self) -> float:
        return _rate(self._read)

    def heard_fleet(self, said: dict[str, Any]) -> None:
        self.sent, self.bytes = int(said["sent"]), int(said["bytes"])
        self.readings, self.sent_s = int(said.get("readings", 0)), float(said["seconds"])
        self.is_fleet_done = bool(said.get("done"))
        self._sent.append((self.seconds, self.sent))

    def heard_pipeline(self, said: dict[str, Any]) -> None:
        match said.get("event"):
            case "started":
                self.ui_url = said["ui_url"] or ""
            case "progress":
                self.rows, self.late = said["rows_total"], said["late_rows"]
                self.batches = said["batch_id"] + 1
                self.batch_seconds, self.lag = said["batch_seconds"], said["lag_events"]
                self.state_rows = said["state_rows"]
                self._read.append((self.seconds, self.rows))
            case "row":
                row = said["row"]
                if self.first_row_s is None:
                    self.first_row_s = self.seconds
                self.windows[(row["from"], row["device"])] = row


class Screen:
    """Talk goes to stdout here: the demo has no other data."""

    def __init__(self) -> None:
        plain = Console()
        self.console = plain if plain.is_terminal else Console(width=_PIPE_WIDTH)
        self._live: Live | None = None
        self._told_s = -EVERY_S

    def __enter__(self) -> Screen:
        if self.console.is_terminal:
            self._live = Live(console=self.console, refresh_per_second=4, transient=True)
            self._live.start()
        else:
            self.console.print(
                "Penstock demo: a service, a fleet of devices and Spark, on this machine"
            )
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def show(self, view: View) -> None:
        if self._live is not None:
            self._live.update(_whole(view, self.console.height))
        elif self.console.is_terminal:
            return
        elif view.seconds - self._told_s >= EVERY_S:
            self._told_s = view.seconds
            self.console.print(_line(view), highlight=False)


def summary(view: View, *, is_kept: bool) -> None:
    """What happened, and where to look next; stays on the terminal."""
    console = Console() if Console().is_terminal else Console(width=_PIPE_WIDTH)
    console.print(_windows(view, DEVICES_SHOWN), "")
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    took = max(view.sent_s, 0.001)
    table.add_row(
        "sent",
        f"{view.sent:,} readings of {view.devices} devices through azure-eventhub, "
        f"{view.bytes / 1048576:.1f} MB in {view.sent_s:.0f} s: {view.sent / took:,.0f}/s",
    )
    table.add_row("read", f"{view.rows:,} by Spark, batches {view.batches}, lag now {view.lag}")
    verdict = (
        Text("every reading is in exactly one of them", "green")
        if view.is_exact
        else Text(f"{view.readings:,} readings were sent, {view.counted:,} are counted", "red")
    )
    table.add_row("windows", Text.assemble(f"{len(view.windows):,} by device: ", verdict))
    if view.first_row_s is not None:
        first = f"{view.first_row_s:.0f} s after the start of everything, Spark included"
        table.add_row("first result", first)
    table.add_row("took", f"{view.seconds:.0f} s")
    console.print(table, highlight=False)
    console.print("\n[bold]Look next[/]")
    for command, about in _next(view, is_kept):
        console.print(f"  [cyan]{command}[/]\n      {about}", highlight=False)


def _next(view: View, is_kept: bool) -> list[tuple[str, str]]:
    found = [
        (
            'make serve ARGS="--hub telemetry:4"',
            "your own service; it prints connection strings for any SDK and its portal's address",
        ),
        (
            ".venv/bin/penstock pipeline run examples/pipelines/windows.py",
            "the same pipeline on it, with a live display; its neighbours join, clean, enrich",
        ),
        (
            ".venv/bin/python examples/pipelines/fleet.py",
            "the fleet (PENSTOCK_CONNECTION_STRING says where to)",
        ),
        (
            "docs/guides/pipelines.md",
            "write a pipeline; docs/reference/spark.md has the format `eventhubs`",
        ),
    ]
    if is_kept:
        kept = f".venv/bin/penstock serve --data {view.folder}/data"
        found.insert(0, (kept, "this demo's events, kept; its logs lie beside them"))
    return found


def _whole(view: View, height: int) -> RenderableType:
    parts = Table(box=None, show_header=False, pad_edge=False)
    parts.add_column(style="bold", no_wrap=True)
    parts.add_column()
    ports = f"sb://{view.endpoint}, hub telemetry, 4 partitions" if view.endpoint else "starting …"
    parts.add_row("service", ports)
    fleet = f"{view.sent:,} sent, {view.sent_rate:,.0f}/s"
    done = "done, " if view.is_fleet_done else ""
    parts.add_row("fleet", f"{done}{view.devices} devices, azure-eventhub: {fleet}")
    parts.add_row("Spark", _spark(view) + (f" · UI {view.ui_url}" if view.ui_url else ""))
    title = Text.assemble(("Penstock demo", "bold cyan"), f"  {view.seconds:.0f} s")
    if view.is_ending:
        title.append("  stopping …", "yellow")
    room = max(3, min(DEVICES_SHOWN, height - 11))
    return Group(title, parts, Text(""), _windows(view, room))


def _spark(view: View) -> str:
    if not view.batches:
        return "first batch …" if view.ui_url else "starting …"
    lag = "–" if view.lag is None else f"{view.lag:,}"
    return (
        f"batch {view.batches - 1}, {view.rows:,} rows, {view.read_rate:,.0f}/s, lag {lag}, "
        f"batch time {view.batch_seconds or 0:.1f} s, state {view.state_rows or 0:,} rows"
    )


def _windows(view: View, devices_max: int) -> RenderableType:
    """The last windows side by side, average temperature and how many readings made it."""
    if not view.windows:
        return Text("no window yet", "dim")
    starts = sorted({start for start, _ in view.windows})[-WINDOWS_SHOWN:]
    devices = sorted({device for _, device in view.windows})
    title = f"average temperature (readings) by device and window; {len(view.windows):,} so far"
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("device")
    for start in starts:
        table.add_column(start[11:19], justify="right")
    for device in devices[:devices_max]:
        table.add_row(Text(device), *(_cell(view.windows.get((start, device))) for start in starts))
    if len(devices) > devices_max:
        table.add_row(Text(f"… {len(devices) - devices_max} more", "dim"))
    totals = [
        sum(int(row["readings"]) for (at, _), row in view.windows.items() if at == start)
        for start in starts
    ]
    table.add_row(Text("all readings", "bold"), *(Text(f"{total:,}", "bold") for total in totals))
    return Group(Text(title, "bold"), table)


def _cell(row: dict[str, Any] | None) -> Text:
    if row is None:
        return Text("")
    average = float(row["average"])
    style = "red" if average >= 24 else "yellow" if average >= 20 else "cyan"
    return Text.assemble((f"{average:.1f}", style), (f" ({row['readings']})", "dim"))


def _line(view: View) -> str:
    fleet = f"fleet {view.sent:,} sent ({view.sent_rate:,.0f}/s)"
    windows = f"{len(view.windows):,} windows with {view.counted:,} readings"
    return f"{view.seconds:5.0f} s  {fleet} · Spark {_spark(view)} · {windows}"


def _rate(looks: deque[tuple[float, int]]) -> float:
    """Of the last seconds."""
    while len(looks) > 2 and looks[-1][0] - looks[1][0] >= RATE_S:
        looks.popleft()
    if len(looks) < 2 or looks[-1][0] <= looks[0][0]:
        return 0.0
    return (looks[-1][1] - looks[0][1]) / (looks[-1][0] - looks[0][0])
