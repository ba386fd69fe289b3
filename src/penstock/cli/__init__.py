"""The `penstock` command. Data goes to stdout, talk to stderr; exit codes as in docs/cli.md."""

from __future__ import annotations


def main() -> None:
    """The console script's entry."""
    from penstock.cli.app import run

    run()
