"""How a running pipeline looks: live on a terminal, a line now and then without, JSON for scripts.

Rows that a pipeline shows are data and go to stdout; all else is talk and goes to stderr, unless
JSON lines are wanted: then everything is a line of stdout with its kind.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import typer

from penstock.cli.output import (
    OutputFormat,
    console,
    format_bytes,
    format_seconds,
    print_message,
    table_style,
)
from penstock.formats.body_view import escape_line as inert

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

    from penstock.spark.pipelines.runner import PipelineSnapshot, QuerySnapshot

_SPARKS = "▁▂▃▄▅▆▇█"
_SPARK_WIDTH = 30
_REFRESH = 4  # times a second
_STYLES = {"Running": "green", "Failed": "red", "Stopping": "yellow", "Starting": "cyan"}


class PipelineDisplay(Protocol):
    """A Watcher (penstock.spark.pipelines.runner), and what comes before and after."""

    def show_starting(self, name: str, master: str) -> None: ...

    def show_started(self, ui_url: str | None, checkpoint: str | None) -> None: ...

    def saw(self, shot: PipelineSnapshot) -> None: ...

    def rows(self, query: str, batch_id: int, rows: list[str]) -> None: ...

    def note(self, text: str) -> None: ...

    def show_ended(self) -> None: ...


@contextmanager
def display(output: OutputFormat, *, every_s: float, is_quiet: bool) -> Iterator[PipelineDisplay]:
    if output is not OutputFormat.TABLE:
        yield JsonDisplay()
        return
    screen = console(stderr=True)
    if not screen.is_terminal or is_quiet:
        yield LineDisplay(every_s=every_s, is_quiet=is_quiet)
        return
    live = LiveDisplay(screen)
    try:
        yield live
    finally:
        live.close()


class JsonDisplay:
    """One object a line: `event` is starting, started, progress, row, note, state or ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._state = ""
        self._shot: PipelineSnapshot | None = None

    def show_starting(self, name: str, master: str) -> None:
        self._print(event="starting", name=name, master=master)

    def show_started(self, ui_url: str | None, checkpoint: str | None) -> None:
        self._print(event="started", ui_url=ui_url, checkpoint=checkpoint)

    def saw(self, shot: PipelineSnapshot) -> None:
        self._shot = shot
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
        shot = self._shot
        queries = [] if shot is None else shot.queries
        self._print(
            event="ended",
            state="" if shot is None else shot.state,
            seconds=0.0 if shot is None else round(shot.seconds, 3),
            rows_total=sum(each.rows for each in queries),
            batches=sum(each.batches for each in queries),
        )

    def _print(self, **fields: object) -> None:
        with self._lock:
            typer.echo(json.dumps(fields))


class LineDisplay:
    """For logs: a line of each query every few seconds."""

    def __init__(self, *, every_s: float, is_quiet: bool) -> None:
        self._every_s = every_s
        self._is_quiet = is_quiet
        self._told_s = -every_s
        self._shot: PipelineSnapshot | None = None

    def show_starting(self, name: str, master: str) -> None:
        self._tell(f"{name}: starting Spark ({master})")

    def show_started(self, ui_url: str | None, checkpoint: str | None) -> None:
        self._tell(f"Spark's UI: {ui_url or 'its server has it'}")
        self._tell(_checkpoint(checkpoint))

    def saw(self, shot: PipelineSnapshot) -> None:
        self._shot = shot
        if shot.queries and shot.seconds - self._told_s >= self._every_s:
            self._told_s = shot.seconds
            for each in shot.queries:
                self._tell(line(each))

    def rows(self, query: str, batch_id: int, rows: list[str]) -> None:
        for row in rows:
            typer.echo(row)

    def note(self, text: str) -> None:
        print_message(text)

    def show_ended(self) -> None:
        for text in summary(self._shot):
            self._tell(text)

    def _tell(self, text: str) -> None:
        if not self._is_quiet:
            print_message(text)


class LiveDisplay:
    """A table that stays where it is, below whatever is printed."""

    def __init__(self, screen: Any) -> None:
        self._screen = screen
        self._lock = threading.Lock()
        self._name, self._master = "", ""
        self._ui_url: str | None = None
        self._checkpoint: str | None = None
        self._shot: PipelineSnapshot | None = None
        self._history: dict[str, deque[float]] = {}
        self._looked_s = 0.0
        self._started_s = time.monotonic()
        self._live: Live | None = None

    def show_starting(self, name: str, master: str) -> None:
        from rich.live import Live

        self._name, self._master = name, master
        self._live = Live(
            console=self._screen,
            get_renderable=self._render,
            refresh_per_second=_REFRESH,
            transient=True,
            redirect_stdout=False,
        )
        self._live.start()

    def show_started(self, ui_url: str | None, checkpoint: str | None) -> None:
        self._ui_url, self._checkpoint = ui_url or "its server has it", checkpoint

    def saw(self, shot: PipelineSnapshot) -> None:
        self._shot = shot
        if shot.seconds - self._looked_s >= 1.0:  # one bar a second
            self._looked_s = shot.seconds
            for each in shot.queries:
                kept = self._history.setdefault(each.name, deque(maxlen=_SPARK_WIDTH))
                kept.append(each.rows_per_second)

    def rows(self, query: str, batch_id: int, rows: list[str]) -> None:
        if not sys.stdout.isatty():
            for row in rows:
                typer.echo(row)
            return
        found = [json.loads(row) for row in rows]
        if found:
            self._screen.print(_table_of(found, f"{query}, batch {batch_id}"))

    def note(self, text: str) -> None:
        from rich.text import Text

        for line_ in text.splitlines():
            self._screen.print(Text(inert(line_), "yellow"))

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def show_ended(self) -> None:
        self.close()
        for text in summary(self._shot):
            print_message(text)

    def _render(self) -> RenderableType:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        shot = self._shot
        state = "Starting" if shot is None else shot.state
        head = Text.assemble(
            (inert(self._name), "bold"),
            "  ",
            (state, _STYLES.get(state, "")),
            f"  {format_seconds(time.monotonic() - self._started_s)}",
            f"  {inert(self._master)}",
        )
        if shot is not None and shot.restarts:
            head.append(f"  {shot.restarts} restarts", "yellow")
        if self._ui_url is None:
            return Group(head, Text("  Spark is starting …", "dim"))
        about = Text(f"  Spark's UI {self._ui_url} · {_checkpoint(self._checkpoint)}", "dim")
        if shot is None or not shot.queries:
            return Group(head, about)
        table = Table(**table_style())
        for name in ("query", "batch", "rows", "rows/s", "", "lag", "batch time", "state", "late"):
            table.add_column(name, justify="left" if name in ("query", "") else "right")
        for each in shot.queries:
            table.add_row(*(Text(text) for text in self._cells(each)))
        waiting = [
            Text(f"  {inert(each.name)}: {inert(each.message)}", "dim")
            for each in shot.queries
            if each.last is None
        ]
        return Group(head, about, table, *waiting)

    def _cells(self, each: QuerySnapshot) -> list[str]:
        last = each.last
        if last is None:
            return [inert(each.name), "–", "0", "0", "", "–", "–", "–", "–"]
        state = "–"
        if last.state_rows is not None:
            state = f"{last.state_rows:,} rows, {format_bytes(last.state_bytes)}"
        return [
            inert(each.name),
            f"{last.batch_id:,}",
            f"{each.rows:,}",
            f"{each.rows_per_second:,.0f}",
            sparkline(self._history.get(each.name, ())),
            "–" if last.lag_events is None else f"{last.lag_events:,}",
            format_seconds(last.seconds),
            state,
            f"{each.late_rows:,}" if each.late_rows else "–",
        ]


def line(each: QuerySnapshot) -> str:
    """windows: batch 12, 48,000 rows, 1,200/s, lag 0, batch time 0.6s, state 400 rows, 1.2 MB"""
    last = each.last
    if last is None:
        return f"{inert(each.name)}: {each.state.lower()} ({inert(each.message)})"
    parts = [
        f"batch {last.batch_id:,}",
        f"{each.rows:,} rows",
        f"{each.rows_per_second:,.0f}/s",
        "lag unknown" if last.lag_events is None else f"lag {last.lag_events:,}",
        f"batch time {format_seconds(last.seconds)}",
    ]
    if last.state_rows is not None:
        parts.append(f"state {last.state_rows:,} rows, {format_bytes(last.state_bytes)}")
    if each.late_rows:
        parts.append(f"{each.late_rows:,} late")
    return f"{inert(each.name)}: {', '.join(parts)}"


def summary(shot: PipelineSnapshot | None) -> list[str]:
    if shot is None:
        return []
    texts = []
    for each in shot.queries:
        rows = "1 row" if each.rows == 1 else f"{each.rows:,} rows"
        batches = "1 batch" if each.batches == 1 else f"{each.batches:,} batches"
        late = f", {each.late_rows:,} of them late" if each.late_rows else ""
        texts.append(f"{inert(each.name)}: {rows} in {batches}{late}.")
    return [*texts, f"{shot.state} after {format_seconds(shot.seconds)}."]


def sparkline(values: Any) -> str:
    """The latest at the right, the highest a full block."""
    kept = list(values)
    most = max(kept, default=0.0)
    if most <= 0:
        return _SPARKS[0] * len(kept)
    return "".join(_SPARKS[min(7, int(value / most * 7.999))] for value in kept)


def _checkpoint(checkpoint: str | None) -> str:
    return f"checkpoint {checkpoint}" if checkpoint else "no --checkpoint: progress is not kept"


def _table_of(rows: list[dict[str, Any]], title: str) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    names = list(dict.fromkeys(name for row in rows for name in row))
    table = Table(title=Text(inert(title)), title_justify="left", **table_style())
    for name in names:
        values = [row.get(name) for row in rows]
        is_number = all(isinstance(value, int | float) for value in values)
        table.add_column(Text(inert(name)), justify="right" if is_number else "left")
    for row in rows:
        table.add_row(*(Text(_cell(row.get(name))) for name in names))
    return table


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.2f}"
    return inert(value if isinstance(value, str) else json.dumps(value))
