"""Capture beside the broker: a process of its own, started when a hub needs it and watched.

A service that captures nothing pays nothing: no process, no Spark, no memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from penstock.broker import Broker
from penstock.capture.description import CaptureSettings
from penstock.capture.destinations import resolve
from penstock.capture.runs import runs_of
from penstock.catalog.api import Catalog
from penstock.management.captures import CaptureRegistry, CaptureState, CaptureStatus
from penstock.model.clock import Clock
from penstock.model.entities import Hub
from penstock.model.errors import PenstockError
from penstock.service.children import Child, Children, ChildState, ChildStatus, Probe
from penstock.service.config_capture import destinations_of
from penstock.service.facts import Facts
from penstock.service.settings import Settings

if TYPE_CHECKING:
    from prometheus_client.core import Metric

NAME = "capture"
_NEEDED = ("pyspark", "pyarrow", "fsspec", "isal")
_MISSING = (
    "Capture runs on Spark, and {} is not installed here: pip install 'penstock[capture]', or run "
    "'penstock capture run' on a machine that has it."
)
_FLAGS = ("host", "amqp_port", "amqps_port", "https_port", "admin_port")
_WARN_EVERY_MS = 600_000
_HUNG_MS = 300_000  # the job asks every other second, but not while Spark starts or storage is slow
_START_S = 300.0  # to its first question: on a busy machine Python alone takes its time
_ENDS_MAX = 3  # in a row; fewer happen
_log = logging.getLogger("penstock.capture")


class CaptureSupervisor:
    """Keeps the job's process as long as some hub needs it. Used on the loop's thread."""

    def __init__(
        self, children: Children, catalog: Catalog, registry: CaptureRegistry, child: Child
    ) -> None:
        self._children = children
        self._catalog = catalog
        self._registry = registry
        self._child = msgspec.structs.replace(child, heard=self._hear)
        self._ending = ""  # what there is to say of a process that keeps ending
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._unsubscribe: Callable[[], None] | None = None

    def start(self) -> None:
        self._unsubscribe = self._catalog.subscribe(self._changed.set)
        self._changed.set()
        self._task = asyncio.get_running_loop().create_task(self._keep())

    async def close(self) -> None:
        if self._unsubscribe is not None:
            self._unsubscribe()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self._children.stop(NAME)

    async def _keep(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            wanted = self.is_wanted()
            if wanted and (missing := missing_packages()):
                self._registry.trouble = _MISSING.format(", ".join(missing))
                _log.warning("%s", self._registry.trouble)
                continue
            self._registry.trouble = self._ending
            runs = any(each.name == NAME for each in self._children.status())
            if wanted and not runs:
                _log.info("capture begins: its process starts")
                self._children.start(self._child)
            elif runs and not wanted:
                _log.info("nothing is captured any more: the capture process ends")
                await self._children.stop(NAME)

    def _hear(self, status: ChildStatus) -> None:
        """A process that answers speaks for itself; of one that never gets so far we have to."""
        is_down = status.state in (ChildState.STARTING, ChildState.WAITING)
        self._ending = _ended(status) if is_down and status.in_vain >= _ENDS_MAX else ""
        self._registry.trouble = self._ending

    def is_wanted(self) -> bool:
        """Whether some hub has something to capture, and a destination that there is."""
        return any(
            self._is_usable(hub)
            for namespace in self._catalog.namespaces()
            for hub in self._catalog.hubs(namespace.name)
            if hub.metadata.get("captureRuns")
        )

    def _is_usable(self, hub: Hub) -> bool:
        for run in runs_of(hub.metadata["captureRuns"]):
            settings = CaptureSettings.of(run.description or hub.metadata["capture"])
            with contextlib.suppress(PenstockError):
                resolve(self._registry.destinations, settings.account, settings.container)
                return True
        return False


class CaptureRoom:
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

        self._now_ms = clock.now_ms
        self.watch = CaptureWatch(catalog, self.registry, ends, clock.now_ms)

    def start(self, children: Children, facts: Facts, token: str) -> CaptureSupervisor:
        """Its process comes when a hub needs it: it is no door, and not waited for."""
        probe = asking(children, self.registry, self._now_ms)
        child = capture_child(self._settings, facts, token, probe)
        supervisor = CaptureSupervisor(children, self._catalog, self.registry, child)
        if self._settings.capture.run:
            supervisor.start()
        return supervisor


def missing_packages() -> list[str]:
    return [name for name in _NEEDED if find_spec(name) is None]


def asking(children: Children, registry: CaptureRegistry, now_ms: Callable[[], int]) -> Probe:
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


def _ended(status: ChildStatus) -> str:
    code = status.last_exit
    if code is None:
        how = "no process at all"
    else:
        how = f"exit code {code}" if code >= 0 else f"signal {-code}"
    return (
        f"The capture process ended {status.in_vain} times in a row, last with {how}: see the "
        "service's log. It is started again."
    )


def capture_child(settings: Settings, facts: Facts, token: str, probe: Probe) -> Child:
    """`penstock capture run`, told by its environment where the service is: others can read a
    command's words."""
    environ = {
        name: value
        for name, value in os.environ.items()
        # Both would lead to another service. All else is for the job, which loads what we loaded:
        # credentials of destinations, and keys, which its token can list anyway.
        if name not in ("PENSTOCK_CONNECTION_STRING", "PENSTOCK_CONTEXT")
    }
    # Flags that won over file and environment: without them it might refuse what we could load.
    environ |= {
        f"PENSTOCK_{field.upper()}": str(value)
        for field in _FLAGS
        if (value := getattr(settings, field)) is not None
    }
    environ |= {
        "PENSTOCK_ADMIN_URL": facts.admin,
        "PENSTOCK_ADMIN_TOKEN": token,
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
    return Child(NAME, command, environ, probe, start_s=_START_S)


class CaptureWatch:
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

    def statuses(self) -> list[CaptureStatus]:
        return [
            self._registry.status(hub, self._ends(hub), now_ms=self._now_ms())
            for namespace in self._catalog.namespaces()
            for hub in self._catalog.hubs(namespace.name)
            if "capture" in hub.metadata
        ]

    def check(self) -> str:
        """One word for `/ready`: a capture that waits does not make the broker unready."""
        states = {status.state for status in self.statuses()}
        return "ok" if states - {CaptureState.OFF} else "off"

    def warnings(self) -> list[str]:
        return [warning for status in self.statuses() if (warning := status.warning)]

    def log_warnings(self) -> None:
        """Every ten minutes the same one, not more often."""
        now_ms = self._now_ms()
        for status in self.statuses():
            key = f"{status.namespace}/{status.hub}"
            if status.warning is None:
                self._warned.pop(key, None)
            elif now_ms - self._warned.get(key, -_WARN_EVERY_MS) >= _WARN_EVERY_MS:
                self._warned[key] = now_ms
                _log.warning("%s", status.warning)

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        labels = ("namespace", "hub")
        families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {
            "backlog_events": GaugeMetricFamily(
                "penstock_capture_backlog_events", "events in no captured file yet", labels=labels
            ),
            "backlog_seconds": GaugeMetricFamily(
                "penstock_capture_backlog_seconds", "age of the oldest such event", labels=labels
            ),
            "last_file_ms": GaugeMetricFamily(
                "penstock_capture_last_file_timestamp_seconds",
                "when the newest file's window closed",
                labels=labels,
            ),
            "files": CounterMetricFamily("penstock_capture_files", "files captured", labels=labels),
            "events": CounterMetricFamily(
                "penstock_captured_messages", "events in those files", labels=labels
            ),
            "lost_events": CounterMetricFamily(
                "penstock_capture_lost_messages", "dropped by retention before", labels=labels
            ),
        }
        state = GaugeMetricFamily(
            "penstock_capture_state", "1 for the state that it is in", labels=(*labels, "state")
        )
        for status in self.statuses():
            where = [status.namespace, status.hub]
            for field, family in families.items():
                value = getattr(status, field)
                family.add_metric(where, value / 1000 if field == "last_file_ms" else value)
            for each in CaptureState:
                state.add_metric([*where, each.value], float(status.state is each))
        yield from families.values()
        yield state
