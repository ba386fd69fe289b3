"""Generates the second half of docs/reference/cli.md from the command tree.

`python -m tools.cli_reference docs/reference/cli.md` writes it; a test compares.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from penstock.cli.app import COMMANDS, app
from penstock.cli.command_tree import WHICH_SERVICE
from penstock.cli.help import walk_commands

BAR = "\\|"
BEGIN = "<!-- The rest is made by `python -m tools.cli_reference docs/reference/cli.md`. -->"


def reference() -> str:
    """Markdown of every command, in the order of the help."""
    root: Any = typer.main.get_command(app)
    context = typer.Context(root, info_name="penstock")
    found = {path: (command, below) for path, command, below in walk_commands(root, context)}
    sections = {f"penstock {entry.name}": entry.section for entry in COMMANDS}
    lines: list[str] = []
    section = None
    for path, (command, below) in found.items():
        if path in sections and sections[path] != section:
            section = sections[path]
            lines += [f"## {section}", ""]
        if not hasattr(command, "commands"):
            lines += _command(path, command, below)
    return "\n".join(lines).rstrip() + "\n"


def updated(text: str) -> str:
    """The document with its second half generated again."""
    return text.partition(BEGIN)[0] + BEGIN + "\n\n" + reference()


def _command(path: str, command: Any, context: Any) -> Iterator[str]:
    usage = " ".join(context.get_usage().removeprefix("Usage: ").split())
    yield f"### `{path}`"
    yield ""
    yield f"`{usage}`"
    yield ""
    for paragraph in (command.help or "").split("\n\n"):
        yield " ".join(paragraph.split())
        yield ""
    if command.examples:
        yield "```sh"
        yield from command.examples
        yield "```"
        yield ""
    sections = command.help_rows(context)
    rows = [
        _row(name, text)
        for section, parameters in sections.items()
        if section != WHICH_SERVICE
        for name, text in parameters
        if not name.endswith("--help")
    ]
    if rows:
        yield "| | |"
        yield "|---|---|"
        yield from rows
        yield ""
    if sections[WHICH_SERVICE]:
        yield "And [which service](#which-service)."
        yield ""


def _row(name: str, text: str) -> str:
    return f"| `{name.replace('|', '/')}` | {' '.join(text.split()).replace('|', BAR)} |"


def main() -> None:
    file = Path(sys.argv[1])
    file.write_text(updated(file.read_text()))


if __name__ == "__main__":
    main()
