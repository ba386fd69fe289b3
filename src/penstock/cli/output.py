"""Rows for people (a table) and for programs (JSON, JSON lines). Data goes to stdout."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated

import typer

_PIPE_WIDTH = 160  # columns, where no terminal says how many it has


class Output(StrEnum):
    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"


Format = Annotated[Output, typer.Option("-o", "--output", help="table, json or jsonl")]


def print_rows(rows: Sequence[Mapping[str, object]], output: Output, *, title: str) -> None:
    """JSON is a list of objects (design.md 7); a table has the first row's keys as columns."""
    if output is Output.JSON:
        typer.echo(json.dumps(list(rows)))
    elif output is Output.JSONL:
        for row in rows:
            typer.echo(json.dumps(row))
    elif rows:
        _print_table(rows, title)
    else:
        typer.echo(f"{title}: nothing to show", err=True)


def _print_table(rows: Sequence[Mapping[str, object]], title: str) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title)
    for name, value in rows[0].items():
        number = isinstance(value, int | float)
        table.add_column(
            name.replace("_", " "),
            justify="right" if number else "left",
            no_wrap=number,
            overflow="fold",  # nothing is cut off, however narrow the terminal
        )
    for row in rows:
        # Text, not markup: names and values may come from strangers.
        table.add_row(*(Text(_shown(value)) for value in row.values()))
    Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH).print(table)


def _shown(value: object) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
