"""The exit codes of `penstock` (docs/reference/cli.md), and the one table from errors to exit
codes."""

from __future__ import annotations

from enum import IntEnum

import typer

from penstock.model import errors


class ExitCode(IntEnum):
    DONE = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    DENIED = 4
    THROTTLED = 5
    TIMED_OUT = 6


# The first row whose class matches decides.
_CODES: tuple[tuple[type[BaseException], ExitCode], ...] = (
    (errors.ConfigurationError, ExitCode.USAGE),
    (errors.NotFound, ExitCode.NOT_FOUND),
    (FileNotFoundError, ExitCode.NOT_FOUND),
    (errors.AuthFailed, ExitCode.DENIED),
    (errors.Unauthorized, ExitCode.DENIED),
    (errors.ServerBusy, ExitCode.THROTTLED),
    (errors.OperationTimedOut, ExitCode.TIMED_OUT),
    (TimeoutError, ExitCode.TIMED_OUT),
)


def exit_code(error: BaseException) -> int:
    """The exit code for an error that ends a command; FAILED for every error without a row."""
    if isinstance(error, typer.TyperException):
        return error.exit_code  # USAGE for every usage error, also for those without a public class
    return next((code for kind, code in _CODES if isinstance(error, kind)), ExitCode.FAILED)
