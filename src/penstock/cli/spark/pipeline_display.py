"""How a running pipeline looks: a live table on a terminal, lines without one, or JSON lines.

Rows that a pipeline shows are data and go to stdout; everything else goes to stderr. With JSON
lines everything is a line on stdout, with its kind in `event`.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec
import typer

from penstock.cli.output import (
    TABLE,
    OutputFormat,
    console,
    format_bytes,
    format_seconds,
    print_message,
    table_style,
)
from penstock.formats.body_view import escape_line as escape

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

    from penstock.spark.pipelines.runner import PipelineSnapshot, QuerySnapshot

_BARS = "▁▂▃▄▅▆▇█"
_SPARKLINE_WIDTH = 30
_REFRESH_PER_S = 4
_STYLES = {"Running": "green", "Failed": "red", "Stopping": "yellow", "Starting": "cyan"}
_COLUMNS = ("query", "batch", "rows", "rows/s", "", "lag", "batch time", "state", "late")


def open_display(output: OutputFormat, *, every_s: float, is_quiet: bool) -> PipelineDisplay:
    if output is not TABLE:
        return JsonDisplay()
    screen = console(stderr=True)
    if not screen.is_terminal or is_quiet:
        return PipelineDisplay(every_s=every_s, is_quiet=is_quiet)
    return LiveDisplay(screen)


class PipelineDisplay:
    """For logs: a line per query every few seconds. A PipelineWatcher of pipelines/runner.py."""

    def __init__(self, *, every_s: float = 0.0, is_quiet: bool = False) -> None:
        self._every_s = every_s
        self._is_quiet = is_quiet
        self._shown_s = -every_s
        self._snapshot: PipelineSnapshot | None = None

    def show_starting(self, name: str, master: str) -> None:
        self._print(f"{name}: starting Spark ({master})")

    def show_started(self, ui_url: str | None, checkpoint: str | None) -> None:
        self._print(f"Spark's UI: {ui_url or 'on its server'}")
        self._print(_describe_checkpoint(checkpoint))

    def show_snapshot(self, snapshot: PipelineSnapshot) -> None:
        self._snapshot = snapshot
        if snapshot.queries and snapshot.seconds - self._shown_s >= self._every_s:
            self._shown_s = snapshot.seconds
            for query in snapshot.queries:
                self._print(_format_query(query))

    def show_rows(self, query: str, batch_id: int, rows: list[str]) -> None:
        for row in rows:
            typer.echo(row)

    def show_message(self, text: str) -> None:
        print_message(text)

    def close(self) -> None:
        """Release the terminal."""

    def show_ended(self) -> None:
        snapshot = self._snapshot
        if snapshot is None:
            return
        for query in snapshot.queries:
            rows = "1 row" if query.rows == 1 else f"{query.rows:,} rows"
            batches = "1 batch" if query.batches == 1 else f"{query.batches:,} batches"
            late = f", {query.late_rows:,} of them late" if query.late_rows else ""
            self._print(f"{escape(query.name)}: {rows} in {batches}{late}.")
        self._print(f"{snapshot.state} after {format_seconds(snapshot.seconds)}.")

    def _print(self, text: str) -> None:
        if not self._is_quiet:
            print_message(text)


class JsonDisplay(PipelineDisplay):
    """One object per line: `event` is starting, started, progress, row, note, state or ended."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()  # rows are shown by one of Spark's threads
        self._state = ""

    def show_starting(self, name: str, master: str) -> None:
        self._print_event("starting", name=name, master=master)

    def show_started(self, ui_url: str | None, checkpoint: str | None) -> None:
        self._print_event("started", ui_url=ui_url, checkpoint=checkpoint)

    def show_snapshot(self, snapshot: PipelineSnapshot) -> None:
        self._snapshot = snapshot
        if snapshot.state != self._state:
            self._state = snapshot.state
            self._print_event("state", state=snapshot.state, restarts=snapshot.restarts)
        for query in snapshot.queries:
            for batch in query.new_batches:
                fields = msgspec.structs.asdict(batch)
                fields |= {
                    "batch_seconds": fields.pop("seconds"),
                    "rows_total": query.rows,
                    "rows_per_second": round(query.rows_per_second, 1),
                    "late_rows": query.late_rows,
                }
                self._print_event("progress", query=query.name, **fields)

    def show_rows(self, query: str, batch_id: int, rows: list[str]) -> None:
        for row in rows:
            self._print_event("row", query=query, batch_id=batch_id, row=json.loads(row))

    def show_message(self, text: str) -> None:
        self._print_event("note", text=text)

    def show_ended(self) -> None:
        snapshot = self._snapshot
        queries = [] if snapshot is None else snapshot.queries
        self._print_event(
            "ended",
            state="" if snapshot is None else snapshot.state,
            seconds=0.0 if snapshot is None else round(snapshot.seconds, 3),
            rows_total=sum(query.rows for query in queries),
            batches=sum(query.batches for query in queries),
        )

    def _print_event(self, event: str, **fields: object) -> None:
        with self._lock:
            typer.echo(json.dumps({"event": event, **fields}))


class LiveDisplay(PipelineDisplay):
    """A table that stays at the bottom of the terminal, below everything that is printed."""

    def __init__(self, screen: Any) -> None:
        super().__init__()
        self._screen = screen
        self._name, self._master = "", ""
        self._ui_url: str | None = None
        self._checkpoint: str | None = None
        self._rates: dict[str, deque[float]] = {}  # per query, one per second
        self._rates_at_s = 0.0
        self._started_s = time.monotonic()
        self._live: Live | None = None

    def show_starting(self, name: str, master: str) -> None:
        from rich.live import Live

        self._name, self._master = name, master
        self._live = Live(
            console=self._screen,
            get_renderable=self._render,
            refresh_per_second=_REFRESH_PER_S,
            transient=True,
            redirect_stdout=False,
        )
        self._live.start()

    def show_started(self, ui_url: str | None, checkpoint: str | None) -> None:
        self._ui_url, self._checkpoint = ui_url or "on its server", checkpoint

    def show_snapshot(self, snapshot: PipelineSnapshot) -> None:
        self._snapshot = snapshot
        if snapshot.seconds - self._rates_at_s >= 1.0:
            self._rates_at_s = snapshot.seconds
            for query in snapshot.queries:
                rates = self._rates.setdefault(query.name, deque(maxlen=_SPARKLINE_WIDTH))
                rates.append(query.rows_per_second)

    def show_rows(self, query: str, batch_id: int, rows: list[str]) -> None:
        if not sys.stdout.isatty():
            super().show_rows(query, batch_id, rows)
        elif rows:
            table = _rows_table([json.loads(row) for row in rows], f"{query}, batch {batch_id}")
            self._screen.print(table)

    def show_message(self, text: str) -> None:
        from rich.text import Text

        for line in text.splitlines():
            self._screen.print(Text(escape(line), "yellow"))

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def show_ended(self) -> None:
        self.close()
        super().show_ended()

    def _render(self) -> RenderableType:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        snapshot = self._snapshot
        state = "Starting" if snapshot is None else snapshot.state
        seconds = format_seconds(time.monotonic() - self._started_s)
        head = Text.assemble(
            (escape(self._name), "bold"),
            "  ",
            (state, _STYLES.get(state, "")),
            f"  {seconds}  {escape(self._master)}",
        )
        if snapshot is not None and snapshot.restarts:
            head.append(f"  {snapshot.restarts} restarts", "yellow")
        if self._ui_url is None:
            return Group(head, Text("  Spark is starting …", "dim"))
        checkpoint = _describe_checkpoint(self._checkpoint)
        about = Text(f"  Spark's UI {self._ui_url} · {checkpoint}", "dim")
        if snapshot is None or not snapshot.queries:
            return Group(head, about)
        table = Table(**table_style())
        for name in _COLUMNS:
            table.add_column(name, justify="left" if name in ("query", "") else "right")
        for query in snapshot.queries:
            bars = sparkline(self._rates.get(query.name, ()))
            table.add_row(*(Text(cell) for cell in _query_cells(query, bars)))
        waiting = [
            Text(f"  {escape(query.name)}: {escape(query.message)}", "dim")
            for query in snapshot.queries
            if query.last is None
        ]
        return Group(head, about, table, *waiting)


def _query_cells(query: QuerySnapshot, bars: str) -> list[str]:
    last = query.last
    if last is None:
        return [escape(query.name), "–", "0", "0", "", "–", "–", "–", "–"]
    return [
        escape(query.name),
        f"{last.batch_id:,}",
        f"{query.rows:,}",
        f"{query.rows_per_second:,.0f}",
        bars,
        "–" if last.lag_events is None else f"{last.lag_events:,}",
        format_seconds(last.seconds),
        _format_state(query) or "–",
        f"{query.late_rows:,}" if query.late_rows else "–",
    ]


def _format_query(query: QuerySnapshot) -> str:
    """windows: batch 12, 48,000 rows, 1,200/s, lag 0, batch time 0.6s, state 400 rows, 1.2 MB"""
    last = query.last
    if last is None:
        return f"{escape(query.name)}: {query.state.lower()} ({escape(query.message)})"
    parts = [
        f"batch {last.batch_id:,}",
        f"{query.rows:,} rows",
        f"{query.rows_per_second:,.0f}/s",
        "lag unknown" if last.lag_events is None else f"lag {last.lag_events:,}",
        f"batch time {format_seconds(last.seconds)}",
    ]
    if state := _format_state(query):
        parts.append(f"state {state}")
    if query.late_rows:
        parts.append(f"{query.late_rows:,} late")
    return f"{escape(query.name)}: {', '.join(parts)}"


def _format_state(query: QuerySnapshot) -> str:
    if query.last is None or query.last.state_rows is None:
        return ""
    return f"{query.last.state_rows:,} rows, {format_bytes(query.last.state_bytes)}"


def sparkline(values: Iterable[float]) -> str:
    """The newest value at the right, the highest one a full block."""
    numbers = list(values)
    most = max(numbers, default=0.0) or 1.0
    return "".join(_BARS[min(7, int(number / most * 7.999))] for number in numbers)


def _describe_checkpoint(checkpoint: str | None) -> str:
    return f"checkpoint {checkpoint}" if checkpoint else "no --checkpoint: progress is not stored"


def _rows_table(rows: list[dict[str, Any]], title: str) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    names = list(dict.fromkeys(name for row in rows for name in row))
    table = Table(title=Text(escape(title)), title_justify="left", **table_style())
    for name in names:
        is_number = all(isinstance(row.get(name), int | float) for row in rows)
        table.add_column(Text(escape(name)), justify="right" if is_number else "left")
    for row in rows:
        table.add_row(*(Text(_format_cell(row.get(name))) for name in names))
    return table


def _format_cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.2f}"
    return escape(value if isinstance(value, str) else json.dumps(value))
