"""Warn about operations that are slower than the threshold.

One line, `key=value`, from the logger `penstock.slow`; the service limits the lines per minute of
one kind. The threshold is set per process, like the log level.
"""

from __future__ import annotations

import logging

from penstock.model import limits

log = logging.getLogger("penstock.slow")


threshold_ms = limits.SLOW_OPERATION_MS  # from which an operation is slow; the service sets it


def warn_if_slow(what: str, milliseconds: float, **facts: object) -> None:
    """Log the operation if it was slow. Any thread. `facts` must not contain text of a client."""
    if milliseconds >= threshold_ms:
        details = "".join(f" {name}={value}" for name, value in facts.items())
        # The kind is in the template, by which lines are limited: one kind cannot hide another.
        log.warning(f"slow operation: what={what} ms=%d%s", milliseconds, details)
