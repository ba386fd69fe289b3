"""Operations that took longer than an operator wants to wait: a warning for each.

One line, `key=value`, by the logger `penstock.slow`; the service's log lets so many of one kind
through in a minute. Like the log's level, the threshold is the process's.
"""

from __future__ import annotations

import logging

from penstock.model import limits

log = logging.getLogger("penstock.slow")


class SlowOperationThreshold:
    """What counts as slow, in milliseconds."""

    def __init__(self) -> None:
        self.threshold_ms = limits.SLOW_OPERATION_MS


SLOWNESS = SlowOperationThreshold()


def warn_if_slow(what: str, milliseconds: float, **facts: object) -> None:
    """An operation has ended; any thread. The facts must not be a peer's own words."""
    if milliseconds >= SLOWNESS.threshold_ms:
        told = "".join(f" {name}={value}" for name, value in facts.items())
        # The kind is part of the template: a flood of one does not hide another.
        log.warning(f"slow operation: what={what} ms=%d%s", milliseconds, told)
