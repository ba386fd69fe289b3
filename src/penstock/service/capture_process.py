"""The capture job's process, started while a hub is captured, and the health of Capture.

A service that captures nothing has no such process, no Spark and no memory for it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from penstock.capture.description import parse_description
from penstock.capture.destinations import resolve_destination
from penstock.capture.status import CaptureState, CaptureStatus
from penstock.catalog.api import Catalog, CatalogChange
from penstock.management.capture_registry import CaptureRegistry
from penstock.management.permissions import ProcessRole
from penstock.model.clock import Clock
from penstock.model.entities import Hub, Namespace
from penstock.model.errors import PenstockError
from penstock.model.extras import MissingPackage, require_extra
from penstock.service.admin_tokens import token_file
from penstock.service.child_processes import ChildProcess, ChildState, ChildStatus
from penstock.service.config.settings import Settings
from penstock.service.periodic_tasks import PeriodicTask, TurnBudget
from penstock.service.readiness import Finding, State
from penstock.service.runtime_description import RuntimeDescription

NAME = "capture"
_FLAGS = ("host", "amqp_port", "amqps_port", "https_port", "admin_port")
_WARN_EVERY_MS = 600_000
_SUPERVISE_EVERY_S = 60.0  # at the latest; a change of the catalog is handled at once
_HUNG_MS = 300_000  # the job polls every two seconds, but not while Spark starts or storage is slow
_START_S = 300.0  # until its first poll: on a busy machine Python alone takes long
_EXITS_MAX = 3  # in a row, before it is reported
_log = logging.getLogger("penstock.capture")


class CaptureSupervisor:
    """Keeps the job's process while some hub needs it. Used on the event loop's thread."""

    def __init__(
        self, catalog: Catalog, registry: CaptureRegistry, child: ChildProcess, clock: Clock
    ) -> None:
        self._catalog = catalog
        self._registry = registry
        self._child = child
        self._clock = clock
        child.on_status, child.probe = self._on_status, self.is_polling
        self._exit_error = ""  # of a process that exits again and again
        self.task = PeriodicTask(
            "capture supervision", self._supervise, clock, interval_s=_SUPERVISE_EVERY_S
        )
        self._unsubscribe = catalog.subscribe(self._on_change)

    def _on_change(self, change: CatalogChange) -> None:
        if isinstance(change.entity, Namespace | Hub):
            self.task.wake()

    async def close(self) -> None:
        self._unsubscribe()
        await self.task.close()
        await self._child.stop()

    async def _supervise(self) -> str | None:
        """Start or stop the process as the catalog requires. Returns the hub whose settings cannot
        be read."""
        is_needed, problem = await self._is_needed()
        try:
            if is_needed:
                require_extra("capture")
        except MissingPackage as missing:
            self._registry.trouble = f"{missing} (or 'penstock capture run' where they are)"
            return problem
        self._registry.trouble = self._exit_error
        if is_needed and not self._child.is_started:
            _log.info("capture_started")
            self._child.start()
        elif self._child.is_started and not is_needed:
            _log.info("capture_stopped reason=no_hub_is_captured")
            await self._child.stop()
        return problem

    def _on_status(self, status: ChildStatus) -> None:
        """Report a process that exits before it can report by itself."""
        is_down = status.state in (ChildState.STARTING, ChildState.WAITING)
        self._exit_error = (
            _describe_exit(status) if is_down and status.in_vain >= _EXITS_MAX else ""
        )
        self._registry.trouble = self._exit_error

    async def is_polling(self) -> bool:
        """Whether the job still polls. A new process has to poll itself: the last request may be
        of the process before it."""
        now_ms = self._clock.now_ms()
        ago_ms = self._registry.last_poll_age_ms(now_ms)
        if ago_ms is None or ago_ms < 0:
            return False  # no job ever did, or the clock was set back: it polls again soon
        status = self._child.status
        if status.state is ChildState.STARTING:
            return now_ms - ago_ms > status.since_ms
        return ago_ms < _HUNG_MS

    async def _is_needed(self) -> tuple[bool, str | None]:
        """Whether some hub has something to capture and a destination that exists; and the first
        hub whose Capture settings cannot be read."""
        problem: str | None = None
        budget = TurnBudget()
        for namespace in self._catalog.namespaces():
            for hub in self._catalog.hubs(namespace.name):
                await budget.spend()
                if not hub.has_capture_runs:
                    continue
                try:
                    if self._is_usable(hub):
                        return True, problem
                except Exception as error:  # noqa: BLE001 - the other hubs go on
                    name = f"{hub.namespace}/{hub.name}"
                    _log.exception("capture_settings_unreadable hub=%s", name)
                    problem = problem or f"Capture settings of {name} cannot be read: {error!r}"
        return False, problem

    def _is_usable(self, hub: Hub) -> bool:
        capture = hub.capture
        for run in capture.runs:
            settings = parse_description(capture.description_of(run))
            with contextlib.suppress(PenstockError):
                resolve_destination(
                    self._registry.destinations, settings.account, settings.container
                )
                return True
        return False


def _describe_exit(status: ChildStatus) -> str:
    code = status.last_exit
    if code is None:
        how = "no process started"
    else:
        how = f"exit code {code}" if code >= 0 else f"signal {-code}"
    return (
        f"The capture process ended {status.in_vain} times in a row, last with {how}: see the "
        "service's log. It is restarted."
    )


def capture_child(settings: Settings, facts: RuntimeDescription, clock: Clock) -> ChildProcess:
    """`penstock capture run`. The environment names the service: other users can read command-line
    arguments."""
    environ = {
        name: value
        for name, value in os.environ.items()
        # These name another service, or are more than the job needs. The job loads the same
        # configuration as the service and needs the others: credentials of destinations, keys.
        if name not in ("PENSTOCK_CONNECTION_STRING", "PENSTOCK_CONTEXT", "PENSTOCK_ADMIN_TOKEN")
    }
    # Flags take precedence over file and environment; the job must load the same settings.
    environ |= {
        f"PENSTOCK_{field.upper()}": str(value)
        for field in _FLAGS
        if (value := getattr(settings, field)) is not None
    }
    environ |= {
        "PENSTOCK_ADMIN_URL": facts.admin,
        "PENSTOCK_ADMIN_TOKEN_FILE": str(token_file(Path(facts.data), ProcessRole.CAPTURE)),
        "PENSTOCK_CA_FILE": facts.ca_file,
        "PENSTOCK_DATA": facts.data,
        "PENSTOCK_CAPTURE_STATE": str(settings.data.resolve() / "capture"),
        "PENSTOCK_LOG_LEVEL": settings.log_level,
        "MALLOC_ARENA_MAX": "2",  # each thread of Java would keep an arena of memory
    }
    environ.pop("PENSTOCK_CONFIG", None)
    if settings.config is not None:
        environ["PENSTOCK_CONFIG"] = str(settings.config.resolve())
    if facts.amqp is not None and settings.is_loopback:
        environ["PENSTOCK_CAPTURE_AMQP"] = facts.amqp
    command = (sys.executable, "-m", "penstock.cli", "capture", "run")
    return ChildProcess(NAME, command, environ, clock, start_s=_START_S)


@dataclass(eq=False)
class CaptureMonitor:
    """The status of all captured hubs for health, metrics and log warnings."""

    catalog: Catalog
    registry: CaptureRegistry
    ends: Callable[[Hub], Mapping[str, int]]
    now_ms: Callable[[], int]
    _warned: dict[str, int] = field(default_factory=dict)

    async def statuses(self) -> list[CaptureStatus]:
        """The status of every hub with a capture description, a bounded number of hubs per
        event-loop turn. A hub whose settings cannot be read is left out; supervision reports it."""
        statuses: list[CaptureStatus] = []
        budget = TurnBudget()
        for namespace in self.catalog.namespaces():
            for hub in self.catalog.hubs(namespace.name):
                await budget.spend()
                if hub.capture_description is not None:
                    with contextlib.suppress(Exception):
                        ends = self.ends(hub)
                        statuses.append(self.registry.status(hub, ends, now_ms=self.now_ms()))
                        await budget.spend(hub.partition_count)
        return statuses

    @staticmethod
    def check(statuses: Sequence[CaptureStatus]) -> Finding:
        """Capture that does not run is reported; it does not make the broker unready."""
        for state in (CaptureState.FAILED, CaptureState.WAITING):
            bad = [status for status in statuses if status.state is state]
            if bad:
                more = f" (and {len(bad) - 1} more hubs)" if len(bad) > 1 else ""
                text = f"{bad[0].warning_text}{more}"
                return Finding(NAME, State.FAIL, text)
        if any(each.state is not CaptureState.OFF for each in statuses):
            return Finding(NAME, State.OK, "running")
        return Finding(NAME, State.OFF, "no event hub is captured")

    @staticmethod
    def warnings(statuses: Sequence[CaptureStatus]) -> list[str]:
        return [warning for status in statuses if (warning := status.warning_text)]

    async def log_warnings(self) -> None:
        """The same warning at most every ten minutes."""
        now_ms = self.now_ms()
        for status in await self.statuses():
            key = f"{status.namespace}/{status.hub}"
            if status.warning_text is None:
                self._warned.pop(key, None)
            elif now_ms - self._warned.get(key, -_WARN_EVERY_MS) >= _WARN_EVERY_MS:
                self._warned[key] = now_ms
                _log.warning("%s", status.warning_text)
