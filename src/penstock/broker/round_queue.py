"""The order of work after a commit round: completions, then acknowledgements, then deliveries.

While the log applies a commit round it calls back into the broker, which only queues here. The
queue runs once the log has returned, so no code of a client runs on the log's call stack, and no
reader delays the acknowledgements of the round.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from functools import partial

from penstock.log.api import AppendDone
from penstock.model.errors import PenstockError
from penstock.model.events import Receipt

RunSoon = Callable[[Callable[[], None]], object]
"""Runs a function on the owner's thread after the caller has returned to the event loop."""

_logger = logging.getLogger(__name__)

Work = Callable[[], object]


class RoundQueue:
    """Shared by all hubs and gateways of a broker. Owner's thread only.

    All work that is queued until the queue runs needs one `run_soon`. Without `run_soon` work runs
    at once: for simulations and tests without an event loop.
    """

    __slots__ = ("_acknowledgements", "_completions", "_deliveries", "_is_scheduled", "_run_soon")

    def __init__(self, run_soon: RunSoon | None = None) -> None:
        self._run_soon = run_soon
        self._completions: deque[Work] = deque()
        self._acknowledgements: list[Work] = []
        self._deliveries: list[Work] = []
        self._is_scheduled = False  # also while it runs

    def complete(self, done: AppendDone, outcome: Receipt | PenstockError) -> None:
        """Call `done` in the first phase."""
        self._completions.append(partial(done, outcome))
        if not self._is_scheduled:
            self._schedule()

    def acknowledge(self, write: Work) -> None:
        """Call `write` in the second phase, of the current run if a completion asks for it."""
        self._acknowledgements.append(write)
        if not self._is_scheduled:
            self._schedule()

    def deliver(self, send: Work) -> None:
        """Call `send` in the third phase. Work that a delivery queues waits for the next run, so
        that the event loop serves its sockets in between."""
        self._deliveries.append(send)
        if not self._is_scheduled:
            self._schedule()

    def run_completions(self) -> None:
        """Run the first phase now: before a link ends, its stored publications are acknowledged.
        Not on the log's call stack."""
        while self._completions:
            _run_guarded(self._completions.popleft())

    def _schedule(self) -> None:
        self._is_scheduled = True
        if self._run_soon is None:
            self._run()
        else:
            self._run_soon(self._run)

    def _run(self) -> None:
        self.run_completions()
        acknowledgements, self._acknowledgements = self._acknowledgements, []
        for write in acknowledgements:
            _run_guarded(write)
        deliveries, self._deliveries = self._deliveries, []
        for send in deliveries:
            _run_guarded(send)
        self._is_scheduled = False
        if self._completions or self._acknowledgements or self._deliveries:
            self._schedule()


def _run_guarded(work: Work) -> None:
    """An exception in one callback must not prevent the others from running."""
    try:
        work()
    except Exception:
        _logger.exception("commit callback failed")
