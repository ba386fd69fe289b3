"""Lag as rows, and as a table that lives: rates between two looks, what grows, sums."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import typer

from penstock.cli.output import (
    OutputFormat,
    console,
    format_bytes,
    format_seconds,
    print_rows,
    table_style,
)
from penstock.model.errors import PenstockError

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

Row = dict[str, object]
Key = tuple[object, object, object]

# The first eight are those of docs/cli.md, in its order.
KEYS = (
    "hub",
    "group",
    "partition",
    "last_sequence_number",
    "checkpoint_sequence_number",
    "lag_events",
    "lag_seconds",
    "owner",
    "lag_bytes",
    "epoch",
    "readers",
)
_NARROW = KEYS[:8]
_WIDE = 110  # columns from which on everything has room
_GAP = 2  # between two columns
_NAME_WIDTH_MIN, _NAME_WIDTH_MAX = 5, 24
_OWNER_WIDTH = 8  # the beginning of an owner's UUID tells owners apart


def lag_row(found: Mapping[str, object]) -> Row:
    return {name: found.get(name) for name in KEYS}


def print_lag(rows: Sequence[Row], output: OutputFormat) -> None:
    """Everything as JSON; as a table what has room."""
    narrow = output is OutputFormat.TABLE and console().width < _WIDE
    print_rows(
        rows,
        output,
        title="Lag",
        columns=_NARROW if narrow else KEYS,
        shown={"lag_bytes": format_bytes, "lag_seconds": format_seconds},
        elided=("owner",) if narrow else (),
    )


class LagSnapshot:
    """One look at all rows, compared with the one before."""

    def __init__(self, rows: Sequence[Row], at_s: float, before: LagSnapshot | None) -> None:
        self.rows = rows
        self.at_s = at_s
        self._before_s = None if before is None else before.at_s
        self._before = {} if before is None else {_key(row): row for row in before.rows}

    def rate(self, row: Row, name: str) -> float | None:
        """How fast a number grew since the last look, a second; None when nobody knows."""
        old, new = self._before.get(_key(row), {}).get(name), row[name]
        if self._before_s is None or not isinstance(old, int) or not isinstance(new, int):
            return None
        return max(0, new - old) / max(self.at_s - self._before_s, 1e-3)

    def total_rate(self, name: str) -> float | None:
        """Of `last_sequence_number`, which several groups share, each partition once."""
        seen: dict[object, float] = {}
        for row in self.rows:
            found = self.rate(row, name)
            if found is not None:
                shared = name == "last_sequence_number"
                seen[(row["hub"], row["partition"]) if shared else _key(row)] = found
        return sum(seen.values()) if seen else None

    def trend(self, row: Row) -> int:
        """1: it falls further behind; -1: it catches up; 0: neither, or unknown."""
        old, new = self._before.get(_key(row), {}).get("lag_events"), row["lag_events"]
        if not isinstance(old, int) or not isinstance(new, int):
            return 0
        return (new > old) - (new < old)


class LagView:
    """Looks again and again, until Ctrl-C or so many times."""

    def __init__(
        self,
        look: Callable[[], Sequence[Row]],
        *,
        title: str,
        every_s: float,
        looks_max: int | None,
    ) -> None:
        self._look = look
        self._title = title
        self._every_s = every_s
        self._looks_max = looks_max
        self._trouble = ""

    def run(self, output: OutputFormat) -> None:
        try:
            if output is OutputFormat.JSONL:
                self._repeat(_print_lines)
            elif sys.stdout.isatty():
                self._live()
            else:
                self._repeat(_print_plain)
        except KeyboardInterrupt:
            raise typer.Exit(0) from None

    def _live(self) -> None:
        from rich.live import Live

        with Live(console=console(), auto_refresh=False, transient=False) as live:

            def show(look: LagSnapshot) -> None:
                room = max(1, live.console.height - 5)
                live.update(
                    self.render(look, width=live.console.width, rows_max=room), refresh=True
                )

            self._repeat(show)

    def _repeat(self, show: Callable[[LagSnapshot], None]) -> None:
        last: LagSnapshot | None = None
        looks = 0
        while True:
            try:
                last = LagSnapshot(self._look(), time.monotonic(), last)
                self._trouble = ""
            except PenstockError as error:
                if last is None or not error.retriable:
                    raise
                self._trouble = str(error)  # the last look stays; a service may come back
            show(last)
            looks += 1
            if self._looks_max is not None and looks >= self._looks_max:
                return
            time.sleep(self._every_s)

    def render(self, look: LagSnapshot, *, width: int, rows_max: int) -> Group:
        from rich.console import Group
        from rich.text import Text

        # What is worst comes first when not everything has room.
        rows = list(look.rows)
        if len(rows) > rows_max:
            rows = sorted(rows, key=_urgency)[:rows_max]
        now = datetime.now(UTC).strftime("%H:%M:%SZ")
        head = Text.assemble(
            ("Lag of ", "bold"),
            (self._title, "bold cyan"),
            f"  {now}  every {self._every_s:g}s, Ctrl-C ends it",
        )
        below = _sums(look, len(rows))
        if self._trouble:
            below = Text(self._trouble, "bold red", overflow="ellipsis", no_wrap=True)
        return Group(head, _live_table(look, rows, width=width), below)


def _live_table(look: LagSnapshot, rows: Sequence[Row], *, width: int) -> Table:
    """Numbers are shown whole: a number that is cut would be another number. Names give way."""
    from rich.table import Table
    from rich.text import Text

    wide = width >= _WIDE
    lines = [_numbers(look, row, wide=wide) for row in rows]
    names = ["part", *(("last", "checkpoint") if wide else ()), "lag", "age", "in/s", "out/s"]
    names.append("readers" if wide else "rd")
    widths = [
        max([len(name), *(line[column].cell_len for line in lines)])
        for column, name in enumerate(names)
    ]
    left = width - sum(widths) - _OWNER_WIDTH - _GAP * (len(names) + 2)
    table = Table(**table_style())
    for name in ("hub", "group"):
        name_width = max(_NAME_WIDTH_MIN, min(left // 2, _NAME_WIDTH_MAX))
        table.add_column(name, overflow="ellipsis", no_wrap=True, max_width=name_width)
    for name, number_width in zip(names, widths, strict=True):
        table.add_column(name, justify="right", no_wrap=True, min_width=number_width)
    table.add_column("owner", no_wrap=True, max_width=_OWNER_WIDTH)
    for row, line in zip(rows, lines, strict=True):
        owner = str(row["owner"] or "-")[:_OWNER_WIDTH]
        table.add_row(Text(str(row["hub"])), Text(str(row["group"])), *line, Text(owner, "dim"))
    return table


def _numbers(look: LagSnapshot, row: Row, *, wide: bool) -> list[Text]:
    from rich.text import Text

    cells = [Text(str(row["partition"]))]
    if wide:
        cells += [_format_number(row["last_sequence_number"])]
        cells += [_format_number(row["checkpoint_sequence_number"])]
    cells += [_lag(row, look.trend(row)), _age(row["lag_seconds"])]
    cells += [_rate(look.rate(row, "last_sequence_number"))]
    cells += [_rate(look.rate(row, "checkpoint_sequence_number"))]
    return [*cells, _format_number(row["readers"])]


def _sums(look: LagSnapshot, shown: int) -> Text:
    from rich.text import Text

    lags = [value for row in look.rows if isinstance(value := row["lag_events"], int)]
    sizes = [value for row in look.rows if isinstance(value := row["lag_bytes"], int)]
    ages = [value for row in look.rows if isinstance(value := row["lag_seconds"], int | float)]
    parts = [f"{sum(lags):,} events behind" if lags else "nothing known to be behind"]
    if sizes and len(sizes) == len(lags):  # a sum of some would be no sum
        parts.append(format_bytes(sum(sizes)))
    if ages and max(ages) > 0:
        parts.append(f"oldest {format_seconds(max(ages))}")
    for name, word in (("last_sequence_number", "in"), ("checkpoint_sequence_number", "out")):
        rate = look.total_rate(name)
        if rate is not None:
            parts.append(f"{rate:,.0f}/s {word}")
    if shown < len(look.rows):
        parts.append(f"{len(look.rows) - shown} more rows")
    return Text(" · ".join(parts), "bold")


def _key(row: Row) -> Key:
    return row["hub"], row["group"], row["partition"]


def _urgency(row: Row) -> float:
    lag = row["lag_events"]
    return -float(lag) if isinstance(lag, int) else 1.0


def _format_number(value: object) -> Text:
    from rich.text import Text

    return Text(f"{value:,}" if isinstance(value, int) else "-")


def _lag(row: Row, trend: int) -> Text:
    from rich.text import Text

    value = row["lag_events"]
    if not isinstance(value, int):
        return Text("-", "dim")
    mark, style = {1: ("▲", "yellow"), -1: ("▼", "green"), 0: (" ", "")}[trend]
    style = "green" if value == 0 else style
    return Text(f"{value:,} {mark}", style)


def _age(value: object) -> Text:
    from rich.text import Text

    return Text(format_seconds(value) if isinstance(value, int | float) else "-")


def _rate(value: float | None) -> Text:
    from rich.text import Text

    return Text("-" if value is None else f"{value:,.0f}", "" if value else "dim")


def _print_lines(look: LagSnapshot) -> None:
    at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    for row in look.rows:
        typer.echo(json.dumps({**row, "at": at}))
    sys.stdout.flush()


def _print_plain(look: LagSnapshot) -> None:
    print_lag(look.rows, OutputFormat.TABLE)
    sys.stdout.flush()
