"""The lag of consumer groups as rows, and as a live table with rates, trends and totals."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import UTC, datetime

import typer
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from penstock.cli.output import (
    TABLE,
    OutputFormat,
    console,
    format_bytes,
    format_seconds,
    table_style,
)
from penstock.model.errors import PenstockError

Row = dict[str, object]

# The first eight are those of docs/reference/cli.md, in its order.
KEYS = (
    *("hub", "group", "partition", "last_sequence_number", "checkpoint_sequence_number"),
    *("lag_events", "lag_seconds", "owner", "lag_bytes", "epoch", "readers"),
)
_NARROW = KEYS[:8]
_WIDE = 110  # terminals from this width on show every column
_NAME_WIDTH_MAX = 24
_OWNER_WIDTH = 8  # the beginning of a UUID distinguishes owners
_TRENDS = {1: ("▲", "yellow"), -1: ("▼", "green"), 0: (" ", "")}


def lag_row(lag: Mapping[str, object]) -> Row:
    """The lag of one partition as the management API reports it, with the keys of `KEYS`."""
    return {name: lag.get(name) for name in KEYS}


def print_lag(rows: Sequence[Row], output: OutputFormat) -> None:
    """All keys as JSON; as a table the columns that fit the terminal."""
    is_narrow = output is TABLE and console().width < _WIDE
    output.print_rows(
        rows,
        title="Lag",
        columns=_NARROW if is_narrow else KEYS,
        elided=("owner",) if is_narrow else (),
    )


class LagSnapshot:
    """All rows at one time, compared with the snapshot before."""

    def __init__(self, rows: Sequence[Row], at_s: float, before: LagSnapshot | None) -> None:
        self.rows = rows
        self.at_s = at_s
        self._passed_s = None if before is None else max(at_s - before.at_s, 1e-3)
        self._before = {} if before is None else {_key(row): row for row in before.rows}

    def rate(self, row: Row, name: str) -> float | None:
        """How much a number grew per second since the snapshot before; None if unknown."""
        difference = self._difference(row, name)
        if self._passed_s is None or difference is None:
            return None
        return max(0, difference) / self._passed_s

    def total_rate(self, name: str) -> float | None:
        """The sum of the rates. A `last_sequence_number` that several groups share counts once."""
        is_shared = name == "last_sequence_number"
        rates = {
            (row["hub"], row["partition"]) if is_shared else _key(row): rate
            for row in self.rows
            if (rate := self.rate(row, name)) is not None
        }
        return sum(rates.values()) if rates else None

    def trend(self, row: Row) -> int:
        """1: it falls further behind; -1: it catches up; 0: neither, or unknown."""
        difference = self._difference(row, "lag_events") or 0
        return (difference > 0) - (difference < 0)

    def _difference(self, row: Row, name: str) -> int | None:
        old, new = self._before.get(_key(row), {}).get(name), row[name]
        return new - old if isinstance(old, int) and isinstance(new, int) else None


@dataclass
class LagView:
    """Reads the lag again and again, until Ctrl-C or for a number of updates."""

    read_lag: Callable[[], Sequence[Row]]
    _: KW_ONLY
    title: str
    every_s: float
    updates_max: int | None
    problem: str = ""  # why the last reading failed

    def run(self, output: OutputFormat) -> None:
        try:
            if output is OutputFormat.JSONL:
                self._repeat(_print_lines)
            elif sys.stdout.isatty():
                self._run_live()
            else:
                self._repeat(lambda snapshot: print_lag(snapshot.rows, TABLE))
        except KeyboardInterrupt:
            raise typer.Exit(0) from None

    def _run_live(self) -> None:
        with Live(console=console(), auto_refresh=False, transient=False) as live:

            def show(snapshot: LagSnapshot) -> None:
                size = live.console.size
                rows_max = max(1, size.height - 5)
                view = self.render(snapshot, width=size.width, rows_max=rows_max)
                live.update(view, refresh=True)

            self._repeat(show)

    def _repeat(self, show: Callable[[LagSnapshot], None]) -> None:
        last: LagSnapshot | None = None
        updates = 0
        while True:
            try:
                last = LagSnapshot(self.read_lag(), time.monotonic(), last)
                self.problem = ""
            except PenstockError as error:
                if last is None or not error.retriable:
                    raise
                self.problem = str(error)  # keep the last snapshot: the service may come back
            show(last)
            sys.stdout.flush()
            updates += 1
            if updates == self.updates_max:
                return
            time.sleep(self.every_s)

    def render(self, snapshot: LagSnapshot, *, width: int, rows_max: int) -> Group:
        rows = list(snapshot.rows)
        if len(rows) > rows_max:  # the greatest lag first
            rows = sorted(rows, key=_urgency)[:rows_max]
        now = datetime.now(UTC).strftime("%H:%M:%SZ")
        head = Text.assemble(
            ("Lag of ", "bold"),
            (self.title, "bold cyan"),
            f"  {now}  every {self.every_s:g}s, Ctrl-C ends it",
        )
        below = Text(_format_totals(snapshot, len(rows)), "bold")
        if self.problem:
            below = Text(self.problem, "bold red", overflow="ellipsis", no_wrap=True)
        return Group(head, _live_table(snapshot, rows, is_wide=width >= _WIDE), below)


def _live_table(snapshot: LagSnapshot, rows: Sequence[Row], *, is_wide: bool) -> Table:
    """Names are cut off where the terminal is narrow. Numbers are not: it would change them."""
    names = ["part", *(("last", "checkpoint") if is_wide else ()), "lag", "age", "in/s", "out/s"]
    table = Table(**table_style())
    for name in ("hub", "group"):
        table.add_column(name, overflow="ellipsis", max_width=_NAME_WIDTH_MAX)
    for name in (*names, "readers" if is_wide else "rd"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("owner", no_wrap=True)
    for row in rows:
        owner = Text(str(row["owner"] or "-")[:_OWNER_WIDTH], "dim")
        numbers = _number_cells(snapshot, row, is_wide=is_wide)
        table.add_row(Text(str(row["hub"])), Text(str(row["group"])), *numbers, owner)
    return table


def _number_cells(snapshot: LagSnapshot, row: Row, *, is_wide: bool) -> list[Text]:
    last, checkpoint = "last_sequence_number", "checkpoint_sequence_number"
    lag, age = row["lag_events"], row["lag_seconds"]
    lag_cell = Text("-", "dim")
    if isinstance(lag, int):
        mark, style = _TRENDS[snapshot.trend(row)]
        lag_cell = Text(f"{lag:,} {mark}", style if lag else "green")
    rates = [snapshot.rate(row, name) for name in (last, checkpoint)]
    return [
        Text(str(row["partition"])),
        *((_number(row[last]), _number(row[checkpoint])) if is_wide else ()),
        lag_cell,
        Text(format_seconds(age) if isinstance(age, int | float) else "-"),
        *(Text("-" if rate is None else f"{rate:,.0f}", "" if rate else "dim") for rate in rates),
        _number(row["readers"]),
    ]


def _format_totals(snapshot: LagSnapshot, shown: int) -> str:
    lags, sizes, ages = (
        [value for row in snapshot.rows if isinstance(value := row[name], int | float)]
        for name in ("lag_events", "lag_bytes", "lag_seconds")
    )
    parts = [f"{sum(lags):,} events behind" if lags else "nothing known to be behind"]
    if sizes and len(sizes) == len(lags):  # only if the size of every lag is known
        parts.append(format_bytes(sum(sizes)))
    if ages and max(ages) > 0:
        parts.append(f"oldest {format_seconds(max(ages))}")
    for name, word in (("last_sequence_number", "in"), ("checkpoint_sequence_number", "out")):
        rate = snapshot.total_rate(name)
        if rate is not None:
            parts.append(f"{rate:,.0f}/s {word}")
    if shown < len(snapshot.rows):
        parts.append(f"{len(snapshot.rows) - shown} more rows")
    return " · ".join(parts)


def _key(row: Row) -> tuple[object, ...]:
    return row["hub"], row["group"], row["partition"]


def _urgency(row: Row) -> float:
    lag = row["lag_events"]
    return -float(lag) if isinstance(lag, int) else 1.0


def _number(value: object) -> Text:
    return Text(f"{value:,}" if isinstance(value, int) else "-")


def _print_lines(snapshot: LagSnapshot) -> None:
    at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    OutputFormat.JSONL.print_json([{**row, "at": at} for row in snapshot.rows])
