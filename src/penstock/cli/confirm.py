"""Before anything is destroyed: --dry-run, --yes, or on a terminal the typed name.

Without a terminal nobody is asked: --yes is needed, else the command refuses with exit code 2.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from penstock.cli.output import print_message
from penstock.model.errors import ConfigurationError

Yes = Annotated[
    bool, typer.Option("--yes", "-y", help="Do not ask; needed where there is no terminal")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would happen, and do nothing")]


def confirm(what: str, name: str, *, yes: bool, dry_run: bool) -> bool:
    """Whether to go on. `what` is a sentence of what is lost; `name` what has to be typed."""
    if dry_run:
        print_message(f"{what} (Dry run: nothing was done.)")
        return False
    if yes:
        return True
    if not sys.stdin.isatty():
        raise ConfigurationError(
            f"{what} There is no terminal to ask on: say --yes, or look first with --dry-run."
        )
    print_message(what)
    typed = typer.prompt(f"Type '{name}' to go on", default="", show_default=False, err=True)
    if typed.strip() != name:
        print_message("Nothing was done.")
        raise typer.Exit(1)
    return True
