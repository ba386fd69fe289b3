"""`penstock version`, `penstock completion SHELL`, `penstock help [--all] [COMMAND...]`."""

from __future__ import annotations

import platform
import sys
from enum import StrEnum
from typing import Annotated, Any

import typer

from penstock.cli.output import Format, OutputFormat, print_record


class Shell(StrEnum):
    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def version(output: Format = OutputFormat.TABLE) -> None:
    """Show the version."""
    from penstock import __version__
    from penstock.kernels import KERNEL

    print_record(
        {
            "version": __version__,
            "python": sys.version.split()[0],
            "kernel": KERNEL,
            "platform": platform.platform(),
        },
        output,
    )


def completion(
    shell: Annotated[Shell, typer.Argument(metavar="bash|zsh|fish", help="Whose script")],
) -> None:
    """Print the shell's completion script.

    bash: eval "$(penstock completion bash)" in ~/.bashrc. zsh: the same in ~/.zshrc, after
    compinit. fish: penstock completion fish > ~/.config/fish/completions/penstock.fish
    """
    from typer._completion_shared import get_completion_script

    script = get_completion_script(
        prog_name="penstock", complete_var="_PENSTOCK_COMPLETE", shell=shell.value
    )
    typer.echo(script)


def help_(
    ctx: typer.Context,
    command: Annotated[list[str] | None, typer.Argument(metavar="COMMAND...")] = None,
    all_: Annotated[bool, typer.Option("--all", "-a", help="Every command's usage")] = False,
) -> None:
    """Show the help of a command, or --all of it."""
    root = ctx.find_root()
    if all_:
        for _, each, below in walk_commands(root.command, root):
            if not hasattr(each, "commands"):
                typer.echo(below.get_usage().removeprefix("Usage: "))
                typer.echo(f"    {each.get_short_help_str(limit=200)}")
        return
    found: Any = root.command
    context: Any = root
    for word in command or []:
        child = found.get_command(context, word) if hasattr(found, "commands") else None
        if child is None:
            raise typer.BadParameter(f"There is no command '{' '.join(command or [])}'.")
        context = _context(child, word, context)
        found = child
    typer.echo(found.get_help(context))


def walk_commands(command: Any, context: Any) -> list[tuple[str, Any, Any]]:
    """Every command below, with its words and a context, in the order of the help."""
    found = []
    for name in command.list_commands(context):
        child = command.get_command(context, name)
        if child is None or child.hidden:
            continue
        below = _context(child, name, context)
        found.append((below.command_path, child, below))
        if hasattr(child, "commands"):
            found += walk_commands(child, below)
    return found


def _context(command: Any, name: str, parent: Any) -> Any:
    return typer.Context(command, info_name=name, parent=parent)
