"""The `penstock` command. Data goes to stdout, messages to stderr; exit codes: docs/cli.md."""

from __future__ import annotations


def main() -> None:
    """Run the command of `sys.argv` and exit: the console script `penstock`."""
    from penstock.cli.app import run

    run()
