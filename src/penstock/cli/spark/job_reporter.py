"""Reports a running pipeline to its service, so that `pipeline list` and the portal show it.

A thread sends the reports: a service that is slow or gone never delays a batch.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from penstock.cli.service_lookup import ServiceFlags, find_admin
from penstock.model.errors import PenstockError

if TYPE_CHECKING:
    from penstock.cli.events_options import EventsEndpoint
    from penstock.management.client import ManagementClient
    from penstock.spark.pipelines.runner import PipelineSnapshot, PipelineWatcher

EVERY_S = 5.0
_TIMEOUT_S = 5.0
_LOCAL = ("localhost", "127.0.0.1", "::1")
_NAME_MAX, _TEXT_MAX, _ERROR_MAX = 128, 512, 4096


class JobReporter:
    """A PipelineWatcher that passes everything on to `view`, and stores the last snapshot. Its
    thread sends the snapshot every few seconds and at the end."""

    def __init__(
        self, client: ManagementClient | None, name: str, master: str, view: PipelineWatcher
    ) -> None:
        self.ui_url = ""
        self.is_failed = False
        self.rows, self.note = view.rows, view.note
        self._view = view
        self._client = client
        self._name = name[:_NAME_MAX]
        self._master = master[:_TEXT_MAX]
        self._snapshot: PipelineSnapshot | None = None
        self._ended = threading.Event()

    def saw(self, shot: PipelineSnapshot) -> None:
        self._snapshot = shot
        self._view.saw(shot)

    def send_reports(self) -> None:
        """Until `end`; in the reporter's own thread."""
        self._send("Starting")
        while not self._ended.wait(EVERY_S):
            self._send(None)
        self._send("Failed" if self.is_failed else "Stopped")

    def end(self) -> None:
        self._ended.set()

    def _send(self, state: str | None) -> None:
        if self._client is None:
            return
        last = self._snapshot
        try:
            self._client.put_job(
                self._name,
                kind="pipeline",
                state=state or (last.state if last is not None else "Starting"),
                pid=os.getpid(),
                master=self._master,
                ui_url=self.ui_url[:_TEXT_MAX],
                rows_per_second=None if last is None else round(last.rows_per_second, 1),
                batch_seconds=None if last is None else last.batch_seconds,
                lag_events=None if last is None else last.lag_events,
                last_error="" if last is None else last.last_error[:_ERROR_MAX],
            )
        except (PenstockError, OSError):
            return  # the next report has newer numbers


@contextmanager
def report_job(
    name: str, master: str, endpoint: EventsEndpoint, view: PipelineWatcher
) -> Iterator[JobReporter]:
    """Report until the block ends; an exception in it is reported as a failure."""
    reporter = JobReporter(_find_client(endpoint), name, master, view)
    thread = threading.Thread(target=reporter.send_reports, name="penstock-job", daemon=True)
    thread.start()
    try:
        yield reporter
    except BaseException:
        reporter.is_failed = True
        raise
    finally:
        reporter.end()
        thread.join(_TIMEOUT_S * 2)


def _find_client(endpoint: EventsEndpoint) -> ManagementClient | None:
    """None unless events and administration are of the same service: a pipeline that reads from
    Azure is not reported to the service in ./penstock-data."""
    from penstock.client import parse_connection_string

    is_named = endpoint.data is not None or endpoint.context is not None
    is_local = parse_connection_string(endpoint.connection_string).host in _LOCAL
    if not (is_named or is_local or os.environ.get("PENSTOCK_ADMIN_URL")):
        return None
    flags = ServiceFlags(data=endpoint.data, context=endpoint.context)
    try:
        return find_admin(flags).client(timeout_s=_TIMEOUT_S)
    except (PenstockError, OSError):
        return None
