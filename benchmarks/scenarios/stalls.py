"""The longest stall of the event loop: what delays every publication while the service does other
work, at many hubs and connections, garbage collection included.

The service runs in a child process, with a task that measures the gaps between its own turns. Other
programs on the same core lengthen the wall time of a gap, not its CPU time: both are reported.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import resource
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from benchmarks.report.results import Results
from benchmarks.scenarios.comparison import Tell
from benchmarks.systems.base import run
from benchmarks.systems.process import BROKER_CORE, FILES_MAX

from penstock.catalog.api import Catalog
from penstock.client import parse_connection_string
from penstock.client.connection import Connection, connect
from penstock.model.connection_string import Endpoint
from penstock.model.entities import ConsumerGroup, Hub
from penstock.model.names import GroupName, HubName

BAR_MS = 50.0
HUBS, CONNECTIONS = 2_000, 3_000
_HUB = "hub-00000"
_PARTITIONS = 4
_AT_ONCE = 50
_TICK_S = 0.001
_REPEATS = 5
_START_S = 600.0


def event_loop_stalls(
    place: Path, results: Results, *, hubs: int, connections: int, tell: Tell
) -> None:
    with _serving(place / "stalls", hubs, tell) as service:
        tell(f"{connections} connections")
        found = run(_measure(service, connections, tell))
    results.facts["stall_hubs"], results.facts["stall_connections"] = hubs, connections
    for phase, figures in found.items():
        wall_ms, cpu_ms, gc_ms = (figures[name] for name in ("wall_ms", "cpu_ms", "gc_ms"))
        state = "met" if wall_ms < BAR_MS else "not met"
        results.facts[f"longest_stall {phase}"] = (
            f"{wall_ms:.1f} ms ({cpu_ms:.1f} ms of CPU, longest collection {gc_ms:.1f} ms): "
            f"bar of {BAR_MS:g} ms {state}"
        )


class _Service:
    """The child process, asked line by line."""

    def __init__(self, process: subprocess.Popen[str], facts: dict[str, Any]) -> None:
        self._process = process
        self.endpoint: Endpoint = parse_connection_string(facts["emulator_connection_string"])

    def ask(self, phase: str) -> dict[str, float]:
        """Run a phase; the longest stall of the loop in it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{phase}\n")
        self._process.stdin.flush()
        found: dict[str, float] = json.loads(self._process.stdout.readline())
        return found


@contextlib.contextmanager
def _serving(data: Path, hubs: int, tell: Tell) -> Iterator[_Service]:
    tell(f"{hubs} hubs")
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.scenarios.stalls", str(data.absolute()), str(hubs)],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line:
            raise RuntimeError("the service did not start")
        yield _Service(process, json.loads(line))
        process.stdin.close()
        process.wait(60)
    finally:
        process.kill()
        process.wait()


async def _measure(service: _Service, connections: int, tell: Tell) -> dict[str, dict[str, float]]:
    opened = await _open(service.endpoint, connections)
    loop = asyncio.get_running_loop()
    found = {}
    for phase in PHASES:
        tell(f"{connections} connections: {phase}")
        found[phase] = await loop.run_in_executor(None, service.ask, phase)
    for start in range(0, len(opened), _AT_ONCE):
        await asyncio.gather(*(each.close() for each in opened[start : start + _AT_ONCE]))
    return found


async def _open(endpoint: Endpoint, count: int) -> list[Connection]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_MAX if hard == resource.RLIM_INFINITY else min(FILES_MAX, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    opened: list[Connection] = []
    while len(opened) < count:
        opened += await asyncio.gather(*(_connect(endpoint) for _ in range(_AT_ONCE)))
    return opened


async def _connect(endpoint: Endpoint) -> Connection:
    connection = await connect(endpoint, timeout_s=60.0)
    await connection.authorise(_HUB)
    await connection.sender(_HUB)
    return connection


# --- in the child process -------------------------------------------------------------------------


class _Gaps:
    """The longest time between two turns of the event loop."""

    def __init__(self) -> None:
        self.reset()
        self._began_ns = 0
        gc.callbacks.append(self._on_collection)

    def reset(self) -> None:
        self.wall_ms = self.cpu_ms = self.gc_ms = 0.0

    async def watch(self) -> None:
        while True:
            wall_s, cpu_s = time.perf_counter(), time.thread_time()
            await asyncio.sleep(_TICK_S)
            wall_ms = (time.perf_counter() - wall_s - _TICK_S) * 1000
            self.wall_ms = max(self.wall_ms, wall_ms)
            self.cpu_ms = max(self.cpu_ms, (time.thread_time() - cpu_s) * 1000)

    def _on_collection(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._began_ns = time.perf_counter_ns()
        else:
            self.gc_ms = max(self.gc_ms, (time.perf_counter_ns() - self._began_ns) / 1e6)


class _Child:
    def __init__(self, service: Any, facts: Any) -> None:
        self._service = service
        self._admin_port = int(facts.admin.rpartition(":")[2])
        self.catalog: Catalog = service.broker._catalog  # noqa: SLF001

    @property
    def _hub(self) -> Hub:
        hub = self.catalog.hub("penstock", _HUB)
        assert hub is not None
        return hub

    async def idle(self) -> None:
        await asyncio.sleep(2)

    async def metrics(self) -> None:
        await self._get("/metrics")

    async def ready(self) -> None:
        await self._get("/ready")

    async def group(self) -> None:
        name = GroupName(f"g{time.monotonic_ns()}")
        hub = self._hub
        self.catalog.put_group(
            ConsumerGroup(
                namespace=hub.namespace, hub=hub.name, name=name, created_ms=0, updated_ms=0
            )
        )

    async def rule(self) -> None:
        """Every link is judged again."""
        (rule,) = self.catalog.rules("penstock")
        self.catalog.put_rule(msgspec.structs.replace(rule, updated_ms=rule.updated_ms + 1))
        await asyncio.sleep(2)

    async def units(self) -> None:
        """As auto-inflate does: every hub of the namespace is updated."""
        namespace = self.catalog.namespace("penstock")
        assert namespace is not None
        units = (namespace.throughput_units or 1) + 1
        self.catalog.put_namespace(msgspec.structs.replace(namespace, throughput_units=units))
        await asyncio.sleep(0.5)

    async def capture_report(self) -> None:
        """What a report of Capture's progress writes."""
        reached = {"captureRuns": [{"reached": time.monotonic_ns()}]}
        self.catalog.put_hub(msgspec.structs.replace(self._hub, user_metadata=str(reached)))

    async def retention(self) -> None:
        from penstock.service.retention import enforce_retention

        await enforce_retention(self._service.broker)

    async def collection(self) -> None:
        """Collections as the service has them: objects are created until several have run."""
        kept: list[list[list[object]]] = []
        for _ in range(500):
            kept.append([[] for _ in range(100)])
            await asyncio.sleep(0)

    async def _get(self, path: str) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._admin_port)
        writer.write(
            f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
        )
        while await reader.read(1 << 16):
            pass
        writer.close()


PHASES: dict[str, Callable[[_Child], Awaitable[None]]] = {
    "idle": _Child.idle,
    "/metrics": _Child.metrics,
    "/ready": _Child.ready,
    "consumer group created": _Child.group,
    "key changed": _Child.rule,
    "units changed": _Child.units,
    "capture report": _Child.capture_report,
    "retention pass": _Child.retention,
    "garbage collection": _Child.collection,
}


async def _serve(data: Path, hubs: int) -> None:
    from penstock.service.config.settings import (
        DEFAULT_NAMESPACE,
        HubSettings,
        NamespaceSettings,
        Settings,
    )
    from penstock.service.garbage_collection import GarbageCollection
    from penstock.service.wiring import Penstock

    names = [HubSettings(name=HubName(f"hub-{number:05}")) for number in range(hubs)]
    settings = Settings(
        data=data,
        amqp_port=0,
        amqps_port=0,
        https_port=0,
        admin_port=0,
        portal=False,
        namespaces=(NamespaceSettings(name=DEFAULT_NAMESPACE, hubs=tuple(names)),),
        namespaces_given=True,
    )
    service = Penstock(settings)
    facts = await service.start()
    GarbageCollection(asyncio.get_running_loop()).start()
    print(facts.as_json(), flush=True)
    gaps, loop = _Gaps(), asyncio.get_running_loop()
    watching = loop.create_task(gaps.watch())
    child = _Child(service, facts)
    while phase := (await loop.run_in_executor(None, sys.stdin.readline)).strip():
        gaps.reset()
        for _ in range(_REPEATS):
            await PHASES[phase](child)
            await asyncio.sleep(0.05)
        print(
            json.dumps({"wall_ms": gaps.wall_ms, "cpu_ms": gaps.cpu_ms, "gc_ms": gaps.gc_ms}),
            flush=True,
        )
    watching.cancel()
    await service.stop()


def _child() -> None:
    import os

    from penstock.io.event_loop import new_event_loop

    os.sched_setaffinity(0, {BROKER_CORE})
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_serve(Path(sys.argv[1]), int(sys.argv[2])))


if __name__ == "__main__":
    _child()
