"""Capture beside the broker: a process of its own, started when a hub needs it and watched.

A service that captures nothing pays nothing: no process, no Spark, no memory.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

import msgspec

from penstock.broker import Broker
from penstock.capture.description import CaptureDescription
from penstock.capture.destinations import resolve_destination
from penstock.capture.runs import load_runs
from penstock.catalog.api import Catalog, CatalogChange
from penstock.management.capture_registry import CaptureRegistry, CaptureState, CaptureStatus
from penstock.management.permissions import ProcessRole
from penstock.model.clock import Clock
from penstock.model.entities import Hub, Namespace
from penstock.model.errors import PenstockError
from penstock.service.admin_tokens import token_file
from penstock.service.child_processes import (
    ChildProcess,
    ChildProcesses,
    ChildState,
    ChildStatus,
    Probe,
)
from penstock.service.config.settings import Settings, destinations_of
from penstock.service.periodic_tasks import PeriodicTask, TurnBudget
from penstock.service.readiness import Finding, State
from penstock.service.runtime_description import RuntimeDescription

NAME = "capture"
_NEEDED = ("pyspark", "pyarrow", "fsspec", "isal")
_MISSING = (
    "Capture runs on Spark, and {} is not installed here: pip install 'penstock[capture]', or run "
    "'penstock capture run' on a machine that has it."
)
_FLAGS = ("host", "amqp_port", "amqps_port", "https_port", "admin_port")
_WARN_EVERY_MS = 600_000
_SUPERVISE_EVERY_S = 60.0  # at the latest; a change of the catalog is looked at at once
_HUNG_MS = 300_000  # the job asks every other second, but not while Spark starts or storage is slow
_START_S = 300.0  # to its first question: on a busy machine Python alone takes its time
_ENDS_MAX = 3  # in a row; fewer happen
_log = logging.getLogger("penstock.capture")


class CaptureSupervisor:
    """Keeps the job's process as long as some hub needs it. Used on the loop's thread."""

    def __init__(
        self,
        children: ChildProcesses,
        catalog: Catalog,
        registry: CaptureRegistry,
        child: ChildProcess,
        clock: Clock,
    ) -> None:
        self._children = children
        self._catalog = catalog
        self._registry = registry
        self._child = msgspec.structs.replace(child, heard=self._hear)
        self._ending = ""  # what there is to say of a process that keeps ending
        self._task = PeriodicTask(
            "capture supervision", self._supervise, clock, interval_s=_SUPERVISE_EVERY_S
        )
        self.record = self._task.record
        self.is_started = False
        self._unsubscribe: Callable[[], None] | None = None

    def start(self) -> None:
        self._unsubscribe = self._catalog.subscribe(self._on_change)
        self._task.start()
        self.is_started = True

    def _on_change(self, change: CatalogChange) -> None:
        if isinstance(change.entity, Namespace | Hub):
            self._task.wake()

    async def close(self) -> None:
        if self._unsubscribe is not None:
            self._unsubscribe()
        await self._task.close()
        await self._children.stop(NAME)

    async def _supervise(self) -> str | None:
        """Start or stop the process as the catalog asks; return which hubs cannot be judged."""
        wanted, problem = await self._is_wanted()
        if wanted and (missing := missing_packages()):
            trouble = _MISSING.format(", ".join(missing))
            if self._registry.trouble != trouble:
                _log.warning("%s", trouble)
            self._registry.trouble = trouble
            return problem
        self._registry.trouble = self._ending
        runs = any(each.name == NAME for each in self._children.status())
        if wanted and not runs:
            _log.info("capture_started")
            self._children.start(self._child)
        elif runs and not wanted:
            _log.info("capture_stopped reason=no_hub_is_captured")
            await self._children.stop(NAME)
        return problem

    def _hear(self, status: ChildStatus) -> None:
        """A process that answers speaks for itself; of one that never gets so far we have to."""
        is_down = status.state in (ChildState.STARTING, ChildState.WAITING)
        self._ending = _describe_exit(status) if is_down and status.in_vain >= _ENDS_MAX else ""
        self._registry.trouble = self._ending

    async def _is_wanted(self) -> tuple[bool, str | None]:
        """Whether some hub has something to capture and a destination that exists; and the first
        hub whose Capture settings cannot be read."""
        problem: str | None = None
        budget = TurnBudget()
        for namespace in self._catalog.namespaces():
            for hub in self._catalog.hubs(namespace.name):
                await budget.spend()
                if not hub.metadata.get("captureRuns"):
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
        for run in load_runs(hub.metadata["captureRuns"]):
            settings = CaptureDescription.of(run.description or hub.metadata["capture"])
            with contextlib.suppress(PenstockError):
                resolve_destination(
                    self._registry.destinations, settings.account, settings.container
                )
                return True
        return False


class CaptureServices:
    """All of Capture that the service has: what is known of it, who watches, who runs it."""

    def __init__(
        self, settings: Settings, broker: Broker, catalog: Catalog, data: Path, clock: Clock
    ) -> None:
        self._settings = settings
        self._catalog = catalog
        self.registry = CaptureRegistry(destinations_of(settings.capture, data))

        def ends(hub: Hub) -> dict[str, int]:
            runtime = broker.hub(hub.namespace, hub.name)
            return {
                partition: runtime.status(index).last_sequence + 1
                for index, partition in enumerate(runtime.partition_ids)
            }

        self._clock = clock
        self.watch = CaptureMonitor(catalog, self.registry, ends, clock.now_ms)

    def start(self, children: ChildProcesses, facts: RuntimeDescription) -> CaptureSupervisor:
        """Its process comes when a hub needs it: it is no door, and not waited for."""
        probe = job_is_polling(children, self.registry, self._clock.now_ms)
        child = capture_child(self._settings, facts, probe)
        supervisor = CaptureSupervisor(children, self._catalog, self.registry, child, self._clock)
        if self._settings.capture.run:
            supervisor.start()
        return supervisor


def missing_packages() -> list[str]:
    return [name for name in _NEEDED if find_spec(name) is None]


def job_is_polling(
    children: ChildProcesses, registry: CaptureRegistry, now_ms: Callable[[], int]
) -> Probe:
    """Whether the job still asks what to do. A process that is new has to ask for itself: the last
    question may be of the one before it."""

    async def asks() -> bool:
        at_ms = now_ms()
        ago_ms = registry.asked_ms_ago(at_ms)
        if ago_ms is None or ago_ms < 0:
            return False  # nobody did, or the clock was set back: it asks again in a moment
        for status in children.status():
            if status.name == NAME and status.state is ChildState.STARTING:
                return at_ms - ago_ms > status.since_ms
        return ago_ms < _HUNG_MS

    return asks


def _describe_exit(status: ChildStatus) -> str:
    code = status.last_exit
    if code is None:
        how = "no process at all"
    else:
        how = f"exit code {code}" if code >= 0 else f"signal {-code}"
    return (
        f"The capture process ended {status.in_vain} times in a row, last with {how}: see the "
        "service's log. It is started again."
    )


def capture_child(settings: Settings, facts: RuntimeDescription, probe: Probe) -> ChildProcess:
    """`penstock capture run`, told by its environment where the service is: others can read a
    command's words."""
    environ = {
        name: value
        for name, value in os.environ.items()
        # These lead to another service, or are more than the job needs. All else is for the job,
        # which loads what we loaded: credentials of destinations, and keys.
        if name not in ("PENSTOCK_CONNECTION_STRING", "PENSTOCK_CONTEXT", "PENSTOCK_ADMIN_TOKEN")
    }
    # Flags that won over file and environment: without them it might refuse what we could load.
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
        "MALLOC_ARENA_MAX": "2",  # Java's threads would keep an arena of memory each
    }
    environ.pop("PENSTOCK_CONFIG", None)
    if settings.config is not None:
        environ["PENSTOCK_CONFIG"] = str(settings.config.resolve())
    if facts.amqp is not None and settings.is_loopback:
        environ["PENSTOCK_CAPTURE_AMQP"] = facts.amqp
    command = (sys.executable, "-m", "penstock.cli", "capture", "run")
    return ChildProcess(NAME, command, environ, probe, start_s=_START_S)


class CaptureMonitor:
    """What health and metrics tell, and the log warns of, of all captures."""

    def __init__(
        self,
        catalog: Catalog,
        registry: CaptureRegistry,
        ends: Callable[[Hub], Mapping[str, int]],
        now_ms: Callable[[], int],
    ) -> None:
        self._catalog = catalog
        self._registry = registry
        self._ends = ends
        self._now_ms = now_ms
        self._warned: dict[str, int] = {}

    async def statuses(self) -> list[CaptureStatus]:
        """Of every hub with a capture description, a bounded number of hubs per event-loop turn. A
        hub whose settings cannot be read is left out; the capture supervision names it."""
        found: list[CaptureStatus] = []
        budget = TurnBudget()
        for namespace in self._catalog.namespaces():
            for hub in self._catalog.hubs(namespace.name):
                await budget.spend()
                if "capture" in hub.metadata:
                    with contextlib.suppress(Exception):
                        ends = self._ends(hub)
                        found.append(self._registry.status(hub, ends, now_ms=self._now_ms()))
                        await budget.spend(hub.partition_count)
        return found

    @staticmethod
    def check(statuses: Sequence[CaptureStatus]) -> Finding:
        """Capture that does not run is named; it does not make the broker unready."""
        for state in (CaptureState.FAILED, CaptureState.WAITING):
            bad = [each for each in statuses if each.state is state]
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
        """Every ten minutes the same one, not more often."""
        now_ms = self._now_ms()
        for status in await self.statuses():
            key = f"{status.namespace}/{status.hub}"
            if status.warning_text is None:
                self._warned.pop(key, None)
            elif now_ms - self._warned.get(key, -_WARN_EVERY_MS) >= _WARN_EVERY_MS:
                self._warned[key] = now_ms
                _log.warning("%s", status.warning_text)
