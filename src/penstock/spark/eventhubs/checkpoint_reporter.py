"""The position of a query, told to the service: `penstock group lag` shows it beside the others.

Spark's own checkpoint decides where a query goes on; this is for whoever watches. So it happens in
a thread, and only the newest position counts. A position that cannot be reported is logged: the
first time as a warning with the remedy, later at level INFO.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from penstock.checkpoints.records import GroupNames
from penstock.model.backoff import Backoff
from penstock.model.checkpoints import Checkpoint
from penstock.model.connection_string import parse_connection_string
from penstock.model.errors import PenstockError
from penstock.spark.eventhubs.options import ReadOptions

_log = logging.getLogger("penstock.spark")
_BACKOFF = Backoff(30.0, 600.0)
_STOP_S = 5.0
_START = Checkpoint(partition_id="", offset="-1", sequence_number=-1)

OffsetOf = Callable[[str, int], str | None]


class PositionStore(Protocol):
    """`penstock.checkpoints.sqlite_file.CheckpointBackend`, as far as it is used here."""

    def save(self, names: GroupNames, checkpoint: Checkpoint) -> None: ...
    def close(self) -> None: ...


def open_checkpoint_reporter(
    options: ReadOptions, offset_of: OffsetOf, *, is_penstock: Callable[[], bool]
) -> CheckpointReporter | None:
    """None where nobody would listen: switched off, or Azure's own service."""
    target = options.target
    if not options.commit_to_service or not (target.https_url or is_penstock()):
        return None
    host = parse_connection_string(target.connection_string.reveal()).host.casefold()
    names = GroupNames(host, target.eventhub_name, options.consumer_group)

    def open_store() -> PositionStore:
        from penstock.checkpoints.service_client import ServiceBackend

        return ServiceBackend.from_connection_string(
            target.connection_string.reveal(),
            https_url=target.https_url,
            ca_file=target.ca_file,
        )

    return CheckpointReporter(names, open_store, offset_of)


class CheckpointReporter:
    """Takes positions (next sequence numbers by partition) and saves the newest. Close it."""

    def __init__(
        self,
        names: GroupNames,
        open_store: Callable[[], PositionStore],
        offset_of: OffsetOf,
        *,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._names = names
        self._open_store = open_store
        self._offset_of = offset_of
        self._monotonic_s = monotonic_s
        self._store: PositionStore | None = None
        self._saved: dict[str, int] = {}
        self._wanted: dict[str, int] = {}
        self._again_at_s = 0.0
        self._failures = 0  # in a row
        self._changed = threading.Condition()
        self._is_busy = False
        self._is_closed = False
        self._has_warned = False
        self._thread = threading.Thread(target=self._run, name="penstock-position", daemon=True)
        self._thread.start()

    def note(self, positions: Mapping[str, int]) -> None:
        """Everything before these is processed. Returns at once."""
        with self._changed:
            self._wanted.update(positions)
            self._changed.notify_all()

    def flush(self, timeout_s: float = _STOP_S) -> bool:
        """Whether everything that was noted is saved, or was given up, within that time."""
        deadline_s = self._monotonic_s() + timeout_s
        with self._changed:
            while self._is_busy or self._due():
                left_s = deadline_s - self._monotonic_s()
                if left_s <= 0:
                    return False
                self._changed.wait(left_s)
        return True

    def close(self) -> None:
        """Harmless when done before."""
        self.flush()
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join(_STOP_S)

    # --- the thread -----------------------------------------------------------------------------

    def _due(self) -> dict[str, int]:
        if self._monotonic_s() < self._again_at_s:
            return {}
        return {k: v for k, v in self._wanted.items() if self._saved.get(k) != v}

    def _run(self) -> None:
        while True:
            with self._changed:
                self._is_busy = False
                self._changed.notify_all()
                while not (self._is_closed or self._due()):
                    self._changed.wait(_BACKOFF.first_s)
                if self._is_closed:
                    break
                due = self._due()
                self._is_busy = True
            self._save(due)
        if self._store is not None:
            with contextlib.suppress(Exception):
                self._store.close()

    def _save(self, due: Mapping[str, int]) -> None:
        try:
            if self._store is None:
                self._store = self._open_store()
            for partition_id, position in due.items():
                self._store.save(self._names, self._checkpoint(partition_id, position))
                self._saved[partition_id] = position
            self._failures = 0
        except (PenstockError, OSError) as error:
            # The text of our errors never holds a secret.
            self._failures += 1
            pause_s = _BACKOFF.pause_s(self._failures)
            level = logging.INFO if self._has_warned else logging.WARNING
            self._has_warned = True
            _log.log(
                level,
                "eventhubs: the position of this query cannot be reported to the service, so "
                "`penstock group lag` does not show it: %s Set the options https.url (the HTTPS "
                "address of the service) and tls.caFile (its CA file), or "
                "commitToService=false. Next attempt in %.0f s.",
                error,
                pause_s,
            )
            self._again_at_s = self._monotonic_s() + pause_s

    def _checkpoint(self, partition_id: str, position: int) -> Checkpoint:
        """The last event that was processed, as event processors note it."""
        offset = self._offset_of(partition_id, position - 1) if position > 0 else None
        if offset is None and position > 0:
            # Gone meanwhile: a reader that goes on there begins with the oldest one.
            return Checkpoint(partition_id=partition_id, offset="-1", sequence_number=position - 1)
        if offset is None:
            return Checkpoint(
                partition_id=partition_id,
                offset=_START.offset,
                sequence_number=_START.sequence_number,
            )
        return Checkpoint(partition_id=partition_id, offset=offset, sequence_number=position - 1)
