"""The `penstock` command. Data goes to stdout, messages to stderr; exit codes:
docs/reference/cli.md."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command of `sys.argv` and exit: the console script `penstock`."""
    arguments = sys.argv[1:]
    if next((word for word in arguments if not word.startswith("-")), None) == "serve":
        # Before the imports of the command line, which take longer than the restart.
        from penstock.io.malloc import restart_with_allocator_settings

        restart_with_allocator_settings(arguments)
    from penstock.cli.app import run

    run()
