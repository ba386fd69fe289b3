"""The command tree. A command's module is loaded on use: `penstock --help` imports none of them.

The docstring of a command is its help. The lines below `Examples:` at its end are shown as written;
tests/unit/cli/test_command_tree.py requires one for every command and parses each.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command, get_group

WHICH_SERVICE = "Which service"
CONTEXT_SETTINGS = {"help_option_names": ["-h", "--help"]}
_EXAMPLES = "\n\nExamples:\n"
_TYPE = re.compile(r" <([^>]+)>")  # of an argument, or the values of an option

Decorator = Callable[[Callable[..., None]], Callable[..., None]]
HelpRows = dict[str, list[tuple[str, str]]]  # by section: name and meaning of a parameter


class CommandEntry(NamedTuple):
    """One command or group of commands below `penstock`."""

    name: str
    where: str  # module:attribute
    summary: str  # first sentence of its help, shown without loading the module
    section: str


class PenstockCommand(TyperCommand):
    """A command whose help has examples, and the options that name the service last."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.help, _, examples = (self.help or "").partition(_EXAMPLES)
        self.examples = [line.strip() for line in examples.splitlines()]

    def help_rows(self, ctx: Any) -> HelpRows:
        """The parameters by section of the help."""
        rows: HelpRows = {"Arguments": [], "Options": [], WHICH_SERVICE: []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None:
                continue
            name, text = record
            if parameter.param_type_name == "argument":
                rows["Arguments"].append((_TYPE.sub("", name), text))
            else:
                section = getattr(parameter, "rich_help_panel", None) or "Options"
                name = _TYPE.sub(r" \1", name).lstrip(" /")  # of an option with only --no-...
                rows.setdefault(section, []).append((name, text))
        return rows

    def format_options(self, ctx: Any, formatter: Any) -> None:
        if self.examples:
            with formatter.section("Examples"):
                for line in self.examples:
                    formatter.write(f"{' ' * formatter.current_indent}{line}\n")
        _write_sections(formatter, self.help_rows(ctx))


class CommandGroup(typer.Typer):
    """The commands below `penstock NOUN`. `options` is the decorator of its commands that adds the
    options of the service, such as `with_service`; a verb may have another one."""

    def __init__(self, summary: str, options: Decorator | None = None) -> None:
        self._options = options
        super().__init__(
            help=summary,
            no_args_is_help=True,
            rich_markup_mode=None,
            add_completion=False,
            context_settings=CONTEXT_SETTINGS,
        )

    def verb(
        self, name: str | None = None, *, options: Decorator | None = None, hidden: bool = False
    ) -> Decorator:
        register = self.command(
            name, cls=PenstockCommand, hidden=hidden, context_settings=CONTEXT_SETTINGS
        )
        add_options = options or self._options

        def decorate(function: Callable[..., None]) -> Callable[..., None]:
            register(function if add_options is None else add_options(function))
            return function

        return decorate


class RootGroup(TyperGroup):
    """`penstock` itself: names and summaries come from `entries`, commands are loaded on use."""

    entries: Mapping[str, CommandEntry] = {}

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.entries)

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
        width = max(map(len, self.entries))  # one width, so that the sections are aligned
        sections: HelpRows = {}
        for entry in self.entries.values():
            sections.setdefault(entry.section, []).append((entry.name.ljust(width), entry.summary))
        _write_sections(formatter, sections)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Complete a command's name. The process ends afterwards, so commands that have only a name
        and a summary are enough, and no module is loaded."""
        self.commands = {
            name: TyperCommand(name, help=entry.summary) for name, entry in self.entries.items()
        }
        return super().shell_complete(ctx, incomplete)


def load(entry: CommandEntry) -> Any:
    """Import the module of a command, or of a group of commands."""
    module, _, attribute = entry.where.partition(":")
    target = getattr(importlib.import_module(module), attribute)
    if isinstance(target, typer.Typer):
        command = get_group(target)
    else:
        single = typer.Typer(rich_markup_mode=None, add_completion=False)
        single.command(entry.name, cls=PenstockCommand, context_settings=CONTEXT_SETTINGS)(target)
        command = get_command(single)  # type: ignore[assignment]  # one command is no group
    command.name = entry.name
    return command


def _write_sections(formatter: Any, sections: Mapping[str, Sequence[tuple[str, str]]]) -> None:
    for title, rows in sections.items():
        if rows:
            with formatter.section(title):
                formatter.write_dl(rows)
