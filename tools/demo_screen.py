"""What `make demo` shows: a live table on a terminal, lines elsewhere. There and here no two
seconds pass without a new figure."""

from __future__ import annotations

import itertools
import json
from collections import deque
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from penstock.capture.status import CaptureStatus

WINDOWS_SHOWN = 5
DEVICES_SHOWN = 12
NOTES_SHOWN = 6
EVERY_S = 1.5
RATE_S = 5.0
_PIPE_WIDTH = 120
_BARS = "▁▂▃▄▅▆▇█"
_BARS_SHOWN = 20


class View:
    """The demo at one moment, from what its parts said."""

    def __init__(self, *, folder: str, devices: int, rate: float) -> None:
        self.folder = folder
        self.devices, self.rate = devices, rate
        self.endpoint = self.ui_url = self.portal = ""
        self.seconds = 0.0
        self.notes: list[tuple[float, str]] = []
        self.is_down = False
        self.restart_s: float | None = None
        self.sent = self.bytes = self.readings = 0
        self.sent_s = 0.0
        self.newest = ""
        self.is_fleet_done = False
        self.is_ending = False
        self.rows = self.batches = self.late = 0
        self.batch_seconds: float | None = None
        self.lag: int | None = None
        self.state_rows: int | None = None
        self.first_row_s: float | None = None
        self.windows: dict[tuple[str, str], dict[str, Any]] = {}  # by start, then device
        self.capture_state = ""
        self.captured = self.behind = 0
        self._files: set[Path] = set()
        # Of the check at the end.
        self.read_back = self.stored = self.acknowledged = self.lost = self.repeated = 0
        self._sent: deque[tuple[float, int]] = deque(maxlen=64)
        self._read: deque[tuple[float, int]] = deque(maxlen=64)

    @property
    def counted(self) -> int:
        """Readings in all windows."""
        return sum(int(row["readings"]) for row in self.windows.values())

    @property
    def is_exact(self) -> bool:
        is_safe = self.acknowledged > 0 and self.lost == 0
        return is_safe and self.is_fleet_done and self.counted == self.stored

    @property
    def sent_rate(self) -> float:
        return _rate(self._sent)

    @property
    def read_rate(self) -> float:
        return _rate(self._read)

    def sent_bars(self) -> str:
        """The last seconds of the fleet, a bar for each."""
        looks = list(self._sent)[-_BARS_SHOWN - 1 :]
        rates = [
            (later[1] - sooner[1]) / max(later[0] - sooner[0], 0.1)
            for sooner, later in itertools.pairwise(looks)
        ]
        most = max([*rates, self.rate])
        return "".join(_BARS[min(7, round(7 * rate / most))] for rate in rates)

    def note(self, text: str) -> None:
        """A step, which stays visible."""
        self.notes.append((self.seconds, text))

    def heard_fleet(self, said: dict[str, Any]) -> None:
        self.sent, self.bytes = int(said["sent"]), int(said["bytes"])
        self.readings, self.sent_s = int(said.get("readings", 0)), float(said["seconds"])
        self.is_fleet_done = bool(said.get("done"))
        if newest := said.get("newest"):
            reading = json.loads(newest)
            self.newest = f"{reading['device']} {reading['temperature']:.1f} °C"
        self._sent.append((self.seconds, self.sent))

    def heard_pipeline(self, said: dict[str, Any]) -> None:
        match said.get("event"):
            case "started":
                self.ui_url = said["ui_url"] or "-"
                self.note("Spark has started")
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

    def heard_capture(self, status: CaptureStatus) -> None:
        self.capture_state, self.behind = status.state, status.backlog_events

    def look_for_files(self, directory: Path) -> None:
        """What Capture has written so far."""
        for file in sorted(directory.rglob("*.parquet")):
            if file not in self._files:
                self._files.add(file)
                events = _events(file)
                self.captured += events
                name = file.relative_to(directory)
                self.note(f"Capture wrote {events:,} events: {name}")

    @property
    def files(self) -> int:
        return len(self._files)


class Screen:
    """Writes to stdout: the demo has no other data."""

    def __init__(self) -> None:
        plain = Console()
        self.console = plain if plain.is_terminal else Console(width=_PIPE_WIDTH)
        self._live: Live | None = None
        self._line_s = -EVERY_S
        self._notes = 0

    def __enter__(self) -> Screen:
        if self.console.is_terminal:
            self._live = Live(console=self.console, refresh_per_second=4, transient=True)
            self._live.start()
        else:
            self.console.print("Penstock demo: broker, portal, fleet, Spark, Capture, kill -9")
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def say_portal(self, view: View) -> None:
        """A link works once, so each one stays on the terminal."""
        self.console.print(
            f"Portal with live charts: {view.portal}", soft_wrap=True, highlight=False
        )

    def show(self, view: View) -> None:
        if self._live is not None:
            self._live.update(_whole(view, self.console.height))
        elif not self.console.is_terminal:
            for at_s, text in view.notes[self._notes :]:
                self.console.print(f"{at_s:5.1f} s  * {text}", soft_wrap=True, highlight=False)
            self._notes = len(view.notes)
            if view.seconds - self._line_s >= EVERY_S:
                self._line_s = view.seconds
                self.console.print(_line(view), soft_wrap=True, highlight=False)


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
        f"{view.acknowledged:,} readings of {view.devices} devices acknowledged, through "
        f"azure-eventhub, {view.bytes / 1048576:.1f} MB in {view.sent_s:.0f} s: "
        f"{view.acknowledged / took:,.0f}/s",
    )
    if view.restart_s is not None:
        table.add_row("kill -9", f"the broker was ready again {view.restart_s:.1f} s later")
    again = f"; {view.repeated:,} sent again by the SDK, whose first answer was lost"
    table.add_row(
        "read back",
        Text.assemble(
            f"{view.stored:,} events: ",
            (f"{view.lost:,} lost", "red" if view.lost else "bold green"),
            again if view.repeated else "",
        ),
    )
    verdict = (
        Text("every stored reading is in exactly one of them", "green")
        if view.is_exact
        else Text(f"{view.stored:,} readings are stored, {view.counted:,} are counted", "red")
    )
    windows = Text.assemble(f"{len(view.windows):,} windows in {view.batches} batches: ", verdict)
    table.add_row("Spark", windows)
    if view.capture_state:
        rest = view.stored - view.captured
        more = f"; {rest:,} in windows that were still open" if rest else ""
        files = f"{view.captured:,} events in {view.files:,} Parquet files{more}"
        table.add_row("Capture", files)
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
            "the same pipeline on it, with a live display; other examples are beside it",
        ),
        (
            ".venv/bin/python examples/pipelines/fleet.py",
            "the fleet (PENSTOCK_CONNECTION_STRING says where to)",
        ),
        (
            "docs/guides/pipelines.md",
            "write a pipeline; docs/guides/capture.md has Capture",
        ),
    ]
    if is_kept:
        kept = f".venv/bin/penstock serve --data {view.folder}/data"
        found.insert(0, (kept, "this demo's events, kept; logs and captured files are beside them"))
    return found


def _whole(view: View, height: int) -> RenderableType:
    parts = Table(box=None, show_header=False, pad_edge=False)
    parts.add_column(style="bold", no_wrap=True)
    parts.add_column(no_wrap=True)
    parts.add_row("broker", _broker(view))
    parts.add_row("fleet", _fleet(view))
    parts.add_row("Spark", _spark(view))
    parts.add_row("Capture", _capture(view))
    title = Text.assemble(("Penstock demo", "bold cyan"), f"  {view.seconds:.1f} s")
    if view.is_ending:
        title.append("  stopping …", "yellow")
    elif view.is_down:
        title.append("  the broker is down", "bold red")
    notes = [
        Text.assemble((f"{at_s:6.1f} s  ", "dim"), text) for at_s, text in view.notes[-NOTES_SHOWN:]
    ]
    for note in notes:
        note.no_wrap, note.overflow = True, "ellipsis"
    room = max(3, min(DEVICES_SHOWN, height - 12 - NOTES_SHOWN))
    return Group(title, parts, Text(""), *notes, Text(""), _windows(view, room))


def _broker(view: View) -> str:
    if not view.endpoint:
        return "starting …"
    again = "" if view.restart_s is None else f" · kill -9, back after {view.restart_s:.1f} s"
    return f"sb://{view.endpoint}, hub telemetry, 4 partitions{again}"


def _fleet(view: View) -> str:
    if view.read_back:
        checked = f", {view.lost:,} lost" if view.acknowledged else ""
        return f"{view.sent:,} acknowledged, {view.read_back:,} read back{checked}"
    done = "done, " if view.is_fleet_done else ""
    said = f"{done}{view.sent:,} acknowledged, {view.sent_rate:,.0f}/s {view.sent_bars()}"
    return f"{said}  {view.newest}"


def _spark(view: View) -> str:
    if not view.batches:
        return f"first batch … · UI {view.ui_url}" if view.ui_url else "starting …"
    lag = "–" if view.lag is None else f"{view.lag:,}"
    return (
        f"batch {view.batches - 1}, {view.rows:,} rows, {view.read_rate:,.0f}/s, lag {lag}, "
        f"{view.batch_seconds or 0:.1f} s, {view.counted:,} in {len(view.windows):,} windows"
    )


def _capture(view: View) -> str:
    if not view.capture_state:
        return "off"
    files = f"{view.files:,} files, {view.captured:,} events"
    return f"{view.capture_state.lower()}, {files}, {view.behind:,} in open windows"


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
    """Short enough for a line of a log."""
    fleet = f"{view.sent:,} acknowledged, {view.sent_rate:,.0f}/s"
    if view.read_back:
        fleet = f"{view.sent:,} acknowledged, {view.read_back:,} read back"
    spark = "Spark starts" if not view.ui_url else "Spark: first batch"
    if view.batches:
        spark = f"Spark {view.counted:,} in {len(view.windows):,} windows"
    parts = [fleet, spark if view.batches or not view.newest else f"{spark}, {view.newest}"]
    if view.capture_state:
        parts.append(f"Capture {view.captured:,} in {view.files} files")
    return f"{view.seconds:5.1f} s  {' · '.join(parts)}"


def _events(parquet: Path) -> int:
    from pyarrow.parquet import read_metadata  # not before it is needed: it is large

    return int(read_metadata(parquet).num_rows)


def _rate(looks: deque[tuple[float, int]]) -> float:
    """Of the last seconds."""
    if len(looks) < 2:
        return 0.0
    last = looks[-1]
    first = next((look for look in looks if last[0] - look[0] <= RATE_S), last)
    return (last[1] - first[1]) / (last[0] - first[0]) if last[0] > first[0] else 0.0
