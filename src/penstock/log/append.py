"""What every log engine does around an append: checks, completion callbacks, subscribers."""

from __future__ import annotations

import logging
from collections.abc import Callable

from penstock.log.api import AppendDone, Unsubscribe
from penstock.model import limits
from penstock.model.errors import ArgumentError, MessageTooLarge, PenstockError
from penstock.model.events import EventBatch, Receipt, StoredBatch

Wake = Callable[[Callable[[], None]], object]
"""Runs a function on the owner's thread soon, in the order of the calls. Any thread may call it."""

_logger = logging.getLogger(__name__)


def check_batch(batch: EventBatch) -> PenstockError | None:
    """The error for a batch that does not fit into one record; None if it fits."""
    if len(batch.sections) > limits.RECORD_PAYLOAD_BYTES_MAX:
        return MessageTooLarge(
            f"A batch of {len(batch.sections)} bytes does not fit into one record: "
            f"{limits.RECORD_PAYLOAD_BYTES_MAX} are allowed."
        )
    if not 1 <= batch.count <= limits.BATCH_EVENTS_MAX:
        return ArgumentError(
            f"A batch of {batch.count} events does not fit into one record: "
            f"1 to {limits.BATCH_EVENTS_MAX} are allowed."
        )
    return None


def receipt_for(batch: StoredBatch) -> Receipt:
    return Receipt(
        batch.first_sequence,
        batch.first_sequence + batch.count - 1,
        batch.base_offset,
        batch.enqueued_ms,
    )


def run_callback(done: AppendDone, outcome: Receipt | PenstockError) -> None:
    """Complete an append. An exception in one callback must not prevent the others from running."""
    try:
        done(outcome)
    except Exception:
        _logger.exception("append callback failed")


class Subscribers:
    """Callbacks to run after a commit. A callback may unsubscribe others. Owner's thread."""

    __slots__ = ("_callbacks", "_last_key")

    def __init__(self) -> None:
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._last_key = 0

    def add(self, on_commit: Callable[[], None]) -> Unsubscribe:
        self._last_key += 1
        key = self._last_key
        self._callbacks[key] = on_commit

        def unsubscribe() -> None:
            self._callbacks.pop(key, None)

        return unsubscribe

    def notify(self) -> None:
        if not self._callbacks:
            return
        for key, on_commit in list(self._callbacks.items()):
            if key not in self._callbacks:
                continue  # an earlier callback of this round unsubscribed it
            try:
                on_commit()
            except Exception:
                _logger.exception("commit subscriber failed")
