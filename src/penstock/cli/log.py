"""`penstock log verify|dump`: look into a data directory without running it."""

from __future__ import annotations

import typer

app = typer.Typer(help="Check and read the partition logs offline.", no_args_is_help=True)
