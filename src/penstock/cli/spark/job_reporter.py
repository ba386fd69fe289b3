"""A running pipeline tells its service how it is, when there is one that listens.

A thread of its own: a service that is slow, or gone, never holds up a batch.
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
    from penstock.spark.pipelines.runner import PipelineSnapshot

EVERY_S = 5.0
_TIMEOUT_S = 5.0
_NEAR = ("localhost", "127.0.0.1", "::1")
_NAME_MAX, _TEXT_MAX, _ERROR_MAX = 128, 512, 4096


class JobReporter:
    """Keeps the last shot; its thread sends it every few seconds, and at the end."""

    def __init__(self, client: ManagementClient | None, name: str, master: str) -> None:
        self.ui_url = ""
        self.is_failed = False
        self._client = client
        self._name = name[:_NAME_MAX]
        self._master = master[:_TEXT_MAX]
        self._shot: PipelineSnapshot | None = None
        self._ended = threading.Event()

    def saw(self, shot: PipelineSnapshot) -> None:
        self._shot = shot

    def serve(self) -> None:
        self._send("Starting")
        while not self._ended.wait(EVERY_S):
            self._send(None)
        self._send("Failed" if self.is_failed else "Stopped")

    def end(self) -> None:
        self._ended.set()

    def _send(self, state: str | None) -> None:
        if self._client is None:
            return
        shot = self._shot
        try:
            self._client.put_job(
                self._name,
                kind="pipeline",
                state=state or (shot.state if shot is not None else "Starting"),
                pid=os.getpid(),
                master=self._master,
                ui_url=self.ui_url[:_TEXT_MAX],
                rows_per_second=None if shot is None else round(shot.rows_per_second, 1),
                batch_seconds=None if shot is None else shot.batch_seconds,
                lag_events=None if shot is None else shot.lag_events,
                last_error="" if shot is None else shot.last_error[:_ERROR_MAX],
            )
        except (PenstockError, OSError):
            return  # the next one tells more


@contextmanager
def report_job(name: str, master: str | None, wire: EventsEndpoint) -> Iterator[JobReporter]:
    """To the service that flags, environment or directory name; to nobody where there is none."""
    reporter = JobReporter(_client(wire), name, master or "local[*]")
    thread = threading.Thread(target=reporter.serve, name="penstock-job", daemon=True)
    thread.start()
    try:
        yield reporter
    except BaseException:
        reporter.is_failed = True
        raise
    finally:
        reporter.end()
        thread.join(_TIMEOUT_S * 2)


def _client(wire: EventsEndpoint) -> ManagementClient | None:
    """Only where events and administration are of one service: a pipeline that reads from Azure is
    no business of whatever runs in ./penstock-data."""
    from penstock.client import parse_connection_string

    is_named = wire.data is not None or wire.context is not None
    is_near = parse_connection_string(wire.connection_string).host in _NEAR
    if not (is_named or is_near or os.environ.get("PENSTOCK_ADMIN_URL")):
        return None
    try:
        return find_admin(ServiceFlags(data=wire.data, context=wire.context)).client(
            timeout_s=_TIMEOUT_S
        )
    except (PenstockError, OSError):
        return None
