"""docs/cli.md's second half, made of the command tree itself.

`python -m tools.cli_reference docs/cli.md` writes it; a test compares.
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

BEGIN = "<!-- The rest is made by `python -m tools.cli_reference docs/cli.md`. -->"


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
    """The document with its second half made anew."""
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
    rows = [_row(parameter, context) for parameter in command.get_params(context)]
    shown = [row for row in rows if row is not None]
    if shown:
        yield "| | |"
        yield "|---|---|"
        yield from shown
        yield ""
    panels = {getattr(each, "rich_help_panel", None) for each in command.get_params(context)}
    if WHICH_SERVICE in panels:
        yield "And [which service](#which-service)."
        yield ""


def _row(parameter: Any, context: Any) -> str | None:
    if getattr(parameter, "rich_help_panel", None) == WHICH_SERVICE:
        return None
    record = parameter.get_help_record(context)
    if record is None or parameter.name == "help":
        return None
    name, text = record
    name, text = (part.replace("|", "\\|") for part in (name, text))
    return f"| `{name.replace(chr(92) + '|', '/')}` | {' '.join(text.split())} |"


def main() -> None:
    file = Path(sys.argv[1])
    file.write_text(updated(file.read_text()))


if __name__ == "__main__":
    main()
