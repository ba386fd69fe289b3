"""How `penstock pipeline run` looks: a live table on a terminal, lines without one, or JSON lines.

Rows that a pipeline shows are data and go to stdout. Everything else goes to stderr, except with
-o jsonl: then everything is a JSON line on stdout.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from penstock.cli.events.render import escape_control_characters as escape
from penstock.cli.output import (
    OutputFormat,
    console,
    format_bytes,
    format_seconds,
    print_message,
    table_style,
)

if TYPE_CHECKING:
    from penstock.spark.pipelines.runner import PipelineSnapshot, QuerySnapshot

_BLOCKS = "▁▂▃▄▅▆▇█"
_HISTORY_S = 30  # one bar per second
_REFRESHES_PER_S = 4
_STYLES = {"Running": "green", "Failed": "red", "Stopping": "yellow", "Starting": "cyan"}
_COLUMNS = ("query", "batch", "rows", "rows/s", "", "lag", "batch time", "state", "late")
_UNKNOWN = "–"


@contextmanager
def display(output: OutputFormat, *, every_s: float, is_quiet: bool) -> Iterator[PipelineDisplay]:
    """The display for an output format and the terminal. It is closed at the end of the block."""
    screen = console(stderr=True)
    if output is not OutputFormat.TABLE:
        yield JsonDisplay()
    elif not screen.is_terminal or is_quiet:
        yield LineDisplay(every_s=every_s, is_quiet=is_quiet)
    else:
        live = LiveDisplay(screen)
        try:
            yield live
        finally:
            live.close()


class PipelineDisplay:
    """A PipelineWatcher (penstock.spark.pipelines.runner) that also shows start and end."""

    _snapshot: PipelineSnapshot | None = None

    def show_starting(self, name: str, master: str) -> None: ...

    def show_started(self, ui_url: str | None, checkpoint: str | None) -> None: ...

    def saw(self, shot: PipelineSnapshot) -> None:
        self._snapshot = shot

    def rows(self, query: str, batch_id: int, rows: list[str]) -> None:
        for row in rows:
            typer.echo(row)

    def note(self, text: str) -> None:
        print_message(text)

    def show_ended(self) -> None:
        for text in summarize(self._snapshot):
            print_message(text)


class JsonDisplay(PipelineDisplay):
    """One object per line: `event` is starting, started, progress, row, note, state or ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # rows come in a thread of Spark
        self._state = ""

    def show_starting(self, name: str, master: str) -> None:
        self._print(event="starting", name=name, master=master)

    def show_started(self, ui_url: str | None, checkpoint: str | None) -> None:
        self._print(event="started", ui_url=ui_url, checkpoint=checkpoint)

    def saw(self, shot: PipelineSnapshot) -> None:
        super().saw(shot)
        if shot.state != self._state:
            self._state = shot.state
            self._print(event="state", state=shot.state, restarts=shot.restarts)
        for query in shot.queries:
            for batch in query.fresh:
                self._print(
                    event="progress",
                    query=query.name,
                    batch_id=batch.batch_id,
                    timestamp=batch.timestamp,
                    rows=batch.rows,
                    rows_total=query.rows,
                    bytes=batch.bytes,
                    rows_per_second=round(query.rows_per_second, 1),
                    batch_seconds=batch.seconds,
                    lag_events=batch.lag_events,
                    state_rows=batch.state_rows,
                    state_bytes=batch.state_bytes,
                    late_rows=query.late_rows,
                    watermark=batch.watermark,
                )

    def rows(self, query: str, batch_id: int, rows: list[str]) -> None:
        for row in rows:
            self._print(event="row", query=query, batch_id=batch_id, row=json.loads(row))

    def note(self, text: str) -> None:
        self._print(event="note", text=text)

    def show_ended(self) -> None:
        last = self._snapshot
        queries = [] if last is None else last.queries
        self._print(
            event="ended",
            state="" if last is None else last.state,
            seconds=0.0 if last is None else round(last.seconds, 3),
            rows_total=sum(query.rows for query in queries),
            batches=sum(query.batches for query in queries),
        )

    def _print(self, **fields: object) -> None:
        with self._lock:
            typer.echo(json.dumps(fields))


class LineDisplay(PipelineDisplay):
    """For log files: one line per query every few seconds."""

    def __init__(self, *, every_s: float, is_quiet: bool) -> None:
        self._every_s = every_s
        self._is_quiet = is_quiet
        self._printed_s = -every_s

    def show_starting(self, name: str, master: str) -> None:
        self._print(f"{name}: starting Spark ({master})")

    def show_started(self, ui_url: str | None, checkpoint: str | None) -> None:
        self._print(f"Spark's UI: {ui_url or 'on its server'}")
        self._print(_describe_checkpoint(checkpoint))

    def saw(self, shot: PipelineSnapshot) -> None:
        super().saw(shot)
        if shot.queries and shot.seconds - self._printed_s >= self._every_s:
            self._printed_s = shot.seconds
            for query in shot.queries:
                self._print(format_line(query))

    def show_ended(self) -> None:
        if not self._is_quiet:
            super().show_ended()

    def _print(self, text: str) -> None:
        if not self._is_quiet:
            print_message(text)


class LiveDisplay(PipelineDisplay):
    """A table that is updated in place, below everything else that is printed."""

    def __init__(self, screen: Console) -> None:
        self._screen = screen
        self._name, self._master = "", ""
        self._ui_url: str | None = None
        self._checkpoint: str | None = None
        self._history: dict[str, deque[float]] = {}
        self._history_s = 0.0
        self._started_s = time.monotonic()
        self._live: Live | None = None

    def show_starting(self, name: str, master: str) -> None:
        self._name, self._master = name, master
        self._live = Live(
            console=self._screen,
            get_renderable=self._render,
            refresh_per_second=_REFRESHES_PER_S,
            transient=True,
            redirect_stdout=False,
        )
        self._live.start()

    def show_started(self, ui_url: str | None, checkpoint: str | None) -> None:
        self._ui_url, self._checkpoint = ui_url or "on its server", checkpoint

    def saw(self, shot: PipelineSnapshot) -> None:
        super().saw(shot)
        if shot.seconds - self._history_s >= 1.0:
            self._history_s = shot.seconds
            for query in shot.queries:
                rates = self._history.setdefault(query.name, deque(maxlen=_HISTORY_S))
                rates.append(query.rows_per_second)

    def rows(self, query: str, batch_id: int, rows: list[str]) -> None:
        if not sys.stdout.isatty():
            super().rows(query, batch_id, rows)
        elif rows:
            self._screen.print(_rows_table(rows, f"{query}, batch {batch_id}"))

    def note(self, text: str) -> None:
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
        last = self._snapshot
        state = "Starting" if last is None else last.state
        head = Text.assemble(
            (escape(self._name), "bold"),
            "  ",
            (state, _STYLES.get(state, "")),
            f"  {format_seconds(time.monotonic() - self._started_s)}",
            f"  {escape(self._master)}",
        )
        if last is not None and last.restarts:
            head.append(f"  {last.restarts} restarts", "yellow")
        if self._ui_url is None:
            return Group(head, Text("  Spark is starting …", "dim"))
        about = f"  Spark's UI {self._ui_url} · {_describe_checkpoint(self._checkpoint)}"
        lines: list[RenderableType] = [head, Text(about, "dim")]
        if last is not None and last.queries:
            table = Table(**table_style())
            for name in _COLUMNS:
                table.add_column(name, justify="left" if name in ("query", "") else "right")
            for query in last.queries:
                table.add_row(*map(Text, self._cells(query)))
            lines.append(table)
            for query in last.queries:
                if query.last is None:
                    lines.append(Text(f"  {escape(query.name)}: {escape(query.message)}", "dim"))
        return Group(*lines)

    def _cells(self, query: QuerySnapshot) -> list[str]:
        last = query.last
        name = escape(query.name)
        if last is None:
            return [name, _UNKNOWN, "0", "0", "", _UNKNOWN, _UNKNOWN, _UNKNOWN, _UNKNOWN]
        return [
            name,
            f"{last.batch_id:,}",
            f"{query.rows:,}",
            f"{query.rows_per_second:,.0f}",
            sparkline(self._history.get(query.name, ())),
            _UNKNOWN if last.lag_events is None else f"{last.lag_events:,}",
            format_seconds(last.seconds),
            _format_state(query) or _UNKNOWN,
            f"{query.late_rows:,}" if query.late_rows else _UNKNOWN,
        ]


def format_line(query: QuerySnapshot) -> str:
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
    state = _format_state(query)
    if state:
        parts.append(f"state {state}")
    if query.late_rows:
        parts.append(f"{query.late_rows:,} late")
    return f"{escape(query.name)}: {', '.join(parts)}"


def summarize(snapshot: PipelineSnapshot | None) -> list[str]:
    """One sentence per query, and one for the pipeline."""
    if snapshot is None:
        return []
    texts = []
    for query in snapshot.queries:
        rows = "1 row" if query.rows == 1 else f"{query.rows:,} rows"
        batches = "1 batch" if query.batches == 1 else f"{query.batches:,} batches"
        late = f", {query.late_rows:,} of them late" if query.late_rows else ""
        texts.append(f"{escape(query.name)}: {rows} in {batches}{late}.")
    return [*texts, f"{snapshot.state} after {format_seconds(snapshot.seconds)}."]


def sparkline(values: Iterable[float]) -> str:
    """A bar per value; the highest is a full block."""
    bars = list(values)
    most = max(bars, default=0.0) or 1.0
    return "".join(_BLOCKS[min(7, int(value / most * 7.999))] for value in bars)


def _format_state(query: QuerySnapshot) -> str:
    """The size of the query's state; empty for a query without state."""
    last = query.last
    if last is None or last.state_rows is None:
        return ""
    return f"{last.state_rows:,} rows, {format_bytes(last.state_bytes)}"


def _describe_checkpoint(checkpoint: str | None) -> str:
    return f"checkpoint {checkpoint}" if checkpoint else "no --checkpoint: progress is not stored"


def _rows_table(rows: list[str], title: str) -> RenderableType:
    """The rows of a batch, each a JSON object."""
    records: list[dict[str, Any]] = [json.loads(row) for row in rows]
    table = Table(title=Text(escape(title)), title_justify="left", **table_style())
    names = list(dict.fromkeys(name for record in records for name in record))
    for name in names:
        is_number = all(isinstance(record.get(name), int | float) for record in records)
        table.add_column(Text(escape(name)), justify="right" if is_number else "left")
    for record in records:
        table.add_row(*(Text(_format_cell(record.get(name))) for name in names))
    return table


def _format_cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.2f}"
    return escape(value if isinstance(value, str) else json.dumps(value))
