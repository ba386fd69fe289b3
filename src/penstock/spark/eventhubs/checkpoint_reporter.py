"""Reports the position of a query to the service, so that `penstock group lag` shows it.

Only Spark's own checkpoint decides where a query continues, so reports are sent by a thread of
their own and only the newest position counts. A position that cannot be reported is logged: the
first time as a warning with the remedy, later at level INFO.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.checkpoints.records import GroupNames
from penstock.checkpoints.service_client import ServiceBackend, locate_service
from penstock.model.backoff import Backoff
from penstock.model.checkpoints import Checkpoint
from penstock.model.connection_string import parse_connection_string
from penstock.model.errors import PenstockError
from penstock.spark.eventhubs.options import ReadOptions
from penstock.spark.eventhubs.planner import sequence_numbers

_log = logging.getLogger("penstock.spark")
_BACKOFF = Backoff(30.0, 600.0)
_STOP_S = 5.0
_NO_OFFSET = "-1"  # before the oldest event

# Returns the service's offset of an event (partition id, sequence number); None if it is gone.
ServiceOffset = Callable[[str, int], str | None]


def open_checkpoint_reporter(
    options: ReadOptions, service_offset: ServiceOffset, *, is_penstock: Callable[[], bool]
) -> CheckpointReporter | None:
    """None if reports are switched off or the service is not Penstock."""
    target = options.target
    if not options.commit_to_service or not (target.https_url or is_penstock()):
        return None
    host = parse_connection_string(target.connection_string.reveal()).host.casefold()
    names = GroupNames(host, target.eventhub_name, options.consumer_group)

    def open_store() -> ServiceBackend:
        service = locate_service(
            target.connection_string.reveal(), https_url=target.https_url, ca_file=target.ca_file
        )
        return ServiceBackend(service)

    return CheckpointReporter(names, open_store, service_offset)


@dataclass
class CheckpointReporter:
    """Saves the newest positions (next sequence numbers by partition), in a thread of its own. For
    one calling thread. Must be closed."""

    names: GroupNames
    open_store: Callable[[], Any]  # returns a ServiceBackend
    service_offset: ServiceOffset
    monotonic_s: Callable[[], float] = time.monotonic
    _store: Any = None
    _saved: dict[str, int] = field(default_factory=dict)
    _newest: dict[str, int] = field(default_factory=dict)
    _retry_at_s: float = 0.0
    _failures: int = 0  # in a row
    _has_warned: bool = False
    _thread: threading.Thread | None = None

    def report(self, offset: Mapping[str, int]) -> None:
        """Everything before this offset of the query is processed. Returns at once. What could not
        be saved is saved with a later report."""
        self._newest = self._newest | sequence_numbers(offset)
        self._start_saving()

    def flush(self, timeout_s: float = _STOP_S) -> bool:
        """Whether everything that was reported is saved, or failed, within that time."""
        deadline_s = time.monotonic() + timeout_s
        while self._thread is not None and (left_s := deadline_s - time.monotonic()) > 0:
            self._thread.join(left_s)
            self._start_saving()  # what was reported while the thread ended
        return self._thread is None

    def close(self) -> None:
        """Flush. May be called again."""
        is_done = self.flush()
        store, self._store = self._store, None
        if store is not None and is_done:
            with contextlib.suppress(Exception):
                store.close()

    def _due(self) -> dict[str, int]:
        if self.monotonic_s() < self._retry_at_s:
            return {}
        return {k: v for k, v in self._newest.items() if self._saved.get(k) != v}

    def _start_saving(self) -> None:
        if self._thread is not None and self._thread.is_alive():
            return
        self._thread = None
        if self._due():
            self._thread = threading.Thread(
                target=self._save_due, name="penstock-position", daemon=True
            )
            self._thread.start()

    def _save_due(self) -> None:
        while due := self._due():
            self._save(due)

    def _save(self, due: Mapping[str, int]) -> None:
        try:
            if self._store is None:
                self._store = self.open_store()
            for partition_id, position in due.items():
                self._store.save(self.names, self._checkpoint(partition_id, position))
                self._saved[partition_id] = position
            self._failures = 0
        except (PenstockError, OSError) as error:
            # The text of our errors never holds a secret.
            self._failures += 1
            pause_s = _BACKOFF.pause_s(self._failures)
            _log.log(
                logging.INFO if self._has_warned else logging.WARNING,
                "eventhubs: the position of this query cannot be reported to the service, so "
                "`penstock group lag` does not show it: %s Set the options https.url (the HTTPS "
                "address of the service) and tls.caFile (its CA file), or "
                "commitToService=false. Next attempt in %.0f s.",
                error,
                pause_s,
            )
            self._has_warned = True
            self._retry_at_s = self.monotonic_s() + pause_s

    def _checkpoint(self, partition_id: str, position: int) -> Checkpoint:
        """The last event that was processed, as event processors store it. If the event is gone, a
        reader that continues there begins with the oldest event."""
        number = position - 1
        offset = self.service_offset(partition_id, number) if number >= 0 else None
        return Checkpoint(
            partition_id=partition_id,
            offset=_NO_OFFSET if offset is None else offset,
            sequence_number=number,
        )
