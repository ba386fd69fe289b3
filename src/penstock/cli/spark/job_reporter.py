"""Reports a running pipeline to its service, if there is one.

Reports are sent by a thread of their own: a service that is slow or stopped never delays a batch.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from penstock.model.errors import PenstockError

if TYPE_CHECKING:
    from penstock.cli.events_options import EventsEndpoint
    from penstock.management.client import ManagementClient
    from penstock.spark.pipelines.runner import PipelineRun

_INTERVAL_S = 5.0
_TIMEOUT_S = 5.0
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_NAME_MAX, _TEXT_MAX, _ERROR_MAX = 128, 512, 4096


class JobReporter:
    """Sends the pipeline's last snapshot every few seconds. Set `run` when there is one."""

    def __init__(self, client: ManagementClient, name: str, master: str) -> None:
        self.run: PipelineRun | None = None
        self.ui_url = ""
        self._client = client
        self._name = name[:_NAME_MAX]
        self._master = master[:_TEXT_MAX]

    def send_until(self, ended: threading.Event) -> None:
        self.send("Starting")
        while not ended.wait(_INTERVAL_S):
            self.send(None)

    def send(self, state: str | None) -> None:
        """`state` None: that of the last snapshot."""
        snapshot = None if self.run is None else self.run.snapshot
        try:
            self._client.put_job(
                self._name,
                kind="pipeline",
                state=state or ("Starting" if snapshot is None else snapshot.state),
                pid=os.getpid(),
                master=self._master,
                ui_url=self.ui_url[:_TEXT_MAX],
                rows_per_second=None if snapshot is None else round(snapshot.rows_per_second, 1),
                batch_seconds=None if snapshot is None else snapshot.batch_seconds,
                lag_events=None if snapshot is None else snapshot.lag_events,
                last_error="" if snapshot is None else snapshot.last_error[:_ERROR_MAX],
            )
        except (PenstockError, OSError):
            return  # the next report replaces this one


@contextmanager
def report_job(name: str, master: str, endpoint: EventsEndpoint) -> Iterator[JobReporter | None]:
    """Report to the service that flags, environment or directory name; None if there is none."""
    client = _find_client(endpoint)
    if client is None:
        yield None
        return
    reporter, ended = JobReporter(client, name, master), threading.Event()
    thread = threading.Thread(
        target=reporter.send_until, args=(ended,), name="penstock-job", daemon=True
    )
    thread.start()
    state = "Failed"
    try:
        yield reporter
        state = "Stopped"
    finally:
        ended.set()
        thread.join(_TIMEOUT_S * 2)
        reporter.send(state)


def _find_client(endpoint: EventsEndpoint) -> ManagementClient | None:
    """Only if events and administration are of one service: a pipeline that reads from Azure is not
    reported to the service that happens to run in ./penstock-data."""
    is_named = endpoint.data is not None or endpoint.context is not None
    is_local = endpoint.endpoint.host in _LOOPBACK
    if not (is_named or is_local or os.environ.get("PENSTOCK_ADMIN_URL")):
        return None
    try:
        return endpoint.find_admin().client(timeout_s=_TIMEOUT_S)
    except (PenstockError, OSError):
        return None
