"""`penstock version`, `penstock completion SHELL`, `penstock help [--all] [COMMAND...]`."""

from __future__ import annotations

import platform
import sys
from typing import Annotated, Any, Literal

import typer

from penstock.cli.options import argument, option
from penstock.cli.output import TABLE, Format


def version(output: Format = TABLE) -> None:
    """Show the version.

    Examples:
        penstock version
    """
    from penstock import __version__
    from penstock.kernels import KERNEL

    record = {
        "version": __version__,
        "python": sys.version.split()[0],
        "kernel": KERNEL,
        "platform": platform.platform(),
    }
    output.print_record(record)


def completion(
    ctx: typer.Context,
    shell: Annotated[
        Literal["bash", "zsh", "fish"], argument("bash|zsh|fish", "The shell you use")
    ],
) -> None:
    """Print the completion script for a shell.

    bash: put `eval "$(penstock completion bash)"` into ~/.bashrc. zsh: put the same line into
    ~/.zshrc, after compinit. fish: write the script to ~/.config/fish/completions/penstock.fish.

    Examples:
        penstock completion bash
        penstock completion fish > ~/.config/fish/completions/penstock.fish
    """
    from typer.completion import show_callback

    show_callback(ctx, ctx.command.params[0], shell)


def help_(
    ctx: typer.Context,
    command: Annotated[list[str] | None, argument("COMMAND...", "Command to explain")] = None,
    all_: Annotated[bool, option("--all -a", "Show the usage of every command")] = False,
) -> None:
    """Show the help of a command, or the usage of all commands.

    Examples:
        penstock help hub create
        penstock help --all
    """
    root = ctx.find_root()
    if all_:
        for _, child, below in walk_commands(root.command, root):
            if not hasattr(child, "commands"):
                typer.echo(below.get_usage().removeprefix("Usage: "))
                typer.echo(f"    {child.get_short_help_str(limit=200)}")
        return
    context: Any = root
    for word in command or []:
        group = context.command
        child = group.get_command(context, word) if hasattr(group, "commands") else None
        if child is None:
            raise typer.BadParameter(f"There is no command '{' '.join(command or [])}'.")
        context = typer.Context(child, info_name=word, parent=context)
    typer.echo(context.get_help())


def walk_commands(command: Any, context: Any) -> list[tuple[str, Any, Any]]:
    """Every visible command below `command`: its path, itself and a context for it, in the order
    of the help."""
    commands = []
    for name in command.list_commands(context):
        child = command.get_command(context, name)
        if child is None or child.hidden:
            continue
        below = typer.Context(child, info_name=name, parent=context)
        commands.append((below.command_path, child, below))
        if hasattr(child, "commands"):
            commands += walk_commands(child, below)
    return commands
