"""Results as tables for people, as JSON and JSON lines for programs. Data goes to stdout."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.options import option

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_NUMBERS = re.compile("number|offset|bytes|seconds|events|units|epoch|delta")
_TIMES = ("at", "created_at", "updated_at", "expires_at", "last_enqueued")
_TIME = re.compile(r"^([0-9-]{10})T([0-9:]{8})(\.[0-9]+)?Z$")
_ELIDED_WIDTH = 20
_ELIDED_LEAST = 8
_WORD_MAX = 24  # longer words are broken
_GAP = 2  # between two columns
_PIPE_WIDTH = 160  # columns, without a terminal

Row = Mapping[str, object]
Show = Callable[[object], str]


class OutputFormat(StrEnum):
    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"

    def print_rows(
        self,
        rows: Sequence[Row],
        *,
        title: str,
        columns: Sequence[str] | None = None,
        shown: Mapping[str, Show] | None = None,
        elided: Collection[str] = (),
    ) -> None:
        """Print rows that have the same keys. A table has `columns`, or all keys.

        `title` is shown when there are no rows. `shown` formats the values of a column in a table,
        instead of `_FORMATS`. `elided` columns are cut off where the terminal is narrow; others
        are wrapped.
        """
        if self is not OutputFormat.TABLE:
            self.print_json(rows)
        elif rows:
            names = list(columns if columns is not None else rows[0])
            _print_table(rows, names, shown or {}, elided)
        else:
            print_message(f"{title}: nothing to show")

    def print_record(self, record: Row, *, shown: Mapping[str, Show] | None = None) -> None:
        """Print one object: a table has one line per property, JSON is a list of one object."""
        if self is not OutputFormat.TABLE:
            self.print_json([record])
        else:
            console().print(record_table(record, shown or {}))

    def print_result(self, message: str, record: Row) -> None:
        """The result of a change: a message for people, the record for programs."""
        print_message(message)
        if self is not OutputFormat.TABLE:
            self.print_record(record)

    def print_json(self, rows: Iterable[Row]) -> None:
        if self is OutputFormat.JSON:
            typer.echo(json.dumps(list(rows)))
        else:
            for row in rows:
                typer.echo(json.dumps(row))


TABLE = OutputFormat.TABLE
Format = Annotated[OutputFormat, option("-o --output", "A table, a JSON list, or JSON lines")]


def print_message(text: str) -> None:
    """Write a message to stderr, so that a pipe holds data only."""
    typer.echo(text, err=True)


def console(*, stderr: bool = False) -> Console:
    """A console as wide as the terminal. Without a terminal COLUMNS gives the width, or 160."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else int(os.environ.get("COLUMNS") or _PIPE_WIDTH)
    return Console(width=width, stderr=stderr, highlight=False)


def _print_table(
    rows: Sequence[Row], names: Sequence[str], shown: Mapping[str, Show], elided: Collection[str]
) -> None:
    """One line per row; where the terminal is too narrow, one block of properties per row."""
    from rich.table import Table
    from rich.text import Text

    screen = console()
    columns = [_TableColumn(name, rows, shown, elided=name in elided) for name in names]
    least = sum(column.least for column in columns) + _GAP * (len(columns) - 1)
    if least > screen.width:
        for number, row in enumerate(rows):
            if number:
                screen.print()
            screen.print(record_table({name: row[name] for name in names}, shown))
        return
    spare = screen.width - least
    table = Table(**table_style())
    for column in columns:
        extra = min(spare, column.most - column.least) if column.is_elided else 0
        spare -= extra
        table.add_column(
            heading(column.name),
            justify="right" if column.is_number else "left",
            no_wrap=column.is_fixed or column.is_elided,
            overflow="ellipsis" if column.is_elided else "fold",
            width=column.least + extra if column.is_elided else None,
            min_width=column.least,
        )
    for index in range(len(rows)):
        # Text, not markup: other users choose names and values.
        cells = [(column.texts[index], _style(rows[index][column.name])) for column in columns]
        table.add_row(*(Text(text, style) for text, style in cells))
    screen.print(table)


class _TableColumn:
    """How wide a column must be: numbers and times are never wrapped, texts between words."""

    def __init__(
        self, name: str, rows: Sequence[Row], shown: Mapping[str, Show], *, elided: bool
    ) -> None:
        values = [row[name] for row in rows if row[name] is not None]
        is_numeric = all(isinstance(value, int | float) for value in values)
        self.name = name
        self.is_number = is_numeric and (bool(values) or _NUMBERS.search(name) is not None)
        self.is_fixed = self.is_number or name in _TIMES
        self.is_elided = elided
        self.texts = [_format_value(name, row[name], shown) for row in rows]
        self.most = max(len(text) for text in (*self.texts, heading(name)))
        words = [word for text in (*self.texts, heading(name)) for word in text.split()]
        self.least = self.most if self.is_fixed else min(max(map(len, words), default=1), _WORD_MAX)
        if elided:
            self.most = max(len(heading(name)), min(self.most, _ELIDED_WIDTH))
            self.least = min(self.most, max(len(heading(name)), _ELIDED_LEAST))


def record_table(record: Row, shown: Mapping[str, Show]) -> Table:
    """One line per property that is not None."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in record.items():
        if value is not None:
            table.add_row(heading(name), Text(_format_value(name, value, shown), _style(value)))
    return table


def table_style() -> dict[str, Any]:
    """The look of every table: one line, below the headings."""
    from rich import box

    return {
        "box": box.SIMPLE_HEAD,
        "show_edge": False,
        "pad_edge": False,
        "collapse_padding": True,
        "header_style": "bold",
    }


_HEADINGS = {
    "partition_count": "partitions",
    "retention_hours": "retention",
    "size_bytes": "size",
    "lag_seconds": "lag time",
    "lag_bytes": "lag size",
    "first_sequence_number": "first",
    "last_sequence_number": "last",
    "checkpoint_sequence_number": "checkpoint",
    "from_sequence_number": "from",
    "to_sequence_number": "to",
    "user_metadata": "note",
    "created_at": "created",
    "updated_at": "updated",
    "expires_at": "expires",
    "age_seconds": "age",
    "container_id": "container",
    "ingress_events": "events in",
    "ingress_bytes": "bytes in",
    "egress_bytes": "bytes out",
    "events_in": "in",
    "events_out": "out",
}


def heading(name: str) -> str:
    """The heading of a column: the key in words, or a shorter text."""
    return _HEADINGS.get(name) or name.replace("_", " ")


def format_bytes(value: object) -> str:
    """1,536 -> 1.5 KB"""
    size = float(value) if isinstance(value, int | float) else 0.0
    for unit in ("B", "KB", "MB", "GB"):
        if abs(size) < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} TB"


def format_seconds(value: object) -> str:
    """90061 -> 1d 1h; 3.25 -> 3.2s"""
    seconds = float(value) if isinstance(value, int | float) else 0.0
    if seconds < 60:
        return f"{seconds:.1f}s" if seconds < 10 else f"{seconds:.0f}s"
    minutes = int(seconds // 60)
    if minutes < 60:
        return f"{minutes}m {int(seconds % 60)}s"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours}h {minutes}m"
    return f"{hours // 24}d {hours % 24}h"


def format_hours(value: object) -> str:
    """168 -> 7d; 36 -> 1d 12h"""
    days, hours = divmod(int(value) if isinstance(value, int) else 0, 24)
    return " ".join(part for part in (f"{days}d" * bool(days), f"{hours}h" * bool(hours)) if part)


_FORMATS: dict[str, Show] = {
    **dict.fromkeys(("size_bytes", "lag_bytes"), format_bytes),
    **dict.fromkeys(("age_seconds", "backlog_seconds", "batch_seconds"), format_seconds),
    "lag_seconds": format_seconds,
    "retention_hours": format_hours,
    "rows_per_second": "{:,.0f}".format,
}


def _format_value(name: str, value: object, shown: Mapping[str, Show]) -> str:
    if value is None:
        return "-"
    show = shown.get(name) or _FORMATS.get(name)
    if show is not None:
        return show(value)
    if name in _TIMES and isinstance(value, str):
        return _TIME.sub(r"\1 \2Z", value)  # whole seconds
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    if isinstance(value, dict):
        return json.dumps(value) if value else ""
    return str(value)


_STYLES = {
    **dict.fromkeys(("Active", "ok", "ready", "healthy"), "green"),
    **dict.fromkeys(("Disabled", "SendDisabled", "ReceiveDisabled", "warn"), "yellow"),
    **dict.fromkeys(("fail", "not ready", "unhealthy"), "red"),
}


def _style(value: object) -> str:
    return _STYLES.get(value, "") if isinstance(value, str) else ""
