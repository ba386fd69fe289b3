"""Confirmation before a command deletes something: --dry-run, --yes, or the typed name."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from penstock.cli.exit_codes import ExitCode
from penstock.cli.options import option
from penstock.cli.output import print_message
from penstock.model.errors import ConfigurationError

Yes = Annotated[bool, option("--yes -y", "Do not ask; required where stdin is not a terminal")]
DryRun = Annotated[bool, option("--dry-run", "Show what would happen, change nothing")]


def confirm(what: str, name: str, *, yes: bool, dry_run: bool) -> bool:
    """Whether to continue. `what` is a sentence that says what is lost, `name` the text to type.

    Without a terminal and without --yes it raises ConfigurationError: exit code 2.
    """
    if dry_run:
        print_message(f"{what} (Dry run: nothing was changed.)")
        return False
    if yes:
        return True
    if not sys.stdin.isatty():
        raise ConfigurationError(
            f"{what} There is no terminal to confirm it on: pass --yes, or --dry-run to look first."
        )
    print_message(what)
    typed = typer.prompt(f"Type '{name}' to continue", default="", show_default=False, err=True)
    if typed.strip() != name:
        print_message("Nothing was changed.")
        raise typer.Exit(ExitCode.FAILED)
    return True
