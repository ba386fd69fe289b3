"""The command tree is loaded branch by branch: `penstock --help` imports no command's module.

`Noun` is a group of commands (`penstock hub ...`); its options that say which service is meant
stand in a section of their own.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command, get_group

WHICH_SERVICE = "Which service"
CONTEXT_SETTINGS = {"help_option_names": ["-h", "--help"]}


class CommandEntry(NamedTuple):
    """One command or noun at the top, and where it is written."""

    name: str
    where: str  # module:attribute
    summary: str  # the first sentence of its help, so that no module is loaded to show it
    section: str
    hidden: bool = False


class PenstockCommand(TyperCommand):
    """Help with sections; the options that every command of its kind has come last."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        arguments: list[tuple[str, str]] = []
        sections: dict[str, list[tuple[str, str]]] = {"Options": [], WHICH_SERVICE: []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None:
                continue
            if parameter.param_type_name == "argument":
                arguments.append(record)
            else:
                panel = getattr(parameter, "rich_help_panel", None) or "Options"
                sections.setdefault(panel, []).append(record)
        _write_sections(formatter, {"Arguments": arguments, **sections})


class CommandGroup(typer.Typer):
    """What `penstock NOUN VERB` hangs on."""

    def __init__(self, summary: str) -> None:
        super().__init__(
            help=summary,
            no_args_is_help=True,
            rich_markup_mode=None,
            add_completion=False,
            context_settings=CONTEXT_SETTINGS,
        )

    def verb(
        self, name: str | None = None, *, hidden: bool = False
    ) -> Callable[[Callable[..., None]], Callable[..., None]]:
        return self.command(
            name, cls=PenstockCommand, hidden=hidden, context_settings=CONTEXT_SETTINGS
        )


class RootGroup(TyperGroup):
    """The top: names and sentences from the table, everything else when it is asked for."""

    entries: Mapping[str, CommandEntry] = {}

    def list_commands(self, ctx: Any) -> list[str]:
        return [entry.name for entry in self.entries.values() if not entry.hidden]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.commands and cmd_name in self.entries:
            self.commands[cmd_name] = load(self.entries[cmd_name])
        return self.commands.get(cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            near = get_close_matches(args[0], self.list_commands(ctx), n=1)
            hint = f" Did you mean '{near[0]}'?" if near else ""
            ctx.fail(f"No such command '{args[0]}'.{hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for entry in self.entries.values():
            if not entry.hidden:
                sections.setdefault(entry.section, []).append((entry.name, entry.summary))
        width = max(len(entry.name) for entry in self.entries.values())
        for rows in sections.values():  # one column for all sections
            rows[0] = (rows[0][0].ljust(width), rows[0][1])
        _write_sections(formatter, sections)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Names alone, without loading what they stand for."""
        from typer._click.shell_completion import CompletionItem  # what the base class gives

        return [
            CompletionItem(entry.name, help=entry.summary)
            for entry in self.entries.values()
            if entry.name.startswith(incomplete) and not entry.hidden
        ]


def load(entry: CommandEntry) -> Any:
    """The command, or the group of them, that the entry names."""
    module, _, attribute = entry.where.partition(":")
    found = getattr(importlib.import_module(module), attribute)
    if isinstance(found, typer.Typer):
        command = get_group(found)
    else:
        single = typer.Typer(rich_markup_mode=None, add_completion=False)
        single.command(entry.name, cls=PenstockCommand, context_settings=CONTEXT_SETTINGS)(found)
        command = get_command(single)  # type: ignore[assignment]  # one command is no group
    command.name = entry.name
    command.hidden = entry.hidden
    return command


def _write_sections(formatter: Any, sections: Mapping[str, Sequence[tuple[str, str]]]) -> None:
    for title, rows in sections.items():
        if rows:
            with formatter.section(title):
                formatter.write_dl(rows)
